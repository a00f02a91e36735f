//! The volumes of the devices of a graph: found by name, opened when they are first needed, and closed when their last
//! user has dropped them.
//!
//! The full name of a volume is `DEVICE/VOLUME`. Opening and closing run in tasks of their own, to their end. Each step
//! on a name waits for the step before it, so two clients that open one name get one volume. A live change pauses all
//! steps ([`VolumeSet::pause`]), closes the open volumes of the devices that it replaces, and opens them on the new
//! devices. Their portals stay the same.

mod any;
mod held;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use block::seeded::{self, Bug};
use block::{
    Env, Error, Mutex, Notify, OpenMode, Result, VOLUME_NAME_MAX_BYTES, VolumeEntry, VolumeFacts,
    VolumeId, bail, error,
};

use super::portal::Portal;
use super::slot::AnyDevice;
use super::{Engine, NodeId};

pub(crate) use any::Erase;
pub use any::{AnyVolumes, Opened};
pub use held::HeldVolume;

/// The volumes of the devices of one graph. A clone is another handle to the same set.
#[derive(Clone)]
pub struct VolumeSet(Rc<Inner>);

struct Inner {
    env: Env,
    engine: Engine,
    /// The devices that hold volumes, by their names with a slash behind them. So the full names of all volumes are in
    /// order if those of each device are.
    holders: RefCell<BTreeMap<String, Rc<Holder>>>,
    /// The volumes that are open, or on which a step runs or waits, by full name.
    entries: RefCell<BTreeMap<String, Rc<Entry>>>,
    /// Number of steps in progress: lists, searches, openings and closings.
    steps: Cell<usize>,
    is_paused: Cell<bool>,
    /// Whether the graph has ended, so that the pause lasts.
    is_ended: Cell<bool>,
    waiting: Notify,
}

/// A device that holds volumes.
pub struct Holder {
    /// The node of the device.
    pub node: NodeId,
    /// The volumes of the device.
    pub volumes: Rc<dyn AnyVolumes>,
    /// The nodes of the device's lowers, to which its open volumes send their requests.
    pub lowers: Vec<NodeId>,
}

/// A name on which steps run.
struct Entry {
    name: String,
    /// The turn of the step that runs on the name.
    turn: Mutex,
    users: RefCell<Weak<OpenVolume>>,
    /// The handle of the graph itself, if a device or an export of the graph uses the volume.
    held: RefCell<Weak<HeldVolume>>,
    open: RefCell<Option<OpenNode>>,
    /// Wakes the task that closes the volume when its last user has dropped it.
    unused: Notify,
}

impl Entry {
    /// Marks the volume as left if it is open on the device `node`, and returns its node.
    fn leave(&self, node: NodeId) -> Option<OpenNode> {
        let mut open = self.open.borrow_mut();
        let open = open.as_mut().filter(|open| open.holder.node == node && !open.is_left)?;
        open.is_left = true;
        Some(open.clone())
    }
}

/// The node of an open volume.
#[derive(Clone)]
struct OpenNode {
    id: VolumeId,
    device: Rc<dyn AnyDevice>,
    holder: Rc<Holder>,
    node: NodeId,
    portal: Portal,
    /// Whether a live change has begun to close the volume and must open it again.
    is_left: bool,
}

/// An open volume. It stays open until its last handle is dropped.
pub struct OpenVolume {
    entry: Rc<Entry>,
    id: VolumeId,
    portal: Portal,
}

/// A step on volumes: while it exists, no pause begins.
struct Step<'s>(&'s Inner);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.steps.set(self.0.steps.get() - 1);
        self.0.waiting.wake();
    }
}

/// Guard that holds all steps on the volumes of a graph back until it is dropped, while a live change closes and opens
/// volumes itself. After the end of the graph it holds them back for ever ([`PausedVolumes::end`]).
pub struct PausedVolumes(VolumeSet);

impl Drop for PausedVolumes {
    fn drop(&mut self) {
        self.0.0.is_paused.set(self.0.0.is_ended.get());
        self.0.0.waiting.wake();
    }
}

impl OpenVolume {
    /// Returns the full name of the volume.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// Returns the identity of the volume.
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// Returns the portal that leads to the volume, also after live changes.
    pub fn portal(&self) -> &Portal {
        &self.portal
    }

    /// Returns the device of the volume, and the node of the device that holds it; `None` if a live change could not
    /// open the volume again.
    pub fn device(&self) -> Option<(Rc<dyn AnyDevice>, NodeId)> {
        let open = self.entry.open.borrow();
        let open = open.as_ref().filter(|open| !open.is_left)?;
        Some((open.device.clone(), open.holder.node))
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        self.entry.unused.wake();
    }
}

/// Returns the name of the device in the full name of a volume, with the slash behind it, and the volume's own name.
/// `None` if the name cannot be that of a volume.
fn split(name: &str) -> Option<(&str, &str)> {
    let (prefix, volume) = name.split_at(name.find('/')? + 1);
    (prefix.len() > 1 && (1..=VOLUME_NAME_MAX_BYTES).contains(&volume.len()))
        .then_some((prefix, volume))
}

impl VolumeSet {
    /// Creates a set for the devices of a graph with this engine. It has no devices yet.
    pub fn new(env: &Env, engine: &Engine) -> Self {
        Self(Rc::new(Inner {
            env: env.clone(),
            engine: engine.clone(),
            holders: RefCell::default(),
            entries: RefCell::default(),
            steps: Cell::new(0),
            is_paused: Cell::new(false),
            is_ended: Cell::new(false),
            waiting: Notify::default(),
        }))
    }

    /// Adds a device of the graph that holds volumes, or replaces the one of this name. Open volumes stay at their nodes.
    pub fn add_holder(&self, name: &str, holder: Holder) {
        self.0.holders.borrow_mut().insert(format!("{name}/"), Rc::new(holder));
    }

    /// Sets the devices of the graph that hold volumes, by name. Open volumes stay at their nodes.
    pub fn set_holders(&self, holders: impl IntoIterator<Item = (String, Holder)>) {
        let named = holders.into_iter().map(|(name, holder)| (name + "/", Rc::new(holder)));
        *self.0.holders.borrow_mut() = named.collect();
    }

    fn holder(&self, prefix: &str) -> Option<Rc<Holder>> {
        self.0.holders.borrow().get(prefix).cloned()
    }

    /// Lists up to `most` volumes with full names after `after`, in the order of their full names. Opens and creates
    /// nothing.
    ///
    /// # Errors
    /// As [`block::Volumes::list`].
    pub async fn list(&self, after: &str, most: usize) -> Result<Vec<VolumeEntry>> {
        let _step = self.step().await;
        let holders = self.0.holders.borrow().clone();
        let mut all = Vec::new();
        for (prefix, holder) in holders {
            // All names of a device follow each other.
            let after = match after.strip_prefix(&*prefix) {
                Some(volume) => volume,
                None if after < &*prefix => "",
                None => continue,
            };
            if all.len() >= most {
                break;
            }
            let page = holder.volumes.clone().list(after.to_owned(), most - all.len()).await;
            let page = page.map_err(|error| error.at(prefix.trim_end_matches('/')))?;
            let named = |entry: VolumeEntry| {
                let name = format!("{prefix}{}", entry.name);
                VolumeEntry { name, ..entry }
            };
            all.extend(page.into_iter().map(named));
        }
        Ok(all)
    }

    /// Returns the facts about the volume with the full name `name`; `None` if there is no such volume. Opens and
    /// creates nothing.
    ///
    /// # Errors
    /// As [`block::Volumes::look`].
    pub async fn look(&self, name: &str) -> Result<Option<VolumeFacts>> {
        let Some((prefix, volume)) = split(name) else { return Ok(None) };
        let _step = self.step().await;
        let Some(holder) = self.holder(prefix) else { return Ok(None) };
        let looked = holder.volumes.clone().look(volume.to_owned()).await;
        looked.map_err(|error| error.at(name))
    }

    /// Opens the volume with the full name `name`; returns `None` if there is no such volume. If the volume is open,
    /// returns another handle to it. The opening goes on if its future is dropped.
    ///
    /// # Errors
    /// As [`block::Volumes::open`]; `Limit` if the engine has no node for the volume; `InUse` if a device or an export
    /// of the graph may write to the volume.
    pub async fn open(&self, name: &str, mode: OpenMode) -> Result<Option<Rc<OpenVolume>>> {
        self.check_free(name)?;
        let opened = self.open_for_any(name, mode).await?;
        // The graph may have taken the volume while this opening waited.
        self.check_free(name)?;
        Ok(opened)
    }

    async fn open_for_any(&self, name: &str, mode: OpenMode) -> Result<Option<Rc<OpenVolume>>> {
        if let Some(known) = self.in_use(name) {
            return Ok(Some(known));
        }
        let opening = self.clone().open_to_end(name.to_owned(), mode);
        self.0.env.run_to_end("the opening of a volume", opening).await
    }

    /// Whether clients, devices or exports of the graph use the volume with the full name `name`.
    pub fn is_open(&self, name: &str) -> bool {
        self.in_use(name).is_some()
    }

    /// Returns a handle to the volume with the full name `name`, if the volume is open and in use.
    fn in_use(&self, name: &str) -> Option<Rc<OpenVolume>> {
        let entries = self.0.entries.borrow();
        entries.get(name)?.users.borrow().upgrade()
    }

    /// Returns the full names and the nodes of the open volumes, in the order of the names.
    pub fn open_nodes(&self) -> Vec<(String, NodeId)> {
        let entries = self.0.entries.borrow();
        let node = |entry: &Rc<Entry>| {
            let open = entry.open.borrow();
            let open = open.as_ref().filter(|open| !open.is_left)?;
            Some((entry.name.clone(), open.node))
        };
        entries.values().filter_map(node).collect()
    }

    /// Returns the names of the devices that hold volumes which clients use.
    pub fn used_holders(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (name, _) in self.open_nodes().into_iter().filter(|(name, _)| self.has_clients(name)) {
            let (prefix, _) = split(&name).expect("an open volume has a full name");
            let device = prefix.trim_end_matches('/');
            if names.last().is_none_or(|last| last != device) {
                names.push(device.to_owned());
            }
        }
        names
    }

    async fn step(&self) -> Step<'_> {
        self.0.waiting.until(|| !self.0.is_paused.get()).await;
        self.0.steps.set(self.0.steps.get() + 1);
        Step(&self.0)
    }

    fn entry(&self, name: &str) -> Rc<Entry> {
        let mut entries = self.0.entries.borrow_mut();
        let new = || {
            Rc::new(Entry {
                name: name.to_owned(),
                turn: Mutex::new(),
                users: RefCell::default(),
                held: RefCell::default(),
                open: RefCell::default(),
                unused: Notify::default(),
            })
        };
        entries.entry(name.to_owned()).or_insert_with(new).clone()
    }

    /// Removes the entry of a name that is not open, unless another step waits for its turn.
    fn retire(&self, entry: &Entry) {
        if entry.open.borrow().is_none() && entry.turn.wanted() == 0 {
            self.0.entries.borrow_mut().remove(&entry.name);
        }
    }

    async fn open_to_end(self, name: String, mode: OpenMode) -> Result<Option<Rc<OpenVolume>>> {
        let Some((prefix, volume)) = split(&name) else { return Ok(None) };
        let _step = self.step().await;
        let Some(holder) = self.holder(prefix) else { return Ok(None) };
        let entry = self.entry(&name);
        let turn = match seeded::on(Bug::OpensUnordered) {
            true => None,
            false => Some(entry.turn.lock().await),
        };
        let opened = self.open_in_turn(&entry, &holder, volume, mode).await;
        drop(turn);
        self.retire(&entry);
        opened.map_err(|error| error.at(&name))
    }

    async fn open_in_turn(
        &self,
        entry: &Rc<Entry>,
        holder: &Rc<Holder>,
        volume: &str,
        mode: OpenMode,
    ) -> Result<Option<Rc<OpenVolume>>> {
        if let Some(known) = entry.users.borrow().upgrade() {
            return Ok(Some(known));
        }
        // A volume without users stays open until its task has the turn.
        let is_open = entry.open.borrow().is_some();
        if !is_open {
            let opened = holder.volumes.clone().open(volume.to_owned(), mode).await?;
            let Some(opened) = opened else { return Ok(None) };
            let open = self.add(&entry.name, holder, opened).await?;
            *entry.open.borrow_mut() = Some(open);
            self.0.env.spawn("an open volume", self.clone().close_unused(entry.clone()));
        }
        let (id, portal) = {
            let open = entry.open.borrow();
            let open = open.as_ref().expect("the volume was opened");
            (open.id, open.portal.clone())
        };
        let user = Rc::new(OpenVolume { entry: entry.clone(), id, portal });
        *entry.users.borrow_mut() = Rc::downgrade(&user);
        Ok(Some(user))
    }

    /// Adds the node and the portal of a volume that its device has opened. After an error the volume is closed.
    async fn add(&self, name: &str, holder: &Rc<Holder>, opened: Opened) -> Result<OpenNode> {
        let Opened { id, device, needs } = opened;
        match self.0.engine.add_device(name, device.clone(), needs, &holder.lowers) {
            Ok(node) => {
                let (portal, holder) = (self.0.engine.portal(name, node), holder.clone());
                Ok(OpenNode { id, device, holder, node, portal, is_left: false })
            }
            Err(error) => {
                device.close().await;
                holder.volumes.clone().close(id).await;
                Err(error)
            }
        }
    }

    /// Closes a volume when it has no user any more.
    async fn close_unused(self, entry: Rc<Entry>) {
        loop {
            entry.unused.until(|| entry.users.borrow().strong_count() == 0).await;
            let _step = self.step().await;
            let turn = entry.turn.lock().await;
            if entry.users.borrow().strong_count() > 0 {
                continue;
            }
            let open = entry.open.take();
            if let Some(open) = open.filter(|open| !open.is_left) {
                self.close(&open).await;
            }
            drop(turn);
            return self.retire(&entry);
        }
    }

    /// Closes an open volume, and removes its node from the engine.
    async fn close(&self, open: &OpenNode) {
        open.device.close().await;
        open.holder.volumes.clone().close(open.id).await;
        self.0.engine.close(open.node);
        self.0.engine.forget(open.node);
    }

    /// Waits until no step on a volume is in progress, and holds further steps back until the returned guard is
    /// dropped.
    ///
    /// # Panics
    /// If the steps are paused already.
    pub async fn pause(&self) -> PausedVolumes {
        assert!(!self.0.is_paused.replace(true), "one live change pauses volumes at a time");
        let paused = PausedVolumes(self.clone());
        self.0.waiting.until(|| self.0.steps.get() == 0).await;
        paused
    }
}

impl PausedVolumes {
    /// Closes the open volumes of the device `node`, which is about to be closed. They can be opened again on another
    /// device of its name ([`PausedVolumes::rejoin`]). If the future is dropped, some of them stay open, and a closing
    /// that has begun goes on.
    pub async fn leave(&self, node: NodeId) {
        for entry in self.entries() {
            let Some(open) = entry.leave(node) else { continue };
            let volumes = self.0.clone();
            let closing = async move { volumes.close(&open).await };
            self.0.0.env.run_to_end("the closing of a volume", closing).await;
        }
    }

    /// Ends the set: all steps are held back for ever.
    pub fn end(self) {
        self.0.0.is_ended.set(true);
    }

    /// Opens the volumes that were closed with their device on the present devices of their names, and leads their
    /// portals there.
    ///
    /// # Errors
    /// The first error. The other volumes are opened all the same.
    pub async fn rejoin(&self) -> Result<()> {
        let mut result = Ok(());
        for entry in self.entries() {
            let left = entry.open.borrow().clone().filter(|open| open.is_left);
            let Some(left) = left else { continue };
            match self.0.reopen(&entry, &left).await {
                Ok(open) => *entry.open.borrow_mut() = Some(open),
                Err(error) => result = result.and(Err(error.at(&entry.name))),
            }
        }
        result
    }

    /// Makes the portals of the volumes that could not be opened again refuse further requests with `error`.
    pub fn close_portals(&self, error: &Error) {
        for entry in self.entries() {
            if let Some(open) = entry.open.borrow().as_ref().filter(|open| open.is_left) {
                open.portal.close(error.clone());
            }
        }
    }

    fn entries(&self) -> Vec<Rc<Entry>> {
        self.0.0.entries.borrow().values().cloned().collect()
    }
}

impl VolumeSet {
    /// Opens a volume that was closed with its device on the present device of the same name, and leads its portal
    /// there.
    async fn reopen(&self, entry: &Entry, left: &OpenNode) -> Result<OpenNode> {
        let (prefix, volume) = split(&entry.name).expect("an open volume has a full name");
        let Some(holder) = self.holder(prefix) else {
            bail!(NotFound, "the graph has no device {}", prefix.trim_end_matches('/'));
        };
        let opened = holder.volumes.clone().open(volume.to_owned(), OpenMode::Existing).await?;
        let Some(opened) = opened else {
            bail!(NotFound, "the changed device has no such volume");
        };
        let before = left.portal.info();
        let open = self.add(&entry.name, &holder, opened).await?;
        let after = self.0.engine.info(open.node);
        if open.id != left.id || after.size < before.size || after.block_size > before.block_size {
            self.close(&open).await;
            return Err(error!(
                Unsupported,
                "the changed device shows another volume, or one of {} bytes in blocks of {}, not {} \
                 in blocks of {}",
                after.size,
                after.block_size,
                before.size,
                before.block_size
            ));
        }
        left.portal.lead(&self.0.engine, open.node);
        Ok(OpenNode { portal: left.portal.clone(), ..open })
    }
}
