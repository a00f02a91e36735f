//! Restores an earlier spec of a graph: from its labels, completed with the settings of this machine.

use std::collections::{BTreeMap, BTreeSet};

use kind::{Effect, Registry, Scope};
use meta::Uuid;

use super::import::Local;
use super::parse::{Entry, Section, Spec};
use super::tree::{Field, Raw};
use super::write::table;

/// A spec of a graph that this machine knows, with the uuid of each labelled disk.
#[derive(Clone)]
pub struct Known {
    /// The spec of the graph.
    pub spec: Spec,
    /// Uuids of the labelled disks in the spec, by name of the disk.
    pub disks: BTreeMap<String, Uuid>,
}

/// A setting of an earlier spec that labels do not contain and that no known spec of this machine has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Forgotten {
    /// The path or address of a disk: the name and the uuid of the disk. A disk without a label has no uuid.
    Disk(String, Option<Uuid>),
    /// The source of a device's key: the name of the device.
    Key(String),
    /// An option that labels do not contain: the name of the device, and of the option.
    Option(String, &'static str),
}

impl Spec {
    /// Restores the spec in `text`, which labels contain, with the uuids `disks` of its disks; `file` names the text in
    /// messages. Settings of this machine come from `local`, then from the specs `known`, of which earlier elements
    /// take precedence. `[nbd]` and `[events]` come from the first element of `known`.
    ///
    /// # Errors
    /// The settings that neither `local` nor `known` has.
    ///
    /// # Panics
    /// If `known` is empty.
    pub fn back_to(
        text: &str,
        file: &str,
        disks: &BTreeMap<String, Uuid>,
        known: &[Known],
        local: &Local,
        registry: Registry,
    ) -> Result<Self, Vec<Forgotten>> {
        let kept = Self::in_label(text, file, known[0].spec.name(), registry);
        let memory = Memory { known, local, registry };
        let mut spec = known[0].spec.clone();
        spec.log.clone_from(&kept.log);
        let mut forgotten = Vec::new();
        let mut whole = |entries: Vec<Entry>| -> Vec<Entry> {
            let entries = entries.into_iter().filter_map(|entry| {
                let uuid = disks.get(&entry.name.text).copied();
                memory.complete(entry, uuid).map_err(|why| forgotten.push(why)).ok()
            });
            entries.collect()
        };
        spec.entries = whole(kept.entries);
        spec.exports = whole(kept.exports);
        // A spec with faults is refused anyway, so forgotten settings are not reported.
        if forgotten.is_empty() || spec.faults().is_some() { Ok(spec) } else { Err(forgotten) }
    }

    /// Returns the differences between this spec and the earlier spec `before`: the names of disks, devices and
    /// exports, each with `added`, `gone` or `changed`.
    pub fn since(&self, before: &Self) -> Vec<(String, &'static str)> {
        let (old, new) = (before.by_name(), self.by_name());
        let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
        let word = |name: &str| match (old.get(name), new.get(name)) {
            (None, _) => Some("added"),
            (_, None) => Some("gone"),
            (Some(old), Some(new)) => (old != new).then_some("changed"),
        };
        names.into_iter().filter_map(|name| Some((name.to_owned(), word(name)?))).collect()
    }

    /// Returns the fields of each entry as text, by name. Disks, devices and exports share one name space.
    fn by_name(&self) -> BTreeMap<&str, String> {
        let all = self.entries.iter().chain(&self.exports);
        all.map(|entry| (entry.name.text.as_str(), table(&entry.fields))).collect()
    }
}

struct Memory<'m> {
    known: &'m [Known],
    local: &'m Local,
    registry: Registry,
}

impl Memory<'_> {
    fn complete(&self, entry: Entry, disk: Option<Uuid>) -> Result<Entry, Forgotten> {
        match entry.section {
            Section::Disk => self.disk(entry, disk),
            Section::Device => self.device(entry),
            Section::Export => Ok(self.export(entry)),
        }
    }

    fn before(&self, section: Section, name: &str) -> Option<&Entry> {
        let specs = self.known.iter().map(|known| &known.spec);
        let mut all = specs.flat_map(|spec| spec.entries.iter().chain(&spec.exports));
        all.find(|entry| entry.is(section, name))
    }

    fn disk(&self, mut entry: Entry, disk: Option<Uuid>) -> Result<Entry, Forgotten> {
        let name = &entry.name.text;
        let same_disk = |known: &Known| {
            let (name, _) = known.disks.iter().find(|(_, uuid)| Some(**uuid) == disk)?;
            known.spec.disk(name).cloned()
        };
        let before = match disk {
            Some(_) => self.known.iter().find_map(same_disk),
            None => self
                .before(Section::Disk, name)
                .filter(|disk| disk.field("label").is_none())
                .cloned(),
        };
        entry.fields = match (self.local.disks.get(name), before) {
            (Some((kind, place)), _) => {
                let label = disk.map(|_| Field::new("label", Raw::Switch(true)));
                [Field::text(kind, place)].into_iter().chain(label).collect()
            }
            (None, Some(before)) => before.fields,
            (None, None) => return Err(Forgotten::Disk(name.clone(), disk)),
        };
        Ok(entry)
    }

    fn device(&self, mut entry: Entry) -> Result<Entry, Forgotten> {
        let name = &entry.name.text;
        let mut fields = Vec::new();
        let kind = |entry: &Entry| entry.kind(self.registry).map(|kind| kind.name);
        let before = self.before(Section::Device, name);
        let before = before.filter(|before| kind(before) == kind(&entry));
        for option in
            entry.of_machine(self.registry).filter(|option| option.effect != Effect::Start)
        {
            let said = self.local.of(name, option).map(|value| Raw::Text(value.to_owned()));
            let known = before.and_then(|before| before.field(option.name));
            match said.or_else(|| known.map(|item| item.raw.clone())) {
                Some(value) => fields.push(Field::new(option.name, value)),
                None if !option.required => {}
                None if option.scope == Scope::Secret => return Err(Forgotten::Key(name.clone())),
                None => return Err(Forgotten::Option(name.clone(), option.name)),
            }
        }
        entry.fields.extend(fields);
        Ok(entry)
    }

    /// Adds the options of an export that labels do not contain (`clients`, `attach`), from the first known spec with
    /// the export.
    fn export(&self, mut entry: Entry) -> Entry {
        const KEPT: [&str; 2] = ["on", "read_only"];
        let before = self.before(Section::Export, &entry.name.text);
        let local = before.into_iter().flat_map(|before| &before.fields);
        let local = local.filter(|field| !KEPT.contains(&field.key.text.as_str()));
        entry.fields.extend(local.cloned());
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "name = \"home\"\n[nbd]\nlisten = \"unix:home.sock\"\n[disk]\n\
        a = { file = \"a.img\", label = true }\nb = { file = \"new.img\", label = true }\n\
        raw = { file = \"raw.img\" }\n\
        [device]\npair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
        [export]\nvol = { on = \"pair\", attach = true }\n";
    const BEFORE: &str = "name = \"home\"\n[disk]\n\"a\" = { uuid = \"x\" }\n\"b\" = { uuid = \"y\" }\n\
        \"raw\" = {  }\n[device]\n\"pair\" = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
        [export]\n\"vol\" = { on = \"pair\" }\n";

    fn known(text: &str, disks: &[(&str, u8)]) -> Known {
        Known { spec: Spec::parse(text, "home.toml", &|_| None), disks: uuids(disks) }
    }

    fn uuids(disks: &[(&str, u8)]) -> BTreeMap<String, Uuid> {
        disks.iter().map(|(name, byte)| ((*name).to_owned(), Uuid([*byte; 16]))).collect()
    }

    fn back(known: &[Known], local: &Local) -> Result<String, Vec<Forgotten>> {
        let disks = uuids(&[("a", 1), ("b", 2)]);
        let spec = Spec::back_to(BEFORE, "label", &disks, known, local, Registry(&[]));
        spec.map(|spec| spec.to_text())
    }

    #[test]
    fn undo_matches_disks_by_uuid_not_by_name() {
        let now = known(NOW, &[("a", 1), ("b", 3)]);
        let gone = Forgotten::Disk("b".to_owned(), Some(Uuid([2; 16])));
        assert_eq!(back(std::slice::from_ref(&now), &Local::default()), Err(vec![gone]));
        let older = known(&NOW.replace("new.img", "old.img"), &[("a", 1), ("b", 2)]);
        let text = back(&[now.clone(), older], &Local::default()).unwrap();
        assert!(text.contains("old.img") && !text.contains("new.img"), "{text}");
        assert!(text.contains("home.sock") && text.contains("\"attach\" = true"), "{text}");
        assert!(text.contains("raw.img"), "{text}");
        let mut local = Local::default();
        local.disks.insert("b".to_owned(), ("path".to_owned(), "/dev/b".to_owned()));
        let text = back(&[now], &local).unwrap();
        assert!(text.contains("{ \"path\" = \"/dev/b\", \"label\" = true }"), "{text}");
    }

    #[test]
    fn spec_history_lists_added_removed_and_changed_names() {
        let before = Spec::parse(BEFORE, "label", &|_| None);
        let after = BEFORE.replace("on = [\"a\", \"b\"]", "on = [\"a\", \"c\"]");
        let after = after.replace("\"b\" = {", "\"c\" = {");
        let after = Spec::parse(&after, "label", &|_| None);
        let since = after.since(&before);
        let since: Vec<_> = since.iter().map(|(name, word)| (name.as_str(), *word)).collect();
        assert_eq!(since, [("b", "gone"), ("c", "added"), ("pair", "changed")]);
        assert!(after.since(&after).is_empty());
    }
}
