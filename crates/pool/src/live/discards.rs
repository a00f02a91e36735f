//! Discards of freed blocks on the device below.

use block::{Op, Window};

use super::pool::Inner;
use crate::space::Taken;

/// Discards in flight: few, because a disk that is slow at them makes the requests of clients wait.
const DISCARDS_MAX: usize = 4;

impl Inner {
    /// Discards all that is free. A pool does this after each checkpoint: until then, adjacent blocks become one run, and
    /// blocks that are used again leave.
    pub async fn discard_free(&self) {
        while !self.tasks.is_closing() && self.discard_some().await {
            self.env.give_way().await;
        }
    }

    /// Discards a few runs. Returns whether there was one. A discard that fails does no harm, and is counted.
    async fn discard_some(&self) -> bool {
        let mut window = Window::<DISCARDS_MAX>::new();
        let runs: Vec<Taken> = std::iter::from_fn(|| self.room.with(|space| space.begin_discard()))
            .take(DISCARDS_MAX)
            .collect();
        if runs.is_empty() {
            return false;
        }
        for Taken { address, blocks } in &runs {
            let range =
                self.room.range(*address, *blocks).expect("the space is inside of the pool");
            window.start(&self.lower, Op::Discard { range, fua: false });
        }
        if window.drain().await.is_err() {
            self.undiscarded.set(self.undiscarded.get() + 1);
        }
        for run in &runs {
            self.room.with(|space| space.end_discard(*run));
        }
        self.changed();
        true
    }
}
