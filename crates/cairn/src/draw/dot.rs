//! The picture of a graph as text for Graphviz.

use std::fmt::Write as _;

use api::{GraphView, Power};

use super::{facts, is_marked};

/// Returns the picture of `graph` as the input of `dot`, for `cairn graph --dot | dot -Tpng`.
pub fn dot(graph: &GraphView) -> String {
    // Writing to a String does not fail.
    let mut text = format!("digraph {} {{\n  node [shape=box];\n", quoted(&graph.name));
    for export in &graph.exports {
        let id = quoted(&format!("export {}", export.name));
        let _ = writeln!(text, "  {id} [label={}, shape=ellipse];", quoted(&export.name));
        let _ = writeln!(text, "  {id} -> {};", quoted(&export.on));
    }
    for node in &graph.nodes {
        let shape = if node.power == Power::Disk { ", shape=cylinder" } else { "" };
        let color = if is_marked(node) { ", color=red" } else { "" };
        let name = quoted(&node.name);
        let label = quoted(&format!("{}\n{}", node.name, facts(node)));
        let _ = writeln!(text, "  {name} [label={label}{shape}{color}];");
        for lower in &node.lowers {
            let _ = writeln!(text, "  {name} -> {};", quoted(lower));
        }
    }
    text.push_str("}\n");
    text
}

fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}
