//! Tests of the manual: its facts are those of the command line, of the kinds and of the parser of specs.

use std::sync::LazyLock;

use clap::CommandFactory;
use graph::spec::SECTIONS;

use super::*;
use crate::args::Args;
use crate::registry::REGISTRY;

/// Pages of other projects that pages name.
const OTHERS: [&str; 25] = [
    "bash(1)",
    "blkid(8)",
    "cryptsetup(8)",
    "dot(1)",
    "filefrag(8)",
    "fio(1)",
    "fish(1)",
    "iostat(1)",
    "losetup(8)",
    "man(1)",
    "mount(8)",
    "nbd-client(8)",
    "nbdcopy(1)",
    "nbdinfo(1)",
    "nbdkit(1)",
    "qemu-img(1)",
    "resize2fs(8)",
    "systemd.service(5)",
    "truncate(1)",
    "umount(8)",
    "wipefs(8)",
    "zsh(1)",
    "cairn(1)",
    "cairn-spec(5)",
    "cairn-kinds(1)",
];

/// Returns the text of a page.
fn page(name: &str) -> String {
    static PAGES: LazyLock<Vec<Page>> = LazyLock::new(|| pages(Args::command()));
    let found = PAGES.iter().find(|page| page.file == name);
    found.unwrap_or_else(|| panic!("there is no page {name}")).text.clone()
}

/// Returns the words of a command line. A part in single quotes is one word.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in line.split('\'').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

#[test]
fn manual_has_one_page_of_each_verb() {
    let mut command = Args::command();
    command.build();
    let mut verbs = Vec::new();
    fn add(verbs: &mut Vec<String>, command: &Command, above: &str) {
        for verb in verbs_of(command) {
            let words = format!("{above} {}", verb.get_name()).trim_start().to_owned();
            verbs.push(words.clone());
            add(verbs, verb, &words);
        }
    }
    add(&mut verbs, &command, "");
    let listed: Vec<_> = VERBS.iter().map(|page| page.verb).collect();
    assert_eq!(listed, verbs);
    let files: Vec<_> = pages(Args::command()).into_iter().map(|page| page.file).collect();
    assert_eq!(files, names());
}

#[test]
fn manual_page_of_verb_has_every_section() {
    for found in pages(Args::command()) {
        let mut sections = vec!["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"];
        if found.file.ends_with(".1") {
            sections.extend(["OPTIONS", "EXIT STATUS", "EXAMPLES"]);
        }
        for section in sections {
            let heading = match section.contains(' ') {
                true => format!("\n.SH \"{section}\"\n"),
                false => format!("\n.SH {section}\n"),
            };
            assert_eq!(found.text.matches(&heading).count(), 1, "{} {section}", found.file);
        }
    }
    for verb in VERBS.iter().filter(|verb| !verb.files.is_empty()) {
        let text = page(&format!("{}.1", page_of(verb.verb)));
        assert!(text.contains("\n.SH FILES\n"), "{}", verb.verb);
    }
    assert!(page("cairn.1").contains("\n.SH ENVIRONMENT\n"));
}

#[test]
fn manual_example_is_command_of_its_verb() {
    for verb in VERBS {
        let has_own =
            verb.examples.len() + VERBS.iter().filter(|o| is_below(o.verb, verb.verb)).count();
        assert!(has_own > 0, "{} has no example", verb.verb);
        for (line, _) in verb.examples {
            let words = words(line.strip_prefix("sudo ").unwrap_or(line));
            let parsed = Args::command().try_get_matches_from(&words);
            let matches = parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
            let (mut found, mut level) = (Vec::new(), &matches);
            while let Some((word, below)) = level.subcommand() {
                found.push(word);
                level = below;
            }
            assert_eq!(found.join(" "), verb.verb, "{line}");
        }
    }
}

#[test]
fn manual_page_names_only_existing_pages_of_program() {
    let own: Vec<_> = names()
        .into_iter()
        .map(|file| {
            let (name, section) = file.rsplit_once('.').unwrap();
            format!("{name}({section})")
        })
        .collect();
    for verb in VERBS {
        for page in verb.see {
            let is_known = own.iter().any(|own| own == page) || OTHERS.contains(page);
            assert!(is_known, "{}: {page}", verb.verb);
        }
    }
}

#[test]
fn exit_codes_of_verb_are_on_its_page() {
    for verb in VERBS {
        let text = page(&format!("{}.1", page_of(verb.verb)));
        let (_, section) = text.split_once("\n.SH \"EXIT STATUS\"\n").unwrap();
        let (section, _) = section.split_once("\n.SH ").unwrap();
        for exit in exits::ALL {
            let entry = format!(".TP\n\\fB{}\\fR\n", exit.code());
            assert_eq!(section.contains(&entry), has_exit(verb.verb, exit.code()), "{}", verb.verb);
        }
    }
}

#[test]
fn spec_page_has_every_key_of_spec() {
    let text = page(SPEC_PAGE);
    for section in &SECTIONS {
        let title = match section.name {
            "" => "\"Before all sections\"".to_owned(),
            name => format!("[{name}]"),
        };
        let (_, part) = text.split_once(&format!("\n.SS {title}\n")).unwrap();
        let part = part.split("\n.S").next().unwrap();
        for key in section.names() {
            assert!(part.contains(&format!(".TP\n\\fB{key}\\fR\n")), "{title} {key}");
        }
    }
}

#[test]
fn spec_page_has_every_option_of_every_kind() {
    let text = page(SPEC_PAGE);
    let (_, kinds) = text.split_once("\n.SH \"KINDS OF DISKS\"\n").unwrap();
    for kind in REGISTRY.0 {
        let (_, part) = format!("\n{kinds}")
            .split_once(&format!("\n.SS {}\n", kind.name))
            .map(|(before, part)| (before.to_owned(), part.to_owned()))
            .unwrap_or_else(|| panic!("the page does not have the kind {}", kind.name));
        let part = part.split("\n.S").next().unwrap();
        for option in kind.options {
            let entry = format!(".TP\n\\fB{}\\fR\n", option.name.replace('-', "\\-"));
            assert!(part.contains(&entry), "{} {}", kind.name, option.name);
        }
    }
}

#[test]
fn spec_page_has_values_variables_addresses_limits_and_examples() {
    let text = page(SPEC_PAGE);
    for section in ["VALUES", "VARIABLES", "ADDRESSES", "SECRETS", "LIMITS", "NAMES", "FAULTS"] {
        assert!(text.contains(&format!("\n.SH {section}\n")), "{section}");
    }
    let examples = text.matches("\n.EX\n").count();
    assert!(examples > REGISTRY.0.len() - 2, "{examples} examples");
    assert!(text.contains("64MiB if not set"), "defaults");
    assert!(text.contains("number, 1 to 16"), "limits");
}
