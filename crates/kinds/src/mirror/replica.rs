//! The access of a mirror's store to the room on one member: a request that does not end within the mirror's deadline fails.
//! The mirror learns of failed changes and flushes at once, because a disk with a failed flush may return older bytes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use block::seeded::{self, Bug};
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
        if let Op::Read { last_resort, .. } = &mut own {
            // The store verifies its own bytes. A verifier beneath would return errors for those written before a power cut.
            *last_resort = !seeded::on(Bug::StoreBelowUnread);
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

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use block::{ErrorKind, Result};
    use sim::SimWorld;

    use super::*;

    /// A device with checksums after a power cut: it has no block that it can verify.
    struct Unverified;

    impl Core for Unverified {
        fn start(&self, op: &mut Op) -> Started {
            let is_refused = matches!(op, Op::Read { last_resort: false, .. });
            Started::Done(if is_refused { Err(error!(Corrupt, "unverified")) } else { Ok(()) })
        }

        fn poll(&self, _: ChildId, _: &mut Context<'_>) -> Poll<Done> {
            unreachable!("all requests have ended at their start")
        }

        fn abandon(&self, _: ChildId) {}
    }

    #[test]
    fn store_reads_its_copy_on_device_that_cannot_verify_blocks() {
        let env = SimWorld::new(1).env();
        let info = Info::disk(1 << 20, 512);
        let member = Lower::new(Rc::new(Unverified), 0, info, "member".into());
        let range = ByteRange::new(0, 4096).expect("a page has bytes");
        let read = || Op::read(range, env.buf(4096).expect("the pool has room"));
        let now = |lower: &Lower| {
            let done = std::pin::pin!(lower.call(read()));
            done.poll(&mut Context::from_waker(Waker::noop()))
        };
        let result = |polled: Poll<Done>| -> Result<()> {
            let Poll::Ready(done) = polled else { panic!("the read waits") };
            done.result
        };
        let refused = result(now(&member)).expect_err("no other copy is known to have failed");
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        let deadline = Deadline::new(&env, Duration::from_secs(1));
        result(now(&lower(&member, 0, range, &deadline, Rc::new(Reader)))).unwrap();
    }
}
