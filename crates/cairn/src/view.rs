//! Views of a plan for users: as a graph of nodes, and as a spec with all variables replaced and all defaults
//! included.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use api::{ExportView, GraphView, Health, NodeView, Power, SpecText};
use block::env::Address;
use block::units::{format_exact, write_size};
use graph::spec::write::{self, quoted};
use graph::spec::{Listen, NOT_FOUND, Planned, PlannedNode, Role, is_loopback};
use kind::{Lowers, Maker, Value};

/// Returns the view of a plan as a graph. `uris` returns the URIs of an export: none for a plan that is not served.
pub fn graph(planned: &Planned, pid: Option<u32>, uris: impl Fn(&str) -> Vec<String>) -> GraphView {
    let node = |node: &PlannedNode| NodeView {
        name: node.name.clone(),
        kind: node.kind.name.to_owned(),
        power: power(node),
        lowers: lowers(planned, node).map(str::to_owned).collect(),
        size_bytes: node.info.data_bytes(),
        block_size_bytes: node.info.block_size,
        read_only: node.info.read_only,
        words: node.words.clone(),
        health: Health::Ok,
        member: None,
    };
    let export = |export: &graph::spec::PlannedExport| ExportView {
        name: export.name.clone(),
        on: planned.nodes[export.node].name.clone(),
        size_bytes: export.info.data_bytes(),
        block_size_bytes: export.info.block_size,
        read_only: export.read_only,
        uris: uris(&export.name),
        attached: None,
    };
    GraphView {
        name: planned.name.clone(),
        pid,
        nodes: planned.nodes.iter().map(node).collect(),
        exports: planned.exports.iter().map(export).collect(),
    }
}

/// Returns the power of a node: the most that its kind can do with requests.
pub fn power(node: &PlannedNode) -> Power {
    match node.kind.maker {
        Maker::Table(_) => Power::Table,
        Maker::Hooks { .. } => Power::Hooks,
        Maker::Device { .. } | Maker::Stateful { .. } | Maker::Stored(_) | Maker::Volume => {
            Power::Device
        }
        Maker::Disk { .. } => Power::Disk,
    }
}

fn lowers<'a>(planned: &'a Planned, node: &'a PlannedNode) -> impl Iterator<Item = &'a str> {
    node.lowers.iter().map(|lower| planned.nodes[*lower].name.as_str())
}

/// Returns the nodes at which requests are counted: those that exports offer or that hold volumes, and the lowers of
/// nodes other than tables. A table with only tables above it is fused with them, and has no counts of its own.
pub fn entered(planned: &Planned) -> BTreeSet<usize> {
    let is_table = |index: usize| planned.nodes[index].table.is_some();
    let exported = planned.exports.iter().map(|export| export.node);
    let below = planned.nodes.iter().flat_map(|node| {
        let lowers = node.lowers.iter().copied();
        lowers.filter(move |lower| node.table.is_none() || !is_table(*lower))
    });
    let holders = planned.nodes.iter().enumerate();
    let holders = holders.filter(|(_, node)| node.kind.capabilities.holds_volumes);
    exported.chain(below).chain(holders.map(|(index, _)| index)).collect()
}

/// Returns the names of the tables that are fused with the table of node `index`, from the top down, without that of
/// the node. Empty if the node is not a table.
pub fn run_of(planned: &Planned, index: usize) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut open = vec![index];
    while let Some(at) = open.pop() {
        let node = &planned.nodes[at];
        if node.table.is_some() && !names.contains(&node.name) {
            names.push(node.name.clone());
            open.extend(node.lowers.iter().rev());
        }
    }
    names.split_off(names.len().min(1))
}

/// Returns the plan as a spec, with variables replaced, names and options checked, and the sizes of nodes as
/// comments.
pub fn spec(planned: &Planned) -> SpecText {
    let mut text = format!("name = {}\n", quoted(&planned.name));
    if !planned.listens.is_empty() || planned.max_connections.is_some() || planned.tls.is_some() {
        text.push_str(&nbd(planned));
    }
    for (title, role) in [("disk", Role::Disk), ("device", Role::Device)] {
        let entries = planned.nodes.iter().filter(|node| node.role == role && !node.is_volume());
        let nodes: Vec<_> = entries.collect();
        let width = nodes.iter().map(|node| node.name.len()).max().unwrap_or(0);
        for (n, node) in nodes.into_iter().enumerate() {
            if n == 0 {
                // Writing to a String does not fail.
                let _ = writeln!(text, "\n[{title}]");
            }
            let fields = fields(planned, node);
            let _ =
                writeln!(text, "{:width$} = {{ {fields} }}  # {}", key(&node.name), facts(node));
        }
    }
    text.push_str("\n[export]\n");
    for export in &planned.exports {
        let on = quoted(&planned.nodes[export.node].name);
        let read_only = if export.read_only { ", read_only = true" } else { "" };
        let attach = if export.attach { ", attach = true" } else { "" };
        let clients = export.clients.as_ref().map_or_else(String::new, |clients| {
            let clients: Vec<_> = clients.iter().map(|name| quoted(name)).collect();
            format!(", clients = [{}]", clients.join(", "))
        });
        let name = key(&export.name);
        let _ = writeln!(text, "{name} = {{ on = {on}{read_only}{attach}{clients} }}");
    }
    SpecText { name: planned.name.clone(), text }
}

fn nbd(planned: &Planned) -> String {
    let mut text = "\n[nbd]\n".to_owned();
    let all: Vec<_> = planned.listens.iter().map(|at| quoted(&at.to_string())).collect();
    if !all.is_empty() {
        let _ = writeln!(text, "listen = [{}]", all.join(", "));
    }
    let open =
        |at: &Listen| !at.tls && matches!(&at.address, Address::Tcp(host, _) if !is_loopback(host));
    if let Some(tls) = &planned.tls {
        let clients = tls.clients.as_ref();
        let paths = [("cert", Some(&tls.cert)), ("key", Some(&tls.key)), ("clients", clients)];
        let shown = |(key, path): (&str, Option<&PathBuf>)| {
            path.map(|path| format!("{key} = {}", quoted(&path.to_string_lossy())))
        };
        let paths: Vec<_> = paths.into_iter().filter_map(shown).collect();
        let _ = writeln!(text, "tls = {{ {} }}", paths.join(", "));
    }
    if planned.listens.iter().any(open) {
        text.push_str("insecure = true\n");
    }
    if let Some(most) = planned.max_connections {
        let _ = writeln!(text, "max_connections = {most}");
    }
    text
}

fn fields(planned: &Planned, node: &PlannedNode) -> String {
    let mut fields = Vec::new();
    if node.role == Role::Device {
        fields.push(format!("kind = {}", quoted(node.kind.name)));
        let names: Vec<_> = lowers(planned, node).map(quoted).collect();
        fields.push(match node.kind.lowers {
            Lowers::Many(..) => format!("on = [{}]", names.join(", ")),
            Lowers::None | Lowers::One => format!("on = {}", names.join(", ")),
        });
    }
    // A number of bytes is easier to read with its unit.
    let toml = |value: &Value| match value {
        Value::Text(place) if place == NOT_FOUND => quoted("not found"),
        value => write::value(value, |bytes| quoted(&write_size(bytes))),
    };
    let options = node.given.options.iter();
    fields.extend(options.map(|(name, value)| format!("{name} = {}", toml(value))));
    if node.has_label() {
        fields.push("label = true".to_owned());
    }
    fields.join(", ")
}

fn facts(node: &PlannedNode) -> String {
    let mut facts =
        vec![format_exact(node.info.data_bytes()), format!("blocks of {}", node.info.block_size)];
    if !node.words.is_empty() {
        facts.push(node.words.clone());
    }
    facts.join(", ")
}

/// Returns a name as a TOML key. A name with a dot is quoted, because a dot in a key without quotes separates two
/// keys.
fn key(name: &str) -> String {
    if name.contains('.') { quoted(name) } else { name.to_owned() }
}
