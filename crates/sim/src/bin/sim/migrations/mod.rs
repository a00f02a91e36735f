//! The trial of migrations: the simulated server moves a volume to other disks or encrypts it in place while clients
//! use the volume. Live changes begin and end the migration. Commands reverse and pause it. Kills and power cuts come
//! at any moment. The clients check every read. At the end the simulator verifies the volume without the disks from
//! which its bytes were moved.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | runs of the server process, and the checks |
//! | `changes.rs` | beginning, changing and ending a migration |
//! | `shape.rs` | the graph |

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use block::control::Nothing;
use block::control::job::{Action, Course, Steer};
use block::{Job, JobState, Reason};
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Count, Counters, DiskConfig, Model, Profile, SimDisk, SimWorld, answered};

use crate::process::{self, LIMIT, Running, Started, Wanted};
use crate::trial::{Failure, Report};

mod changes;
mod shape;

pub use shape::KINDS;
use shape::{MOVE, Shape, Side};

/// One in `SHARE` seeds also runs the trial of migrations.
const SHARE: u64 = 4;

/// Bytes of a labelled disk that the two areas of its label take.
const LABEL_BYTES: u64 = 2 * meta::AREA_BYTES;

const DISKS: usize = 4;

/// Length in bytes of a migration's window: of a migration in place, and of a migration between disks.
const WINDOW_IN_PLACE: u64 = 192 << 10;
const WINDOW: u64 = 1 << 20;

/// Time without a client's request after which a migration moves windows at full speed.
const IDLE: Duration = Duration::from_millis(50);

/// Longest virtual time for which the trial waits until a condition holds, before it crashes the process.
const DUE_WITHIN: Duration = Duration::from_millis(1500);

/// Shortest step of virtual time in which the trial waits for a condition.
const STEP_MIN: Duration = Duration::from_micros(200);

/// Longest virtual time that the last migration may take without clients, in seconds.
const SECONDS_MAX: u32 = 600;

/// Bytes of the simulated server's buffer pool, as in a real server. With fewer bytes an encryption would accept only
/// shorter requests than a disk, and a live change must not lower the limit that clients know.
const POOL_BYTES: usize = 512 << 20;

const HERE: [u8; 16] = [1; 16];

/// Whether the seed also runs the trial of migrations.
pub fn is_drawn(seed: u64) -> bool {
    Stream::new(seed, "migrations", 0).below(SHARE) == 0
}

/// Runs the trial of migrations of a seed.
///
/// # Errors
/// The first rule that the seed broke.
pub fn run(seed: u64) -> Result<Report, Failure> {
    let mut trial = Trial::new(seed)?;
    for round in 0..trial.draw.within(4, 14) {
        trial.draw = Stream::new(seed, "round of a migration", round);
        trial.round()?;
    }
    trial.ends()?;
    let counters = Counters::default();
    counters.absorb(trial.world.counters());
    Ok(Report {
        counters,
        kinds: trial.kinds.iter().copied().collect(),
        requests: (trial.tally.done.get(), trial.tally.failed.get()),
        trace: trial.world.trace(),
    })
}

struct Trial {
    seed: u64,
    world: SimWorld,
    draw: Stream,
    disks: Vec<Rc<SimDisk>>,
    /// Longest time of an operation of a simulated disk. Pauses and time limits of the trial are multiples of it.
    answer: Duration,
    model: Rc<Model>,
    tally: Rc<Tally>,
    starts: u64,
    workers: u64,
    running: Option<Running>,
    /// The graph that the process serves; between two runs of the process, the graph that it served last.
    shape: Shape,
    /// The target of a live change that a crash interrupted: the next start may find this graph on the disks instead of
    /// `shape`. `None` if no change was interrupted.
    other: Option<Shape>,
    /// Numbers of the disks that have been in the graph so far.
    used: BTreeSet<usize>,
    /// Boundary of the migration, in bytes, when [`Trial::job`] last read it.
    boundary: u64,
    kinds: BTreeSet<&'static str>,
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

fn wrong(words: impl Into<String>) -> Failure {
    Failure::new(words)
}

impl Trial {
    fn new(seed: u64) -> Result<Self, Failure> {
        let world = SimWorld::with_pool(seed, POOL_BYTES);
        let draw = Stream::new(seed, "migrations", 1);
        let profile = draw.pick(&[Profile::Native512, Profile::Native512, Profile::Native4k]);
        let size = volume_bytes(&draw, u64::from(profile.block_size()));
        // The slower the disks, the more client requests fall into one step of a migration.
        let most_ns = draw.pick(&[500_000, 5_000_000, 20_000_000]);
        let disk = |n: usize| {
            let config = DiskConfig {
                most_ns: draw.within(most_ns / 2, most_ns),
                discard_zeroes: draw.below(2) == 0,
                destage: draw.pick(&[0, 100_000, 1_000_000]),
                ..DiskConfig::new(LABEL_BYTES + size, profile)
            };
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(shape::path(n), &disk);
            disk
        };
        let disks = (0..DISKS).map(disk).collect();
        let side = Side {
            disks: (0..1 + draw.below(4) as usize / 3).collect(),
            is_encrypted: draw.below(3) == 0,
        };
        let mut trial = Self {
            seed,
            model: Rc::new(Model::new(seed, size)),
            world,
            draw,
            disks,
            answer: Duration::from_nanos(most_ns),
            tally: Rc::default(),
            starts: 0,
            workers: 0,
            running: None,
            shape: Shape::still(side.clone()),
            other: None,
            used: side.disks.into_iter().collect(),
            boundary: 0,
            kinds: BTreeSet::new(),
        };
        trial.starts_up()?;
        // Blank bytes read as junk through an encryption. The model must know this initial content.
        let worker = trial.worker();
        trial.world.block_on(worker.learn())?;
        Ok(trial)
    }

    /// Runs clients in half of the rounds; then makes a live change, stops or crashes the process, or verifies the
    /// volume.
    fn round(&mut self) -> Result<(), Failure> {
        // Without clients a migration goes as fast as it can from its start on.
        if self.draw.below(2) == 0 {
            self.works()?;
        }
        let job = self.job()?;
        match self.draw.below(8) {
            _ if job.is_none() => self.changes(),
            0 => self.check(),
            1 => self.stops(),
            2 | 3 => self.changes(),
            _ if job.is_some_and(|job| job.state == JobState::Done) => self.changes(),
            _ => {
                self.passes_until_due()?;
                self.crashes()?;
                self.comes_back()
            }
        }
    }

    /// Starts one to four groups of clients, with random pauses between, so that the migration runs both during
    /// requests and without.
    fn works(&mut self) -> Result<(), Failure> {
        for _ in 0..self.draw.within(1, 4) {
            let idle = if self.draw.below(2) == 0 { IDLE } else { Duration::ZERO };
            let pause = self.draw.below(8 * self.answer.as_nanos() as u64);
            self.passes(idle + Duration::from_nanos(pause))?;
            for _ in 0..self.draw.within(1, 4) {
                let requests = self.draw.within(1, 12);
                self.worker().start(requests);
            }
            self.commands()?;
        }
        Ok(())
    }

    /// Sends the running migration a random command: cancel, pause or resume.
    fn commands(&mut self) -> Result<(), Failure> {
        let Some(job) = self.job()? else { return Ok(()) };
        let command = match (job.state, self.draw.below(12)) {
            (JobState::Paused, 0..=5) => Action::Resume,
            (_, 0 | 1) => Action::Cancel,
            (_, 2) => Action::Pause,
            _ => return Ok(()),
        };
        // It may be refused: the migration is done, or goes back already.
        if self.steer(command).is_ok() {
            match command {
                Action::Cancel => self.world.counters().add(Count::MigrationTurned),
                Action::Pause => self.world.counters().add(Count::MigrationPaused),
                Action::Resume => {}
            }
        }
        Ok(())
    }

    /// Lets virtual time pass, in one of several ways, before the trial crashes the process.
    fn passes_until_due(&mut self) -> Result<(), Failure> {
        match self.draw.below(5) {
            0 => self.passes_some(24),
            1 => self.passes_until_answered(self.draw.below(6)),
            2 => {
                self.passes_until_moved()?;
                self.passes_some(4)
            }
            // Clients begin just after a window has moved, and get few answers.
            _ => {
                self.finish()?;
                self.passes_until_moved()?;
                for _ in 0..self.draw.within(1, 3) {
                    let requests = self.draw.within(1, 3);
                    self.worker().start(requests);
                }
                self.passes_until_answered(self.draw.below(3))
            }
        }
    }

    fn passes_until_answered(&mut self, answers: u64) -> Result<(), Failure> {
        let done = self.tally.done.get() + answers;
        self.passes_until(|trial| trial.tally.done.get() > done)
    }

    fn passes_until_moved(&mut self) -> Result<(), Failure> {
        let boundary = self.boundary;
        self.passes_until(|trial| trial.boundary != boundary)
    }

    /// Lets virtual time pass in short steps until `is_due` returns `true`, at most [`DUE_WITHIN`].
    fn passes_until(&mut self, is_due: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let step = (self.answer / self.draw.within(8, 40) as u32).max(STEP_MIN);
        let end = self.world.env().now().after(DUE_WITHIN);
        while !is_due(self) && self.world.env().now() < end {
            self.passes(step)?;
        }
        Ok(())
    }

    /// Lets a random virtual time pass, shorter than `answers` times the longest disk operation.
    fn passes_some(&mut self, answers: u64) -> Result<(), Failure> {
        let most = answers * self.answer.as_nanos() as u64;
        self.passes(Duration::from_nanos(self.draw.below(most)))
    }

    fn passes(&mut self, time: Duration) -> Result<(), Failure> {
        self.world.run(self.world.env().now().after(time))?;
        self.judge()?;
        self.job().map(drop)
    }

    /// Ends the process: kills it, or cuts the power of all disks.
    fn crashes(&mut self) -> Result<(), Failure> {
        if self.running.is_some() && self.is_moving()? {
            self.world.counters().add(Count::MigrationCrashed);
        }
        self.tally.killed();
        let power = self.draw.below(2) == 0;
        match power {
            true => self.world.drop_tasks(),
            false => self.world.kill(),
        }
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        match power {
            true => {
                process::cut_power(&self.disks, &self.draw);
                self.model.power_cut();
            }
            false => self.model.restarted(),
        }
        Ok(())
    }

    /// Stops the process as `cairn serve` does, with a close of all labels, and starts it again.
    fn stops(&mut self) -> Result<(), Failure> {
        self.finish()?;
        let running = self.running.take().expect("the graph runs");
        running.quiesce(&self.world)?;
        let closed = running.close(&self.world)?;
        closed.map_err(|error| {
            wrong(format!("closing the disks failed although all disks work: {error}"))
        })?;
        self.tally.killed();
        self.world.drop_tasks();
        running.engine.abandon();
        // Dropped early, because its handles keep the disks open.
        drop(running);
        self.model.restarted();
        self.comes_back()
    }

    /// Starts the process again after its end. In some cases it first interrupts starts, or unplugs the disks that the
    /// graph no longer uses.
    fn comes_back(&mut self) -> Result<(), Failure> {
        if self.draw.below(2) == 0 {
            self.takes_others_away();
        }
        while self.draw.below(4) == 0 {
            self.world.counters().add(Count::StartCut);
            let limit = self.draw.within(1_000, 24 * self.answer.as_nanos() as u64);
            self.start(Duration::from_nanos(limit))?;
            self.crashes()?;
        }
        self.starts_up()?;
        match self.draw.below(5) {
            0 => self.check(),
            _ => Ok(()),
        }
    }

    fn starts_up(&mut self) -> Result<(), Failure> {
        if self.start(LIMIT)? {
            return Ok(());
        }
        Err(wrong("a start of a graph with a migration did not end in time"))
    }

    /// Starts the process within `limit`. Returns `false` if the start did not end in time. If a crash interrupted a
    /// live change before, the labels permit either the old or the new graph.
    fn start(&mut self, limit: Duration) -> Result<bool, Failure> {
        let mut shapes = vec![self.shape.clone()];
        shapes.extend(self.other.clone());
        if self.draw.below(2) == 0 {
            shapes.reverse();
        }
        let mut said = Vec::new();
        for shape in &shapes {
            let wanted = Wanted {
                text: shape.text(),
                trust: None,
                opening: process::opening(HERE),
                connections: self.connections(),
                limit,
            };
            match process::start(&self.world, &mut self.starts, &wanted)? {
                Started::Up(running) => {
                    self.running = Some(running);
                    self.is_now(shape.clone());
                    return self.job().map(|_| true);
                }
                Started::Unfinished => return Ok(false),
                Started::Refused(why, words) if is_of_other_graph(why) => {
                    said.push(words.to_string())
                }
                Started::Refused(_, words) => {
                    return Err(wrong(format!(
                        "a start of a graph with a migration was refused: {words}"
                    )));
                }
            }
        }
        Err(wrong(format!(
            "no possible spec of a graph with a migration starts: {shapes:?}: {}",
            said.join("; ")
        )))
    }

    /// Records that the process now serves the graph `shape`.
    fn is_now(&mut self, shape: Shape) {
        self.kinds.extend(shape.kinds());
        (self.shape, self.other) = (shape, None);
    }

    /// Returns the number of the clients' NBD connections in this seed; 0 if clients send requests directly into the
    /// engine.
    fn connections(&self) -> usize {
        let draw = Stream::new(self.seed, "connections", 1);
        if draw.below(4) == 0 { draw.within(1, 3) as usize } else { 0 }
    }

    fn worker(&mut self) -> Worker {
        self.workers += 1;
        Worker {
            env: self.world.env(),
            client: self.running.as_ref().expect("the graph runs").door.clone(),
            model: self.model.clone(),
            tally: self.tally.clone(),
            draw: Stream::new(self.seed, "worker", self.workers),
            mix: Mix { hot: Some(self.boundary), ..Mix::ALL },
        }
    }

    /// Reads the whole volume through a client, and compares the bytes with the model.
    fn check(&mut self) -> Result<(), Failure> {
        let worker = self.worker();
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    fn judge(&self) -> Result<(), Failure> {
        if let Some(broken) = &*self.tally.wrong.borrow() {
            return Err(wrong(broken.to_string()));
        }
        match &*self.tally.error.borrow() {
            Some(error) => Err(wrong(format!(
                "a request failed during a migration over working disks: {error}"
            ))),
            None => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let (env, tally) = (self.world.env(), self.tally.clone());
        let done = self.world.block_on(async move { env.within(LIMIT, tally.idle()).await })?;
        if done.is_none() {
            return Err(wrong(format!("the clients did not finish within {LIMIT:?}")));
        }
        self.judge()
    }

    /// Returns the names of the `migrate` device's lowers that each have all bytes of the volume now.
    fn holders(&self) -> Vec<String> {
        let now = self.running.as_ref().expect("the graph runs").live.now();
        let moving = now.graph.member(MOVE);
        let holders = moving.into_iter().flat_map(|moving| now.graph.holders(moving));
        holders.map(|holder| holder.name.clone()).collect()
    }

    /// Sends the running migration the command `action`: pause, resume or cancel.
    fn steer(&self, action: Action) -> block::Result<Nothing> {
        let now = self.running.as_ref().expect("the graph runs").live.now();
        let moving = now.graph.member(MOVE).expect("the spec has the migrate device");
        answered(now.graph.ask::<Steer>(moving, Course { action }))
    }

    /// Returns the state of the running migration; `None` if the graph has none. Counts the windows that were moved
    /// since the last call.
    fn job(&mut self) -> Result<Option<Job>, Failure> {
        // An interrupted change may have added or removed it already.
        let now = self.running.as_ref().expect("the graph runs").live.now();
        if self.shape.target.is_none() || now.graph.member(MOVE).is_none() {
            return Ok(None);
        }
        let report =
            now.graph.report(now.graph.member(MOVE).expect("the graph has the migrate device"));
        let [job] = <[Job; 1]>::try_from(report.jobs).map_err(|jobs| {
            wrong(format!("a migration must report one job and reports: {jobs:?}"))
        })?;
        if job.state == JobState::Stopped {
            return Err(wrong(format!(
                "a migration stopped although all disks work: {}",
                job.detail
            )));
        }
        let boundary = match job.is_reversed {
            true => job.progress.all_bytes - job.progress.done_bytes,
            false => job.progress.done_bytes,
        };
        let windows = boundary.abs_diff(self.boundary).div_ceil(match self.shape.is_in_place() {
            true => WINDOW_IN_PLACE,
            false => WINDOW,
        });
        self.world.counters().add_many(Count::MigrationWindow, windows);
        self.boundary = boundary;
        Ok(Some(job))
    }

    fn is_moving(&mut self) -> Result<bool, Failure> {
        Ok(self.job()?.is_some_and(|job| job.state != JobState::Done))
    }

    /// Unplugs all disks that the graph does not use, unless a live change was interrupted.
    fn takes_others_away(&mut self) {
        if self.other.is_some() {
            return;
        }
        let disks = self.shape.disks();
        for n in (0..DISKS).filter(|n| !disks.contains(n)) {
            self.world.unplug(shape::path(n));
        }
        if self.used.iter().any(|n| !disks.contains(n)) {
            self.world.counters().add(Count::MigrationLeft);
        }
    }

    fn puts_all_back(&self) {
        for (n, disk) in self.disks.iter().enumerate() {
            self.world.plug(shape::path(n), disk);
        }
    }

    /// Ends the trial: waits for the clients and the migration, removes the `migrate` device, restarts without the
    /// disks from which the volume was moved, and verifies the volume.
    fn ends(&mut self) -> Result<(), Failure> {
        self.draw = Stream::new(self.seed, "end of migrations", 0);
        self.finish()?;
        for _ in 0..SECONDS_MAX {
            match self.job()?.map(|job| job.state) {
                None => break,
                Some(JobState::Done) => self.ends_migration()?,
                Some(JobState::Paused) => {
                    let resumed = self.steer(Action::Resume);
                    resumed.map_err(|error| {
                        wrong(format!("resuming a paused migration failed: {error}"))
                    })?;
                }
                Some(JobState::Running | JobState::Stopped) => {
                    self.passes(Duration::from_secs(1))?;
                }
            }
        }
        if let Some(job) = self.job()? {
            return Err(wrong(format!(
                "the migration did not end although all disks work: {job:?}"
            )));
        }
        self.check()?;
        self.takes_others_away();
        self.stops()?;
        self.check()
    }
}

/// Returns a random size of the volume in bytes: some windows of a migration, usually with a shorter last window.
fn volume_bytes(draw: &Stream, block: u64) -> u64 {
    let (window, windows) = draw.pick(&[(WINDOW_IN_PLACE, 8), (WINDOW, 4)]);
    draw.within(window / block, windows * window / block) * block
}

/// Whether a start was refused because the labels record another graph than the spec.
fn is_of_other_graph(why: Option<Reason>) -> bool {
    use Reason::{CryptNoSlots, LabelDamaged, LabelForeign, LabelForgotten, LabelNotBlank};
    // `CryptNoSlots`: the labels do not record the beginning of an encryption in place. A start does not begin
    // it, so it has no key slots.
    let reasons = [CryptNoSlots, LabelDamaged, LabelForeign, LabelForgotten, LabelNotBlank];
    why.is_some_and(|why| reasons.contains(&why))
}
