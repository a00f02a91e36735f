//! What a change leaves as it is: a device that stays the same, on devices that stay the same.

use std::collections::BTreeMap;

use kind::Effect;

use crate::spec::{Planned, PlannedNode};

/// For each node of `new`: the node of `old` that it is, if nothing about it changes.
pub fn stays(old: &Planned, new: &Planned) -> Vec<Option<usize>> {
    let by_name: BTreeMap<&str, usize> =
        old.nodes.iter().enumerate().map(|(index, node)| (node.name.as_str(), index)).collect();
    let mut stays: Vec<Option<usize>> = Vec::new();
    // Those below come first.
    for node in &new.nodes {
        let same = by_name.get(node.name.as_str()).copied().filter(|index| {
            let before = &old.nodes[*index];
            let lowers: Option<Vec<usize>> = node.lowers.iter().map(|n| stays[*n]).collect();
            lowers.as_ref() == Some(&before.lowers) && is_same(before, node)
        });
        stays.push(same);
    }
    stays
}

/// Whether two nodes are the same, what they stand on aside.
fn is_same(old: &PlannedNode, new: &PlannedNode) -> bool {
    old.kind.name == new.kind.name
        && old.info == new.info
        && old.table == new.table
        && old.labelled == new.labelled
        // A disk that was not there may be back.
        && old.words == new.words
        // A disk that was made by the start is there by now.
        && old.given.has_options_of(&new.given, new.kind, Effect::is_lasting)
}
