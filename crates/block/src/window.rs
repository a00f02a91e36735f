//! A group of requests to lowers that are in flight together. It has no deadline, and allocates no memory.

use crate::{Buf, Child, Copies, Done, Error, Lower, Op, Result};

/// Requests of one device to its lowers, with at most `N` in flight. The window waits for them in the order of their
/// start.
///
/// A lower may answer a read with another buffer than the window passed to it. The window then copies the bytes into
/// the passed buffer. It keeps the error of the first failed request, in the order of start, until [`Window::drain`].
pub struct Window<const N: usize> {
    begun: [Option<(Child, Option<Buf>)>; N],
    /// Index of the oldest request.
    first: usize,
    len: usize,
    copies: Copies,
    failed: Option<Error>,
}

impl<const N: usize> Default for Window<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Window<N> {
    /// Creates a window without requests in flight.
    pub const fn new() -> Self {
        Self { begun: [const { None }; N], first: 0, len: 0, copies: Copies::NONE, failed: None }
    }

    /// Waits until the window can take one more request. Returns whether no request of the window has failed so far.
    pub async fn room(&mut self) -> bool {
        if self.len == N {
            self.answer().await;
        }
        self.failed.is_none()
    }

    /// Starts `op` on `lower` as the newest request of the window.
    ///
    /// # Panics
    /// If the window is full: the caller must await [`Window::room`] before.
    pub fn start(&mut self, lower: &Lower, op: Op) {
        assert!(self.len < N, "a window holds at most {N} requests");
        let into = match &op {
            Op::Read { into, .. } => Some(into.clone()),
            _ => None,
        };
        self.begun[(self.first + self.len) % N] = Some((lower.start(op), into));
        self.len += 1;
    }

    /// Waits until the oldest request has completed, and removes it from the window.
    async fn answer(&mut self) {
        let (child, into) = self.begun[self.first].take().expect("the window holds a request");
        self.first = (self.first + 1) % N;
        self.len -= 1;
        let Done { op, result } = child.await;
        if let Op::Read { avoid, .. } = &op {
            self.copies = self.copies.or(*avoid);
        }
        match (result, op, into) {
            (Err(error), ..) => {
                self.failed.get_or_insert(error);
            }
            (Ok(()), Op::Read { into: read, .. }, Some(into)) if !read.same(&into) => {
                into.write().copy_from_slice(&read.read());
            }
            _ => {}
        }
    }

    /// Removes all writes in flight from the window, the oldest first, without waiting for them.
    ///
    /// # Errors
    /// The error of the first request that has failed so far. Then the window keeps the writes.
    ///
    /// # Panics
    /// If a request in flight is a read.
    pub fn take_writes(&mut self) -> Result<Vec<Child>> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let mut taken = Vec::with_capacity(self.len);
        while let Some((child, into)) = self.begun[self.first].take() {
            assert!(into.is_none(), "a read ends in the window");
            self.first = (self.first + 1) % N;
            taken.push(child);
        }
        self.len = 0;
        Ok(taken)
    }

    /// Waits until all requests of the window have completed, even if one has failed.
    ///
    /// # Errors
    /// The error of the first failed request of the window, in the order of start.
    pub async fn drain(&mut self) -> Result<()> {
        while self.len > 0 {
            self.answer().await;
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Returns the copies that the completed reads of the window have avoided or read.
    pub fn copies(&self) -> Copies {
        self.copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufPool, ByteRange, ChildId, Core, ErrorKind, Info, Started};
    use std::cell::RefCell;
    use std::future::Future;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    /// A device that answers each request only on demand of the test.
    #[derive(Default)]
    struct Manual(RefCell<Vec<Option<Done>>>);

    impl Manual {
        fn lower(self: &Rc<Self>) -> Lower {
            Lower::new(self.clone(), 0, Info::disk(1 << 20, 512), "d".into())
        }

        fn started(&self) -> usize {
            self.0.borrow().len()
        }
    }

    impl Core for Manual {
        fn start(&self, _: &mut Op) -> Started {
            self.0.borrow_mut().push(None);
            Started::Running(ChildId(self.started() as u64 - 1))
        }

        fn poll(&self, child: ChildId, _: &mut Context<'_>) -> Poll<Done> {
            self.0.borrow_mut()[child.0 as usize].take().map_or(Poll::Pending, Poll::Ready)
        }

        fn abandon(&self, _: ChildId) {}
    }

    fn polled<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn answer(device: &Manual, n: usize, result: Result<()>) {
        device.0.borrow_mut()[n] = Some(Done { op: Op::Flush, result });
    }

    fn error(message: &str) -> Error {
        Error::new(ErrorKind::Io, message)
    }

    #[test]
    fn window_waits_for_oldest_request_when_full() {
        let device = Rc::new(Manual::default());
        let (lower, mut window) = (device.lower(), Window::<2>::new());
        for _ in 0..2 {
            assert_eq!(polled(window.room()), Poll::Ready(true));
            window.start(&lower, Op::Flush);
        }
        answer(&device, 1, Ok(()));
        let mut room = Box::pin(window.room());
        assert!(polled(&mut room).is_pending(), "the second answer makes no room");
        answer(&device, 0, Ok(()));
        assert_eq!(polled(&mut room), Poll::Ready(true));
        drop(room);
        window.start(&lower, Op::Flush);
        answer(&device, 2, Ok(()));
        assert_eq!(polled(window.drain()), Poll::Ready(Ok(())));
    }

    #[test]
    fn window_returns_first_error_after_all_requests_are_answered() {
        let device = Rc::new(Manual::default());
        let (lower, mut window) = (device.lower(), Window::<4>::new());
        (0..3).for_each(|_| window.start(&lower, Op::Flush));
        answer(&device, 0, Ok(()));
        answer(&device, 2, Err(error("later")));
        let mut drained = Box::pin(window.drain());
        assert!(polled(&mut drained).is_pending());
        answer(&device, 1, Err(error("first")));
        assert_eq!(polled(&mut drained), Poll::Ready(Err(error("first"))));
    }

    #[test]
    fn window_waits_for_later_requests_after_one_fails() {
        let device = Rc::new(Manual::default());
        let (lower, mut window) = (device.lower(), Window::<4>::new());
        (0..2).for_each(|_| window.start(&lower, Op::Flush));
        answer(&device, 0, Err(error("first")));
        let mut drained = Box::pin(window.drain());
        assert!(polled(&mut drained).is_pending(), "the second one is still in flight");
        answer(&device, 1, Ok(()));
        assert_eq!(polled(&mut drained), Poll::Ready(Err(error("first"))));
    }

    #[test]
    fn window_copies_read_answered_in_another_buffer() {
        let device = Rc::new(Manual::default());
        let (lower, mut window) = (device.lower(), Window::<1>::new());
        let pool = BufPool::new(1 << 20, 1 << 20);
        let (wanted, given) = (pool.take(512).unwrap(), pool.take(512).unwrap());
        given.write().fill(7);
        let range = ByteRange::new(0, 512).unwrap();
        window.start(&lower, Op::read(range, wanted.clone()));
        device.0.borrow_mut()[0] = Some(Done { op: Op::read(range, given), result: Ok(()) });
        assert_eq!(polled(window.drain()), Poll::Ready(Ok(())));
        assert_eq!(*wanted.read(), [7; 512]);
    }
}
