//! The state of a device in the labels beneath all of its lowers, for kinds that keep the same state on all lowers.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Found, Result, StateStore, bail, error};

use super::record::Record;

/// The storage for the state of one device in labels.
pub struct Labels {
    store: Rc<dyn StateStore>,
    /// Ports of the lowers beneath which the state is kept.
    ports: Vec<usize>,
    read_only: bool,
}

impl Labels {
    /// Creates the storage for the state of a device over `lowers` lowers. `read_only`: whether nothing is written.
    pub fn new(store: Rc<dyn StateStore>, lowers: usize, read_only: bool) -> Self {
        Self { store, ports: (0..lowers).collect(), read_only }
    }

    /// Whether nothing is written to the labels.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the store.
    pub fn store(&self) -> &Rc<dyn StateStore> {
        &self.store
    }

    /// Returns the newest state that the graph found in labels, of a device of the kind `kind`; `None` on new disks. Only
    /// new disks may have none: on other disks a new store would destroy data. With `is_data_kept`, the disks beneath the
    /// first port need not be new, because nothing is made there.
    ///
    /// # Errors
    /// `NotFound` if the disks have no state, and one is absent or not new; `ReadOnly` if they are new and read-only.
    pub fn start(&self, kind: &str, is_data_kept: bool) -> Result<Option<&[u8]>> {
        let found: Vec<&Found> = self.ports.iter().map(|port| self.store.found(*port)).collect();
        let states = found.iter().filter_map(|found| found.state.as_ref());
        if let Some(state) = states.max_by_key(|state| state.sequence) {
            return Ok(Some(&state.bytes));
        }
        let made = if is_data_kept { &found[1..] } else { &found[..] };
        match made.iter().find(|found| !found.fresh) {
            None if self.read_only => {
                bail!(ReadOnly, "the disks below are new and read-only, so no {kind} can be made")
            }
            None => Ok(None),
            Some(_) if seeded::on(Bug::StoreOnUsedDisks) => Ok(None),
            Some(found) if !found.present => {
                bail!(NotFound, "the disk with the state of the {kind} is absent")
            }
            Some(_) => Err(error!(
                NotFound,
                "the disks below have no {kind}, but are not new: their bytes were not written \
                 through a {kind}"
            )
            .next("label the disks anew with --wipe, if all their bytes may be lost")),
        }
    }

    /// Returns the state of a device with a store, of the kind `kind`; `None` on new disks.
    ///
    /// # Errors
    /// As [`Self::start`]; `Corrupt` if the state is damaged or of another version, `Invalid` if it is that of another
    /// kind.
    pub fn found(&self, kind: &str, is_data_kept: bool) -> Result<Option<Record>> {
        let bytes = self.start(kind, is_data_kept)?;
        bytes.map(|bytes| decode(kind, bytes)).transpose()
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

/// Parses the state in labels of a device of the kind `kind`.
///
/// # Errors
/// `Corrupt` if the state is damaged or of another version, `Invalid` if it is that of another kind.
pub fn decode(kind: &str, bytes: &[u8]) -> Result<Record> {
    let record = Record::decode(bytes)
        .map_err(|why| error!(Corrupt, "the state of the {kind} in the label is damaged: {why}"))?;
    // Another device may have had the name before.
    if record.kind != kind {
        let made = &record.kind;
        return Err(error!(Invalid, "the disks have a {made} of this name, not a {kind}")
            .next(format!("set kind = \"{made}\"")));
    }
    Ok(record)
}
