//! Small state of a device that outlives the process: kept in the labels of the disks beneath it.

use std::rc::Rc;

use crate::env::LocalFuture;
use crate::{Deadline, Error, ErrorKind, Handover, Result};

/// The most bytes that one device keeps.
pub const STATE_BYTES_MAX: usize = 4096;

/// Who hears which port a write has failed beneath, and why.
pub type OnFailure = Rc<dyn Fn(usize, &Error)>;

/// What a device keeps on the labelled disks beneath it, seen from the device. Its ports are the
/// device's lowers, in order. The framework knows which labels lie beneath which port, numbers what
/// is written, and gives back the newest.
///
/// Nothing has a default: whoever stands between a device and its labels passes on all of it.
pub trait StateStore {
    /// What was found beneath a port when the graph was opened. It does not change afterwards.
    fn found(&self, port: usize) -> &Found;

    /// Whether the operator has said that a device may open without all of what it needs
    /// (`--degraded`).
    fn may_degrade(&self) -> bool;

    /// What its predecessor handed over ([`crate::Device::close`]): `None` if there was none, or it left
    /// nothing.
    fn handed_over(&self) -> Handover;

    /// Waits until the change that makes the device is committed; a start commits at once. A change may be undone, and a
    /// mirror below that it makes cannot durably mark dirty regions: before the commit a device writes nothing below.
    fn committed(&self) -> LocalFuture<()>;

    /// Whether that is sure already. Before it is, what is written gets onto the disks only with the news of
    /// the change: nobody may count on it.
    fn is_committed(&self) -> bool;

    /// From now on `told` hears at once which port a write has failed beneath, and why: the answer comes only when
    /// all ports have one. A disk whose flush has failed may show older bytes already. One that is not written by the
    /// `deadline` has failed, too: `TimedOut`; what it was given may still get there, before anything later.
    fn on_failure(&self, deadline: Deadline, told: OnFailure);

    /// Writes `state` into the label of every disk beneath `ports` that is there, and flushes it: with
    /// `Ok` for a port, each of them has it durably, and will show it as newer than all that was there
    /// before. One write is under way at a time for each device; a second one waits.
    ///
    /// The answers come in the order of the ports. `Unsupported` where a disk beneath has no label, or
    /// none is there; otherwise what the first disk says that failed. A port that failed may have
    /// either state.
    ///
    /// # Panics
    /// If `state` is longer than [`STATE_BYTES_MAX`].
    fn write(&self, ports: &[usize], state: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>>;
}

/// What lies beneath a port, as its labels tell.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Whether every disk beneath is labelled: only then can anything be kept there.
    pub labelled: bool,
    /// Whether every disk beneath is there. One that is not answers nothing but errors.
    pub present: bool,
    /// Whether nothing was served yet from any disk beneath: this start labelled it, or one before that was cut short.
    pub fresh: bool,
    /// Whether every disk beneath was closed in order: all that was answered had been flushed.
    pub clean: bool,
    /// The newest state that the device left there, if it left one.
    pub state: Option<StoredState>,
    /// Whether every disk beneath that is there has that state, and no older one: a disk that was away
    /// when it was written, or was labelled since, has not.
    pub everywhere: bool,
    /// The oldest state that one of the disks beneath has that are there; `None` if one of them has none.
    pub oldest: Option<StoredState>,
}

/// A state that a device once wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredState {
    /// Which write of this device it was, on the disks that took part: later is larger.
    pub sequence: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What a device keeps on raw disks: nothing.
pub struct NoStateStore {
    found: Found,
}

impl NoStateStore {
    /// For disks of which this start created every one (`fresh`), or not.
    pub fn new(fresh: bool) -> Self {
        Self { found: Found { present: true, fresh, ..Found::default() } }
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
        None
    }

    fn committed(&self) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn is_committed(&self) -> bool {
        true
    }

    fn on_failure(&self, _: Deadline, _: OnFailure) {}

    fn write(&self, ports: &[usize], _: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>> {
        let unlabelled = || Error::new(ErrorKind::Unsupported, "its disks have no label");
        let answers = ports.iter().map(|port| (*port, Err(unlabelled()))).collect();
        Box::pin(std::future::ready(answers))
    }
}
