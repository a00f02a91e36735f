//! Small changes of a spec that somebody asks for by a word, instead of writing it anew.

use std::path::{Path, PathBuf};

use kind::{Kind, OptionSpec, Registry};

use super::fault::Position;
use super::parse::{DEVICES_MAX, Entry, Section, Spec, wrong_name};
use super::tree::{Field, Item, Raw, Word};

impl Spec {
    /// The program to be run for each event.
    pub fn events_program(&self) -> Option<&Path> {
        self.events.as_deref()
    }

    /// Whether it has a disk of that name.
    pub fn has_disk(&self, name: &str) -> bool {
        self.disk(name).is_some()
    }

    /// Moves a disk to another place, as a disk of a kind that opens paths.
    ///
    /// # Errors
    /// If there is none of that name.
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
        disk.fields.insert(0, text_field(kind.name, &place.to_string_lossy()));
        Ok(())
    }

    /// How a disk was made does not count any more: it is larger by now. Whether anything was said of that.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn forget_making(&mut self, name: &str, registry: Registry) -> Result<bool, String> {
        let disk = self.find(Section::Disk, name)?;
        let said = disk.fields.len();
        disk.forget_making(registry);
        Ok(disk.fields.len() < said)
    }

    /// What was said for the first start alone, by disks and devices that have heard it. What is not there is missing
    /// from now on: no disk is made in its place; and where labels tell whose bytes count, they do: whom somebody trusted
    /// once may have missed everything since.
    pub fn forget_first_words(&mut self, registry: Registry, heard: impl Fn(&str) -> bool) {
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
            if let Some(word) = entry.first_word(registry).filter(|_| is_disk || told) {
                entry.fields.retain(|field| field.key.text != word.name);
            }
        }
    }

    /// The disks and devices of which `before` says the same for a first start.
    pub fn first_words_as(&self, before: &Self, registry: Registry) -> Vec<String> {
        let shown = |entry: &Entry, key: &str| entry.field(key).map(|item| item.raw.show());
        let is_heard = |entry: &&Entry| {
            let word = entry.first_word(registry).filter(|word| entry.field(word.name).is_some());
            let Some(word) = word else { return false };
            let place = entry.kind(registry).and_then(Kind::place);
            let mut before =
                before.entries.iter().filter(|it| it.is(entry.section, &entry.name.text));
            // At another place it would be another disk.
            let mut all = place.into_iter().chain([word]);
            before.any(|before| all.all(|it| shown(entry, it.name) == shown(before, it.name)))
        };
        self.entries.iter().filter(is_heard).map(|entry| entry.name.text.clone()).collect()
    }

    /// The bytes of `member` count at this start, whatever labels know of it.
    ///
    /// # Errors
    /// If no device that takes such a word stands on it.
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
            let members =
                if names.is_empty() { "none is there".to_owned() } else { names.join(", ") };
            return Err(format!("{member} is no member of a mirror; members: {members}"));
        }
        for (device, trust) in devices {
            device.fields.retain(|field| field.key.text != trust.name);
            device.fields.push(text_field(trust.name, member));
            device.trusted_now = true;
        }
        Ok(())
    }

    fn disk(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.is(Section::Disk, name))
    }

    /// A device stands on one more disk, which is new and gets a label.
    ///
    /// # Errors
    /// If there is no such device, or the name is taken.
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
            return Err(format!(
                "there are {DEVICES_MAX} disks and devices, and no more are possible"
            ));
        }
        let taken = self.entries.iter().chain(&self.exports).any(|entry| entry.name.text == name);
        if taken {
            return Err(format!("{name:?} is in the spec already. Next: another name"));
        }
        self.members(device)?.push(item(Raw::Text(name.to_owned())));
        let label = Field { key: word("label"), item: item(Raw::Switch(true)) };
        let fields = vec![text_field(kind.name, &place.to_string_lossy()), label];
        let (section, name) = (Section::Disk, word(name));
        self.entries.push(Entry {
            section,
            name,
            fields,
            broken: false,
            twice: false,
            trusted_now: false,
        });
        Ok(())
    }

    /// A device stands on one device less; a disk that nothing stands on any more goes.
    ///
    /// # Errors
    /// If there is no such device, or it does not stand on that one.
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

    /// What a device stands on, if that is a list.
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
    fn is(&self, section: Section, name: &str) -> bool {
        self.section == section && self.name.text == name
    }

    /// Returns the option that counts at one start only.
    fn first_word(&self, registry: Registry) -> Option<&'static OptionSpec> {
        self.kind(registry).and_then(Kind::first_word)
    }

    /// Removes the options that count only when a disk is made.
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

fn word(text: &str) -> Word {
    Word { text: text.to_owned(), at: Position::NOWHERE }
}

fn item(raw: Raw) -> Item {
    Item { at: Position::NOWHERE, raw }
}

fn text_field(key: &str, text: &str) -> Field {
    Field { key: word(key), item: item(Raw::Text(text.to_owned())) }
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
    fn words_for_the_first_start_are_forgotten_where_labels_tell() {
        let text = |label: &str| {
            TEXT.replace("label = true", label).replace("\"b\"] }", "\"b\"], trust = \"a\" }")
        };
        let forgotten = |text: &str| {
            let mut spec = Spec::parse(text, "g.toml", &|_| None);
            spec.forget_first_words(REGISTRY, |_| true);
            shown(&spec)
        };
        let now = forgotten(&text("label = true"));
        assert_eq!(now[0], r#"a: file="a.img" size="8MiB" label=true"#);
        assert_eq!(now[2], r#"pair: kind="mirror" on=["a", "b"]"#);
        // Of raw disks nobody else knows.
        let now = forgotten(&text("label = false"));
        assert_eq!(now[2], r#"pair: kind="mirror" on=["a", "b"] trust="a""#);
        // What is said anew is heard.
        let spec =
            Spec::parse(&text("label = true").replace("b.img", "c.img"), "g.toml", &|_| None);
        let parse = |text: &str| Spec::parse(text, "g.toml", &|_| None);
        let before = |text: &str| spec.first_words_as(&parse(text), REGISTRY);
        assert_eq!(before(&text("label = true")), ["a", "pair"]);
        assert_eq!(before(TEXT), ["a"]);
    }

    #[test]
    fn disks_move_come_and_go() {
        let mut spec = Spec::parse(TEXT, "g.toml", &|_| None);
        assert_eq!(spec.events_program(), Some(Path::new("/usr/local/bin/told")));
        spec.move_disk("b", &DEVICE, "/dev/new".into(), REGISTRY).unwrap();
        assert_eq!(shown(&spec)[1], r#"b: path="/dev/new" label=true"#);
        spec.insert_disk("pair", "c", &FILE, "c.img".into()).unwrap();
        let shown_now = shown(&spec);
        assert_eq!(shown_now[4], r#"c: file="c.img" label=true"#);
        assert_eq!(shown_now[2], r#"pair: kind="mirror" on=["a", "b", "c"]"#);
        spec.remove_member("pair", "a").unwrap();
        assert!(!spec.has_disk("a") && spec.has_disk("b"));
        assert_eq!(shown(&spec)[1], r#"pair: kind="mirror" on=["b", "c"]"#);
    }

    #[test]
    fn what_is_not_there_is_told() {
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
