//! The access of a mirror's store to the room on one member: a request that does not end within the mirror's deadline fails.
//! The mirror learns of failed changes and flushes at once, because a disk with a failed flush may return older bytes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use block::{
    ByteRange, Child, ChildId, Core, Deadline, Done, Error, Guard, Info, Lower, Op, Started, error,
};

/// The mirror, as far as the access to a room on its member concerns it.
pub trait Watch {
    /// Keeps a request past the deadline until it has ended.
    fn late(&self, request: Child);

    /// Hears that the member has failed to change bytes, or to flush.
    fn failed(&self, error: &Error);
}

/// A reader of rooms, which changes nothing.
pub struct Reader;

impl Watch for Reader {
    fn late(&self, request: Child) {
        drop(request);
    }

    fn failed(&self, _: &Error) {}
}

/// The room on a member, as a lower of the store.
struct Part {
    lower: Lower,
    start: u64,
    deadline: Deadline,
    watch: Rc<dyn Watch>,
    running: RefCell<BTreeMap<u64, Guard<Child>>>,
    next: Cell<u64>,
}

/// Returns a handle to the bytes `room` of the member `lower` with the number `port`.
pub fn lower(
    lower: &Lower,
    port: usize,
    room: ByteRange,
    deadline: &Deadline,
    watch: Rc<dyn Watch>,
) -> Lower {
    let info = Info { size: room.len(), ..lower.info().clone() };
    let name = lower.name().into();
    let part = Part {
        lower: lower.clone(),
        start: room.start(),
        deadline: deadline.clone(),
        watch,
        running: RefCell::default(),
        next: Cell::new(0),
    };
    Lower::new(Rc::new(part), port, info, name)
}

impl Core for Part {
    fn start(&self, op: &mut Op) -> Started {
        let mut own = std::mem::replace(op, Op::Flush);
        if let Some(range) = own.range() {
            let moved = ByteRange::new(self.start + range.start(), range.len());
            own.set_range(moved.expect("a request has bytes"));
        }
        let child = self.deadline.guard(self.lower.start(own));
        let id = self.next.replace(self.next.get() + 1);
        self.running.borrow_mut().insert(id, child);
        Started::Running(ChildId(id))
    }

    fn poll(&self, child: ChildId, cx: &mut Context<'_>) -> Poll<Done> {
        let mut running = self.running.borrow_mut();
        let guard = running.get_mut(&child.0).expect("a request is polled until it has ended");
        let answer = std::task::ready!(Pin::new(guard).poll(cx));
        running.remove(&child.0);
        drop(running);
        let done = answer.unwrap_or_else(|late| {
            self.watch.late(late);
            let limit = self.deadline.limit();
            let error = error!(TimedOut, "the member did not answer within {limit:?}");
            Done { op: Op::Flush, result: Err(error.at(self.lower.name())) }
        });
        let is_read = matches!(done.op, Op::Read { .. } | Op::Status { .. });
        if let (Err(error), false) = (&done.result, is_read) {
            self.watch.failed(error);
        }
        Poll::Ready(done)
    }

    fn abandon(&self, child: ChildId) {
        self.running.borrow_mut().remove(&child.0);
    }
}
