//! A spec from labels, completed with the settings of this machine.

use std::collections::BTreeMap;

use kind::{Kind, OptionSpec, Registry, Scope};

use super::parse::{Entry, Section, Spec};
use super::tree::{Field, Raw};

/// Settings of this machine that labels do not keep, for reading a spec from a label.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// Path or address of each disk, by disk name: the word of its kind and the path, as in `file`, `disk.img`.
    pub disks: BTreeMap<String, (String, String)>,
    /// Sources of the keys of devices, by device name. The user is asked for the keys of other devices.
    pub keys: BTreeMap<String, String>,
    /// Other options that labels do not keep, by device.
    pub options: BTreeMap<String, BTreeMap<String, String>>,
}

impl Spec {
    /// Reads the spec in a label of `graph`, and completes it with the settings `local`; `file` names the label in
    /// messages. A disk without a known path is missing; a key without a known source is asked for. A setting that
    /// labels never hold is a fault.
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
        spec
    }

    /// Returns the names of the devices in the spec that are opened with a key.
    pub fn keyed(&self, registry: Registry) -> Vec<&str> {
        let is_keyed = |entry: &&Entry| {
            entry.kind(registry).and_then(Kind::secret).is_some_and(|secret| secret.required)
        };
        self.entries.iter().filter(is_keyed).map(|entry| entry.name.text.as_str()).collect()
    }

    /// Returns the names of the devices in the spec that have a key, each with the source of the key.
    pub fn keys(&self, registry: Registry) -> Vec<(&str, &str)> {
        let key = |entry| {
            let secret = Entry::kind(entry, registry)?.secret()?;
            Some((entry.name.text.as_str(), entry.text(secret.name)?))
        };
        self.entries.iter().filter_map(key).collect()
    }

    /// Returns the options of devices in the spec that belong to one machine, except keys: the device, the option, and
    /// whether the spec sets it.
    pub fn local_options(&self, registry: Registry) -> Vec<(&str, &'static OptionSpec, bool)> {
        let of_entry = |entry| {
            let options = Entry::of_machine(entry, registry);
            let options = options.filter(|option| option.scope == Scope::Local);
            options.map(|option| (&*entry.name.text, option, entry.field(option.name).is_some()))
        };
        self.entries.iter().flat_map(of_entry).collect()
    }

    /// Returns the names of the disks in the spec that have no label: labels do not keep their paths.
    pub fn unlabelled(&self) -> Vec<&str> {
        let disks = self.entries.iter().filter(|entry| entry.section == Section::Disk);
        let raw = disks.filter(|entry| entry.field("uuid").is_none());
        raw.map(|entry| entry.name.text.as_str()).collect()
    }
}

/// A path that no disk has. Users see an empty path instead.
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

/// Adds the options of a device that this machine knows.
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
