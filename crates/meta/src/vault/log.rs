//! Log objects of a vault: entries in order, appended at the end and trimmed at the front.

use std::cell::Cell;
use std::rc::Rc;

use block::{Error, ErrorKind, Mutex, Result, bail};

use super::entry::{Entry, ObjectKind};
use super::record::Verb;
use super::superblock::COUNT_MAX;
use super::transaction::LockedObject;
use super::{ObjectId, Spec, Transaction, Vault};

/// Length in bytes of the header of a log object, before its entries: the offsets of the first and of the next entry.
pub(super) const LOG_HEADER_BYTES: u64 = 16;

/// Length in bytes of the header of an entry, which is the length of the entry.
const ENTRY_HEADER_BYTES: u64 = 4;

/// A log object of a vault: entries in order. At most one handle to a log object may exist at a time.
pub struct Log {
    vault: Vault,
    id: ObjectId,
    ends: Rc<Cell<Ends>>,
    /// Lock held by the transaction that appends to the log or trims it, until its commit begins.
    turn: Mutex,
}

/// Offsets of the first entry and of the next entry to append. Offsets only increase; in the ring they wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ends {
    first: u64,
    next: u64,
}

/// An entry of a log object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// Offset of the entry in the log.
    pub at: u64,
    /// Content of the log entry.
    pub bytes: Vec<u8>,
    /// Offset in the log of the entry after this one.
    pub next: u64,
}

impl Spec {
    /// Returns the properties of a log object. Its entries, each with 4 more bytes, may have at most `bytes` bytes in
    /// total.
    pub fn log(owner: &str, role: u32, bytes: u64) -> Self {
        let (kind, owner) = (ObjectKind::Log, owner.to_owned());
        Self { owner, role, kind, advisory: false, record_bytes: 0, length: bytes }
    }
}

impl Log {
    /// Opens the log object with this id. At most one handle to a log object may exist at a time.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, and errors of reads.
    pub async fn open(vault: &Vault, id: ObjectId) -> Result<Self> {
        let entry = super::transaction::of_kind(vault.object(id)?, ObjectKind::Log)?;
        let mut ends = [[0; 8]; 2];
        vault.0.read(&entry, 0, ends.as_flattened_mut()).await?;
        let [first, next] = ends.map(u64::from_le_bytes);
        let used = next.checked_sub(first);
        if next > COUNT_MAX || used.is_none_or(|used| used > entry.length) {
            bail!(Corrupt, "{entry} cannot have entries from {first} to {next}");
        }
        let ends = Rc::new(Cell::new(Ends { first, next }));
        Ok(Self { vault: vault.clone(), id, ends, turn: Mutex::new() })
    }

    /// Returns the offset of the first entry of the log. In an empty log, this is the offset of the next entry to
    /// append.
    pub fn first(&self) -> u64 {
        self.ends.get().first
    }

    /// Returns the offset of the next entry to append to the log.
    pub fn next(&self) -> u64 {
        self.ends.get().next
    }

    /// Adds to the transaction that an entry is appended to the log. Returns the offset of the entry. Other
    /// transactions that change the log wait until the commit of this one begins, or until this one is dropped.
    ///
    /// # Errors
    /// `NoSpace` if the log has no room for the entry; `NotFound`.
    pub async fn append(&self, transaction: &mut Transaction, bytes: &[u8]) -> Result<u64> {
        let mut ends = self.turn_of(transaction).await;
        let entry = transaction.expect(self.id, ObjectKind::Log)?;
        let at = ends.next;
        ends.next += ENTRY_HEADER_BYTES + bytes.len() as u64;
        if ends.next - ends.first > entry.length {
            bail!(
                NoSpace,
                "an entry of {} bytes does not fit in {entry}, of {} bytes with {} in use: trim the log",
                bytes.len(),
                entry.length,
                at - ends.first
            );
        }
        let mut whole = (bytes.len() as u32).to_le_bytes().to_vec();
        whole.extend_from_slice(bytes);
        for (place, part) in parts(&entry, at, &whole) {
            transaction.change(self.id.0, place, Verb::Write(part));
        }
        self.set(transaction, ends);
        Ok(at)
    }

    /// Adds to the transaction that all entries before `to` are removed from the log. `to` must be the offset of an
    /// entry, or of the next entry to append.
    ///
    /// # Errors
    /// `OutOfRange`, `NotFound`.
    pub async fn trim(&self, transaction: &mut Transaction, to: u64) -> Result<()> {
        let ends = self.turn_of(transaction).await;
        transaction.expect(self.id, ObjectKind::Log)?;
        if !(ends.first..=ends.next).contains(&to) {
            bail!(
                OutOfRange,
                "the log has entries from {} to {}, and cannot be trimmed to {to}",
                ends.first,
                ends.next
            );
        }
        self.set(transaction, Ends { first: to, ..ends });
        Ok(())
    }

    /// Returns the entry of the log at offset `at`; `None` at the end of the log.
    ///
    /// # Errors
    /// `OutOfRange` for trimmed entries, `Corrupt`, and errors of reads.
    pub async fn get(&self, at: u64) -> Result<Option<LogEntry>> {
        let entry = super::transaction::of_kind(self.vault.object(self.id)?, ObjectKind::Log)?;
        let Ends { first, next } = self.ends.get();
        if at == next {
            return Ok(None);
        }
        if !(first..next).contains(&at) {
            bail!(OutOfRange, "{entry} has entries from {first} to {next}, and none at {at}");
        }
        let mut length = [0; ENTRY_HEADER_BYTES as usize];
        self.read(&entry, at, &mut length).await?;
        let end = at + ENTRY_HEADER_BYTES + u64::from(u32::from_le_bytes(length));
        if end > next {
            let words = format!("an entry of {entry} ends at {end}, beyond the end at {next}");
            return Err(Error::new(ErrorKind::Corrupt, words));
        }
        let mut bytes = vec![0; (end - at - ENTRY_HEADER_BYTES) as usize];
        self.read(&entry, at + ENTRY_HEADER_BYTES, &mut bytes).await?;
        Ok(Some(LogEntry { at, bytes, next: end }))
    }

    async fn read(&self, entry: &Entry, at: u64, into: &mut [u8]) -> Result<()> {
        let to_end = (entry.length - at % entry.length) as usize;
        let (before, behind) = into.split_at_mut(to_end.min(into.len()));
        self.vault.0.read(entry, LOG_HEADER_BYTES + at % entry.length, before).await?;
        self.vault.0.read(entry, LOG_HEADER_BYTES, behind).await
    }

    /// Locks the log for the transaction, unless the transaction holds the lock already. Returns the offsets of the
    /// first and of the next entry after the changes of the transaction.
    async fn turn_of(&self, transaction: &mut Transaction) -> Ends {
        let own = transaction.turns.iter().any(|turn| turn.object == self.id.0);
        if !own {
            let alone = self.turn.lock().await;
            let (ends, now) = (self.ends.clone(), self.ends.get());
            let planned = Rc::new(Cell::new((now.first, now.next)));
            let then = planned.clone();
            let on_the_way = Box::new(move || {
                let (first, next) = then.get();
                ends.set(Ends { first, next });
            });
            transaction.turns.push(LockedObject { object: self.id.0, alone, planned, on_the_way });
        }
        let (first, next) = self.planned(transaction).get();
        Ends { first, next }
    }

    fn planned(&self, transaction: &Transaction) -> Rc<Cell<(u64, u64)>> {
        let own = transaction.turns.iter().find(|turn| turn.object == self.id.0);
        own.expect("the transaction holds the turn of the log").planned.clone()
    }

    fn set(&self, transaction: &mut Transaction, ends: Ends) {
        self.planned(transaction).set((ends.first, ends.next));
        let bytes = [ends.first.to_le_bytes(), ends.next.to_le_bytes()];
        transaction.change(self.id.0, 0, Verb::Write(bytes.as_flattened()));
    }
}

/// Returns the parts of an entry at offset `at`, with their offsets in the object. An entry that crosses the end of the
/// ring has two parts.
fn parts<'a>(entry: &Entry, at: u64, bytes: &'a [u8]) -> [(u64, &'a [u8]); 2] {
    let to_end = (entry.length - at % entry.length) as usize;
    let (before, behind) = bytes.split_at(to_end.min(bytes.len()));
    [(LOG_HEADER_BYTES + at % entry.length, before), (LOG_HEADER_BYTES, behind)]
}
