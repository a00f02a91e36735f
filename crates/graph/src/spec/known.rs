//! The facts about labelled disks that a start has found, and the states of devices in their labels.

use std::collections::BTreeMap;

use block::{Info, StoredState};
use kind::{DeviceConfig, Kind, Value, ValueType};

use super::PlannedNode;

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
    /// The states of devices in the label of the disk, by name of the device.
    pub states: BTreeMap<String, StoredState>,
}

/// Returns the newest state of a device over the nodes `lowers` in the labels of the known disks beneath it.
pub(super) fn state_of<'k>(
    device: &str,
    lowers: &[usize],
    nodes: &[PlannedNode],
    known: &'k BTreeMap<String, KnownDisk>,
) -> Option<&'k StoredState> {
    let mut beneath = lowers.to_vec();
    let mut newest = None::<&StoredState>;
    while let Some(node) = beneath.pop().map(|index| &nodes[index]) {
        beneath.extend(&node.lowers);
        let disk = known.get(&node.name).filter(|_| node.lowers.is_empty());
        if let Some(state) = disk.and_then(|disk| disk.states.get(device))
            && newest.is_none_or(|newest| newest.sequence < state.sequence)
        {
            newest = Some(state);
        }
    }
    newest
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
