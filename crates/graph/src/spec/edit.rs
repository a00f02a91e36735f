//! Changes of a spec by commands: each alters one disk or member of the spec, not its text.

use std::path::{Path, PathBuf};

use kind::{Kind, OptionSpec, Registry};

use super::parse::{DEVICES_MAX, Entry, Section, Spec, wrong_name};
use super::tree::{Field, Item, Raw, Word};

impl Spec {
    /// Returns the program that runs for each event, if the spec names one.
    pub fn events_program(&self) -> Option<&Path> {
        self.events.as_deref()
    }

    /// Replaces the path of the disk `name` in the spec by `place`, and its kind by `kind`, which opens paths.
    ///
    /// # Errors
    /// If the spec has no disk called `name`.
    pub fn move_disk(
        &mut self,
        name: &str,
        kind: &'static Kind,
        place: PathBuf,
        registry: Registry,
    ) -> Result<(), String> {
        let disk = self.find(Section::Disk, name)?;
        let was = disk.kind(registry);
        disk.forget_making(registry);
        let place_of = |kind: &Kind| kind.place().filter(|_| kind.opens_path());
        let is_place = |field: &Field| {
            was.and_then(place_of).is_some_and(|place| place.name == field.key.text)
        };
        disk.fields.retain(|field| !is_place(field));
        disk.fields.insert(0, Field::text(kind.name, &place.to_string_lossy()));
        Ok(())
    }

    /// Removes from the spec the options with which the disk `name` was created, such as its size, because the disk has
    /// been enlarged since. Returns whether the spec had such options.
    ///
    /// # Errors
    /// If the spec has no disk called `name`.
    pub fn forget_making(&mut self, name: &str, registry: Registry) -> Result<bool, String> {
        let disk = self.find(Section::Disk, name)?;
        let said = disk.fields.len();
        disk.forget_making(registry);
        Ok(disk.fields.len() < said)
    }

    /// Removes the options that take effect at one start only, from disks and devices for which `heard` is true.
    /// Afterwards a missing disk is reported and not created again. A device loses its option only if all disks beneath
    /// it have labels: the labels record which bytes count, and the trusted member may miss later writes.
    pub fn forget_start_options(&mut self, registry: Registry, heard: impl Fn(&str) -> bool) {
        let told = |entry: &Entry| {
            let disks = self.beneath(&entry.name.text).into_iter();
            let mut disks = disks.filter_map(|name| self.disk(&name));
            disks.all(|disk| {
                disk.field("label").is_some_and(|label| matches!(label.raw, Raw::Switch(true)))
            })
        };
        let told: Vec<bool> = self.entries.iter().map(told).collect();
        let all = self.entries.iter_mut().zip(told);
        for (entry, told) in all.filter(|(entry, _)| heard(&entry.name.text)) {
            let is_disk = entry.section == Section::Disk;
            if let Some(word) = entry.start_option(registry).filter(|_| is_disk || told) {
                entry.fields.retain(|field| field.key.text != word.name);
            }
        }
    }

    /// Returns the disks and devices whose option for one start only has the same value in the spec `before`.
    pub fn start_options_as(&self, before: &Self, registry: Registry) -> Vec<String> {
        let shown = |entry: &Entry, key: &str| entry.field(key).map(|item| item.raw.show());
        let is_heard = |entry: &&Entry| {
            let word = entry.start_option(registry).filter(|word| entry.field(word.name).is_some());
            let Some(word) = word else { return false };
            let place = entry.kind(registry).and_then(Kind::place);
            let mut before =
                before.entries.iter().filter(|it| it.is(entry.section, &entry.name.text));
            // A disk with another path is another disk.
            let mut all = place.into_iter().chain([word]);
            before.any(|before| all.all(|it| shown(entry, it.name) == shown(before, it.name)))
        };
        self.entries.iter().filter(is_heard).map(|entry| entry.name.text.clone()).collect()
    }

    /// Sets the `trust` option of each device above `member` to that member, for this start only. The device then
    /// trusts the bytes of the member, whatever labels record about them.
    ///
    /// # Errors
    /// If no device with a `trust` option has the lower `member`.
    pub fn trust(&mut self, member: &str, registry: Registry) -> Result<(), String> {
        let mut devices = Vec::new();
        for entry in &mut self.entries {
            let trust = entry.kind(registry).and_then(Kind::trust);
            devices.extend(trust.map(|trust| (entry, trust)));
        }
        let names = devices.iter().flat_map(|(device, _)| device.on()).cloned();
        let names: Vec<_> = names.collect();
        devices.retain(|(device, _)| device.on().iter().any(|name| *name == member));
        if devices.is_empty() {
            let members = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(format!("{member} is no member of a mirror; members: {members}"));
        }
        for (device, trust) in devices {
            device.fields.retain(|field| field.key.text != trust.name);
            device.fields.push(Field::text(trust.name, member));
            device.trusted_now = true;
        }
        Ok(())
    }

    pub(super) fn disk(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.is(Section::Disk, name))
    }

    /// Adds a disk of `kind` at `place` to the spec, as a new lower of the device `device`. The disk gets a label.
    ///
    /// # Errors
    /// If the spec has no such device with a list of lowers, if the name is taken or wrong, or if the spec has too many
    /// entries.
    pub fn insert_disk(
        &mut self,
        device: &str,
        name: &str,
        kind: &'static Kind,
        place: PathBuf,
    ) -> Result<(), String> {
        if let Some(why) = wrong_name(name) {
            return Err(format!("{name:?} cannot be the name of a disk: {why}"));
        }
        if self.entries.len() >= DEVICES_MAX {
            return Err(format!("the spec has {DEVICES_MAX} disks and devices, the most possible"));
        }
        let taken = self.entries.iter().chain(&self.exports).any(|entry| entry.name.text == name);
        if taken {
            return Err(format!("{name:?} is in the spec already. Next: use another name"));
        }
        self.members(device)?.push(Item::new(Raw::Text(name.to_owned())));
        let label = Field::new("label", Raw::Switch(true));
        let fields = vec![Field::text(kind.name, &place.to_string_lossy()), label];
        self.entries.push(Entry::new(Section::Disk, Word::new(name), fields));
        Ok(())
    }

    /// Removes the lower called `name` from a device of the spec. Removes the disk `name` as well, unless another
    /// device or export uses it.
    ///
    /// # Errors
    /// If the spec has no such device, or the device has no such lower.
    pub fn remove_member(&mut self, device: &str, name: &str) -> Result<(), String> {
        let members = self.members(device)?;
        let before = members.len();
        members.retain(|member| !is_text(&member.raw, name));
        if members.len() == before {
            return Err(format!("{device} has no member {name:?}"));
        }
        let all = self.entries.iter().chain(&self.exports);
        let is_used = all.filter_map(|entry| entry.field("on")).any(|on| match &on.raw {
            Raw::List(items) => items.iter().any(|item| is_text(&item.raw, name)),
            raw => is_text(raw, name),
        });
        if !is_used {
            self.entries.retain(|entry| !entry.is(Section::Disk, name));
        }
        Ok(())
    }

    fn find(&mut self, section: Section, name: &str) -> Result<&mut Entry, String> {
        let found = self.entries.iter_mut().find(|entry| entry.is(section, name));
        found.ok_or_else(|| format!("the spec has no {} {name:?}", section.word()))
    }

    /// Returns the lowers of a device, if the spec writes them as a list.
    fn members(&mut self, device: &str) -> Result<&mut Vec<Item>, String> {
        let entry = self.find(Section::Device, device)?;
        let on = entry.fields.iter_mut().find(|field| field.key.text == "on");
        match on.map(|field| &mut field.item.raw) {
            Some(Raw::List(items)) => Ok(items),
            _ => Err(format!("{device} has no members")),
        }
    }
}

impl Entry {
    pub(super) fn is(&self, section: Section, name: &str) -> bool {
        self.section == section && self.name.text == name
    }

    /// Returns the option that counts at one start only.
    fn start_option(&self, registry: Registry) -> Option<&'static OptionSpec> {
        self.kind(registry).and_then(Kind::start_option)
    }

    /// Removes the options that take effect only when a disk is created.
    fn forget_making(&mut self, registry: Registry) {
        let kind = self.kind(registry);
        let is_lasting = |field: &Field| {
            let option = kind.and_then(|kind| kind.option(&field.key.text));
            option.is_none_or(|option| option.effect.is_lasting())
        };
        self.fields.retain(is_lasting);
    }
}

fn is_text(raw: &Raw, text: &str) -> bool {
    matches!(raw, Raw::Text(it) if it == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::test_kinds::{DEVICE, FILE, REGISTRY};

    const TEXT: &str = r#"
[disk]
a = { file = "a.img", size = "8MiB", create = true, label = true }
b = { file = "b.img", size = "8MiB", create = true, label = true }
[device]
pair = { kind = "mirror", on = ["a", "b"] }
half = { kind = "linear", on = "pair" }
[events]
run = "/usr/local/bin/told"
[export]
vol = { on = "half" }
"#;

    fn shown(spec: &Spec) -> Vec<String> {
        let entry = |entry: &Entry| {
            let fields = entry.fields.iter();
            let fields =
                fields.map(|field| format!("{}={}", field.key.text, field.item.raw.show()));
            format!("{}: {}", entry.name.text, fields.collect::<Vec<_>>().join(" "))
        };
        spec.entries.iter().map(entry).collect()
    }

    #[test]
    fn spec_edit_drops_start_options_if_disks_have_labels() {
        let text = |label: &str| {
            TEXT.replace("label = true", label).replace("\"b\"] }", "\"b\"], trust = \"a\" }")
        };
        let forgotten = |text: &str| {
            let mut spec = Spec::parse(text, "g.toml", &|_| None);
            spec.forget_start_options(REGISTRY, |_| true);
            shown(&spec)
        };
        let now = forgotten(&text("label = true"));
        assert_eq!(now[0], r#"a: file="a.img" size="8MiB" label=true"#);
        assert_eq!(now[2], r#"pair: kind="mirror" on=["a", "b"]"#);
        // Raw disks have no label that would know.
        let now = forgotten(&text("label = false"));
        assert_eq!(now[2], r#"pair: kind="mirror" on=["a", "b"] trust="a""#);
        // A changed option counts again.
        let spec =
            Spec::parse(&text("label = true").replace("b.img", "c.img"), "g.toml", &|_| None);
        let parse = |text: &str| Spec::parse(text, "g.toml", &|_| None);
        let before = |text: &str| spec.start_options_as(&parse(text), REGISTRY);
        assert_eq!(before(&text("label = true")), ["a", "pair"]);
        assert_eq!(before(TEXT), ["a"]);
    }

    #[test]
    fn spec_edit_moves_inserts_and_removes_disks() {
        let mut spec = Spec::parse(TEXT, "g.toml", &|_| None);
        assert_eq!(spec.events_program(), Some(Path::new("/usr/local/bin/told")));
        spec.move_disk("b", &DEVICE, "/dev/new".into(), REGISTRY).unwrap();
        assert_eq!(shown(&spec)[1], r#"b: path="/dev/new" label=true"#);
        spec.insert_disk("pair", "c", &FILE, "c.img".into()).unwrap();
        let shown_now = shown(&spec);
        assert_eq!(shown_now[4], r#"c: file="c.img" label=true"#);
        assert_eq!(shown_now[2], r#"pair: kind="mirror" on=["a", "b", "c"]"#);
        spec.remove_member("pair", "a").unwrap();
        assert!(spec.disk("a").is_none() && spec.disk("b").is_some());
        assert_eq!(shown(&spec)[1], r#"pair: kind="mirror" on=["b", "c"]"#);
    }

    #[test]
    fn spec_edit_rejects_unknown_disks_and_devices() {
        let mut spec = Spec::parse(TEXT, "g.toml", &|_| None);
        let moved = spec.move_disk("pair", &FILE, "x".into(), REGISTRY);
        assert!(moved.unwrap_err().contains("no disk"));
        let mut insert = |device, name| spec.insert_disk(device, name, &FILE, "x".into());
        assert!(insert("half", "c").unwrap_err().contains("members"));
        assert!(insert("pair", "vol").unwrap_err().contains("already"));
        assert!(spec.remove_member("pair", "c").unwrap_err().contains("no member"));
        assert!(spec.remove_member("x", "a").unwrap_err().contains("no device"));
    }
}
