//! The writes in place: in order where ranges overlap, a bounded number at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use block::env::LocalFuture;
use block::{Buf, Env, Error, Mode, Notify, RangeLock, Result};

use super::part::Part;
use super::{PLACE_BYTES_MAX, PLACES_MAX};

/// The owner of a journal: it writes the changes in place.
///
/// The journal holds it as long as it is open. So the owner of the journal's handle gives it an object that does not hold
/// that handle.
pub trait InPlace {
    /// Makes the change of a part in place: on the lower, and in the owner's own state. `data` has the bytes of a part of
    /// type data. A replay may make a change again that was made before. It then makes all later ones again, too.
    fn place(self: Rc<Self>, part: Part, data: Option<Buf>) -> LocalFuture<Result<()>>;

    /// Makes durable all changes that were made before.
    fn flush(self: Rc<Self>) -> LocalFuture<Result<()>>;
}

/// The writes in place that are in flight.
pub struct Placer {
    env: Env,
    target: Rc<dyn InPlace>,
    /// The ranges that are being written, of each lower.
    ranges: RefCell<BTreeMap<u16, RangeLock>>,
    /// Number of parts in flight, and bytes of their payload.
    in_flight: Cell<(u32, u64)>,
    failure: RefCell<Option<Error>>,
    changed: Notify,
}

impl Placer {
    pub fn new(env: &Env, target: Rc<dyn InPlace>) -> Rc<Self> {
        let (env, ranges, failure) = (env.clone(), RefCell::default(), RefCell::default());
        let (in_flight, changed) = Default::default();
        Rc::new(Self { env, target, ranges, in_flight, failure, changed })
    }

    /// Waits until a part with so many bytes of payload may be in flight beside the others.
    pub async fn room(&self, bytes: u64) {
        let fits =
            |flying: (u32, u64)| flying.0 < PLACES_MAX && flying.1 + bytes <= PLACE_BYTES_MAX;
        let has_room = || self.in_flight.get().0 == 0 || fits(self.in_flight.get());
        self.changed.until(has_room).await;
    }

    /// Begins to make the change of a part in place. It follows the earlier ones of its range.
    ///
    /// # Errors
    /// The error of an earlier part.
    pub fn place(self: &Rc<Self>, part: Part, data: Option<Buf>) -> Result<()> {
        self.failure.borrow().clone().map_or(Ok(()), Err)?;
        let bytes = part.payload_bytes();
        let ranges = self.ranges.borrow_mut().entry(part.lower).or_default().clone();
        let turn = ranges.lock(part.range, Mode::Exclusive);
        let (count, sum) = self.in_flight.get();
        self.in_flight.set((count + 1, sum + bytes));
        let placer = self.clone();
        self.env.spawn("a write in place of a journal", async move {
            let _turn = turn.await;
            // After a failure of an older part, newer bytes must not reach the range before a replay.
            let is_failed = placer.failure.borrow().is_some();
            if !is_failed && let Err(error) = placer.target.clone().place(part, data).await {
                placer.failure.borrow_mut().get_or_insert(error);
            }
            let (count, sum) = placer.in_flight.get();
            placer.in_flight.set((count - 1, sum - bytes));
            placer.changed.wake();
        });
        Ok(())
    }

    /// Waits until no part is in flight.
    ///
    /// # Errors
    /// The first error of a part.
    pub async fn ended(&self) -> Result<()> {
        self.changed.until(|| self.in_flight.get().0 == 0).await;
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Makes durable all parts that are in place.
    ///
    /// # Errors
    /// The error of the owner.
    pub async fn flush(&self) -> Result<()> {
        self.target.clone().flush().await
    }
}
