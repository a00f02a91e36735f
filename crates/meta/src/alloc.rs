//! Allocation as a service, for kinds that map blocks at will: which block is where, and which places
//! are free. An array and a bitmap of a vault, changed in the caller's own transactions.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Error, ErrorKind, Result};
use zerocopy::little_endian::U64;

use crate::vault::{Array, Bitmap, Data, LOST, Spec, Transaction, Vault};

/// Where the next place is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The first that is free.
    FirstFree,
    /// The first that is free behind the last one that was taken, and from the beginning again at the
    /// end.
    LogStructured,
    /// The nearest to the last one that was taken, before or behind it.
    NearLast,
}

/// Some places, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spot {
    /// Nowhere.
    #[default]
    Nowhere,
    /// At this place.
    At(u64),
    /// At this place, but a disk has lost what was written there.
    Lost(u64),
}

impl From<U64> for Spot {
    fn from(entry: U64) -> Self {
        match (entry.get() & !LOST).checked_sub(1) {
            None => Self::Nowhere,
            Some(place) if entry.get() & LOST != 0 => Self::Lost(place),
            Some(place) => Self::At(place),
        }
    }
}

/// Entries of the map that are looked up at once.
const AT_ONCE: usize = 64;

/// A map from blocks to places, and which places are free.
///
/// Whoever changes a block's place keeps others from doing so until the transaction is over: a range
/// lock over blocks does that.
pub struct Allocator {
    /// Place and 1, or 0.
    map: Array<U64>,
    /// Set where a place is taken.
    taken: Bitmap,
    places: u64,
    policy: Policy,
    /// Behind the last place that was taken.
    last: Cell<u64>,
    free: Rc<Free>,
    promised: Promised,
}

/// Places that are promised to transactions on their way, by the first: how many.
type Promised = Rc<RefCell<BTreeMap<u64, u64>>>;

/// Places that nobody gets for as long as this is kept.
#[must_use = "the places are anybody's when this is dropped"]
pub struct Promise {
    all: Promised,
    first: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.all.borrow_mut().remove(&self.first);
    }
}

/// Where free places may be.
#[derive(Default)]
struct Free {
    /// No place before this is free, but for one that is promised to somebody.
    full_before: Cell<u64>,
    /// How often places were given back.
    given_back: Cell<u64>,
}

/// Places that are free when this goes.
struct Freed {
    free: Rc<Free>,
    first: u64,
}

impl Drop for Freed {
    fn drop(&mut self) {
        let Free { full_before, given_back } = &*self.free;
        full_before.set(full_before.get().min(self.first));
        given_back.set(given_back.get() + 1);
    }
}

impl Allocator {
    /// Makes the objects of an allocator: they have the roles `role` and `role + 1` of their owner.
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

    /// The allocator of that owner and role. Of each there is one at a time.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn open(vault: &Vault, owner: &str, role: u32, policy: Policy) -> Result<Self> {
        let find = |role| {
            vault.find(owner, role).ok_or_else(|| {
                let words = format!("{owner:?} has no object with role {role}");
                Error::new(ErrorKind::NotFound, words)
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

    /// Where a block is.
    ///
    /// # Errors
    /// `OutOfRange`, and what reading says.
    pub async fn spot(&self, block: u64) -> Result<Spot> {
        Ok(self.map.get(block).await?.into())
    }

    /// Where blocks are, from `first` on, into all of `into`.
    ///
    /// # Errors
    /// As [`Allocator::spot`].
    pub async fn spots(&self, first: u64, into: &mut [Spot]) -> Result<()> {
        let mut entries = [U64::ZERO; AT_ONCE];
        for (part, first) in into.chunks_mut(AT_ONCE).zip((first..).step_by(AT_ONCE)) {
            let entries = &mut entries[..part.len()];
            self.map.get_many(first, entries).await?;
            part.iter_mut().zip(entries).for_each(|(spot, entry)| *spot = (*entry).into());
        }
        Ok(())
    }

    /// Where a block is; `None` if it is nowhere.
    ///
    /// # Errors
    /// `OutOfRange`, what reading says, and `Corrupt` for one that is lost.
    pub async fn place(&self, block: u64) -> Result<Option<u64>> {
        match self.spot(block).await? {
            Spot::Nowhere => Ok(None),
            Spot::At(place) => Ok(Some(place)),
            Spot::Lost(place) => {
                let words = format!("block {block} was at place {place}, and is lost");
                Err(Error::new(ErrorKind::Corrupt, words))
            }
        }
    }

    /// Says where a block is from now on.
    ///
    /// # Errors
    /// `OutOfRange` for the block or the place.
    pub fn put(&self, transaction: &mut Transaction, block: u64, place: Option<u64>) -> Result<()> {
        match place {
            None => self.map.set(transaction, block, &U64::ZERO),
            Some(place) => self.map.set(transaction, block, &self.entry(place)?),
        }
    }

    /// The same of a block whose bytes were just written there: they become durable with the
    /// transaction.
    ///
    /// # Errors
    /// `OutOfRange` for the block or the place.
    pub fn put_written(
        &self,
        transaction: &mut Transaction,
        block: u64,
        place: u64,
        data: &Data,
    ) -> Result<()> {
        self.map.set_with_data(transaction, block, &self.entry(place)?, data)
    }

    /// Says of blocks that they are nowhere from now on.
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
        let words = format!("place {place}; there are {}", self.places);
        Err(Error::new(ErrorKind::OutOfRange, words))
    }

    /// Takes up to `most` free places in a row: one at least. Nobody else gets them; they are taken when
    /// the transaction is committed, and free again if it is dropped.
    ///
    /// # Errors
    /// `NoSpace` if none is free, and what reading says.
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
        let places = found.ok_or_else(|| {
            Error::new(ErrorKind::NoSpace, format!("all {} places are taken", self.places))
        })?;
        self.promise(transaction, places)?;
        self.last.set(places.first + places.count);
        Ok(places)
    }

    /// Takes the first place that is free before `end`, whatever the policy; `None` if there is none.
    ///
    /// # Errors
    /// What reading says.
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

    /// Gives places back. Nobody gets them before the transaction is durable.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn free(&self, transaction: &mut Transaction, places: Places) -> Result<()> {
        // Until then somebody who looks for free ones may come to the end of these.
        transaction.keep(Freed { free: self.free.clone(), first: places.first });
        self.taken.put(transaction, places.first, places.count, false)
    }

    /// Keeps places that are about to be given back from everybody, for as long as the answer is kept.
    pub fn hold(&self, places: Places) -> Promise {
        self.promised.borrow_mut().insert(places.first, places.count);
        Promise { all: self.promised.clone(), first: places.first }
    }

    /// How many places there are.
    pub fn places(&self) -> u64 {
        self.places
    }

    /// How many places are taken.
    ///
    /// # Errors
    /// What reading says.
    pub async fn taken(&self) -> Result<u64> {
        self.taken.count(0, self.places).await
    }

    /// The first free places at `from` or behind.
    async fn behind(&self, from: u64, most: u64) -> Result<Option<Places>> {
        let Free { full_before, given_back } = &*self.free;
        let (begin, times) = (full_before.get(), given_back.get());
        let mut from = from.max(begin);
        while let Some((first, count)) = self.taken.find_run(from, most).await? {
            // What was given back meanwhile may be before that.
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

    /// As much of these from the first on as is not promised; or where the promise ends that the first
    /// is part of.
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

    /// The free places nearest to `last`.
    async fn nearest(&self, last: u64, most: u64) -> Result<Option<Places>> {
        let behind = self.behind(last, most).await?;
        let mut end = last;
        while let Some(place) = self.taken.find_back(end).await? {
            // What lies between is not nearer than what is behind.
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
