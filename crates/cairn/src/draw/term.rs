//! The picture of a graph as a tree of text for the terminal.

use std::collections::BTreeSet;

use api::{GraphView, NodeView};

use super::{export_facts, facts};
use crate::out::columns;

/// Returns a tree with each export and all nodes below it. A node with several uppers is shown with its lowers only
/// once.
pub fn term(graph: &GraphView) -> String {
    let mut tree = Tree { nodes: &graph.nodes, seen: BTreeSet::new(), rows: Vec::new() };
    for export in &graph.exports {
        tree.rows.push(vec![export.name.clone(), export_facts(export)]);
        tree.below("", std::slice::from_ref(&export.on));
    }
    let used: BTreeSet<&str> =
        graph.nodes.iter().flat_map(|node| &node.lowers).map(|s| s.as_str()).collect();
    for node in &graph.nodes {
        if !used.contains(node.name.as_str()) && !tree.seen.contains(node.name.as_str()) {
            tree.node("", &node.name, "");
        }
    }
    columns("<<", &tree.rows)
}

struct Tree<'g> {
    nodes: &'g [NodeView],
    seen: BTreeSet<&'g str>,
    rows: Vec<Vec<String>>,
}

impl Tree<'_> {
    fn below(&mut self, indent: &str, names: &[String]) {
        for (n, name) in names.iter().enumerate() {
            let last = n + 1 == names.len();
            let (branch, stem) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.node(&format!("{indent}{branch}"), name, &format!("{indent}{stem}"));
        }
    }

    fn node(&mut self, before: &str, name: &str, indent: &str) {
        let Some(node) = self.nodes.iter().find(|node| node.name == name) else { return };
        // One blank more before the second column makes the names stand out.
        let first = format!("{before}{name} ");
        if self.seen.insert(&node.name) {
            self.rows.push(vec![first, facts(node)]);
            self.below(indent, &node.lowers);
        } else {
            self.rows.push(vec![first, "see above".to_owned()]);
        }
    }
}
