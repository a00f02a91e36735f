//! The facts about labelled disks that a start has found, and the states of devices in their labels.

use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Info, StoredState};
use kind::{DeviceConfig, Kind, Value, ValueType};

use super::plan::PlannedNode;

/// The facts about a labelled disk that a start has found by reading its label or by missing the disk. These facts take
/// precedence over those that the kind of the disk reports.
#[derive(Clone, Debug)]
pub struct KnownDisk {
    /// Size, block size and other facts about the data of the disk, without its label areas.
    pub info: Info,
    /// Whether this start creates the disk.
    pub created: bool,
    /// Whether the start has not found the disk.
    pub absent: bool,
    /// Bytes of the buffer pool that the kind of the disk holds or reserves while the disk is open.
    pub standing_bytes: usize,
    /// Properties of the disk for the user, such as `O_DIRECT`.
    pub words: String,
    /// Whether the disk gets its first label from this start or change, or got it from one that did not complete.
    pub fresh: bool,
    /// The states of devices in the label of the disk, by name of the device. Only those of devices that the graph had
    /// before are listed.
    pub states: Rc<BTreeMap<String, Rc<StoredState>>>,
}

/// Whether the planned disk gets its first label, or got it from a start or change that did not complete.
pub(super) fn is_fresh(disk: &PlannedNode, known: &BTreeMap<String, KnownDisk>) -> bool {
    known.get(&disk.name).map_or(disk.created, |known| known.fresh)
}

/// Returns the newest state of the device called `device` in the labels of `disks`.
pub(super) fn newest_state<'d>(
    disks: impl Iterator<Item = &'d PlannedNode>,
    device: &str,
    known: &BTreeMap<String, KnownDisk>,
) -> Option<Rc<StoredState>> {
    let known = disks.filter_map(|disk| known.get(&disk.name));
    let states = known.filter_map(|known| known.states.get(device));
    states.max_by_key(|state| state.sequence).cloned()
}

/// Returns the configuration of a device for its plan: options that the spec does not set have the values with which the device
/// was made.
pub(super) fn with_fixed(
    kind: &Kind,
    given: &DeviceConfig,
    fixed: Vec<(String, String)>,
) -> DeviceConfig {
    let mut given = given.clone();
    for (name, value) in fixed {
        if let Some(option) = kind.option(&name)
            && given.options.iter().all(|(set, _)| *set != option.name)
            && matches!(option.value, ValueType::Choice(_))
        {
            given.options.push((option.name, Value::Text(value)));
        }
    }
    given
}
