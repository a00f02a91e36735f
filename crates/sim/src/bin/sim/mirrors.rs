//! The mirrors in the graph of a trial: commands to them while clients send requests, the members that the next start
//! trusts, and the comparison of members in sync.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use block::control::Cause;
use block::control::member::{Fail, Name, Resync, Stale};
use block::{ByteRange, MemberState, Op, Report};
use sim::draw::Stream;
use sim::{Assembly, Client, Count, Faults, PartId, SimDisk, SimWorld};

use crate::plan::{self, Plan};
use crate::shapes::{Member, Mirror};

/// Length in bytes of one read when the simulator compares the members of a mirror.
const STEP_BYTES: u64 = 64 << 10;

/// Number of read errors within [`READ_ERRORS_WITHIN`] at which a mirror must take the member out.
const READ_ERRORS_MAX: u64 = 10;

/// Time for which a mirror counts a read error of a member as recent.
const READ_ERRORS_WITHIN: Duration = Duration::from_secs(600);

/// Number of commands that the simulator sends in a round if commands repeatedly take a member out and resync it.
const RELAPSES: u64 = 12;

const IN_SYNC: MemberState = MemberState::InSync;

/// All mirrors in the graph of a trial.
pub struct Mirrors {
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    all: Rc<Vec<Mirror>>,
    /// Mirrors whose member `victim` has faults, by device number. The next start trusts another member of such a
    /// mirror if another is in sync.
    troubled: BTreeSet<PartId>,
    /// Whether errors may also take out members of a mirror other than its `victim`.
    may_fail: bool,
    /// Whether commands are frequent, and take a member out as often as they resync one.
    relapses: bool,
}

/// Description of a broken rule, in words.
type Wrong = String;

impl Mirrors {
    /// Collects the mirrors of a graph over `disks`, and sets the faults of each mirror's `victim`. `trouble` returns
    /// these faults, given whether the member is a single disk, or `None` if the disks have their faults already.
    pub fn new(
        world: &SimWorld,
        disks: &[Rc<SimDisk>],
        all: Vec<Mirror>,
        plan: &Plan,
        trouble: impl Fn(bool) -> Option<Faults>,
    ) -> Self {
        let mut troubled = BTreeSet::new();
        for mirror in &all {
            let Some(victim) = mirror.victim.map(|victim| &mirror.members[victim]) else {
                continue;
            };
            let faults = trouble(victim.is_disk).unwrap_or_default();
            if faults != Faults::default() {
                victim.disks.iter().for_each(|disk| disks[*disk].set_faults(faults));
            }
            if faults != Faults::default() || victim.fails {
                troubled.insert(mirror.part);
            }
        }
        let (world, disks, all) = (world.clone(), disks.to_vec(), Rc::new(all));
        let Plan { may_fail, relapses, .. } = *plan;
        Self { world, disks, all, troubled, may_fail, relapses }
    }

    /// Sends commands to random mirrors at random times within `within_ns` nanoseconds: takes members out and resyncs
    /// them while clients send requests.
    pub fn command(&self, graph: &Rc<Assembly>, draw: Stream, within_ns: u64) {
        if self.all.is_empty() || draw.below(3) == 0 {
            return;
        }
        let (graph, all, world) = (graph.clone(), self.all.clone(), self.world.clone());
        let disks = self.disks.clone();
        let (env, relapses) = (self.world.env(), self.relapses);
        let pauses = if relapses { RELAPSES } else { draw.within(1, 6) };
        env.clone().spawn("commands", async move {
            for _ in 0..pauses {
                env.sleep(Duration::from_nanos(draw.below(within_ns / pauses) + 1)).await;
                let mirror = &all[draw.below(all.len() as u64) as usize];
                let any = draw.below(mirror.members.len() as u64) as usize;
                let member = &mirror.members[mirror.victim.unwrap_or(any)];
                if relapses {
                    let is_late = draw.below(2) == 0;
                    let faults = if is_late { plan::relapsing() } else { Faults::default() };
                    mirror.disks_of_victim().for_each(|disk| disks[disk].set_faults(faults));
                }
                let member = graph.name(member.part).to_owned();
                // The mirror may refuse it: the member is the last one, or is being copied already.
                let stale = match draw.below(if relapses { 4 } else { 5 }) {
                    0 | 1 => {
                        if graph.ask::<Fail>(mirror.part, Name { member }).is_ok() {
                            world.counters().add(Count::MemberFailed);
                        }
                        continue;
                    }
                    2 => Stale { member: None },
                    _ => Stale { member: Some(member) },
                };
                let _ = graph.ask::<Resync>(mirror.part, stale);
            }
            // All are resynced while writes of earlier resyncs are late.
            for mirror in all.iter().filter(|_| relapses) {
                let none = Faults::default();
                mirror.disks_of_victim().for_each(|disk| disks[disk].set_faults(none));
                mirror.resync(&graph);
            }
        });
    }

    /// Sends each mirror the command to resync all its members that are out of service.
    pub fn resync(&self, graph: &Assembly) {
        self.all.iter().for_each(|mirror| mirror.resync(graph));
    }

    /// Returns for each mirror its device number and the name of a member in sync, which the next start trusts. Also
    /// counts the members' states.
    pub fn trusted(&self, graph: &Assembly, draw: &Stream) -> Result<Vec<(usize, String)>, Wrong> {
        let mut trusted = Vec::new();
        for mirror in self.all.iter() {
            let report = graph.report(mirror.part);
            self.note(&report);
            let in_sync = (0..mirror.members.len()).filter(|n| report.members[*n].state == IN_SYNC);
            let mut of: Vec<_> =
                in_sync.clone().filter(|n| !self.is_troubled(mirror, *n)).collect();
            if of.is_empty() && self.may_fail {
                of = in_sync.collect();
            }
            if of.is_empty() {
                return Err(format!("no working member of a mirror is in sync: {report:?}"));
            }
            trusted.push((mirror.part, report.members[draw.pick(&of)].name.clone()));
        }
        Ok(trusted)
    }

    fn is_troubled(&self, mirror: &Mirror, member: usize) -> bool {
        mirror.victim == Some(member) && self.troubled.contains(&mirror.part)
    }

    fn note(&self, report: &Report) {
        let counters = self.world.counters();
        let repaired = report.counters.iter().find(|(name, _)| *name == "repaired");
        counters.add_many(Count::Rewritten, repaired.map_or(0, |(_, count)| *count));
        for told in &report.members {
            let is_out = told.state == MemberState::Failed && told.cause != Some(Cause::Command);
            counters.add_many(Count::Retired, u64::from(is_out));
            counters.add_many(
                Count::Resynced,
                u64::from(told.state == IN_SYNC && told.since_unix_s.is_some()),
            );
            let for_reads = told.cause == Some(Cause::Reads);
            counters.add_many(Count::ReadRetired, u64::from(for_reads));
        }
    }

    /// Waits, at most 100 s of virtual time, until no request is in flight and no mirror resyncs a member. Returns
    /// `false` if the time was too short.
    pub fn quiet(&self, graph: &Assembly) -> Result<bool, Wrong> {
        for _ in 0..100 {
            let later = self.world.env().now().after(Duration::from_secs(1));
            self.world.run(later).map_err(|stuck| stuck.to_string())?;
            if graph.engine.in_flight() == 0 && !self.is_copying(graph)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a mirror is resyncing a member now.
    pub fn is_copying(&self, graph: &Assembly) -> Result<bool, Wrong> {
        for mirror in self.all.iter() {
            if graph
                .report(mirror.part)
                .members
                .iter()
                .any(|member| member.state == MemberState::Copying)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks, while no request is in flight, that all members in sync of each mirror have the same bytes, and that
    /// each has had few read errors.
    pub fn check(&self, graph: &Assembly) -> Result<(), Wrong> {
        for mirror in self.all.iter() {
            let report = graph.report(mirror.part);
            let size = graph.info(mirror.part).size;
            let mut first: Option<(usize, Vec<Option<Vec<u8>>>)> = None;
            for (n, told) in report.members.iter().enumerate() {
                if told.state != IN_SYNC {
                    continue;
                }
                self.check_errors(mirror, n, told)?;
                let bytes = self.bytes_of(graph, &mirror.members[n], size)?;
                let Some((other, expected)) = &first else {
                    first = Some((n, bytes));
                    continue;
                };
                self.world.counters().add(Count::Compared);
                let both = expected.iter().zip(&bytes).enumerate();
                for (step, (expected, bytes)) in both {
                    let (Some(expected), Some(bytes)) = (expected, bytes) else { continue };
                    if let Some(at) = (0..bytes.len()).find(|at| bytes[*at] != expected[*at]) {
                        let at = step as u64 * STEP_BYTES + at as u64;
                        let name = graph.name(mirror.part);
                        let (one, two) = (&report.members[*other].name, &told.name);
                        return Err(format!(
                            "the members {one} and {two} of mirror {name} are in sync but differ \
                             at byte {at}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that the mirror has taken out member `n` if the member had too many read errors. Checks only a member
    /// that is a single disk and was never resynced, and only while all its errors are recent.
    fn check_errors(&self, mirror: &Mirror, n: usize, told: &block::Member) -> Result<(), Wrong> {
        let member = &mirror.members[n];
        let only_reads = member.is_disk
            && told.since_unix_s.is_none()
            && self.world.env().now().0 < READ_ERRORS_WITHIN
            && told.errors >= READ_ERRORS_MAX;
        if only_reads {
            return Err(format!(
                "a mirror did not fail a member after {} read errors: {told:?}",
                READ_ERRORS_MAX
            ));
        }
        Ok(())
    }

    /// Returns the first `size` bytes of a member in pieces of [`STEP_BYTES`]; `None` for a piece that cannot be read.
    /// Copies a single disk's bytes from the simulated disk, without a read.
    fn bytes_of(
        &self,
        graph: &Assembly,
        member: &Member,
        size: u64,
    ) -> Result<Vec<Option<Vec<u8>>>, Wrong> {
        let client = Client::new(&graph.engine, graph.node(member.part));
        let mut all = Vec::new();
        let mut at = 0;
        while at < size {
            let range = ByteRange::between(at, size.min(at + STEP_BYTES))
                .expect("bytes of the member are left");
            at = range.end();
            all.push(match member.is_disk {
                true => Some(self.disks[member.disks[0]].peek(range)),
                false => self.read(&client, range)?,
            });
        }
        Ok(all)
    }

    fn read(&self, client: &Client, range: ByteRange) -> Result<Option<Vec<u8>>, Wrong> {
        let into = self.world.env().buf(range.len() as usize).map_err(|error| error.to_string())?;
        let call = client.send(Op::read(range, into));
        let answer = self.world.block_on(call).map_err(|stuck| stuck.to_string())?;
        match (answer.result, answer.op) {
            (Ok(()), Op::Read { into, .. }) => Ok(Some(into.read().to_vec())),
            _ => Ok(None),
        }
    }

    /// Sends each mirror the command to take one member out. Returns the members that mirrors took out, for
    /// [`Mirrors::bring_back`].
    pub fn take_out(&self, graph: &Assembly, draw: &Stream) -> Result<Vec<Out>, Wrong> {
        let mut out = Vec::new();
        for (n, mirror) in self.all.iter().enumerate() {
            let any = draw.below(mirror.members.len() as u64) as usize;
            let index = mirror.victim.unwrap_or(any);
            let member = graph.name(mirror.members[index].part).to_owned();
            if graph.ask::<Fail>(mirror.part, Name { member }).is_ok() {
                out.push(Out { mirror: n, member: index, reads: self.reads(mirror, index) });
            }
        }
        Ok(out)
    }

    fn reads(&self, mirror: &Mirror, member: usize) -> u64 {
        mirror.members[member].disks.iter().map(|disk| self.disks[*disk].reads()).sum()
    }

    /// Checks that mirrors did not read the members that [`Mirrors::take_out`] took out, and resyncs these members.
    pub fn bring_back(&self, graph: &Assembly, out: &[Out]) -> Result<(), Wrong> {
        for Out { mirror, member, reads } in out {
            let mirror = &self.all[*mirror];
            let name = graph.name(mirror.members[*member].part);
            let now = self.reads(mirror, *member);
            if now != *reads {
                return Err(format!(
                    "the member {name} of mirror {} was read {} times although it is out of \
                     service",
                    graph.name(mirror.part),
                    now - reads
                ));
            }
            self.world.counters().add(Count::Unread);
            let stale = Stale { member: Some(name.to_owned()) };
            graph
                .ask::<Resync>(mirror.part, stale)
                .map_err(|error| format!("the resync of a working member was refused: {error}"))?;
        }
        Ok(())
    }

    /// Checks, after all disk faults have ended, that all members of all mirrors are in sync.
    pub fn all_in_sync(&self, graph: &Assembly) -> Result<(), Wrong> {
        for mirror in self.all.iter() {
            let report = graph.report(mirror.part);
            self.note(&report);
            let is_missed = |n: usize| report.members[n].state != IN_SYNC && !mirror.may_miss(n);
            if (0..report.members.len()).any(is_missed) {
                return Err(format!(
                    "members of a mirror are not in sync although all disks work: {report:?}"
                ));
            }
        }
        Ok(())
    }
}

impl Mirror {
    /// Returns the numbers of the disks below the member that may have faults; empty if the mirror has no such member.
    fn disks_of_victim(&self) -> impl Iterator<Item = usize> + '_ {
        let victim = self.victim.map(|victim| &self.members[victim]);
        victim.into_iter().flat_map(|victim| victim.disks.iter().copied())
    }

    /// Sends the mirror the command to resync all its members that are out of service. The mirror may refuse while
    /// writes to a member are late.
    fn resync(&self, graph: &Assembly) {
        let _ = graph.ask::<Resync>(self.part, Stale::default());
    }

    /// Whether member `member` may be out of service at the end of the trial, because a device in it, or below the
    /// mirror, fails requests on purpose.
    fn may_miss(&self, member: usize) -> bool {
        self.is_spare || self.victim == Some(member) && self.members[member].fails
    }
}

/// A member that a command took out of its mirror, and the number of reads that its disks had carried out by then.
pub struct Out {
    mirror: usize,
    member: usize,
    reads: u64,
}
