//! The effect of a live change, described for the user.

use block::answers::ChangeLine;
use block::units::format_size;
use kind::Effect;

use crate::spec::{Planned, PlannedNode};

/// The effect of a live change on a graph, described for the user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// A line for each disk, device and export that changes.
    pub lines: Vec<ChangeLine>,
}

impl Changes {
    /// Compares the plan `old` of the running graph with the plan `new`.
    pub(super) fn of(old: &Planned, new: &Planned, unchanged: &[Option<usize>]) -> Self {
        let mut lines = Vec::new();
        for (node, unchanged) in new.nodes.iter().zip(unchanged) {
            let before = old.nodes.iter().find(|before| before.name == node.name);
            let (verb, words) = match before {
                _ if unchanged.is_some() => continue,
                None => ("add", what(new, node)),
                Some(before) => node_words(old, new, before, node),
            };
            lines.push(ChangeLine { verb: verb.to_owned(), name: node.name.clone(), words });
        }
        let is_gone = |node: &&PlannedNode| new.nodes.iter().all(|after| after.name != node.name);
        for node in old.nodes.iter().filter(is_gone) {
            let words = what(old, node);
            lines.push(ChangeLine { verb: "remove".to_owned(), name: node.name.clone(), words });
        }
        lines.extend(exports(old, new));
        Self { lines }
    }
}

fn what(planned: &Planned, node: &PlannedNode) -> String {
    let size = format_size(node.info.size);
    match on(planned, node) {
        lowers if lowers.is_empty() => format!("{} of {size}", node.kind.name),
        lowers => format!("{} of {size} on {lowers}", node.kind.name),
    }
}

fn on(planned: &Planned, node: &PlannedNode) -> String {
    let names = node.lowers.iter().map(|lower| planned.nodes[*lower].name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the verb and the words that describe the difference between two nodes of one name.
fn node_words(
    old: &Planned,
    new: &Planned,
    before: &PlannedNode,
    after: &PlannedNode,
) -> (&'static str, String) {
    let mut words = Vec::new();
    if before.kind.name != after.kind.name {
        words.push(format!("{} instead of {}", after.kind.name, before.kind.name));
    }
    let (was, is) = (on(old, before), on(new, after));
    if was != is {
        words.push(format!("on {is} instead of {was}"));
    }
    if before.info.size != after.info.size {
        let (was, is) = (format_size(before.info.size), format_size(after.info.size));
        words.push(format!("{is} instead of {was}"));
    }
    let names =
        |node: &PlannedNode| node.given.options.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let mut options = names(before);
    options.extend(names(after));
    options.sort_unstable();
    options.dedup();
    let value = |node: &PlannedNode, option: &str| {
        node.given.options.iter().find(|(name, _)| *name == option).map(|(_, value)| value.clone())
    };
    let counts = |name: &str| after.kind.option(name).is_none_or(|it| it.effect != Effect::Start);
    options.retain(|option| counts(option) && value(before, option) != value(after, option));
    if !options.is_empty() {
        words.push(format!("other {}", options.join(", ")));
    }
    match words.is_empty() {
        true => ("reopen", format!("{}, as before", after.kind.name)),
        false => ("change", words.join("; ")),
    }
}

fn exports(old: &Planned, new: &Planned) -> Vec<ChangeLine> {
    let mut lines = Vec::new();
    for export in &new.exports {
        let on = &new.nodes[export.node].name;
        let size = format_size(export.info.size);
        let before = old.exports.iter().find(|before| before.name == export.name);
        let (verb, words) = match before {
            None => ("add", format!("export of {size} on {on}")),
            Some(before) if before.info.size != export.info.size => {
                let was = format_size(before.info.size);
                ("change", format!("export on {on}: {size} instead of {was}"))
            }
            Some(before) if old.nodes[before.node].name != *on => {
                ("change", format!("export on {on} instead of {}", old.nodes[before.node].name))
            }
            Some(_) => continue,
        };
        lines.push(ChangeLine { verb: verb.to_owned(), name: export.name.clone(), words });
    }
    let gone = |export: &&crate::spec::PlannedExport| {
        new.exports.iter().all(|after| after.name != export.name)
    };
    for export in old.exports.iter().filter(gone) {
        let words = "export".to_owned();
        lines.push(ChangeLine { verb: "remove".to_owned(), name: export.name.clone(), words });
    }
    lines
}
