//! The trial of checksums: the simulated server serves a volume with checksums, alone, above or below a mirror, while one
//! disk rots, misdirects or loses writes, or ignores flushes. Kills and power cuts come at any moment, also during a start,
//! a scan and the making of the first checksums. The disks grow between two runs of the process.
//!
//! With redundancy every read returns the right bytes, whatever the one disk does. With `crash = "regions"`, blocks with a
//! write in flight at a kill, or unflushed at a power cut, may hold any bytes. Without redundancy a read may also fail.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | runs of the server process, and the checks |
//! | `shape.rs` | the graph |
//! | `trouble.rs` | the disk that breaks the contract |

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::{Error, ErrorKind, MemberState, Report as DeviceReport};
use graph::labels::Opening;
use kinds::checksum::BLOCK_BYTES;
use meta::Area;
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Count, Counters, DiskConfig, Model, Profile, Promise, SimDisk, SimWorld, Unsure};

use crate::process::{self, LIMIT, Running, Started, Wanted};
use crate::trial::{Failure, Report};

mod shape;
mod trouble;

pub use shape::KINDS;
use shape::{Layout, Shape};
use trouble::{COUNTS, Fault, Trouble};

/// One in `SHARE` seeds also runs the trial of checksums.
const SHARE: u64 = 6;

/// Bytes of a labelled disk that the two areas of its label take.
const LABEL_BYTES: u64 = 2 * meta::AREA_BYTES;

/// Bytes of a disk beside its labels and the volume: room for the checksums and their log, and for the ring.
const ROOM_BYTES: u64 = 640 << 10;

/// Bytes of the simulated server's buffer pool, as in a real server.
const POOL_BYTES: usize = 512 << 20;

/// Longest virtual time that a scan and the first checksums need without clients and faults.
const QUIET: Duration = Duration::from_secs(30);

/// Chance in a million of a fault, for each operation of the disk.
const RATE_MAX: u64 = 60_000;

const HERE: [u8; 16] = [1; 16];

/// Whether the seed also runs the trial of checksums.
pub fn is_drawn(seed: u64) -> bool {
    Stream::new(seed, "checksums", 0).below(SHARE) == 0
}

/// Runs the trial of checksums of a seed.
///
/// # Errors
/// The first rule that the seed broke.
pub fn run(seed: u64) -> Result<Report, Failure> {
    let mut trial = Trial::new(seed)?;
    let lives = trial.draw.within(2, 6);
    for life in 0..lives {
        trial.draw = Stream::new(seed, "life of checksums", life);
        trial.life()?;
        if !trial.comes_back()? {
            break;
        }
    }
    if trial.running.is_some() {
        trial.ends()?;
    }
    Ok(trial.report())
}

/// How a run of the server process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Stop,
    Kill,
    Power,
}

struct Trial {
    seed: u64,
    world: SimWorld,
    draw: Stream,
    shape: Shape,
    disks: Vec<Rc<SimDisk>>,
    trouble: Option<Trouble>,
    model: Rc<Model>,
    tally: Rc<Tally>,
    starts: u64,
    workers: u64,
    running: Option<Running>,
    /// Bytes of the volume before the disks grew; 0 if its device may have been made anew since, over the present bytes.
    first_bytes: u64,
    /// Sizes in bytes of the disks that have grown, by name.
    grown: BTreeMap<String, u64>,
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
        let draw = Stream::new(seed, "checksums", 1);
        let shape = Shape::draw(&draw);
        let trouble = Trouble::draw(&draw, &shape);
        let profile = draw.pick(&[Profile::Native512, Profile::Native512, Profile::Native4k]);
        let bytes = draw.within(16, 400) * BLOCK_BYTES;
        let disk = |n: usize| {
            let is_liar = trouble == Some(Trouble { disk: n, fault: Fault::Lies });
            let config = DiskConfig {
                most_ns: draw.within(10_000, 1_000_000),
                discard_zeroes: draw.below(4) > 0,
                destage: draw.pick(&[0, 100_000, 1_000_000]),
                ..DiskConfig::new(
                    LABEL_BYTES + ROOM_BYTES + bytes,
                    if is_liar { Profile::Liar } else { profile },
                )
            };
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(shape::path(n), &disk);
            disk
        };
        let disks = (0..shape.disks + shape.others).map(disk).collect();
        shape.counts().for_each(|count| world.counters().add(count));
        let mut trial = Self {
            seed,
            model: Rc::new(Model::new(seed, 0)),
            world,
            draw,
            shape,
            disks,
            trouble,
            tally: Rc::default(),
            starts: 0,
            workers: 0,
            running: None,
            first_bytes: 0,
            grown: BTreeMap::new(),
        };
        let wanted = trial.wanted(LIMIT);
        match process::start(&trial.world, &mut trial.starts, &wanted)? {
            Started::Up(running) => trial.running = Some(running),
            Started::Refused(_, words) => {
                return Err(wrong(format!("a first start was refused: {words}")));
            }
            Started::Unfinished => return Err(wrong("a first start did not end in time")),
        }
        // The volume of new disks has zeros.
        trial.first_bytes = trial.volume_bytes();
        trial.model = Rc::new(Model::new(seed, trial.first_bytes));
        // A new mirror copies one member to the others, and is redundant from then on.
        trial.passes(QUIET)?;
        Ok(trial)
    }

    fn report(&self) -> Report {
        let all = self.world.counters();
        COUNTS.iter().for_each(|(fault, count)| all.add_many(*count, all.get(*fault)));
        let counters = Counters::default();
        counters.absorb(all);
        Report {
            counters,
            kinds: self.shape.kinds(),
            requests: (self.tally.done.get(), self.tally.failed.get()),
            trace: self.world.trace(),
        }
    }

    fn wanted(&self, limit: Duration) -> Wanted {
        Wanted {
            text: self.shape.text(),
            trust: None,
            opening: Opening { grow: self.grown.clone(), ..process::opening(HERE) },
            connections: self.connections(),
            limit,
        }
    }

    /// Returns the number of the clients' NBD connections in this seed; 0 if clients send requests directly into the
    /// engine, as always where reads may fail, because NBD transfers only error numbers.
    fn connections(&self) -> usize {
        let draw = Stream::new(self.seed, "connections", 2);
        match draw.below(4) {
            0 if self.shape.is_redundant() => draw.within(1, 3) as usize,
            _ => 0,
        }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the graph runs")
    }

    fn volume_bytes(&self) -> u64 {
        self.running().door.info().size
    }

    fn worker(&mut self) -> Worker {
        self.workers += 1;
        Worker {
            env: self.world.env(),
            client: self.running().door.clone(),
            model: self.model.clone(),
            tally: self.tally.clone(),
            draw: Stream::new(self.seed, "worker of checksums", self.workers),
            mix: Mix::ALL,
        }
    }

    /// Runs the process with clients and faults up to its end.
    fn life(&mut self) -> Result<(), Failure> {
        self.set_faults();
        for _ in 0..self.draw.below(5) {
            let requests = self.draw.within(5, 40);
            self.worker().start(requests);
        }
        let end = self.draw.pick(&[End::Stop, End::Kill, End::Kill, End::Power, End::Power]);
        // Some crashes come early, in the scan of the last one. The job of the first checksums is short.
        let most = match self.row_of_any(MAKING) {
            true => 200_000,
            false => self.draw.pick(&[200_000, 5_000_000, 50_000_000]),
        };
        self.passes(Duration::from_nanos(self.draw.within(1_000, most)))?;
        if self.draw.below(3) == 0 {
            self.finish()?;
        }
        match end {
            End::Stop => self.stops()?,
            End::Kill | End::Power => self.crashes(end)?,
        }
        self.changes_disks();
        Ok(())
    }

    /// Sets the rates of the faulty disk's faults for the next run of the process.
    fn set_faults(&self) {
        if let Some(trouble) = self.trouble {
            let rate = self.draw.within(1_000, RATE_MAX) as u32;
            self.disks[trouble.disk].set_faults(trouble.faults(rate));
        }
    }

    /// Changes the disks while no process runs: the rotting disk changes bits, and all disks grow.
    fn changes_disks(&mut self) {
        if let Some(Trouble { disk, fault: Fault::Rots }) = self.trouble {
            for _ in 0..self.draw.below(30) {
                let size = LABEL_BYTES + ROOM_BYTES;
                if self.disks[disk].rot(self.draw.below(2 * size)) {
                    self.world.counters().add(Count::Rot);
                }
            }
        }
        if self.grown.is_empty() && self.draw.below(3) == 0 {
            let bytes = meta::AREA_BYTES * self.draw.within(1, 2);
            for (n, disk) in self.disks.iter().enumerate() {
                disk.enlarge(bytes);
                self.grown.insert(shape::disk(n), disk.config().size + bytes);
            }
        }
    }

    fn passes(&self, time: Duration) -> Result<(), Failure> {
        self.world.run(self.world.env().now().after(time))?;
        self.limits_judge();
        self.judge()
    }

    /// Checks that no reply was wrong, and that requests failed only as allowed.
    fn judge(&self) -> Result<(), Failure> {
        if let Some(broken) = &*self.tally.wrong.borrow() {
            return Err(wrong(broken.to_string()));
        }
        match &*self.tally.error.borrow() {
            Some(error) if !self.may_fail() || !is_corrupt(error) => {
                Err(wrong(format!("a request failed ({:?}): {error}", error.kind())))
            }
            _ => Ok(()),
        }
    }

    /// Whether requests may fail: over a disk that breaks the contract without redundancy, or while a mirror copies.
    fn may_fail(&self) -> bool {
        match self.shape.is_redundant() {
            false => self.trouble.is_some(),
            true => !self.grown.is_empty(),
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

    /// Stops the process as `cairn serve` does, with a close of all labels.
    fn stops(&mut self) -> Result<(), Failure> {
        self.finish()?;
        self.counts_numbers();
        let is_scanned = !self.row_of_any(UNVERIFIED);
        let running = self.running.take().expect("the graph runs");
        let quiet = running.quiesce(&self.world);
        if !self.may_fail() {
            quiet?;
        }
        let closed = running.close(&self.world)?;
        if let Err(error) = &closed
            && !self.may_fail()
        {
            return Err(wrong(format!("closing the disks failed: {error}")));
        }
        self.tally.killed();
        self.world.drop_tasks();
        running.engine.abandon();
        // Dropped early, because its handles keep the disks open.
        drop(running);
        if closed.is_err() {
            self.doubts_after_crash(End::Kill, is_scanned);
        } else if !is_scanned {
            self.doubts_marked(false, is_scanned);
        }
        self.model.restarted();
        Ok(())
    }

    /// Ends the process without a close: kills it, or cuts the power of all disks.
    fn crashes(&mut self, end: End) -> Result<(), Failure> {
        let is_scanned = self.running.is_none() || !self.row_of_any(UNVERIFIED);
        if self.running.is_some() {
            self.counts_numbers();
            if !is_scanned {
                self.world.counters().add(Count::SumsScanCut);
            }
            if self.row_of_any(MAKING) {
                self.world.counters().add(Count::SumsMakingCut);
            }
        }
        self.tally.killed();
        match end {
            End::Power => self.world.drop_tasks(),
            _ => self.world.kill(),
        }
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        if end == End::Power {
            process::cut_power(&self.disks, &self.draw);
        }
        self.doubts_after_crash(end, is_scanned);
        match end {
            End::Power => self.model.power_cut(),
            End::Kill | End::Stop => self.model.restarted(),
        }
        Ok(())
    }

    /// Records in the model the bytes that the faulty disk may cost after an unclean stop. `is_scanned`: no block was unverified
    /// before it.
    fn doubts_after_crash(&mut self, end: End, is_scanned: bool) {
        let Some(trouble) = self.trouble else { return };
        if self.shape.layout == Layout::Alone && self.has_lost_label(trouble.disk) {
            // The disk counts as a new one, and the first checksums are those of the present bytes, perhaps at other
            // addresses.
            self.first_bytes = 0;
        }
        let promise = trouble.promise_after_crash(&self.shape);
        self.model.demand(promise);
        if promise != Promise::Full {
            // The new part may have no checksums again, and then gets those of its present bytes.
            self.model.doubt(Unsure::From(self.first_bytes), BLOCK_BYTES);
        }
        self.doubts_marked(end == End::Power, is_scanned);
    }

    /// Whether no area of a disk has a label with which the disk was served.
    fn has_lost_label(&self, n: usize) -> bool {
        let (disk, first) = (&self.disks[n], self.disks[n].config().size);
        let sizes = [first, self.grown.get(&shape::disk(n)).copied().unwrap_or(first)];
        let backs = sizes.map(|size| Area::Back(size - LABEL_BYTES));
        let all = [Area::Front].into_iter().chain(backs).map(|area| disk.peek(area.range()));
        let mut labels = all.filter_map(|area| meta::newest([&area[..]]).ok()?);
        labels.all(|(_, label)| label.provisioning)
    }

    /// Records in the model the blocks that a device may accept at the next opening. `power`: the power was cut. Without a whole
    /// scan, the regions that an earlier crash has left marked stay marked, and blocks there are accepted again.
    fn doubts_marked(&self, power: bool, is_scanned: bool) {
        if let Some(trouble) = self.trouble.filter(|_| !self.shape.has_journal()) {
            self.model.doubt(trouble.unsure(&self.shape, power), BLOCK_BYTES);
            if !is_scanned {
                self.model.doubt(Unsure::Learned, BLOCK_BYTES);
            }
        }
    }

    /// Starts the process again, sometimes after interrupted starts. Returns `false` if the trial is over, because the
    /// faulty disk does not permit a start.
    fn comes_back(&mut self) -> Result<bool, Failure> {
        while self.draw.below(4) == 0 {
            self.world.counters().add(Count::StartCut);
            let limit = Duration::from_nanos(self.draw.within(1_000, 40_000_000));
            let wanted = self.wanted(limit);
            if let Started::Up(running) = process::start(&self.world, &mut self.starts, &wanted)? {
                self.is_up(running);
            }
            let end = self.draw.pick(&[End::Kill, End::Power]);
            self.crashes(end)?;
        }
        self.world.run(self.world.env().now().after(Duration::from_secs(5)))?;
        if !self.start()? {
            return Ok(false);
        }
        self.judge_rows();
        if self.draw.below(2) == 0 {
            self.check()?;
        }
        Ok(true)
    }

    /// Records that the process serves the graph, perhaps over grown disks.
    fn is_up(&mut self, running: Running) {
        self.running = Some(running);
        let volume = self.volume_bytes();
        if volume > self.model.size() {
            self.world.counters().add(Count::SumsGrown);
            self.model.grow(volume);
        }
        self.limits_judge();
    }

    /// Leaves the new part of the volume out of the judgement over a disk that breaks the contract, while the part has blocks
    /// without checksums.
    fn limits_judge(&self) {
        let is_making = self.trouble.is_some() && self.running.is_some() && self.row_of_any(MAKING);
        self.model.judge_upto(is_making.then_some(self.first_bytes));
    }

    /// Starts the process. If the start is refused, unplugs the faulty disk and starts without it.
    fn start(&mut self) -> Result<bool, Failure> {
        let mut wanted = self.wanted(LIMIT);
        let words = match process::start(&self.world, &mut self.starts, &wanted)? {
            Started::Up(running) => {
                self.is_up(running);
                return Ok(true);
            }
            Started::Refused(_, words) => words,
            Started::Unfinished => return Err(wrong("a start did not end in time")),
        };
        let Some(trouble) = self.trouble else {
            return Err(wrong(format!("a start with all disks working was refused: {words}")));
        };
        self.world.counters().add(Count::SumsRefused);
        if !self.shape.is_redundant() {
            return Ok(false);
        }
        self.world.unplug(shape::path(trouble.disk));
        let bad = trouble.disk % self.shape.disks;
        let trusted = (0..self.shape.disks).find(|n| *n != bad).expect("a mirror has two members");
        wanted.trust = Some(self.shape.member(trusted));
        wanted.opening.degraded = true;
        match process::start(&self.world, &mut self.starts, &wanted)? {
            Started::Up(running) => {
                self.world.counters().add(Count::SumsDegraded);
                self.is_up(running);
                self.check()?;
                Ok(false)
            }
            Started::Refused(_, without) => Err(wrong(format!(
                "a start without the faulty disk failed ({without}) after a start with the disk was \
                 refused: {words}"
            ))),
            Started::Unfinished => Err(wrong("a start without the faulty disk did not end")),
        }
    }

    /// Reads the whole volume through a client without other requests, and compares the bytes with the model. Afterwards
    /// the model knows bytes that could be any, except those that have no checksum yet. Without redundancy all bytes count
    /// from then on, also older ones.
    fn check(&mut self) -> Result<(), Failure> {
        let worker = self.worker();
        self.world.block_on(worker.verify())?;
        self.judge()?;
        if !self.shape.is_redundant() && !self.row_of_any(MAKING) {
            let worker = self.worker();
            if self.world.block_on(worker.learn())? {
                self.model.demand(Promise::Full);
            }
        }
        if !self.row_of_any(MAKING) {
            let worker = self.worker();
            self.world.block_on(worker.learn_unknown())?;
        }
        self.judge()
    }

    fn reports(&self) -> Vec<DeviceReport> {
        let now = self.running().live.now();
        let sums = self.shape.sums();
        let found = sums.iter().filter_map(|name| now.graph.member(name));
        found.map(|member| now.graph.report(member)).collect()
    }

    /// Returns the reports of the checksum devices that a mirror above has in sync, or of all. Leaves out the device over a
    /// faulty disk that is below a mirror: if its metadata are damaged, its work ends only when the member is replaced.
    fn serving(&self) -> Vec<DeviceReport> {
        let now = self.running().live.now();
        let members = now.graph.member("m").map(|m| now.graph.report(m).members);
        let is_out = |name: &str| {
            let mut members = members.iter().flatten();
            members.any(|one| one.name == name && one.state != MemberState::InSync)
        };
        let faulty = self.trouble.filter(|_| members.is_some());
        let faulty = faulty.map(|it| self.shape.member(it.disk));
        let is_judged = |name: &String| !is_out(name) && faulty.as_ref() != Some(name);
        let serving = self.shape.sums().into_iter().filter(is_judged);
        let found = serving.filter_map(|name| now.graph.member(&name));
        found.map(|member| now.graph.report(member)).collect()
    }

    /// Whether a checksum device reports a row with this name.
    fn row_of_any(&self, name: &str) -> bool {
        self.reports().iter().any(|report| has_row(report, name))
    }

    /// Counts the scans and replays of an opening.
    fn judge_rows(&self) {
        let counters = self.world.counters();
        if self.row_of_any(UNVERIFIED) {
            counters.add(Count::SumsScanned);
        }
        if self.row_of_any(MAKING) {
            counters.add(Count::SumsMaking);
        }
    }

    /// Counts the repairs and other numbers of the checksum devices since their opening.
    fn counts_numbers(&self) {
        let counters = self.world.counters();
        for (name, number) in self.reports().into_iter().flat_map(|report| report.counters) {
            match name {
                "repaired" => counters.add_many(Count::SumsRepaired, number),
                "accepted" => counters.add_many(Count::SumsAccepted, number),
                "damaged" => counters.add_many(Count::SumsDamaged, number),
                "replayed" => counters.add_many(Count::SumsReplayed, number),
                _ => {}
            }
        }
    }

    /// Ends the trial: without faults, and after the scan, all bytes are right.
    fn ends(&mut self) -> Result<(), Failure> {
        self.disks.iter().for_each(|disk| disk.set_faults(Default::default()));
        self.finish()?;
        self.passes(QUIET)?;
        for row in [UNVERIFIED, MAKING] {
            if !self.may_fail() && self.serving().iter().any(|report| has_row(report, row)) {
                return Err(wrong(format!("the work {row:?} did not end: {:?}", self.reports())));
            }
        }
        self.check()?;
        self.counts_numbers();
        self.check()
    }
}

fn has_row(report: &DeviceReport, name: &str) -> bool {
    report.rows.iter().any(|(row, _)| row == name)
}

/// Whether a request failed because bytes are damaged. NBD has no number for that.
fn is_corrupt(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Faulted | ErrorKind::Io)
}

/// Rows of a checksum device's report.
const UNVERIFIED: &str = "unverified since an unclean stop";
const MAKING: &str = "without checksums yet";
