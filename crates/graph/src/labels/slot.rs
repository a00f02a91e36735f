//! The label of one disk, as an open graph writes it: what has become of the graph, and what devices keep.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{KeptState, Result, Waiters};
use meta::{Cell, Label, Machine, Past, Store};

/// What devices keep, by their names.
type Cells = BTreeMap<String, Cell>;

/// What a label is to say of its disk and its graph from now on.
pub struct News {
    pub holder: Machine,
    pub name: String,
    pub epoch: u64,
    pub spec: String,
    /// The specs before it, the newest first.
    pub past: Rc<[Past]>,
    /// Whether the disk is being made still.
    pub forming: bool,
    /// The devices that keep something; nothing else is left of others.
    pub keepers: BTreeSet<String>,
}

/// The label of a disk that is there. While a graph is about to become another one, what its devices keep is
/// held back: it gets into the label together with the news of the change, or not at all.
pub struct Slot {
    pub store: Rc<Store>,
    /// What devices found there, if the label says something else since.
    shown: Option<Cells>,
    /// What is held back; `None`: devices write at once.
    held: RefCell<Option<Cells>>,
    /// Wakes those who wait for the end of that.
    waiting: Waiters,
    /// What the label had when the news of a change were put into it.
    before: RefCell<Option<Cells>>,
    /// What could not be told yet: it goes with whatever is written next.
    news: RefCell<Option<Rc<News>>>,
}

impl Slot {
    /// A label that devices write at once.
    pub fn new(store: Rc<Store>) -> Self {
        let (held, waiting, before, news) = Default::default();
        Self { store, shown: None, held, waiting, before, news }
    }

    /// A label that devices write from [`Slot::release`] on.
    pub fn held(store: Rc<Store>) -> Self {
        Self { held: RefCell::new(Some(Cells::new())), ..Self::new(store) }
    }

    /// The same label for the graph that comes back when a change has failed: it is to have what it had before.
    pub fn again(&self) -> Self {
        Self { shown: self.before.borrow().clone(), ..Self::held(self.store.clone()) }
    }

    /// What a device left there.
    pub fn state(&self, device: &str) -> Option<KeptState> {
        let label = self.store.label();
        let cell = self.shown.as_ref().unwrap_or(&label.cells).get(device)?;
        Some(KeptState { sequence: cell.sequence, bytes: cell.bytes.clone() })
    }

    /// Writes the label with these news, durably.
    ///
    /// # Errors
    /// What the disk says; then they go with what is written next.
    pub async fn tell(&self, news: News) -> Result<()> {
        *self.news.borrow_mut() = Some(Rc::new(news));
        self.update(|_| {}).await
    }

    /// Changes the label, durably.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn update(&self, change: impl FnOnce(&mut Label)) -> Result<()> {
        let told = RefCell::new(None);
        let written = self.store.update(|label| {
            *told.borrow_mut() = self.news.borrow().clone();
            if let Some(news) = &*told.borrow() {
                self.put(news, label);
            }
            label.cells.extend(self.held.borrow().iter().flatten().map(owned));
            change(label);
        });
        written.await?;
        let mut news = self.news.borrow_mut();
        if let (Some(now), Some(told)) = (&*news, &*told.borrow())
            && Rc::ptr_eq(now, told)
        {
            *news = None;
        }
        Ok(())
    }

    fn put(&self, news: &News, label: &mut Label) {
        if self.held.borrow().is_some() {
            self.before.borrow_mut().get_or_insert_with(|| label.cells.clone());
        }
        if let Some(shown) = &self.shown {
            label.cells.clone_from(shown);
        }
        label.cells.retain(|device, _| news.keepers.contains(device));
        label.holder = Some(news.holder.clone());
        label.disk_name.clone_from(&news.name);
        label.spec.clone_from(&news.spec);
        label.past = news.past.to_vec();
        (label.epoch, label.forming) = (news.epoch, news.forming);
    }

    /// Writes what a device keeps; or holds it back.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn keep(&self, device: String, cell: Cell) -> Result<()> {
        if let Some(held) = &mut *self.held.borrow_mut() {
            held.insert(device, cell);
            return Ok(());
        }
        self.update(move |label| drop(label.cells.insert(device, cell))).await
    }

    /// Writes what was held back since the label was last written.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn catch_up(&self) -> Result<()> {
        while self.is_behind() {
            self.update(|_| {}).await?;
        }
        Ok(())
    }

    /// From now on devices write at once: they are sure to stay.
    pub fn release(&self) {
        *self.held.borrow_mut() = None;
        self.waiting.wake();
    }

    /// Whether what devices keep is held back.
    pub fn is_held(&self) -> bool {
        self.held.borrow().is_some()
    }

    /// Until it is not.
    pub async fn released(&self) {
        self.waiting.until(|| !self.is_held()).await;
    }

    fn is_behind(&self) -> bool {
        let (held, label) = (self.held.borrow(), self.store.label());
        held.iter().flatten().any(|(device, cell)| label.cells.get(device) != Some(cell))
    }
}

fn owned((device, cell): (&String, &Cell)) -> (String, Cell) {
    (device.clone(), cell.clone())
}
