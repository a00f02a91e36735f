//! Slots of the engine, and the futures of devices in them. No other file places futures in slots.
//!
//! A [`Slot`] holds one request: the request itself, the device that carries it out, and the device's future. The
//! future is written into memory that the slot keeps from one request to the next. So passing a request to a device
//! costs no allocation, and the author of a kind writes plain `async` code.
//!
//! These rules make the code sound. The [`Stage`] of a slot checks all of them at run time:
//! - while a future lives, only the future accesses the request (it holds the `&mut`);
//! - the device outlives the future (the slot holds an `Rc` to the device, dropped after the future);
//! - a slot never moves (the arena guarantees this), so the future is pinned;
//! - a future is not polled while it is being polled.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

use block::control::{Command, Reply, Resolved, VerbInfo};
use block::env::LocalFuture;
use block::{ByteRange, Device, Handover, Info, Report, Request, Result};

use super::volumes::{AnyVolumes, Erase};

/// The future with which [`AnyDevice::resolve`] returns its result.
pub type Resolving<'d> = Pin<Box<dyn Future<Output = Result<Resolved>> + 'd>>;

/// The object-safe form of [`Device`], which this file implements for all devices. The trait is sealed: callers rely on
/// the layout and the table of the futures that [`AnyDevice::enter`] places, and only this file can guarantee both.
pub trait AnyDevice: sealed::Sealed {
    /// Returns the facts about the device: see [`Device::info`].
    fn info(&self) -> &Info;
    /// Returns where a range lies in the lowers of the device: see [`Device::resolve`].
    ///
    /// # Errors
    /// As [`Device::resolve`].
    fn resolve(&self, range: ByteRange) -> Resolving<'_>;
    /// Returns the verbs of the commands that the device knows: see [`Device::verbs`].
    fn verbs(&self) -> &'static [&'static VerbInfo];
    /// Carries out a command on the device: see [`Device::control`].
    ///
    /// # Errors
    /// As [`Device::control`].
    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>>;
    /// Returns the volumes that the device holds; `None` if it holds none: see [`Device::volumes`].
    fn volumes(self: Rc<Self>) -> Option<Rc<dyn AnyVolumes>>;
    /// Returns the health and the counters of the device: see [`Device::report`].
    fn report(&self) -> Report;
    /// Returns the ports of the lowers that each have all bytes of the device: see [`Device::holders`].
    fn holders(&self) -> Vec<usize>;
    /// Returns the state with which another device on the same disk can be opened: see [`Device::share`].
    fn share(&self) -> Handover;
    /// Ends the device's own tasks, and returns its hand-over to the device that replaces it: see [`Device::close`].
    fn close(&self) -> LocalFuture<Handover>;
    /// Returns the size in bytes of the device's future of [`Device::submit`].
    fn future_bytes(&self) -> usize;
    /// Writes the device's future of [`Device::submit`] to `room` and polls it. A future that is ready at this poll is
    /// dropped. Any other future stays in `room`, and the slot polls it through the returned table.
    ///
    /// # Safety
    /// `room` is valid for writes of [`AnyDevice::future_bytes`], and aligned to `ROOM_ALIGN`. `self` and `request` do
    /// not move, and no other code accesses `request`, until this function has returned `Entered::Ready` or the future
    /// has been dropped through the table.
    unsafe fn enter(
        &self,
        request: NonNull<Request>,
        room: NonNull<u8>,
        cx: &mut Context<'_>,
    ) -> Entered;
}

mod sealed {
    /// Keeps other crates from implementing [`super::AnyDevice`].
    pub trait Sealed {}

    impl<D: block::Device> Sealed for D {}
}

/// The result of the first poll of the future that carries a request out.
pub enum Entered {
    /// The request is done with this result, and the future was dropped.
    Ready(Result<()>),
    /// The future waits in the memory of the slot, which polls and drops it through this table.
    Waiting(&'static FutureTable),
}

/// Functions that poll and drop the future of a request, whose type is erased.
pub struct FutureTable {
    /// Polls the future, and drops the future when it is ready.
    poll: unsafe fn(NonNull<u8>, &mut Context<'_>) -> Poll<Result<()>>,
    drop: unsafe fn(NonNull<u8>),
}

struct TableOf<F>(std::marker::PhantomData<F>);

impl<F: Future<Output = Result<()>>> TableOf<F> {
    const TABLE: FutureTable = FutureTable { poll: Self::poll, drop: Self::drop };

    /// # Safety
    /// `room` holds a live `F` that never moves. When this function returns `Poll::Ready`, the `F` is dropped.
    unsafe fn poll(room: NonNull<u8>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        // SAFETY: the caller's promise; the future is pinned, because a slot's room does not move while it is in use.
        let polled = unsafe { Pin::new_unchecked(room.cast::<F>().as_mut()) }.poll(cx);
        if polled.is_ready() {
            // SAFETY: the future lives, and the caller does not use it after this.
            unsafe { Self::drop(room) };
        }
        polled
    }

    /// # Safety
    /// `room` holds a live `F` that is not used afterwards.
    unsafe fn drop(room: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { room.cast::<F>().drop_in_place() }
    }

    /// # Safety
    /// `room` is valid for writes of an `F`, which does not move from there.
    #[inline(always)]
    unsafe fn enter(room: NonNull<u8>, future: F, cx: &mut Context<'_>) -> Entered {
        // SAFETY: the caller's promise.
        unsafe { room.cast::<F>().write(future) };
        // SAFETY: the future was just written, and does not move.
        match unsafe { Pin::new_unchecked(room.cast::<F>().as_mut()) }.poll(cx) {
            Poll::Ready(result) => {
                // SAFETY: the future lives, and is not used after this.
                unsafe { Self::drop(room) };
                Entered::Ready(result)
            }
            Poll::Pending => Entered::Waiting(&Self::TABLE),
        }
    }
}

/// The alignment in bytes of the memory for futures, which is enough for the future of every device.
const ROOM_ALIGN: usize = 64;

fn bytes_of_future<A, B, F: Future>(_: fn(A, B) -> F) -> usize {
    const { assert!(align_of::<F>() <= ROOM_ALIGN, "a future exceeds ROOM_ALIGN") };
    size_of::<F>()
}

impl<D: Device> AnyDevice for D {
    fn info(&self) -> &Info {
        Device::info(self)
    }

    fn resolve(&self, range: ByteRange) -> Resolving<'_> {
        Box::pin(Device::resolve(self, range))
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        Device::verbs(self)
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        Device::control(self, command)
    }

    fn volumes(self: Rc<Self>) -> Option<Rc<dyn AnyVolumes>> {
        Device::volumes(self, Erase)
    }

    fn report(&self) -> Report {
        Device::report(self)
    }

    fn holders(&self) -> Vec<usize> {
        Device::holders(self)
    }

    fn share(&self) -> Handover {
        Device::share(self)
    }

    fn close(&self) -> LocalFuture<Handover> {
        Device::close(self)
    }

    fn future_bytes(&self) -> usize {
        bytes_of_future(<D as Device>::submit as fn(&'static D, &'static mut Request) -> _)
    }

    unsafe fn enter(
        &self,
        mut request: NonNull<Request>,
        room: NonNull<u8>,
        cx: &mut Context<'_>,
    ) -> Entered {
        // SAFETY: the caller does not move or drop the device while the future lives.
        let device: &'static D = unsafe { NonNull::from(self).as_ref() };
        // SAFETY: the same holds for the request, which no other code accesses meanwhile.
        let request: &'static mut Request = unsafe { request.as_mut() };
        // SAFETY: `room` has the layout of this very future, and does not move.
        unsafe { enter_in(room, device.submit(request), cx) }
    }
}

/// # Safety
/// As for [`TableOf::enter`].
#[inline(always)]
unsafe fn enter_in<F: Future<Output = Result<()>>>(
    room: NonNull<u8>,
    future: F,
    cx: &mut Context<'_>,
) -> Entered {
    // SAFETY: the caller's promise.
    unsafe { TableOf::<F>::enter(room, future, cx) }
}

/// Memory that a slot keeps for its futures.
struct FutureMemory {
    memory: NonNull<u8>,
    bytes: usize,
}

impl FutureMemory {
    /// Allocates memory for futures of at most `bytes` bytes.
    fn new(bytes: usize) -> Self {
        // A future may have no size, but an allocation may not.
        let bytes = bytes.max(256);
        let layout = Self::layout(bytes);
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        Self { memory, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ROOM_ALIGN).expect("a future's size is valid")
    }
}

impl Drop for FutureMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.bytes)) };
    }
}

/// The content of a slot, which decides the permitted operations on the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No request.
    Empty,
    /// A request, without a future.
    Resting,
    /// A request that the closure of [`Slot::with`] accesses. If the closure panics, the slot stays in this stage.
    Lent,
    /// A request, and a future that carries out the request and waits.
    Running,
    /// A request and a future that is being polled.
    Polling,
}

/// The place of one request in the engine, with room for the future of the device that carries it out.
pub(super) struct Slot {
    stage: Cell<Stage>,
    request: UnsafeCell<MaybeUninit<Request>>,
    device: Cell<Option<Rc<dyn AnyDevice>>>,
    table: Cell<Option<&'static FutureTable>>,
    room: Cell<FutureMemory>,
}

impl Default for Slot {
    /// Makes an empty slot.
    fn default() -> Self {
        Self {
            stage: Cell::new(Stage::Empty),
            request: UnsafeCell::new(MaybeUninit::uninit()),
            device: Cell::new(None),
            table: Cell::new(None),
            room: Cell::new(FutureMemory::new(0)),
        }
    }
}

impl Slot {
    #[inline]
    fn expect(&self, stage: Stage) {
        let found = self.stage.get();
        assert!(found == stage, "a slot is {found:?}, not {stage:?}");
    }

    /// Puts a request into an empty slot.
    #[inline(always)]
    pub fn put(&self, request: Request) {
        self.expect(Stage::Empty);
        // SAFETY: the slot is empty, so there is no reference to its content, and no content to drop.
        unsafe { (*self.request.get()).write(request) };
        self.stage.set(Stage::Resting);
    }

    /// Removes the request from a slot without a future.
    #[inline(always)]
    pub fn take(&self) -> Request {
        self.expect(Stage::Resting);
        self.stage.set(Stage::Empty);
        // SAFETY: the request was there until now, and is not taken again: the stage is `Empty`.
        unsafe { (*self.request.get()).assume_init_read() }
    }

    /// Passes the request of a slot without a future to `look`, which may read and change it.
    #[inline(always)]
    pub fn with<R>(&self, look: impl FnOnce(&mut Request) -> R) -> R {
        self.expect(Stage::Resting);
        self.stage.set(Stage::Lent);
        // SAFETY: the request is there, and a closure that used this slot again would fail in `expect`.
        let seen = look(unsafe { (*self.request.get()).assume_init_mut() });
        self.stage.set(Stage::Resting);
        seen
    }

    /// Passes the request to `device`, whose future has `future_bytes` bytes, and polls the future once. If the future
    /// is ready, the slot holds only the request again.
    #[inline(always)]
    pub fn enter(
        &self,
        device: &Rc<dyn AnyDevice>,
        future_bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        self.expect(Stage::Resting);
        self.stage.set(Stage::Polling);
        let room = self.room(future_bytes);
        // SAFETY: we set `Polling`; the reference ends here, and from now on the pointer belongs to the future.
        let request = NonNull::from(unsafe { (*self.request.get()).assume_init_mut() });
        // SAFETY: the room fits; the caller's `Rc` keeps the device during this call, ours after it; the stage keeps
        // all other code from the request; slots do not move.
        match unsafe { device.enter(request, room, cx) } {
            Entered::Ready(result) => {
                self.stage.set(Stage::Resting);
                Poll::Ready(result)
            }
            Entered::Waiting(table) => {
                self.device.set(Some(device.clone()));
                self.table.set(Some(table));
                self.stage.set(Stage::Running);
                Poll::Pending
            }
        }
    }

    /// Returns the memory of the slot, with room for a future of `future_bytes` bytes. No future may live in the memory
    /// during the call.
    #[inline]
    fn room(&self, future_bytes: usize) -> NonNull<u8> {
        let room = self.room.as_ptr();
        // SAFETY: the slot is ours (`Polling`), and this reference ends with the statement.
        if unsafe { (*room).bytes } < future_bytes {
            self.room.set(FutureMemory::new(future_bytes));
        }
        // SAFETY: as above.
        unsafe { (*room).memory }
    }

    /// Polls the future of the slot. A future that is ready is dropped, and the slot holds only the request again.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.expect(Stage::Running);
        self.stage.set(Stage::Polling);
        let table = self.table.get().expect("a running slot has a function table");
        // SAFETY: the room does not change while a future lives in it.
        let memory = unsafe { (*self.room.as_ptr()).memory };
        // SAFETY: the table belongs to the future in this room, which has not moved.
        let polled = unsafe { (table.poll)(memory, cx) };
        if polled.is_ready() {
            self.table.set(None);
            self.device.set(None);
            self.stage.set(Stage::Resting);
        } else {
            self.stage.set(Stage::Running);
        }
        polled
    }

    /// Whether the slot holds a future that is not being polled.
    pub fn is_running(&self) -> bool {
        self.stage.get() == Stage::Running
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // If an engine is dropped with work in flight, its futures are dropped with everything that they hold.
        if let Some(table) = self.table.take() {
            let memory = self.room.get_mut().memory;
            // SAFETY: a future lives in the room while there is a table, and it is not being polled: that would need a
            // borrow of the slot.
            unsafe { (table.drop)(memory) };
        }
        if self.stage.get() != Stage::Empty {
            // SAFETY: a slot that is not empty holds a request, and no future has it any more.
            unsafe { self.request.get_mut().assume_init_drop() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{BufPool, Op};
    use std::task::Waker;

    struct Patient {
        info: Info,
        polls: Cell<u32>,
        drops: Rc<Cell<u32>>,
    }

    struct CountDrop(Rc<Cell<u32>>);

    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    impl Device for Patient {
        fn info(&self) -> &Info {
            &self.info
        }

        async fn submit(&self, request: &mut Request) -> Result<()> {
            let _guard = CountDrop(self.drops.clone());
            let padding = [7_u8; 500];
            std::future::poll_fn(|_| {
                self.polls.set(self.polls.get() + 1);
                if self.polls.get().is_multiple_of(2) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            if let Op::Read { into, .. } = &request.op {
                into.write().fill(padding[499]);
            }
            request.id += 1;
            Ok(())
        }
    }

    fn patient(drops: &Rc<Cell<u32>>) -> Rc<dyn AnyDevice> {
        let info = Info::disk(1 << 20, 512);
        Rc::new(Patient { info, polls: Cell::new(0), drops: drops.clone() })
    }

    fn enter(slot: &Slot, drops: &Rc<Cell<u32>>) -> Poll<Result<()>> {
        let device = patient(drops);
        let mut cx = Context::from_waker(Waker::noop());
        slot.enter(&device, device.future_bytes(), &mut cx)
    }

    fn read(pool: &BufPool) -> Request {
        let range = ByteRange::new(0, 512).unwrap();
        Request { op: Op::read(range, pool.take(512).unwrap()), id: 7 }
    }

    #[test]
    fn slot_returns_request_after_future_waited() {
        let pool = BufPool::new(1 << 20, 0);
        let drops = Rc::new(Cell::new(0));
        let slot = Slot::default();
        let mut cx = Context::from_waker(Waker::noop());
        for round in 0..3 {
            slot.put(read(&pool));
            slot.with(|request| request.id += 1);
            assert!(enter(&slot, &drops).is_pending());
            assert!(slot.is_running());
            assert!(slot.poll(&mut cx).is_ready());
            let request = slot.take();
            assert_eq!(request.id, 9);
            assert!(matches!(request.op, Op::Read { into, .. } if into.read()[0] == 7));
            assert_eq!(drops.get(), round + 1);
        }
    }

    #[test]
    fn dropped_slot_drops_running_future_once() {
        let pool = BufPool::new(1 << 20, 0);
        let drops = Rc::new(Cell::new(0));
        let slot = Slot::default();
        slot.put(read(&pool));
        assert!(enter(&slot, &drops).is_pending());
        drop(slot);
        assert_eq!(drops.get(), 1);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "not Resting")]
    fn slot_take_panics_while_future_runs() {
        let pool = BufPool::new(1 << 20, 0);
        let slot = Slot::default();
        slot.put(read(&pool));
        assert!(enter(&slot, &Rc::default()).is_pending());
        slot.take();
    }
}
