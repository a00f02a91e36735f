//! Scrub: compares the bytes of all members in sync, and repairs differences and unreadable ranges.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block::control::Cause;
use block::{
    BUF_ALIGN, Buf, ByteRange, Copies, Locked, Mode, Op, Progress, Result, Scrub, What, bail,
};

use super::device::Inner;
use super::member::Member;

/// Longest time from an attempt to begin a scrub that is due to the next attempt.
const RETRY: Duration = Duration::from_secs(3600);

/// Number of equal parts of the mirror: when a scrub has completed a part, a state in the labels records its position.
const TOLD_SHARE: u64 = 16;

/// The state of the scrubs of a running mirror.
pub struct Scrubbing {
    /// Interval of scrubs without a command; `None` if only commands begin scrubs.
    every: Option<Duration>,
    /// Position of the running scrub in bytes; `None` if no scrub is running.
    at: Cell<Option<u64>>,
    /// Time by the wall clock when the running scrub began; `None` if no scrub is running.
    since: Cell<Option<Duration>>,
    /// Time by the wall clock when the last complete scrub ended.
    ended: Cell<Option<Duration>>,
    /// Number of blocks in which members differed, since the mirror opened.
    mismatches: Cell<u64>,
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
}

impl Scrubbing {
    /// Returns the state of scrubs at the opening of a mirror, from the state `before` in labels. Scrubs begin at
    /// intervals of `every`.
    pub fn new(every: Option<Duration>, before: Scrubbed) -> Self {
        Self {
            every,
            at: Cell::new(before.at),
            since: Cell::new(None),
            ended: Cell::new(before.ended_unix_s.map(Duration::from_secs)),
            mismatches: Cell::new(0),
            unreadable: Cell::new(0),
            stopped: Cell::new(false),
            run: Cell::new(0),
        }
    }

    /// Returns the state of the mirror's scrubs to record in labels.
    pub fn recorded(&self) -> Scrubbed {
        let ended_unix_s = self.ended.get().map(|ended| ended.as_secs());
        Scrubbed { ended_unix_s, at: self.at.get() }
    }

    pub fn report(&self, size: u64) -> Scrub {
        let progress = |done| Progress { done_bytes: done, all_bytes: size, of_bytes: size };
        Scrub {
            progress: self.at.get().map(progress),
            since_unix_s: self.since.get().map(|at| at.as_secs()),
            ended_unix_s: self.ended.get().map(|at| at.as_secs()),
            mismatches: self.mismatches.get(),
            unreadable: self.unreadable.get(),
        }
    }
}

impl Inner {
    /// Begins a scrub of the complete mirror: reads all members in sync and compares their bytes.
    ///
    /// # Errors
    /// `InUse` if a scrub of the mirror is running.
    pub fn scrub(self: &Rc<Self>) -> Result<()> {
        if self.scrubbing.at.get().is_some() {
            bail!(InUse, "a scrub of {} is running already", self.name);
        }
        self.begin_scrub(0);
        Ok(())
    }

    /// Stops the running scrub of the mirror, if there is one.
    pub fn stop_scrub(&self) {
        self.scrubbing.stopped.set(self.scrubbing.at.get().is_some());
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
        if !stopped {
            scrubbing.ended.set(Some(self.env.wall()));
        }
        let (mismatches, unreadable) = (scrubbing.mismatches.get(), scrubbing.unreadable.get());
        let words = format!(
            "{}; since the mirror opened: {mismatches} blocks differed, {unreadable} ranges could \
             not be read",
            if stopped { "stopped" } else { "complete" }
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
                    let _ = mirror.scrub();
                    due = every.min(RETRY);
                }
            }
        });
    }

    /// Reads the range `part` from all members in sync, and rewrites `part` on members that have other bytes or cannot
    /// read `part`.
    async fn scrub_part(&self, part: ByteRange) {
        let len = part.len() as usize;
        let stride = len.next_multiple_of(BUF_ALIGN);
        // Wait before the lock: requests that hold buffers may wait for the lock.
        let room = self.env.pool().wait_for(stride * self.members.len()).await;
        // Buffers larger than the whole pool were refused when the graph was built.
        let Ok(room) = room else { return };
        let piece = |n: usize| room.slice(n * stride..n * stride + len);
        let mut alone = Some(self.lock.lock(part, Mode::Exclusive).await);
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
        let Some((_, first)) = read.first() else { return };
        let (right, mut differing) = (first.clone(), Copies::NONE);
        if read.iter().any(|(_, bytes)| *bytes.read() != *first.read()) {
            let block = self.members[0].lower.info().block_size as usize;
            let found = most_agree(&read, block);
            // The bytes of the replies are not needed any more, so the first buffer takes the result. A late read can
            // only fill the buffer of its own member.
            right.write().copy_from_slice(&found.right);
            differing = found.differing;
            add(&self.scrubbing.mismatches, found.blocks);
        }
        for index in 0..self.members.len() {
            if unread.has(index) || differing.has(index) {
                add(&self.scrubbing.unreadable, u64::from(unread.has(index)));
                self.rewrite(index, part, right.clone(), &mut alone).await;
            }
        }
    }

    async fn rewrite(&self, index: usize, part: ByteRange, right: Buf, alone: &mut Option<Locked>) {
        match self.put(index, part, right, alone).await {
            Ok(()) => self.rewritten(index, part),
            Err(error) => {
                self.retire(index, Cause::Request, Member::words_of("a repair write", &error))
            }
        }
    }
}

fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}

/// The result of a comparison of one range on all members that could read it.
struct Agreed {
    /// The bytes of the range: for each block, the bytes that most members have.
    right: Vec<u8>,
    /// Members that have other bytes in a block of the range.
    differing: Copies,
    /// Number of blocks of the range in which members differ.
    blocks: u64,
}

/// Compares the bytes `read` from the members, block by block. Selects for each block the bytes of most members; in a
/// tie, the bytes of the first member among them.
fn most_agree(read: &[(usize, Buf)], block: usize) -> Agreed {
    let copies: Vec<_> = read.iter().map(|(index, bytes)| (*index, bytes.read())).collect();
    let mut agreed = Agreed { right: Vec::new(), differing: Copies::NONE, blocks: 0 };
    let len = copies[0].1.len();
    for start in (0..len).step_by(block) {
        let of = |copy: usize| &copies[copy].1[start..len.min(start + block)];
        let votes = |copy: &usize| (0..copies.len()).filter(|one| of(*one) == of(*copy)).count();
        // `max_by_key` returns the last maximum, so iterate backward to get the first copy.
        let best = (0..copies.len()).rev().max_by_key(votes).unwrap_or(0);
        agreed.right.extend_from_slice(of(best));
        let mut others = (0..copies.len()).filter(|copy| of(*copy) != of(best)).peekable();
        agreed.blocks += u64::from(others.peek().is_some());
        agreed.differing = others.fold(agreed.differing, |all, copy| all.with(copies[copy].0));
    }
    agreed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrub_prefers_majority_of_copies_then_first_copy() {
        let pool = block::BufPool::new(1 << 20, 1 << 20);
        let buf = |bytes: &[u8]| {
            let buf = pool.take(bytes.len()).unwrap();
            buf.write().copy_from_slice(bytes);
            buf
        };
        let read = [(0, buf(b"aaXd")), (2, buf(b"abcd")), (5, buf(b"abcd"))];
        let of_three = most_agree(&read, 1);
        assert_eq!((&of_three.right[..], of_three.blocks), (&b"abcd"[..], 2));
        assert_eq!(of_three.differing, Copies::NONE.with(0));
        let of_two = most_agree(&read[..2], 2);
        assert_eq!((&of_two.right[..], of_two.blocks), (&b"aaXd"[..], 2));
        assert_eq!(of_two.differing, Copies::NONE.with(2));
    }
}
