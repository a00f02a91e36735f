//! Random histories of three members: processes that die at any moment, with members away, failed, copied and replaced
//! by blank disks. Each opening decides by the labels alone. The test compares the decision with the writes on the
//! disks.

use block::StoredState;
use proptest::prelude::*;

use super::*;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A set of members, one bit for each.
type Mask = u8;

const ALL: Mask = 0b111;

/// A set of writes, one bit for each.
type Writes = u64;

/// A step of a history. A step that does not fit the present state does nothing.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The process dies, and the mirror is opened again over the members `present`. The first state reaches the members
    /// `reached`; the process dies if that leaves one out.
    Open { present: Mask, reached: Mask },
    /// The process dies, and the mirror is opened over all members, of which the operator trusts this one.
    Trust(usize),
    /// A write, which fails on the members left out. The process dies before it acknowledges the write unless
    /// `answered`.
    Write { reached: Mask, answered: bool },
    /// All acknowledged writes are flushed, and the bitmap of dirty regions becomes empty.
    Quiet,
    /// A member fails.
    Fail(usize),
    /// The next state is written, and reaches these members; the process dies if that leaves one out.
    State { reached: Mask },
    /// A copy to a member begins, with a state that reaches these members; the process dies if that leaves one out.
    Copy { to: usize, reached: Mask },
    /// The copy to a member completes.
    Copied(usize),
    /// A member is copied from begin to end.
    Resync(usize),
    /// The process dies, and a blank disk replaces a member.
    Blank(usize),
}

#[derive(Clone, Default)]
struct Disk {
    record: Option<Record>,
    writes: Writes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    InSync,
    Stale,
    Failed,
    Copying,
    Away,
}

/// An open mirror.
struct Life {
    incarnation: u64,
    events: u64,
    known: Vec<(Generation, Generation)>,
    refilled: Vec<bool>,
    content: Vec<Content>,
    states: Vec<Standing>,
    is_active: bool,
    is_durable: bool,
}

struct World {
    disks: [Disk; 3],
    life: Option<Life>,
    openings: u64,
    /// Number of writes so far.
    count: u32,
    answered: Writes,
    /// Writes that an operator gave up, by a choice between members or by removing the last disk with them.
    given_up: Writes,
}

const fn has(mask: Mask, n: usize) -> bool {
    mask >> n & 1 == 1
}

fn regions() -> Regions {
    Regions::new(4 << 10, 4 << 10).unwrap()
}

impl World {
    /// Creates a mirror with the same state on all members and no writes.
    fn new() -> Self {
        let begun = Generation { incarnation: 1, events: 1 };
        let known = vec![(begun, begun); 3];
        let states = vec![Standing::InSync; 3];
        let life = Life {
            incarnation: 1,
            events: 0,
            known,
            refilled: vec![false; 3],
            content: vec![Content::Stale; 3],
            states,
            is_active: false,
            is_durable: false,
        };
        let mut world = Self {
            disks: Default::default(),
            life: Some(life),
            openings: 1,
            count: 0,
            answered: 0,
            given_up: 0,
        };
        world.write_state(ALL);
        world
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Open { present, reached } => {
                self.life = None;
                self.open(present, None)?;
                self.write_state(reached);
            }
            Step::Trust(n) => {
                self.life = None;
                if self.disks[n].record.is_some() {
                    self.open(ALL, Some(n))?;
                    self.write_state(ALL);
                }
            }
            Step::Write { reached, answered } => self.write(reached, answered),
            Step::Quiet => {
                if let Some(life) = &mut self.life {
                    life.is_active = false;
                }
                self.write_state(ALL);
            }
            Step::Fail(n) => self.fail(n),
            Step::State { reached } => self.write_state(reached),
            Step::Copy { to, reached } => self.copy(to, reached),
            Step::Copied(n) => self.copied(n),
            Step::Resync(n) => {
                self.copy(n, ALL);
                self.copied(n);
                self.write_state(ALL);
            }
            Step::Blank(n) => self.blank(n),
        }
        Ok(())
    }

    fn open(&mut self, present: Mask, trust: Option<usize>) -> Result<(), String> {
        let found: Vec<_> = (0..3).map(|n| self.found(n, present)).collect();
        let members = Members {
            names: NAMES.to_vec(),
            found: found.iter().collect(),
            regions: regions(),
            stored: None,
            created: false,
            spares: 0,
            trust,
            trusted_now: true,
            may_degrade: true,
        };
        if found.iter().all(|found| found.state.is_none()) {
            return Ok(());
        }
        let Ok(decision) = members.decide() else { return Ok(()) };
        let state = |(n, state): (usize, &MemberState)| match state {
            _ if !has(present, n) => Standing::Away,
            MemberState::InSync => Standing::InSync,
            MemberState::Stale => Standing::Stale,
            MemberState::Failed => Standing::Failed,
        };
        let states: Vec<_> = decision.states.iter().enumerate().map(state).collect();
        let in_sync = (0..3).filter(|n| states[*n] == Standing::InSync);
        let held = in_sync.fold(Writes::MAX, |held, n| held & self.disks[n].writes);
        if trust.is_some() {
            self.given_up |= self.answered & !held;
        }
        let missed = self.answered & !self.given_up & !held;
        let here = (0..3).filter(|n| has(present, *n));
        let dropped = missed & here.fold(0, |all, n| all | self.disks[n].writes);
        if dropped != 0 {
            return Err(format!("opens without writes {dropped:#b} that a member here has"));
        }
        let kept = self.answered & !self.given_up & held;
        for n in (0..3).filter(|n| states[*n] == Standing::Stale) {
            let lacks = kept & !self.disks[n].writes;
            if decision.content[n] == Content::Divided && lacks != 0 {
                return Err(format!("member {n} counts as divided and lacks writes {lacks:#b}"));
            }
        }
        self.openings += 1;
        self.life = Some(Life {
            incarnation: self.openings,
            events: decision.events,
            known: decision.known_by(self.openings),
            refilled: decision.refilled,
            content: decision.content,
            states,
            is_active: false,
            is_durable: false,
        });
        Ok(())
    }

    fn found(&self, n: usize, present: Mask) -> Found {
        let present = has(present, n);
        let record = self.disks[n].record.as_ref().filter(|_| present);
        let kept = |record: &Record| StoredState {
            sequence: record.generation.events,
            bytes: record.encode(),
        };
        let state = record.map(kept);
        Found {
            labelled: true,
            present,
            fresh: present && state.is_none(),
            clean: false,
            everywhere: state.is_some(),
            oldest: state.clone(),
            state,
            closed: None,
        }
    }

    /// Writes the next state to the members of `reached`. The process dies if that leaves out a member that takes
    /// writes.
    fn write_state(&mut self, reached: Mask) {
        let Some(mut life) = self.life.take() else { return };
        let ports: Vec<_> = (0..3).filter(|n| life.takes_writes(*n)).collect();
        life.events += 1;
        let now = Generation { incarnation: life.incarnation, events: life.events };
        ports.iter().for_each(|n| life.known[*n].1 = now);
        let record = life.record(now);
        for n in ports.iter().copied().filter(|n| has(reached, *n)) {
            self.disks[n].record = Some(record.clone());
            life.known[n].0 = now;
        }
        let is_whole = ports.iter().all(|n| has(reached, *n));
        let is_served = life.states.contains(&Standing::InSync);
        life.is_durable = true;
        self.life = Some(life).filter(|_| is_whole && is_served);
    }

    fn write(&mut self, reached: Mask, answered: bool) {
        let Some(life) = &mut self.life else { return };
        let is_known = life.is_durable && life.is_active;
        life.is_active = true;
        if !is_known {
            self.write_state(ALL);
        }
        let Some(life) = &mut self.life else { return };
        let write = 1 << self.count;
        self.count += 1;
        for n in (0..3).filter(|n| !life.takes_writes(*n)).collect::<Vec<_>>() {
            life.lags(n);
        }
        for n in (0..3).filter(|n| life.takes_writes(*n)).collect::<Vec<_>>() {
            if has(reached, n) {
                self.disks[n].writes |= write;
            } else {
                life.states[n] = Standing::Failed;
                life.lags(n);
                life.is_durable = false;
            }
        }
        if !life.is_durable {
            self.write_state(if answered { ALL } else { reached >> 1 });
        }
        self.life = self.life.take().filter(|_| answered);
        if self.life.is_some() {
            self.answered |= write;
        }
    }

    fn fail(&mut self, n: usize) {
        let Some(life) = &mut self.life else { return };
        let others = (0..3).any(|other| other != n && life.states[other] == Standing::InSync);
        if others && life.takes_writes(n) {
            life.states[n] = Standing::Failed;
            life.lags(n);
            life.is_durable = false;
        }
    }

    fn copy(&mut self, n: usize, reached: Mask) {
        let Some(life) = &mut self.life else { return };
        if matches!(life.states[n], Standing::Stale | Standing::Failed) {
            life.states[n] = Standing::Copying;
            self.write_state(reached);
        }
    }

    fn copied(&mut self, n: usize) {
        let Some(life) = &self.life else { return };
        if life.states[n] != Standing::Copying {
            return;
        }
        let source = life.states.iter().position(|it| *it == Standing::InSync);
        self.disks[n].writes = self.disks[source.expect("it serves")].writes;
        let life = self.life.as_mut().expect("it is there");
        life.states[n] = Standing::InSync;
        life.is_durable = false;
    }

    fn blank(&mut self, n: usize) {
        self.life = None;
        if (0..3).any(|other| other != n && self.disks[other].record.is_some()) {
            self.disks[n] = Disk::default();
            let held = self.disks.iter().fold(0, |all, disk| all | disk.writes);
            self.given_up |= self.answered & !held;
        }
    }
}

impl Life {
    fn takes_writes(&self, n: usize) -> bool {
        matches!(self.states[n], Standing::InSync | Standing::Copying)
    }

    /// A member takes no writes any more.
    fn lags(&mut self, n: usize) {
        if self.content[n] == Content::Divided {
            self.content[n] = Content::Stale;
        }
    }

    fn record(&self, generation: Generation) -> Record {
        let (none, all) = (Bitmap::none(1), Bitmap::all(1));
        let member = |n: usize| Known {
            name: NAMES[n].to_owned(),
            state: match self.states[n] {
                Standing::InSync => MemberState::InSync,
                Standing::Stale | Standing::Copying | Standing::Away => MemberState::Stale,
                Standing::Failed => MemberState::Failed,
            },
            known: self.known[n].0,
            sent: self.known[n].1,
            refilled: self.refilled[n],
            content: match self.states[n] {
                Standing::InSync => Content::Stale,
                Standing::Copying => self.content[n],
                _ if self.content[n] == Content::Empty => Content::Empty,
                _ => Content::Stale,
            },
            missing: match self.states[n] {
                Standing::InSync => none.clone(),
                _ => all.clone(),
            },
        };
        Record {
            generation,
            regions: regions(),
            scrubbed: Scrubbed::default(),
            active: if self.is_active { all.clone() } else { none.clone() },
            flush_failed: false,
            members: (0..3).map(member).collect(),
            room: None,
        }
    }
}

fn after(steps: &[Step]) -> World {
    let mut world = World::new();
    for step in steps {
        world.take(*step).unwrap();
    }
    world
}

#[test]
fn mirror_opening_refuses_split_brain_after_disk_replacement() {
    // b fails, and a and c go on. The disk of a is replaced, and copied from b while c is away.
    let world = after(&[
        Step::Fail(1),
        Step::Write { reached: ALL, answered: true },
        Step::Blank(0),
        Step::Open { present: 0b011, reached: ALL },
        Step::Resync(0),
        Step::Open { present: ALL, reached: ALL },
    ]);
    assert!(world.life.is_none(), "b and c were written apart");
}

#[test]
fn mirror_opening_takes_no_proof_from_member_copied_apart() {
    // a fails, and b and c go on. Then a goes on without c, and is copied to the replaced disk of b. The label of b has a
    // lower number than c knows of b, but it is no older image of b.
    let world = after(&[
        Step::Fail(0),
        Step::Write { reached: ALL, answered: true },
        Step::Open { present: ALL, reached: ALL },
        Step::Open { present: ALL, reached: ALL },
        Step::Resync(2),
        Step::Open { present: ALL, reached: ALL },
        Step::Open { present: ALL, reached: ALL },
        Step::Blank(1),
        Step::Open { present: 0b011, reached: ALL },
        Step::Write { reached: ALL, answered: true },
        Step::Resync(1),
        Step::Open { present: ALL, reached: ALL },
    ]);
    assert!(world.life.is_none(), "a and c were written apart");
}

#[test]
fn mirror_opening_accepts_unacknowledged_record_on_one_member() {
    // The state that records the failure of a reaches c alone. Then a and b go on without c, and b fails.
    let world = after(&[
        Step::Write { reached: ALL, answered: true },
        Step::Fail(0),
        Step::State { reached: 0b100 },
        Step::Open { present: 0b011, reached: ALL },
        Step::Copy { to: 1, reached: ALL },
        Step::Fail(1),
        Step::Write { reached: ALL, answered: true },
        Step::Open { present: ALL, reached: ALL },
    ]);
    assert!(world.life.is_some(), "b shows that c answered nothing alone");
}

#[test]
fn mirror_opening_accepts_unacknowledged_record_on_member_that_took_no_writes() {
    // c takes no writes for some states. The state that records the failure of a, and a copy to c, reaches c alone. Then
    // a and b go on without c, and a is the source of b after a crash.
    for is_opened_since in [false, true] {
        let mut world = after(&[Step::Fail(2), Step::State { reached: ALL }]);
        if is_opened_since {
            world.take(Step::Open { present: ALL, reached: ALL }).unwrap();
        }
        let steps = [
            Step::Write { reached: ALL, answered: true },
            Step::Quiet,
            Step::Fail(0),
            Step::Copy { to: 2, reached: 0b100 },
            Step::Open { present: 0b011, reached: ALL },
            Step::Write { reached: ALL, answered: true },
            Step::Open { present: 0b011, reached: ALL },
            Step::Copy { to: 1, reached: ALL },
            Step::Open { present: ALL, reached: ALL },
        ];
        steps.into_iter().for_each(|step| world.take(step).unwrap());
        assert!(world.life.is_some(), "b shows that c answered nothing alone");
    }
}

fn step() -> impl Strategy<Value = Step> {
    // The first states of most openings, and most later states, reach all members.
    let mask = prop_oneof![2 => Just(ALL), 1 => Just(0b011), 2 => 0..0b1000_u8];
    let member = 0..3_usize;
    prop_oneof![
        4 => (mask.clone(), mask.clone()).prop_map(|(present, reached)| Step::Open { present, reached }),
        1 => member.clone().prop_map(Step::Trust),
        4 => (mask.clone(), prop::bool::weighted(0.8))
            .prop_map(|(reached, answered)| Step::Write { reached, answered }),
        1 => Just(Step::Quiet),
        2 => member.clone().prop_map(Step::Fail),
        2 => mask.clone().prop_map(|reached| Step::State { reached }),
        1 => (member.clone(), mask).prop_map(|(to, reached)| Step::Copy { to, reached }),
        1 => member.clone().prop_map(Step::Copied),
        2 => member.clone().prop_map(Step::Resync),
        1 => member.prop_map(Step::Blank),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    /// No opening drops an acknowledged write that a present member has.
    #[test]
    fn opening_keeps_acknowledged_writes_of_present_members(
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step).map_err(TestCaseError::fail)?;
        }
    }
}
