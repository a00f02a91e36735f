//! Reads the spec in a label. The text is untrusted: any program with access to the disk may have written it. Only this
//! file lists the keys that a label may contain (`docs/formats/label.md`).

use block::seeded::{self, Bug};
use kind::{Kind, OptionSpec, Registry, Scope};

use super::draft::{EXPORT_OPTIONS, options_of};
use super::fault::{Log, Position};
use super::parse::{Entry, Section, Spec};
use super::tree::{Raw, Word};

/// Top-level keys that the spec in a label may have.
const SECTIONS: [&str; 4] = ["name", "disk", "device", "export"];

/// Keys that a disk may have in a label. The path of the disk and the options for opening it belong to the machine.
const OF_DISK: [&str; 3] = ["uuid", "size", "block"];

impl Spec {
    /// Reads the spec in a label of the graph `graph`; `file` names the label in messages. Reports and leaves out each
    /// key that Cairn never writes into a label.
    pub(super) fn in_label(text: &str, file: &str, graph: &str, registry: Registry) -> Self {
        let mut spec = Self::read(text, file, graph, &|_| None, |spec, field| {
            if SECTIONS.contains(&field.key.text.as_str()) || seeded::on(Bug::LabelBelieved) {
                spec.section(field);
            } else {
                refuse(&field.key, "", &mut spec.log);
            }
        });
        let Self { entries, exports, log, .. } = &mut spec;
        for entry in entries.iter_mut().chain(exports) {
            keep_allowed(entry, registry, log);
        }
        if spec.name != graph {
            let why = format!("the spec in the label of {graph:?} has the name {:?}", spec.name);
            spec.log.error(Position::NONE, why);
        }
        spec
    }

    /// Removes the size of each disk from this spec, which comes from a label.
    pub(crate) fn forget_label_sizes(&mut self) {
        for disk in self.entries.iter_mut().filter(|entry| entry.section == Section::Disk) {
            disk.fields.retain(|field| field.key.text != "size");
        }
    }
}

fn keep_allowed(entry: &mut Entry, registry: Registry, log: &mut Log) {
    let place = format!(" of {} {:?}", entry.section.word(), entry.name.text);
    let kind = entry.kind(registry);
    let is_kept = |option: &&OptionSpec| option.scope == Scope::Graph;
    let allowed: Vec<&str> = match entry.section {
        Section::Disk => OF_DISK.to_vec(),
        Section::Device => {
            let options = kind.into_iter().flat_map(options_of).filter(is_kept);
            ["kind", "on"].into_iter().chain(options.map(|option| option.name)).collect()
        }
        Section::Export => {
            let options = EXPORT_OPTIONS.iter().filter(is_kept);
            std::iter::once("on").chain(options.map(|option| option.name)).collect()
        }
    };
    entry.fields.retain(|field| {
        let key = field.key.text.as_str();
        let is_allowed = allowed.contains(&key) || seeded::on(Bug::LabelBelieved);
        if !is_allowed {
            refuse(&field.key, &place, log);
        }
        is_allowed
    });
}

fn refuse(key: &Word, place: &str, log: &mut Log) {
    let why = format!(
        "{:?}{place} is never in a label that Cairn wrote, so another program wrote this label. \
         Next: serve the disks with a spec of your own",
        key.text
    );
    log.error(key.at, why);
}

impl Entry {
    /// Returns the kind of this disk or device, if the registry has it.
    pub(super) fn kind(&self, registry: Registry) -> Option<&'static Kind> {
        match self.section {
            Section::Device => registry.find(self.text("kind")?),
            Section::Disk => registry.disks().find(|kind| self.field(kind.name).is_some()),
            Section::Export => None,
        }
    }

    /// Returns the options of this device that belong to the machine: labels do not contain them.
    pub(super) fn of_machine(
        &self,
        registry: Registry,
    ) -> impl Iterator<Item = &'static OptionSpec> + use<> {
        let kind = self.kind(registry).filter(|_| self.section == Section::Device);
        let options = kind.into_iter().flat_map(options_of);
        options.filter(|option| option.scope != Scope::Graph)
    }

    /// Returns the value of the field `key` of this entry, if it is text.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.field(key).map(|item| &item.raw) {
            Some(Raw::Text(text)) => Some(text),
            _ => None,
        }
    }
}
