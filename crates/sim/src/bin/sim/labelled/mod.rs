//! Graphs over labelled disks, through the graph's own way of opening and changing them: power cuts
//! and kills at any moment, also while the graph comes up or becomes another one, and between two
//! lives whatever hands can do to disks. Whatever happens, nobody reads what is stale.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | lives of the process |
//! | `shape.rs` | the graph: a mirror, and what stands above and below it |
//! | `beside.rs` | a disk beside the mirror, and older images of it |
//! | `copies.rs` | what a mirror copies |
//! | `changes.rs` | the graph becomes another one under load |
//! | `hands.rs` | what becomes of disks between two lives |
//! | `doubt.rs` | disks that do not keep what they promise |
//! | `steps.rs` | what is done, step by step, and what can be left away |
//! | `trouble.rs` | one disk with errors, or with late answers |
//! | `labels.rs` | what labels say, read from outside |
//! | `verdict.rs` | a check before each start, compared with it |

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use block::control::Verb;
use block::control::member::{Resync, Stale};
use block::{ByteRange, ErrorKind, MemberState, Reason, Report as DeviceReport};
use graph::labels::Opening;
use graph::live::Current;
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Count, Counters, DiskConfig, Image, Model, Profile, SimDisk, SimWorld, answered};

use crate::process::{self, LIMIT, Refusal, Running, Started, Wanted};
use crate::trial::{Failure, Report};

mod beside;
mod changes;
mod copies;
mod doubt;
mod hands;
mod labels;
mod shape;
mod steps;
mod trouble;
mod verdict;

use beside::Beside;
use doubt::Doubt;
pub use shape::KINDS;
use shape::Shape;
use steps::What;
pub use steps::{History, Step, shrink};

/// Bytes of a disk beyond its data.
const LABEL_BYTES: u64 = 2 * meta::AREA_BYTES;

/// Bytes that clients see.
const VOLUME_BYTES: u64 = 64 << 10;

/// In virtual time: longer than devices go on by themselves when nobody asks for anything.
const QUIET: Duration = Duration::from_secs(10);

const IN_SYNC: MemberState = MemberState::InSync;

const HERE: [u8; 16] = [1; 16];
const THERE: [u8; 16] = [2; 16];

/// How a life of the process goes.
struct Course {
    end: End,
    changes: u64,
    clients: u64,
}

/// How a life of the process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Stop,
    PowerAfter(Duration),
    KillAfter(Duration),
    /// At the moment when a member has failed and hardly anybody knows, or about then.
    KillAtFailure(Duration),
    /// While the graph becomes another one.
    InChange(Duration, Crash),
}

/// How a process ends without being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Crash {
    Kill,
    Power,
}

/// What is done while clients work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Nothing else.
    Steady,
    /// The graph becomes another one now and then.
    Changing,
}

/// How a start is asked for.
#[derive(Clone, Copy, Default)]
struct Ask {
    degraded: bool,
    elsewhere: bool,
    /// The member that a command at this start trusts.
    trust: Option<usize>,
    /// The member that the spec trusts, from an earlier time.
    leftover: Option<usize>,
    /// The disk that is labelled whatever is on it.
    wipe: Option<usize>,
}

/// What came of a start.
enum Start {
    Up,
    /// The reason of the first error, and all of them.
    Refused(Option<Reason>, Refusal),
    /// It was not up in the time that it had.
    Unfinished,
}

impl Start {
    fn words(&self) -> String {
        match self {
            Self::Up => "it is up".to_owned(),
            Self::Refused(_, refusal) => refusal.to_string(),
            Self::Unfinished => "it is not up in time".to_owned(),
        }
    }
}

struct Trial {
    seed: u64,
    world: SimWorld,
    draw: Stream,
    shape: Shape,
    disks: Vec<Rc<SimDisk>>,
    /// A disk beside the mirror, if the graph has one.
    beside: Option<Beside>,
    /// Which disk is plugged in where; `None`: it is away.
    plugged: Vec<Option<usize>>,
    /// An image of each disk from some time when nothing ran; `None`: it had no part in the graph then.
    images: Vec<Option<Image>>,
    model: Rc<Model>,
    tally: Rc<Tally>,
    starts: u64,
    running: Option<Running>,
    /// Who was in sync when the process ended.
    in_sync: Vec<usize>,
    /// The disk that has errors or does not answer in time, or did so in this life of the process: its last flush may
    /// have failed, and it may be out of the mirror.
    ill: Option<usize>,
    /// The disk that a command takes out in this life, at its time.
    leaving: Option<usize>,
    /// The disk whose file was cut short in this life of the process.
    cut: Option<usize>,
    /// Disks that were ever part of the graph.
    used: BTreeSet<usize>,
    /// Whether some labels may tell of another graph than others: until it comes up again, all of them are needed.
    torn: bool,
    /// The graphs from before and after the change that left labels torn, if both may come up.
    between: Option<[Shape; 2]>,
    /// What is wrong with the disks from the beginning, if anything is.
    doubt: Option<Doubt>,
    /// The lives so far, and those within hands.
    life: u64,
    history: History,
}

/// Runs a seed, but for the steps that `history` leaves away.
///
/// # Errors
/// The first promise that is broken.
pub fn run(seed: u64, history: &History) -> Result<Report, Failure> {
    let mut trial = Trial::new(seed, history)?;
    match trial.doubt {
        Some(doubt) => trial.in_doubt(doubt)?,
        None => trial.all_lives()?,
    }
    let counters = Counters::default();
    counters.absorb(trial.world.counters());
    Ok(Report {
        counters,
        kinds: trial.shape.kinds(),
        requests: (trial.tally.done.get(), trial.tally.failed.get()),
        trace: trial.world.trace(),
    })
}

fn path(n: usize) -> String {
    format!("/disk{n}")
}

fn wrong(words: impl Into<String>) -> Failure {
    Failure::new(words)
}

impl Drop for Trial {
    fn drop(&mut self) {
        // Tasks hold the world, and it them.
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        self.world.drop_tasks();
    }
}

impl Trial {
    /// Life after life, and what hands do between.
    fn all_lives(&mut self) -> Result<(), Failure> {
        let lives = Stream::new(self.seed, "lives", 0).within(2, 6);
        for n in 0..lives {
            self.enters(n << 4);
            self.life(Load::Changing)?;
            self.between()?;
        }
        self.all_back()
    }

    fn new(seed: u64, history: &History) -> Result<Self, Failure> {
        let world = SimWorld::new(seed);
        let draw = Stream::new(seed, "labelled", 0);
        let count = draw.within(2, 3) as usize;
        let mut shape = Shape::draw(&draw, count);
        let doubt = Doubt::draw(seed, count);
        // Of damage an encryption makes junk, of which nobody knows what it was.
        shape.crypt &= doubt.is_none();
        shape.beside = doubt.is_none() && Beside::draw(seed);
        let disk = |n: usize| {
            let profile = draw.pick(&[Profile::Native512, Profile::Native512, Profile::Native4k]);
            let profile = doubt.map_or(profile, |doubt| doubt.profile(n, profile));
            let config = DiskConfig {
                most_ns: draw.within(10_000, 1_000_000),
                discard_zeroes: draw.below(2) == 0,
                destage: draw.pick(&[0, 100_000, 1_000_000]),
                ..DiskConfig::new(LABEL_BYTES + shape.data_bytes(), profile)
            };
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(path(n), &disk);
            disk
        };
        // One more than there are members: it may become one.
        let disks: Vec<_> = (0..=count).map(disk).collect();
        let mut trial = Self {
            seed,
            model: Rc::new(Model::new(seed, VOLUME_BYTES)),
            beside: Beside::new(&world, &shape, disks.len()),
            world,
            draw,
            shape,
            disks,
            plugged: (0..=count).map(Some).collect(),
            images: vec![None; count + 1],
            tally: Rc::default(),
            starts: 0,
            running: None,
            in_sync: vec![0],
            ill: None,
            leaving: None,
            cut: None,
            used: (0..count).collect(),
            torn: false,
            between: None,
            doubt,
            life: 0,
            history: history.clone(),
        };
        trial.begin(Ask::default())?;
        // Under an encryption blank bytes are junk, and have to stay so.
        trial.world.block_on(trial.worker(0).learn())?;
        trial.check()?;
        for n in 0..count {
            trial.images[n] = Some(trial.disks[n].image());
        }
        Ok(trial)
    }

    /// From now on it is that life: what it draws does not depend on those before it.
    fn enters(&mut self, life: u64) {
        self.life = life;
        self.starts = (life + 1) << 8;
        self.world.reseed(life + 1);
    }

    /// Whether a step is to be done; then what is drawn from now on is its own.
    fn takes(&mut self, what: What) -> bool {
        let step = Step { life: self.life, what };
        let takes = self.history.takes(step) || what == What::End;
        if takes {
            self.draw = step.stream(self.seed);
        }
        takes
    }

    /// What the step is that is being done, in words.
    fn note(&self, what: What, words: String) {
        self.history.note(Step { life: self.life, what }, words);
    }

    /// Starts the process, however long disks of the one before are busy. `limit`: for all of it.
    fn start(&mut self, ask: Ask, limit: Duration) -> Result<Start, Failure> {
        (self.ill, self.leaving) = (None, None);
        let wanted = Wanted {
            text: self.shape.text(ask.leftover),
            trust: ask.trust.map(|n| self.shape.member(n)),
            opening: Opening {
                degraded: ask.degraded,
                wipe: ask.wipe.map(shape::name).into_iter().collect(),
                ..process::opening(if ask.elsewhere { THERE } else { HERE })
            },
            connections: self.connections(),
            limit,
        };
        let checked = self.checked(ask)?;
        let start = match process::start(&self.world, &mut self.starts, &wanted)? {
            Started::Up(running) => {
                (self.torn, self.between) = (false, None);
                self.beside.iter_mut().for_each(Beside::round_completed);
                self.running = Some(running);
                self.note_copies()?;
                Start::Up
            }
            Started::Refused(why, words) => Start::Refused(why, words),
            Started::Unfinished => Start::Unfinished,
        };
        if let Some(findings) = checked {
            self.compare(&findings, &wanted.opening, &start)?;
        }
        Ok(start)
    }

    /// Over how many NBD connections clients come; straight into the graph if none. In doubt they look at errors,
    /// of which NBD carries a number only.
    fn connections(&self) -> usize {
        let draw = Stream::new(self.seed, "connections", 0);
        match draw.below(3) {
            0 if self.doubt.is_none() => draw.within(1, 3) as usize,
            _ => 0,
        }
    }

    /// Starts the process; it must come up, and show what it must show.
    fn up(&mut self, ask: Ask) -> Result<(), Failure> {
        self.begin(ask)?;
        self.came_up()
    }

    /// Checks a graph just after its start, before any other write. Members in sync are alike by then.
    fn came_up(&self) -> Result<(), Failure> {
        // A remap writes by itself from the start on.
        if !self.shape.remap {
            self.alike()?;
        }
        self.check()
    }

    /// Starts the process; it must come up.
    fn begin(&mut self, ask: Ask) -> Result<(), Failure> {
        match self.start(ask, LIMIT)? {
            Start::Up => {}
            Start::Refused(_, words) => {
                return Err(wrong(format!("a labelled graph comes up again: {words}")));
            }
            Start::Unfinished => return Err(wrong("a labelled graph comes up in time")),
        }
        Ok(())
    }

    /// What can be read now is what must be there.
    fn check(&self) -> Result<(), Failure> {
        let worker = self.worker(self.starts << 48);
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    fn worker(&self, number: u64) -> Worker {
        let running = self.running.as_ref().expect("it runs");
        Worker {
            env: self.world.env(),
            client: running.door.clone(),
            model: self.model.clone(),
            tally: self.tally.clone(),
            draw: Stream::new(self.seed, "worker", number),
            mix: Mix::ALL,
        }
    }

    fn judge(&self) -> Result<(), Failure> {
        if let Some(broken) = &*self.tally.wrong.borrow() {
            return Err(wrong(broken.to_string()));
        }
        match &*self.tally.error.borrow() {
            // A map has checksums, and says what a disk that lies has cost it.
            Some(error)
                if self.shape.remap && self.lies() && error.kind() == ErrorKind::Corrupt =>
            {
                Ok(())
            }
            Some(error) => Err(wrong(format!("what a mirror survives fails no request: {error}"))),
            None => Ok(()),
        }
    }

    /// Whether a disk is there that does not do what it says.
    fn lies(&self) -> bool {
        self.doubt.is_some_and(|doubt| doubt.liar().is_some())
    }

    fn report(&self) -> DeviceReport {
        let now = self.now();
        now.graph.report(now.graph.member("m").expect("the spec has it"))
    }

    /// Carries out a command on the mirror.
    fn ask<V: Verb>(&self, args: V::Args) -> block::Result<V::Answer> {
        let now = self.now();
        answered(now.graph.ask::<V>(now.graph.member("m").expect("the spec has it"), args))
    }

    fn now(&self) -> Rc<Current> {
        self.running.as_ref().expect("it runs").live.now()
    }

    fn in_sync_now(&self) -> Result<Vec<usize>, Failure> {
        let members = self.report().members;
        let disks = self.shape.members.iter().zip(members);
        Ok(disks.filter(|(_, member)| member.state == IN_SYNC).map(|(disk, _)| *disk).collect())
    }

    /// A disk beneath the mirror.
    fn any_member(&self) -> usize {
        self.draw.pick(&self.shape.members)
    }

    /// Requests, with one member that fails, until the process ends one way or another.
    fn life(&mut self, load: Load) -> Result<(), Failure> {
        let Course { end, changes, clients } = self.course(load);
        let mut is_late = false;
        if self.takes(What::Trouble) {
            is_late = self.trouble(end, changes)?;
            let soon = Duration::from_nanos(self.draw.within(1_000, 8_000_000));
            self.bring_back(soon);
            if changes == 0 && self.ill.is_none() && self.cut.is_none() {
                let any = self.any_member();
                let pause = self.draw.below(soon.as_nanos() as u64);
                self.take_out(any, Duration::from_nanos(pause));
                self.leaving = Some(any);
            }
        }
        for n in 0..clients {
            if self.takes(What::Client(n)) {
                let requests = self.draw.within(5, 30) * (changes + 1);
                self.note(What::Client(n), format!("{requests} requests"));
                self.worker(self.life << 36 | n).start(requests);
            }
        }
        for n in 0..changes {
            if self.takes(What::Change(n)) {
                let pause = Duration::from_nanos(self.draw.within(1_000, 3_000_000));
                self.world.run(self.world.env().now().after(pause))?;
                self.change(n, end)?;
            }
        }
        self.takes(What::End);
        if is_late {
            self.hold_up()?;
        }
        self.beside.iter_mut().for_each(Beside::keep_image);
        self.come_to(end)?;
        self.calm();
        self.beside.iter_mut().for_each(Beside::keep_image);
        for n in self.shape.members.clone() {
            if self.draw.below(4) == 0 && self.cut != Some(n) {
                self.images[n] = Some(self.disks[n].image());
            }
        }
        Ok(())
    }

    /// How a life goes.
    fn course(&mut self, load: Load) -> Course {
        if !self.takes(What::Life) {
            return Course { end: End::Stop, changes: 0, clients: 0 };
        }
        let soon = Duration::from_nanos(self.draw.within(1_000, 8_000_000));
        let changing = load == Load::Changing;
        let end = match self.draw.below(if changing { 14 } else { 8 }) {
            0 | 1 => End::Stop,
            2..=4 => End::PowerAfter(soon),
            5 => End::KillAfter(soon),
            6 | 7 => End::KillAtFailure(soon),
            8 => End::InChange(soon, Crash::Kill),
            9..=11 => End::InChange(soon, Crash::Power),
            // At once after a change, or nearly so: what was answered before it is flushed.
            _ => End::PowerAfter(soon / 64),
        };
        let least = u64::from(matches!(end, End::PowerAfter(time) if time != soon));
        let changes = if changing { self.draw.within(least, 3) } else { 0 };
        let clients = self.draw.within(1, 5);
        self.note(What::Life, format!("{clients} clients, {changes} changes, then {end:?}"));
        Course { end, changes, clients }
    }

    /// The life comes to its end.
    fn come_to(&mut self, end: End) -> Result<(), Failure> {
        match end {
            End::Stop => {
                self.finish()?;
                self.calm();
                self.stop()
            }
            End::PowerAfter(time) => {
                self.world.run(self.world.env().now().after(time))?;
                self.judge()?;
                self.power_cut()
            }
            End::KillAfter(time) => {
                self.world.run(self.world.env().now().after(time))?;
                self.kill()
            }
            End::KillAtFailure(time) => {
                self.until_failed(time)?;
                self.kill()
            }
            End::InChange(time, crash) => {
                self.world.run(self.world.env().now().after(time))?;
                self.crash_in_change(end, crash)
            }
        }
    }

    fn finish(&self) -> Result<(), Failure> {
        let (env, tally) = (self.world.env(), self.tally.clone());
        let done = self.world.block_on(async move { env.within(LIMIT, tally.idle()).await })?;
        if done.is_none() {
            return Err(wrong(format!("everything is done within {LIMIT:?}: it is not")));
        }
        self.judge()
    }

    /// Until a member has failed, in steps so short that little else happens; or for so long.
    fn until_failed(&self, limit: Duration) -> Result<(), Failure> {
        let step = Duration::from_nanos(self.draw.within(5_000, 100_000));
        let until = self.world.env().now().after(limit.max(step * 20));
        while self.world.env().now() < until {
            if self.report().members.iter().any(|member| member.state == MemberState::Failed) {
                self.world.counters().add(Count::KillRetired);
                // What it missed may be answered by now, or not.
                let more = Duration::from_nanos(self.draw.below(1_000_000));
                return Ok(self.world.run(self.world.env().now().after(more))?);
            }
            self.world.run(self.world.env().now().after(step))?;
        }
        Ok(())
    }

    /// Flushes and closes, as the server does.
    fn stop(&mut self) -> Result<(), Failure> {
        self.running.as_ref().expect("it runs").quiesce(&self.world)?;
        // A disk of which an earlier flush has failed is out by now.
        self.in_sync = self.in_sync_now()?;
        let running = self.running.take().expect("it runs");
        let closed = running.close(&self.world)?;
        if closed.is_ok() {
            self.beside.iter_mut().for_each(Beside::round_completed);
        }
        self.closed_in_order(closed)?;
        self.tally.killed();
        self.world.drop_tasks();
        running.engine.abandon();
        self.model.restarted();
        Ok(())
    }

    fn power_cut(&mut self) -> Result<(), Failure> {
        if self.running.is_some() {
            self.in_sync = self.in_sync_now()?;
        }
        self.tally.killed();
        self.world.drop_tasks();
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        let beside = self.beside.as_ref().map(|beside| &beside.disk);
        process::cut_power(self.disks.iter().chain(beside), &self.draw);
        self.model.power_cut();
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failure> {
        if self.running.is_some() {
            self.in_sync = self.in_sync_now()?;
        }
        self.tally.killed();
        self.world.kill();
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        self.model.restarted();
        Ok(())
    }

    /// What a dead process had begun has ended: a disk is not moved before.
    fn settle(&self) -> Result<(), Failure> {
        Ok(self.world.run(self.world.env().now().after(Duration::from_secs(5)))?)
    }

    /// In the end all disks are there and well: all come back in sync, and are alike.
    fn all_back(&mut self) -> Result<(), Failure> {
        self.finish()?;
        for _ in 0..100 {
            self.world.run(self.world.env().now().after(Duration::from_secs(1)))?;
            if self.in_sync_now()?.len() == self.shape.members.len() {
                break;
            }
            // It may be under way.
            let _ = self.ask::<Resync>(Stale::default());
        }
        let report = self.report();
        if report.members.iter().any(|one| one.state != IN_SYNC && one.detail != "not there") {
            return Err(wrong(format!("redundancy is restored: {report:?}")));
        }
        if self.shape.remap {
            // It moves blocks, and closes its log, by itself.
            self.world.run(self.world.env().now().after(QUIET))?;
        }
        self.alike()?;
        let worker = self.worker(self.starts << 48 | 1);
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    /// The bytes of a disk between its label areas.
    fn data(&self) -> ByteRange {
        ByteRange::new(meta::DATA_START, self.shape.data_bytes()).expect("some bytes")
    }

    /// Members in sync hold the same.
    fn alike(&self) -> Result<(), Failure> {
        let data = self.data();
        let first = self.disks[self.in_sync_now()?[0]].peek(data);
        for n in self.in_sync_now()? {
            self.world.counters().add(Count::Compared);
            if self.disks[n].peek(data) != first {
                return Err(wrong(format!("members in sync are alike: d{n} is not")));
            }
        }
        Ok(())
    }
}
