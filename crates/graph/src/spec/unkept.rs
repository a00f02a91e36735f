//! The settings of a spec that labels do not contain.

use kind::{Registry, Scope};

use super::draft::{ATTACH, CLIENTS};
use super::listen::Listen;
use super::parse::{Entry, Spec};
use super::tree::{Item, Raw};

/// The settings of a spec that labels do not contain, because they are those of one machine. Paths of labelled disks
/// are not among them: a scan finds these disks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unkept {
    /// Disks without a label, each with its path or address.
    pub disks: Vec<(String, String)>,
    /// Devices with a key, each with the source of the key.
    pub keys: Vec<(String, String)>,
    /// Options of devices and exports with their values: `trace.file` and `home.trace`.
    pub options: Vec<(String, String)>,
    /// Addresses at which clients connect.
    pub listens: Vec<Listen>,
    /// Settings for which no command has an argument, as the spec calls them: `tls of [nbd]`.
    pub sections: Vec<&'static str>,
}

impl Spec {
    /// Returns the settings of the spec that labels do not contain.
    pub fn unkept(&self, registry: Registry) -> Unkept {
        let keys = self.keys(registry).into_iter();
        let mut unkept = Unkept {
            keys: keys.map(|(name, key)| (name.to_owned(), key.to_owned())).collect(),
            listens: self.nbd.listens.clone(),
            ..Unkept::default()
        };
        for entry in &self.entries {
            unkept.disks.extend(raw_disk(entry, registry));
            let options = entry.of_machine(registry);
            let local = options.filter(|option| option.scope == Scope::Local);
            local.for_each(|option| unkept.add_option(entry, option.name));
        }
        for export in &self.exports {
            unkept.add_option(export, ATTACH.name);
            unkept.add_option(export, CLIENTS);
        }
        let sections = [
            (self.nbd.tls.is_some(), "tls of [nbd]"),
            (self.nbd.max_connections.is_some(), "max_connections of [nbd]"),
            (self.events.is_some(), "[events]"),
        ];
        unkept.sections =
            sections.into_iter().filter(|(is_set, _)| *is_set).map(|it| it.1).collect();
        unkept
    }
}

impl Unkept {
    /// Adds an option of a device or export, if the spec sets it.
    fn add_option(&mut self, entry: &Entry, option: &str) {
        let Some(item) = entry.field(option) else { return };
        let words: Vec<_> = item.items().iter().map(word).collect();
        self.options.push((format!("{}.{option}", entry.name.text), words.join(",")));
    }
}

/// Returns the value of an option as text.
fn word(item: &Item) -> String {
    match &item.raw {
        Raw::Text(text) => text.clone(),
        raw => raw.show(),
    }
}

/// Returns the name and the place of a disk without a label; `None` for a disk in memory, which has no place.
fn raw_disk(disk: &Entry, registry: Registry) -> Option<(String, String)> {
    let is_labelled = disk.field("label").is_some_and(|item| matches!(item.raw, Raw::Switch(true)));
    let place = disk.kind(registry)?.place().filter(|_| !is_labelled)?;
    Some((disk.name.text.clone(), disk.text(place.name)?.to_owned()))
}
