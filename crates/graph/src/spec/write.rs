//! Values and names in the syntax of a spec.

use std::fmt::Write as _;
use std::path::Path;

use block::env::Address;
use block::units::write_duration;
use kind::Value;

use super::listen::{Listen, Nbd, TlsPaths, is_loopback};
use super::parse::{Section, Spec};
use super::tree::{Field, Raw};

/// Formats the value of an option as TOML. `size` formats a number of bytes, for the user or for a program.
pub fn value(value: &Value, size: impl Fn(u64) -> String) -> String {
    match value {
        Value::Size(bytes) => size(*bytes),
        Value::Rest => quoted("rest"),
        Value::Duration(time) => quoted(&write_duration(*time)),
        Value::Integer(number) => number.to_string(),
        Value::Share(share) => format!("{share:?}"),
        Value::Switch(switch) => switch.to_string(),
        Value::Text(text) => quoted(text),
        Value::List(words) => {
            let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
            format!("[{}]", words.join(", "))
        }
        Value::Table(texts) => {
            let texts: Vec<_> =
                texts.iter().map(|(key, text)| format!("{key} = {}", quoted(text))).collect();
            format!("{{ {} }}", texts.join(", "))
        }
    }
}

/// Returns `text` as a quoted TOML string, whatever characters it has.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            // A dollar sign begins a variable.
            '$' => quoted.push_str("$$"),
            c if c.is_control() => {
                // Writing to a String does not fail.
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

impl Spec {
    /// Formats the spec as TOML text. Parsing that text returns the same spec. The text has the values of variables in
    /// place of `${NAME}`, and no comments.
    pub fn to_text(&self) -> String {
        let mut text = format!("name = {}\n", quoted(&self.name));
        let nbd = self.nbd_fields();
        if !nbd.is_empty() {
            text.push_str(&format!("\n[nbd]\n{}\n", nbd.join("\n")));
        }
        if let Some(run) = &self.events {
            text.push_str(&format!("\n[events]\nrun = {}\n", quoted(&run.to_string_lossy())));
        }
        for section in [Section::Disk, Section::Device, Section::Export] {
            text.push_str(&format!("\n[{}]\n", section.word()));
            let entries = self.entries.iter().chain(&self.exports);
            for entry in entries.filter(|entry| entry.section == section) {
                let name = quoted(&entry.name.text);
                text.push_str(&format!("{name} = {}\n", table(&entry.fields)));
            }
        }
        text
    }

    fn nbd_fields(&self) -> Vec<String> {
        let Nbd { listens, tls, max_connections } = &self.nbd;
        let mut fields = Vec::new();
        if !listens.is_empty() {
            let all: Vec<_> = listens.iter().map(|listen| quoted(&listen.to_string())).collect();
            fields.push(format!("listen = [{}]", all.join(", ")));
        }
        let is_open = |listen: &Listen| match &listen.address {
            Address::Tcp(host, _) => !listen.tls && !is_loopback(host),
            Address::Unix(_) => false,
        };
        if listens.iter().any(is_open) {
            fields.push("insecure = true".to_owned());
        }
        if let Some(TlsPaths { cert, key, clients, revoked, .. }) = tls {
            let path = |path: &Path| quoted(&path.to_string_lossy());
            let more = [("clients", clients), ("revoked", revoked)].into_iter();
            let more = more.filter_map(|(key, file)| Some((key, path(file.as_deref()?))));
            let more: String = more.map(|(key, file)| format!(", {key} = {file}")).collect();
            fields.push(format!("tls = {{ cert = {}, key = {}{more} }}", path(cert), path(key)));
        }
        fields.extend(max_connections.map(|most| format!("max_connections = {most}")));
        fields
    }
}

/// Formats the fields of an entry as an inline TOML table.
pub(super) fn table(fields: &[Field]) -> String {
    let one = |field: &Field| format!("{} = {}", quoted(&field.key.text), raw(&field.item.raw));
    let fields: Vec<_> = fields.iter().map(one).collect();
    format!("{{ {} }}", fields.join(", "))
}

fn raw(raw_value: &Raw) -> String {
    match raw_value {
        Raw::Text(text) => quoted(text),
        Raw::Integer(_) | Raw::Float(_) | Raw::Switch(_) | Raw::Date(_) => raw_value.show(),
        Raw::List(items) => {
            let items: Vec<_> = items.iter().map(|item| raw(&item.raw)).collect();
            format!("[{}]", items.join(", "))
        }
        Raw::Table(fields) => table(fields),
        // A broken value is reported again when the text is parsed.
        Raw::Broken => quoted(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::plain_disks;

    #[test]
    fn quoted_text_parses_to_original_text() {
        let odd = "a \"b\" \\ \u{7} \u{7f} \n ü ${HOME}";
        let text = format!("[disk]\na = {{ x = {} }}\n", quoted(odd));
        assert_eq!(plain_disks(&text).unwrap()[0].1, [("x".to_owned(), odd.to_owned())]);
    }

    #[test]
    fn written_spec_parses_to_same_spec() {
        let text = "name = \"home\"\n[nbd]\nlisten = [\"unix:${RUN}/a.sock\", \"tls://0.0.0.0:1\", \
                    \"tcp:10.0.0.1:2\"]\ninsecure = true\nmax_connections = 7\n\
                    tls = { cert = \"c.pem\", key = \"k.pem\", clients = \"ca.pem\", revoked = \"crl.pem\" }\n\
                    [events]\nrun = \"/bin/told\"\n\
                    [disk]\n\"a.b\" = { file = \"a $$ \\\"b\\\"\", size = \"1GiB\", create = true }\n\
                    [device]\nx = { kind = \"error\", on = \"a.b\", share = 0.5, count = 3 }\n\
                    m = { kind = \"mirror\", on = [\"x\", \"y\"] }\n\
                    [export]\nv = { on = \"m\", clients = [\"me\"], attach = true }\n";
        let run = |name: &str| (name == "RUN").then(|| "/run".to_owned());
        let spec = Spec::parse(text, "t.toml", &run);
        let written = spec.to_text();
        assert!(written.contains("/run/a.sock") && written.contains("insecure"), "{written}");
        let again = Spec::parse(&written, "t.toml", &|_| None);
        assert_eq!(again.to_text(), written);
        assert_eq!(again.name(), "home");
        for part in [
            "a $$ \\\"b\\\"",
            "share\" = 0.5",
            "count\" = 3",
            "/bin/told",
            "ca.pem",
            "crl.pem",
            "= 7",
            "[\"me\"]",
        ] {
            assert!(written.contains(part), "{part}: {written}");
        }
    }

    #[test]
    fn spec_value_formats_sizes_lists_and_tables() {
        let size = |bytes: u64| format!("{bytes} bytes");
        assert_eq!(value(&Value::Size(7), size), "7 bytes");
        assert_eq!(value(&Value::List(vec!["a".into(), "$".into()]), size), r#"["a", "$$"]"#);
        assert_eq!(value(&Value::Table(vec![("k", "v".into())]), size), r#"{ k = "v" }"#);
    }
}
