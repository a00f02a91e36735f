//! The one file that places futures in slots.
//!
//! A [`Slot`] holds one request on its way: the request itself, the device that carries it out, and
//! the device's future, written into room that the slot keeps from one request to the next. So a hop
//! through a device costs no allocation, and a kind's author writes plain `async` code.
//!
//! The rules that make it sound, all checked at run time by [`Stage`]:
//! - while a future lives, it alone touches the request (it holds the `&mut`);
//! - the device outlives the future (the slot holds an `Rc` of it, dropped after the future);
//! - a slot never moves (the arena sees to it), so the future is pinned;
//! - a future is polled by nobody while it is being polled.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

use block::{Below, ByteRange, Control, Device, Handled, Info, Needs, Request, Result};

/// A [`Device`] of any kind: the object-safe twin, implemented for all of them here.
pub trait AnyDevice {
    /// See [`Device::info`].
    fn info(&self) -> &Info;
    /// See [`Device::needs`].
    fn needs(&self) -> Needs;
    /// See [`Device::resolve`].
    ///
    /// # Errors
    /// As there.
    fn resolve(&self, range: ByteRange) -> Result<Vec<Below>>;
    /// See [`Device::control`].
    fn control(&self, control: &Control) -> Handled;
    /// The room that a future of [`Device::submit`] takes.
    fn future_layout(&self) -> Layout;
    /// Writes the future of `submit` to `room`.
    ///
    /// # Safety
    /// `room` is valid for writes of [`AnyDevice::future_layout`]. `self` and `request` stay where
    /// they are, and nobody else touches `request`, until the future is dropped through the table.
    unsafe fn place(&self, request: NonNull<Request>, room: NonNull<u8>) -> &'static FutureTable;
}

/// How to drive and drop a placed future whose type is forgotten.
pub struct FutureTable {
    poll: unsafe fn(NonNull<u8>, &mut Context<'_>) -> Poll<Result<()>>,
    drop: unsafe fn(NonNull<u8>),
}

struct TableOf<F>(std::marker::PhantomData<F>);

impl<F: Future<Output = Result<()>>> TableOf<F> {
    const TABLE: FutureTable = FutureTable { poll: Self::poll, drop: Self::drop };

    /// # Safety
    /// `room` holds a live `F` that never moves.
    unsafe fn poll(room: NonNull<u8>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        // SAFETY: the caller's promise; pinned, since a slot's room stays put while it is taken.
        unsafe { Pin::new_unchecked(room.cast::<F>().as_mut()) }.poll(cx)
    }

    /// # Safety
    /// `room` holds a live `F`, which nobody uses afterwards.
    unsafe fn drop(room: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { room.cast::<F>().drop_in_place() }
    }
}

/// # Safety
/// `room` is valid for writes of an `F`.
unsafe fn emplace<F: Future<Output = Result<()>>>(
    room: NonNull<u8>,
    future: F,
) -> &'static FutureTable {
    // SAFETY: the caller's promise.
    unsafe { room.cast::<F>().write(future) };
    &TableOf::<F>::TABLE
}

fn layout_of_future<A, B, F: Future>(_: fn(A, B) -> F) -> Layout {
    Layout::new::<F>()
}

impl<D: Device> AnyDevice for D {
    fn info(&self) -> &Info {
        Device::info(self)
    }

    fn needs(&self) -> Needs {
        Device::needs(self)
    }

    fn resolve(&self, range: ByteRange) -> Result<Vec<Below>> {
        Device::resolve(self, range)
    }

    fn control(&self, control: &Control) -> Handled {
        Device::control(self, control)
    }

    fn future_layout(&self) -> Layout {
        layout_of_future(<D as Device>::submit as fn(&'static D, &'static mut Request) -> _)
    }

    unsafe fn place(
        &self,
        mut request: NonNull<Request>,
        room: NonNull<u8>,
    ) -> &'static FutureTable {
        // SAFETY: the caller keeps the device where it is until the future is dropped.
        let device: &'static D = unsafe { NonNull::from(self).as_ref() };
        // SAFETY: likewise the request, which nobody else touches meanwhile.
        let request: &'static mut Request = unsafe { request.as_mut() };
        // SAFETY: `room` has the layout of this very future.
        unsafe { emplace(room, device.submit(request)) }
    }
}

/// Memory that a slot keeps for its futures.
struct Room {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Room {
    fn new(layout: Layout) -> Self {
        // A future may be empty; memory may not.
        let layout = Layout::from_size_align(layout.size().max(256), layout.align().max(16))
            .expect("a future's layout, made a little larger")
            .pad_to_align();
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        Self { memory, layout }
    }

    fn fits(&self, layout: Layout) -> bool {
        layout.size() <= self.layout.size() && layout.align() <= self.layout.align()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// What a slot holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nothing.
    Empty,
    /// A request, and nobody works on it.
    Resting,
    /// A request that a closure looks at.
    Lent,
    /// A request and a future.
    Running,
    /// A request and a future that is being polled.
    Polling,
}

/// Room for one request on its way through one device.
pub(super) struct Slot {
    stage: Cell<Stage>,
    request: UnsafeCell<Option<Request>>,
    device: Cell<Option<Rc<dyn AnyDevice>>>,
    table: Cell<Option<&'static FutureTable>>,
    room: UnsafeCell<Room>,
}

impl Slot {
    /// An empty slot.
    pub fn new() -> Self {
        Self {
            stage: Cell::new(Stage::Empty),
            request: UnsafeCell::new(None),
            device: Cell::new(None),
            table: Cell::new(None),
            room: UnsafeCell::new(Room::new(Layout::new::<()>())),
        }
    }

    fn step(&self, from: Stage, to: Stage) {
        let stage = self.stage.replace(to);
        assert!(stage == from, "a slot that is {stage:?} was taken to be {from:?}");
    }

    /// Puts a request into an empty slot.
    pub fn put(&self, request: Request) {
        self.step(Stage::Empty, Stage::Lent);
        // SAFETY: `Lent` by us: nobody else touches the request.
        unsafe { *self.request.get() = Some(request) };
        self.step(Stage::Lent, Stage::Resting);
    }

    /// Takes the request out of a slot in which nobody works.
    pub fn take(&self) -> Request {
        self.step(Stage::Resting, Stage::Lent);
        // SAFETY: as in `put`.
        let request = unsafe { (*self.request.get()).take() };
        self.step(Stage::Lent, Stage::Empty);
        request.expect("a resting slot has a request")
    }

    /// Looks at the request, or changes it, while no future works on it.
    #[inline]
    pub fn with<R>(&self, look: impl FnOnce(&mut Request) -> R) -> R {
        self.step(Stage::Resting, Stage::Lent);
        // SAFETY: as in `put`; a closure that came back here would fail in `step`.
        let request = unsafe { (*self.request.get()).as_mut() };
        let seen = look(request.expect("a resting slot has a request"));
        self.step(Stage::Lent, Stage::Resting);
        seen
    }

    /// Gives the request to `device`: its future is placed, not yet polled.
    pub fn begin(&self, device: Rc<dyn AnyDevice>) {
        self.step(Stage::Resting, Stage::Lent);
        let layout = device.future_layout();
        // SAFETY: `Lent` by us, and no future lives in the room.
        let room = unsafe { &mut *self.room.get() };
        if !room.fits(layout) {
            *room = Room::new(layout);
        }
        let memory = room.memory;
        // SAFETY: as in `put`; the reference ends here, the pointer is the future's from now on.
        let request = unsafe { (*self.request.get()).as_mut() };
        let request = NonNull::from(request.expect("a resting slot has a request"));
        // SAFETY: the room fits; the device is kept in `self.device` until the future is dropped;
        // the stage keeps everybody else from the request; slots do not move.
        let table = unsafe { device.place(request, memory) };
        self.device.set(Some(device));
        self.table.set(Some(table));
        self.step(Stage::Lent, Stage::Running);
    }

    /// Drives the future. When it is ready it is dropped, and the slot rests.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.step(Stage::Running, Stage::Polling);
        // SAFETY: a future lives in the room: the stage says so. Nobody makes a `&mut` of the room
        // before it is gone.
        let memory = unsafe { (*self.room.get()).memory };
        let table = self.table.get().expect("a running slot has its table");
        // SAFETY: the table belongs to the future in this room, which has not moved.
        let polled = unsafe { (table.poll)(memory, cx) };
        self.step(Stage::Polling, Stage::Running);
        if polled.is_ready() {
            self.end();
        }
        polled
    }

    /// Whether a future lives here and is not being polled.
    pub fn is_running(&self) -> bool {
        self.stage.get() == Stage::Running
    }

    fn end(&self) {
        self.step(Stage::Running, Stage::Lent);
        // SAFETY: as in `poll`.
        let memory = unsafe { (*self.room.get()).memory };
        let table = self.table.take().expect("a running slot has its table");
        // SAFETY: the future lives, and nobody uses it after this.
        unsafe { (table.drop)(memory) };
        self.device.set(None);
        self.step(Stage::Lent, Stage::Resting);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // An engine that is dropped with work in flight: the futures go, with what they hold.
        if self.stage.get() == Stage::Running {
            self.end();
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

    fn read(pool: &BufPool) -> Request {
        let range = ByteRange::new(0, 512).unwrap();
        Request { op: Op::read(range, pool.take(512).unwrap()), id: 7 }
    }

    #[test]
    fn a_request_goes_in_waits_and_comes_out() {
        let pool = BufPool::new(1 << 20, 0);
        let drops = Rc::new(Cell::new(0));
        let slot = Slot::new();
        let mut cx = Context::from_waker(Waker::noop());
        for round in 0..3 {
            slot.put(read(&pool));
            slot.with(|request| request.id += 1);
            slot.begin(patient(&drops));
            assert!(slot.poll(&mut cx).is_pending());
            assert!(slot.is_running());
            assert!(slot.poll(&mut cx).is_ready());
            let request = slot.take();
            assert_eq!(request.id, 9);
            assert!(matches!(request.op, Op::Read { into, .. } if into.read()[0] == 7));
            assert_eq!(drops.get(), round + 1);
        }
    }

    #[test]
    fn a_dropped_slot_drops_its_future_once() {
        let pool = BufPool::new(1 << 20, 0);
        let drops = Rc::new(Cell::new(0));
        let slot = Slot::new();
        slot.put(read(&pool));
        slot.begin(patient(&drops));
        assert!(slot.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(slot);
        assert_eq!(drops.get(), 1);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "was taken to be Resting")]
    fn nobody_takes_a_request_from_a_running_future() {
        let pool = BufPool::new(1 << 20, 0);
        let slot = Slot::new();
        slot.put(read(&pool));
        slot.begin(patient(&Rc::new(Cell::new(0))));
        slot.take();
    }
}
