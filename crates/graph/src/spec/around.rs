//! The surroundings of each node of a plan: whether reads of the node are verified above it, and where redundant devices
//! are.

use kind::{Upper, Verified};

use super::fault::Log;
use super::{PlannedExport, PlannedNode};

/// Gives each node its surroundings. Warns of redundant devices of which only some reads are verified: rot that an
/// unverified read meets stays, and its reader gets it.
pub(super) fn surround(nodes: &mut [PlannedNode], exports: &[PlannedExport], log: &mut Log) {
    for index in 0..nodes.len() {
        let below = nodes[index].lowers.iter().map(|lower| &nodes[*lower]);
        nodes[index].around.redundancy_below =
            below.into_iter().any(|lower| is_redundant(lower) || lower.around.redundancy_below);
    }
    for export in exports {
        let upper = Upper { name: export.name.clone(), verifies: false };
        nodes[export.node].around.uppers.push(upper);
    }
    // Lowers come first, so all uppers of a node are complete before the node.
    for index in (0..nodes.len()).rev() {
        let node = &nodes[index];
        let verifies =
            node.kind.capabilities.verifies || node.around.verified() == Verified::Always;
        let above = is_redundant(node) || node.around.redundancy_above;
        let upper = Upper { name: node.name.clone(), verifies };
        for lower in node.lowers.clone() {
            let around = &mut nodes[lower].around;
            around.redundancy_above |= above;
            around.uppers.push(upper.clone());
        }
    }
    let partly = |node: &&PlannedNode| node.around.verified() == Verified::Partly;
    for node in nodes.iter().filter(|node| is_redundant(node)).filter(partly) {
        log.warning(node.position, words(node));
    }
}

fn is_redundant(node: &PlannedNode) -> bool {
    node.kind.is_redundant(node.lowers.len())
}

fn words(node: &PlannedNode) -> String {
    let names = |verifies| {
        let uppers = node.around.uppers.iter().filter(|upper| upper.verifies == verifies);
        uppers.map(|upper| format!("{:?}", upper.name)).collect::<Vec<_>>().join(", ")
    };
    let (verified, others) = (names(true), names(false));
    format!(
        "reads of {:?} through {verified} are verified, and those through {others} are not: they may return wrong \
         bytes of one copy. Next: put {others} on a device that verifies, too",
        node.name
    )
}
