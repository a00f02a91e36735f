//! Transactions: changes that happen together or not at all.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use block::{ByteRange, Error, ErrorKind, Locked, Result};

use super::directory::{Planned, Spec, missing};
use super::entry::{DIRECTORY, ENTRY_BYTES, Entry, ObjectKind, Slot};
use super::geometry::PageNumber;
use super::page::CONTENT_BYTES;
use super::record::{Change, Verb};
use super::{Inner, ObjectId, Vault};

/// Most pages that one transaction may change; fewer in a small cache.
pub const TRANSACTION_PAGES_MAX: usize = 256;

/// A collection of changes to objects. [`Vault::commit`] makes them happen; dropping it discards them.
#[must_use = "nothing of it happens before it is committed"]
pub struct Transaction {
    vault: Rc<Inner>,
    pub(super) changes: Vec<u8>,
    pub(super) count: u32,
    /// Pages that it touches: object, first and last index.
    touched: Vec<(u64, u64, u64)>,
    /// Its changes to the directory.
    pub(super) plans: Plans,
    /// Changes to objects in memory that take effect when the commit is in progress.
    pub(super) turns: Vec<Turn>,
    /// Byte ranges of the data that it makes reachable.
    pub(super) named: Vec<ByteRange>,
    /// Values that are dropped when the transaction is over.
    pub(super) kept: Vec<Box<dyn Any>>,
}

/// Reservations of a transaction in the directory. Dropping returns them. The transaction waits in the vault's own
/// queue, so the reference to the vault is weak.
pub(super) struct Plans {
    vault: Weak<Inner>,
    made: Vec<Planned>,
    /// Objects that it deletes.
    gone: Vec<u64>,
}

/// An object that one transaction has locked until its commit is in progress, and the action at that moment.
pub(super) struct Turn {
    pub object: u64,
    pub alone: Locked,
    /// New ends of a log: first and next.
    pub planned: Rc<Cell<(u64, u64)>>,
    pub on_the_way: Box<dyn FnOnce()>,
}

impl Drop for Plans {
    fn drop(&mut self) {
        let Some(vault) = self.vault.upgrade() else { return };
        let mut directory = vault.directory.borrow_mut();
        self.made.iter().for_each(|planned| directory.unplan(planned));
        self.gone.iter().for_each(|number| directory.let_go(*number));
    }
}

impl Plans {
    /// Returns the empty reservations of a transaction that does not change the directory.
    pub fn none(vault: &Inner) -> Self {
        Self { vault: vault.me.clone(), made: Vec::new(), gone: Vec::new() }
    }

    /// Ends the reservations of a committed transaction: the objects and pages are in use now.
    pub fn keep(mut self) {
        let Some(vault) = self.vault.upgrade() else { return };
        let mut directory = vault.directory.borrow_mut();
        self.made.drain(..).for_each(|planned| directory.settle(&planned));
        self.gone.drain(..).for_each(|number| directory.let_go(number));
    }
}

impl Vault {
    /// Begins a transaction without changes.
    pub fn begin(&self) -> Transaction {
        Transaction {
            vault: self.0.clone(),
            changes: Vec::new(),
            count: 0,
            touched: Vec::new(),
            plans: Plans::none(&self.0),
            turns: Vec::new(),
            named: Vec::new(),
            kept: Vec::new(),
        }
    }
}

impl Transaction {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keeps a value, such as a reservation, until the transaction is committed or dropped.
    pub fn keep(&mut self, what: impl Any) {
        self.kept.push(Box::new(what));
    }

    /// Returns the directory entry that an object will have once this is committed.
    pub(super) fn entry(&self, number: u64) -> Result<Rc<Entry>> {
        if self.plans.gone.contains(&number) {
            return Err(missing(number));
        }
        let made = self.plans.made.iter().rfind(|planned| planned.entry.number == number);
        made.map_or_else(|| self.vault.entry(number), |planned| Ok(planned.entry.clone()))
    }

    /// Returns the entry of an object, even if this transaction deletes it.
    pub(super) fn entry_now(&self, number: u64) -> Result<Rc<Entry>> {
        match self.plans.gone.contains(&number) {
            true => self.vault.entry(number),
            false => self.entry(number),
        }
    }

    /// Returns the entry of an object after checking its kind.
    pub(super) fn expect(&self, id: ObjectId, kind: ObjectKind) -> Result<Rc<Entry>> {
        of_kind(self.entry(id.0)?, kind)
    }

    /// Changes bytes or bits of an object of any kind; does nothing if there are none.
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
        if self.touched.last() != Some(&pages) {
            self.touched.push(pages);
        }
    }

    fn put(&mut self, slot: usize, to: &Slot) {
        let from = (slot * ENTRY_BYTES) as u64;
        self.change(DIRECTORY, from, Verb::Write(&to.encode()));
    }

    /// Creates an object. It reads as zeros.
    ///
    /// # Errors
    /// `InUse` if its owner has an object with that role, `NoSpace`, `Limit` if the directory is full, `Invalid` for an
    /// impossible length or name.
    pub fn create(&mut self, spec: &Spec) -> Result<ObjectId> {
        let epoch = self.vault.replicas.epoch().number;
        let planned = self.vault.directory.borrow_mut().plan_new(spec, epoch)?;
        let id = ObjectId(planned.entry.number);
        self.put(planned.slot, &Slot::Entry((*planned.entry).clone()));
        self.plans.made.push(planned);
        Ok(id)
    }

    /// Makes an object longer. The new part reads as zeros.
    ///
    /// # Errors
    /// `NotFound`, `NoSpace`; `Invalid` if it is already that long; `InUse` while another transaction grows or
    /// deletes it.
    pub fn grow(&mut self, id: ObjectId, length: u64) -> Result<()> {
        let planned = self.vault.directory.borrow_mut().plan_growth(id.0, length)?;
        self.put(planned.slot, &Slot::Entry((*planned.entry).clone()));
        self.plans.made.push(planned);
        Ok(())
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// `NotFound`; `InUse` while another transaction grows or deletes it.
    pub fn delete(&mut self, id: ObjectId) -> Result<()> {
        let (slot, _) = self.vault.directory.borrow_mut().hold(id.0)?;
        self.plans.gone.push(id.0);
        self.put(slot, &Slot::Gone(id.0));
        Ok(())
    }

    /// Deletes every object of an owner.
    ///
    /// # Errors
    /// As [`Transaction::delete`].
    pub fn delete_all_of(&mut self, owner: &str) -> Result<()> {
        for id in Vault(self.vault.clone()).owned_by(owner) {
            self.delete(id)?;
        }
        Ok(())
    }

    /// Returns the pages that it changes, each with the object that owns it after the change.
    pub(super) fn pages(&self) -> Result<BTreeMap<PageNumber, u64>> {
        let mut all = BTreeMap::new();
        for (object, first, last) in &self.touched {
            let entry = self.entry_now(*object)?;
            for index in *first..=*last {
                let page = entry.page(index).ok_or_else(|| {
                    let words = format!("{entry} has {} pages; not page {index}", entry.pages());
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

    /// Marks the commit as in progress: checks that all objects still exist, and withdraws those that it deletes.
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

/// Returns the entry after checking its kind.
pub(super) fn of_kind(entry: Rc<Entry>, kind: ObjectKind) -> Result<Rc<Entry>> {
    if entry.kind == kind {
        return Ok(entry);
    }
    Err(Error::new(ErrorKind::Invalid, format!("{entry} is no {kind:?}")))
}
