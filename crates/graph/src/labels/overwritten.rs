//! Disks whose bytes are not trusted: whether their content can be copied again from other disks.

use std::collections::{BTreeMap, BTreeSet};

use block::Error;
use meta::Label;

use super::foreseen::objections;
use crate::spec::{Planned, PlannedNode};

/// Returns, by device, the reasons why the content of the disks `without` cannot be copied again from other disks.
///
/// The data of the disks `without` do not count. The states in their labels do count at first: they may show that
/// another member has missed writes. A start then removes these states, so the other disks must also suffice without
/// them.
pub fn objections_without_bytes<'p, 'l>(
    planned: &'p Planned,
    label: impl Fn(&str) -> Option<&'l Label>,
    without: &BTreeSet<&str>,
) -> Vec<(&'p str, Error)> {
    let with_states = objections(planned, |disk| Some((label(disk)?, !without.contains(disk))));
    let forgotten: BTreeMap<&str, Label> = without
        .iter()
        .filter_map(|disk| {
            let mut label = label(disk)?.clone();
            forget_copies(&mut label, planned);
            Some((*disk, label))
        })
        .collect();
    let without_states =
        objections(planned, |disk| Some((forgotten.get(disk).or(label(disk))?, true)));
    with_states.into_iter().chain(without_states).collect()
}

/// Removes the cells of the devices that record their members (such as mirrors) from a label, so that these devices
/// copy the whole disk again. The next update of the label makes the removal durable, before the graph serves anything.
pub fn forget_copies(label: &mut Label, planned: &Planned) {
    let names_members = |node: &&PlannedNode| node.kind.capabilities.names_members;
    let copies = planned.nodes.iter().filter(names_members);
    copies.for_each(|node| drop(label.cells.remove(&node.name)));
}
