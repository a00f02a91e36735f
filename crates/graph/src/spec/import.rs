//! Reads a spec from a label, and completes it with the settings of this machine.

use std::collections::BTreeMap;

use kind::{Kind, OptionSpec, Registry, Scope};

use super::draft::{ATTACH, CLIENTS};
use super::parse::{Entry, Section, Spec};
use super::tree::{Field, Item, Raw};

/// Settings of this machine, which labels do not contain, to complete a spec from a label.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// Path or address of each disk, by name of the disk: the name of its kind and the path, such as `file` and
    /// `disk.img`.
    pub disks: BTreeMap<String, (String, String)>,
    /// Source of the key of each device, by name of the device. The user is asked for the keys of devices that are not
    /// listed.
    pub keys: BTreeMap<String, String>,
    /// Values of other options that labels do not contain, by name of the device or export and of the option.
    pub options: BTreeMap<String, BTreeMap<String, String>>,
}

impl Spec {
    /// Reads the spec in a label of the graph `graph`, and completes it with the settings `local`; `file` names the
    /// label in messages. A disk without a path in `local` becomes a missing disk. A device without a key source in
    /// `local` gets the source `ask`. A key that Cairn never writes into a label is a fault.
    pub fn of_label(
        text: &str,
        file: &str,
        graph: &str,
        registry: Registry,
        local: &Local,
    ) -> Self {
        let mut spec = Self::in_label(text, file, graph, registry);
        for entry in &mut spec.entries {
            match entry.section {
                Section::Disk => place(entry, registry, local),
                Section::Device => complete(entry, registry, local),
                Section::Export => {}
            }
        }
        for export in &mut spec.exports {
            offer(export, local);
        }
        spec
    }

    /// Returns the names of the exports in the spec.
    pub fn export_names(&self) -> impl Iterator<Item = &str> {
        self.exports.iter().map(|export| &*export.name.text)
    }

    /// Returns the names of the devices in the spec that cannot open without a key.
    pub fn keyed(&self, registry: Registry) -> Vec<&str> {
        let is_keyed = |entry: &&Entry| {
            entry.kind(registry).and_then(Kind::secret).is_some_and(|secret| secret.required)
        };
        self.entries.iter().filter(is_keyed).map(|entry| entry.name.text.as_str()).collect()
    }

    /// Returns the names of the devices in the spec that have a key source, each with that source.
    pub fn keys(&self, registry: Registry) -> Vec<(&str, &str)> {
        let key = |entry| {
            let secret = Entry::kind(entry, registry)?.secret()?;
            Some((entry.name.text.as_str(), entry.text(secret.name)?))
        };
        self.entries.iter().filter_map(key).collect()
    }

    /// Whether the export or device `name` has the option `option`, which is not a key and belongs to this machine.
    pub fn has_local_option(&self, name: &str, option: &str, registry: Registry) -> bool {
        let is_of_export = [ATTACH.name, CLIENTS].contains(&option);
        is_of_export && self.export_names().any(|export| export == name)
            || self
                .local_options(registry)
                .iter()
                .any(|(it, known, _)| *it == name && known.name == option)
    }

    /// Returns the options of devices that belong to this machine, except keys: the name of the device, the option, and
    /// whether the spec sets the option.
    pub fn local_options(&self, registry: Registry) -> Vec<(&str, &'static OptionSpec, bool)> {
        let of_entry = |entry| {
            let options = Entry::of_machine(entry, registry);
            let options = options.filter(|option| option.scope == Scope::Local);
            options.map(|option| (&*entry.name.text, option, entry.field(option.name).is_some()))
        };
        self.entries.iter().flat_map(of_entry).collect()
    }

    /// Returns the names of the disks in this spec, read from a label, that have no label. Labels do not contain the
    /// paths of these disks.
    pub fn unlabelled(&self) -> Vec<&str> {
        let disks = self.entries.iter().filter(|entry| entry.section == Section::Disk);
        let raw = disks.filter(|entry| entry.field("uuid").is_none());
        raw.map(|entry| entry.name.text.as_str()).collect()
    }
}

/// A path that no disk has: it stands for the path of a disk that was not found. The user sees an empty path instead.
pub const NOT_FOUND: &str = "/nowhere: not found";

fn place(entry: &mut Entry, registry: Registry, local: &Local) {
    let labelled = entry.field("uuid").is_some();
    let missing = registry.path_disk(false).map(|kind| (kind.name, NOT_FOUND));
    let known = local.disks.get(&entry.name.text);
    let known = known.map(|(kind, place)| (kind.as_str(), place.as_str()));
    let place = known.or(missing).map(|(kind, place)| Field::text(kind, place));
    entry.fields = place.into_iter().collect();
    if labelled {
        entry.fields.push(Field::new("label", Raw::Switch(true)));
    }
}

/// Adds the options of a device that `local` has, and asks for a required key that `local` does not have.
fn complete(entry: &mut Entry, registry: Registry, local: &Local) {
    let name = entry.name.text.clone();
    for option in entry.of_machine(registry) {
        let value = local.of(&name, option).or_else(|| {
            let is_asked = option.scope == Scope::Secret && option.required;
            is_asked.then_some("ask")
        });
        entry.fields.extend(value.map(|value| Field::text(option.name, value)));
    }
}

/// Adds the settings of an export that `local` has.
fn offer(entry: &mut Entry, local: &Local) {
    for (option, value) in local.options.get(&entry.name.text).into_iter().flatten() {
        let raw = match &**option {
            CLIENTS => {
                let names = value.split(',').map(|name| Item::new(Raw::Text(name.to_owned())));
                Raw::List(names.collect())
            }
            _ => value.parse().map_or_else(|_| Raw::Text(value.clone()), Raw::Switch),
        };
        entry.fields.push(Field::new(option, raw));
    }
}

impl Local {
    /// Returns the value that these settings have for an option of a device.
    pub(super) fn of(&self, device: &str, option: &OptionSpec) -> Option<&str> {
        let value = match option.scope {
            Scope::Secret => self.keys.get(device),
            Scope::Local => self.options.get(device).and_then(|of| of.get(option.name)),
            Scope::Graph => None,
        };
        value.map(String::as_str)
    }
}
