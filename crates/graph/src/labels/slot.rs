//! The label of one disk, as an open graph writes it: what has become of the graph, and what devices keep.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Error, ErrorKind, Notify, Result, StoredState};
use meta::{Cell as KeptCell, Label, Machine, Past, Store};

/// What devices keep, by their names.
type Cells = BTreeMap<String, KeptCell>;

/// What a label is to say of its disk and its graph from now on.
pub struct News {
    pub holder: Machine,
    pub name: String,
    pub data_bytes: u64,
    pub epoch: u64,
    pub broadcast: u64,
    pub spec: String,
    /// The specs before it, the newest first.
    pub past: Rc<[Past]>,
    /// Whether the disk is being made still.
    pub provisioning: bool,
    /// The devices that keep something; nothing else is left of others.
    pub keepers: BTreeSet<String>,
}

/// The label of a disk that is there. While a graph is about to become another one, what its devices keep is
/// held back: it gets into the label together with the news of the change, or not at all.
pub struct Slot {
    pub store: Rc<Store>,
    /// What devices had there, if the label says something else since, of a change that has failed. Those
    /// that went on meanwhile are not among them.
    undone: BTreeMap<String, Option<KeptCell>>,
    /// What is held back; `None`: devices write at once.
    held: RefCell<Option<Cells>>,
    release: Rc<Release>,
    /// What the label had when the news of a change were put into it.
    before: RefCell<Option<Cells>>,
    /// What could not be told yet: it goes with whatever is written next.
    news: RefCell<Option<Rc<News>>>,
}

/// The end of holding back.
#[derive(Default)]
struct Release {
    done: Cell<bool>,
    /// Wakes those who wait for it.
    waiting: Notify,
}

impl Slot {
    /// A label that devices write at once.
    pub fn new(store: Rc<Store>) -> Self {
        let (undone, held, before, news) = Default::default();
        let release = Rc::new(Release { done: Cell::new(true), waiting: Notify::default() });
        Self { store, undone, held, release, before, news }
    }

    /// A label that devices write from [`Slot::release`] on.
    pub fn held(store: Rc<Store>) -> Self {
        Self { held: RefCell::new(Some(Cells::new())), release: Rc::default(), ..Self::new(store) }
    }

    /// The same label for the graph that comes back when a change has failed: it is to have what it had before, and
    /// to be written through what is open then.
    pub fn again(&self, store: Rc<Store>) -> Self {
        let (before, held, label) = (self.before.borrow(), self.held.borrow(), self.store.label());
        let is_held = |device: &String| held.as_ref().is_some_and(|held| held.contains_key(device));
        let before = before.as_ref();
        let had = |device: &String| before.and_then(|cells| cells.get(device)).cloned();
        let devices = before.into_iter().chain(held.as_ref()).flat_map(Cells::keys);
        let changed = devices
            .filter(|device| is_held(device) || !label.cells.contains_key(*device))
            .filter(|_| before.is_some());
        let undone = changed.map(|device| (device.clone(), had(device))).collect();
        Self { undone, ..Self::held(store) }
    }

    /// What a device left there.
    pub fn state(&self, device: &str) -> Option<StoredState> {
        let label = self.store.label();
        let cell = match self.undone.get(device) {
            Some(before) => before.as_ref()?,
            None => label.cells.get(device)?,
        };
        Some(state_of(cell))
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
            // What a later change has told there since counts for more.
            self.news.borrow_mut().take_if(|news| news.epoch < label.epoch);
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
        for (device, before) in &self.undone {
            match before {
                Some(cell) => drop(label.cells.insert(device.clone(), cell.clone())),
                None => drop(label.cells.remove(device)),
            }
        }
        label.cells.retain(|device, _| news.keepers.contains(device));
        label.holder = Some(news.holder.clone());
        label.disk_name.clone_from(&news.name);
        label.data_bytes = news.data_bytes;
        label.spec.clone_from(&news.spec);
        label.past = news.past.clone();
        (label.epoch, label.broadcast) = (news.epoch, label.broadcast.max(news.broadcast));
        label.provisioning = news.provisioning;
    }

    /// Writes what a device keeps; or holds it back.
    ///
    /// # Errors
    /// What the disk says; `Stopped` if the label has a later state of the device, which stays.
    pub async fn keep(&self, device: String, cell: KeptCell) -> Result<()> {
        if let Some(held) = &mut *self.held.borrow_mut() {
            return put(held, device, cell);
        }
        let mut refused = Ok(());
        self.update(|label| refused = put(&mut label.cells, device, cell)).await?;
        refused
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
        self.release.done.set(true);
        self.release.waiting.wake();
    }

    /// Whether what devices keep is held back.
    pub fn is_held(&self) -> bool {
        !self.release.done.get()
    }

    /// Until it is not; for ever if the label is let go before. It holds nothing.
    pub fn released(&self) -> impl Future<Output = ()> + use<> {
        let release = self.release.clone();
        async move { release.waiting.until(|| release.done.get()).await }
    }

    pub(super) fn is_behind(&self) -> bool {
        let (held, label) = (self.held.borrow(), self.store.label());
        held.iter().flatten().any(|(device, cell)| label.cells.get(device) != Some(cell))
    }
}

/// Puts in the state of a device, unless a later one is there: a device that was replaced may not undo what its
/// successor has recorded.
fn put(cells: &mut Cells, device: String, cell: KeptCell) -> Result<()> {
    match cells.get(&device) {
        Some(is) if cell.sequence < is.sequence || cell.sequence == is.sequence && cell != *is => {
            let words = format!(
                "{device}: state {} comes after state {}, which its label has",
                cell.sequence, is.sequence
            );
            Err(Error::new(ErrorKind::Stopped, words))
        }
        _ => {
            cells.insert(device, cell);
            Ok(())
        }
    }
}

fn owned((device, cell): (&String, &KeptCell)) -> (String, KeptCell) {
    (device.clone(), cell.clone())
}

/// What a device left in a label, as it finds it.
pub(super) fn state_of(cell: &meta::Cell) -> StoredState {
    StoredState { sequence: cell.sequence, bytes: cell.bytes.clone() }
}
