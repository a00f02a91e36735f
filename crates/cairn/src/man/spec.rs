//! The page `cairn-spec(5)`: the language of specs. It is made of the tables of the parser, of the kinds in the
//! registry, and of the document about specs.

use graph::spec::{KeyValue, SECTIONS, SectionSpec};
use kind::{Effect, Kind, Lowers, OptionSpec};

use super::text::{Text, sections};
use crate::registry::REGISTRY;
use crate::verbs::kinds::{lowers_words, value_words};

/// The document about specs.
const DOCUMENT: &str = include_str!("../../../../docs/spec.md");

/// The sections of the document that the page has in its own form.
const REPLACED: [&str; 1] = ["Keys"];

/// Returns the text of the page after its title.
pub fn text() -> Text {
    let mut text = Text::default();
    text.section("NAME");
    text.paragraph("cairn-spec - the spec of a graph of Cairn");
    text.section("SYNOPSIS");
    text.paragraph("NAME`.toml`");
    text.section("DESCRIPTION");
    let (opening, _) = DOCUMENT.split_once("\n## ").expect("the document has sections");
    text.markdown(opening.split_once("(glossary.md).").map_or(opening, |(_, text)| text));
    text.section("SECTIONS AND KEYS");
    text.paragraph("An unknown key is a fault.");
    SECTIONS.iter().for_each(|section| keys(&mut text, section));
    for (title, part) in sections(DOCUMENT).filter(|(title, _)| !REPLACED.contains(title)) {
        text.section(&title.to_uppercase());
        text.markdown(part);
    }
    kinds(&mut text, "KINDS OF DISKS", |kind| kind.lowers == Lowers::None);
    kinds(&mut text, "KINDS OF DEVICES", |kind| kind.lowers != Lowers::None);
    text
}

fn keys(text: &mut Text, section: &SectionSpec) {
    if section.name.is_empty() {
        text.part("Before all sections");
    } else {
        text.part(&format!("[{}]", section.name));
        let entry = section.entry.map(|entry| format!(" An entry: `NAME = {entry}`"));
        text.paragraph(&format!("{}{}", section.help, entry.unwrap_or_default()));
    }
    for key in section.keys {
        let value = match key.value {
            KeyValue::Typed(value) => value_words(value),
            KeyValue::Words(words) => words.to_owned(),
        };
        text.entry(key.name, &description(&value, key.required, key.help));
    }
}

/// Returns the text about a key or an option: the form of its value, and its purpose.
fn description(value: &str, is_required: bool, help: &str) -> String {
    let required = if is_required { "Required. " } else { "" };
    format!("{value}. {required}{}", sentence(help))
}

/// Returns the words as a sentence, with a large letter and a full stop.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn kinds(text: &mut Text, title: &str, is_meant: impl Fn(&Kind) -> bool) {
    text.section(title);
    let mut manual = "";
    for kind in REGISTRY.0.iter().filter(|kind| is_meant(kind)) {
        text.part(kind.name);
        match kind.lowers {
            Lowers::None => text.paragraph(&sentence(kind.summary)),
            lowers => {
                text.paragraph(&sentence(&format!("{}; {}", kind.summary, lowers_words(lowers))))
            }
        }
        for option in kind.options {
            option_entry(text, option);
        }
        // Two kinds may share a manual.
        if manual == kind.manual {
            continue;
        }
        manual = kind.manual;
        for (title, part) in sections(manual) {
            match title {
                "Example" => example(text, part),
                "Limits" => text.markdown(part),
                _ => {}
            }
        }
    }
}

fn option_entry(text: &mut Text, option: &OptionSpec) {
    let effect = match option.effect {
        Effect::Bytes => " Fixed while an export shows the device.",
        Effect::Behaviour => "",
        Effect::Start => " Counts at one start only.",
        Effect::Making => " Counts when the disk is created.",
    };
    let described = description(&value_words(option.value), option.required, option.help);
    text.entry(option.name, &format!("{described}{effect}"));
}

/// Adds the first block of code of an example.
fn example(text: &mut Text, part: &str) {
    let code = part.split("```").nth(1).map(|code| code.trim_start_matches("toml").trim());
    text.code(code.unwrap_or_default());
}
