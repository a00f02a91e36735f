//! The home of a device's persistent objects: the room on its lowers, the state in labels, and the life of the vault, from
//! the first start to the close. It is a service for kinds that declare objects ([`Objects`]).
//!
//! | file | holds |
//! | --- | --- |
//! | `objects.rs` | the objects that a kind declares, and their sizes |
//! | `record.rs` | the codec of the state in labels, as in `docs/formats/state.md` |
//! | `labels.rs` | reading and writing this state |
//! | `room.rs` | the ranges of the lowers for the objects and for the data |
//! | `opening.rs` | first starts, live changes and closes, for any store |
//! | `store.rs` | the vault as such a store |
//! | `device.rs` | a device with the report, the check and the close of its objects |

mod device;
mod labels;
mod objects;
mod opening;
pub mod record;
mod room;
mod store;

use std::cell::Cell;
use std::rc::Rc;

use block::env::LocalFuture;
use block::{Env, Error, Lower, Result};

pub use device::{Homed, VERBS};
pub use labels::Labels;
pub use objects::{OBJECTS_MAX, Objects};
pub use opening::{Access, Opening, Store};
pub use room::{Made, Room, check_found};
pub use store::Opened;

use crate::vault::Vault;
use store::VaultStore;

/// The home of a device: its vault, which may still be opening, and `T`, the kind's handles to its objects.
pub struct Home<T: 'static>(Rc<Opening<VaultStore<T>>>);

impl<T: 'static> Clone for Home<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The parts from which a device opens its home.
pub struct HomeParts {
    /// The environment of the process.
    pub env: Env,
    /// The name of the kind, which owns the objects.
    pub kind: &'static str,
    /// The room, whose tables the handles below have.
    pub room: Room,
    /// Handle to the bytes of the vault.
    pub store: Lower,
    /// Handle to the bytes of the journal, if the kind has one.
    pub journal: Option<Lower>,
    /// Handle to the data of the device.
    pub data: Lower,
}

impl HomeParts {
    /// Returns the value of the option `name` with which the device was made. A new device is made with `value`, which its
    /// state in labels then has, as with [`Objects::fixed`]. So an option can be fixed whose default depends on other devices.
    pub fn fix(&mut self, name: &str, value: &str) -> String {
        let record = &mut self.room.record;
        if let Some(made) = record.fixed_value(name) {
            return made.to_owned();
        }
        record.fixed.push((name.to_owned(), value.to_owned()));
        record.fixed.sort_unstable();
        value.to_owned()
    }

    /// Opens the vault, or makes it with its objects on new disks. `build` returns the kind's handles to its objects. If
    /// a live change makes the device, the vault opens for writing once the change is committed, and `build` is called
    /// a second time.
    ///
    /// # Errors
    /// Those of the vault, of writing to labels, and of `build`.
    pub async fn open<T: 'static>(
        self,
        build: impl Fn(Opened) -> LocalFuture<Result<T>> + 'static,
    ) -> Result<Home<T>> {
        self.open_until(build, |_| Box::pin(std::future::ready(()))).await
    }

    /// Opens the vault, as [`HomeParts::open`] does. `finish` ends the work of the kind on its objects: [`Home::close`] calls
    /// it before it closes the vault.
    ///
    /// # Errors
    /// As [`HomeParts::open`].
    pub async fn open_until<T: 'static>(
        self,
        build: impl Fn(Opened) -> LocalFuture<Result<T>> + 'static,
        finish: impl Fn(&T) -> LocalFuture<()> + 'static,
    ) -> Result<Home<T>> {
        let Self { env, kind, room, store, journal, data } = self;
        let Room { labels, objects, found, record, read_only, keeps_data, .. } = room;
        let store = VaultStore {
            env: env.clone(),
            kind,
            objects,
            store,
            journal,
            data,
            read_only,
            keeps_data,
            accepts_loss: labels.store().accepts_loss(),
            build: Box::new(build),
            is_lost: Cell::new(false),
            finish: Box::new(finish),
        };
        let opening = Opening::new(&env, store, labels, found, record);
        opening.begin().await?;
        Ok(Home(opening))
    }
}

impl<T: 'static> Home<T> {
    /// Waits until the vault is open, and returns the handles to the objects.
    ///
    /// # Errors
    /// The error with which the opening failed.
    pub async fn get(&self) -> Result<&T> {
        self.0.get().await.map(|(_, objects)| objects)
    }

    /// Waits until the vault is open, and returns it.
    ///
    /// # Errors
    /// As [`Home::get`].
    pub async fn vault(&self) -> Result<&Vault> {
        self.0.get().await.map(|(vault, _)| vault)
    }

    /// Returns the handles to the objects, if the vault is open now.
    pub fn now(&self) -> Option<&T> {
        self.0.now().map(|(_, objects)| objects)
    }

    /// Returns the handles to the objects, if the vault is open now, at least for reading.
    pub fn now_for_reading(&self) -> Option<&T> {
        self.0.now_for_reading().map(|(_, objects)| objects)
    }

    /// Makes all data and all posted transactions durable that were completed before: the flush of a device.
    ///
    /// # Errors
    /// As [`Home::get`] and [`Vault::sync_with_data`]; the error of a vault that has failed.
    pub async fn sync(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)?;
        self.vault().await?.sync_with_data().await
    }

    /// Returns the own state of the kind in labels; empty until the kind has written one.
    pub fn own(&self) -> Vec<u8> {
        self.0.record().own
    }

    /// Writes the own state of the kind to labels, durably. The vault must be open.
    ///
    /// # Errors
    /// The first error of a write to a label.
    ///
    /// # Panics
    /// If the state is longer than [`record::OWN_BYTES_MAX`].
    pub async fn keep_own(&self, own: Vec<u8>) -> Result<()> {
        self.0.keep_own(own).await
    }

    /// Returns the error of the opening, or the one after which the vault takes no changes.
    pub fn failure(&self) -> Option<Error> {
        self.0.failure()
    }

    /// Returns the error with which the vault did not open, if the operator has accepted that it was made anew.
    pub fn replaced(&self) -> Option<Error> {
        self.0.replaced()
    }

    /// Waits until the live change that makes the device is committed.
    pub async fn committed(&self) {
        self.0.committed().await;
    }

    /// Closes the vault with a last checkpoint: an opening that still runs ends first. Only the first call has an effect.
    pub async fn close(&self) {
        self.0.close().await;
    }
}
