//! Manual pages and help, as the commands print them.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::collections::BTreeSet;

use common::{Dir, tool};

/// Returns the names of the files in the directory `pages`, after `cairn man` has written there.
fn pages(dir: &Dir) -> BTreeSet<String> {
    dir.text(&["man", "pages"]);
    let entries = std::fs::read_dir(dir.path("pages")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn manual_pages_have_no_faults_for_groff_and_mandoc() {
    let dir = Dir::new();
    let pages = pages(&dir);
    assert!(pages.len() > 40, "{pages:?}");
    for page in pages {
        let path = format!("pages/{page}");
        let groff = tool(&dir, "groff", &["-man", "-ww", "-Tutf8", "-z", &path]);
        assert_eq!((groff.code, &*groff.out, &*groff.err), (0, "", ""), "{page}");
        let mandoc = tool(&dir, "mandoc", &["-T", "lint", "-W", "style", &path]);
        assert_eq!((mandoc.code, &*mandoc.out, &*mandoc.err), (0, "", ""), "{page}");
    }
}

#[test]
fn manual_pages_are_written_or_printed_one_by_one() {
    let dir = Dir::new();
    let pages = pages(&dir);
    for name in ["cairn.1", "cairn-serve.1", "cairn-device-scrub.1", "cairn-spec.5"] {
        assert!(pages.contains(name), "{pages:?}");
        let written = std::fs::read_to_string(dir.path("pages").join(name)).unwrap();
        assert_eq!(dir.text(&["man", "--page", name]), written);
        assert_eq!(dir.text(&["man", "--page", name.rsplit_once('.').unwrap().0]), written);
    }
    assert!(!pages.iter().any(|name| name.contains("help")), "{pages:?}");
    let options = dir.text(&["man", "--page", "cairn-device-fail"]);
    assert!(options.contains("\\fB\\-\\-yes\\fR"), "{options}");
    assert_eq!(dir.text(&["man"]), dir.text(&["man", "--page", "cairn.1"]));
    let ran = dir.cairn(&["man", "--page", "cairn-nosuch.1"]);
    assert!(ran.code == 4 && ran.err.contains("no page \"cairn-nosuch.1\""), "{ran:?}");
}

#[test]
fn manual_page_shows_text_to_reader() {
    let dir = Dir::new();
    let pages = pages(&dir);
    let read = |name: &str| {
        assert!(pages.contains(name), "{name}");
        let text =
            tool(&dir, "mandoc", &["-T", "ascii", "-O", "width=200", &format!("pages/{name}")]).out;
        // Bold letters are printed twice, with a backspace between.
        let mut plain = String::new();
        for c in text.chars() {
            match c {
                '\u{8}' => assert!(plain.pop().is_some()),
                c => plain.push(c),
            }
        }
        plain
    };
    let serve = read("cairn-serve.1");
    assert!(serve.contains("cairn serve home.toml --run 'nbdinfo \"$uri\"'"), "{serve}");
    assert!(serve.contains("^Cflushed; closed 1 connection."), "{serve}");
    let spec = read("cairn-spec.5");
    assert!(spec.contains("pair = { kind = \"mirror\", on = [\"a\", \"b\"] }"), "{spec}");
    assert!(spec.contains("unix:${SOCKET:-cairn.sock}"), "{spec}");
    let cairn = read("cairn.1");
    for verb in ["cairn-serve(1)", "cairn-device-scrub(1)", "cairn-key-add(1)", "cairn-spec(5)"] {
        assert!(cairn.contains(verb), "{verb}: {cairn}");
    }
}

#[test]
fn help_of_verb_equals_its_help_option() {
    let dir = Dir::new();
    for verb in [&["serve"][..], &["device"], &["device", "scrub"], &["key", "add"]] {
        let help = dir.text(&[&["help"], verb].concat());
        assert_eq!(help, dir.text(&[verb, &["--help"]].concat()), "{verb:?}");
        assert!(help.contains("Usage: cairn"), "{help}");
    }
    assert_eq!(dir.text(&["help"]), dir.text(&["--help"]));
    assert_eq!(dir.text(&["device", "help", "scrub"]), dir.text(&["help", "device", "scrub"]));
    assert_eq!(dir.cairn(&["help", "nosuch"]).code, 2);
}
