//! Data outside of a vault that records of its log make reachable. The data are written before the record, and flushed
//! together with it. After a crash, the data that the last record names are verified before the record counts.

use std::cell::RefCell;

use block::seeded::{self, Bug};
use block::{ByteRange, Child, Lower, Op, Result};

use super::commit::Pending;
use super::page::checksum;
use super::record::{self, Change, Verb};
use super::replay::Found;
use super::transaction::DirectoryReservations;
use super::{Inner, Transaction, Vault};

/// Flag in a stored number of 8 bytes: a crash has lost the data outside of the vault that the number made reachable.
pub const LOST: u64 = 1 << 63;

/// A byte range of data outside of a vault, with the checksum of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Byte range of the data on the lower that the vault was opened with, [`Vault::open_with_data`].
    pub range: ByteRange,
    /// CRC-64/NVME of the data.
    pub checksum: u64,
}

impl Data {
    fn of(change: &Change<'_>) -> Option<Self> {
        let Verb::Data(length, checksum) = change.verb else { return None };
        let range = ByteRange::new(change.from, length.into())?;
        Some(Self { range, checksum })
    }
}

/// The lower that holds the data outside of a vault.
pub(super) struct DataLower {
    lower: Lower,
    /// Whether the lower needs a flush of its own: it is not the lower of the vault's only copy.
    apart: bool,
    /// Byte ranges of the data that the last record of the log names, in ascending order and without overlaps.
    named: RefCell<Vec<ByteRange>>,
}

impl DataLower {
    pub fn new(lower: Lower, copies: &[Option<Lower>]) -> Self {
        let same = |copy: &Option<Lower>| copy.as_ref().map(Lower::node) == Some(lower.node());
        let apart = copies.len() > 1 || !same(&copies[0]);
        Self { lower, apart, named: RefCell::default() }
    }

    /// Starts a flush of the lower with the data, unless a flush of the vault's copy is a flush of the same lower.
    pub fn start_flush(&self) -> Option<Child> {
        self.apart.then(|| self.lower.start(Op::Flush))
    }

    /// Sets the byte ranges of the data that the last record of the log names, when this record is durable.
    pub fn set_named(&self, mut named: Vec<ByteRange>) {
        named.sort_unstable();
        *self.named.borrow_mut() = named;
    }

    fn is_named(&self, range: ByteRange) -> bool {
        let named = self.named.borrow();
        let behind = named.partition_point(|one| one.end() <= range.start());
        named.get(behind).is_some_and(|one| one.overlaps(range))
    }
}

impl Vault {
    /// Makes sure that the caller may change the data in `range` in place: that the last record of the log, which a
    /// later record does not prove yet, names no data in `range`. If it does, commits another record, which costs a
    /// write and a flush.
    ///
    /// # Errors
    /// As [`Vault::commit`].
    pub async fn wait_until_changeable(&self, range: ByteRange) -> Result<()> {
        let inner = &self.0;
        let Some(place) = inner.data.as_ref().filter(|place| place.is_named(range)) else {
            return Ok(());
        };
        if seeded::on(Bug::DataNotLetGo) {
            return Ok(());
        }
        inner.check_writable()?;
        let mut changes = Vec::new();
        Change { object: 0, from: 0, verb: Verb::LetGo }.encode(&mut changes);
        let plans = DirectoryReservations::none(inner);
        let (pages, named, kept) = (inner.no_pages(), Vec::new(), Vec::new());
        inner
            .queued(|answer| Pending { changes, count: 1, pages, plans, named, kept, answer })
            .await?;
        debug_assert!(!place.is_named(range), "a record names data that is about to change");
        Ok(())
    }
}

impl Transaction {
    /// Adds `data` to the transaction. The next change in the transaction must make the data reachable by writing a
    /// number of 8 bytes below [`LOST`]. The data must be written already, but need not be durable.
    pub(super) fn name(&mut self, data: &Data) {
        let (from, length) = (data.range.start(), data.range.len() as u32);
        let change = Change { object: 0, from, verb: Verb::Data(length, data.checksum) };
        change.encode(&mut self.changes);
        self.count += 1;
        self.named.push(data.range);
    }
}

impl Inner {
    /// Verifies the data that the last record with changes names. If data are damaged and no later record proves that
    /// the record was complete, removes the record from `found`. If a later record proves it, returns the ranges of the
    /// damaged data, which are lost.
    ///
    /// # Errors
    /// Errors of reading the data; `Invalid` if the vault was opened for writing without the lower that holds the data.
    pub(super) async fn verify_last(&self, found: &mut Found) -> Result<Vec<ByteRange>> {
        let speaks = |(head, _): &(record::Head, Vec<u8>)| head.changes > 0;
        let Some(last) = found.records.iter().rposition(speaks) else { return Ok(Vec::new()) };
        let mut lost = Vec::new();
        let changes = record::changes(&found.records[last].1).unwrap_or_default();
        for data in changes.iter().filter_map(Data::of) {
            if !self.is_there(&data).await? && !seeded::on(Bug::DataUnverified) {
                lost.push(data.range);
            }
        }
        drop(changes);
        let proven = last + 1 < found.records.len();
        if !lost.is_empty() && !proven {
            found.end = found.records[last].0.at;
            found.records.truncate(last);
            lost.clear();
        }
        Ok(lost)
    }

    async fn is_there(&self, data: &Data) -> Result<bool> {
        let Some(place) = &self.data else {
            if self.read_only {
                return Ok(true);
            }
            let words =
                "open the vault with its data disk, which is needed to check the last log record";
            return Err(block::Error::new(block::ErrorKind::Invalid, words));
        };
        if data.range.end() > place.lower.info().size {
            return Ok(false);
        }
        let into = self.env.pool().wait_for(data.range.len() as usize).await?;
        let bytes = place.lower.read(data.range, into).await?;
        let is = checksum(&bytes.read());
        Ok(is == data.checksum)
    }
}

/// Returns the changes of a record, with the flag [`LOST`] set in each number that makes data in `lost` reachable.
///
/// # Errors
/// A description of the change after the lost data, if this change does not write a number of 8 bytes.
pub(super) fn mark_lost(changes: &[u8], lost: &[ByteRange]) -> Result<Vec<u8>, String> {
    let mut marked = Vec::with_capacity(changes.len());
    let mut is_lost = false;
    for change in record::changes(changes)? {
        match (is_lost, change.verb) {
            (false, _) => change.encode(&mut marked),
            (true, Verb::Write(bytes)) if bytes.len() == size_of::<u64>() => {
                let number = u64::from_le_bytes(bytes.try_into().expect("the length was checked"));
                let number = (number | LOST).to_le_bytes();
                Change { verb: Verb::Write(&number), ..change }.encode(&mut marked);
            }
            (true, verb) => {
                return Err(format!("a checksum of data is followed by {verb:?}, not by a write"));
            }
        }
        is_lost = Data::of(&change).is_some_and(|data| lost.contains(&data.range));
    }
    Ok(marked)
}
