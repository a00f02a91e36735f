//! The migrations in a spec: finds them, adds one, removes one that has ended.

use kind::{OptionSpec, Registry};

use super::parse::{Entry, NAME_MAX_BYTES, Section, Spec};
use super::tree::{Field, Item, Raw, Word};

/// A migration as a spec has it: a device that moves the bytes of one lower to another, and that is removed when all
/// bytes are moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// Name of the device that moves the bytes.
    pub name: String,
    /// Name of the device or disk from which the migration moves the bytes.
    pub from: String,
    /// Name of the device or disk to which the migration moves the bytes.
    pub to: String,
    /// Maximum number of bytes that the migration moves per second; `None` without a limit.
    pub speed: Option<u64>,
}

impl Spec {
    /// Returns the migrations in the spec.
    pub fn moves(&self, registry: Registry) -> Vec<Move> {
        let one = |entry: &Entry| {
            let moving = entry.kind(registry)?.capabilities.moves?;
            let value = |option: OptionSpec| entry.field(option.name).map(|item| &item.raw);
            let leaves = matches!(value(moving.leave), Some(Raw::Switch(true)));
            let on = entry.on();
            let [from, to] = on.get(..2).filter(|_| leaves)? else { return None };
            let [name, from, to] = [&entry.name.text, from, to].map(|name| (*name).clone());
            let speed = match value(moving.speed) {
                Some(Raw::Integer(bytes)) => u64::try_from(*bytes).ok(),
                _ => None,
            };
            Some(Move { name, from, to, speed })
        };
        self.entries.iter().filter_map(one).collect()
    }

    /// Whether the spec has a disk or device called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name.text == name)
    }

    /// Returns a name that the spec does not use yet, for the device of a migration to `to`.
    pub fn name_for_move(&self, to: &str) -> String {
        let free = |name: &String| {
            let taken = self.entries.iter().chain(&self.exports);
            name.len() <= NAME_MAX_BYTES && !taken.into_iter().any(|entry| entry.name.text == *name)
        };
        let numbered = (2..).map(|n| format!("move-{n}"));
        let names = [format!("{to}-move"), "move-1".to_owned()].into_iter().chain(numbered);
        names.into_iter().find(free).expect("some number is free")
    }

    /// Returns the spec with the migration `moving` added: a device that moves the bytes of `moving.from`, as defined
    /// in `before`, to `moving.to`. Devices and exports on `moving.to` are put on the new device.
    ///
    /// # Panics
    /// If no kind of the registry moves bytes.
    #[must_use]
    pub fn with_move(&self, before: &Self, moving: &Move, registry: Registry) -> Self {
        let mut spec = self.clone();
        let (kind, options) = registry.mover().expect("a kind moves bytes");
        let beneath = before.beneath(&moving.from);
        let users = spec.entries.iter_mut().chain(&mut spec.exports);
        users
            .filter(|entry| !beneath.contains(&entry.name.text))
            .for_each(|entry| entry.stand_on(&moving.to, &moving.name));
        let missing = before.entries.iter().filter(|entry| beneath.contains(&entry.name.text));
        let missing: Vec<_> =
            missing.filter(|entry| !self.has(&entry.name.text)).cloned().collect();
        spec.entries.extend(missing);
        let ends = [&moving.from, &moving.to];
        let on = ends.map(|name| Item::new(Raw::Text(name.clone()))).to_vec();
        let mut fields = vec![
            Field::text("kind", kind.name),
            Field::new("on", Raw::List(on)),
            Field::new(options.leave.name, Raw::Switch(true)),
        ];
        let speed = moving.speed.map(|bytes| Raw::Integer(bytes.into()));
        fields.extend(speed.map(|speed| Field::new(options.speed.name, speed)));
        spec.entries.push(Entry::new(Section::Device, Word::new(&moving.name), fields));
        spec
    }

    /// Returns the spec without the migration `moving`. Devices and exports on its device are put on `kept`, one of the
    /// two lowers of that device. Devices and disks that nothing uses any more are removed as well.
    #[must_use]
    pub fn without_move(&self, moving: &Move, kept: &str) -> Self {
        let mut spec = self.clone();
        spec.entries.retain(|entry| entry.name.text != moving.name);
        let users = spec.entries.iter_mut().chain(&mut spec.exports);
        users.for_each(|entry| entry.stand_on(&moving.name, kept));
        let mut unused = [&moving.from, &moving.to].map(String::clone).to_vec();
        while let Some(name) = unused.pop() {
            let mut users = spec.entries.iter().chain(&spec.exports);
            if users.any(|entry| entry.on().iter().any(|on| **on == name)) {
                continue;
            }
            unused.extend(spec.lowers(&name));
            spec.entries.retain(|entry| entry.name.text != name);
        }
        spec
    }

    /// Returns the name of an export from which a path leads down to `shown` without passing `behind`.
    pub(crate) fn shown_by(&self, shown: &str, behind: &str) -> Option<&str> {
        let shows = |export: &&Entry| {
            let mut left: Vec<String> = export.on().into_iter().cloned().collect();
            let mut seen = Vec::new();
            while let Some(name) = left.pop() {
                if name == shown {
                    return true;
                }
                if name != behind && !seen.contains(&name) {
                    left.extend(self.lowers(&name));
                    seen.push(name);
                }
            }
            false
        };
        self.exports.iter().find(shows).map(|export| export.name.text.as_str())
    }

    fn lowers(&self, name: &str) -> Vec<String> {
        let entry = self.entries.iter().find(|entry| entry.name.text == name);
        entry.map(|entry| entry.on().into_iter().cloned().collect()).unwrap_or_default()
    }

    /// Returns the names of the device `name` and of all devices and disks beneath it.
    pub(super) fn beneath(&self, name: &str) -> Vec<String> {
        let mut all = vec![name.to_owned()];
        let mut at = 0;
        while let Some(name) = all.get(at).cloned() {
            let lowers = self.lowers(&name).into_iter();
            let new: Vec<_> = lowers.filter(|lower| !all.contains(lower)).collect();
            all.extend(new);
            at += 1;
        }
        all
    }
}

impl Entry {
    /// Returns the names of the lowers of this device, or the name of the device that this export shows.
    pub(super) fn on(&self) -> Vec<&String> {
        fn name(item: &Item) -> Option<&String> {
            match &item.raw {
                Raw::Text(name) => Some(name),
                _ => None,
            }
        }
        self.field("on").into_iter().flat_map(Item::items).filter_map(name).collect()
    }

    /// Puts this device or export on the lower `new` instead of `old`.
    fn stand_on(&mut self, old: &str, new: &str) {
        let on = self.fields.iter_mut().filter(|field| field.key.text == "on");
        for field in on {
            let items = match &mut field.item.raw {
                Raw::List(items) => items.as_mut_slice(),
                _ => std::slice::from_mut(&mut field.item),
            };
            for item in items {
                if let Raw::Text(name) = &mut item.raw
                    && name == old
                {
                    new.clone_into(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::test_kinds::REGISTRY;

    fn spec(text: &str) -> Spec {
        Spec::parse(text, "t.toml", &|_| None)
    }

    /// Lists each entry with its lowers, in the order of the names.
    fn edges(spec: &Spec) -> String {
        let all = spec.entries.iter().chain(&spec.exports);
        let mut lines: Vec<_> = all
            .map(|entry| {
                let on: Vec<_> = entry.on().into_iter().map(String::as_str).collect();
                format!("{} {}", entry.name.text, on.join(","))
            })
            .collect();
        lines.sort();
        lines.join("; ")
    }

    const PLAIN: &str = "[disk]\na = { memory = \"1MiB\" }\n[device]\n\
                         p = { kind = \"partition\", on = \"a\", size = \"rest\" }\n\
                         [export]\nv = { on = \"p\" }\n";
    const SAFE: &str = "[disk]\na = { memory = \"1MiB\" }\n[device]\n\
                        safe = { kind = \"crypt\", on = \"a\" }\n\
                        p = { kind = \"partition\", on = [\"safe\"], size = \"rest\" }\n\
                        [export]\nv = { on = \"p\" }\n";

    fn moving(from: &str, to: &str) -> Move {
        let [from, to] = [from, to].map(str::to_owned);
        Move { name: "m".to_owned(), from, to, speed: Some(1 << 20) }
    }

    #[test]
    fn spec_adds_and_removes_migration_that_encrypts_in_place() {
        let (plain, safe) = (spec(PLAIN), spec(SAFE));
        let during = safe.with_move(&plain, &moving("a", "safe"), REGISTRY);
        assert_eq!(edges(&during), "a ; m a,safe; p m; safe a; v p");
        assert_eq!(during.moves(REGISTRY), [moving("a", "safe")]);
        assert_eq!(edges(&during.without_move(&moving("a", "safe"), "safe")), edges(&safe));
        assert_eq!(edges(&during.without_move(&moving("a", "safe"), "a")), edges(&plain));
    }

    #[test]
    fn spec_keeps_migration_source_until_migration_is_removed() {
        let (plain, safe) = (spec(PLAIN), spec(SAFE));
        let during = plain.with_move(&safe, &moving("safe", "a"), REGISTRY);
        assert_eq!(edges(&during), "a ; m safe,a; p m; safe a; v p");
        assert_eq!(edges(&during.without_move(&moving("safe", "a"), "a")), edges(&plain));
        assert_eq!(edges(&during.without_move(&moving("safe", "a"), "safe")), edges(&safe));
    }

    #[test]
    fn name_for_new_migration_avoids_used_names() {
        assert_eq!(spec(SAFE).name_for_move("safe"), "safe-move");
        let long = "x".repeat(NAME_MAX_BYTES);
        assert_eq!(spec(SAFE).name_for_move(&long), "move-1");
        let taken = SAFE.replace("p =", "safe-move =").replace("\"p\"", "\"safe-move\"");
        assert_eq!(spec(&taken).name_for_move("safe"), "move-1");
    }
}
