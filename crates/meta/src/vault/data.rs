//! Data outside of the vault that its records make reachable: written beside the record, flushed with
//! it, and looked at before a record counts that a crash may have left unfinished.

use std::cell::RefCell;

use block::seeded::{self, Bug};
use block::{ByteRange, Child, Lower, Op, Result};

use super::commit::Pending;
use super::page::checksum;
use super::record::{self, Change, Verb};
use super::replay::Found;
use super::transaction::Plans;
use super::{Inner, Transaction, Vault};

/// Set in a number of 8 bytes that made data reachable which are lost.
pub const LOST: u64 = 1 << 63;

/// Some data, and what they have to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Where they are, in the address space of the device that opened the vault.
    pub range: ByteRange,
    /// The CRC-64/NVME of their bytes.
    pub checksum: u64,
}

impl Data {
    fn of(change: &Change<'_>) -> Option<Self> {
        let Verb::Data(length, checksum) = change.verb else { return None };
        let range = ByteRange::new(change.from, length.into())?;
        Some(Self { range, checksum })
    }
}

/// Where data are.
pub(super) struct Place {
    lower: Lower,
    /// Whether a flush of the only copy is none of this.
    apart: bool,
    /// What the last record names: in order, and none of it twice.
    named: RefCell<Vec<ByteRange>>,
}

impl Place {
    pub fn new(lower: Lower, copies: &[Option<Lower>]) -> Self {
        let same = |copy: &Option<Lower>| copy.as_ref().map(Lower::node) == Some(lower.node());
        let apart = copies.len() > 1 || !same(&copies[0]);
        Self { lower, apart, named: RefCell::default() }
    }

    /// Begins a flush, if that of the vault is not the same.
    pub fn start_flush(&self) -> Option<Child> {
        self.apart.then(|| self.lower.start(Op::Flush))
    }

    /// The last record is durable, and names this.
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
    /// Until data in `range` may be changed in place: until no record names them that a crash may leave
    /// as the last one. It costs a record and a flush, once for all that the last record names.
    ///
    /// # Errors
    /// As [`Vault::commit`].
    pub async fn let_go(&self, range: ByteRange) -> Result<()> {
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
        let plans = Plans::none(inner);
        let (pages, named, kept) = (inner.no_pages(), Vec::new(), Vec::new());
        inner
            .queued(|answer| Pending { changes, count: 1, pages, plans, named, kept, answer })
            .await?;
        debug_assert!(!place.is_named(range), "nobody names what others are about to change");
        Ok(())
    }
}

impl Transaction {
    /// Names data that the change made next makes reachable: it writes one number of 8 bytes, below
    /// [`LOST`]. They are written already; whether they are durable does not matter.
    pub(super) fn name(&mut self, data: &Data) {
        let (from, length) = (data.range.start(), data.range.len() as u32);
        let change = Change { object: 0, from, verb: Verb::Data(length, data.checksum) };
        change.encode(&mut self.changes);
        self.count += 1;
        self.named.push(data.range);
    }
}

impl Inner {
    /// Whether the last record can be relied on. If its data are not what it says, it is taken away where
    /// nothing proves that it was finished; otherwise these data are lost, and told.
    ///
    /// # Errors
    /// What reading the data says; `Invalid` if nobody has said where they are.
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
            let words = "its last record names data, and nobody has said where they are";
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

/// The changes of the last record, those marked that made lost data reachable.
///
/// # Errors
/// What is wrong with a change that should do so.
pub(super) fn mark_lost(changes: &[u8], lost: &[ByteRange]) -> Result<Vec<u8>, String> {
    let mut marked = Vec::with_capacity(changes.len());
    let mut is_lost = false;
    for change in record::changes(changes)? {
        match (is_lost, change.verb) {
            (false, _) => change.encode(&mut marked),
            (true, Verb::Write(bytes)) if bytes.len() == size_of::<u64>() => {
                let number = u64::from_le_bytes(bytes.try_into().expect("it was just measured"));
                let number = (number | LOST).to_le_bytes();
                Change { verb: Verb::Write(&number), ..change }.encode(&mut marked);
            }
            (true, verb) => return Err(format!("data made reachable by {verb:?}")),
        }
        is_lost = Data::of(&change).is_some_and(|data| lost.contains(&data.range));
    }
    Ok(marked)
}
