//! A plan, as people and programs look at it: as a graph, and as a spec in which nothing is open.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use api::{ExportView, GraphView, Health, NodeView, Power, SpecText};
use block::env::Address;
use block::units::{format_exact, write_size};
use graph::spec::write::{self, quoted};
use graph::spec::{Listen, NOWHERE, Planned, PlannedNode, Role, is_loopback};
use kind::{Lowers, Maker, Value};

/// The graph; `uris` leads to an export, and is empty for a plan that is not served.
pub fn graph(planned: &Planned, pid: Option<u32>, uris: impl Fn(&str) -> Vec<String>) -> GraphView {
    let node = |node: &PlannedNode| NodeView {
        name: node.name.clone(),
        kind: node.kind.name.to_owned(),
        power: power(node),
        lowers: lowers(planned, node).map(str::to_owned).collect(),
        size_bytes: node.info.size,
        block_size_bytes: node.info.block_size,
        read_only: node.info.read_only,
        words: node.words.clone(),
        health: Health::Ok,
    };
    let export = |export: &graph::spec::PlannedExport| ExportView {
        name: export.name.clone(),
        on: planned.nodes[export.node].name.clone(),
        size_bytes: export.info.size,
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

/// What a node may do.
pub fn power(node: &PlannedNode) -> Power {
    match node.kind.maker {
        Maker::Table(_) => Power::Table,
        Maker::Hooks { .. } => Power::Hooks,
        Maker::Device { .. } | Maker::Stateful { .. } => Power::Device,
        Maker::Disk { .. } => Power::Disk,
    }
}

fn lowers<'a>(planned: &'a Planned, node: &'a PlannedNode) -> impl Iterator<Item = &'a str> {
    node.lowers.iter().map(|lower| planned.nodes[*lower].name.as_str())
}

/// Places where requests are counted: what an export shows, and what stands below something that is
/// no table. A table that only tables stand on is looked up together with them.
pub fn entered(planned: &Planned) -> BTreeSet<usize> {
    let exported = planned.exports.iter().map(|export| export.node);
    let above = planned.nodes.iter().filter(|node| node.table.is_none());
    exported
        .chain(above.flat_map(|node| node.lowers.iter().copied()))
        .chain(below_tables(planned))
        .collect()
}

/// What tables stand on and is no table itself.
fn below_tables(planned: &Planned) -> impl Iterator<Item = usize> + '_ {
    let tables = planned.nodes.iter().filter(|node| node.table.is_some());
    let lowers = tables.flat_map(|node| node.lowers.iter().copied());
    lowers.filter(|lower| planned.nodes[*lower].table.is_none())
}

/// The tables that are looked up together with table `index`, from the top down, itself left out;
/// none if it is no table.
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

/// The spec of the plan: variables replaced, names and options checked; what it came to as comments.
pub fn spec(planned: &Planned) -> SpecText {
    let mut text = format!("name = {}\n", quoted(&planned.name));
    if !planned.listens.is_empty() || planned.max_connections.is_some() || planned.tls.is_some() {
        text.push_str(&nbd(planned));
    }
    for (title, role) in [("disk", Role::Disk), ("device", Role::Device)] {
        let nodes: Vec<_> = planned.nodes.iter().filter(|node| node.role == role).collect();
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
    // A number of bytes is read more easily with its unit.
    let toml = |value: &Value| match value {
        Value::Text(place) if place == NOWHERE => quoted("not found"),
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
        vec![format_exact(node.info.size), format!("blocks of {}", node.info.block_size)];
    if !node.words.is_empty() {
        facts.push(node.words.clone());
    }
    facts.join(", ")
}

/// A name as a key: a dot in it would part it.
fn key(name: &str) -> String {
    if name.contains('.') { quoted(name) } else { name.to_owned() }
}
