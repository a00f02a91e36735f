//! A set of futures that one task awaits together, each with a deadline of its own if it has one.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Futures that one task awaits together, and that end in any order. The caller provides the memory; a fan allocates
/// none.
///
/// A child request with a deadline is a [`Guard`](crate::Guard). If the deadline passes, the guard returns the child
/// request itself, and the caller can await it elsewhere. So a late request keeps its buffers.
pub struct Fan<'r, F>(&'r mut [Option<F>]);

impl<'r, F: Future + Unpin> Fan<'r, F> {
    /// Creates a fan of the futures in `room`. [`Fan::add`] puts further futures into empty elements of `room`.
    pub fn new(room: &'r mut [Option<F>]) -> Self {
        Self(room)
    }

    /// Adds a future to the fan as number `index`.
    ///
    /// # Panics
    /// If the fan already has a future with this number, or `room` has no such element.
    pub fn add(&mut self, index: usize, future: F) {
        assert!(self.0[index].replace(future).is_none(), "the fan has a future at {index} already");
    }

    /// Waits until any future of the fan has ended, and returns its output with the number of the future; `None` if
    /// the fan is empty.
    pub async fn next(&mut self) -> Option<(usize, F::Output)> {
        poll_fn(|cx| {
            let mut is_empty = true;
            for (index, place) in self.0.iter_mut().enumerate() {
                let Some(future) = place else { continue };
                is_empty = false;
                if let Poll::Ready(answer) = Pin::new(future).poll(cx) {
                    *place = None;
                    return Poll::Ready(Some((index, answer)));
                }
            }
            if is_empty { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

/// Waits for all `futures` at the same time, and returns their outputs in the order of the futures.
pub async fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut room: Vec<_> = futures.into_iter().map(Some).collect();
    let mut answers: Vec<_> = room.iter().map(|_| None).collect();
    let mut fan = Fan::new(&mut room);
    while let Some((index, answer)) = fan.next().await {
        answers[index] = Some(answer);
    }
    answers.into_iter().map(|answer| answer.expect("every future has answered")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Deadline;
    use crate::test_world::TestWorld;
    use std::cell::Cell;
    use std::future::pending;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Waker};
    use std::time::Duration;

    fn polled<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Returns a future that answers once its cell has a value.
    fn answer_of(cell: &Rc<Cell<Option<u32>>>) -> impl Future<Output = u32> + Unpin + use<> {
        let cell = cell.clone();
        poll_fn(move |_| cell.take().map_or(Poll::Pending, Poll::Ready))
    }

    #[test]
    fn fan_returns_answers_in_order_of_completion() {
        let cells: [Rc<Cell<Option<u32>>>; 2] = Default::default();
        let mut room = [const { None }; 4];
        let mut fan = Fan::new(&mut room);
        fan.add(0, answer_of(&cells[0]));
        fan.add(3, answer_of(&cells[1]));
        assert!(polled(fan.next()).is_pending());
        cells[1].set(Some(7));
        assert_eq!(polled(fan.next()), Poll::Ready(Some((3, 7))));
        cells[0].set(Some(8));
        assert_eq!(polled(fan.next()), Poll::Ready(Some((0, 8))));
        assert_eq!(polled(fan.next()), Poll::Ready(None));
    }

    #[test]
    fn fan_returns_late_request_after_deadline() {
        let (world, env) = TestWorld::new();
        let deadline = Deadline::new(&env, Duration::from_secs(8));
        let cell: Rc<Cell<Option<u32>>> = Rc::default();
        let late = Rc::new(Cell::new(None));
        let (answer, found) = (deadline.guard(answer_of(&cell)), late.clone());
        env.spawn("a fan", async move {
            let mut room = [Some(answer)];
            let answer = Fan::new(&mut room).next().await;
            found.set(answer.and_then(|(_, answer)| answer.err()));
        });
        world.advance(Duration::from_secs(7));
        assert!(late.take().is_none());
        world.advance(Duration::from_secs(2));
        let child = late.take().expect("the limit has passed");
        assert_eq!(world.tasks(), 0, "only the watcher of the deadline could be left");
        cell.set(Some(9));
        assert_eq!(polled(child), Poll::Ready(9), "the late child can still be awaited");
    }

    #[test]
    fn join_all_returns_answers_in_order_of_futures() {
        let cells: [Rc<Cell<Option<u32>>>; 2] = Default::default();
        let mut both = Box::pin(all(cells.iter().map(answer_of).collect()));
        cells[1].set(Some(2));
        assert!(polled(&mut both).is_pending());
        cells[0].set(Some(1));
        assert_eq!(polled(&mut both), Poll::Ready(vec![1, 2]));
        assert!(polled(all(vec![pending::<()>()])).is_pending());
    }
}
