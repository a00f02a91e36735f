//! Simulated labels in memory, in which the devices under test store their states. Their writes take time, fail and
//! reach disks in any order, as those of real labels.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use block::env::LocalFuture;
use block::{
    Deadline, Env, Error, ErrorKind, Found, Handover, Mutex, Notify, OnFailure, Result,
    STATE_BYTES_MAX, StateStore, StoredState,
};
use sim::draw::Stream;
use sim::{BeforePlan, Labels, PartId};

use crate::strict::Watch;

/// Longest virtual time that a write of a label takes, in nanoseconds: longer than requests take, so that the tests
/// find a device that does not wait for the write.
const WRITE_NS_MAX: u64 = 8_000_000;

/// Simulated labels of several disks. They outlive the devices under test, and each start of a device reads them.
pub struct Shelf {
    /// For each disk, the stored state of each device, by the name of the device.
    disks: RefCell<BTreeMap<PartId, BTreeMap<String, StoredState>>>,
    /// Names of the devices that were started before. For other devices the disks are new.
    known: RefCell<BTreeSet<String>>,
    clean: Cell<bool>,
    writes: Cell<u64>,
    fails: Cell<bool>,
    dead: Cell<Option<PartId>>,
    held: Cell<bool>,
    /// Number of writes to single labels after which all others wait for ever; `None` for no limit.
    left: Cell<Option<u64>>,
    /// Whether devices are planned with what the labels have.
    precedes_plans: Cell<bool>,
    waiting: Notify,
    /// The effects of a live change that is not committed; `None` outside a change.
    unsure: RefCell<Option<Unsure>>,
    sure: Notify,
    env: Env,
    draw: Stream,
    /// For each disk, the controls that decide whether a write of its label fails, as they do for requests.
    watches: Vec<Rc<Watch>>,
}

/// The effects of a live change on labels. They are held back until the change is committed.
#[derive(Default)]
struct Unsure {
    states: Vec<(PartId, String, StoredState)>,
    /// Names of devices that the change has started for the first time.
    started: Vec<String>,
}

/// A copy of all states on all disks.
pub struct States(BTreeMap<PartId, BTreeMap<String, StoredState>>);

impl Shelf {
    /// Creates labels without states on new disks. A write of a state takes virtual time, and reaches the disks in any
    /// order. The watch of each disk counts the write as a request, and may make it fail; then the disk may have the
    /// old or the new state.
    pub fn strict(env: &Env, draw: Stream, watches: Vec<Rc<Watch>>) -> Rc<Self> {
        Rc::new(Self {
            disks: RefCell::default(),
            known: RefCell::default(),
            clean: Cell::default(),
            writes: Cell::default(),
            fails: Cell::default(),
            dead: Cell::default(),
            held: Cell::default(),
            left: Cell::default(),
            precedes_plans: Cell::default(),
            waiting: Notify::default(),
            unsure: RefCell::default(),
            sure: Notify::default(),
            env: env.clone(),
            draw,
            watches,
        })
    }

    /// Sets whether the next start finds the disks as closed in order, with all acknowledged writes flushed.
    pub fn close(&self, clean: bool) {
        self.clean.set(clean);
    }

    /// Returns the state of the first device on the first disk, as bytes; `None` if no state is stored.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let disks = self.disks.borrow();
        let (_, state) = disks.first_key_value()?.1.first_key_value()?;
        (state.sequence > 0).then(|| state.bytes.clone())
    }

    /// Replaces the stored states of all devices on all disks with `bytes`; `None` removes the states.
    pub fn put(&self, bytes: Option<Vec<u8>>) {
        for cells in self.disks.borrow_mut().values_mut() {
            for cell in cells.values_mut() {
                // The sequence 0 means that there is no state.
                cell.sequence = u64::from(bytes.is_some());
                cell.bytes = bytes.clone().unwrap_or_default();
            }
        }
    }

    /// Sets whether all later writes of states fail on every disk.
    pub fn fail(&self, fails: bool) {
        self.fails.set(fails);
    }

    /// Sets the disk on which all later writes of states fail; `None` for no disk.
    pub fn dead(&self, disk: Option<PartId>) {
        self.dead.set(disk);
    }

    /// Sets whether writes of states wait. `false` lets waiting writes continue.
    pub fn hold(&self, held: bool) {
        self.held.set(held);
        self.waiting.wake();
    }

    /// Makes all writes wait for ever after this number of writes to single labels, as if the process had died; `None` for no
    /// limit.
    pub fn stop_after(&self, writes: Option<u64>) {
        self.left.set(writes);
    }

    /// Begins a live change: the devices are uncommitted, and all later writes of states are held back.
    pub fn hold_back(&self) {
        self.unsure.replace(Some(Unsure::default()));
    }

    /// Commits the live change: carries out the writes of states that were held back.
    pub fn release(&self) {
        let Unsure { states, started } = self.unsure.take().unwrap_or_default();
        states.iter().for_each(|(disk, device, state)| self.place(*disk, device, state));
        self.known.borrow_mut().extend(started);
        self.sure.wake();
    }

    /// Undoes the live change: drops the writes of states that were held back. The disks stay new for a device that the
    /// change started for the first time.
    pub fn take_back(&self) {
        self.unsure.take();
    }

    /// Makes the plans of devices get the states in the labels, and whether the disks are new, as those of a graph do.
    pub fn precede_plans(&self) {
        self.precedes_plans.set(true);
    }

    /// Returns a copy of the states of all devices on all disks.
    pub fn states(&self) -> States {
        States(self.disks.borrow().clone())
    }

    /// Replaces the states of all devices on all disks by an earlier copy.
    pub fn restore(&self, states: States) {
        self.disks.replace(states.0);
    }

    /// Replaces the states of all devices on the disk `disk` by those of an earlier copy.
    pub fn restore_on(&self, disk: PartId, states: &States) {
        let before = states.0.get(&disk).cloned().unwrap_or_default();
        self.disks.borrow_mut().insert(disk, before);
    }

    /// Removes all states from the labels. With `fresh`, the disks are new for every device; otherwise they count as
    /// used.
    pub fn forget(&self, fresh: bool) {
        self.disks.borrow_mut().clear();
        if fresh {
            self.known.borrow_mut().clear();
        }
    }

    /// Removes the states of all devices from one disk, as a blank disk in its place has none.
    pub fn blank(&self, disk: PartId) {
        self.disks.borrow_mut().remove(&disk);
    }

    /// Returns the number of writes of states so far. A write to several disks counts as one.
    pub fn writes(&self) -> u64 {
        self.writes.get()
    }

    fn found(&self, device: &str, beneath: &BTreeSet<PartId>, fresh: bool) -> Found {
        let disks = self.disks.borrow();
        let state = |disk| disks.get(disk)?.get(device).filter(|cell| cell.sequence > 0).cloned();
        let states: Vec<Option<StoredState>> = beneath.iter().map(state).collect();
        let newest = states.iter().flatten().max_by_key(|state| state.sequence).cloned();
        let all: Option<Vec<_>> = states.iter().map(Option::as_ref).collect();
        let oldest = all.and_then(|all| all.into_iter().min_by_key(|state| state.sequence));
        Found {
            labelled: true,
            present: true,
            fresh,
            clean: self.clean.get(),
            everywhere: newest.is_some() && states.iter().all(|state| *state == newest),
            oldest: oldest.cloned(),
            state: newest,
            closed: None,
        }
    }

    fn place(&self, disk: PartId, device: &str, state: &StoredState) {
        let mut disks = self.disks.borrow_mut();
        disks.entry(disk).or_default().insert(device.to_owned(), state.clone());
    }

    /// Returns the disks in the random order in which a write of a state reaches them.
    fn order(&self, disks: BTreeSet<PartId>) -> Vec<PartId> {
        let mut disks: Vec<_> = disks.into_iter().collect();
        disks.sort_by_cached_key(|_| self.draw.next());
        disks
    }

    async fn write(&self, disk: PartId, device: &str, state: &StoredState) -> Result<()> {
        match self.left.get() {
            Some(0) => std::future::pending().await,
            Some(left) => self.left.set(Some(left - 1)),
            None => {}
        }
        let failed = || Error::new(ErrorKind::Io, "the label cannot be written");
        if self.fails.get() || self.dead.get() == Some(disk) {
            return Err(failed());
        }
        if let Some(held) = &mut *self.unsure.borrow_mut() {
            held.states.push((disk, device.to_owned(), state.clone()));
            return Ok(());
        }
        let fails = self.watches.get(disk).is_some_and(|watch| watch.strikes());
        // If the process dies during the sleep, the disk may have the state or not.
        if self.draw.below(2) == 0 {
            self.place(disk, device, state);
        }
        self.env.sleep(Duration::from_nanos(self.draw.below(WRITE_NS_MAX))).await;
        if fails {
            return Err(failed());
        }
        self.place(disk, device, state);
        Ok(())
    }
}

impl Labels for Shelf {
    fn before_plan(&self, device: &str, beneath: &[BTreeSet<PartId>]) -> Vec<BeforePlan> {
        if !self.precedes_plans.get() {
            return vec![(false, None); beneath.len()];
        }
        let fresh = !self.known.borrow().contains(device);
        let found = beneath.iter().map(|disks| self.found(device, disks, fresh));
        found.map(|found| (found.fresh, found.state)).collect()
    }

    fn kept(self: Rc<Self>, device: &str, beneath: &[BTreeSet<PartId>]) -> Rc<dyn StateStore> {
        let fresh = !self.known.borrow().contains(device);
        match &mut *self.unsure.borrow_mut() {
            Some(unsure) => unsure.started.push(device.to_owned()),
            None => drop(self.known.borrow_mut().insert(device.to_owned())),
        }
        let found: Vec<_> = beneath.iter().map(|disks| self.found(device, disks, fresh)).collect();
        let newest = found.iter().filter_map(|found| Some(found.state.as_ref()?.sequence)).max();
        let sequence = Rc::new(Cell::new(newest.unwrap_or(0)));
        let (device, beneath) = (device.to_owned(), beneath.to_vec());
        let (turn, on_failure) = (Mutex::new(), RefCell::default());
        Rc::new(Look { shelf: self, device, beneath, found, sequence, turn, on_failure })
    }
}

/// The store for the state of one device, with the states that the device has found at its start.
struct Look {
    shelf: Rc<Shelf>,
    device: String,
    beneath: Vec<BTreeSet<PartId>>,
    found: Vec<Found>,
    sequence: Rc<Cell<u64>>,
    turn: Mutex,
    on_failure: RefCell<Option<OnFailure>>,
}

impl StateStore for Look {
    fn found(&self, port: usize) -> &Found {
        &self.found[port]
    }

    fn may_degrade(&self) -> bool {
        false
    }

    fn accepts_loss(&self) -> bool {
        false
    }

    fn handed_over(&self) -> Handover {
        None
    }

    fn committed(&self) -> LocalFuture<()> {
        let shelf = self.shelf.clone();
        Box::pin(async move { shelf.sure.until(|| shelf.unsure.borrow().is_none()).await })
    }

    fn is_committed(&self) -> bool {
        self.shelf.unsure.borrow().is_none()
    }

    fn on_failure(&self, _: Deadline, told: OnFailure) {
        *self.on_failure.borrow_mut() = Some(told);
    }

    fn write(&self, ports: &[usize], bytes: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>> {
        assert!(
            bytes.len() <= STATE_BYTES_MAX,
            "the state of {} bytes is longer than the limit",
            bytes.len()
        );
        let (shelf, device) = (self.shelf.clone(), self.device.clone());
        let (turn, sequence) = (self.turn.clone(), self.sequence.clone());
        let told = self.on_failure.borrow().clone();
        let ports: Vec<_> = ports.iter().map(|port| (*port, self.beneath[*port].clone())).collect();
        Box::pin(async move {
            let _alone = turn.lock().await;
            shelf.waiting.until(|| !shelf.held.get()).await;
            shelf.writes.set(shelf.writes.get() + 1);
            sequence.set(sequence.get() + 1);
            let state = StoredState { sequence: sequence.get(), bytes };
            let disks = ports.iter().flat_map(|(_, disks)| disks.iter().copied()).collect();
            let mut answers = BTreeMap::new();
            for disk in shelf.order(disks) {
                let written = shelf.write(disk, &device, &state).await;
                if let (Err(error), Some(told)) = (&written, &told) {
                    let beneath = ports.iter().filter(|(_, disks)| disks.contains(&disk));
                    beneath.for_each(|(port, _)| told(*port, error));
                }
                answers.insert(disk, written);
            }
            let answer =
                |disks: &BTreeSet<PartId>| disks.iter().try_for_each(|disk| answers[disk].clone());
            ports.iter().map(|(port, disks)| (*port, answer(disks))).collect()
        })
    }
}
