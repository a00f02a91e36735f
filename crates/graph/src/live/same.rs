//! The nodes that a live change leaves unchanged: a node continues if it equals the old node of its name, and all of
//! its lowers continue.

use std::collections::BTreeMap;

use kind::{Effect, Verified};

use crate::spec::{Planned, PlannedNode};

/// Returns for each node of `new` the index of the node of `old` that continues unchanged, if there is one.
pub fn unchanged(old: &Planned, new: &Planned) -> Vec<Option<usize>> {
    let by_name: BTreeMap<&str, usize> =
        old.nodes.iter().enumerate().map(|(index, node)| (node.name.as_str(), index)).collect();
    let mut unchanged: Vec<Option<usize>> = Vec::new();
    // Lowers come first.
    for node in &new.nodes {
        let same = by_name.get(node.name.as_str()).copied().filter(|index| {
            let before = &old.nodes[*index];
            let lowers: Option<Vec<usize>> = node.lowers.iter().map(|n| unchanged[*n]).collect();
            lowers.as_ref() == Some(&before.lowers) && is_same(before, node)
        });
        unchanged.push(same);
    }
    unchanged
}

/// Whether two nodes are equal, lowers not compared.
fn is_same(old: &PlannedNode, new: &PlannedNode) -> bool {
    old.kind.name == new.kind.name
        && old.info == new.info
        && old.table == new.table
        && old.labelled == new.labelled
        // A disk that was absent may be present by now.
        && old.words == new.words
        // A disk that the start created exists by now.
        && knows_around(old) == knows_around(new)
        && old.given.has_options_of(&new.given, new.kind, Effect::is_lasting)
}

/// Returns the facts about the surroundings of a node that count for its kind: for a redundant device, whether its uppers
/// verify; for a device that verifies, where redundancy is.
fn knows_around(node: &PlannedNode) -> (Option<Verified>, Option<(bool, bool)>) {
    let around = &node.around;
    let is_redundant = node.kind.is_redundant(node.lowers.len());
    let redundancy = (around.redundancy_above, around.redundancy_below);
    let verifies = node.kind.capabilities.verifies;
    (is_redundant.then(|| around.verified()), verifies.then_some(redundancy))
}
