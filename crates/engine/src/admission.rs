//! Admission: a client's request begins only when the engine can set aside the slots and buffers that the request and
//! its children may need.

use std::future::poll_fn;
use std::task::Poll;

use block::Op;
use block::seeded::{self, Bug};

use super::share::{Need, Share, may_begin};
use super::{Engine, Entry, Inner, Portal, Sink};

/// A number greater than [`SLOTS_MAX`]. While it is subtracted from the free slots, the engine admits no client's
/// request.
const HELD: i64 = 1 << 40;

impl Engine {
    /// Waits until the engine can set aside the reserve of a client's request `op` to `portal`, and no unaligned request
    /// rewrites a block that `op` would change. `share` is that of the client ([`Sink::share`]).
    pub async fn wait_capacity(&self, portal: &Portal, op: &Op, share: Option<&Share>) {
        let (_, need, _) = portal.route(op);
        poll_fn(|cx| {
            if self.0.may_begin(need, portal, share) && !portal.is_rewritten(op) {
                return Poll::Ready(());
            }
            // The end of another request may free a reserve, and a returned buffer may free bytes.
            self.0.waiting.wake_later(cx);
            if need.bytes > 0 {
                self.0.pool.wake_later(cx);
            }
            Poll::Pending
        })
        .await;
    }

    /// Suspends the engine until the returned guard is dropped: the engine admits no client's request, so that such
    /// requests wait. Requests that devices start themselves continue.
    pub fn suspend(&self) -> Suspended {
        self.0.slots_left.set(self.0.slots_left.get() - held_slots());
        Suspended(self.clone())
    }

    /// Waits until every client's request that the engine has admitted is done.
    pub async fn drained(&self) {
        self.0.waiting.until(|| self.in_flight() == 0).await;
    }
}

impl Inner {
    /// Whether the request of a client to `portal` that needs `need` may begin now.
    #[inline]
    pub(super) fn may_begin(&self, need: Need, portal: &Portal, share: Option<&Share>) -> bool {
        let is_idle = self.in_flight.get() == 0;
        let shares = [Some(portal.share()), share];
        may_begin(need, self.slots_left.get(), &self.pool, is_idle, shares)
    }

    /// Sets the reserve of a client's request aside that may begin ([`Inner::may_begin`]).
    #[inline]
    pub(super) fn set_aside(&self, need: Need, portal: &Portal, share: Option<&Share>) {
        let reserved = need.bytes == 0 || self.pool.reserve(need.bytes);
        debug_assert!(reserved, "a request begins when its bytes are free");
        self.slots_left.set(self.slots_left.get() - need.slots);
        self.in_flight.set(self.in_flight.get() + 1);
        [Some(portal.share()), share].into_iter().flatten().for_each(|share| share.add(need));
    }

    /// Returns the reserve of a client's request.
    #[inline]
    pub(super) fn give_back(&self, entry: &Entry, sink: &dyn Sink) {
        let need = entry.need.get();
        self.slots_left.set(self.slots_left.get() + need.slots);
        self.in_flight.set(self.in_flight.get() - 1);
        let portal = entry.portal.take().expect("a client's request has its portal");
        let shares = [Some(portal.share()), sink.share()];
        shares.into_iter().flatten().for_each(|share| share.subtract(need));
        if need.bytes > 0 {
            self.pool.unreserve(need.bytes);
        }
    }
}

/// Guard that prevents clients' requests from beginning in an engine until the guard is dropped.
pub struct Suspended(Engine);

impl Drop for Suspended {
    fn drop(&mut self) {
        let Inner { slots_left, waiting, .. } = &*self.0.0;
        slots_left.set(slots_left.get() + held_slots());
        if !seeded::on(Bug::ChangeDropsHeld) {
            waiting.wake();
        }
    }
}

/// Returns the number that a suspension of the engine subtracts from the free slots.
fn held_slots() -> i64 {
    if seeded::on(Bug::ChangeNotHeld) { 0 } else { HELD }
}
