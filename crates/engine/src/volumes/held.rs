//! The volumes that devices and exports of the graph itself use.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{OpenMode, Result, error};

use super::{OpenVolume, VolumeSet};
use crate::NodeId;
use crate::slot::AnyDevice;

/// The handle of the graph to a volume that its devices or exports use. There is at most one for each volume. While it
/// exists, clients cannot open a volume that may be written.
pub struct HeldVolume {
    volume: Rc<OpenVolume>,
    is_read_only: bool,
}

impl HeldVolume {
    /// Returns the device of the volume, and its node in the engine; `None` if a live change has closed the volume and
    /// has not opened it again.
    pub fn node(&self) -> Option<(Rc<dyn AnyDevice>, NodeId)> {
        let open = self.volume.entry.open.borrow();
        let open = open.as_ref().filter(|open| !open.is_left)?;
        Some((open.device.clone(), open.node))
    }
}

impl VolumeSet {
    /// Opens the volume with the full name `name` for a device or an export of the graph, and creates it if its name asks
    /// for that; returns `None` if there is no such volume.
    ///
    /// # Errors
    /// As [`VolumeSet::open`]; `InUse` if clients use the volume and it may be written.
    pub async fn hold(&self, name: &str) -> Result<Option<Rc<HeldVolume>>> {
        if let Some(held) = self.held(name) {
            return Ok(Some(held));
        }
        let Some(volume) = self.open_for_any(name, OpenMode::OrCreate).await? else {
            return Ok(None);
        };
        let is_read_only = volume.portal().info().read_only;
        if Rc::strong_count(&volume) > 1 && !is_read_only {
            return Err(error!(InUse, "clients use {name}").next("disconnect those clients first"));
        }
        let held = Rc::new(HeldVolume { volume, is_read_only });
        *held.volume.entry.held.borrow_mut() = Rc::downgrade(&held);
        Ok(Some(held))
    }

    /// Returns the handle of the graph to the volume `name`, if a device or an export of the graph uses the volume.
    pub fn held(&self, name: &str) -> Option<Rc<HeldVolume>> {
        self.0.entries.borrow().get(name)?.held.borrow().upgrade()
    }

    /// Returns the handle of the graph to the volume `name`, while a live change makes a device above the volume. Opens
    /// the volume on the present device if the change has closed it.
    ///
    /// # Errors
    /// As [`super::PausedVolumes::rejoin`].
    pub async fn hold_again(&self, name: &str) -> Result<Option<Rc<HeldVolume>>> {
        let Some(held) = self.held(name) else { return Ok(None) };
        let entry = &held.volume.entry;
        let left = entry.open.borrow().clone().filter(|open| open.is_left);
        if let Some(left) = left {
            let open = self.reopen(entry, &left).await?;
            *entry.open.borrow_mut() = Some(open);
        }
        Ok(Some(held))
    }

    /// Whether clients use the volume `name`, besides devices and exports of the graph.
    pub(super) fn has_clients(&self, name: &str) -> bool {
        let entries = self.0.entries.borrow();
        let Some(entry) = entries.get(name) else { return false };
        let own = usize::from(entry.held.borrow().strong_count() > 0);
        entry.users.borrow().strong_count() > own
    }

    /// Returns an error if a device or an export of the graph may write to the volume `name`.
    pub(super) fn check_free(&self, name: &str) -> Result<()> {
        match self.held(name) {
            Some(held) if !held.is_read_only && !seeded::on(Bug::HeldVolumeShared) => {
                Err(error!(InUse, "a device or an export of the graph uses {name}")
                    .next("use that export, or remove it from the spec"))
            }
            _ => Ok(()),
        }
    }
}
