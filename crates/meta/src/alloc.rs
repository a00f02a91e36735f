//! Allocation of data blocks, for device kinds that place blocks freely: a map from blocks of the volume to data
//! blocks, and the set of free data blocks. Both are objects of a vault (an array and a bitmap), and change in
//! transactions of the caller.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Result, error};
use zerocopy::little_endian::U64;

use crate::vault::{Array, Bitmap, Data, Spec, Transaction, Vault};

/// Order in which an allocator searches for free data blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Takes the free data block with the lowest number.
    FirstFree,
    /// Takes the first free data block after the last one that was taken. After the last data block, the search
    /// continues at data block 0.
    LogStructured,
    /// Takes the free data block nearest to the last data block that was taken, before or after that data block.
    NearLast,
}

/// A run of data blocks with consecutive numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Number of the first data block of the run.
    pub first: u64,
    /// Number of data blocks in the run.
    pub count: u64,
}

/// The mapping of one block of a volume to a data block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mapping {
    /// The block is not mapped.
    #[default]
    Nowhere,
    /// The block is mapped to the data block with this number.
    At(u64),
}

impl From<U64> for Mapping {
    fn from(entry: U64) -> Self {
        entry.get().checked_sub(1).map_or(Self::Nowhere, Self::At)
    }
}

/// Number of map entries that one read of the map fetches.
const AT_ONCE: usize = 64;

/// A map from blocks of a volume to data blocks, and the set of free data blocks. Both are objects of a vault.
///
/// While a caller changes the mapping of a block, no other caller may change the mapping of the same block until the
/// transaction ends. A range lock over the blocks ensures this.
pub struct Allocator {
    /// For each block of the volume, the number of its data block plus 1; 0 for an unmapped block.
    map: Array<U64>,
    /// One bit for each data block, set if the data block is taken.
    taken: Bitmap,
    places: u64,
    policy: Policy,
    /// Number of the data block after the last one that was taken.
    last: Cell<u64>,
    free: Rc<Free>,
    promised: Promised,
}

/// Runs of data blocks that are reserved for transactions in progress: length of each run, by its first data block.
type Promised = Rc<RefCell<BTreeMap<u64, u64>>>;

/// A reservation of data blocks. While the reservation exists, no other caller gets these data blocks.
struct Promise {
    all: Promised,
    first: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.all.borrow_mut().remove(&self.first);
    }
}

/// Facts that shorten the search for free data blocks.
#[derive(Default)]
struct Free {
    /// Number of a data block before which no data block is free, except reserved ones.
    full_before: Cell<u64>,
    /// Number of times that data blocks were freed. A search compares it to see whether any was freed meanwhile.
    given_back: Cell<u64>,
}

/// Data blocks that a transaction frees. No caller can take them before this value is dropped. The caller keeps it until
/// the record with the transaction is proven: a replay may drop an earlier record, and this one with it.
#[must_use = "a dropped value permits others to take the data blocks"]
pub struct Freed {
    free: Rc<Free>,
    first: u64,
    _promise: Promise,
}

impl Drop for Freed {
    fn drop(&mut self) {
        let Free { full_before, given_back } = &*self.free;
        full_before.set(full_before.get().min(self.first));
        given_back.set(given_back.get() + 1);
    }
}

impl Allocator {
    /// Creates the two objects of an allocator in the vault: the map with the role `role`, and the bitmap of taken data
    /// blocks with the role `role + 1`. `places` is the number of data blocks.
    ///
    /// # Errors
    /// As [`Transaction::create`].
    pub fn create(
        transaction: &mut Transaction,
        owner: &str,
        role: u32,
        blocks: u64,
        places: u64,
    ) -> Result<()> {
        transaction.create(&Spec::array::<U64>(owner, role, blocks))?;
        transaction.create(&Spec::bitmap(owner, role + 1, places))?;
        Ok(())
    }

    /// Opens the allocator whose objects in the vault have this owner and role. At most one may be open for each owner
    /// and role.
    ///
    /// # Errors
    /// `NotFound` if the owner has no object of one of the two roles.
    pub fn open(vault: &Vault, owner: &str, role: u32, policy: Policy) -> Result<Self> {
        let find = |role| {
            vault.find(owner, role).ok_or_else(|| {
                error!(NotFound, "the vault has no object of {owner:?} with role {role}")
            })
        };
        let (map, taken) = (find(role)?, find(role + 1)?);
        Ok(Self {
            map: Array::new(vault, map),
            taken: Bitmap::new(vault, taken),
            places: vault.object(taken)?.length,
            policy,
            last: Cell::new(0),
            free: Rc::default(),
            promised: Promised::default(),
        })
    }

    /// Returns the mapping of a block of the volume.
    ///
    /// # Errors
    /// `OutOfRange`, and errors of reads.
    pub async fn spot(&self, block: u64) -> Result<Mapping> {
        Ok(self.map.get(block).await?.into())
    }

    /// Fills `into` with the mappings of consecutive blocks of the volume, from block `first` on.
    ///
    /// # Errors
    /// As [`Allocator::spot`].
    pub async fn spots(&self, first: u64, into: &mut [Mapping]) -> Result<()> {
        let mut entries = [U64::ZERO; AT_ONCE];
        for (part, first) in into.chunks_mut(AT_ONCE).zip((first..).step_by(AT_ONCE)) {
            let entries = &mut entries[..part.len()];
            self.map.get_many(first, entries).await?;
            part.iter_mut().zip(entries).for_each(|(spot, entry)| *spot = (*entry).into());
        }
        Ok(())
    }

    /// Returns the number of the data block to which a block of the volume is mapped; `None` for an unmapped block.
    ///
    /// # Errors
    /// `OutOfRange`, and errors of reads.
    pub async fn place(&self, block: u64) -> Result<Option<u64>> {
        Ok(match self.spot(block).await? {
            Mapping::Nowhere => None,
            Mapping::At(place) => Some(place),
        })
    }

    /// Maps block `block` of the volume to the data block with number `place`; `None` unmaps the block.
    ///
    /// # Errors
    /// `OutOfRange` for the block or the data block.
    pub fn put(&self, transaction: &mut Transaction, block: u64, place: Option<u64>) -> Result<()> {
        match place {
            None => self.map.set(transaction, block, &U64::ZERO),
            Some(place) => self.map.set(transaction, block, &self.entry(place)?),
        }
    }

    /// Maps a block of the volume to a data block whose bytes have just been written, or are written beside the
    /// transaction. The bytes become durable when the transaction is committed.
    ///
    /// # Errors
    /// `OutOfRange` for the block or the data block.
    pub fn put_written(
        &self,
        transaction: &mut Transaction,
        block: u64,
        place: u64,
        data: &Data,
    ) -> Result<()> {
        self.map.set_with_data(transaction, block, &self.entry(place)?, data)
    }

    /// Unmaps `count` blocks of the volume, from block `first` on.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn clear(&self, transaction: &mut Transaction, first: u64, count: u64) -> Result<()> {
        self.map.clear(transaction, first, count)
    }

    fn entry(&self, place: u64) -> Result<U64> {
        if place < self.places {
            return Ok(U64::new(place + 1));
        }
        Err(error!(OutOfRange, "data block {place} is beyond the {} data blocks", self.places))
    }

    /// Takes a run of 1 to `most` free data blocks, so that no other caller gets these data blocks. The data blocks
    /// count as taken once the transaction is committed, and become free again if the transaction is dropped.
    ///
    /// # Errors
    /// `NoSpace` if no data block is free, and errors of reads.
    pub async fn take(&self, transaction: &mut Transaction, most: u64) -> Result<Places> {
        let last = self.last.get().min(self.places);
        let found = match self.policy {
            Policy::FirstFree => self.behind(0, most).await?,
            Policy::LogStructured => match self.behind(last, most).await? {
                None => self.behind(0, most).await?,
                found => found,
            },
            Policy::NearLast => self.nearest(last, most).await?,
        };
        let places =
            found.ok_or_else(|| error!(NoSpace, "all {} data blocks are in use", self.places))?;
        self.promise(transaction, places)?;
        self.last.set(places.first + places.count);
        Ok(places)
    }

    /// Takes the first free data block with a number below `end`, whatever the policy; `None` if there is none.
    ///
    /// # Errors
    /// Errors of reads.
    pub async fn take_before(
        &self,
        transaction: &mut Transaction,
        end: u64,
    ) -> Result<Option<u64>> {
        let found = self.behind(0, 1).await?.filter(|found| found.first < end);
        let Some(place) = found else { return Ok(None) };
        self.promise(transaction, place)?;
        Ok(Some(place.first))
    }

    fn promise(&self, transaction: &mut Transaction, places: Places) -> Result<()> {
        let Places { first, count } = places;
        transaction.keep(self.hold(places));
        self.taken.put(transaction, first, count, true)
    }

    /// Frees data blocks in the transaction. [`Allocator::take`] cannot take them before the returned value is dropped.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn free(&self, transaction: &mut Transaction, places: Places) -> Result<Freed> {
        self.taken.put(transaction, places.first, places.count, false)?;
        // Until the end, a search may pass over these data blocks as taken.
        Ok(Freed { free: self.free.clone(), first: places.first, _promise: self.hold(places) })
    }

    fn hold(&self, places: Places) -> Promise {
        self.promised.borrow_mut().insert(places.first, places.count);
        Promise { all: self.promised.clone(), first: places.first }
    }

    /// Returns the number of data blocks, free or taken.
    pub fn places(&self) -> u64 {
        self.places
    }

    /// Returns the number of data blocks that are taken. Reads one page.
    ///
    /// # Errors
    /// Errors of reads.
    pub async fn taken(&self) -> Result<u64> {
        self.taken.count().await
    }

    /// Returns the first run of at most `most` free data blocks from data block `from` on; `None` if all are taken or
    /// reserved.
    async fn behind(&self, from: u64, most: u64) -> Result<Option<Places>> {
        let Free { full_before, given_back } = &*self.free;
        let (begin, times) = (full_before.get(), given_back.get());
        let mut from = from.max(begin);
        while let Some((first, count)) = self.taken.find_run(from, most).await? {
            // Data blocks that were freed during the search may precede `first`.
            if from == begin && given_back.get() == times {
                full_before.set(first);
            }
            match self.not_promised(Places { first, count }) {
                Ok(places) => return Ok(Some(places)),
                Err(end) if end >= self.places => break,
                Err(end) => from = end,
            }
        }
        Ok(None)
    }

    /// Returns the unreserved part of the run `places`, from its first data block on. If that data block is reserved,
    /// the error is the data block after its reservation.
    fn not_promised(&self, places: Places) -> Result<Places, u64> {
        let promised = self.promised.borrow();
        let Places { first, count } = places;
        if let Some((start, len)) = promised.range(..=first).next_back()
            && first < start + len
        {
            return Err(start + len);
        }
        let next = promised.range(first..first + count).next();
        Ok(Places { first, count: next.map_or(count, |(start, _)| start - first) })
    }

    /// Returns the free data blocks nearest to data block `last`: a run of at most `most` after it, or one before it.
    async fn nearest(&self, last: u64, most: u64) -> Result<Option<Places>> {
        let behind = self.behind(last, most).await?;
        let mut end = last;
        while let Some(place) = self.taken.find_back(end).await? {
            // A data block further back is no nearer than the run after `last`.
            if behind.is_some_and(|behind| behind.first - last <= last - place) {
                break;
            }
            match self.not_promised(Places { first: place, count: 1 }) {
                Ok(one) => return Ok(Some(one)),
                Err(_) => end = place,
            }
        }
        Ok(behind)
    }
}
