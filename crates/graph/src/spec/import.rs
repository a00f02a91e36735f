//! A spec that labels keep, made whole again with what is true on this machine only.

use std::collections::BTreeMap;

use super::fault::Position;
use super::parse::{Entry, Section, Spec};
use super::tree::{Field, Item, Raw, Word};
use crate::kind::Registry;

/// The option of kinds that are opened with a key.
pub(super) const KEY: &str = "key";

/// What labels do not keep.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// Where each disk is: the word of its kind, and its place: `file`, `disk.img`.
    pub disks: BTreeMap<String, (String, String)>,
    /// Where keys of devices come from, where nobody is to be asked.
    pub keys: BTreeMap<String, String>,
}

impl Spec {
    /// The spec that a label keeps, with the disks where they are. A disk whose place is not known is
    /// missing; a key whose source is not known is asked for.
    pub fn of_label(text: &str, graph: &str, registry: Registry, local: &Local) -> Self {
        let mut spec = Self::parse(text, graph, &|_| None);
        for entry in &mut spec.entries {
            match entry.section {
                Section::Disk => place(entry, local),
                Section::Device => give_key(entry, registry, local),
                Section::Export => {}
            }
        }
        spec
    }

    /// The devices that are opened with a key.
    pub fn keyed(&self, registry: Registry) -> Vec<&str> {
        let keyed = self.entries.iter().filter(|entry| needs_key(entry, registry));
        keyed.map(|entry| entry.name.text.as_str()).collect()
    }

    /// The devices with a key, and where it says that it comes from.
    pub fn keys(&self) -> Vec<(&str, &str)> {
        let devices = self.entries.iter().filter(|entry| entry.section == Section::Device);
        let key = |entry| match Entry::field(entry, KEY).map(|item| &item.raw) {
            Some(Raw::Text(source)) => Some((entry.name.text.as_str(), source.as_str())),
            _ => None,
        };
        devices.filter_map(key).collect()
    }

    /// The disks that stand in it without a label: nothing tells where they are.
    pub fn unlabelled(&self) -> Vec<&str> {
        let disks = self.entries.iter().filter(|entry| entry.section == Section::Disk);
        let raw = disks.filter(|entry| entry.field("uuid").is_none());
        raw.map(|entry| entry.name.text.as_str()).collect()
    }
}

/// A place that no disk has: people see an empty one instead.
pub const NOWHERE: &str = "/nowhere: not found";

fn place(entry: &mut Entry, local: &Local) {
    let labelled = entry.field("uuid").is_some();
    let known = local.disks.get(&entry.name.text);
    let (kind, place) = known.map_or(("file", NOWHERE), |(kind, place)| (kind, place));
    entry.fields = vec![field(kind, Raw::Text(place.to_owned()))];
    if labelled {
        entry.fields.push(field("label", Raw::Switch(true)));
    }
}

pub(super) fn needs_key(entry: &Entry, registry: Registry) -> bool {
    let kind = match entry.field("kind").map(|item| &item.raw) {
        Some(Raw::Text(kind)) if entry.section == Section::Device => registry.find(kind),
        _ => None,
    };
    let options = kind.into_iter().flat_map(|kind| kind.options);
    options.into_iter().any(|option| option.name == KEY && option.required)
}

fn give_key(entry: &mut Entry, registry: Registry, local: &Local) {
    if needs_key(entry, registry) && entry.field(KEY).is_none() {
        let source = local.keys.get(&entry.name.text).map_or("ask", String::as_str);
        entry.fields.push(field(KEY, Raw::Text(source.to_owned())));
    }
}

pub(super) fn field(key: &str, raw: Raw) -> Field {
    let at = Position::NOWHERE;
    Field { key: Word { text: key.to_owned(), at }, item: Item { at, raw } }
}
