//! Checks that test names use the terms of the glossary.
#![allow(clippy::disallowed_methods, reason = "it reads the sources of this workspace")]

/// The smallest number of glossary terms that must occur in the names of [`TESTS`] or more tests, so that
/// `cargo test TERM` runs the tests about a term.
const TERMS: usize = 25;
const TESTS: usize = 3;

/// Returns the terms of the glossary, with underscores for spaces as in the names of tests.
fn terms() -> Vec<String> {
    let page = std::fs::read_to_string(house::root().join("docs/glossary.md"));
    let page = page.expect("the glossary of this workspace");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let terms = rows.filter_map(|row| row.split([',', '(', '|']).next());
    let terms = terms.filter(|term| *term != "term " && !term.starts_with('-'));
    terms.map(|term| term.trim().replace([' ', '-'], "_")).collect()
}

#[test]
fn glossary_terms_appear_in_test_names() {
    let (terms, tests) = (terms(), house::test_names());
    assert!(terms.len() > 50, "only {} terms were found: is the search right?", terms.len());
    let selected = |term: &&String| tests.iter().filter(|test| test.contains(*term)).count();
    let known: Vec<_> = terms.iter().filter(|term| selected(term) >= TESTS).collect();
    assert!(
        known.len() >= TERMS,
        "only {} terms select {TESTS} tests each: {known:?}",
        known.len()
    );
}
