//! Manual pages: one for the program, one for each verb, and one for specs.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the pages and their sections |
//! | `verbs.rs` | facts about verbs: exit codes, files, examples, related pages |
//! | `exits.rs` | the section about exit codes |
//! | `files.rs` | files and environment variables |
//! | `spec.rs` | the page about specs |
//! | `text.rs` | text in roff, from Markdown |

pub mod exits;
mod files;
mod spec;
mod text;
pub mod verbs;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::Roff;

use files::File;
use text::{Text, sections};
use verbs::{VERBS, VerbPage};

/// Name of the page about specs, with its section.
const SPEC_PAGE: &str = "cairn-spec.5";

/// The document about the command line. Pages have its parts as descriptions.
const DOCUMENT: &str = include_str!("../../../../docs/cli.md");

/// Date of the last change of the pages.
const DATE: &str = "2026-11-25";

/// A manual page.
pub struct Page {
    /// The name of the page's file: `cairn-serve.1`.
    pub file: String,
    /// The page in the language of roff.
    pub text: String,
}

/// Returns all pages. The first is that of the program.
pub fn pages(command: Command) -> Vec<Page> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = vec![program(&command)];
    add_verbs(&mut pages, &command, "");
    let title = title("cairn-spec", "5");
    let mut text = spec::text();
    see_also(
        &mut text,
        &["cairn-validate(1)", "cairn-serve(1)", "cairn-apply(1)", "cairn-kinds(1)"],
        &[],
    );
    pages.push(Page { file: SPEC_PAGE.to_owned(), text: text::page([&*title, &text.finish()]) });
    pages
}

/// Returns the names of all pages, for a completion of the command line.
pub fn names() -> Vec<String> {
    let verbs = VERBS.iter().map(|page| format!("{}.1", page_of(page.verb)));
    ["cairn.1".to_owned()].into_iter().chain(verbs).chain([SPEC_PAGE.to_owned()]).collect()
}

/// Returns the facts about a verb.
///
/// # Panics
/// If there are none; a test asks for those of each verb.
pub fn facts(verb: &str) -> &'static VerbPage {
    let found = VERBS.iter().find(|page| page.verb == verb);
    found.unwrap_or_else(|| panic!("the table of the manual does not have the verb {verb:?}"))
}

/// Returns the name of the page of a verb.
fn page_of(verb: &str) -> String {
    format!("cairn-{}", verb.replace(' ', "-"))
}

/// Whether the manual has this exit code among those of a verb.
pub fn has_exit(verb: &str, code: u8) -> bool {
    exits::COMMON.iter().chain(facts(verb).exits).any(|exit| exit.code() == code)
}

/// Adds the pages of all verbs of a command. `above` are the words of the command.
fn add_verbs(pages: &mut Vec<Page>, command: &Command, above: &str) {
    for verb in verbs_of(command) {
        let words = format!("{above} {}", verb.get_name()).trim_start().to_owned();
        pages.push(verb_page(verb, &words));
        add_verbs(pages, verb, &words);
    }
}

fn verbs_of(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| verb.get_name() != "help" && !verb.is_hide_set())
}

/// Returns the page of the program: all verbs, options, variables and files.
fn program(command: &Command) -> Page {
    let mut text = Text::default();
    let (_, rest) = DOCUMENT.split_once("\n```\n").expect("the document begins with a list");
    let (_, everywhere) = rest.split_once("\n```\n").expect("the list of verbs ends");
    let (everywhere, _) = everywhere.split_once("\n## ").expect("the document has sections");
    text.markdown(everywhere);
    let description = text.finish();

    let mut text = Text::default();
    text.section("VERBS");
    list_verbs(&mut text, command, "");
    exits::section(&mut text, None, &exits::ALL);
    text.section("ENVIRONMENT");
    files::VARIABLES.iter().for_each(|(names, purpose)| text.entry(names, purpose));
    text.paragraph("A spec may use any variable as `${NAME}`.");
    list_files(&mut text, files::ALL);
    text.section("EXAMPLES");
    for verb in ["create", "serve", "status"] {
        list_examples(&mut text, &facts(verb).examples[..1]);
    }
    let verbs = VERBS.iter().map(|page| format!("{}(1)", page_of(page.verb))).collect::<Vec<_>>();
    see_also(&mut text, &["cairn-spec(5)", "nbdinfo(1)", "qemu-img(1)", "nbdkit(1)"], &verbs);

    let title = title("cairn", "1");
    let man = Man::new(command.clone());
    let head = rendered(|roff| {
        man.render_name_section(roff)?;
        man.render_synopsis_section(roff)?;
        man.render_description_section(roff)
    });
    let options = rendered(|roff| man.render_options_section(roff));
    let parts = [&*title, &*head, &*description, &*options, &*text.finish()];
    Page { file: "cairn.1".to_owned(), text: text::page(parts) }
}

/// Returns the page of a verb. `words` are the words of the verb.
fn verb_page(command: &Command, words: &str) -> Page {
    let page = facts(words);
    let name = page_of(words);
    let mut text = Text::default();
    if command.has_subcommands() {
        text.section("VERBS");
        list_verbs(&mut text, command, words);
    }
    let first = words.split(' ').next();
    let exits = [&exits::COMMON, page.exits].concat();
    exits::section(&mut text, first, &exits);
    if !page.files.is_empty() {
        list_files(&mut text, page.files);
    }
    text.section("EXAMPLES");
    if page.examples.is_empty() {
        for below in VERBS.iter().filter(|below| is_below(below.verb, words)) {
            list_examples(&mut text, &below.examples[..1]);
        }
    } else {
        list_examples(&mut text, page.examples);
    }
    let near = |other: &&VerbPage| is_below(other.verb, words) || is_below(words, other.verb);
    let near = VERBS.iter().filter(near).map(|page| format!("{}(1)", page_of(page.verb)));
    let near: Vec<_> = ["cairn(1)".to_owned()].into_iter().chain(near).collect();
    see_also(&mut text, page.see, &near);

    let man = Man::new(command.clone());
    let head = rendered(|roff| {
        man.render_name_section(roff)?;
        man.render_synopsis_section(roff)?;
        man.render_description_section(roff)
    });
    let options = rendered(|roff| man.render_options_section(roff));
    let title = title(&name, "1");
    let about = documented(words);
    let parts = [&*title, &*head, &*about, &*options, &*text.finish()];
    Page { file: format!("{name}.1"), text: text::page(parts) }
}

/// Whether `verb` is a verb of the verb `above`.
fn is_below(verb: &str, above: &str) -> bool {
    verb.strip_prefix(above).is_some_and(|rest| rest.starts_with(' '))
}

/// Returns the description of a verb in the document, as a further part of the section before it.
fn documented(verb: &str) -> String {
    let is_about = |title: &str| title.split(", ").any(|name| name == verb);
    let mut text = Text::default();
    match sections(DOCUMENT).find(|(title, _)| is_about(title)) {
        Some((_, part)) => {
            text.markdown(part);
            text.finish()
        }
        None => String::new(),
    }
}

fn title(name: &str, section: &str) -> String {
    let source = concat!("cairn ", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", [&*name.to_uppercase(), section, DATE, source, "Cairn"]);
    roff.render().replace(&text::definitions(), "")
}

/// Returns the output of functions that write parts of a page.
fn rendered(write: impl Fn(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut text = Vec::new();
    write(&mut text).expect("writes to a Vec do not fail");
    String::from_utf8_lossy(&text).replace(&text::definitions(), "")
}

fn list_verbs(text: &mut Text, command: &Command, above: &str) {
    for verb in verbs_of(command) {
        let words = format!("{above} {}", verb.get_name()).trim_start().to_owned();
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        text.entry(&format!("{}(1)", page_of(&words)), &about);
        list_verbs(text, verb, &words);
    }
}

fn list_files(text: &mut Text, files: &[File]) {
    text.section("FILES");
    files.iter().for_each(|(path, purpose)| text.entry(path, purpose));
}

fn list_examples(text: &mut Text, examples: &[(&str, &str)]) {
    examples.iter().for_each(|(command, effect)| text.entry(command, effect));
}

fn see_also(text: &mut Text, pages: &[&str], near: &[String]) {
    text.section("SEE ALSO");
    let near = near.iter().map(String::as_str);
    let mut all: Vec<&str> = Vec::new();
    for page in near.chain(pages.iter().copied()) {
        if !all.contains(&page) {
            all.push(page);
        }
    }
    let all = all.iter().map(|page| page.replacen('(', "`(", 1)).map(|page| format!("`{page}"));
    text.paragraph(&all.collect::<Vec<_>>().join(", "));
}

#[cfg(test)]
mod tests;
