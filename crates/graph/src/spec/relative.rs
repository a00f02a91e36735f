//! Paths in a spec that begin in the working directory of a process.

use std::path::Path;

use block::env::Address;
use kind::{OptionSpec, Registry, Scope, ValueType};

use super::draft::options_of;
use super::parse::{Entry, Section, Spec};
use super::tree::Raw;

impl Spec {
    /// Whether the spec has a relative path. Then the spec means different files in different directories. A text that
    /// may contain a relative path counts as one.
    pub fn has_relative_path(&self, registry: Registry) -> bool {
        let listens = self.nbd.listens.iter().filter_map(|listen| match &listen.address {
            Address::Unix(path) => Some(Path::new(path)),
            Address::Tcp(..) => None,
        });
        let tls = self.nbd.tls.iter().flat_map(|tls| {
            let required = [&tls.cert, &tls.key].into_iter();
            required.chain(&tls.clients).chain(&tls.revoked).map(AsRef::as_ref)
        });
        let mut paths = listens.chain(tls).chain(self.events.as_deref());
        paths.any(Path::is_relative)
            || self.entries.iter().any(|entry| entry.has_relative_path(registry))
    }
}

impl Entry {
    fn has_relative_path(&self, registry: Registry) -> bool {
        let kind = self.kind(registry).filter(|_| self.section != Section::Export);
        let options = kind.into_iter().flat_map(options_of);
        let mut local = options.filter(|option| option.scope != Scope::Graph);
        local.any(|option| self.field(option.name).is_some_and(|it| is_relative(option, &it.raw)))
    }
}

/// Whether the value `raw` of `option` is, or may contain, a relative path.
fn is_relative(option: &OptionSpec, raw: &Raw) -> bool {
    match (option.value, raw) {
        (ValueType::Text, Raw::Text(text)) if option.scope == Scope::Secret => {
            text.strip_prefix("file:").is_some_and(|path| !path.starts_with('/'))
        }
        // The URI of an export names files in the values of its query.
        (ValueType::Text, Raw::Text(text)) => {
            text.split('=').skip(1).any(|value| !value.starts_with('/'))
        }
        (ValueType::Path, Raw::Text(text)) => !text.starts_with('/'),
        (ValueType::Table(_), Raw::Table(fields)) => {
            let is_absolute = |raw: &Raw| matches!(raw, Raw::Text(text) if text.starts_with('/'));
            fields.iter().any(|field| !is_absolute(&field.item.raw))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::test_kinds::REGISTRY;

    fn has_relative_path(text: &str) -> bool {
        Spec::parse(text, "home.toml", &|_| None).has_relative_path(REGISTRY)
    }

    #[test]
    fn spec_with_relative_path_depends_on_directory() {
        let disk = "[disk]\na = { file = \"/srv/a.img\" }\n";
        for text in [
            "[nbd]\nlisten = \"unix:/run/home.sock\"\n",
            "[nbd]\nlisten = \"tcp:127.0.0.1:10809\"\n",
            "[nbd]\ntls = { cert = \"/etc/c.pem\", key = \"/etc/k.pem\" }\n",
            "[events]\nrun = \"/usr/local/bin/mail\"\n",
            "[disk]\nb = { path = \"/dev/sdb\", label = true }\n",
            "[export]\na = { on = \"b\" }\n",
        ] {
            assert!(!has_relative_path(text), "{text}");
        }
        assert!(!has_relative_path(disk));
        for text in [
            "[nbd]\nlisten = \"unix:home.sock\"\n",
            "[nbd]\ntls = { cert = \"/etc/c.pem\", key = \"k.pem\" }\n",
            "[events]\nrun = \"mail\"\n",
            "[disk]\nb = { file = \"b.img\" }\n",
        ] {
            assert!(has_relative_path(text), "{text}");
        }
    }

    #[test]
    fn option_with_relative_path_is_found_in_each_form() {
        let option = |value, scope| OptionSpec { value, scope, ..crate::spec::parse::RUN };
        let text = |text: &str| Raw::Text(text.to_owned());
        let key = option(ValueType::Text, Scope::Secret);
        let sources = ["ask", "fd:3", "credential:home", "file:/etc/key"];
        assert!(!sources.iter().any(|source| is_relative(&key, &text(source))));
        assert!(is_relative(&key, &text("file:key")));
        let uri = option(ValueType::Text, Scope::Local);
        for absolute in ["nbd://host/vol", "nbd+unix:///vol?socket=/run/a.sock"] {
            assert!(!is_relative(&uri, &text(absolute)));
        }
        assert!(is_relative(&uri, &text("nbds://host/vol?tls-certificates=certs")));
    }
}
