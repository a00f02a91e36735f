//! Scrub: compares the bytes of all members in sync. It reports the blocks that differ, or repairs them by command. It
//! rewrites ranges that a member cannot read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::control::copies::Action;
use block::control::{Cause, Difference};
use block::seeded::{self, Bug};
use block::{
    BUF_ALIGN, Buf, ByteRange, Copies, Error, ErrorKind, MemberState as State, Mode, Op, Progress,
    Result, Scrub, What, bail, error,
};

use super::compare::{Run, compare};
use super::device::{Alone, Inner};
use super::member::Member;

/// Longest time from an attempt to begin a scrub that is due to the next attempt.
const RETRY: Duration = Duration::from_secs(3600);

/// Number of equal parts of the mirror: when a scrub has completed a part, a state in the labels records its position.
const TOLD_SHARE: u64 = 16;

/// Most ranges with differences that a report lists, and events that a scrub emits about them. Further differences are
/// only counted.
pub const DIFFERENCES_MAX: usize = 32;

/// Least members in sync for a repair by majority.
const VOTERS_MIN: usize = 3;

/// The treatment of blocks in which members differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Repair {
    /// Report the blocks, and leave them as they are.
    #[default]
    None,
    /// Give all members the bytes that more than half of them have. Leave blocks without such a majority as they are.
    Majority,
    /// Give all members the bytes of the member with this index.
    Trust(usize),
}

/// The state of the scrubs of a running mirror.
pub struct Scrubbing {
    /// Interval of scrubs without a command; `None` if only commands begin scrubs.
    every: Option<Duration>,
    /// Position of the running scrub in bytes; `None` if no scrub is running.
    at: Cell<Option<u64>>,
    /// Treatment of differences by the running scrub.
    repair: Cell<Repair>,
    /// Time by the wall clock when the running scrub began; `None` if no scrub is running.
    since: Cell<Option<Duration>>,
    /// Time by the wall clock when the last complete scrub ended.
    ended: Cell<Option<Duration>>,
    /// Number of differing blocks that the scrubs before the running one have left.
    differing: Cell<u64>,
    /// Number of differing blocks that the running scrub has found and left.
    found: Cell<u64>,
    /// The first ranges in which the last scrub, or the running scrub, has found differences and has left them.
    differences: RefCell<Vec<Difference>>,
    /// Number of differing blocks that were repaired, since the mirror opened.
    repaired: Cell<u64>,
    /// Number of ranges that a member could not read, since the mirror opened.
    unreadable: Cell<u64>,
    /// Whether a command has requested that the running scrub stops.
    stopped: Cell<bool>,
    /// Number of the running scrub, counted from the opening of the mirror. A scrub task with another number ends,
    /// because a new task continues its scrub.
    run: Cell<u64>,
}

/// The state of a mirror's scrubs, as the state of the mirror in labels records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Time when the last complete scrub ended, in seconds since 1970.
    pub ended_unix_s: Option<u64>,
    /// Position of the running scrub in bytes; `None` if no scrub is running.
    pub at: Option<u64>,
    /// Treatment of differences by the running scrub.
    pub repair: Repair,
    /// Number of differing blocks that earlier scrubs have found and left.
    pub differing: u32,
    /// Number of differing blocks that the running scrub has found and left.
    pub found: u32,
}

impl Scrubbing {
    /// Returns the state of scrubs at the opening of a mirror, from the state `before` in labels. Scrubs begin at
    /// intervals of `every`.
    pub fn new(every: Option<Duration>, before: Scrubbed) -> Self {
        Self {
            every,
            at: Cell::new(before.at),
            repair: Cell::new(before.repair),
            since: Cell::new(None),
            ended: Cell::new(before.ended_unix_s.map(Duration::from_secs)),
            differing: Cell::new(before.differing.into()),
            found: Cell::new(before.found.into()),
            differences: RefCell::default(),
            repaired: Cell::new(0),
            unreadable: Cell::new(0),
            stopped: Cell::new(false),
            run: Cell::new(0),
        }
    }

    /// Returns the state of the mirror's scrubs to record in labels.
    pub fn recorded(&self) -> Scrubbed {
        let most = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Scrubbed {
            ended_unix_s: self.ended.get().map(|ended| ended.as_secs()),
            at: self.at.get(),
            repair: self.repair.get(),
            differing: most(self.differing.get()),
            found: most(self.found.get()),
        }
    }

    /// Returns the number of blocks in which copies differ, as the scrubs have found and left them. The running scrub
    /// may have found the differences of earlier scrubs again.
    pub fn differing(&self) -> u64 {
        self.differing.get().max(self.found.get())
    }

    /// Returns the state of scrubs of a mirror with `size` bytes in blocks of `block_bytes`, for people and programs.
    pub fn report(&self, size: u64, block_bytes: u32) -> Scrub {
        let progress = |done| Progress { done_bytes: done, all_bytes: size, of_bytes: size };
        Scrub {
            progress: self.at.get().map(progress),
            is_repairing: self.repair.get() != Repair::None,
            since_unix_s: self.since.get().map(|at| at.as_secs()),
            ended_unix_s: self.ended.get().map(|at| at.as_secs()),
            differing_blocks: self.differing(),
            block_bytes,
            differences: self.differences.borrow().clone(),
            repaired_blocks: self.repaired.get(),
            unreadable: self.unreadable.get(),
        }
    }

    /// Records a range of differing blocks that the scrub leaves. Returns whether the range is a new entry of the list.
    fn add(&self, blocks: u64, range: ByteRange, outvoted: Vec<String>) -> bool {
        add(&self.found, blocks);
        let mut all = self.differences.borrow_mut();
        let is_next = |last: &&mut Difference| {
            last.start_bytes + last.len_bytes == range.start() && last.outvoted == outvoted
        };
        if let Some(last) = all.last_mut().filter(is_next) {
            last.len_bytes += range.len();
            return false;
        }
        let is_listed = all.len() < DIFFERENCES_MAX;
        if is_listed {
            let (start_bytes, len_bytes) = (range.start(), range.len());
            all.push(Difference { start_bytes, len_bytes, outvoted });
        }
        is_listed
    }
}

impl Inner {
    /// Carries out a command about scrubs.
    ///
    /// # Errors
    /// `InUse` if a scrub of the mirror is running and another one is to begin, or if the trusted member is not in
    /// sync; `NotFound` if the mirror has no such member; `Invalid` if the command does not say which bytes are right.
    pub fn command_scrub(self: &Rc<Self>, action: &Action) -> Result<()> {
        let repair = self.repair_of(action)?;
        if action.stop {
            let is_running = self.scrubbing.at.get().is_some();
            self.scrubbing.stopped.set(is_running && !action.dry_run);
            return Ok(());
        }
        match action.dry_run {
            true => self.may_scrub(),
            false => self.scrub(repair),
        }
    }

    /// Returns the treatment of differences that a command requests.
    fn repair_of(&self, action: &Action) -> Result<Repair> {
        let Action { stop, repair, ref trust, .. } = *action;
        if stop && (repair || trust.is_some()) || trust.is_some() && !repair {
            bail!(Invalid, "a trusted member is for a repair, and neither for a report nor a stop");
        }
        if repair && self.is_verified() {
            let why = error!(
                Invalid,
                "a device above {} verifies its bytes, and finds the right copy itself", self.name
            );
            return Err(why.next(format!("cairn device scrub {}, without --repair", self.name)));
        }
        if repair && self.is_read_only() {
            bail!(Invalid, "{} is read-only; a repair writes to its members", self.name);
        }
        if let Some(name) = trust {
            let index = self.find(name)?;
            let state = self.members[index].state();
            if state != State::InSync {
                bail!(InUse, "member {name} is {state}; only a member in sync can be trusted");
            }
            return Ok(Repair::Trust(index));
        }
        if repair && self.in_sync().count() < VOTERS_MIN {
            let why = format!(
                "{} has {} members in sync; a repair by majority needs {VOTERS_MIN}",
                self.name,
                self.in_sync().count()
            );
            let names: Vec<_> = self.in_sync().map(|n| self.members[n].lower.name()).collect();
            return Err(Error::new(ErrorKind::Invalid, why).next(format!(
                "find out which member has the right bytes, then --repair --trust {}",
                names.join(" or ")
            )));
        }
        Ok(if repair { Repair::Majority } else { Repair::None })
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.members.iter().any(|member| member.lower.info().read_only)
    }

    fn may_scrub(&self) -> Result<()> {
        if self.scrubbing.at.get().is_some() {
            let why = error!(InUse, "a scrub of {} is running already", self.name);
            return Err(why.next(format!("cairn device scrub {} --stop", self.name)));
        }
        Ok(())
    }

    /// Begins a scrub of the complete mirror: reads all members in sync and compares their bytes.
    ///
    /// # Errors
    /// `InUse` if a scrub of the mirror is running.
    fn scrub(self: &Rc<Self>, repair: Repair) -> Result<()> {
        self.may_scrub()?;
        self.scrubbing.repair.set(repair);
        self.scrubbing.found.set(0);
        self.scrubbing.differences.borrow_mut().clear();
        self.begin_scrub(0);
        Ok(())
    }

    /// Begins a scrub of the mirror at byte `from`.
    pub fn begin_scrub(self: &Rc<Self>, from: u64) {
        let scrubbing = &self.scrubbing;
        scrubbing.stopped.set(false);
        scrubbing.at.set(Some(from));
        let run = scrubbing.run.get() + 1;
        scrubbing.run.set(run);
        scrubbing.since.set(Some(self.env.wall()));
        self.emit(What::ScrubBegun, None, String::new());
        let (me, pace) = (self.me.clone(), self.pace.clone());
        self.tasks.spawn("a mirror's scrub", async move {
            loop {
                let step = pace.step().await;
                let Some(mirror) = me.upgrade() else { return };
                if mirror.tasks.is_closing() || mirror.scrubbing.run.get() != run {
                    return;
                }
                let Some(part) = mirror.next_to_scrub(step.bytes()) else {
                    return mirror.end_scrub().await;
                };
                mirror.scrub_part(part).await;
                step.done(part.len());
                if mirror.scrubbing.run.get() != run {
                    return;
                }
                mirror.scrubbing.at.set(Some(part.end()));
                mirror.report_scrub(part).await;
                let env = mirror.env.clone();
                drop(mirror);
                env.give_way().await;
            }
        });
    }

    fn next_to_scrub(&self, most: u64) -> Option<ByteRange> {
        let at = self.scrubbing.at.get().filter(|_| !self.scrubbing.stopped.get())?;
        let end = self.regions.size().min(at + most.min(self.step_bytes()));
        ByteRange::between(at, end)
    }

    async fn report_scrub(&self, part: ByteRange) {
        let share = (self.regions.size() / TOLD_SHARE).max(1);
        if part.start() / share != part.end() / share
            && let Some(writer) = &self.writer
        {
            // A failure only makes the next start read more again.
            let _ = self.write_next(writer).await;
        }
    }

    async fn end_scrub(&self) {
        let scrubbing = &self.scrubbing;
        let stopped = scrubbing.stopped.replace(false);
        scrubbing.at.set(None);
        scrubbing.since.set(None);
        scrubbing.repair.set(Repair::None);
        let found = scrubbing.found.replace(0);
        if stopped {
            // The rest of the mirror was not compared, so earlier differences may still be there.
            scrubbing.differing.set(scrubbing.differing.get().max(found));
        } else {
            scrubbing.differing.set(found);
            scrubbing.ended.set(Some(self.env.wall()));
        }
        let words = format!(
            "{}; {found} blocks differ; since the mirror opened: {} blocks repaired, {} unreadable \
             ranges rewritten",
            if stopped { "stopped" } else { "complete" },
            scrubbing.repaired.get(),
            scrubbing.unreadable.get()
        );
        self.emit(What::ScrubEnded, None, words);
        if let Some(writer) = &self.writer {
            // A failure only makes the next start read more again.
            let _ = self.write_next(writer).await;
        }
    }

    /// Resumes an interrupted scrub at its position, if there is one.
    pub fn go_on_scrubbing(self: &Rc<Self>) {
        if let Some(at) = self.scrubbing.at.get() {
            self.begin_scrub(at);
        }
    }

    /// Resumes an interrupted scrub of the mirror, and begins scrubs when they are due, as long as the mirror exists.
    pub fn scrub_when_due(self: &Rc<Self>) {
        self.go_on_scrubbing();
        let Some(every) = self.scrubbing.every else { return };
        if self.scrubbing.ended.get().is_none() {
            // The mirror was never scrubbed: its members have just been created or copied.
            self.scrubbing.ended.set(Some(self.env.wall()));
        }
        let (me, env) = (self.me.clone(), self.env.clone());
        self.env.spawn("a mirror's timer", async move {
            let mut due = Duration::ZERO;
            loop {
                env.sleep(due).await;
                let Some(mirror) = me.upgrade() else { return };
                let last = mirror.scrubbing.ended.get().unwrap_or_default();
                due = (last + every).saturating_sub(env.wall());
                if due.is_zero() {
                    // A scrub may be running already. The next attempt comes after [`RETRY`] at the latest.
                    let _ = mirror.scrub(Repair::None);
                    due = every.min(RETRY);
                }
            }
        });
    }

    /// Reads the range `part` from all members in sync and compares the bytes. Rewrites blocks that a member cannot
    /// read, and blocks that differ if the scrub repairs them.
    async fn scrub_part(&self, part: ByteRange) {
        let len = part.len() as usize;
        let stride = len.next_multiple_of(BUF_ALIGN);
        // Wait before the lock: requests that hold buffers may wait for the lock.
        let room = self.env.pool().wait_for(stride * self.members.len()).await;
        // Buffers larger than the whole pool were refused when the graph was built.
        let Ok(room) = room else { return };
        let piece = |n: usize| room.slice(n * stride..n * stride + len);
        let mut alone = Some(Alone::new(self.lock.lock(part, Mode::Exclusive).await));
        let begin = |n: usize| {
            let child = self.members[n].lower.start(Op::read(part, piece(n)));
            (n, self.deadline.guard(child))
        };
        let changes: Vec<_> = self.members.iter().map(Member::changes).collect();
        let begun: Vec<_> = self.in_sync().map(begin).collect();
        let (mut read, mut unread) = (Vec::new(), Copies::NONE);
        for (index, guard) in begun {
            match self.answer(index, "read", guard, &mut None).await.map(block::Done::into_buf) {
                Some(Ok(bytes)) => read.push((index, bytes)),
                Some(Err(_)) => {
                    self.members[index].count_error();
                    unread = unread.with(index);
                }
                None => {}
            }
        }
        // A member that was taken out meanwhile may be in sync again, but the bytes of its reply may be older.
        read.retain(|(index, _)| self.is_believed(*index, changes[*index]));
        if read.is_empty() && unread != Copies::NONE {
            self.emit(What::RangeUnreadable, None, part.to_string());
        }
        // A scrub may have begun as a repair before there was a verifier.
        let reports = self.is_verified() && !seeded::on(Bug::ScrubBeneathVerifier);
        let repair = if reports { Repair::None } else { self.scrubbing.repair.get() };
        let trusted = match repair {
            Repair::Trust(index) => Some(index),
            Repair::None | Repair::Majority => None,
        };
        let runs = compare(&read, self.block_bytes() as usize, trusted);
        for run in &runs {
            self.count_run(part, run, repair);
        }
        if self.is_read_only() {
            return;
        }
        if reports {
            return self.report_differing(part, &runs, unread);
        }
        for index in 0..self.members.len() {
            let is_unread = unread.has(index);
            let is_wanted = |run: &&Run| match run.is_alike() {
                true => is_unread,
                false => repair != Repair::None && (is_unread || run.differing.has(index)),
            };
            let wanted = runs.iter().filter(is_wanted).filter_map(|run| Some((run, run.right?)));
            let wanted = wanted.map(|(run, right)| {
                let at = part.start() + run.bytes.start as u64;
                let range = ByteRange::new(at, run.bytes.len() as u64);
                (range.expect("a run is in the range"), read[right].1.slice(run.bytes.clone()))
            });
            add(&self.scrubbing.unreadable, u64::from(is_unread && !read.is_empty()));
            self.rewrite(index, wanted, &mut alone).await;
        }
    }

    /// Makes the verifier above scan the ranges of `part` that differ, and those that the members in `unread` could not read.
    fn report_differing(&self, part: ByteRange, runs: &[Run], unread: Copies) {
        let differing = runs.iter().filter(|run| !run.is_alike());
        let mut has_some = unread != Copies::NONE;
        for run in differing {
            let at = part.start() + run.bytes.start as u64;
            let range = ByteRange::new(at, run.bytes.len() as u64).expect("a run has bytes");
            self.note_differing(range);
            has_some = true;
        }
        for (_, member) in self.members.iter().enumerate().filter(|(n, _)| unread.has(*n)) {
            member.unread.borrow_mut().add(part);
        }
        if has_some {
            self.announce_pending();
        }
    }

    /// Counts the blocks of a run that differ, and reports them if the scrub leaves them.
    fn count_run(&self, part: ByteRange, run: &Run, repair: Repair) {
        if run.is_alike() {
            return;
        }
        let blocks = run.bytes.len().div_ceil(self.block_bytes() as usize) as u64;
        if repair != Repair::None && run.right.is_some() {
            return add(&self.scrubbing.repaired, blocks);
        }
        let is_outvoted = |n: &usize| run.right.is_some() && run.differing.has(*n);
        let outvoted = (0..self.members.len()).filter(is_outvoted);
        let outvoted: Vec<_> = outvoted.map(|n| self.members[n].lower.name().to_owned()).collect();
        let range = ByteRange::new(part.start() + run.bytes.start as u64, run.bytes.len() as u64);
        let range = range.expect("a run is in the range");
        let against = match &outvoted[..] {
            [] => String::new(),
            names => format!("; {} against the majority", names.join(", ")),
        };
        if self.scrubbing.add(blocks, range, outvoted) {
            self.emit(What::CopiesDiffer, None, format!("from byte {} on{against}", range.start()));
        }
    }

    /// Returns the next step for the operator if scrubs have found differences.
    pub(super) fn next_for_differences(&self) -> Option<String> {
        if self.scrubbing.differing() == 0 {
            return None;
        }
        let names: Vec<_> = self.in_sync().map(|n| self.members[n].lower.name()).collect();
        if self.is_verified() {
            return Some(format!("cairn device scrub {}, to see if they still differ", self.name));
        }
        let scrub = format!("cairn device scrub {} --repair", self.name);
        Some(match names.len() >= VOTERS_MIN {
            true => format!("{scrub}; for blocks without a majority, with --trust MEMBER"),
            false => format!(
                "find out which member has the right bytes, then {scrub} --trust {}",
                names.join(" or ")
            ),
        })
    }

    /// Returns the size in bytes of the blocks that a scrub compares: the largest block of a member, so that each member
    /// accepts a repair.
    pub(super) fn block_bytes(&self) -> u32 {
        self.common().block_size
    }

    /// Writes `wanted` to the member, range by range. `alone` is the exclusive lock of all the ranges.
    async fn rewrite(
        &self,
        index: usize,
        wanted: impl Iterator<Item = (ByteRange, Buf)>,
        alone: &mut Option<Alone>,
    ) {
        let mut done: Option<ByteRange> = None;
        for (range, right) in wanted {
            // A late write keeps the lock. Then newer bytes may be on the members before this write.
            if alone.is_none() {
                break;
            }
            if let Err(error) = self.put(index, Op::write(range, right), alone).await {
                self.retire(index, Cause::Request, Member::words_of("a repair write", &error));
                break;
            }
            done = ByteRange::between(done.map_or(range.start(), |done| done.start()), range.end());
        }
        // One event for all ranges of a step: a member may differ in every second block.
        if let Some(done) = done {
            self.rewritten(index, done);
        }
    }
}

fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}
