//! Changes that happen together or not at all.

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

/// Pages that one transaction may change; fewer in a small cache.
pub const TRANSACTION_PAGES_MAX: usize = 256;

/// Changes to objects, collected. [`Vault::commit`] makes them happen; dropped, they never were.
#[must_use = "nothing of it happens before it is committed"]
pub struct Transaction {
    vault: Rc<Inner>,
    pub(super) changes: Vec<u8>,
    pub(super) count: u32,
    /// The pages that it touches, by object: first and last.
    touched: Vec<(u64, u64, u64)>,
    /// What it does to the directory.
    pub(super) plans: Plans,
    /// What becomes true of objects in memory when it is on its way.
    pub(super) turns: Vec<Turn>,
    /// The data that it makes reachable.
    pub(super) named: Vec<ByteRange>,
    /// What is let go when it is over.
    pub(super) kept: Vec<Box<dyn Any>>,
}

/// What a transaction has been promised by the directory. Given back when dropped. It waits in the
/// vault's own queue, and so does not keep the vault.
pub(super) struct Plans {
    vault: Weak<Inner>,
    made: Vec<Planned>,
    /// Objects that it deletes.
    gone: Vec<u64>,
}

/// An object that is this transaction's alone until it is on its way, and what happens to it then.
pub(super) struct Turn {
    pub object: u64,
    pub alone: Locked,
    /// What its ends will be: of a log, first and next.
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
    /// Of something that asks nothing of the directory.
    pub fn none(vault: &Inner) -> Self {
        Self { vault: vault.me.clone(), made: Vec::new(), gone: Vec::new() }
    }

    /// The transaction is committed: what was promised is its own.
    pub fn keep(mut self) {
        let Some(vault) = self.vault.upgrade() else { return };
        let mut directory = vault.directory.borrow_mut();
        self.made.drain(..).for_each(|planned| directory.settle(&planned));
        self.gone.drain(..).for_each(|number| directory.let_go(number));
    }
}

impl Vault {
    /// A transaction without changes.
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

    /// Keeps something until this has happened, or never will: what was promised to it.
    pub fn keep(&mut self, what: impl Any) {
        self.kept.push(Box::new(what));
    }

    /// What the directory will say of an object once this is committed.
    pub(super) fn entry(&self, number: u64) -> Result<Rc<Entry>> {
        if self.plans.gone.contains(&number) {
            return Err(missing(number));
        }
        let made = self.plans.made.iter().rfind(|planned| planned.entry.number == number);
        made.map_or_else(|| self.vault.entry(number), |planned| Ok(planned.entry.clone()))
    }

    /// The same, of one that this deletes as well.
    pub(super) fn entry_now(&self, number: u64) -> Result<Rc<Entry>> {
        match self.plans.gone.contains(&number) {
            true => self.vault.entry(number),
            false => self.entry(number),
        }
    }

    /// The object, if it is of that sort.
    pub(super) fn expect(&self, id: ObjectId, kind: ObjectKind) -> Result<Rc<Entry>> {
        of_kind(self.entry(id.0)?, kind)
    }

    fn add(&mut self, change: &Change<'_>) {
        change.encode(&mut self.changes);
        self.count += 1;
        let (first, bytes) = change.byte_range();
        let content = CONTENT_BYTES as u64;
        let pages = (change.object, first / content, (first + bytes - 1) / content);
        if self.touched.last() != Some(&pages) {
            self.touched.push(pages);
        }
    }

    /// Writes bytes of an object, whatever it is; nothing if there are none.
    pub(super) fn write(&mut self, object: u64, from: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.add(&Change { object, from, verb: Verb::Write(bytes) });
        }
    }

    /// Fills bytes of an object.
    pub(super) fn fill(&mut self, object: u64, from: u64, length: u32, value: u8) {
        if length > 0 {
            self.add(&Change { object, from, verb: Verb::Fill(length, value) });
        }
    }

    /// Sets or clears bits of an object.
    pub(super) fn bits(&mut self, object: u64, from: u64, count: u32, value: bool) {
        if count > 0 {
            self.add(&Change { object, from, verb: Verb::Bits(count, value) });
        }
    }

    fn put(&mut self, slot: usize, to: &Slot) {
        self.write(DIRECTORY, (slot * ENTRY_BYTES) as u64, &to.encode());
    }

    /// Makes an object. It reads as zeros.
    ///
    /// # Errors
    /// `InUse` if its owner has one of that role, `NoSpace`, `Limit` past the directory's size,
    /// `Invalid` for a length or a name that cannot be.
    pub fn create(&mut self, spec: &Spec) -> Result<ObjectId> {
        let epoch = self.vault.replicas.epoch().number;
        let planned = self.vault.directory.borrow_mut().plan_new(spec, epoch)?;
        let id = ObjectId(planned.entry.number);
        self.put(planned.slot, &Slot::Entry((*planned.entry).clone()));
        self.plans.made.push(planned);
        Ok(id)
    }

    /// Makes an object longer. What is new reads as zeros.
    ///
    /// # Errors
    /// `NotFound`, `NoSpace`; `Invalid` if it is that long already; `InUse` while another transaction
    /// makes it longer or deletes it.
    pub fn grow(&mut self, id: ObjectId, length: u64) -> Result<()> {
        let planned = self.vault.directory.borrow_mut().plan_growth(id.0, length)?;
        self.put(planned.slot, &Slot::Entry((*planned.entry).clone()));
        self.plans.made.push(planned);
        Ok(())
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// `NotFound`; `InUse` while another transaction makes it longer or deletes it.
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

    /// The pages that it changes, each with the object whose it is then.
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

    /// It is on its way: all that it changes is there, and what it deletes is nobody's any more.
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

/// The object, if it is of that sort.
pub(super) fn of_kind(entry: Rc<Entry>, kind: ObjectKind) -> Result<Rc<Entry>> {
    if entry.kind == kind {
        return Ok(entry);
    }
    Err(Error::new(ErrorKind::Invalid, format!("{entry} is no {kind:?}")))
}
