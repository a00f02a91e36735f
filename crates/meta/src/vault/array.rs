//! Array objects of a vault: records of equal size, addressed by number. Pages are loaded when they are needed.

use std::marker::PhantomData;
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Result, bail};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::entry::{Entry, ObjectKind};
use super::page::CONTENT_BYTES;
use super::record::Verb;
use super::{Data, ObjectId, Spec, Transaction, Vault};

/// An array object of a vault: records of type `T`, addressed by number. A record that was never set is all zeros.
///
/// `T` must be equal to its bytes: a little-endian number of `zerocopy`, an array of bytes, a struct of them.
pub struct Array<T> {
    vault: Vault,
    id: ObjectId,
    of: PhantomData<T>,
}

impl Spec {
    /// Returns the properties of an array object with `length` records of type `T`.
    pub fn array<T>(owner: &str, role: u32, length: u64) -> Self {
        let (kind, owner) = (ObjectKind::Array, owner.to_owned());
        let record_bytes = size_of::<T>() as u32;
        Self { owner, role, kind, advisory: false, record_bytes, length }
    }
}

impl<T: FromBytes + IntoBytes + Immutable> Array<T> {
    const PER_PAGE: u64 = (CONTENT_BYTES / size_of::<T>()) as u64;

    /// Returns a handle to the array object with this id.
    pub fn new(vault: &Vault, id: ObjectId) -> Self {
        Self { vault: vault.clone(), id, of: PhantomData }
    }

    fn check(entry: Rc<Entry>, index: u64) -> Result<Rc<Entry>> {
        let entry = super::transaction::of_kind(entry, ObjectKind::Array)?;
        if entry.record_bytes as usize != size_of::<T>() {
            let (is, should) = (entry.record_bytes, size_of::<T>());
            bail!(Invalid, "{entry} has records of {is} bytes, not {should}");
        }
        if index >= entry.length {
            bail!(OutOfRange, "record {index} is beyond the {} records of {entry}", entry.length);
        }
        Ok(entry)
    }

    /// Returns the number of records in the array.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn records(&self) -> Result<u64> {
        Ok(self.vault.object(self.id)?.length)
    }

    /// Reads the record with number `index`.
    ///
    /// # Errors
    /// `OutOfRange`, `NotFound`, and errors of reads.
    pub async fn get(&self, index: u64) -> Result<T> {
        let mut record = [T::new_zeroed()];
        self.get_many(index, &mut record).await?;
        let [record] = record;
        Ok(record)
    }

    /// Fills `into` with consecutive records, from record `first` on.
    ///
    /// # Errors
    /// As [`Array::get`].
    pub async fn get_many(&self, first: u64, into: &mut [T]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            let index = first + done as u64;
            let entry = Self::check(self.vault.object(self.id)?, index)?;
            let within = (index % Self::PER_PAGE) as usize;
            let count = (Self::PER_PAGE as usize - within).min(into.len() - done);
            Self::check(entry.clone(), index + count as u64 - 1)?;
            let to = into[done..done + count].as_mut_bytes();
            let copy = |page: &[u8]| {
                to.copy_from_slice(&page[within * size_of::<T>()..][..count * size_of::<T>()]);
            };
            self.vault.0.look(&entry, index / Self::PER_PAGE, copy).await?;
            done += count;
        }
        Ok(())
    }

    /// Loads the pages of `count` consecutive records, from record `first` on, into the cache.
    ///
    /// # Errors
    /// As [`Array::get`].
    pub async fn load(&self, first: u64, count: usize) -> Result<()> {
        let mut index = first;
        while index < first + count as u64 {
            let entry = Self::check(self.vault.object(self.id)?, index)?;
            self.vault.0.look(&entry, index / Self::PER_PAGE, |_| ()).await?;
            index = (index / Self::PER_PAGE + 1) * Self::PER_PAGE;
        }
        Ok(())
    }

    /// Calls `look` with `count` consecutive records, from record `first` on, and returns its result, if one page has them all
    /// and is in the cache.
    pub fn look_at<R>(&self, first: u64, count: usize, look: impl FnOnce(&[T]) -> R) -> Option<R> {
        let within = (first % Self::PER_PAGE) as usize;
        if within + count > Self::PER_PAGE as usize {
            return None;
        }
        let last = first + count as u64 - 1;
        let entry = Self::check(self.vault.object(self.id).ok()?, last).ok()?;
        let of_page = |page: &[u8]| {
            let bytes = &page[within * size_of::<T>()..][..count * size_of::<T>()];
            let records = <[T]>::ref_from_bytes(bytes);
            records.ok().map(look)
        };
        self.vault.0.look_now(&entry, first / Self::PER_PAGE, of_page).flatten()
    }

    /// Adds to the transaction that the record with number `index` is set to `record`.
    ///
    /// # Errors
    /// `OutOfRange`, `NotFound`.
    pub fn set(&self, transaction: &mut Transaction, index: u64, record: &T) -> Result<()> {
        let from = self.offset(transaction, index)?;
        transaction.change(self.id.0, from, Verb::Write(record.as_bytes()));
        Ok(())
    }

    /// Adds to the transaction that consecutive records, from record `first` on, are set to `records`.
    ///
    /// # Errors
    /// `OutOfRange`, `NotFound`.
    pub fn set_many(&self, transaction: &mut Transaction, first: u64, records: &[T]) -> Result<()> {
        let mut done = 0;
        while done < records.len() {
            let index = first + done as u64;
            let within = index % Self::PER_PAGE;
            let count = ((Self::PER_PAGE - within) as usize).min(records.len() - done);
            self.offset(transaction, index + count as u64 - 1)?;
            let from = self.offset(transaction, index)?;
            let part = &records[done..done + count];
            transaction.change(self.id.0, from, Verb::Write(part.as_bytes()));
            done += count;
        }
        Ok(())
    }

    /// Returns the offset in the object of the record with number `index`, after the changes of the transaction.
    fn offset(&self, transaction: &Transaction, index: u64) -> Result<u64> {
        Self::check(transaction.entry(self.id.0)?, index)?;
        let within = index % Self::PER_PAGE * size_of::<T>() as u64;
        Ok(index / Self::PER_PAGE * CONTENT_BYTES as u64 + within)
    }

    /// Adds to the transaction that the record with number `index` is set to `record`, which makes `data` outside of the
    /// vault reachable. The data must be written already, or be written beside the transaction
    /// ([`Transaction::write_beside`]), and become durable when the transaction does.
    ///
    /// # Errors
    /// As [`Array::set`].
    pub fn set_with_data(
        &self,
        transaction: &mut Transaction,
        index: u64,
        record: &T,
        data: &Data,
    ) -> Result<()> {
        Self::check(transaction.entry(self.id.0)?, index)?;
        transaction.name(data);
        self.set(transaction, index, record)
    }

    /// Adds to the transaction that `count` records, from record `first` on, are set to zeros.
    ///
    /// # Errors
    /// `OutOfRange`, `NotFound`.
    pub fn clear(&self, transaction: &mut Transaction, first: u64, count: u64) -> Result<()> {
        let end = first.saturating_add(count);
        Self::check(transaction.entry(self.id.0)?, end.saturating_sub(1))?;
        let mut index = first;
        while index < end {
            let within = index % Self::PER_PAGE;
            let part = (Self::PER_PAGE - within).min(end - index);
            let size = size_of::<T>() as u64;
            let from = index / Self::PER_PAGE * CONTENT_BYTES as u64 + within * size;
            transaction.change(self.id.0, from, Verb::Fill((part * size) as u32, 0));
            index += part;
        }
        Ok(())
    }
}

impl Array<U64> {
    /// Adds to the transaction that the number with index `index` becomes at least `least`. Raises of one number in
    /// several transactions leave the highest value, in whatever order they take effect.
    ///
    /// # Errors
    /// `OutOfRange`, `NotFound`.
    pub fn raise(&self, transaction: &mut Transaction, index: u64, least: u64) -> Result<()> {
        if seeded::on(Bug::RaiseNotStored) {
            return Ok(());
        }
        if seeded::on(Bug::RaiseLowers) {
            return self.set(transaction, index, &U64::new(least));
        }
        let from = self.offset(transaction, index)?;
        transaction.change(self.id.0, from, Verb::Raise(least));
        Ok(())
    }
}
