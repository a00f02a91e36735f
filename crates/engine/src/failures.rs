//! Failed requests, for the events of a server. A device reports each failure to the device above it, which may have
//! another copy of the data: then no client hears of the failure.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use block::{ByteRange, Error, ErrorKind, Notify, OpKind};

use super::node::{Node, Power};
use super::{Engine, Entry};

/// Most failures that an engine keeps for the reader of [`Engine::take_failures`]. Later failures are only counted.
const FAILURES_MAX: usize = 256;

/// A request that a device or a hook could not carry out.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Name of the device or hook.
    pub device: String,
    /// Type of the request.
    pub verb: OpKind,
    /// Byte range of the request; `None` for a flush.
    pub range: Option<ByteRange>,
    /// The error of the request.
    pub error: Error,
}

/// The failed requests that the reader has not taken yet.
#[derive(Default)]
pub(super) struct Failures {
    kept: RefCell<VecDeque<Failure>>,
    lost: Cell<u64>,
    waiting: Notify,
}

impl Failures {
    /// Adds the failure of a request in the device of `node`, unless the failure comes from a device below.
    #[cold]
    pub fn add_of_device(&self, entry: &Entry, node: &Node, error: &Error) {
        let has_lowers = match &node.power {
            Power::Device { lowers, .. } | Power::Table { lowers, .. } => !lowers.is_empty(),
            Power::Hooks { .. } => true,
        };
        if !has_lowers || error.place() == Some(&*node.name) {
            self.add(entry, &node.name, error);
        }
    }

    /// Adds a failure that a hook has caused. The place of its error is the name of the hook.
    #[cold]
    pub fn add_of_hook(&self, entry: &Entry, error: &Error) {
        if let Some(place) = error.place() {
            self.add(entry, place, error);
        }
    }

    fn add(&self, entry: &Entry, device: &str, error: &Error) {
        if !is_fault(error.kind()) {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() == FAILURES_MAX {
            return self.lost.set(self.lost.get() + 1);
        }
        let (verb, range) = entry.slot.with(|request| (request.op.verb(), request.op.range()));
        kept.push_back(Failure { device: device.to_owned(), verb, range, error: error.clone() });
        drop(kept);
        self.waiting.wake();
    }
}

/// Whether an error of this kind is a fault of a device, and not of the request or of a closed graph.
fn is_fault(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Io
            | ErrorKind::Corrupt
            | ErrorKind::Faulted
            | ErrorKind::TimedOut
            | ErrorKind::NoSpace
            | ErrorKind::Degraded
    )
}

impl Engine {
    /// Waits until a request has failed in a device that [`Engine::take_failures`] has not returned yet.
    pub async fn has_failures(&self) {
        let Failures { kept, waiting, .. } = &self.0.failures;
        waiting.until(|| !kept.borrow().is_empty()).await;
    }

    /// Returns the requests that have failed in devices since the last call, the oldest first, and the number of further
    /// failures for which there was no room.
    pub fn take_failures(&self) -> (Vec<Failure>, u64) {
        let Failures { kept, lost, .. } = &self.0.failures;
        (kept.borrow_mut().drain(..).collect(), lost.take())
    }
}
