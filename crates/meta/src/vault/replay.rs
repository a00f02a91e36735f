//! Replay of the log of a vault after a crash: finds the valid records, and applies their changes.

use std::collections::BTreeMap;

use block::seeded::{self, Bug};
use block::{Copies, ErrorKind, Result, bail, error};

use super::Inner;
use super::commit::pieces;
use super::entry::{DIRECTORY, ENTRY_BYTES, Slot};
use super::geometry::{Geometry, LOG_START};
use super::page::PAGE_BYTES;
use super::record::{self, Change, Head, Verb};
use super::replicas::Replicas;
use super::superblock::Position;
use super::transaction::TRANSACTION_PAGES_MAX;
use crate::Uuid;
use crate::copies::Source;

/// Maximum number of bytes of the log that one read fetches.
const READ_BYTES: usize = 256 << 10;

/// A place of a log: a copy of the vault, and one copy of its disk if the disk is redundant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    copy: usize,
    below: Option<usize>,
}

/// All bytes of the log at one place.
struct Ring {
    bytes: Vec<u8>,
    /// Whether all bytes are of this place. A redundant disk reads another copy if it cannot read the named one.
    is_own: bool,
}

impl Ring {
    async fn read(replicas: &Replicas, place: Place) -> Result<Self> {
        let lower = replicas.present(place.copy);
        let len = replicas.geometry().log_bytes as usize;
        let step = READ_BYTES.min(crate::io::step(lower));
        let mut ring = Self { bytes: Vec::with_capacity(len), is_own: place.below.is_some() };
        while ring.bytes.len() < len {
            let part = step.min(len - ring.bytes.len());
            let at = LOG_START + ring.bytes.len() as u64;
            let into = replicas.buf(part).await?;
            let copies = Source::new(lower, at, part).read(&into, place.below).await?;
            ring.is_own &= copies != Copies::NONE;
            ring.bytes.extend_from_slice(&into.read());
        }
        Ok(ring)
    }

    /// Returns the header and the changes of the record at offset `place` of the ring, if a valid record is there.
    fn record(&self, vault: Uuid, geometry: &Geometry, place: usize) -> Option<(Head, Vec<u8>)> {
        let length = record::claimed_length(&self.bytes[place..])?;
        if length as u64 > geometry.record_bytes_max() {
            return None;
        }
        let found = if place + length <= self.bytes.len() {
            record::decode(vault, &self.bytes[place..place + length])
                .map(|(head, changes)| (head, changes.to_vec()))
        } else {
            let mut whole = self.bytes[place..].to_vec();
            whole.extend_from_slice(&self.bytes[..length - whole.len()]);
            record::decode(vault, &whole).map(|(head, changes)| (head, changes.to_vec()))
        };
        found.filter(|(head, _)| head.at.offset % geometry.log_bytes == place as u64)
    }

    /// Adds the records of this copy that continue the log to `found`, and notes the highest flushed number in any record
    /// of this opening.
    fn extend(&self, replicas: &Replicas, copy: usize, found: &mut Found) {
        let Geometry { log_bytes, .. } = replicas.geometry();
        let record = |place: usize| self.record(replicas.vault, &replicas.geometry(), place);
        while let Some((head, changes)) = record((found.end.offset % log_bytes) as usize)
            && follows(&head, &found.end)
        {
            found.end = head.next();
            found.records.push((head, changes));
        }
        let tail = replicas.durable.get().tail;
        for place in (0..log_bytes as usize).step_by(PAGE_BYTES) {
            if let Some((head, _)) = record(place).filter(|(head, _)| head.at.epoch >= tail.epoch) {
                found.flushed = found.flushed.max(head.flushed);
                replicas.note_found(copy, head.at.number, head.flushed);
            }
        }
    }

    /// Notes the records that this place lacks, if it is a copy of a redundant disk.
    fn compare(&self, replicas: &Replicas, place: Place, found: &mut Found) {
        let Some(below) = place.below.filter(|_| self.is_own) else { return };
        let Geometry { log_bytes, .. } = replicas.geometry();
        for (index, (head, _)) in found.records.iter().enumerate() {
            let at = (head.at.offset % log_bytes) as usize;
            let own = self.record(replicas.vault, &replicas.geometry(), at);
            if own.is_none_or(|(own, _)| own != *head) {
                let copies = found.lacking.entry((place.copy, index)).or_default();
                *copies = copies.with(below);
            }
        }
    }
}

/// The records of the log to replay, from its tail on, and the position of the next record to write.
pub(super) struct Found {
    pub records: Vec<(Head, Vec<u8>)>,
    pub end: Position,
    /// Highest number of a record that a superblock or a record of the log contains as flushed.
    pub flushed: u64,
    /// Copies of redundant disks that lack records: the copy of the vault, the index of the record, and the copies of the
    /// disk.
    lacking: BTreeMap<(usize, usize), Copies>,
}

/// Returns the places of the log: the copies of the vault, and of a redundant disk each of its copies.
fn places(replicas: &Replicas) -> Vec<Place> {
    let of_copy = |copy: usize| {
        let mut below: Vec<_> = Source::numbers(replicas.present(copy)).map(Some).collect();
        if below.is_empty() || seeded::on(Bug::LogOfOneCopy) {
            below = vec![None];
        }
        below.into_iter().map(move |below| Place { copy, below })
    };
    replicas.current().into_iter().flat_map(of_copy).collect()
}

/// Whether a record with the header `head` continues the log at `end`.
fn follows(head: &Head, end: &Position) -> bool {
    let Position { offset, number, previous, epoch } = *end;
    let at = &head.at;
    let is_of_opening = at.epoch >= epoch || seeded::on(Bug::OpeningIgnored);
    (at.offset, at.number, at.previous) == (offset, number, previous) && is_of_opening
}

/// Reads the logs on all current copies of a vault, and on all copies of redundant disks, and returns the records to
/// replay. Leaves a copy with an unreadable log behind.
///
/// The log ends at the first record that no copy has. Records behind this one may exist: their writes were in flight
/// together with its write.
///
/// # Errors
/// `Corrupt` if no copy has a record that was flushed; the read error of the last remaining copy.
pub(super) async fn find(replicas: &Replicas) -> Result<Found> {
    let end = replicas.durable.get().tail;
    let (flushed, lacking) = (replicas.flushed(), BTreeMap::new());
    let mut found = Found { records: Vec::new(), end, flushed, lacking };
    let mut goes_on = true;
    while std::mem::take(&mut goes_on) {
        // The last pass compares each place with all records.
        found.lacking.clear();
        for (turn, place) in places(replicas).into_iter().enumerate() {
            let before = found.end.number;
            match Ring::read(replicas, place).await {
                Ok(ring) => {
                    ring.extend(replicas, place.copy, &mut found);
                    ring.compare(replicas, place, &mut found);
                }
                Err(error) => {
                    replicas.fail(place.copy, &error);
                    if replicas.current().is_empty() {
                        return Err(error);
                    }
                }
            }
            // An earlier copy may have the record behind one that it lacks.
            goes_on |= turn > 0 && found.end.number > before;
        }
    }
    let lost = found.end.number;
    if lost <= found.flushed && !seeded::on(Bug::LogCutAtDamage) {
        let flushed = found.flushed;
        bail!(
            Corrupt,
            "record {lost} of the vault's log is damaged on every copy; the records up to {flushed} \
             were flushed"
        );
    }
    Ok(found)
}

/// Writes the records `found` to the copies of redundant disks that lack them. So the loss of another copy harms none of them.
///
/// # Errors
/// `Limit` if the pool has no buffer.
pub(super) async fn restore(replicas: &Replicas, found: &Found) -> Result<()> {
    for ((copy, index), copies) in &found.lacking {
        let Some((head, changes)) = found.records.get(*index) else { continue };
        let len = record::padded(head.length as usize);
        let buf = replicas.buf(len).await?;
        let Head { at, flushed, changes: count, .. } = *head;
        record::encode(replicas.vault, at, flushed, count, &[changes], &mut buf.write());
        let to_end =
            (replicas.geometry().log_bytes - at.offset % replicas.geometry().log_bytes) as usize;
        let first = len.min(to_end) as u64;
        let parts =
            [(replicas.log_place(at.offset), first), (replicas.log_place(0), len as u64 - first)];
        // A copy that cannot be written lacks the record until the next checkpoint.
        let _ = Source { lower: replicas.present(*copy), parts }.restore(&buf, *copies).await;
    }
    Ok(())
}

impl Inner {
    /// Applies the changes of the records `found` to pages in memory. Makes a checkpoint whenever the cache has too
    /// many dirty pages.
    ///
    /// # Errors
    /// `Corrupt` if a change is outside of its object; `Limit` if the changes need more pages than the cache has and
    /// the vault is read-only.
    pub(super) async fn replay(&self, found: &Found) -> Result<()> {
        for (head, changes) in &found.records {
            let number = head.at.number;
            let damaged = |words: String| error!(Corrupt, "record {number} of the log: {words}");
            let changes = record::changes(changes).map_err(damaged)?;
            if changes.len() != head.changes as usize {
                let words = format!("it has {} changes, not {}", changes.len(), head.changes);
                return Err(damaged(words));
            }
            for change in changes.iter().filter(|change| change.verb.is_of_object()) {
                self.repeat(change).await.map_err(|error| match error.kind() {
                    ErrorKind::Corrupt => damaged(error.message().to_owned()),
                    _ => error,
                })?;
                // A checkpoint between two changes of a record is safe: the record stays in the log, and applying a
                // change a second time has no effect.
                self.make_room().await?;
            }
            self.commits.continue_at(head.next());
        }
        Ok(())
    }

    async fn make_room(&self) -> Result<()> {
        let most = self.tree.cache.borrow().dirty_max();
        if self.tree.cache.borrow().dirty() <= most {
            return Ok(());
        }
        if self.read_only {
            bail!(Limit, "the log changes more than {most} pages; the vault needs a larger cache");
        }
        self.checkpoint(false).await
    }

    /// Applies one change of a record to pages in memory.
    async fn repeat(&self, change: &Change<'_>) -> Result<()> {
        let Ok(entry) = self.entry(change.object) else {
            // A change of an advisory object may follow the deletion of the object in the log.
            return Ok(());
        };
        if pieces(change).count() > TRANSACTION_PAGES_MAX {
            bail!(Corrupt, "a change covers more than {TRANSACTION_PAGES_MAX} pages");
        }
        for piece in pieces(change) {
            let number = entry.page(piece.index).ok_or_else(|| {
                error!(
                    Corrupt,
                    "a change to page {} is beyond the {} pages of {entry}",
                    piece.index,
                    entry.pages()
                )
            })?;
            self.tree.ensure(&self.replicas, number).await?;
            if let Verb::Bits(..) = change.verb {
                let first = entry.page(0).expect("an object has a page");
                self.tree.cache.borrow_mut().pin(number);
                self.tree.ensure(&self.replicas, first).await?;
                self.tree.cache.borrow_mut().unpin(number);
            }
            self.apply_piece(&entry, change, &piece);
        }
        self.note_slots(change)
    }

    /// Updates the directory in memory after a change of its pages. Does nothing for a change of another object.
    pub(super) fn note_slots(&self, change: &Change<'_>) -> Result<()> {
        if change.object != DIRECTORY {
            return Ok(());
        }
        let (first, bytes) = change.byte_range();
        let slots = first as usize / ENTRY_BYTES..=(first + bytes - 1) as usize / ENTRY_BYTES;
        slots.into_iter().try_for_each(|slot| self.note_slot(slot))
    }

    /// Updates slot `slot` of the directory in memory from its page, which is in the cache.
    pub(super) fn note_slot(&self, slot: usize) -> Result<()> {
        let per_page = super::directory::SLOTS_PER_PAGE;
        let cache = self.tree.cache.borrow();
        let page = cache.peek((slot / per_page) as u64).expect("the page was just loaded");
        let bytes = &page.content()[slot % per_page * ENTRY_BYTES..][..ENTRY_BYTES];
        let decoded =
            Slot::decode(bytes).and_then(|now| self.directory.borrow_mut().put(slot, now));
        decoded.map_err(|words| error!(Corrupt, "entry {slot} of the vault's directory: {words}"))
    }
}
