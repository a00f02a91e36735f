//! The writes that clients have sent to a volume, for promises about more than bytes: "no flushed write is left out of the
//! device's counts".

use std::cell::RefCell;
use std::rc::Rc;

use block::{ByteRange, Op, OpKind};

/// How far a write has come. A later value includes the earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reached {
    /// A client has sent the write. The device may have carried it out.
    Sent,
    /// The device has acknowledged the write, and no power cut since may have lost it.
    Acknowledged,
    /// A flush that succeeded has made the write durable, or its FUA flag has.
    Flushed,
}

/// The log of all writes, write zeroes and discards that clients have sent to a volume, in the order in which they were
/// sent. A clone refers to the same log.
#[derive(Clone, Default)]
pub struct WriteLog(Rc<RefCell<Vec<Entry>>>);

#[derive(Clone, Copy)]
struct Entry {
    kind: OpKind,
    range: ByteRange,
    fua: bool,
    reached: Reached,
}

/// The writes that a flush in flight makes durable: those that were acknowledged before the flush was sent.
#[must_use = "the log does not know when the flush succeeds"]
pub struct Covered(Vec<usize>);

impl WriteLog {
    /// Adds a request that a client sends. Returns its number in the log; `None` if it changes no bytes.
    pub fn send(&self, op: &Op) -> Option<usize> {
        let (kind, range, fua) = match op {
            Op::Write { range, fua, .. } => (OpKind::Write, *range, *fua),
            Op::WriteZeroes { range, fua, .. } => (OpKind::WriteZeroes, *range, *fua),
            Op::Discard { range, fua } => (OpKind::Discard, *range, *fua),
            Op::Read { .. } | Op::Flush | Op::Status { .. } => return None,
        };
        let mut entries = self.0.borrow_mut();
        entries.push(Entry { kind, range, fua, reached: Reached::Sent });
        Some(entries.len() - 1)
    }

    /// Records that the request number `number` has succeeded.
    pub fn acknowledge(&self, number: usize) {
        let entry = &mut self.0.borrow_mut()[number];
        entry.reached = if entry.fua { Reached::Flushed } else { Reached::Acknowledged };
    }

    /// Returns the writes that a flush covers which a client sends now.
    pub fn covered(&self) -> Covered {
        let entries = self.0.borrow();
        let waits = |n: &usize| entries[*n].reached == Reached::Acknowledged;
        Covered((0..entries.len()).filter(waits).collect())
    }

    /// Records that the flush that covers these writes has succeeded.
    pub fn flushed(&self, covered: Covered) {
        let mut entries = self.0.borrow_mut();
        for number in covered.0 {
            // A power cut since then has made it `Sent` again.
            let entry = entries.get_mut(number);
            if let Some(entry) = entry.filter(|entry| entry.reached == Reached::Acknowledged) {
                entry.reached = Reached::Flushed;
            }
        }
    }

    /// Records a power cut. It may lose every write that is not flushed.
    pub fn power_cut(&self) {
        let mut entries = self.0.borrow_mut();
        let unflushed = entries.iter_mut().filter(|entry| entry.reached < Reached::Flushed);
        unflushed.for_each(|entry| entry.reached = Reached::Sent);
    }

    /// Forgets all requests, because a device begins anew on disks without its state.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Returns the number of writes of data that have come this far.
    pub fn writes(&self, reached: Reached) -> u64 {
        self.count(|entry| entry.kind == OpKind::Write && entry.reached >= reached)
    }

    /// Returns the number of writes of data to bytes of `range` that have come this far.
    pub fn writes_in(&self, range: ByteRange, reached: Reached) -> u64 {
        self.count(|entry| {
            let meets = entry.range.intersect(range).is_some();
            meets && entry.kind == OpKind::Write && entry.reached >= reached
        })
    }

    /// Returns the number of requests in the log that have come this far: writes, write zeroes and discards.
    pub fn requests(&self, reached: Reached) -> u64 {
        self.count(|entry| entry.reached >= reached)
    }

    /// Returns a copy of the log, which later requests do not change.
    pub fn snapshot(&self) -> Self {
        Self(Rc::new(RefCell::new(self.0.borrow().clone())))
    }

    fn count(&self, is_counted: impl Fn(&Entry) -> bool) -> u64 {
        self.0.borrow().iter().filter(|entry| is_counted(entry)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_counts_writes_by_flush_that_covers_them() {
        let log = WriteLog::default();
        let range = |start, len| ByteRange::new(start, len).unwrap();
        let zeroes = |start, fua| Op::WriteZeroes { range: range(start, 512), unmap: false, fua };
        let [one, two, three] = [(0, false), (512, false), (1024, true)]
            .map(|(start, fua)| log.send(&zeroes(start, fua)).unwrap());
        assert_eq!(log.send(&Op::Flush), None);
        log.acknowledge(one);
        let flush = log.covered();
        log.acknowledge(two);
        log.acknowledge(three);
        let counts = || {
            [Reached::Sent, Reached::Acknowledged, Reached::Flushed].map(|far| log.requests(far))
        };
        assert_eq!(counts(), [3, 3, 1]);
        log.flushed(flush);
        assert_eq!((counts(), log.writes(Reached::Sent)), ([3, 3, 2], 0));
        let (lost, before) = (log.covered(), log.snapshot());
        log.power_cut();
        assert_eq!(counts(), [3, 2, 2]);
        log.flushed(lost);
        assert_eq!((counts(), before.requests(Reached::Acknowledged)), ([3, 2, 2], 3));
    }
}
