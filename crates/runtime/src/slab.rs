//! The slots of a core's operations in flight. A slot owns everything that the kernel may use for the operation
//! (buffers, parts, header, address and open file), from the start until the kernel's final result, even if no task
//! waits any more.
//!
//! Slots are in chunks that never move, and reuse their vectors, so that no memory is allocated in the steady state.
//! An id consists of an index and a generation: the id of an ended operation finds no slot.
//!
//! One of the few modules with unsafe code: the header of a send points at parts in the same slot.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::Waker;

use block::env::Outcome;
use block::{Buf, ByteRange, Result};
use rustix::net::SocketAddrAny;

use crate::disk::{Disk, PUNCH};
use crate::sys::Call;

const CHUNK: usize = 64;

/// Most buffers of one send: the limit of the kernel (`UIO_MAXIOV`).
pub(crate) const PARTS_MAX: usize = 1024;

/// The operation of a slot, with its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Read {
        offset: u64,
    },
    Write {
        offset: u64,
        fua: bool,
    },
    Flush,
    /// Zeroing of a disk's range by `fallocate`, with the mode of the present try.
    Zero {
        range: ByteRange,
        unmap: bool,
        mode: i32,
    },
    /// Zeroing of a disk's range by repeated writes of a buffer of zeros.
    ZeroWrite {
        range: ByteRange,
    },
    Discard {
        range: ByteRange,
    },
    Recv,
    Send,
    Accept,
    Connect,
    /// A read of one item of a stream (a signalfd or an eventfd) into the slot itself.
    Next,
    /// A wait until the channel of a mount has a message.
    Ready,
    /// A read of the core's bell, the eventfd to which other threads write to wake the core.
    Bell,
}

impl Op {
    /// Whether the operation waits for another process, perhaps without end, and can be cancelled without loss.
    pub(crate) fn waits_for_others(self) -> bool {
        matches!(
            self,
            Self::Recv | Self::Send | Self::Accept | Self::Connect | Self::Next | Self::Ready
        )
    }

    /// Whether the operation is one on a disk.
    pub(crate) fn is_at_disk(self) -> bool {
        !self.waits_for_others() && self != Self::Bell
    }

    /// Returns the name of the operation for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Flush => "flush",
            Self::Zero { .. } | Self::ZeroWrite { .. } => "zero",
            Self::Discard { .. } => "discard",
            Self::Recv => "receive",
            Self::Send => "send",
            Self::Accept => "accept",
            Self::Connect => "connect",
            Self::Next => "signal",
            Self::Ready => "wait",
            Self::Bell => "bell",
        }
    }
}

/// Length in bytes of the longest item of a stream: a `signalfd_siginfo`, or the count of an eventfd.
pub(crate) const SMALL_BYTES: usize = 128;

#[repr(align(8))]
pub(crate) struct Small(pub(crate) [u8; SMALL_BYTES]);

/// Everything that the kernel may use for an operation in flight.
pub(crate) struct Held {
    pub(crate) op: Op,
    pub(crate) file: Rc<OwnedFd>,
    pub(crate) disk: Option<Rc<Disk>>,
    /// Name of the operation's socket in messages.
    pub(crate) name: Option<Rc<str>>,
    pub(crate) buf: Option<Buf>,
    pub(crate) peer: Option<Box<SocketAddrAny>>,
}

impl Held {
    /// Creates the resources of an operation without a buffer on the stream `file`.
    pub(crate) fn new(op: Op, file: Rc<OwnedFd>, name: Option<Rc<str>>) -> Self {
        Self { op, file, disk: None, name, buf: None, peer: None }
    }
}

enum Phase {
    Free,
    Flying,
    Done(Result<usize>),
}

/// A slot: the state of one operation in flight, and vectors that the next operation reuses.
pub(crate) struct Slot {
    generation: u32,
    phase: Phase,
    abandoned: bool,
    waker: Option<Waker>,
    /// Resources of the slot's operation; `None` if the slot is free.
    pub(crate) held: Option<Held>,
    pub(crate) parts: Vec<Buf>,
    iovecs: Vec<libc::iovec>,
    header: libc::msghdr,
    pub(crate) small: Small,
    /// Bytes that earlier system calls of the operation have moved.
    pub(crate) moved: u64,
}

impl Slot {
    fn new() -> Self {
        Self {
            generation: 0,
            phase: Phase::Free,
            abandoned: false,
            waker: None,
            held: None,
            parts: Vec::new(),
            iovecs: Vec::new(),
            // SAFETY: zeros are a valid header without parts.
            header: unsafe { std::mem::zeroed() },
            small: Small([0; SMALL_BYTES]),
            moved: 0,
        }
    }

    /// Returns the next system call of the slot's operation.
    pub(crate) fn call(&mut self) -> Call {
        let held = self.held.as_ref().expect("an operation in flight is held");
        let fd = held.file.as_raw_fd();
        let moved = self.moved;
        let apart = held.disk.as_ref().is_some_and(|disk| disk.is_foreign());
        let rest = |range: ByteRange| (range.start() + moved, range.len() - moved);
        let buf = || held.buf.as_ref().expect("a transfer in flight has a buffer");
        let transfer = |offset| {
            let len = buf().len() as u64;
            held.disk.as_ref().map_or(len, |disk| disk.moves(offset, len))
        };
        match held.op {
            Op::Read { offset } => {
                let (ptr, len) = tail(buf(), transfer(offset), moved);
                Call::Read { fd, ptr, len, offset: offset + moved, apart }
            }
            Op::Write { offset, fua } => {
                let (ptr, len) = tail(buf(), transfer(offset), moved);
                Call::Write { fd, ptr, len, offset: offset + moved, dsync: fua, apart }
            }
            Op::Flush => Call::Fsync { fd },
            Op::Zero { range, mode, .. } => {
                Call::Fallocate { fd, mode, offset: range.start(), len: range.len() }
            }
            Op::ZeroWrite { range } => {
                let (offset, left) = rest(range);
                let buf = buf();
                let len = left.min(buf.len() as u64) as u32;
                Call::Write { fd, ptr: buf.as_ptr(), len, offset, dsync: false, apart }
            }
            Op::Discard { range } => {
                Call::Fallocate { fd, mode: PUNCH, offset: range.start(), len: range.len() }
            }
            Op::Recv => {
                let (ptr, len) = tail(buf(), buf().len() as u64, 0);
                Call::Recv { fd, ptr, len }
            }
            Op::Send => {
                self.iovecs.clear();
                self.iovecs.extend(self.parts.iter().take(PARTS_MAX).map(|part| libc::iovec {
                    iov_base: part.as_ptr().cast(),
                    iov_len: part.len(),
                }));
                self.header.msg_iov = self.iovecs.as_mut_ptr();
                self.header.msg_iovlen = self.iovecs.len() as _;
                Call::Send { fd, msg: &raw const self.header }
            }
            Op::Accept => Call::Accept { fd },
            Op::Connect => {
                let addr = held.peer.as_deref().expect("a connect in flight has an address");
                Call::Connect { fd, addr }
            }
            Op::Next => Call::Next { fd, ptr: self.small.0.as_mut_ptr(), len: SMALL_BYTES as u32 },
            Op::Ready => Call::Ready { fd },
            Op::Bell => Call::Next { fd, ptr: self.small.0.as_mut_ptr(), len: 8 },
        }
    }
}

/// Returns the address and the number of the bytes that are left of the first `len` bytes of `buf`.
fn tail(buf: &Buf, len: u64, moved: u64) -> (*mut u8, u32) {
    debug_assert!(len <= buf.len() as u64, "a transfer stays in its buffer");
    // SAFETY: the kernel has moved `moved` bytes, at most the length of the buffer.
    (unsafe { buf.as_ptr().add(moved as usize) }, len.saturating_sub(moved) as u32)
}

/// The slots for all operations of one core.
#[derive(Default)]
pub(crate) struct Slab {
    chunks: Vec<Box<[Slot]>>,
    free: Vec<u32>,
    in_flight: usize,
    // The number of operations in flight on disks.
    at_disks: usize,
}

/// The result of polling an operation in flight.
pub(crate) enum Polled {
    Pending,
    Ready(Outcome),
}

impl Slab {
    /// Puts an operation into a free slot, and returns the id of the operation.
    pub(crate) fn place(&mut self, held: Held, parts: Vec<Buf>) -> u64 {
        let at_disk = held.op.is_at_disk();
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = self.slot_at(index);
        slot.phase = Phase::Flying;
        slot.abandoned = false;
        slot.held = Some(held);
        slot.parts = parts;
        slot.moved = 0;
        let id = id_of(index, slot.generation);
        self.in_flight += 1;
        self.at_disks += usize::from(at_disk);
        id
    }

    fn grow(&mut self) -> u32 {
        let first = (self.chunks.len() * CHUNK) as u32;
        self.chunks.push((0..CHUNK).map(|_| Slot::new()).collect());
        self.free.extend((first + 1..first + CHUNK as u32).rev());
        first
    }

    fn slot_at(&mut self, index: u32) -> &mut Slot {
        let index = index as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    fn find(&mut self, id: u64) -> Option<&mut Slot> {
        let index = id as u32 as usize;
        let slot = self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)?;
        (slot.generation == (id >> 32) as u32 && slot.held.is_some()).then_some(slot)
    }

    /// Returns the slot of the operation `id`, which is in flight.
    ///
    /// # Panics
    /// If no such operation is in flight: the kernel completes each operation once.
    pub(crate) fn flying(&mut self, id: u64) -> &mut Slot {
        let slot = self.find(id).expect("the kernel completes operations in flight only");
        assert!(matches!(slot.phase, Phase::Flying), "the kernel completed an operation twice");
        slot
    }

    /// Records the result of the operation `id`, which has ended. Returns the waker of the task that waits, if one
    /// does; and the resources, if no task will take the result. The caller must use both without a borrow of the
    /// slab.
    pub(crate) fn done(&mut self, id: u64, result: Result<usize>) -> (Option<Waker>, Option<Held>) {
        let slot = self.flying(id);
        let waker = slot.waker.take();
        slot.phase = Phase::Done(result);
        let abandoned = slot.abandoned;
        let at_disk = slot.held.as_ref().is_some_and(|held| held.op.is_at_disk());
        self.in_flight -= 1;
        self.at_disks -= usize::from(at_disk);
        (waker, abandoned.then(|| self.free(id)))
    }

    fn free(&mut self, id: u64) -> Held {
        let slot = self.slot_at(id as u32);
        slot.phase = Phase::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.parts.clear();
        let held = slot.held.take().expect("an I/O slot is freed only once");
        self.free.push(id as u32);
        held
    }

    /// Returns the outcome of the operation `id` and frees its slot; if the operation has not ended, stores `waker`.
    /// Also returns the previous waker, which the caller must drop without a borrow of the slab.
    pub(crate) fn poll(&mut self, id: u64, waker: &Waker) -> (Polled, Option<Waker>) {
        let slot = self.find(id).expect("a ticket is not polled after its outcome");
        if matches!(slot.phase, Phase::Flying) {
            let old = match &slot.waker {
                Some(old) if old.will_wake(waker) => None,
                _ => slot.waker.replace(waker.clone()),
            };
            return (Polled::Pending, old);
        }
        let Phase::Done(result) = std::mem::replace(&mut slot.phase, Phase::Free) else {
            unreachable!("an occupied I/O slot is in flight or done")
        };
        let parts = std::mem::take(&mut slot.parts);
        let held = self.free(id);
        (Polled::Ready(Outcome { result, buf: held.buf, parts }), None)
    }

    /// Ends the wait for the operation `id`. If the operation has ended, frees its slot, and returns its resources
    /// and result.
    pub(crate) fn abandon(&mut self, id: u64) -> Option<(Held, Result<usize>)> {
        let slot = self.find(id)?;
        match std::mem::replace(&mut slot.phase, Phase::Flying) {
            Phase::Done(result) => Some((self.free(id), result)),
            Phase::Flying | Phase::Free => {
                slot.abandoned = true;
                None
            }
        }
    }

    /// Returns the number of operations of the core that the kernel has not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of operations on disks that the kernel has not completed.
    pub(crate) fn at_disks(&self) -> usize {
        self.at_disks
    }

    /// Calls `each` for every operation of the core that the kernel has not completed.
    pub(crate) fn each_flying(&self, mut each: impl FnMut(u64, &Held)) {
        for (chunk, slots) in self.chunks.iter().enumerate() {
            for (index, slot) in slots.iter().enumerate() {
                if let (Phase::Flying, Some(held)) = (&slot.phase, &slot.held) {
                    each(id_of((chunk * CHUNK + index) as u32, slot.generation), held);
                }
            }
        }
    }
}

fn id_of(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}
