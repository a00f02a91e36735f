//! Small persistent state of a device, stored in the labels of the disks beneath the device.

use std::rc::Rc;

use crate::env::LocalFuture;
use crate::{Deadline, Error, Handover, Result, error};

/// Largest state that one device may store in labels, in bytes.
pub const STATE_BYTES_MAX: usize = 4096;

/// Callback for a failed write of a device's state: its arguments are the port beneath which a disk failed, and the
/// error.
pub type OnFailure = Rc<dyn Fn(usize, &Error)>;

/// The storage for the state of one device, in the labels of the disks beneath the device. Its ports are the numbers
/// of the device's lowers. The graph knows which labels lie beneath which port, numbers the writes of the state, and
/// returns the newest state.
///
/// No method has a default, so that a wrapper between a device and its labels must pass on all methods.
pub trait StateStore {
    /// Returns the labels of the disks beneath `port`, as they were found when the graph was opened, with the newest
    /// state of the device in them. Later writes do not change the result.
    fn found(&self, port: usize) -> &Found;

    /// Whether the operator permits a device to open while needed lowers are missing (`--degraded`).
    fn may_degrade(&self) -> bool;

    /// Whether the operator permits a device to go on without data that was durable and is missing (`--accept-loss`).
    fn accepts_loss(&self) -> bool;

    /// Returns the state that the previous device of the same name handed over when it was closed
    /// ([`crate::Device::close`]); `None` if there was no such device, or it handed over no state.
    fn handed_over(&self) -> Handover;

    /// Waits until the live change that creates the device is committed; at a start of the graph there is nothing to
    /// wait for. Before the commit the change may be undone, and a mirror below that the same change creates cannot
    /// mark dirty regions durably yet. So a device must not write to its lowers before the commit.
    fn committed(&self) -> LocalFuture<()>;

    /// Whether the live change that creates the device is committed. Before the commit, written states reach the
    /// disks only together with the change, so the device may not rely on them.
    fn is_committed(&self) -> bool;

    /// Sets a callback for failed writes of the state. The callback is called as soon as the write beneath a port
    /// fails; the result of [`Self::write`] comes only when all ports have a result. A disk with a failed flush may
    /// already show older bytes. A disk that is not written by the `deadline` has failed too: `TimedOut`. The late
    /// write may still reach the disk, but before any later write.
    fn on_failure(&self, deadline: Deadline, told: OnFailure);

    /// Writes `state` into the label of every present disk beneath `ports`, and flushes the labels. `Ok` for a port
    /// means that each of these disks has the state durably, as the newest state of the device. Only one write of a
    /// device runs at a time; a second write waits.
    ///
    /// The results are in the order of the ports. A port fails with `Unsupported` if a disk beneath it has no label,
    /// or if no disk beneath it is present; otherwise with the error of the first disk that failed. The disks of a
    /// failed port may have the old or the new state.
    ///
    /// # Panics
    /// If `state` is longer than [`STATE_BYTES_MAX`].
    fn write(&self, ports: &[usize], state: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>>;
}

/// The labels of the disks beneath a port of a device, as they were found when the graph was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Whether every disk beneath the port has a label. If not, no state can be stored beneath the port.
    pub labelled: bool,
    /// Whether every disk beneath the port is present. A missing disk returns only errors.
    pub present: bool,
    /// Whether no disk beneath the port has served data yet: its label was written by this start, or by an earlier
    /// start that was interrupted.
    pub fresh: bool,
    /// Whether every disk beneath the port was closed in order, with all acknowledged writes flushed.
    pub clean: bool,
    /// Newest state of the device on the disks beneath the port; `None` if no disk has a state.
    pub state: Option<StoredState>,
    /// Whether every present disk beneath the port has the newest state of the device. A disk that was absent when
    /// the state was written, or that got its label later, does not have the newest state.
    pub everywhere: bool,
    /// Oldest state of the device on the present disks beneath the port; `None` if a present disk has no state.
    pub oldest: Option<StoredState>,
    /// The error for which a device beneath the port did not open, although the devices above go on without it. The
    /// port counts as absent.
    pub closed: Option<Error>,
}

/// A state that a device wrote into labels before the graph was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredState {
    /// Number of the state among the states that the device wrote to the same disks; a later state has a higher
    /// number.
    pub sequence: u64,
    /// Encoded state of the device.
    pub bytes: Vec<u8>,
}

/// The state store of a device on disks without labels. It stores no state.
pub struct NoStateStore {
    found: Found,
    /// State that the previous device of the same name handed over when it was closed.
    pub handover: Handover,
}

impl NoStateStore {
    /// Creates a store over disks without labels. `fresh` is whether this start has created all of the disks.
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

    fn accepts_loss(&self) -> bool {
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
        let unlabelled = || error!(Unsupported, "the device's disks have no label for its state");
        let answers = ports.iter().map(|port| (*port, Err(unlabelled()))).collect();
        Box::pin(std::future::ready(answers))
    }
}
