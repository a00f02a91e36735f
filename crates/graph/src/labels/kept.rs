//! The store of a device's state, in the labels of the disks beneath each port of the device.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::env::LocalFuture;
use block::{
    Deadline, Error, ErrorKind, Found, Handover, Mutex, OnFailure, Result, STATE_BYTES_MAX,
    StateStore, StoredState, bail, error,
};

pub(super) use block::all;

use super::slot::Slot;

/// A disk beneath a port of a stateful device, and its label.
#[derive(Clone, Default)]
pub struct DiskLabel {
    /// Label of the disk for writing; `None` if the disk has no label, is absent, or is read-only.
    pub slot: Option<Rc<Slot>>,
    /// Whether the disk has a label, even if the disk is absent.
    pub labelled: bool,
    /// Whether the disk was found and is open.
    pub present: bool,
    /// Whether the disk got its first label from this start and is still being provisioned.
    pub fresh: bool,
    /// Whether the disk was closed in order before this start.
    pub clean: bool,
}

struct Port {
    found: Found,
    /// Labels of the present disks beneath the port; `None` for a disk without a writable label.
    slots: Vec<Option<Rc<Slot>>>,
}

/// The store of the state of one device, in the labels of the disks beneath the device ([`StateStore`]).
pub struct LabelStateStore {
    device: String,
    permits: Permits,
    ports: Vec<Port>,
    handover: Handover,
    turn: Mutex,
    sequence: Rc<Cell<u64>>,
    on_failure: RefCell<Option<(Deadline, OnFailure)>>,
}

/// Permissions of the operator for the devices of a graph, for one start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Permits {
    /// To open while needed lowers are missing.
    pub degraded: bool,
    /// To go on without data that was durable and is missing.
    pub loss: bool,
}

impl LabelStateStore {
    /// Returns the store for the state of `device` in the labels of the disks beneath its ports. If the device is new
    /// in the graph, ignores older cells with its name: they come from a change that was not completed.
    pub fn new(
        device: &str,
        is_new: bool,
        permits: Permits,
        ports: Vec<Vec<DiskLabel>>,
        handover: Handover,
    ) -> Self {
        let mut ports: Vec<_> = ports.into_iter().map(|disks| port(device, &disks)).collect();
        let newest = ports.iter().filter_map(|port| port.found.state.as_ref());
        let newest = newest.map(|state| state.sequence).max().unwrap_or(0);
        for Port { found, .. } in ports.iter_mut().filter(|_| is_new) {
            (found.state, found.oldest, found.everywhere) = (None, None, false);
        }
        Self {
            device: device.to_owned(),
            permits,
            ports,
            handover,
            turn: Mutex::new(),
            sequence: Rc::new(Cell::new(newest)),
            on_failure: RefCell::default(),
        }
    }

    /// Makes a port count as absent, because a device beneath it did not open, with this error.
    pub fn close(&mut self, port: usize, error: Error) {
        let found = &mut self.ports[port].found;
        (found.present, found.closed) = (false, Some(error));
    }

    /// Forgets the states beneath a port: a device beneath it was made anew, over bytes that do not count.
    pub fn forget(&mut self, port: usize) {
        let found = &mut self.ports[port].found;
        (found.state, found.oldest, found.everywhere) = (None, None, false);
    }

    /// Permits the device to go on without data that was durable and is missing.
    pub fn accept_loss(&mut self) {
        self.permits.loss = true;
    }
}

fn port(device: &str, disks: &[DiskLabel]) -> Port {
    let here = disks.iter().filter(|disk| disk.present);
    let slots: Vec<_> = here.map(|disk| disk.slot.clone()).collect();
    let states =
        slots.iter().map(|slot| slot.as_ref().and_then(|slot| slot.state(device))).collect();
    Port { found: found(disks, states), slots }
}

/// Summarizes the disks beneath one port of a device, and the states of the device in their labels. `states` has one
/// element for each present disk, in the same order.
pub(super) fn found(disks: &[DiskLabel], states: Vec<Option<StoredState>>) -> Found {
    let newest = states.iter().flatten().max_by_key(|state| state.sequence).cloned();
    let all: Option<Vec<_>> = states.iter().map(Option::as_ref).collect();
    let oldest = all.and_then(|all| all.into_iter().min_by_key(|state| state.sequence)).cloned();
    // States are compared by their bytes, not by their sequence numbers. A write that reached only some disks leaves
    // equal bytes with different numbers, and those need not be rewritten.
    let is_newest = |state: &Option<StoredState>| {
        state.as_ref().map(|state| &state.bytes) == newest.as_ref().map(|state| &state.bytes)
    };
    Found {
        labelled: disks.iter().all(|disk| disk.labelled),
        present: disks.iter().all(|disk| disk.present),
        fresh: disks.iter().all(|disk| disk.fresh),
        clean: disks.iter().all(|disk| disk.clean),
        everywhere: newest.is_some() && states.iter().all(is_newest),
        state: newest,
        oldest,
        closed: None,
    }
}

impl StateStore for LabelStateStore {
    fn found(&self, port: usize) -> &Found {
        &self.ports[port].found
    }

    fn may_degrade(&self) -> bool {
        self.permits.degraded
    }

    fn accepts_loss(&self) -> bool {
        self.permits.loss
    }

    fn handed_over(&self) -> Handover {
        self.handover.clone()
    }

    fn committed(&self) -> LocalFuture<()> {
        // The future does not keep the labels alive, so waiting for a change that fails keeps none of its disks open.
        let slots = self.ports.iter().flat_map(|port| port.slots.iter().flatten());
        let slots: Vec<_> = slots.map(|slot| slot.released()).collect();
        Box::pin(async move {
            for released in slots {
                released.await;
            }
        })
    }

    fn is_committed(&self) -> bool {
        let mut slots = self.ports.iter().flat_map(|port| port.slots.iter().flatten());
        !slots.any(|slot| slot.is_held())
    }

    fn on_failure(&self, deadline: Deadline, on_failure: OnFailure) {
        *self.on_failure.borrow_mut() = Some((deadline, on_failure));
    }

    fn write(&self, ports: &[usize], state: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>> {
        assert!(
            state.len() <= STATE_BYTES_MAX,
            "{}: the state of the device is too long for a label",
            self.device
        );
        let beneath: Vec<_> =
            ports.iter().map(|port| (*port, self.ports[*port].slots.clone())).collect();
        let (device, turn, sequence) =
            (self.device.clone(), self.turn.clone(), self.sequence.clone());
        let on_failure = self.on_failure.borrow().clone();
        Box::pin(async move {
            let _alone = turn.lock().await;
            sequence.set(sequence.get() + 1);
            let cell = meta::Cell { sequence: sequence.get(), bytes: state };
            // A disk beneath two ports is written only once.
            let mut disks: Vec<Rc<Slot>> = Vec::new();
            for slot in beneath.iter().flat_map(|(_, slots)| slots.iter().flatten()) {
                if number_of(slot, &disks).is_none() {
                    disks.push(slot.clone());
                }
            }
            let writes = disks.iter().map(|disk| {
                let is_on = |slot: &Rc<Slot>| Rc::ptr_eq(slot, disk);
                let above = beneath.iter().filter(|(_, slots)| slots.iter().flatten().any(is_on));
                let ports = above.map(|(port, _)| *port).collect();
                reporting(put(disk.clone(), &device, &cell), ports, on_failure.clone())
            });
            let answers = all(writes.collect()).await;
            let answer = |slots: &[Option<Rc<Slot>>]| {
                if slots.is_empty() {
                    bail!(Unsupported, "no disk is present below the device to store its state");
                }
                slots.iter().try_for_each(|slot| match slot {
                    Some(slot) => answers
                        [number_of(slot, &disks).expect("every present disk was written")]
                    .clone(),
                    None => Err(error!(Unsupported, "a disk below the device has no label")),
                })
            };
            beneath.iter().map(|(port, slots)| (*port, answer(slots))).collect()
        })
    }
}

fn number_of(slot: &Rc<Slot>, disks: &[Rc<Slot>]) -> Option<usize> {
    disks.iter().position(|disk| Rc::ptr_eq(disk, slot))
}

/// Returns the result of a label write. If the write fails or is late, first calls the failure handler for each port
/// above the disk.
fn reporting(
    write: LocalFuture<Result<()>>,
    ports: Vec<usize>,
    on_failure: Option<(Deadline, OnFailure)>,
) -> LocalFuture<Result<()>> {
    let Some((deadline, on_failure)) = on_failure else { return write };
    Box::pin(async move {
        // The lock of the label's store keeps a late write in order with the next one.
        let written = deadline.guard(write).await.unwrap_or_else(|_| {
            let words = format!("the disk did not write the label within {:?}", deadline.limit());
            Err(Error::new(ErrorKind::TimedOut, words))
        });
        if let Err(error) = &written {
            ports.into_iter().for_each(|port| on_failure(port, error));
        }
        written
    })
}

fn put(slot: Rc<Slot>, device: &str, cell: &meta::Cell) -> LocalFuture<Result<()>> {
    let (device, cell) = (device.to_owned(), cell.clone());
    Box::pin(async move { slot.keep(device, cell).await })
}
