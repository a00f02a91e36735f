//! Two futures, of which one ends first.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Which one ended.
pub enum First<A, B> {
    /// The first one.
    One(A),
    /// The other one.
    Other(B),
}

/// Waits for whichever ends first, the first one if both have; drops the other.
pub async fn race<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> First<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(First::One(done)),
        Poll::Pending => other.as_mut().poll(cx).map(First::Other),
    })
    .await
}
