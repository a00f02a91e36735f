//! Checks `ARCHITECTURE.md`: its size, and that its invariants name existing tests and seeded bugs.
#![allow(clippy::disallowed_methods, reason = "it reads a document of this workspace")]

/// The largest number of lines of `ARCHITECTURE.md`.
const LINES_MAX: usize = 150;

/// The largest number of characters in a line of `ARCHITECTURE.md`.
const LINE_CHARS_MAX: usize = 140;

/// The words before the names of tests and seeded bugs at the end of each invariant.
const MARK: &str = "Judged by ";

fn text() -> String {
    std::fs::read_to_string(house::root().join("ARCHITECTURE.md")).unwrap()
}

/// Returns the number and the text of each invariant in the chapter "Invariants" of `ARCHITECTURE.md`.
fn invariants(text: &str) -> Vec<(usize, String)> {
    let (_, chapter) = text.split_once("\n## Invariants\n").expect("a chapter \"Invariants\"");
    let (chapter, _) = chapter.split_once("\n##").expect("a chapter after \"Invariants\"");
    let mut invariants: Vec<(usize, String)> = Vec::new();
    for line in chapter.lines() {
        let number = line.split_once(". ").and_then(|(number, _)| number.parse().ok());
        if let Some(number) = number {
            invariants.push((number, line.to_owned()));
        } else if let (true, Some((_, words))) = (line.starts_with("  "), invariants.last_mut()) {
            words.push(' ');
            words.push_str(line.trim());
        }
    }
    invariants
}

/// Returns the names of tests and seeded bugs at the end of an invariant. An error describes a malformed end.
fn judges(words: &str) -> Result<Vec<&str>, String> {
    let (_, names) = words.rsplit_once(MARK).ok_or(format!("the invariant has no {MARK:?}"))?;
    let names = names.strip_suffix('.').ok_or("the invariant does not end with a dot")?;
    let bare = |name: &&str| name.starts_with('`') && name.ends_with('`') && name.len() > 2;
    let names: Vec<_> = names.split(", ").collect();
    match names.iter().find(|name| !bare(name)) {
        Some(name) => Err(format!("the judge {name:?} is not a name in backticks")),
        None => Ok(names.into_iter().map(|name| name.trim_matches('`')).collect()),
    }
}

#[test]
fn architecture_document_fits_line_limit() {
    let text = text();
    let count = text.lines().count();
    assert!(
        count <= LINES_MAX,
        "ARCHITECTURE.md has {count} lines, at most {LINES_MAX}: move details to docs/"
    );
    for (n, line) in (1..).zip(text.lines()) {
        let chars = line.chars().count();
        assert!(
            chars <= LINE_CHARS_MAX,
            "line {n} of ARCHITECTURE.md has {chars} characters, at most {LINE_CHARS_MAX}"
        );
    }
}

#[test]
fn architecture_document_names_every_crate() {
    let text = text();
    for name in house::crates().keys() {
        let is_there = [format!("`{name}`"), format!("`{name}/`")]
            .iter()
            .any(|as_code| text.contains(as_code));
        assert!(is_there, "ARCHITECTURE.md has no row for {name}");
    }
}

#[test]
fn architecture_invariants_are_numbered_without_gap() {
    let text = text();
    let numbers: Vec<_> = invariants(&text).iter().map(|(number, _)| *number).collect();
    assert!(
        numbers.len() > 20,
        "only {} invariants were found: is the search right?",
        numbers.len()
    );
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
}

#[test]
fn architecture_invariants_name_existing_tests_and_seeded_bugs() {
    let (text, tests, bugs) = (text(), house::test_names(), house::seeded_bugs());
    assert!(tests.len() > 500, "only {} tests were found: is the search right?", tests.len());
    assert!(bugs.len() > 50, "only {} bugs were found: is the search right?", bugs.len());
    let mut faults = Vec::new();
    for (number, words) in invariants(&text) {
        let names = match judges(&words) {
            Ok(names) => names,
            Err(fault) => {
                faults.push(format!("invariant {number}: {fault}"));
                continue;
            }
        };
        for name in names {
            let exists = match name.strip_prefix("bug ") {
                Some(bug) => bugs.contains(bug),
                None => tests.contains(name),
            };
            if !exists {
                faults.push(format!("invariant {number}: no test or seeded bug is named {name}"));
            }
        }
    }
    assert!(faults.is_empty(), "ARCHITECTURE.md: {faults:#?}");
}

#[test]
fn architecture_check_rejects_invariant_without_test() {
    assert!(judges("1. **Nothing is lost.**").is_err());
    assert!(judges("1. **Nothing is lost.** Judged by a test.").is_err());
    assert_eq!(judges("1. Judged by `one`, `bug 02a`.").unwrap(), ["one", "bug 02a"]);
}
