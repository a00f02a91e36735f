//! Copying disks anew from others, because their bytes do not count.

use std::collections::{BTreeMap, BTreeSet};

use block::Error;
use meta::Label;

use super::foreseen::objections;
use crate::spec::{Planned, PlannedNode};

/// Returns, by device, the reasons why the content of the disks `without` cannot be copied anew from other disks.
///
/// The states in the labels of these disks may show that another member has missed writes, so they count although the
/// data do not. A start forgets these states, so the other disks must be enough without them as well.
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

/// Removes the cells of mirrors and the like from a label, so that these devices copy the whole disk anew. The next
/// update of the label makes this durable, before anything is served.
pub fn forget_copies(label: &mut Label, planned: &Planned) {
    let names_members = |node: &&PlannedNode| node.kind.capabilities.names_members;
    let copies = planned.nodes.iter().filter(names_members);
    copies.for_each(|node| drop(label.cells.remove(&node.name)));
}
