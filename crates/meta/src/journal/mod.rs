//! Journals: changes go into a ring first and are written in place later, as in `docs/formats/journal.md`.
//!
//! A change is a list of parts: bytes of a lower with their data, and inline bytes of the owner such as checksums. It is
//! atomic: after a crash all parts count, or none.
//!
//! ```text
//!   append ──▶ record in the ring ──▶ acknowledged ──▶ flushed ──▶ in place ──▶ owner flushed ──▶ tail stated, flushed: free
//!              (a group of changes)   (kill-safe)      (sync: power-safe)  └────────── the pass ──────────┘
//! ```
//!
//! Invariants:
//!
//! 1. Records are acknowledged in order, and each after its payload is written.
//! 2. No part is written in place before a flush of the ring that covers its record.
//! 3. Parts of overlapping ranges are written in place in the order of their records.
//! 4. The tail moves behind a record after the owner has flushed its parts. Space is reused only behind a tail that a flushed
//!    record states. One sector stays free for that record, so a full ring cannot block the pass.
//! 5. Until the tail of a range is durable, its space in the ring has its bytes. So [`Journal::find`] and
//!    [`Journal::read`] never return older ones, and a change beside the ring waits ([`Journal::until_in_place`]).
//! 6. An opening replays everything, flushes it, and writes a root with a new opening number before it takes a record.
//! 7. After a failed write or flush of the ring or in place, the journal refuses changes until it is opened again. Reads go
//!    on: the index still names the newest bytes.
//!
//! A pass runs when the ring is half full, after [`IDLE_AFTER`] without a change, and on demand.
//!
//! | file | holds |
//! | --- | --- |
//! | `root.rs`, `part.rs` | the codecs of the root, and of the parts of a record |
//! | `slots.rs` | the two slots of the root |
//! | `open.rs` | making and opening, with the replay |
//! | `commit.rs` | groups of changes in records, and acknowledgement |
//! | `placer.rs`, `pass.rs` | writing in place, and the tail |
//! | `record.rs`, `index.rs` | the records that are still needed, and the newest part of each range |
//! | `check.rs` | verification of a closed journal |

mod check;
mod commit;
mod index;
mod open;
pub mod part;
mod pass;
mod placer;
mod record;
pub mod root;
mod slots;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::env::Mono;
use block::{
    Buf, ByteRange, Env, Error, Notify, Patience, Reservation, Result, TaskGroup, bail, error,
};

use crate::ring::{Log, Numbers, RingDevice, SECTOR_BYTES};

pub use check::{FINDINGS_MAX, Findings};
pub use index::PartId;
pub use open::{Loss, Opened, Options};
pub use part::{NewPart, Part, PartKind};
pub use placer::InPlace;
pub use slots::RING_START;

use commit::Commits;
use placer::Placer;
use record::{Records, read_data};

/// Maximum number of parts of one record.
pub const PARTS_MAX: usize = 512;

/// Maximum number of inline bytes of one part.
pub const INLINE_BYTES_MAX: usize = 4096;

/// Maximum number of devices to which a journal writes in place.
pub const LOWERS_MAX: u32 = 1 << 16;

/// Maximum number of records that are being written.
pub const RECORDS_IN_FLIGHT_MAX: usize = 4;

/// Maximum number of changes in the queue for the next records. Further callers wait before they join it.
pub const APPENDERS_MAX: usize = 1024;

/// Maximum number of parts that are being written in place.
pub const PLACES_MAX: u32 = 32;

/// Maximum number of bytes of payload that are being written in place, besides those of one part.
pub const PLACE_BYTES_MAX: u64 = 2 << 20;

/// Maximum number of bytes of records that stay in memory until they are in place. Others are read again.
pub const KEPT_BYTES_MAX: usize = 4 << 20;

/// Number of bytes of parts in the ring at which new records wait. It bounds the memory for the parts and their index.
pub const ITEM_BYTES_MAX: usize = 16 << 20;

/// Time without a change after which records are written in place.
pub const IDLE_AFTER: Duration = Duration::from_secs(1);

/// A journal that is open. To open it again in this process, [`Journal::close`] it first: otherwise late writes in place
/// of the first opening could overwrite newer bytes.
pub struct Journal {
    inner: Rc<Inner>,
    tasks: TaskGroup,
}

struct Inner {
    env: Env,
    ring: RingDevice,
    log: Log,
    lowers: u32,
    patience: Rc<Patience>,
    placer: Rc<Placer>,
    records: RefCell<Records>,
    commits: Commits,
    /// All parts of the records up to this number are in place.
    in_place: Cell<u64>,
    /// The number of a record that the tail must pass soon.
    wanted: Cell<u64>,
    last_append: Cell<Mono>,
    is_closing: Cell<bool>,
    failure: RefCell<Option<Error>>,
    changed: Notify,
    _buffers: Reservation,
}

/// A byte range, and the place of its newest bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The bytes of the lower.
    pub range: ByteRange,
    /// The newest part of a record in the ring that changes all of the range; `None` if the lower has its newest bytes.
    pub newest: Option<PartId>,
}

/// The newest content of a byte range, from the ring.
pub struct Content {
    /// The part that changes the range.
    pub part: Part,
    /// The bytes of the range, if the part has data. The journal may still write them in place, so a reader copies them.
    pub data: Option<Buf>,
}

impl Journal {
    /// Returns the most bytes of data that a change of one part can have. A longer one must be split by the caller.
    pub fn data_max(&self) -> u64 {
        self.inner.data_max()
    }

    /// Writes a change into the ring, together with the changes that wait at this moment. Returns the number of its record
    /// when that record and all earlier ones are written. The change then survives the death of the process, and after
    /// [`Journal::sync`] also a power cut. Of concurrent changes, the one with the higher number is the newer one; within one
    /// record, the later call is the newer change.
    ///
    /// # Errors
    /// `Limit` if the change does not fit in a record; `Invalid` for an unknown lower; the error of the write;
    /// `Faulted` after an earlier failure; `Stopped` once the journal closes.
    pub async fn append(&self, parts: Vec<NewPart>) -> Result<u64> {
        self.inner.append(parts).await
    }

    /// Makes durable all changes that were acknowledged before. Callers that wait at the same time share a flush.
    ///
    /// # Errors
    /// The error of the flush; `Faulted` after an earlier failure.
    pub async fn sync(&self) -> Result<()> {
        self.inner.flush().await
    }

    /// Writes all changes in place that were acknowledged before, and waits until a durable tail is behind them.
    ///
    /// # Errors
    /// The error of a write or flush; `Faulted` after an earlier failure.
    pub async fn settle(&self) -> Result<()> {
        let inner = &self.inner;
        inner.check_open()?;
        let last = inner.records.borrow().last_with_parts(inner.log.numbers().written);
        match last {
            Some(last) => inner.until_past(last).await,
            None => Ok(()),
        }
    }

    /// Waits until the durable tail has passed all records of a range, so that the caller may change it beside the ring. The
    /// caller lets no new change of the range begin meanwhile.
    ///
    /// # Errors
    /// As [`Journal::settle`].
    pub async fn until_in_place(&self, lower: u16, range: ByteRange) -> Result<()> {
        let inner = &self.inner;
        inner.check_open()?;
        let newest = inner.records.borrow().index.newest(lower, range);
        match newest {
            Some(newest) => inner.until_past(newest).await,
            None => Ok(()),
        }
    }

    /// Whether the ring has newer bytes than the lower anywhere in a range.
    pub fn is_newer(&self, lower: u16, range: ByteRange) -> bool {
        let (records, in_place) = (self.inner.records.borrow(), self.inner.in_place.get());
        records.index.overlapping(lower, range).any(|(_, newest)| newest.record > in_place)
    }

    /// Returns the places of the newest bytes of a range, in the order of the addresses. A reader calls [`Journal::read`] for
    /// those in the ring, and reads the others from the lower. It lets no new change of the range begin meanwhile: that could
    /// be written in place during the read.
    pub fn find(&self, lower: u16, range: ByteRange) -> Vec<Segment> {
        let inner = &self.inner;
        let records = inner.records.borrow();
        let mut segments = Vec::new();
        let mut from = range.start();
        for (own, newest) in records.index.overlapping(lower, range) {
            let Some(part) = own.intersect(range) else { continue };
            if newest.record <= inner.in_place.get() {
                continue;
            }
            let before = ByteRange::between(from, part.start());
            segments.extend(before.map(|range| Segment { range, newest: None }));
            segments.push(Segment { range: part, newest: Some(newest) });
            from = part.end();
        }
        let behind = ByteRange::between(from, range.end());
        segments.extend(behind.map(|range| Segment { range, newest: None }));
        segments
    }

    /// Returns the content of a segment in the ring, verified. Returns `None` if the segment is in place by now; the caller
    /// then finds the range again. Takes a buffer as long as the part from the reserve of the caller's request, unless the
    /// part is in memory.
    ///
    /// # Errors
    /// `Corrupt` if no copy of the ring has the right bytes; `Limit` if the pool has no such buffer.
    pub async fn read(&self, segment: &Segment) -> Result<Option<Content>> {
        let inner = &self.inner;
        let Some(PartId { record, part }) = segment.newest else { return Ok(None) };
        let found = inner.records.borrow().get(record).map(|found| {
            let stored = found.parts[part as usize].clone();
            let data = found.data(&stored);
            (stored, data)
        });
        let Some((stored, in_memory)) = found else { return Ok(None) };
        let data = match in_memory {
            Some(data) => Some(Some(data)),
            None => read_data(inner.env.pool(), &inner.ring, &stored, false).await?,
        };
        let Some(data) = data else {
            if inner.records.borrow().get(record).is_none() {
                // A later record has taken the space.
                return Ok(None);
            }
            bail!(Corrupt, "record {record} of the journal: damaged payload of {}", segment.range);
        };
        let from = (segment.range.start() - stored.part.range.start()) as usize;
        let data = data.map(|data| data.slice(from..from + segment.range.len() as usize));
        Ok(Some(Content { part: stored.part, data }))
    }

    /// Returns the error after which the journal refuses changes, if it has failed or was closed.
    pub fn failure(&self) -> Option<Error> {
        self.inner.failure.borrow().clone()
    }

    /// Returns the progress of the records.
    pub fn numbers(&self) -> Numbers {
        self.inner.log.numbers()
    }

    /// Writes everything in place, and ends all work of the journal. Calls after that return `Stopped`.
    ///
    /// # Errors
    /// As [`Journal::settle`]. The journal is closed all the same.
    pub async fn close(&self) -> Result<()> {
        let settled = self.settle().await;
        let inner = &self.inner;
        inner.patience.set(false);
        inner.is_closing.set(true);
        inner.changed.wake();
        self.tasks.close(|| inner.is_closing.set(false)).await.done();
        let placed = inner.placer.ended().await;
        inner.fail(&error!(Stopped, "the journal is closed"));
        settled.and(placed)
    }
}

impl Inner {
    /// Checks that the journal has not failed.
    fn check(&self) -> Result<()> {
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Checks that the journal takes calls: it has not failed, and is not closing.
    fn check_open(&self) -> Result<()> {
        self.check()?;
        match self.is_closing.get() {
            true => Err(error!(Stopped, "the journal is closing")),
            false => Ok(()),
        }
    }

    /// Makes the journal refuse changes from now on.
    fn fail(&self, error: &Error) {
        let error = match error.kind() {
            block::ErrorKind::Faulted | block::ErrorKind::Stopped => error.clone(),
            _ => error!(Faulted, "the journal failed earlier ({error}), and refuses changes")
                .next("open the device again; the journal then replays the acknowledged changes"),
        };
        self.failure.borrow_mut().get_or_insert(error);
        self.records.borrow_mut().release_all();
        self.changed.wake();
    }

    /// Whether the longest record fits, with the sector that stays free for the pass.
    fn has_room(&self) -> bool {
        let needed = self.ring.ring.record_bytes_max() + SECTOR_BYTES as u64;
        self.log.fits(needed) && self.records.borrow().item_bytes <= ITEM_BYTES_MAX
    }
}
