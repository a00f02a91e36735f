//! The cancel token of a connection: open until it is cancelled. Shutting it ends the waits that it guards.

use std::cell::Cell;

use block::{Notify, first};

/// Permission of a connection to begin more requests. It is withdrawn once, for good.
#[derive(Default)]
pub struct CancelToken {
    shut: Cell<bool>,
    waiting: Notify,
}

impl CancelToken {
    pub fn cancel(&self) {
        self.shut.set(true);
        self.waiting.wake();
    }

    pub fn is_cancelled(&self) -> bool {
        self.shut.get()
    }

    /// Returns the output of `future`; `None` once the token is cancelled, which takes precedence.
    pub async fn unless<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut output = None;
        let done = async { output = Some(future.await) };
        let _ = first(self.waiting.until(|| self.shut.get()), done).await;
        output
    }
}
