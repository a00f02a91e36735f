//! The state of a device in the labels beneath all of its lowers, for kinds that keep the same state on all lowers.

use std::rc::Rc;

use block::{Found, Result, StateStore};

/// The storage for the state of one device in labels.
pub struct Kept {
    store: Rc<dyn StateStore>,
    /// Ports of the lowers beneath which the state is kept.
    ports: Vec<usize>,
    read_only: bool,
}

/// The state of a device in labels, when the device is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start<'a> {
    /// The disks have this state.
    State(&'a [u8]),
    /// All disks are new.
    New,
    /// The disks have no state, and a disk is absent.
    Absent,
    /// The disks have no state, and a disk is not new.
    Foreign,
}

impl Kept {
    /// Creates the storage for the state of a device over `lowers` lowers. `read_only`: whether nothing is written.
    pub fn new(store: Rc<dyn StateStore>, lowers: usize, read_only: bool) -> Self {
        Self { store, ports: (0..lowers).collect(), read_only }
    }

    /// Returns the store.
    pub fn store(&self) -> &Rc<dyn StateStore> {
        &self.store
    }

    /// Returns the newest state that the graph found in labels.
    pub fn start(&self) -> Start<'_> {
        let found: Vec<&Found> = self.ports.iter().map(|port| self.store.found(*port)).collect();
        let states = found.iter().filter_map(|found| found.state.as_ref());
        if let Some(state) = states.max_by_key(|state| state.sequence) {
            return Start::State(&state.bytes);
        }
        match found.iter().find(|found| !found.fresh) {
            None => Start::New,
            Some(found) if !found.present => Start::Absent,
            Some(_) => Start::Foreign,
        }
    }

    /// Writes `state` to the labels if a present disk lacks it, because that disk was absent or was labelled later.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub async fn keep_everywhere(&self, state: Vec<u8>) -> Result<()> {
        let is_everywhere = |port: &usize| self.store.found(*port).everywhere;
        if self.read_only || self.ports.iter().all(is_everywhere) {
            return Ok(());
        }
        self.keep(state).await
    }

    /// Writes `state` to the labels, durably.
    ///
    /// # Errors
    /// The first error of a write to a label.
    pub async fn keep(&self, state: Vec<u8>) -> Result<()> {
        let written = self.store.write(&self.ports, state).await;
        written.into_iter().try_for_each(|(_, answer)| answer)
    }
}
