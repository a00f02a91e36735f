//! The sections of a spec and their keys, as tables. The parser refuses every key that is not in them, and manuals are
//! made from them.

use kind::{OptionSpec, ValueType};

use super::draft::{ATTACH, LABEL, READ_ONLY};
use super::fault::Log;
use super::listen::{INSECURE, MAX_CONNECTIONS, TLS};
use super::parse::{RUN, unknown_key};
use super::tree::Word;

/// A section of a spec: `[disk]`.
pub struct SectionSpec {
    /// The name of the section; empty for the keys before all sections.
    pub name: &'static str,
    /// The purpose of the section, in a sentence.
    pub help: &'static str,
    /// The form of an entry, if the section has entries with names of their own: `{ file = "PATH" }`.
    pub entry: Option<&'static str>,
    /// The keys of the section; of an entry, if the section has entries. Options of kinds come in addition.
    pub keys: &'static [KeySpec],
}

/// A key of a spec that is no option of a kind.
pub struct KeySpec {
    /// The name of the key.
    pub name: &'static str,
    /// The form of the value.
    pub value: KeyValue,
    /// Whether the section or entry must have the key.
    pub required: bool,
    /// The purpose of the key and its default, in a sentence.
    pub help: &'static str,
}

/// The form of the value of a key.
#[derive(Clone, Copy)]
pub enum KeyValue {
    /// A value of this type.
    Typed(ValueType),
    /// A value in the form that the words describe.
    Words(&'static str),
}

impl KeySpec {
    /// Returns the row of a key with a value of a type.
    const fn of(option: &OptionSpec) -> Self {
        let OptionSpec { name, value, required, help, .. } = *option;
        Self { name, value: KeyValue::Typed(value), required, help }
    }

    /// Returns the row of a key with a value in a form of its own.
    const fn words(
        name: &'static str,
        value: &'static str,
        required: bool,
        help: &'static str,
    ) -> Self {
        Self { name, value: KeyValue::Words(value), required, help }
    }
}

impl SectionSpec {
    /// Returns the names of the keys of the section.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.keys.iter().map(|key| key.name)
    }

    /// Whether the section has the key. Reports an unknown key, and calls the section `place`.
    pub(super) fn has(&self, key: &Word, place: &str, log: &mut Log) -> bool {
        let is_known = self.names().any(|name| name == key.text);
        if !is_known {
            unknown_key(key, place, self.names(), log);
        }
        is_known
    }
}

/// The keys before all sections.
pub(super) const TOP: SectionSpec = SectionSpec {
    name: "",
    help: "Keys before all sections.",
    entry: None,
    keys: &[KeySpec::words(
        "name",
        "a name",
        false,
        "name of the graph; the name of the file without its ending if not set",
    )],
};

/// The section `[nbd]`.
pub(super) const NBD: SectionSpec = SectionSpec {
    name: "nbd",
    help: "Addresses for clients.",
    entry: None,
    keys: &[
        KeySpec::words(
            "listen",
            "an address, or a list of addresses",
            false,
            "addresses that accept clients; a unix socket in the runtime directory if not set",
        ),
        KeySpec::of(&INSECURE),
        KeySpec::of(&MAX_CONNECTIONS),
        KeySpec::of(&TLS),
    ],
};

/// The section `[events]`.
pub(super) const EVENTS: SectionSpec = SectionSpec {
    name: "events",
    help: "Reactions to events of devices.",
    entry: None,
    keys: &[KeySpec::of(&RUN)],
};

/// The section `[disk]`.
pub(super) const DISK: SectionSpec = SectionSpec {
    name: "disk",
    help: "The disks at the bottom of the graph. One key of a disk is the name of its kind, with the path, address or \
           size of the disk as value. Further keys are options of the kind.",
    entry: Some("{ file = \"PATH\" }"),
    keys: &[KeySpec::of(&LABEL)],
};

/// The section `[device]`.
pub(super) const DEVICE: SectionSpec = SectionSpec {
    name: "device",
    help: "The devices on the disks and on other devices. Further keys are options of the kind.",
    entry: Some("{ kind = \"KIND\", on = \"NAME\" }"),
    keys: &[
        KeySpec::words("kind", "the name of a kind", true, "kind of the device"),
        KeySpec::words(
            "on",
            "a name, or a list of names",
            true,
            "the lower disks and devices, in the order of their ports",
        ),
    ],
};

/// The section `[export]`.
pub(super) const EXPORT: SectionSpec = SectionSpec {
    name: "export",
    help: "The volumes for clients.",
    entry: Some("{ on = \"NAME\" }"),
    keys: &[
        KeySpec::words("on", "a name", true, "the exported disk or device"),
        KeySpec::of(&READ_ONLY),
        KeySpec::of(&ATTACH),
        KeySpec::words(
            "clients",
            "a name, or a list of names",
            false,
            "names in the certificates of the clients that may use the export; any client if not set",
        ),
    ],
};

/// All sections of a spec, in the order of a manual. The first has the keys before all sections.
pub const SECTIONS: [SectionSpec; 6] = [TOP, NBD, EVENTS, DISK, DEVICE, EXPORT];

/// Returns the keys at the top of a spec: those before all sections, and the names of the sections.
pub(super) fn top_names() -> impl Iterator<Item = &'static str> {
    let sections = SECTIONS.iter().map(|section| section.name).filter(|name| !name.is_empty());
    TOP.names().chain(sections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;
    use crate::spec::draft::{Draft, ExportDraft, Names};
    use crate::spec::test_kinds::REGISTRY;

    /// Returns the faults of a spec about its keys. `text` is a format of TOML.
    fn faults(text: &str) -> String {
        let spec = Spec::parse(text, "keys.toml", &|_| None);
        let names = Names::of(&spec, &[]);
        let mut log = spec.log.clone();
        for entry in &spec.entries {
            Draft::new(entry, REGISTRY, &names, &mut log);
        }
        for entry in &spec.exports {
            ExportDraft::new(entry, &names, &mut log);
        }
        log.finish().err().map(|faults| faults.to_string()).unwrap_or_default()
    }

    /// Returns the text of a spec that has a key with a wrong value.
    fn with(section: &SectionSpec, key: &str) -> String {
        let line = format!("{key} = 1979-05-27\n");
        match section.name {
            "" => line,
            "disk" => format!("[disk]\nx = {{ file = \"x\", {} }}\n", line.trim_end()),
            "device" if key != "kind" => {
                format!("[device]\nx = {{ kind = \"mirror\", {} }}\n", line.trim_end())
            }
            name if section.entry.is_some() => {
                format!("[{name}]\nx = {{ {} }}\n", line.trim_end())
            }
            name => format!("[{name}]\n{line}"),
        }
    }

    /// A key without code in the parser panics there.
    #[test]
    fn spec_parser_reads_every_key_of_tables() {
        for section in &SECTIONS {
            for key in section.names() {
                let found = faults(&with(section, key));
                assert!(found.contains("1979-05-27"), "{} {key}: {found}", section.name);
                assert!(!found.contains("no key"), "{} {key}: {found}", section.name);
            }
            let found = faults(&with(section, "nosuch"));
            assert!(found.contains("no key \"nosuch\""), "{}: {found}", section.name);
        }
    }
}
