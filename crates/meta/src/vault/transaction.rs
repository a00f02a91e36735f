//! Transactions of a vault: changes that become durable together or not at all.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use block::seeded::{self, Bug};
use block::{ByteRange, Child, Error, ErrorKind, Locked, Result, error};

use super::directory::{Planned, Spec, missing};
use super::entry::{DIRECTORY, ENTRY_BYTES, Entry, ObjectKind, Slot};
use super::number::PageNumber;
use super::page::CONTENT_BYTES;
use super::record::{Change, Verb};
use super::{Inner, ObjectId, Vault};

/// Maximum number of pages that one transaction may change; a small cache permits fewer.
pub const TRANSACTION_PAGES_MAX: usize = 256;

/// A list of changes to objects of a vault. [`Vault::commit`] makes the changes durable; dropping the transaction
/// discards them.
#[must_use = "a transaction changes nothing before its commit"]
pub struct Transaction {
    vault: Rc<Inner>,
    pub(super) changes: Vec<u8>,
    pub(super) count: u32,
    /// The pages that the transaction changes: number of the object, and indices of the first and last page in the
    /// object.
    touched: Vec<(u64, u64, u64)>,
    /// Changes of the transaction to the directory.
    pub(super) plans: DirectoryReservations,
    /// Objects that the transaction has locked, with the changes to their state in memory that take effect when the
    /// commit is in progress.
    pub(super) turns: Vec<LockedObject>,
    /// Byte ranges of the data outside of the vault that the transaction makes reachable.
    pub(super) named: Vec<ByteRange>,
    /// Writes of these data that are in flight.
    pub(super) writes: Vec<Child>,
    /// Values that are dropped when the transaction is committed or dropped, such as reservations.
    pub(super) kept: Vec<Box<dyn Any>>,
    /// Values that are dropped when the record with the transaction is proven, or the transaction is dropped.
    pub(super) until_proven: Vec<Box<dyn Any>>,
}

/// Changes to the directory that are reserved for a transaction. Dropping releases the reservations. The transaction
/// waits in the queue of the vault, so the reference to the vault is weak.
pub(super) struct DirectoryReservations {
    vault: Weak<Inner>,
    made: Vec<Planned>,
    /// Numbers of the objects that the transaction deletes.
    gone: Vec<u64>,
}

/// An object that a transaction has locked until its commit is in progress, and the action at that moment.
pub(super) struct LockedObject {
    pub object: u64,
    pub alone: Locked,
    /// Offsets of the first and of the next entry that the log has after the commit.
    pub planned: Rc<Cell<(u64, u64)>>,
    pub on_the_way: Box<dyn FnOnce()>,
}

impl Drop for DirectoryReservations {
    fn drop(&mut self) {
        let Some(vault) = self.vault.upgrade() else { return };
        let mut directory = vault.directory.borrow_mut();
        self.made.iter().for_each(|planned| directory.unplan(planned));
        self.gone.iter().for_each(|number| directory.release(*number));
    }
}

impl DirectoryReservations {
    /// Returns no reservations, for a transaction that does not change the directory.
    pub fn none(vault: &Inner) -> Self {
        Self { vault: vault.me.clone(), made: Vec::new(), gone: Vec::new() }
    }

    /// Ends the reservations of a committed transaction, whose objects use the reserved slots and pages now.
    pub fn keep(mut self) {
        let Some(vault) = self.vault.upgrade() else { return };
        let mut directory = vault.directory.borrow_mut();
        self.made.drain(..).for_each(|planned| directory.settle(&planned));
        self.gone.drain(..).for_each(|number| directory.release(number));
    }
}

impl Vault {
    /// Begins an empty transaction of the vault.
    pub fn begin(&self) -> Transaction {
        Transaction {
            vault: self.0.clone(),
            changes: Vec::new(),
            count: 0,
            touched: Vec::new(),
            plans: DirectoryReservations::none(&self.0),
            turns: Vec::new(),
            named: Vec::new(),
            writes: Vec::new(),
            kept: Vec::new(),
            until_proven: Vec::new(),
        }
    }
}

impl Transaction {
    /// Whether the transaction changes nothing.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Holds the value `what`, such as a reservation, until the transaction is committed or dropped.
    pub fn keep(&mut self, what: impl Any) {
        self.kept.push(Box::new(what));
    }

    /// Holds the value `what` until the record with the transaction is proven, or the transaction is dropped: a
    /// reservation of space that the transaction frees.
    pub fn keep_until_proven(&mut self, what: impl Any) {
        match seeded::on(Bug::FreedReusedEarly) {
            true => self.keep(what),
            false => self.until_proven.push(Box::new(what)),
        }
    }

    /// Returns the directory entry that the object `number` has once this transaction is committed.
    pub(super) fn entry(&self, number: u64) -> Result<Rc<Entry>> {
        if self.plans.gone.contains(&number) {
            return Err(missing(number));
        }
        let made = self.plans.made.iter().rfind(|planned| planned.entry.number == number);
        made.map_or_else(|| self.vault.entry(number), |planned| Ok(planned.entry.clone()))
    }

    /// Returns the directory entry of the object `number`, even if this transaction deletes the object.
    pub(super) fn entry_now(&self, number: u64) -> Result<Rc<Entry>> {
        match self.plans.gone.contains(&number) {
            true => self.vault.entry(number),
            false => self.entry(number),
        }
    }

    /// Returns the directory entry of the object `id` after checking that the object has this kind.
    pub(super) fn expect(&self, id: ObjectId, kind: ObjectKind) -> Result<Rc<Entry>> {
        of_kind(self.entry(id.0)?, kind)
    }

    /// Adds to the transaction a change of an object from byte or bit `from` on. Does nothing if `verb` covers no bytes
    /// or bits.
    pub(super) fn change(&mut self, object: u64, from: u64, verb: Verb<'_>) {
        let change = Change { object, from, verb };
        if change.length() == 0 {
            return;
        }
        change.encode(&mut self.changes);
        self.count += 1;
        let (first, bytes) = change.byte_range();
        let content = CONTENT_BYTES as u64;
        let pages = (change.object, first / content, (first + bytes - 1) / content);
        if self.touched.last() == Some(&pages) {
            return;
        }
        if let Verb::Bits(..) = verb {
            self.touched.push((change.object, 0, 0));
        }
        self.touched.push(pages);
    }

    fn put(&mut self, slot: usize, to: &Slot) {
        let from = (slot * ENTRY_BYTES) as u64;
        self.change(DIRECTORY, from, Verb::Write(&to.encode()));
    }

    /// Adds to the transaction the creation of an object with the properties `spec`. The new object reads as zeros.
    ///
    /// # Errors
    /// `InUse` if the owner has an object with that role; `NoSpace`; `Limit` if the directory is full; `Invalid` for an
    /// impossible length or name.
    pub fn create(&mut self, spec: &Spec) -> Result<ObjectId> {
        let epoch = self.vault.replicas.epoch().number;
        let planned = self.vault.directory.borrow_mut().plan_new(spec, epoch)?;
        let id = ObjectId(planned.entry.number);
        self.put(planned.slot, &Slot::Entry((*planned.entry).clone()));
        self.plans.made.push(planned);
        Ok(id)
    }

    /// Adds to the transaction the extension of an object to `length`. The new part reads as zeros.
    ///
    /// # Errors
    /// `NotFound`, `NoSpace`; `Invalid` if the object has that length already; `InUse` while another transaction
    /// extends or deletes the object.
    pub fn grow(&mut self, id: ObjectId, length: u64) -> Result<()> {
        let planned = self.vault.directory.borrow_mut().plan_growth(id.0, length)?;
        self.put(planned.slot, &Slot::Entry((*planned.entry).clone()));
        self.plans.made.push(planned);
        Ok(())
    }

    /// Adds to the transaction the deletion of an object.
    ///
    /// # Errors
    /// `NotFound`; `InUse` while another transaction extends or deletes the object.
    pub fn delete(&mut self, id: ObjectId) -> Result<()> {
        let (slot, _) = self.vault.directory.borrow_mut().hold(id.0)?;
        self.plans.gone.push(id.0);
        self.put(slot, &Slot::Gone(id.0));
        Ok(())
    }

    /// Adds to the transaction the deletion of every object of an owner.
    ///
    /// # Errors
    /// As [`Transaction::delete`].
    pub fn delete_all_of(&mut self, owner: &str) -> Result<()> {
        for id in Vault(self.vault.clone()).owned_by(owner) {
            self.delete(id)?;
        }
        Ok(())
    }

    /// Returns the pages that the transaction changes, each with the number of the object that owns the page after the
    /// commit.
    pub(super) fn pages(&self) -> Result<BTreeMap<PageNumber, u64>> {
        let mut all = BTreeMap::new();
        for (object, first, last) in &self.touched {
            let entry = self.entry_now(*object)?;
            for index in *first..=*last {
                let page = entry.page(index).ok_or_else(|| {
                    let words = format!("{entry} has {} pages, and no page {index}", entry.pages());
                    Error::new(ErrorKind::OutOfRange, words)
                })?;
                all.insert(page, *object);
            }
            if all.len() > TRANSACTION_PAGES_MAX {
                break;
            }
        }
        Ok(all)
    }

    /// Whether the beginning of the commit already changes state in memory, which only the commit itself may follow.
    pub(super) fn changes_state_early(&self) -> bool {
        !self.turns.is_empty() || !self.plans.made.is_empty() || !self.plans.gone.is_empty()
    }

    /// Begins the commit of the transaction in the directory: checks that all changed objects still exist, and makes
    /// the objects that the transaction deletes unavailable to other transactions.
    pub(super) fn set_out(&self) -> Result<()> {
        let mut directory = self.vault.directory.borrow_mut();
        for (object, ..) in &self.touched {
            let own = *object == DIRECTORY
                || self.plans.gone.contains(object)
                || self.plans.made.iter().any(|planned| planned.entry.number == *object);
            if !own && (directory.get(*object).is_none() || directory.is_going(*object)) {
                return Err(missing(*object));
            }
        }
        self.plans.gone.iter().for_each(|number| directory.note_going(*number));
        Ok(())
    }
}

/// Returns the directory entry `entry`, after checking that its object is of this kind.
pub(super) fn of_kind(entry: Rc<Entry>, kind: ObjectKind) -> Result<Rc<Entry>> {
    if entry.kind == kind {
        return Ok(entry);
    }
    Err(error!(Invalid, "{entry} is not of kind {kind:?}"))
}
