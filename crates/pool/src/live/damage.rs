//! Damage of maps: a checkpoint goes on without what it needs damaged nodes for.
//!
//! A line with a damaged node keeps its trees. Its further changes are in a new tree above them, so they are durable, and
//! reads fail only in the range of the damaged node. The space of blocks that only the damaged node refers to stays in use.

use block::{Error, ErrorKind, Result};

use super::nodes::{Attempt, Passes};
use super::pool::Inner;
use super::vdisk::Vdisk;
use crate::map::Found;

/// Whether an error is damage of nodes, or of a later version.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::ReadOnly)
}

impl Inner {
    /// Carries out a part of a checkpoint that reads nodes of a line. If nodes are damaged, the part has no effect, and the
    /// result is `None`.
    ///
    /// # Errors
    /// All other errors of the part.
    pub async fn attempt<T>(
        &self,
        passes: &Passes,
        vdisk: &Vdisk,
        found: &mut Found,
        part: impl AsyncFnOnce(&Attempt<'_>, &mut Found) -> Result<T>,
    ) -> Result<Option<T>> {
        let (store, mut new) = (Attempt::new(passes), Found::default());
        let done = part(&store, &mut new).await;
        match self.undamaged(vdisk, done) {
            Ok(Some(done)) => {
                found.blocks.append(&mut new.blocks);
                found.nodes.append(&mut new.nodes);
                Ok(Some(done))
            }
            undone => {
                store.made().into_iter().for_each(|address| self.free_node(address));
                undone
            }
        }
    }

    /// As [`Inner::attempt`], for a part that can be left out. The result is also `None` if too few blocks are free for its
    /// nodes.
    ///
    /// # Errors
    /// All other errors of the part.
    pub async fn attempt_if_room<T>(
        &self,
        passes: &Passes,
        vdisk: &Vdisk,
        found: &mut Found,
        part: impl AsyncFnOnce(&Attempt<'_>, &mut Found) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.attempt(passes, vdisk, found, part).await {
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            done => done,
        }
    }

    /// Returns the result of a read of nodes of a line; `None` if they are damaged, which is noted.
    ///
    /// # Errors
    /// All other errors.
    pub fn undamaged<T>(&self, vdisk: &Vdisk, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) if is_damage(&error) => {
                let name = vdisk.row.borrow().name.clone();
                let words = match name.as_str() {
                    "" => error.to_string(),
                    name => format!("{name}: {error}"),
                };
                let before = self.damage.borrow_mut().insert(vdisk.number, words);
                if let (None, Some(call)) = (before, self.on_damage.get()) {
                    call(&name, &error);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the damage that checkpoints have met: for each vdisk the newest.
    pub fn damage(&self) -> Vec<String> {
        self.damage.borrow().values().cloned().collect()
    }
}
