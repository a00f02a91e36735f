//! The spec as labels contain it: without the settings of one machine, and with a uuid for each labelled disk
//! (`docs/formats/label.md`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use block::seeded::{self, Bug};
use block::{Result, error};
use kind::Scope;
use meta::Uuid;

use crate::spec::write::{self, quoted};
use crate::spec::{Planned, PlannedNode, Role, floats, options_of, plain_disks};

/// The facts about a labelled disk that the spec in its graph's labels contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remembered {
    /// Uuid of the disk.
    pub disk: Uuid,
    /// Number of data bytes of the disk.
    pub data_bytes: u64,
    /// Block size of the disk in bytes.
    pub block_size: u32,
}

/// Returns the spec of the plan `planned` as its labels must contain it, with the facts `disks` about its labelled
/// disks, by name.
pub fn write(planned: &Planned, disks: &BTreeMap<String, Remembered>) -> String {
    let mut text = format!("name = {}\n", quoted(&planned.name));
    for role in [Role::Disk, Role::Device] {
        text.push_str(if role == Role::Disk { "\n[disk]\n" } else { "\n[device]\n" });
        let entries = planned.nodes.iter().filter(|node| node.role == role && !node.is_volume());
        let mut nodes: Vec<_> = entries.collect();
        // Sorted by name, so that another order of entries in the file is no change of the spec, unless addresses follow from
        // the order.
        if !nodes.iter().any(|node| floats(node.kind, &node.given.options)) {
            nodes.sort_by(|a, b| a.name.cmp(&b.name));
        }
        for node in nodes {
            let fields = match role {
                Role::Disk => disks.get(&node.name).map(disk_fields).unwrap_or_default(),
                Role::Device => device_fields(planned, node),
            };
            line(&mut text, &node.name, &fields);
        }
    }
    text.push_str("\n[export]\n");
    for export in &planned.exports {
        let mut fields = vec![format!("on = {}", quoted(&planned.nodes[export.node].name))];
        if export.said_read_only {
            fields.push("read_only = true".to_owned());
        }
        line(&mut text, &export.name, &fields);
    }
    text
}

fn line(text: &mut String, name: &str, fields: &[String]) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{} = {{ {} }}", quoted(name), fields.join(", "));
}

fn disk_fields(disk: &Remembered) -> Vec<String> {
    let Remembered { disk, data_bytes, block_size } = disk;
    vec![format!("uuid = \"{disk}\", size = {data_bytes}, block = {block_size}")]
}

fn device_fields(planned: &Planned, node: &PlannedNode) -> Vec<String> {
    let on = node.lowers.iter().map(|lower| quoted(&planned.nodes[*lower].name));
    let on: Vec<_> = on.collect();
    let mut fields =
        vec![format!("kind = {}", quoted(node.kind.name)), format!("on = [{}]", on.join(", "))];
    let is_kept = |name: &str| {
        let option = options_of(node.kind).find(|option| option.name == name);
        option.is_some_and(|option| option.scope == Scope::Graph) || seeded::on(Bug::LabelHoldsAll)
    };
    for (name, value) in node.given.options.iter().filter(|(name, _)| is_kept(name)) {
        fields.push(format!("{name} = {}", write::value(value, |bytes| bytes.to_string())));
    }
    fields
}

/// Returns the labelled disks in a spec that a label contains, by name.
///
/// # Errors
/// `Corrupt` if the text cannot come from `write()`.
pub fn disks(text: &str) -> Result<BTreeMap<String, Remembered>> {
    let wrong = |why: String| error!(Corrupt, "the spec in the label: {why}");
    let mut disks = BTreeMap::new();
    for (name, fields) in plain_disks(text).map_err(wrong)? {
        let field = |wanted: &str| {
            let found = fields.iter().find(|(key, _)| key == wanted);
            found.map(|(_, value)| value.as_str())
        };
        let Some(disk) = field("uuid") else { continue };
        let data_bytes = field("size").and_then(|size| size.parse().ok()).unwrap_or(0);
        let block_size = field("block").and_then(|block| block.parse().ok()).unwrap_or(0);
        match disk.parse() {
            Ok(disk) if is_sound(data_bytes, block_size) => {
                disks.insert(name, Remembered { disk, data_bytes, block_size });
            }
            _ => {
                return Err(wrong(format!("disk {name:?} has no valid uuid, size and block size")));
            }
        }
    }
    Ok(disks)
}

fn is_sound(data_bytes: u64, block_size: u32) -> bool {
    let block = block_size.is_power_of_two() && (512..=65536).contains(&block_size);
    block && data_bytes > 0 && data_bytes.is_multiple_of(u64::from(block_size))
}

/// Whether this node is a device that keeps a state in labels.
pub fn keeps(node: &PlannedNode) -> bool {
    node.kind.maker.keeps_state()
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    #[test]
    fn label_spec_disks_parse_to_written_values() {
        let text = "name = \"home\"\n\n[disk]\n\"a.b\" = { uuid = \"0190f5a0-62d8-4b1c-9a50-010203040506\", \
                    size = 65536, block = 4096 }\n\"raw\" = {  }\n";
        let disks = disks(text).unwrap();
        assert_eq!(disks.len(), 1);
        assert_eq!((disks["a.b"].data_bytes, disks["a.b"].block_size), (65536, 4096));
    }

    #[test]
    fn label_spec_parse_rejects_damaged_text() {
        for text in [
            "x",
            "[disk]\na = { uuid = 3 }",
            "[disk]\na = { uuid = \"0190f5a0-62d8-4b1c-9a50-010203040506\", size = -1, \
                         block = 512 }",
            "[disk]\na = { uuid = \"0190f5a0-62d8-4b1c-9a50-010203040506\", size = 512, \
                         block = 7 }",
        ] {
            assert_eq!(disks(text).unwrap_err().kind(), ErrorKind::Corrupt, "{text}");
        }
    }
}
