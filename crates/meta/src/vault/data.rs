//! Data outside of a vault that records of its log make reachable. The data are written together with the record, and
//! flushed together with it. After a crash, the data of a record that may not have been flushed are verified before it
//! counts.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Child, Lower, Op, Result, bail};

use super::page::checksum;
use super::record::{self, Change, Verb};
use super::replay::Found;
use super::{Inner, Transaction, Vault};
use crate::copies::Source;

/// Maximum number of reads in flight when data are verified.
const READS_MAX: usize = 32;

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
    pub lower: Lower,
    /// Whether the lower needs a flush of its own: it is not the lower of the vault's only copy.
    apart: bool,
    /// Byte ranges of the data that unproven records of the log name, without overlaps: by the first byte, the end, and
    /// the number of the record.
    named: RefCell<BTreeMap<u64, (u64, u64)>>,
}

impl DataLower {
    pub fn new(lower: Lower, copies: &[Option<Lower>]) -> Self {
        let same =
            |copy: &Option<Lower>| copy.as_ref().is_some_and(|copy| copy.is_flushed_with(&lower));
        let apart = copies.len() > 1 || !same(&copies[0]);
        Self { lower, apart, named: RefCell::default() }
    }

    /// Starts a flush of the lower with the data, unless a flush of the vault's copy is a flush of the same lower.
    pub fn start_flush(&self) -> Option<Child> {
        self.apart.then(|| self.lower.start(Op::Flush))
    }

    /// Notes that record `number`, which is not proven yet, names the data in `range`.
    pub fn note_named(&self, range: ByteRange, number: u64) {
        self.named.borrow_mut().insert(range.start(), (range.end(), number));
    }

    /// Forgets the data of all records up to `proven`.
    pub fn forget_named(&self, proven: u64) {
        self.named.borrow_mut().retain(|_, (_, number)| *number > proven);
    }

    /// Returns the highest number of an unproven record that names data in `range`.
    fn named_by(&self, range: ByteRange) -> Option<u64> {
        let named = self.named.borrow();
        let before = named.range(..range.end()).rev();
        let overlapping = before.take_while(|(_, (end, _))| *end > range.start());
        overlapping.map(|(_, (_, number))| *number).max()
    }
}

impl Vault {
    /// Makes sure that the caller may change the data in `range` in place: that no unproven record of the log names data
    /// in `range`. If one does, proves it, which costs an empty record and up to two flushes.
    ///
    /// # Errors
    /// As [`Vault::prove`].
    pub async fn wait_until_changeable(&self, range: ByteRange) -> Result<()> {
        let named = self.0.data.as_ref().and_then(|place| place.named_by(range));
        match named {
            Some(number) if !seeded::on(Bug::DataNotLetGo) => self.0.prove(number).await,
            _ => Ok(()),
        }
    }
}

impl Transaction {
    /// Adds to the transaction the writes of data that it names. The caller has started them, and need not wait for them.
    /// If one fails, so does the commit. The caller must commit the transaction: dropping it does not wait for them.
    pub fn write_beside(&mut self, begun: impl IntoIterator<Item = Child>) {
        self.writes.extend(begun);
    }

    /// Adds `data` to the transaction. Other changes of the transaction make them reachable.
    pub(super) fn name(&mut self, data: &Data) {
        let (from, length) = (data.range.start(), data.range.len() as u32);
        let change = Change { object: 0, from, verb: Verb::Data(length, data.checksum) };
        change.encode(&mut self.changes);
        self.count += 1;
        self.named.push(data.range);
    }
}

impl Inner {
    /// Verifies the data that the records behind the flushed ones name. At the first data that do not match, drops the
    /// record that names them, and all behind it: the data were not flushed, so no flush of these records has ended.
    ///
    /// # Errors
    /// Errors of reading the data; `Invalid` if the vault was opened for writing without the lower that holds the data.
    pub(super) async fn drop_unwritten(&self, found: &mut Found) -> Result<()> {
        let named = named_by_unflushed(found);
        let unwritten = match &self.data {
            _ if named.is_empty() => None,
            Some(place) => self.first_unwritten(place, &named).await?,
            None if self.read_only => None,
            None => bail!(
                Invalid,
                "open the vault with its data disk, which is needed to check the last log records"
            ),
        };
        if let Some(index) = unwritten {
            found.end = found.records[index].0.at;
            found.records.truncate(index);
        }
        Ok(())
    }

    /// Returns the index of the first record that names data which do not match; `None` if all match.
    async fn first_unwritten(
        &self,
        place: &DataLower,
        named: &[(usize, Data)],
    ) -> Result<Option<usize>> {
        let is_beyond = |(_, data): &(usize, Data)| data.range.end() > place.lower.info().size;
        let beyond = named.iter().position(is_beyond);
        let (pool, mut reads) = (self.env.pool(), VecDeque::new());
        let mut ahead = named[..beyond.unwrap_or(named.len())].iter().peekable();
        while ahead.peek().is_some() || !reads.is_empty() {
            while let Some((index, data)) = ahead.peek().filter(|_| reads.len() < READS_MAX) {
                let into = match pool.take(data.range.len() as usize) {
                    Ok(into) => into,
                    // A read in flight will return its buffer.
                    Err(_) if !reads.is_empty() => break,
                    Err(_) => pool.wait_for(data.range.len() as usize).await?,
                };
                let read = place.lower.start(Op::read(data.range, into));
                reads.push_back((*index, (data.range, data.checksum), read));
                ahead.next();
            }
            let (index, (range, expected), read) = reads.pop_front().expect("a read is in flight");
            let bytes = read.await.into_buf()?;
            if checksum(&bytes.read()) != expected
                && !self.restore_data(place, range, &bytes, expected).await?
            {
                return Ok(Some(index));
            }
        }
        Ok(beyond.map(|at| named[at].0))
    }

    /// Looks for the data on all copies of a redundant disk, and writes them over the copies that differ. Returns whether a copy
    /// has them. A vault that is open for reading leaves the copies as they are, so the data do not count.
    async fn restore_data(
        &self,
        place: &DataLower,
        range: ByteRange,
        into: &Buf,
        expected: u64,
    ) -> Result<bool> {
        if self.read_only {
            return Ok(false);
        }
        let source = Source::new(&place.lower, range.start(), into.len());
        let found = source.right(into, |bytes| checksum(bytes) == expected).await?;
        let Some(wrong) = found else { return Ok(false) };
        source.restore(into, wrong).await?;
        Ok(true)
    }
}

/// Returns the data that the records behind the flushed ones name, each with the index of its record.
fn named_by_unflushed(found: &Found) -> Vec<(usize, Data)> {
    let mut named = Vec::new();
    for (index, (head, changes)) in found.records.iter().enumerate() {
        let is_skipped = seeded::on(Bug::DataUnverified)
            || seeded::on(Bug::MiddleUnverified) && index + 1 < found.records.len();
        if head.at.number > found.flushed && !is_skipped {
            let changes = record::changes(changes).unwrap_or_default();
            named.extend(changes.iter().filter_map(Data::of).map(|data| (index, data)));
        }
    }
    named
}
