//! Disk and socket operations in flight, and their outcomes.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::{Buf, Result};

/// The owner of disk or socket operations in flight: a reactor of `runtime`, or a disk or socket of `sim`.
pub trait Tickets {
    /// Returns the outcome of the operation `id` when the kernel has completed the operation. The outcome is returned
    /// once.
    fn poll(&self, id: u64, cx: &mut Context<'_>) -> Poll<Outcome>;
    /// Ends the wait for the operation `id`. The operation keeps its buffers until the kernel has completed it.
    fn abandon(&self, id: u64);
}

/// The outcome of a disk or socket operation, with its buffers.
#[derive(Debug)]
pub struct Outcome {
    /// Number of bytes that the operation read, wrote, received or sent; or the error of the operation.
    pub result: Result<usize>,
    /// Buffer of a disk operation or a receive, returned to the caller.
    pub buf: Option<Buf>,
    /// Buffers of a send, returned to the caller in the same vector.
    pub parts: Vec<Buf>,
}

impl Outcome {
    /// Returns the outcome of an operation that had no buffers.
    pub fn bare(result: Result<usize>) -> Self {
        Self { result, buf: None, parts: Vec::new() }
    }
}

/// A handle to a disk or socket operation in flight. Awaiting the ticket returns the outcome; dropping the ticket
/// ends only the wait.
#[must_use = "the outcome reports whether the operation succeeded"]
pub struct Ticket {
    owner: Option<Rc<dyn Tickets>>,
    id: u64,
}

impl Ticket {
    /// Returns a ticket for the operation `id` of `owner`.
    pub fn new(owner: Rc<dyn Tickets>, id: u64) -> Self {
        Self { owner: Some(owner), id }
    }

    /// Returns a ticket for an operation whose outcome is known already.
    pub fn ready(outcome: Outcome) -> Self {
        Self::new(Rc::new(Ready(Cell::new(Some(outcome)))), 0)
    }
}

struct Ready(Cell<Option<Outcome>>);

impl Tickets for Ready {
    fn poll(&self, _: u64, _: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Ready(self.0.take().expect("a ticket is not polled after its outcome"))
    }

    fn abandon(&self, _: u64) {}
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let owner = self.owner.as_ref().expect("a ticket is not polled after its outcome");
        let polled = owner.poll(self.id, cx);
        if polled.is_ready() {
            self.owner = None;
        }
        polled
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.abandon(self.id);
        }
    }
}
