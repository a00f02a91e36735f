//! A device of two copies, each on a disk that records its events.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

use block::{ChildId, Copies, Core, Done, Info, Lower, Op, Result, Started};

use crate::recorded::Disk;

/// A device that keeps two copies, each on a recorded disk. Its requests end at once.
pub struct Copied {
    disks: [Rc<Disk>; 2],
    /// The copy that a read gets which avoids none.
    pub preferred: Cell<usize>,
    /// A copy that is out: it is neither read nor written.
    pub out: Cell<Option<usize>>,
    /// Number of writes so far that restored a copy.
    pub restores: Cell<u64>,
}

impl Copied {
    /// Creates a device with a copy on each of these disks, which have one size.
    pub fn new(disks: [Rc<Disk>; 2]) -> Rc<Self> {
        let (preferred, out, restores) = Default::default();
        Rc::new(Self { disks, preferred, out, restores })
    }

    /// Returns a handle to the device, as another device has it.
    pub fn lower(self: &Rc<Self>) -> Lower {
        let info = Info { copies: 2, ..self.disks[0].lower().info().clone() };
        Lower::new(self.clone(), 0, info, "two copies".into())
    }

    /// Returns the copies that are not out, the preferred one first.
    fn present(&self) -> impl Iterator<Item = usize> {
        let first = self.preferred.get();
        [first, 1 - first].into_iter().filter(|copy| self.out.get() != Some(*copy))
    }

    fn carry_out(&self, op: &mut Op) -> Result<()> {
        match op {
            Op::Read { avoid, .. } => {
                let avoided = *avoid;
                let other = self.present().find(|copy| !avoided.has(*copy));
                let copy = other.or_else(|| self.present().next()).expect("one copy is present");
                let read = start_on(&self.disks[copy], op);
                if let Op::Read { avoid, .. } = op {
                    *avoid = avoided.with(copy);
                }
                read
            }
            Op::Write { restores, .. } if *restores != Copies::NONE => {
                let named = *restores;
                self.restores.set(self.restores.get() + 1);
                self.on_all(op, |copy| named.has(copy))
            }
            _ => self.on_all(op, |_| true),
        }
    }

    fn on_all(&self, op: &Op, is_meant: impl Fn(usize) -> bool) -> Result<()> {
        self.present().filter(|copy| is_meant(*copy)).try_for_each(|copy| {
            let mut own = match op {
                Op::Write { range, data, .. } => Op::write(*range, data.clone()),
                Op::WriteZeroes { range, unmap, fua } => {
                    Op::WriteZeroes { range: *range, unmap: *unmap, fua: *fua }
                }
                Op::Discard { range, fua } => Op::Discard { range: *range, fua: *fua },
                Op::Flush => Op::Flush,
                Op::Read { .. } | Op::Status { .. } => unreachable!("only for changes and flushes"),
            };
            start_on(&self.disks[copy], &mut own)
        })
    }
}

fn start_on(disk: &Rc<Disk>, op: &mut Op) -> Result<()> {
    match Core::start(&**disk, op) {
        Started::Done(result) => result,
        Started::Running(_) => unreachable!("everything is done at once"),
    }
}

impl Core for Copied {
    fn start(&self, op: &mut Op) -> Started {
        Started::Done(self.carry_out(op))
    }

    fn poll(&self, _: ChildId, _: &mut Context<'_>) -> Poll<Done> {
        unreachable!("everything is done at once")
    }

    fn abandon(&self, _: ChildId) {}
}
