//! The token that ends the requests of a connection, and the waits that depend on it.

use std::cell::Cell;

use block::{Notify, first};

/// Permission of a connection to begin requests. It can be withdrawn once, and not restored.
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

    /// Returns the output of `future`; `None` if the permission is withdrawn first, or at the same time.
    pub async fn unless<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut output = None;
        let done = async { output = Some(future.await) };
        let _ = first(self.waiting.until(|| self.shut.get()), done).await;
        output
    }
}
