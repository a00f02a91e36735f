//! One disk, device or export of a spec, with the names in it resolved: its kind, its lowers, its options.

use std::collections::BTreeMap;

use kind::{Kind, Lowers, OptionSpec, Registry, Scope, Value, ValueType};

use super::fault::Log;
use super::keys::{DEVICE, EXPORT};
use super::near;
use super::parse::{Entry, Section, Spec, unknown_key};
use super::tree::{Field, Item, Raw, Word};
use super::value::{self, setting};

pub(super) const READ_ONLY: OptionSpec =
    OptionSpec { scope: Scope::Graph, ..setting("read_only", ValueType::Switch, "refuse writes") };

pub(super) const ATTACH: OptionSpec =
    setting("attach", ValueType::Switch, "attach the export as a block device of this machine");

/// Name of the setting of an export that lists the certificates of its clients.
pub(super) const CLIENTS: &str = "clients";

/// Options of an export in a spec, except `on` and `clients`.
pub(super) const EXPORT_OPTIONS: [OptionSpec; 2] = [READ_ONLY, ATTACH];

/// The option `label`, which every disk has.
pub(super) const LABEL: OptionSpec = setting(
    "label",
    ValueType::Switch,
    "keep a label in the disk's first and last MiB; the data are between",
);

/// Maximum number of names in the `clients` option of one export.
const CLIENTS_MAX: usize = 1024;

/// A disk or device of a spec with its kind, lowers and options looked up.
pub(super) struct Draft<'s> {
    pub(super) entry: &'s Entry,
    pub(super) kind: Option<&'static Kind>,
    /// Names of the lowers of the device, in the order of the spec.
    pub(super) on: Vec<Word>,
    /// Indices of the drafts of the lowers, in the same order; fewer than the spec lists if some names are unknown.
    pub(super) lowers: Vec<usize>,
    pub(super) options: Vec<(&'static str, Value)>,
    /// Whether the draft is of a disk with `label = true`.
    pub(super) label: bool,
    /// Whether the draft is of a disk with `label = false`.
    pub(super) said_raw: bool,
    /// Whether the disk or device can be planned: the entry itself has no fault.
    pub(super) sound: bool,
}

/// An export of a spec with its device and options looked up.
pub(super) struct ExportDraft<'s> {
    pub(super) entry: &'s Entry,
    pub(super) on: Option<(Word, usize)>,
    pub(super) read_only: bool,
    pub(super) attach: bool,
    /// The names that client certificates must have to use the export; `None` if the spec does not limit the clients.
    pub(super) clients: Option<Vec<String>>,
}

/// The indices of the disks, devices and exports of a spec, by name.
pub(super) struct Names<'s> {
    nodes: BTreeMap<&'s str, usize>,
    exports: BTreeMap<&'s str, usize>,
}

impl<'s> Names<'s> {
    /// Returns the names in `spec`, and those of the `volumes` that it names, whose indices follow.
    pub(super) fn of(spec: &'s Spec, volumes: &'s [Entry]) -> Self {
        fn index<'s>(entries: impl Iterator<Item = &'s Entry>) -> BTreeMap<&'s str, usize> {
            let mut index = BTreeMap::new();
            for (n, entry) in entries.enumerate() {
                // The first of two entries with one name gets the name.
                index.entry(entry.name.text.as_str()).or_insert(n);
            }
            index
        }
        Self {
            nodes: index(spec.entries.iter().chain(volumes)),
            exports: index(spec.exports.iter()),
        }
    }

    pub(super) fn find(&self, word: &Word, log: &mut Log) -> Option<usize> {
        let name = word.text.as_str();
        if let Some(index) = self.nodes.get(name) {
            return Some(*index);
        }
        log.error_with(word.at, || match self.exports.contains_key(name) {
            true => {
                format!(
                    "{name:?} is an export, and no device can be on an export; name the device of \
                     the export"
                )
            }
            false => {
                let devices = self.nodes.keys().copied().filter(|name| !name.contains('/'));
                format!("no device {name:?}{}", near::hint(name, devices))
            }
        });
        None
    }
}

impl<'s> Draft<'s> {
    pub(super) fn new(
        entry: &'s Entry,
        registry: Registry,
        names: &Names<'_>,
        log: &mut Log,
    ) -> Self {
        let mut draft = Self::empty(entry);
        if !entry.broken {
            let is_disk = entry.section == Section::Disk;
            let sound = if is_disk {
                draft.disk(registry, log)
            } else {
                draft.device(registry, names, log)
            };
            draft.sound = sound && !entry.twice;
        }
        draft
    }

    pub(super) fn empty(entry: &'s Entry) -> Self {
        Self {
            entry,
            kind: None,
            on: Vec::new(),
            lowers: Vec::new(),
            options: Vec::new(),
            label: false,
            said_raw: false,
            sound: false,
        }
    }

    fn disk(&mut self, registry: Registry, log: &mut Log) -> bool {
        let entry = self.entry;
        let is_kind = |name: &str| registry.disk_names().any(|kind| kind == name);
        let mut kinds = entry.fields.iter().filter(|field| is_kind(&field.key.text));
        let Some(first) = kinds.next() else {
            let name = &entry.name.text;
            let known = registry.disk_names().collect::<Vec<_>>().join(", ");
            let message = format!("disk {name:?} has no kind; add one of these keys: {known}");
            log.error(entry.name.at, message);
            return self.guess_unknown(registry, log);
        };
        self.kind = registry.find(&first.key.text);
        let mut told = Vec::new();
        for second in kinds {
            let (one, two) = (&first.key.text, &second.key.text);
            log.error(second.key.at, format!("a disk has one kind; remove {one} or {two}"));
            told.push(two.as_str());
        }
        let sound = self.options(&[], &told, log) && told.is_empty();
        let says = |on| self.options.contains(&(LABEL.name, Value::Switch(on)));
        (self.label, self.said_raw) = (says(true), says(false));
        self.options.retain(|(name, _)| *name != LABEL.name);
        sound
    }

    /// Reports each key that is similar to a kind of disk, for a disk without a known kind. Returns `false`.
    fn guess_unknown(&self, registry: Registry, log: &mut Log) -> bool {
        let known: Vec<&str> = registry.disk_names().collect();
        for Field { key, .. } in &self.entry.fields {
            if let Some(guess) = near::guess(&key.text, &known) {
                log.error(key.at, format!("no kind of disk {:?}{guess}", key.text));
            }
        }
        false
    }

    fn device(&mut self, registry: Registry, names: &Names<'_>, log: &mut Log) -> bool {
        self.kind = self.find_kind(registry, log);
        let known = self.stand(names, log);
        let arity = known && self.check_count(log);
        let others: Vec<_> = DEVICE.names().collect();
        let options = self.options(&others, &[], log);
        self.kind.is_some() && arity && options
    }

    fn find_kind(&self, registry: Registry, log: &mut Log) -> Option<&'static Kind> {
        let Some(item) = self.entry.field("kind") else {
            let Word { text, at } = &self.entry.name;
            log.error(*at, format!("device {text:?} has no kind; add kind = \"KIND\""));
            return None;
        };
        let Raw::Text(name) = &item.raw else {
            log.wrong("kind", item, "the name of a kind is needed");
            return None;
        };
        let kind = registry.find(name);
        match kind.map(|kind| kind.lowers) {
            Some(Lowers::None) => {
                log.error(item.at, format!("{name:?} is a kind of disk; move the entry to [disk]"));
                None
            }
            Some(_) => kind,
            None => {
                let hint = || near::hint(name, registry.device_names());
                log.error_with(item.at, || format!("no kind {name:?}{}", hint()));
                None
            }
        }
    }

    /// Resolves the names in `on` to the drafts of the lowers. Returns whether all of them exist.
    fn stand(&mut self, names: &Names<'_>, log: &mut Log) -> bool {
        let Some(item) = self.entry.field("on") else {
            let Word { text, at } = &self.entry.name;
            log.error(*at, format!("device {text:?} has no lower device; add on = \"NAME\""));
            return false;
        };
        let items = item.items();
        for one in items {
            let Some(word) = name_of(one, log) else { continue };
            if self.on.iter().any(|on| on.text == word.text) {
                let message = format!("{:?} is twice in \"on\"; name each device once", word.text);
                log.error(word.at, message);
                continue;
            }
            if let Some(index) = names.find(&word, log) {
                self.on.push(word);
                self.lowers.push(index);
            }
        }
        self.lowers.len() == items.len()
    }

    fn check_count(&self, log: &mut Log) -> bool {
        let Some(kind) = self.kind else { return false };
        let (least, most) = match kind.lowers {
            Lowers::None => (0, 0),
            Lowers::One => (1, 1),
            Lowers::Many(least, most) => (least, most),
        };
        let count = self.lowers.len();
        if (least..=most).contains(&count) {
            return true;
        }
        let needed = match (least, most) {
            (1, 1) => "one device".to_owned(),
            _ => format!("{least} to {most} devices"),
        };
        let message = format!("a {} needs {needed} in \"on\"; {count} given", kind.name);
        log.error(self.entry.place("on"), message);
        false
    }

    /// Checks every field of the entry against the options of the kind, and returns whether all are right. Skips the
    /// keys in `others`, which are no options, and those in `told`, which were reported already.
    fn options(&mut self, others: &[&str], told: &[&str], log: &mut Log) -> bool {
        let Some(kind) = self.kind else { return false };
        let known: Vec<&'static OptionSpec> = options_of(kind).collect();
        let mut sound = true;
        for Field { key, item } in &self.entry.fields {
            let name = key.text.as_str();
            if others.contains(&name) || told.contains(&name) {
                continue;
            }
            let value = match known.iter().find(|option| option.name == name) {
                Some(option) => {
                    value::check(option, item, &self.on, log).map(|value| (option.name, value))
                }
                None => {
                    let options = known.iter().map(|option| option.name);
                    let names = others.iter().copied().chain(options);
                    unknown_key(key, kind.name, names, log);
                    None
                }
            };
            sound &= value.is_some();
            self.options.extend(value);
        }
        for option in known.iter().filter(|option| option.required) {
            if self.entry.field(option.name).is_none() {
                let (name, key, help) = (&self.entry.name.text, option.name, option.help);
                let message = format!("{name:?} needs {key}: {help}");
                log.error(self.entry.name.at, message);
                sound = false;
            }
        }
        sound
    }
}

impl<'s> ExportDraft<'s> {
    pub(super) fn new(entry: &'s Entry, names: &Names<'_>, log: &mut Log) -> Self {
        let mut draft = Self { entry, on: None, read_only: false, attach: false, clients: None };
        if entry.broken {
            return draft;
        }
        for Field { key, item } in &entry.fields {
            if !EXPORT.has(key, "an export", log) {
                continue;
            }
            match key.text.as_str() {
                "on" => {
                    let word = name_of(item, log);
                    draft.on = word.and_then(|word| names.find(&word, log).map(|i| (word, i)));
                }
                "read_only" => draft.read_only = value::is_on(&READ_ONLY, item, log),
                "attach" => draft.attach = value::is_on(&ATTACH, item, log),
                CLIENTS => draft.clients = clients(item, log),
                name => unreachable!("the table of keys has {name}, which is not parsed"),
            }
        }
        if entry.field("on").is_none() {
            let Word { text, at } = &entry.name;
            log.error(*at, format!("export {text:?} has no device; add on = \"NAME\""));
        }
        draft.on.take_if(|_| entry.twice);
        draft
    }
}

/// Returns the options of a kind; for a kind of disk also `label`.
pub(crate) fn options_of(kind: &'static Kind) -> impl Iterator<Item = &'static OptionSpec> {
    let label = (kind.lowers == Lowers::None).then_some(&LABEL);
    kind.options.iter().chain(label)
}

/// Returns the names that the `clients` option permits in client certificates. The option is one name or a list.
fn clients(item: &Item, log: &mut Log) -> Option<Vec<String>> {
    let items = item.items();
    if items.is_empty() || items.len() > CLIENTS_MAX {
        let count = items.len();
        log.error(item.at, format!("{count} names in clients; 1 to {CLIENTS_MAX} are possible"));
    }
    let mut names = Vec::new();
    for one in items {
        match &one.raw {
            Raw::Text(name) if !name.is_empty() => names.push(name.clone()),
            _ => {
                log.wrong("clients", one, "a name in a client's certificate, in quotes, is needed")
            }
        }
    }
    Some(names)
}

fn name_of(item: &Item, log: &mut Log) -> Option<Word> {
    match &item.raw {
        Raw::Text(text) => Some(Word { text: text.clone(), at: item.at }),
        _ => {
            log.wrong("on", item, "the name of a device is needed");
            None
        }
    }
}

/// Whether the place of a device with these options among the bytes of its lower depends on the devices planned before: its
/// kind has an option `start`, and the spec does not set the option.
pub(crate) fn floats(kind: &Kind, options: &[(&'static str, Value)]) -> bool {
    let has_start = kind.options.iter().any(|option| option.name == "start");
    has_start && !options.iter().any(|(name, _)| *name == "start")
}
