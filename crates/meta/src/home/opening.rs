//! The opening of the store of a device, from the time when the device is made: the rules of a first start and of a
//! live change.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Env, Error, Notify, Result, TaskGroup, first};

use super::labels::Labels;
use super::record::Record;
use crate::Uuid;

/// Access to a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Opening and using the store writes nothing.
    ReadOnly,
    /// Opening and using the store writes, as far as the lowers permit.
    Full,
}

/// A store of a device on its lowers.
#[allow(async_fn_in_trait, reason = "one core drives each graph; its futures are not Send")]
pub trait Store: 'static {
    /// The store while it is open.
    type Open: 'static;

    /// Makes the store on new disks, and returns its UUID. Erases the former content of its room.
    ///
    /// # Errors
    /// Errors of the disks.
    async fn make(&self, record: &Record) -> Result<Uuid>;

    /// Opens the store that `record` names.
    ///
    /// # Errors
    /// `Corrupt` if the lowers do not have this store; errors of opening it.
    async fn open(&self, record: &Record, access: Access) -> Result<Self::Open>;

    /// Whether a store that did not open, with this error, is made anew: its loss harms no data of clients, and the operator
    /// accepts it.
    fn may_replace(&self, _error: &Error) -> bool {
        false
    }

    /// Returns the state for labels if the store has grown by itself in its opening. Until the labels have it, they name
    /// the store before its growth.
    fn grown(&self, _open: &Self::Open, _record: &Record) -> Option<Record> {
        None
    }

    /// Ends all writes of the store. Afterwards it takes no changes.
    async fn close(&self, open: &Self::Open);

    /// Returns the error after which the open store takes no changes.
    fn failure(&self, open: &Self::Open) -> Option<Error>;
}

/// The store of a device. The store is complete later if a live change makes the device: it is first opened for reading.
///
/// On new disks, the labels first name a store that is being made, then it is made, then the labels name its UUID. So
/// after a crash between these steps, the disks are neither new nor those of another device, and the store is made
/// anew. All of this happens after the live change that makes the device is committed: before, the change may be
/// undone, and a mirror below may not be able to mark dirty regions yet.
pub struct Opening<S: Store> {
    store: S,
    labels: Labels,
    /// The state found in labels; `None` on new disks.
    found: Option<Record>,
    /// The state that the labels have, or get with the opening.
    record: RefCell<Record>,
    open: OnceCell<S::Open>,
    /// The store before the live change that makes the device is committed: nothing is written.
    preview: OnceCell<S::Open>,
    /// The error with which the opening failed.
    broken: RefCell<Option<Error>>,
    /// The error with which the store did not open that was made anew.
    replaced: RefCell<Option<Error>>,
    opened: Notify,
    tasks: TaskGroup,
}

impl<S: Store> Opening<S> {
    /// Creates the opening of a store. `found` is the state in `labels`, and `record` the state that fits the present
    /// sizes of the lowers. Writes nothing.
    pub fn new(
        env: &Env,
        store: S,
        labels: Labels,
        found: Option<Record>,
        record: Record,
    ) -> Rc<Self> {
        Rc::new(Self {
            store,
            labels,
            found,
            record: RefCell::new(record),
            open: OnceCell::new(),
            preview: OnceCell::new(),
            broken: RefCell::default(),
            replaced: RefCell::default(),
            opened: Notify::default(),
            tasks: TaskGroup::new(env),
        })
    }

    /// Opens the store, or makes it on new disks. If a live change makes the device, the store is only opened for
    /// reading, and a task opens it once the change is committed.
    ///
    /// # Errors
    /// Those of the store, and of writing to labels.
    pub async fn begin(self: &Rc<Self>) -> Result<()> {
        match &self.found {
            Some(found) => self.labels.keep_everywhere(found.encode()).await?,
            None if seeded::on(Bug::StoreBeforeState) => {}
            None => self.labels.keep(self.record().encode()).await?,
        }
        if self.labels.store().is_committed() || seeded::on(Bug::StoreBeforeCommit) {
            return self.open().await;
        }
        if let Some(found) = self.found.as_ref().filter(|found| found.vault.is_some()) {
            match self.store.open(found, Access::ReadOnly).await {
                Ok(preview) => {
                    assert!(
                        self.preview.set(preview).is_ok(),
                        "a store is opened for reading once"
                    );
                }
                // It is made anew once the change is committed.
                Err(error) if self.store.may_replace(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.open_later();
        Ok(())
    }

    /// Spawns the task that opens the store once the live change that makes the device is committed.
    fn open_later(self: &Rc<Self>) {
        let opening = self.clone();
        self.tasks.spawn("opening of a store", async move {
            let gone = opening.tasks.changed().until(|| opening.tasks.is_closing());
            if first(opening.labels.store().committed(), gone).await.is_ok() {
                // Requests wait for the store, and get the error.
                let _ = opening.open().await;
            }
        });
    }

    async fn open(&self) -> Result<()> {
        let opened = self.try_open().await;
        if let Err(error) = &opened {
            *self.broken.borrow_mut() = Some(error.clone());
        }
        self.opened.wake();
        opened
    }

    async fn try_open(&self) -> Result<()> {
        let open = match self.make_and_open().await {
            Err(error) if self.store.may_replace(&error) && !self.labels.is_read_only() => {
                self.record.borrow_mut().vault = None;
                self.labels.keep(self.record().encode()).await?;
                *self.replaced.borrow_mut() = Some(error);
                self.make_and_open().await?
            }
            opened => opened?,
        };
        let grown = self.store.grown(&open, &self.record());
        assert!(self.open.set(open).is_ok(), "a store is opened once");
        match grown.filter(|_| !self.labels.is_read_only() && !seeded::on(Bug::GrowthNotInState)) {
            Some(grown) => self.keep(grown).await,
            None => Ok(()),
        }
    }

    /// Opens the store, after it was made if the state says that it is being made.
    async fn make_and_open(&self) -> Result<S::Open> {
        let mut record = self.record();
        if record.vault.is_none() {
            record.vault = Some(self.store.make(&record).await?);
        }
        if self.found.as_ref() != Some(&record) && !self.labels.is_read_only() {
            // A store that grows uses new ranges only when the labels have them.
            self.labels.keep(record.encode()).await?;
        }
        let open = self.store.open(&record, Access::Full).await?;
        *self.record.borrow_mut() = record;
        Ok(open)
    }

    /// Returns the state in labels.
    pub fn record(&self) -> Record {
        self.record.borrow().clone()
    }

    /// Changes the own state of the kind in labels, durably. The store must be open.
    ///
    /// # Errors
    /// The first error of a write to a label.
    pub async fn keep_own(&self, own: Vec<u8>) -> Result<()> {
        self.keep(Record { own, ..self.record() }).await
    }

    async fn keep(&self, record: Record) -> Result<()> {
        self.labels.keep(record.encode()).await?;
        *self.record.borrow_mut() = record;
        Ok(())
    }

    /// Returns the store and its parameters, open or not.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Waits until the store is open, and returns it.
    ///
    /// # Errors
    /// The error with which the opening failed.
    pub async fn get(&self) -> Result<&S::Open> {
        if self.open.get().is_none() {
            self.opened.until(|| self.open.get().is_some() || self.broken.borrow().is_some()).await;
        }
        self.open.get().ok_or_else(|| {
            let broken = self.broken.borrow();
            broken.clone().expect("the wait ends with a store or an error")
        })
    }

    /// Returns the store if it is open now.
    pub fn now(&self) -> Option<&S::Open> {
        self.open.get()
    }

    /// Returns the store if it is open now, at least for reading.
    pub fn now_for_reading(&self) -> Option<&S::Open> {
        self.open.get().or_else(|| self.preview.get())
    }

    /// Returns the error of the opening, or the one after which the store takes no changes.
    pub fn failure(&self) -> Option<Error> {
        let failed = self.now().and_then(|open| self.store.failure(open));
        failed.or_else(|| self.broken.borrow().clone())
    }

    /// Returns the error with which a store did not open, if the store was made anew.
    pub fn replaced(&self) -> Option<Error> {
        self.replaced.borrow().clone()
    }

    /// Waits until the live change that makes the device is committed.
    pub async fn committed(&self) {
        self.labels.store().committed().await;
    }

    /// Ends the opening if it still runs, and all writes of the store. If the future is dropped before, the store goes on.
    pub async fn close(self: &Rc<Self>) {
        let reopen = || {
            if self.open.get().is_none() && self.broken.borrow().is_none() {
                self.open_later();
            }
        };
        if seeded::on(Bug::CloseDuringStart) && self.open.get().is_none() {
            return;
        }
        let closing = self.tasks.close(reopen).await;
        if let Some(open) = self.open.get().filter(|_| !self.labels.is_read_only()) {
            self.store.close(open).await;
        }
        closing.done();
    }
}
