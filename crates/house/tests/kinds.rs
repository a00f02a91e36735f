//! Checks that product code outside of the crate `kinds` contains no name of a kind.
#![allow(clippy::disallowed_methods, reason = "it reads the sources of this workspace")]

use std::path::Path;

/// The names of kinds that the check searches for. `file`, `path`, `error` and similar names of kinds are left out,
/// because the words also have other uses in code.
const NAMES: [&str; 6] = ["mirror", "remap", "migrate", "crypt", "stripe", "concat"];

/// Crates that the check skips: crates for tests, and the benchmark, which names the kinds that it measures.
const NO_PRODUCT: [&str; 5] = ["sim", "testkit", "house", "chaosdisk", "bench"];

/// Returns the text of a Rust file without its unit tests and its comments.
fn product_code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text);
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Returns the names of kinds in a file of product code that are a whole string literal or a module of `kinds`.
fn named(code: &str) -> Vec<&'static str> {
    let is_named = |name: &&&str| {
        code.contains(&format!("\"{name}\"")) || code.contains(&format!("kinds::{name}"))
    };
    NAMES.iter().filter(is_named).copied().collect()
}

#[test]
fn product_code_outside_of_kinds_names_no_kind() {
    let is_judged = |path: &Path| {
        let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
        let of_crate = parts.iter().rposition(|part| *part == "crates").map(|at| parts[at + 1]);
        let is_test = parts.contains(&"tests") || parts.last() == Some(&"tests.rs");
        let is_test = is_test || parts.last() == Some(&"test_kinds.rs");
        !is_test && of_crate.is_some_and(|it| it != "kinds" && !NO_PRODUCT.contains(&it))
    };
    let mut judged = 0;
    for path in house::rust_files().into_iter().filter(|path| is_judged(path)) {
        let text = std::fs::read_to_string(&path).expect("a file of this workspace");
        let names = named(&product_code(&text));
        assert!(
            names.is_empty(),
            "{} names the kinds {names:?}: ask for a capability of a kind instead",
            path.display()
        );
        judged += 1;
    }
    assert!(judged > 200, "only {judged} files were found: is the search right?");
}

#[test]
fn search_for_kind_names_skips_comments_and_tests() {
    assert_eq!(named(&product_code("let kind = find(\"mirror\");")), ["mirror"]);
    assert_eq!(named(&product_code("use kinds::crypt::slots;")), ["crypt"]);
    assert!(named(&product_code("/// a \"mirror\"\nlet a = \"mirrors\";")).is_empty());
    assert!(named(&product_code("fn a() {}\n\n#[cfg(test)]\nmod tests { \"mirror\" }")).is_empty());
}
