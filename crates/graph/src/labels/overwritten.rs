//! Copying disks anew from others, because their bytes do not count.

use std::collections::{BTreeMap, BTreeSet};

use block::Error;
use meta::Label;

use super::foreseen::objections;
use crate::spec::{Planned, PlannedNode};

/// Returns the reasons why the disks `without` cannot be copied anew from others.
///
/// The states in their labels may show that another member has missed writes, so these states count although the bytes
/// do not. A start forgets these states, so the others must be enough without them as well.
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

/// Removes the states of mirrors and the like from a label, so that they copy all of the disk anew. The label on the
/// disk loses them with the first update, which is durable before anything is served.
pub fn forget_copies(label: &mut Label, planned: &Planned) {
    let names_members = |node: &&PlannedNode| node.kind.capabilities.names_members;
    let copies = planned.nodes.iter().filter(names_members);
    copies.for_each(|node| drop(label.cells.remove(&node.name)));
}
