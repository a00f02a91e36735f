//! Parses the sections of a spec, and finds entries by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kind::{OptionSpec, Value, ValueType};

use super::fault::{Faults, Log, Position};
use super::keys::{self, DEVICE, DISK, EVENTS, EXPORT};
use super::listen::{Nbd, TlsPaths};
use super::tree::{Field, Item, Raw, Word};
use super::value::{self, setting};
use super::{near, tree};

/// Maximum length of the text of a spec in bytes. [`DEVICES_MAX`] devices need far less.
pub const TEXT_MAX_BYTES: usize = 4 << 20;

/// Maximum number of disks and devices in one graph.
pub const DEVICES_MAX: usize = 4096;

/// Maximum number of exports of one graph.
pub const EXPORTS_MAX: usize = 1024;

/// Maximum length of a name in a spec, in bytes. Names become part of paths, labels and metrics.
pub const NAME_MAX_BYTES: usize = 64;

pub(super) const RUN: OptionSpec =
    setting("run", ValueType::Path, "the program that is run for each event");

/// A parsed spec, with the faults found so far. [`Spec::plan`] finds the other faults, and reports all of them
/// together.
#[derive(Clone)]
pub struct Spec {
    pub(super) name: String,
    pub(super) nbd: Nbd,
    /// The program that runs for each event.
    pub(super) events: Option<PathBuf>,
    /// Disks and devices in the order of the file. Of two entries with one name, the first counts.
    pub(super) entries: Vec<Entry>,
    pub(super) exports: Vec<Entry>,
    /// Whether the text could be read, so that a missing export is a fault of its own.
    pub(super) is_read: bool,
    pub(super) log: Log,
}

/// One disk, device or export of a spec: a line of `[disk]`, `[device]` or `[export]`.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) section: Section,
    pub(super) name: Word,
    pub(super) fields: Vec<Field>,
    /// Whether the value of the entry was no TOML table. This fault is reported already.
    pub(super) broken: bool,
    /// Whether an earlier entry has the same name. This fault is reported already.
    pub(super) twice: bool,
    /// Whether a command for this start set the `trust` option, not the spec: see [`kind::DeviceConfig::trusted_now`].
    pub(super) trusted_now: bool,
}

impl Entry {
    /// Returns a new entry without faults.
    pub(super) fn new(section: Section, name: Word, fields: Vec<Field>) -> Self {
        Self { section, name, fields, broken: false, twice: false, trusted_now: false }
    }

    /// Returns the position of the value of `key` in the text; without that key, the position of the name of the entry.
    pub(super) fn place(&self, key: &str) -> Position {
        self.field(key).map_or(self.name.at, |item| item.at)
    }

    pub(super) fn field(&self, key: &str) -> Option<&Item> {
        self.fields.iter().find(|field| field.key.text == key).map(|field| &field.item)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    Disk,
    Device,
    Export,
}

impl Section {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Device => "device",
            Self::Export => "export",
        }
    }

    fn example(self) -> &'static str {
        let section = match self {
            Self::Disk => &DISK,
            Self::Device => &DEVICE,
            Self::Export => &EXPORT,
        };
        section.entry.unwrap_or_default()
    }
}

impl Spec {
    /// Parses the text of a spec. `file` is the name of the text in messages; `vars` returns the values of variables.
    /// The returned spec contains the faults; [`Spec::plan`] reports them.
    pub fn parse(text: &str, file: &str, vars: &dyn Fn(&str) -> Option<String>) -> Self {
        let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
        Self::read(text, file, &stem, vars, Self::section)
    }

    /// Parses a spec as [`Spec::parse`] does, and calls `section` for each top-level key. `name` becomes the name of
    /// the graph if the text has none.
    pub(super) fn read(
        text: &str,
        file: &str,
        name: &str,
        vars: &dyn Fn(&str) -> Option<String>,
        section: impl Fn(&mut Self, &Field),
    ) -> Self {
        let mut spec = Self::empty(file, name);
        if text.len() > TEXT_MAX_BYTES {
            let bytes = text.len();
            let message = format!("the text has {bytes} bytes; at most {TEXT_MAX_BYTES} are read");
            spec.log.error(Position::NONE, message);
            return spec;
        }
        let Some(fields) = tree::read(text, vars, &mut spec.log) else {
            return spec;
        };
        for field in &fields {
            section(&mut spec, field);
        }
        spec.entries.sort_by_key(|entry| entry.name.at);
        spec.check_names();
        spec.check_counts();
        spec.is_read = true;
        spec
    }

    /// Returns the files for TLS, if the spec names them.
    pub fn tls(&self) -> Option<&TlsPaths> {
        self.nbd.tls.as_ref()
    }

    /// Returns the faults found so far, if one of them is an error. [`Spec::plan`] finds further faults.
    pub fn faults(&self) -> Option<Faults> {
        self.log.clone().finish().err()
    }

    /// Adds a fault that the caller has found. [`Spec::plan`] reports it with the other faults.
    pub fn fault(&mut self, position: Position, message: impl Into<String>) {
        self.log.error(position, message);
    }

    /// Returns a spec of one raw disk that is exported as `vol`, made without a text. `kind` is `file` or `path`.
    pub fn of_disk(kind: &str, path: &str, read_only: bool) -> Self {
        let read_only = read_only.then(|| Field::new("read_only", Raw::Switch(true)));
        let entry = |section, name: &str, first: Field| {
            let fields = std::iter::once(first).chain(read_only.clone()).collect();
            Entry::new(section, Word::new(name), fields)
        };
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        let mut spec = Self::empty(path, &name);
        spec.entries.push(entry(Section::Disk, "disk", Field::text(kind, path)));
        spec.exports.push(entry(Section::Export, "vol", Field::text("on", "disk")));
        spec
    }

    /// Returns the name of the graph.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn empty(file: &str, name: &str) -> Self {
        Self {
            name: name_from(name),
            nbd: Nbd::default(),
            events: None,
            entries: Vec::new(),
            exports: Vec::new(),
            is_read: false,
            log: Log::new(file),
        }
    }

    pub(super) fn section(&mut self, field: &Field) {
        let Field { key, item } = field;
        if !keys::top_names().any(|name| name == key.text) {
            return unknown_key(key, "a spec", keys::top_names(), &mut self.log);
        }
        match key.text.as_str() {
            "name" => self.set_name(item),
            "nbd" => {
                if let Some(fields) = table(key, item, &mut self.log) {
                    self.nbd = Nbd::read(fields, &mut self.log);
                }
            }
            "events" => self.set_events(key, item),
            "disk" => self.entries(Section::Disk, key, item),
            "device" => self.entries(Section::Device, key, item),
            "export" => self.entries(Section::Export, key, item),
            name => unreachable!("the table of keys has {name}, which is not parsed"),
        }
    }

    fn set_name(&mut self, item: &Item) {
        match &item.raw {
            Raw::Text(text) => {
                if let Some(why) = wrong_name(text) {
                    self.log.error(item.at, format!("name {text:?}: {why}"));
                }
                self.name.clone_from(text);
            }
            _ => self.log.wrong("name", item, "text in quotes is needed"),
        }
    }

    fn set_events(&mut self, key: &Word, item: &Item) {
        for Field { key, item } in table(key, item, &mut self.log).unwrap_or_default() {
            if !EVENTS.has(key, "events", &mut self.log) {
                continue;
            }
            if let Some(Value::Text(path)) = value::check(&RUN, item, &[], &mut self.log) {
                self.events = Some(path.into());
            }
        }
    }

    fn entries(&mut self, section: Section, key: &Word, item: &Item) {
        for Field { key: name, item } in table(key, item, &mut self.log).unwrap_or_default() {
            let (fields, broken) = match &item.raw {
                Raw::Table(fields) => (fields.clone(), false),
                Raw::Broken => (Vec::new(), true),
                raw => {
                    let (shown, name, example) = (raw.show(), &name.text, section.example());
                    let message =
                        format!("{shown} is no {}; write {name} = {example}", section.word());
                    self.log.error(item.at, message);
                    (Vec::new(), true)
                }
            };
            let entry = Entry { broken, ..Entry::new(section, name.clone(), fields) };
            match section {
                Section::Export => self.exports.push(entry),
                Section::Disk | Section::Device => self.entries.push(entry),
            }
        }
    }

    /// Reports wrong names and repeated ones. Disks, devices and exports share one name space; the first entry in the
    /// file gets the name.
    fn check_names(&mut self) {
        let mut entries: Vec<_> = self.entries.iter_mut().chain(&mut self.exports).collect();
        entries.sort_by_key(|entry| entry.name.at);
        let mut seen = BTreeMap::new();
        for entry in entries {
            let Word { text, at } = &entry.name;
            if let Some(why) = wrong_name(text) {
                self.log.error(*at, format!("name {text:?}: {why}"));
            }
            if let Some((section, line)) = seen.get(text) {
                let message = format!(
                    "{text:?} is the name of {section} already (line {line}); disks, devices and \
                     exports need different names"
                );
                self.log.error(*at, message);
                entry.twice = true;
            } else {
                let section = match entry.section {
                    Section::Disk => "a disk",
                    Section::Device => "a device",
                    Section::Export => "an export",
                };
                seen.insert(text.clone(), (section, at.line));
            }
        }
    }

    fn check_counts(&mut self) {
        if let Some(extra) = self.entries.get(DEVICES_MAX) {
            let count = self.entries.len();
            let message = format!("{count} disks and devices; at most {DEVICES_MAX} are possible");
            self.log.error(extra.name.at, message);
        }
        if let Some(extra) = self.exports.get(EXPORTS_MAX) {
            let count = self.exports.len();
            let message = format!("{count} exports; at most {EXPORTS_MAX} are possible");
            self.log.error(extra.name.at, message);
        }
    }
}

fn table<'i>(key: &Word, item: &'i Item, log: &mut Log) -> Option<&'i [Field]> {
    match &item.raw {
        Raw::Table(fields) => Some(fields),
        Raw::Broken => None,
        _ => {
            let key = &key.text;
            log.error(item.at, format!("{key} is a table; write [{key}], and its keys below"));
            None
        }
    }
}

/// Reports that `key` is unknown in the part of the spec that `place` names, with a guess from the `known` keys.
pub(super) fn unknown_key<'k>(
    key: &Word,
    place: &str,
    known: impl IntoIterator<Item = &'k str>,
    log: &mut Log,
) {
    log.error_with(key.at, || {
        format!("no key {:?} in {place}{}", key.text, near::hint(&key.text, known))
    });
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

pub(super) fn wrong_name(name: &str) -> Option<String> {
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if name.len() <= NAME_MAX_BYTES && begins && name.bytes().all(is_name_byte) {
        return None;
    }
    Some(format!(
        "a name has 1 to {NAME_MAX_BYTES} letters a-z, digits, - _ and ., and begins with a letter \
         or digit"
    ))
}

/// Makes the name of a graph from the name of a file: each character that a graph name cannot have becomes a dash.
fn name_from(file: &str) -> String {
    let name: String =
        file.bytes().map(|b| if is_name_byte(b) { char::from(b) } else { '-' }).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let name = &name[..name.len().min(NAME_MAX_BYTES)];
    if name.is_empty() { "graph".to_owned() } else { name.to_owned() }
}
