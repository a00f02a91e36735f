//! Small persistent state of a device, kept in the labels of the disks beneath it.

use std::rc::Rc;

use crate::env::LocalFuture;
use crate::{Deadline, Error, ErrorKind, Handover, Result};

/// Most bytes of the state that one device may keep in labels.
pub const STATE_BYTES_MAX: usize = 4096;

/// Callback for a failed write of a device's state: the port beneath which a disk failed, and the error.
pub type OnFailure = Rc<dyn Fn(usize, &Error)>;

/// The state of a device on the labelled disks beneath it, as the device sees it. Its ports are the device's lowers,
/// in order. The framework knows which labels lie beneath which port, numbers the writes, and returns the newest
/// state.
///
/// No method has a default: an implementation between a device and its labels must pass on all of them.
pub trait StateStore {
    /// Returns the state of the device that was found beneath `port` when the graph was opened. It does not change
    /// afterwards.
    fn found(&self, port: usize) -> &Found;

    /// Whether the operator permits a device to open without all of its needed parts (`--degraded`).
    fn may_degrade(&self) -> bool;

    /// Returns the state that the device's predecessor handed over ([`crate::Device::close`]): `None` if there was no
    /// predecessor, or it handed over nothing.
    fn handed_over(&self) -> Handover;

    /// Waits until the change that creates the device is committed; a start commits at once. A change may be undone,
    /// and a mirror below that it creates cannot durably mark dirty regions yet. So a device must not write below
    /// before the commit.
    fn committed(&self) -> LocalFuture<()>;

    /// Whether the change that creates the device is committed already. Before the commit, written states reach the
    /// disks only together with the change, so no device may rely on them.
    fn is_committed(&self) -> bool;

    /// Sets a callback that is called at once when a state write beneath a port fails; the result of [`Self::write`]
    /// comes only when all ports have one. A disk with a failed flush may already show older bytes. A disk that is not
    /// written by the `deadline` counts as failed too: `TimedOut`. Its write may still arrive, but before any later
    /// one.
    fn on_failure(&self, deadline: Deadline, told: OnFailure);

    /// Writes `state` into the label of every present disk beneath `ports`, and flushes it. `Ok` for a port means
    /// that each of its disks has the state durably, and will show it as newer than all states that were there
    /// before. Only one write runs at a time for each device; a second one waits.
    ///
    /// The results come in the order of the ports. `Unsupported` where a disk beneath has no label, or none is
    /// present; otherwise the error of the first disk that failed. A port that failed may have either state.
    ///
    /// # Panics
    /// If `state` is longer than [`STATE_BYTES_MAX`].
    fn write(&self, ports: &[usize], state: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>>;
}

/// Labels of the disks beneath a port of a device, as found when the graph was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Whether every disk beneath the port has a label: otherwise no state can be kept there.
    pub labelled: bool,
    /// Whether every disk beneath the port is present. A missing disk only returns errors.
    pub present: bool,
    /// Whether no disk beneath the port has served data yet: this start labelled it, or an earlier start that was
    /// interrupted.
    pub fresh: bool,
    /// Whether every disk beneath the port was closed in order: all acknowledged writes had been flushed.
    pub clean: bool,
    /// Newest state of the device on the disks beneath the port, if any has one.
    pub state: Option<StoredState>,
    /// Whether every present disk beneath the port has the newest state of the device. A disk that was absent during
    /// the write, or was labelled since, does not have it.
    pub everywhere: bool,
    /// Oldest state of the device on the present disks beneath the port; `None` if one of them has no state.
    pub oldest: Option<StoredState>,
}

/// A state that a device wrote into labels earlier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredState {
    /// Number of the state among the device's writes to the same disks; a later write has a larger number.
    pub sequence: u64,
    /// Encoded state of the device.
    pub bytes: Vec<u8>,
}

/// The state store of a device on disks without labels: it keeps no state.
pub struct NoStateStore {
    found: Found,
    /// State that the device's predecessor handed over.
    pub handover: Handover,
}

impl NoStateStore {
    /// Creates a store over disks that have all been created by this start (`fresh`), or not.
    pub fn new(fresh: bool) -> Self {
        Self { found: Found { present: true, fresh, ..Found::default() }, handover: None }
    }
}

impl StateStore for NoStateStore {
    fn found(&self, _: usize) -> &Found {
        &self.found
    }

    fn may_degrade(&self) -> bool {
        false
    }

    fn handed_over(&self) -> Handover {
        self.handover.clone()
    }

    fn committed(&self) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn is_committed(&self) -> bool {
        true
    }

    fn on_failure(&self, _: Deadline, _: OnFailure) {}

    fn write(&self, ports: &[usize], _: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>> {
        let unlabelled = || {
            Error::new(
                ErrorKind::Unsupported,
                "the disks of the device have no label for its state",
            )
        };
        let answers = ports.iter().map(|port| (*port, Err(unlabelled()))).collect();
        Box::pin(std::future::ready(answers))
    }
}
