//! The trial of labelled disks: the simulated server opens a graph and changes it as `cairn serve` does. Power cuts and
//! kills come at any moment, also during a start or a live change. Between two runs of the server the operator may do
//! anything to the disks. The mirror must never read a stale member.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the runs of the server process, and the checks |
//! | `shape.rs` | the graph: a mirror, and the devices above and below it |
//! | `beside.rs` | a disk outside of the mirror, and its older images |
//! | `copies.rs` | resync and scrub of the mirror |
//! | `changes.rs` | live changes of the graph while clients send requests |
//! | `hands.rs` | changes that an operator makes to disks between two runs of the server process |
//! | `doubt.rs` | disks that break the contract |
//! | `steps.rs` | the steps of a trial, and their removal |
//! | `trouble.rs` | one disk with errors, or with late replies |
//! | `labels.rs` | the labels, read directly from the disks |
//! | `verdict.rs` | a check of the labels before each start, compared with the result of the start |

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use block::control::member::{Resync, Stale};
use block::control::{Cause, Verb};
use block::{ByteRange, MemberState, Reason, Report as DeviceReport};
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

/// Bytes of a labelled disk that the two areas of its label take.
const LABEL_BYTES: u64 = 2 * meta::AREA_BYTES;

/// Size in bytes of the volume that clients use.
const VOLUME_BYTES: u64 = 64 << 10;

/// Longest virtual time that devices (such as `remap`) need for background work without clients' requests.
const QUIET: Duration = Duration::from_secs(10);

const IN_SYNC: MemberState = MemberState::InSync;

const HERE: [u8; 16] = [1; 16];
const THERE: [u8; 16] = [2; 16];

/// The random plan for one run of the server process.
struct Course {
    end: End,
    changes: u64,
    clients: u64,
}

/// How one run of the server process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Stop,
    PowerAfter(Duration),
    KillAfter(Duration),
    /// A kill shortly after the mirror has failed a member, before most labels record the failure. The time limits the
    /// wait for the failure.
    KillAtFailure(Duration),
    /// A kill or power cut during a live change that begins after this time.
    InChange(Duration, Crash),
}

/// How a run of the server process ends without a close: by a kill of the process, or by a power cut of all disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Crash {
    Kill,
    Power,
}

/// Whether the simulator makes live changes of the graph during a run of the server process, besides the clients'
/// requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// No live changes.
    Steady,
    /// Some random live changes.
    Changing,
}

/// The flags and the spec options that the simulator gives to a start of the process.
#[derive(Clone, Copy, Default)]
struct Ask {
    degraded: bool,
    elsewhere: bool,
    /// Disk number of the member that the start trusts, as with `--trust`.
    trust: Option<usize>,
    /// Disk number of the member that the spec trusts (option `trust`) from an earlier decision of the operator.
    leftover: Option<usize>,
    /// Number of the disk that gets a new label even if it holds data (option `wipe`).
    wipe: Option<usize>,
}

/// The result of a start of the server process.
enum Start {
    Up,
    /// The process refused to start: the reason of the first error, and all errors.
    Refused(Option<Reason>, Refusal),
    /// The start did not end within the time limit.
    Unfinished,
}

impl Start {
    fn words(&self) -> String {
        match self {
            Self::Up => "the start succeeded".to_owned(),
            Self::Refused(_, refusal) => refusal.to_string(),
            Self::Unfinished => "the start did not end in time".to_owned(),
        }
    }
}

struct Trial {
    seed: u64,
    world: SimWorld,
    draw: Stream,
    shape: Shape,
    disks: Vec<Rc<SimDisk>>,
    /// The labelled disk that is no member of the mirror; `None` if the graph has no such disk.
    beside: Option<Beside>,
    /// For each path, by number, the number of the disk plugged in there; `None` if no disk is there.
    plugged: Vec<Option<usize>>,
    /// An older content of each disk, by disk number, from a time when no process ran; `None` if the disk was not in
    /// the graph then.
    images: Vec<Option<Image>>,
    /// Whether the disks can write zeroes by themselves; otherwise devices of the graph write zeros as data.
    zeroes: bool,
    model: Rc<Model>,
    tally: Rc<Tally>,
    starts: u64,
    running: Option<Running>,
    /// Disk numbers of the members that were in sync when the last process ended.
    in_sync: Vec<usize>,
    /// Number of the disk that has had errors or late replies in this run of the process. The disk's last flush may
    /// have failed, and the mirror may have taken the disk out.
    ill: Option<usize>,
    /// Number of the disk that a command takes out of the mirror in this run of the process.
    leaving: Option<usize>,
    /// Number of the disk whose file the simulator truncated in this run of the process.
    cut: Option<usize>,
    /// Numbers of the disks that have been in the graph so far.
    used: BTreeSet<usize>,
    /// Whether labels may record different specs, because a crash interrupted a live change. Until the next successful
    /// start all disks must be plugged in.
    torn: bool,
    /// The graphs before and after an interrupted live change, if either of them may start.
    between: Option<[Shape; 2]>,
    /// How the disks break the contract of disks; `None` if all disks keep the contract.
    doubt: Option<Doubt>,
    /// Number of the present run of the server process. A run that is part of a change by the operator has a number
    /// between those of two other runs.
    life: u64,
    history: History,
}

/// Runs the trial of labelled disks of a seed, without the steps that `history` leaves out.
///
/// # Errors
/// The first rule that the seed broke.
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
        // Breaks a reference cycle: tasks hold the world, and the world holds tasks.
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        self.world.drop_tasks();
    }
}

impl Trial {
    /// Runs the server process several times, and lets the operator change the disks after each run. Then checks that
    /// all members come in sync.
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
        let zeroes = Stream::new(seed, "native zeroes", 0).below(4) > 0;
        let world = SimWorld::new(seed);
        let draw = Stream::new(seed, "labelled", 0);
        let count = draw.within(2, 3) as usize;
        let mut shape = Shape::draw(&draw, count);
        let doubt = Doubt::draw(seed, count);
        // Encryption turns damage to junk, which the model cannot recognize as damage.
        shape.crypt &= doubt.is_none();
        shape.beside = doubt.is_none() && Beside::draw(seed);
        let disk = |n: usize| {
            let profile = draw.pick(&[Profile::Native512, Profile::Native512, Profile::Native4k]);
            let profile = doubt.map_or(profile, |doubt| doubt.profile(n, profile));
            let config = DiskConfig {
                zeroes,
                most_ns: draw.within(10_000, 1_000_000),
                discard_zeroes: draw.below(2) == 0,
                destage: draw.pick(&[0, 100_000, 1_000_000]),
                ..DiskConfig::new(LABEL_BYTES + shape.data_bytes(), profile)
            };
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(path(n), &disk);
            disk
        };
        // One more than there are members: a change may add it.
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
            zeroes,
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
        // Blank bytes read as junk through an encryption. The model must know this initial content.
        trial.world.block_on(trial.worker(0).learn())?;
        trial.check()?;
        for n in 0..count {
            trial.images[n] = Some(trial.disks[n].image());
        }
        Ok(trial)
    }

    /// Begins the run number `life` of the process. Its random numbers do not depend on earlier runs.
    fn enters(&mut self, life: u64) {
        self.life = life;
        self.starts = (life + 1) << 8;
        self.world.reseed(life + 1);
    }

    /// Whether the trial carries out the step `what` of this run. If so, later random numbers come from the step's own
    /// stream.
    fn takes(&mut self, what: What) -> bool {
        let step = Step { life: self.life, what };
        let takes = self.history.takes(step) || what == What::End;
        if takes {
            self.draw = step.stream(self.seed);
        }
        takes
    }

    /// Records what a step does, in words, for the output of `sim --shrink`.
    fn note(&self, what: What, words: String) {
        self.history.note(Step { life: self.life, what }, words);
    }

    /// Starts the server process within the virtual time `limit`. Tries again while operations of the previous process
    /// keep disks locked. Also compares the result with what `cairn check` finds on the disks before.
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

    /// Returns the number of the clients' NBD connections in this seed; 0 if clients send requests directly into the
    /// engine. Trials with `doubt` have none, because they check the kinds of errors, and NBD only transfers error
    /// numbers.
    fn connections(&self) -> usize {
        let draw = Stream::new(self.seed, "connections", 0);
        match draw.below(3) {
            0 if self.doubt.is_none() => draw.within(1, 3) as usize,
            _ => 0,
        }
    }

    /// Starts the server process, which must succeed. Then verifies the volume, and checks that members in sync have
    /// the same bytes.
    fn up(&mut self, ask: Ask) -> Result<(), Failure> {
        self.begin(ask)?;
        self.came_up()
    }

    /// Verifies the volume just after a start, before any write, and checks that members in sync have the same bytes.
    fn came_up(&self) -> Result<(), Failure> {
        // A device that chooses places writes on its own from the start on.
        if self.shape.placing.is_none() {
            self.alike()?;
        }
        self.check()
    }

    /// Starts the server process, which must succeed.
    fn begin(&mut self, ask: Ask) -> Result<(), Failure> {
        match self.start(ask, LIMIT)? {
            Start::Up => {}
            Start::Refused(_, words) => {
                return Err(wrong(format!("a start with all disks working was refused: {words}")));
            }
            Start::Unfinished => {
                return Err(wrong("a start with all disks working did not end in time"));
            }
        }
        Ok(())
    }

    /// Reads the whole volume through a client, and compares the bytes with the model.
    fn check(&self) -> Result<(), Failure> {
        let worker = self.worker(self.starts << 48);
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    fn worker(&self, number: u64) -> Worker {
        let running = self.running.as_ref().expect("the graph runs");
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
            // Maps have checksums, and report the damage by a lying disk. A pool without a flushed record is only read.
            Some(error) if self.lies() && self.shape.placing.is_some_and(|it| it.may(error)) => {
                Ok(())
            }
            Some(error) => Err(wrong(format!(
                "a request failed although the mirror must survive the fault: {error}"
            ))),
            None => Ok(()),
        }
    }

    /// Whether a disk of this seed ignores flushes, or loses or misdirects writes.
    fn lies(&self) -> bool {
        self.doubt.is_some_and(|doubt| doubt.liar().is_some())
    }

    fn report(&self) -> DeviceReport {
        let now = self.now();
        now.graph.report(now.graph.member("m").expect("the spec has the mirror m"))
    }

    /// Sends a command to the mirror of the running graph, and returns the answer.
    fn ask<V: Verb>(&self, args: V::Args) -> block::Result<V::Answer> {
        let now = self.now();
        answered(
            now.graph.ask::<V>(now.graph.member("m").expect("the spec has the mirror m"), args),
        )
    }

    fn now(&self) -> Rc<Current> {
        self.running.as_ref().expect("the graph runs").live.now()
    }

    fn in_sync_now(&self) -> Result<Vec<usize>, Failure> {
        let members = self.report().members;
        let disks = self.shape.members.iter().zip(members);
        Ok(disks.filter(|(_, member)| member.state == IN_SYNC).map(|(disk, _)| *disk).collect())
    }

    /// Returns the disk number of a random member of the mirror.
    fn any_member(&self) -> usize {
        self.draw.pick(&self.shape.members)
    }

    /// Runs the server process from its start to a random end, while clients send requests, and with faults of at most
    /// one member.
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

    /// Draws the plan for a run of the server process.
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
            // Right after a change: writes that were acknowledged before it must be durable.
            _ => End::PowerAfter(soon / 64),
        };
        let least = u64::from(matches!(end, End::PowerAfter(time) if time != soon));
        let changes = if changing { self.draw.within(least, 3) } else { 0 };
        let clients = self.draw.within(1, 5);
        self.note(What::Life, format!("{clients} clients, {changes} changes, then {end:?}"));
        Course { end, changes, clients }
    }

    /// Ends the run of the server process as `end` says.
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
            return Err(wrong(format!("the clients did not finish within {LIMIT:?}")));
        }
        self.judge()
    }

    /// Lets virtual time pass until the mirror has failed a member, in steps so short that little else happens; at most
    /// about `limit`.
    fn until_failed(&self, limit: Duration) -> Result<(), Failure> {
        let step = Duration::from_nanos(self.draw.within(5_000, 100_000));
        let until = self.world.env().now().after(limit.max(step * 20));
        while self.world.env().now() < until {
            if self.report().members.iter().any(|member| member.state == MemberState::Failed) {
                self.world.counters().add(Count::KillRetired);
                // Writes that the member missed may be acknowledged by then, or not.
                let more = Duration::from_nanos(self.draw.below(1_000_000));
                return Ok(self.world.run(self.world.env().now().after(more))?);
            }
            self.world.run(self.world.env().now().after(step))?;
        }
        Ok(())
    }

    /// Stops the server process as `cairn serve` does: flushes the graph and closes the labels.
    fn stop(&mut self) -> Result<(), Failure> {
        self.running.as_ref().expect("the graph runs").quiesce(&self.world)?;
        // A disk that failed an earlier flush is out by now.
        self.in_sync = self.in_sync_now()?;
        let running = self.running.take().expect("the graph runs");
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

    /// Waits until the disks have ended all operations of the last process. Only then may the operator change disks.
    fn settle(&self) -> Result<(), Failure> {
        Ok(self.world.run(self.world.env().now().after(Duration::from_secs(5)))?)
    }

    /// Ends the trial: with all disks plugged in and without faults, all members must come in sync, have the same
    /// bytes, and pass a verification.
    fn all_back(&mut self) -> Result<(), Failure> {
        self.finish()?;
        for _ in 0..100 {
            self.world.run(self.world.env().now().after(Duration::from_secs(1)))?;
            if self.in_sync_now()?.len() == self.shape.members.len() {
                break;
            }
            // It may be running already.
            let _ = self.ask::<Resync>(Stale::default());
        }
        let report = self.report();
        if report.members.iter().any(|one| one.state != IN_SYNC && one.cause != Some(Cause::Absent))
        {
            return Err(wrong(format!(
                "members of the mirror are not in sync although all disks work: {report:?}"
            )));
        }
        if self.shape.placing.is_some() {
            // It moves blocks, or closes its log, on its own.
            self.world.run(self.world.env().now().after(QUIET))?;
        }
        self.alike()?;
        let worker = self.worker(self.starts << 48 | 1);
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    /// Returns the byte range of a disk's data, between the two areas of its label.
    fn data(&self) -> ByteRange {
        ByteRange::new(meta::DATA_START, self.shape.data_bytes())
            .expect("the data area has at least one byte")
    }

    /// Checks that all members in sync have the same bytes.
    fn alike(&self) -> Result<(), Failure> {
        let now = self.running.as_ref().expect("the graph runs").live.now();
        // The store of the mirror is behind its data, and differs.
        let size = now.graph.member("m").expect("the spec has the mirror m").info.size;
        let data = ByteRange::new(meta::DATA_START, size).expect("the mirror has bytes");
        let first = self.disks[self.in_sync_now()?[0]].peek(data);
        for n in self.in_sync_now()? {
            self.world.counters().add(Count::Compared);
            if self.disks[n].peek(data) != first {
                return Err(wrong(format!("the disk d{n} differs from another member in sync")));
            }
        }
        Ok(())
    }
}
