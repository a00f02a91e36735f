//! Pictures of a graph: as a tree for the terminal, as an SVG image, as text for Graphviz. The tree
//! draws virtual disks too.

mod dot;
mod layout;
mod svg;
mod term;
mod tree;

pub use dot::dot;
pub use svg::svg;
pub use term::term;
pub use tree::{Branch, tree};

use api::{ExportView, Health, MemberState, NodeView, Power};
use block::units::format_size;

/// Returns the facts about a node that a picture shows beside the node's name.
fn facts(node: &NodeView) -> String {
    let mut facts = vec![node.kind.clone(), format_size(node.size_bytes)];
    if node.power == Power::Disk && !node.words.is_empty() {
        facts.push(node.words.clone());
    }
    if node.read_only {
        facts.push("read-only".to_owned());
    }
    match node.health {
        Health::Ok => {}
        Health::Limited => facts.push("limited".to_owned()),
        Health::Degraded => facts.push("DEGRADED".to_owned()),
        Health::Failed => facts.push("FAILED".to_owned()),
    }
    if let Some(state) = node.member.filter(|state| is_behind(*state)) {
        facts.push(format!("{} member", state.word()));
    }
    facts.join(", ")
}

/// Whether a picture marks the node: it has a fault, or is a member that is not in sync.
fn is_marked(node: &NodeView) -> bool {
    node.health > Health::Limited || node.member.is_some_and(is_behind)
}

/// Whether a member in this state lacks data that others have.
fn is_behind(state: MemberState) -> bool {
    matches!(state, MemberState::Copying | MemberState::Stale | MemberState::Failed)
}

/// Returns the facts about an export that a picture shows beside the export's name.
fn export_facts(export: &ExportView) -> String {
    let read_only = if export.read_only { ", read-only" } else { "" };
    format!("export, {}{read_only}", format_size(export.size_bytes))
}

#[cfg(test)]
mod tests {
    use api::GraphView;

    use super::*;

    /// A mirror over two partitions of one disk, exported twice.
    pub fn diamond() -> GraphView {
        let node = |name: &str, kind: &str, power, lowers: &[&str]| NodeView {
            name: name.into(),
            kind: kind.into(),
            power,
            lowers: lowers.iter().map(|lower| (*lower).to_owned()).collect(),
            size_bytes: 1 << 30,
            block_size_bytes: 512,
            read_only: false,
            words: String::new(),
            health: Health::Ok,
            member: None,
        };
        let export = |name: &str| ExportView {
            name: name.into(),
            on: "pair".into(),
            size_bytes: 1 << 30,
            block_size_bytes: 512,
            read_only: name == "ro",
            uris: vec![],
            attached: None,
        };
        GraphView {
            name: "a<b".into(),
            pid: None,
            nodes: vec![
                node("d", "memory", Power::Disk, &[]),
                node("p1", "partition", Power::Table, &["d"]),
                node("p2", "partition", Power::Table, &["d"]),
                node("pair", "mirror", Power::Device, &["p1", "p2"]),
            ],
            exports: vec![export("vol"), export("ro")],
        }
    }

    #[test]
    fn terminal_drawing_expands_shared_device_once() {
        let text = term(&diamond());
        assert_eq!(
            text,
            "vol          export, 1 GiB\n\
             └─ pair      mirror, 1 GiB\n\
             \x20  ├─ p1     partition, 1 GiB\n\
             \x20  │  └─ d   memory, 1 GiB\n\
             \x20  └─ p2     partition, 1 GiB\n\
             \x20     └─ d   see above\n\
             ro           export, 1 GiB, read-only\n\
             └─ pair      see above\n"
        );
    }

    #[test]
    fn graphviz_text_has_every_device_and_edge() {
        let text = dot(&diamond());
        assert_eq!(text.matches(" -> ").count(), 6);
        assert!(text.contains("\"pair\" -> \"p1\""));
        assert!(text.starts_with("digraph \"a<b\" {\n") && text.ends_with("}\n"));
    }

    #[test]
    fn pictures_mark_member_that_is_not_in_sync() {
        let mut graph = diamond();
        for (state, mark) in [
            (MemberState::Failed, "failed member"),
            (MemberState::Stale, "stale member"),
            (MemberState::Copying, "copying member"),
        ] {
            graph.nodes[2].member = Some(state);
            assert!(term(&graph).contains(&format!("p2     partition, 1 GiB, {mark}\n")));
            let (text, image) = (dot(&graph), svg(&graph));
            assert!(text.contains(mark) && text.matches("color=red").count() == 1, "{text}");
            assert!(image.contains(mark) && image.matches("\"bad\"").count() == 1, "{image}");
        }
        graph.nodes[2].member = Some(MemberState::InSync);
        assert!(!dot(&graph).contains("color=red") && !term(&graph).contains("member"));
    }

    #[test]
    fn svg_has_box_for_each_device_and_escapes_names() {
        let text = svg(&diamond());
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert_eq!(text.matches("<rect ").count(), 6);
        assert_eq!(text.matches("<path ").count(), 6);
        assert!(text.contains("a&lt;b") && !text.contains("a<b"));
    }
}
