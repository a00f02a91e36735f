//! The picture of a graph as a tree of text for the terminal.

use std::collections::BTreeSet;

use api::{GraphView, NodeView};

use super::tree::{Branch, tree};
use super::{export_facts, facts};

/// Returns a tree with each export and all nodes below it. A node with several uppers is shown with its lowers only
/// once.
pub fn term(graph: &GraphView) -> String {
    let mut nodes = Nodes { all: &graph.nodes, seen: BTreeSet::new() };
    let mut roots = Vec::new();
    for export in &graph.exports {
        let below = nodes.branches(std::slice::from_ref(&export.on));
        roots.push(Branch { name: export.name.clone(), facts: export_facts(export), below });
    }
    let used: BTreeSet<&str> =
        graph.nodes.iter().flat_map(|node| &node.lowers).map(|s| s.as_str()).collect();
    for node in &graph.nodes {
        if !used.contains(node.name.as_str()) && !nodes.seen.contains(node.name.as_str()) {
            roots.extend(nodes.branch(&node.name));
        }
    }
    tree(&roots)
}

struct Nodes<'g> {
    all: &'g [NodeView],
    seen: BTreeSet<&'g str>,
}

impl Nodes<'_> {
    fn branches(&mut self, names: &[String]) -> Vec<Branch> {
        names.iter().filter_map(|name| self.branch(name)).collect()
    }

    fn branch(&mut self, name: &str) -> Option<Branch> {
        let node = self.all.iter().find(|node| node.name == name)?;
        let is_new = self.seen.insert(&node.name);
        let (facts, below) = match is_new {
            true => (facts(node), self.branches(&node.lowers)),
            false => ("see above".to_owned(), Vec::new()),
        };
        Some(Branch { name: name.to_owned(), facts, below })
    }
}
