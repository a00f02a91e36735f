//! Freed data blocks of a remap device, from the record that frees them to its proof. Only then are they discarded on the
//! lower, and used again: until then, a replay may drop the record together with an earlier one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Op, Result};
use meta::alloc::{Freed, Places};

use super::blocks::Window;
use super::device::Inner;
use super::device::Map;

/// Runs of freed data blocks that wait for the proof of the record that freed them.
#[derive(Default)]
pub struct Releases {
    /// Each with the number of its record; about in the order of the numbers.
    waiting: RefCell<VecDeque<(u64, Places, Freed)>>,
    /// Whether the task runs that waits for the proofs.
    has_task: Cell<bool>,
}

impl Inner {
    /// Releases data blocks once the record `number`, which frees them, is proven.
    pub fn release_later(self: &Rc<Self>, map: &Map, number: u64, freed: Vec<(Places, Freed)>) {
        if freed.is_empty() {
            return;
        }
        let count: u64 = freed.iter().map(|(places, _)| places.count).sum();
        map.taken.set(map.taken.get() - count);
        let waiting = freed.into_iter().map(|(places, freed)| (number, places, freed));
        self.releases.waiting.borrow_mut().extend(waiting);
        if self.releases.has_task.replace(true) {
            return;
        }
        let inner = self.clone();
        self.tasks.spawn("a remap's freed blocks", async move {
            inner.release_all().await;
            inner.releases.has_task.set(false);
        });
    }

    /// Releases all waiting data blocks, each when the record that freed it is proven. Ends early if the vault fails: then
    /// nothing is written any more.
    async fn release_all(&self) {
        let Ok(map) = self.map().await else { return };
        loop {
            let first = self.releases.waiting.borrow().front().map(|(number, ..)| *number);
            let Some(number) = first else { return };
            if seeded::on(Bug::FreedDiscardedEarly) {
                let all: Vec<_> = {
                    let waiting = self.releases.waiting.borrow();
                    waiting.iter().map(|(_, places, _)| *places).collect()
                };
                self.discard_below(all.into_iter()).await;
            }
            let proven = match self.held.get() {
                _ if seeded::on(Bug::FreedReusedEarly) => Ok(()),
                0 => map.vault.until_proven(number).await,
                // A write waits for these blocks.
                _ => map.vault.prove().await,
            };
            if proven.is_err() {
                return;
            }
            self.release_proven(map).await;
        }
    }

    /// Proves the records that have freed data blocks, and releases these. Returns whether there were any.
    ///
    /// # Errors
    /// Errors of writing or flushing the log of the vault.
    pub async fn release_freed(&self, map: &Map) -> Result<bool> {
        if self.releases.waiting.borrow().is_empty() && !map.vault.holds_until_proof() {
            return Ok(false);
        }
        map.vault.prove().await?;
        self.release_proven(map).await;
        Ok(true)
    }

    /// Discards the data blocks on the lower that proven records have freed, and permits their use.
    async fn release_proven(&self, map: &Map) {
        let released: Vec<_> = {
            let mut waiting = self.releases.waiting.borrow_mut();
            let is_early = seeded::on(Bug::FreedReusedEarly);
            let is_proven = |(number, ..): &(u64, Places, Freed)| map.vault.is_proven(*number);
            let count = waiting.iter().take_while(|one| is_early || is_proven(one)).count();
            waiting.drain(..count).collect()
        };
        self.discard_below(released.iter().map(|(_, places, _)| *places)).await;
        drop(released);
        self.report_free_space();
    }

    /// Discards data blocks on the lower. Counts a failure, which does no harm.
    async fn discard_below(&self, all: impl Iterator<Item = Places>) {
        let mut window = Window::default();
        for Places { first, count } in all.filter(|_| self.data.info().discard) {
            let range = self.layout.places(first, count);
            window.room().await;
            window.start(&self.data, Op::Discard { range, fua: false });
        }
        if window.drain().await.is_err() {
            self.undiscarded.set(self.undiscarded.get() + 1);
        }
    }
}
