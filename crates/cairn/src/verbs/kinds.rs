//! `cairn kinds`: the kinds of devices.

use block::units::{format_duration, write_size};
use clap::Args;
use kind::{Kind, Lowers, OptionSpec, Scope, ValueType};
use serde::Serialize;

use crate::complete;
use crate::exit::Result;
use crate::out::{Form, columns};
use crate::registry::REGISTRY;

/// Arguments of `kinds`.
#[derive(Args)]
pub struct KindsArgs {
    /// Show the manual of this kind; by default all kinds are listed
    #[arg(add = complete::kind())]
    kind: Option<String>,
}

#[derive(Serialize)]
struct KindView {
    name: &'static str,
    summary: &'static str,
    stands_on: String,
    options: Vec<OptionView>,
    commands: Vec<CommandView>,
    manual: &'static str,
}

#[derive(Serialize)]
struct OptionView {
    name: &'static str,
    value: String,
    required: bool,
    /// Scope of the option's value: where the value is stored.
    scope: &'static str,
    help: &'static str,
}

/// A command that devices of a kind may know.
#[derive(Serialize)]
struct CommandView {
    name: &'static str,
    help: &'static str,
}

impl KindsArgs {
    /// Prints the list of kinds, or the manual of one kind.
    pub fn run(self, form: Form) -> Result {
        match &self.kind {
            None => {
                let all: Vec<_> = REGISTRY.0.iter().map(view).collect();
                form.print(&all, || list(&all))
            }
            Some(name) => {
                let kind = view(find(name)?);
                form.print(&kind, || kind.manual.to_owned())
            }
        }
    }
}

fn find(name: &str) -> Result<&'static Kind> {
    REGISTRY.find(name).ok_or_else(|| {
        let names: Vec<_> = REGISTRY.0.iter().map(|kind| kind.name).collect();
        failure!(NotFound, "no kind {name:?}; there are {}", names.join(", "))
    })
}

fn list(all: &[KindView]) -> String {
    let row = |kind: &KindView| {
        vec![kind.name.to_owned(), kind.stands_on.clone(), kind.summary.to_owned()]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    columns("<<<", &rows)
}

fn view(kind: &Kind) -> KindView {
    KindView {
        name: kind.name,
        summary: kind.summary,
        stands_on: lowers_words(kind.lowers),
        options: kind.options.iter().map(option).collect(),
        commands: kind
            .verbs
            .iter()
            .map(|verb| CommandView { name: verb.name, help: verb.help })
            .collect(),
        manual: kind.manual,
    }
}

/// Returns the number of lowers of a kind in words.
pub fn lowers_words(lowers: Lowers) -> String {
    match lowers {
        Lowers::None => "a disk".to_owned(),
        Lowers::One => "on one device".to_owned(),
        Lowers::Many(least, most) => format!("on {least} to {most} devices"),
    }
}

/// Returns the type of a value in a spec in words, with its limits.
pub fn value_words(value: ValueType) -> String {
    match value {
        ValueType::Size(0, u64::MAX) => "size".to_owned(),
        ValueType::Size(least, u64::MAX) => format!("size, at least {}", write_size(least)),
        ValueType::Size(least, most) => {
            format!("size, {} to {}", write_size(least), write_size(most))
        }
        ValueType::SizeOrRest => "size, or \"rest\"".to_owned(),
        ValueType::Duration(most) => format!("time, at most {}", format_duration(most)),
        ValueType::Integer(least, most) => format!("number, {least} to {most}"),
        ValueType::Share => "share, 0 to 1".to_owned(),
        ValueType::Switch => "true or false".to_owned(),
        ValueType::Choice(words) => words.join(" | "),
        ValueType::Choices(words) => format!("some of {}", words.join(", ")),
        ValueType::Text => "text".to_owned(),
        ValueType::Path => "path".to_owned(),
        ValueType::Member => "name of a member".to_owned(),
        ValueType::Table(keys) => format!("table of {}", keys.join(", ")),
    }
}

fn option(option: &OptionSpec) -> OptionView {
    let value = value_words(option.value);
    let scope = match option.scope {
        Scope::Graph => "graph",
        Scope::Local => "local",
        Scope::Secret => "secret",
    };
    OptionView { name: option.name, value, required: option.required, scope, help: option.help }
}
