//! The copies of a vault, their states, and the superblocks that record these states.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{Buf, Child, Env, Error, ErrorKind, Lower, Mutex, Op, Result, bail};

use super::geometry::{Geometry, LOG_START, SUPERBLOCKS};
use super::number::{self, PageNumber};
use super::page::{PAGE_BYTES, Page, Pointer};
use super::superblock::{COPIES_MAX, Epoch, Position, Superblock, Wrong};
use crate::Uuid;
use crate::copies::Source;
use crate::io::{all_of, write_all};

/// State of a copy of a vault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyState {
    /// The copy of the vault has every committed record of the log.
    Current,
    /// The copy of the vault is being resynced, and gets all new writes.
    Joining,
    /// The copy of the vault has missed a write, or the disk of the copy is missing.
    Behind,
}

/// The owner of a vault's copies, if it records itself which copies count. For such a vault this record takes precedence
/// over the superblocks.
pub trait CopyOwner {
    /// Whether copy `copy` counts at the opening. Any other copy is left behind, whatever its superblock records.
    fn counts(&self, copy: usize) -> bool;

    /// Records durably that copy `copy` does not count. The superblocks of the other copies record that the copy was left
    /// behind only afterwards. `error` is the error for which this process left the copy behind, if it did so.
    ///
    /// # Errors
    /// If the copy cannot be left behind. The vault then fails.
    fn leave(&self, copy: usize, error: Option<Error>) -> LocalFuture<Result<()>>;
}

/// The part of the superblocks that a checkpoint writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Durable {
    pub checkpoint: u64,
    pub root: Option<Pointer>,
    pub tail: Position,
}

pub(super) struct Replica {
    pub lower: Option<Lower>,
    standing: Cell<CopyState>,
    /// Slot with the newest superblock on this copy of the vault; `None` if neither slot has a valid one.
    slot: Cell<Option<usize>>,
    /// End in bytes of the part of the disk that was zeroed for this copy before the opening. A copy that was left behind
    /// while the vault grew has less than the vault.
    room_end: u64,
    /// Highest number of a record that this copy of the vault had at the opening.
    newest: Cell<u64>,
    /// The error for which this process left this copy of the vault behind.
    fault: RefCell<Option<Error>>,
}

pub(super) struct Replicas {
    env: Env,
    pub vault: Uuid,
    geometry: Cell<Geometry>,
    members: Vec<Replica>,
    owner: Option<Rc<dyn CopyOwner>>,
    epoch: Cell<Epoch>,
    sequence: Cell<u64>,
    sent: Cell<[Epoch; COPIES_MAX]>,
    pub durable: Cell<Durable>,
    /// Highest number of a record of the log that is known to be flushed, with its data, on every current copy.
    flushed: Cell<u64>,
    /// Highest number that a flushed record, or a flushed superblock, contains as the flushed one.
    proven: Cell<u64>,
    /// Highest number that any copy contained as the flushed one at the opening.
    found: Cell<u64>,
    /// Bitmap of the copies of the vault that the last written superblocks record as current.
    told: Cell<u32>,
    /// Bitmap of the copies of the vault that are current according to a superblock that all of these copies have
    /// durably.
    known: Cell<u32>,
    /// Lock that permits one write of superblocks at a time.
    turn: Mutex,
}

/// A page of one copy of a vault.
pub(super) struct PageOfCopy {
    /// The page, if the copy has it.
    pub page: Option<Page>,
    /// Description of the first wrong bytes. If there is a page too, another copy of a redundant disk has it.
    pub wrong: Option<String>,
}

/// A superblock slot on one copy of a vault.
#[derive(Default)]
struct Slot {
    /// The superblock of the slot.
    found: Option<Superblock>,
    /// The fault of the first bytes that were read, and whether they are zeros.
    fault: Option<(Wrong, bool)>,
}

impl Replica {
    pub fn new(
        lower: Option<Lower>,
        standing: CopyState,
        slot: Option<usize>,
        room_end: u64,
    ) -> Self {
        let (standing, slot) = (Cell::new(standing), Cell::new(slot));
        Self { lower, standing, slot, room_end, newest: Cell::new(0), fault: RefCell::default() }
    }
}

impl Replicas {
    /// Returns the copies `members` of the vault that the superblock `newest` describes.
    pub fn new(
        env: &Env,
        newest: &Superblock,
        members: Vec<Replica>,
        owner: Option<Rc<dyn CopyOwner>>,
    ) -> Self {
        let Superblock { checkpoint, root, tail, flushed, .. } = *newest;
        Self {
            env: env.clone(),
            vault: newest.vault,
            geometry: Cell::new(newest.geometry),
            members,
            owner,
            epoch: Cell::new(newest.epoch),
            sequence: Cell::new(newest.sequence),
            sent: Cell::new(newest.sent),
            durable: Cell::new(Durable { checkpoint, root, tail }),
            flushed: Cell::new(flushed),
            proven: Cell::new(flushed),
            found: Cell::new(flushed),
            told: Cell::new(newest.current),
            known: Cell::new(newest.current),
            turn: Mutex::new(),
        }
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch.get()
    }

    /// Returns the highest number of a record that is known to be flushed, with its data, on every current copy.
    pub fn flushed(&self) -> u64 {
        self.flushed.get()
    }

    /// Returns the highest number that a flushed record or superblock contains as the flushed one. A replay takes all
    /// records up to this number, regardless of their data.
    pub fn proven(&self) -> u64 {
        self.proven.get()
    }

    /// Notes at the opening that copy `copy` has the record `newest`, and contains `flushed` as the flushed number.
    pub fn note_found(&self, copy: usize, newest: u64, flushed: u64) {
        let own = &self.members[copy].newest;
        own.set(own.get().max(newest));
        self.found.set(self.found.get().max(flushed));
    }

    /// Returns the highest number of a record that copy `copy` had at the opening.
    pub fn newest_record(&self, copy: usize) -> u64 {
        self.members[copy].newest.get()
    }

    /// Returns the highest number that any copy contained as the flushed one at the opening.
    pub fn found_flushed(&self) -> u64 {
        self.found.get()
    }

    /// Notes that all records up to `written` are flushed, and that the newest of them contains `stated` as the flushed
    /// number.
    pub fn note_flushed(&self, written: u64, stated: u64) {
        self.flushed.set(self.flushed.get().max(written));
        self.proven.set(self.proven.get().max(stated));
    }

    /// Starts a new epoch of the vault. The next superblocks record it on the current copies only.
    pub fn raise_epoch(&self) {
        let number = self.epoch.get().number + 1;
        self.epoch.set(Epoch { number, draw: self.env.random("vault epoch") });
    }

    /// Returns the sizes of the parts of the vault.
    pub fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    /// Sets the sizes of the grown vault. The next superblocks contain them.
    pub fn set_geometry(&self, grown: Geometry) {
        self.geometry.set(grown);
    }

    pub fn count(&self) -> usize {
        self.members.len()
    }

    pub fn copy_state(&self, copy: usize) -> CopyState {
        self.members[copy].standing.get()
    }

    pub fn set_copy_state(&self, copy: usize, standing: CopyState) {
        self.members[copy].standing.set(standing);
    }

    /// Sets which superblock slot of copy `copy` of the vault holds the newest superblock; `None` for neither slot.
    pub fn set_slot(&self, copy: usize, slot: Option<usize>) {
        self.members[copy].slot.set(slot);
    }

    /// Returns the superblock for copy `copy` of the vault before the resync of the copy: it marks the copy as not
    /// current, and has the last epoch that was sent to the copy.
    pub fn superblock_behind(&self, copy: usize) -> Superblock {
        let superblock = self.superblock(copy, self.durable.get(), self.flushed.get());
        let current = superblock.current & !(1 << copy);
        Superblock { sequence: 1, current, epoch: self.sent.get()[copy], ..superblock }
    }

    /// Returns the error for which this process left copy `copy` of the vault behind, if the process did so.
    pub fn fault(&self, copy: usize) -> Option<Error> {
        self.members[copy].fault.borrow().clone()
    }

    pub fn lower(&self, copy: usize) -> Option<&Lower> {
        self.members[copy].lower.as_ref()
    }

    /// Returns the end in bytes of the part of the disk that was zeroed for copy `copy` of the vault before the opening.
    pub fn room_end(&self, copy: usize) -> u64 {
        self.members[copy].room_end
    }

    /// Returns the disk of copy `copy` of the vault.
    pub fn present(&self, copy: usize) -> &Lower {
        self.lower(copy).expect("a copy that takes writes is present")
    }

    /// Returns the indices of the copies of the vault that get writes: those that are current or being resynced.
    pub fn writing(&self) -> Vec<usize> {
        let writes = |n: &usize| self.copy_state(*n) != CopyState::Behind;
        (0..self.members.len()).filter(writes).collect()
    }

    /// Returns the indices of the copies of the vault that have every committed record of the log.
    pub fn current(&self) -> Vec<usize> {
        let current = |n: &usize| self.copy_state(*n) == CopyState::Current;
        (0..self.members.len()).filter(current).collect()
    }

    /// Returns a description of each damaged or missing superblock on the current copies of the vault. The other slot
    /// of the same copy is valid.
    ///
    /// # Errors
    /// The error of a disk that cannot be read.
    pub async fn damaged_superblocks(&self) -> Result<Vec<String>> {
        // While this lock is held, no superblock is written.
        let _alone = self.turn.lock().await;
        let mut damaged = Vec::new();
        for copy in self.current() {
            let lower = self.present(copy);
            let mut slots = Vec::new();
            for at in SUPERBLOCKS {
                slots.push((at, self.slot_of(lower, at).await?));
            }
            // After the first superblock of a copy, its other slot is empty. From the second superblock on, both slots
            // are used.
            let found = slots.iter().filter_map(|(_, slot)| slot.found.as_ref());
            let is_first = !found.into_iter().any(|found| found.sequence > 1);
            for (at, Slot { fault, .. }) in &slots {
                let why = match fault {
                    Some((Wrong::Damaged(why), _)) => why.as_str(),
                    Some((Wrong::NoMagic, false)) => "overwritten with other data",
                    Some((Wrong::NoMagic, true)) if !is_first => "missing",
                    _ => continue,
                };
                damaged.push(format!("{} at {at}: {why}", lower.name()));
            }
        }
        Ok(damaged)
    }

    /// Reads the superblock slot at byte `at` of a disk: as the disk chooses, and if it is wrong, from its other copies.
    async fn slot_of(&self, lower: &Lower, at: u64) -> Result<Slot> {
        let into = self.env.pool().scratch(PAGE_BYTES).await?;
        let mut slot = Slot::default();
        let look = |bytes: &[u8], _| {
            match Superblock::decode(bytes) {
                Ok(superblock) => slot.found = Some(superblock),
                Err(wrong) => {
                    slot.fault.get_or_insert((wrong, bytes.iter().all(|byte| *byte == 0)));
                }
            }
            slot.found.is_some()
        };
        Source::new(lower, at, PAGE_BYTES).until(&into, look).await?;
        Ok(slot)
    }

    /// Marks copy `copy` of the vault as left behind because of `error`. No write may be acknowledged before the
    /// superblocks of the other copies record this state ([`Self::settle`]).
    pub fn fail(&self, copy: usize, error: &Error) {
        let member = &self.members[copy];
        member.standing.set(CopyState::Behind);
        *member.fault.borrow_mut() = Some(error.clone());
    }

    /// Starts a write of `data` at byte `at` of every copy of the vault that gets writes. Returns the requests by copy.
    pub fn start_write(&self, at: u64, data: &Buf) -> Vec<(usize, Vec<Child>)> {
        let begin = |n: usize| (n, write_all(self.present(n), at, data));
        self.writing().into_iter().map(begin).collect()
    }

    /// Waits for the requests `begun` to the copies of the vault. Leaves a copy behind if one of its requests fails.
    pub async fn finish(&self, begun: Vec<(usize, Vec<Child>)>) {
        for (copy, children) in begun {
            if let Err(error) = all_of(children).await {
                self.fail(copy, &error);
            }
        }
    }

    /// Flushes every copy of the vault that gets writes, in parallel. Leaves a copy behind if its flush fails.
    pub async fn flush(&self) {
        let begin = |n: usize| (n, vec![self.present(n).start(Op::Flush)]);
        self.finish(self.writing().into_iter().map(begin).collect()).await;
    }

    /// Reads the version of page `number` that `pointer` names from any current copy of the vault. Returns the page,
    /// and whether the page was damaged or unreadable on another copy.
    ///
    /// # Errors
    /// `Corrupt` if no copy has this version of the page; or the error of the last disk that could not be read.
    pub async fn read_page(&self, number: PageNumber, pointer: &Pointer) -> Result<(Page, bool)> {
        let current = self.current();
        let mut complaints = Vec::new();
        let mut error = None;
        for turn in 0..current.len() {
            let copy = current[(turn + number as usize) % current.len()];
            match self.page_of(copy, number, pointer).await {
                Ok(PageOfCopy { page: Some(page), wrong }) => {
                    return Ok((page, turn > 0 || wrong.is_some()));
                }
                Ok(PageOfCopy { page: None, wrong }) => complaints.extend(wrong),
                Err(failed) => error = Some(failed),
            }
        }
        match error {
            Some(error) if complaints.is_empty() => Err(error),
            _ => {
                let (page, why) = (number::describe(number), complaints.join("; "));
                let words = format!("no copy has {page} of the vault: {why}");
                Err(Error::new(ErrorKind::Corrupt, words))
            }
        }
    }

    /// Reads the version of page `number` that `pointer` names from one copy of the vault. If its disk is redundant, and the
    /// page differs, the other copies of the disk are asked.
    ///
    /// # Errors
    /// Errors of the disk of the copy.
    pub async fn page_of(
        &self,
        copy: usize,
        number: PageNumber,
        pointer: &Pointer,
    ) -> Result<PageOfCopy> {
        let lower = self.present(copy);
        let at = self.geometry().home(number, pointer.home);
        let into = self.env.pool().scratch(PAGE_BYTES).await?;
        let mut found = PageOfCopy { page: None, wrong: None };
        let look = |bytes: &[u8], _| {
            match Page::verify(bytes, number, pointer) {
                Ok(page) => found.page = Some(page),
                Err(words) if found.wrong.is_some() => drop(words),
                Err(words) => found.wrong = Some(format!("{}: {words}", lower.name())),
            }
            found.page.is_some() || seeded::on(Bug::PageOfOneCopy)
        };
        Source::new(lower, at, PAGE_BYTES).until(&into, look).await?;
        Ok(found)
    }

    /// Returns a buffer of `len` bytes.
    pub async fn buf(&self, len: usize) -> Result<Buf> {
        self.env.pool().scratch(len).await
    }

    /// Returns the address in bytes, on a copy of the vault, of offset `offset` of the log. The log is a ring, so
    /// offsets wrap around.
    pub fn log_place(&self, offset: u64) -> u64 {
        LOG_START + offset % self.geometry().log_bytes
    }

    /// Makes the superblocks on the remaining current copies of the vault record durably which copies are current,
    /// unless the superblocks do so already.
    ///
    /// # Errors
    /// `Faulted` if no copy remains.
    pub async fn settle(&self) -> Result<()> {
        if self.known.get() == self.mask() || seeded::on(Bug::LeftBehindLate) {
            return Ok(());
        }
        let _alone = self.turn.lock().await;
        self.write_until_known(self.durable.get(), false).await
    }

    /// Writes a superblock with the content `next` to all current copies of the vault, and flushes the copies.
    ///
    /// # Errors
    /// `Faulted` if every copy has failed.
    pub async fn publish(&self, next: Durable) -> Result<()> {
        let _alone = self.turn.lock().await;
        self.write_until_known(next, true).await
    }

    /// Returns the current copies of the vault as a bitmap.
    fn mask(&self) -> u32 {
        self.current().iter().fold(0, |all, n| all | 1 << n)
    }

    /// Writes superblocks until all current copies of the vault record durably which copies are current; at least once
    /// if `due`.
    async fn write_until_known(&self, next: Durable, mut due: bool) -> Result<()> {
        while self.mask() != 0 && (due || self.known.get() != self.mask()) {
            due = false;
            self.leave_with_owner().await?;
            let mask = self.mask();
            if self.told.replace(mask) != mask && !seeded::on(Bug::EpochKept) {
                self.raise_epoch();
            }
            // A replay needs none of the records before the tail.
            let stated = self.flushed.get().max(next.tail.number - 1);
            self.write_superblocks(next, stated).await;
            if self.mask() != 0 {
                self.durable.set(next);
            }
            if self.mask() == mask {
                self.known.set(mask);
                self.note_flushed(stated, stated);
            }
        }
        if self.current().is_empty() {
            let last = self.members.iter().find_map(|member| member.fault.borrow().clone());
            let why = last.map_or_else(String::new, |error| format!(": {}", error.message()));
            bail!(Faulted, "every copy of the vault failed{why}");
        }
        Ok(())
    }

    /// Waits until the owner of the copies has recorded that those do not count which the last superblocks record as
    /// current, and the next ones do not.
    async fn leave_with_owner(&self) -> Result<()> {
        let Some(owner) = self.owner.as_ref().filter(|_| !seeded::on(Bug::ReplicaLeftAlone)) else {
            return Ok(());
        };
        let mut left = 0;
        while let gone = self.told.get() & !self.mask() & !left
            && gone != 0
        {
            let copy = gone.trailing_zeros() as usize;
            owner.leave(copy, self.fault(copy)).await?;
            left |= 1 << copy;
        }
        Ok(())
    }

    async fn write_superblocks(&self, next: Durable, flushed: u64) {
        let current = self.current();
        self.sequence.set(self.sequence.get() + 1);
        let mut sent = self.sent.get();
        current.iter().for_each(|n| sent[*n] = self.epoch.get());
        self.sent.set(sent);
        let mut begun = Vec::new();
        for copy in &current {
            match self.env.pool().scratch(PAGE_BYTES).await {
                Ok(buf) => {
                    let bytes = self.superblock(*copy, next, flushed).encode();
                    buf.write().copy_from_slice(&bytes);
                    let slot = next_slot(self.members[*copy].slot.get());
                    begun.push((*copy, write_all(self.present(*copy), SUPERBLOCKS[slot], &buf)));
                }
                Err(error) => self.fail(*copy, &error),
            }
        }
        self.finish(begun).await;
        self.flush().await;
        for copy in self.current() {
            let member = &self.members[copy];
            member.slot.set(Some(next_slot(member.slot.get())));
        }
    }

    fn superblock(&self, copy: usize, next: Durable, flushed: u64) -> Superblock {
        Superblock {
            vault: self.vault,
            sequence: self.sequence.get(),
            epoch: self.epoch.get(),
            copy: copy as u32,
            copies: self.members.len() as u32,
            current: self.told.get(),
            geometry: self.geometry.get(),
            checkpoint: next.checkpoint,
            root: next.root,
            tail: next.tail,
            sent: self.sent.get(),
            flushed,
            unknown_read_only: 0,
        }
    }
}

/// Returns the slot for the next superblock on a copy of the vault, whose newest superblock is in slot `last`.
fn next_slot(last: Option<usize>) -> usize {
    match last {
        Some(last) if seeded::on(Bug::SuperblockOverActive) => last,
        Some(last) => 1 - last,
        None => 0,
    }
}
