//! The label of one disk of an open graph, with the updates that a change of the graph and its devices write into it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Notify, Result, StoredState, error};
use meta::{Cell as KeptCell, Label, Machine, Past, Store};

/// States of devices, by name of the device.
type Cells = BTreeMap<String, KeptCell>;

/// The content of one update of a label about its disk and its graph.
pub struct LabelUpdate {
    pub holder: Machine,
    pub name: String,
    pub data_bytes: u64,
    pub epoch: u64,
    pub broadcast: u64,
    pub spec: String,
    /// The earlier specs of the graph, the newest first.
    pub past: Rc<[Past]>,
    /// Whether the disk is still being provisioned.
    pub provisioning: bool,
    /// The names of the devices that keep a state in labels. The update removes the cells of all other devices.
    pub keepers: BTreeSet<String>,
}

/// The label of a present disk, as the devices of a graph write to it. While a graph is changing, new states of its
/// devices are held back: these states get into the label together with the update of the change, or not at all.
pub struct Slot {
    pub store: Rc<Store>,
    /// The states of devices before a failed change, of those devices whose cells the change has altered in the label.
    /// `None` removes the cell. Devices that continued through the change are not included.
    undone: BTreeMap<String, Option<KeptCell>>,
    /// States that devices have written and that are held back from the label; `None` if devices write to the label at
    /// once.
    held: RefCell<Option<Cells>>,
    release: Rc<Release>,
    /// The cells that the label had before the update of the running change was put into the label.
    before: RefCell<Option<Cells>>,
    /// Update that no write has made durable in the label yet. Each later write of the label includes the update.
    update: RefCell<Option<Rc<LabelUpdate>>>,
}

/// The moment at which states of devices are no longer held back from a label.
#[derive(Default)]
struct Release {
    done: Cell<bool>,
    /// Wakes the tasks that wait until states of devices are no longer held back from the label.
    waiting: Notify,
}

impl Slot {
    /// Returns the label in `store`, into which devices write their states at once.
    pub fn new(store: Rc<Store>) -> Self {
        let (undone, held, before, update) = Default::default();
        let release = Rc::new(Release { done: Cell::new(true), waiting: Notify::default() });
        Self { store, undone, held, release, before, update }
    }

    /// Returns the label in `store`, from which the states of devices are held back until [`Slot::release`].
    pub fn held(store: Rc<Store>) -> Self {
        Self { held: RefCell::new(Some(Cells::new())), release: Rc::default(), ..Self::new(store) }
    }

    /// Returns the label in `store` for the graph from before a failed change. The first update of that label restores
    /// the states that devices had before the change.
    pub fn reopened(&self, store: Rc<Store>) -> Self {
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

    /// Returns the state of the device called `device` from its cell in this label, if the label has one.
    pub fn state(&self, device: &str) -> Option<StoredState> {
        let label = self.store.label();
        let cell = match self.undone.get(device) {
            Some(before) => before.as_ref()?,
            None => label.cells.get(device)?,
        };
        Some(state_of(cell))
    }

    /// Writes `update` into the label, durably.
    ///
    /// # Errors
    /// The error of the disk. In this case the next update of the label includes `update`.
    pub async fn write_update(&self, update: LabelUpdate) -> Result<()> {
        *self.update.borrow_mut() = Some(Rc::new(update));
        self.update(|_| {}).await
    }

    /// Applies `change` to the label, and writes the label to its disk durably.
    ///
    /// # Errors
    /// The error of the disk.
    pub async fn update(&self, change: impl FnOnce(&mut Label)) -> Result<()> {
        let included = RefCell::new(None);
        let written = self.store.update(|label| {
            // The update of a later change take precedence.
            self.update.borrow_mut().take_if(|update| update.epoch < label.epoch);
            *included.borrow_mut() = self.update.borrow().clone();
            if let Some(update) = &*included.borrow() {
                self.put(update, label);
            }
            label.cells.extend(self.held.borrow().clone().into_iter().flatten());
            change(label);
        });
        written.await?;
        let mut update = self.update.borrow_mut();
        if let (Some(now), Some(included)) = (&*update, &*included.borrow())
            && Rc::ptr_eq(now, included)
        {
            *update = None;
        }
        Ok(())
    }

    fn put(&self, update: &LabelUpdate, label: &mut Label) {
        if self.held.borrow().is_some() {
            self.before.borrow_mut().get_or_insert_with(|| label.cells.clone());
        }
        for (device, before) in &self.undone {
            match before {
                Some(cell) => drop(label.cells.insert(device.clone(), cell.clone())),
                None => drop(label.cells.remove(device)),
            }
        }
        label.cells.retain(|device, _| update.keepers.contains(device));
        label.holder = Some(update.holder.clone());
        label.disk_name.clone_from(&update.name);
        label.data_bytes = update.data_bytes;
        label.spec.clone_from(&update.spec);
        label.past = update.past.clone();
        (label.epoch, label.broadcast) = (update.epoch, label.broadcast.max(update.broadcast));
        label.provisioning = update.provisioning;
    }

    /// Writes the state of a device into its cell in this label durably. While the graph is changing, only holds the
    /// state back.
    ///
    /// # Errors
    /// The error of the disk; `Stopped` if the label has a later state of the device already.
    pub async fn keep(&self, device: String, cell: KeptCell) -> Result<()> {
        if let Some(held) = &mut *self.held.borrow_mut() {
            return put(held, device, cell);
        }
        let mut refused = Ok(());
        self.update(|label| refused = put(&mut label.cells, device, cell)).await?;
        refused
    }

    /// Writes held-back states of devices into the label until the label contains all of these states.
    ///
    /// # Errors
    /// The error of the disk.
    pub async fn catch_up(&self) -> Result<()> {
        while self.is_behind() {
            self.update(|_| {}).await?;
        }
        Ok(())
    }

    /// Ends the holding back of states, because the change is committed. From now on, devices write to the label at
    /// once.
    pub fn release(&self) {
        *self.held.borrow_mut() = None;
        self.release.done.set(true);
        self.release.waiting.wake();
    }

    /// Whether states of devices are held back from the label.
    pub fn is_held(&self) -> bool {
        !self.release.done.get()
    }

    /// Waits until states of devices are no longer held back from the label; for ever if the label is dropped before
    /// that. The future does not keep the label alive.
    pub fn released(&self) -> impl Future<Output = ()> + use<> {
        let release = self.release.clone();
        async move { release.waiting.until(|| release.done.get()).await }
    }

    pub(super) fn is_behind(&self) -> bool {
        let (held, label) = (self.held.borrow(), self.store.label());
        held.iter().flatten().any(|(device, cell)| label.cells.get(device) != Some(cell))
    }
}

/// Puts the state of a device into `cells`, unless `cells` have a later state of the device. So a device that was
/// replaced cannot overwrite the state of its successor.
fn put(cells: &mut Cells, device: String, cell: KeptCell) -> Result<()> {
    match cells.get(&device) {
        Some(is) if cell.sequence < is.sequence || cell.sequence == is.sequence && cell != *is => {
            Err(error!(
                Stopped,
                "{device}: state {} is not newer than state {} in the label",
                cell.sequence,
                is.sequence
            ))
        }
        _ => {
            cells.insert(device, cell);
            Ok(())
        }
    }
}

/// Converts the cell of a device in a label to the stored state of the device.
pub(super) fn state_of(cell: &meta::Cell) -> StoredState {
    StoredState { sequence: cell.sequence, bytes: cell.bytes.clone() }
}
