//! Reads the files of this workspace for tests that check the sources and documents. Depends on no crate of Cairn.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "it reads the sources of this workspace, and is no part of a product"
)]

pub mod prose;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Returns the path of the workspace's root folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folder of each crate of the workspace, by the folder's name.
///
/// # Panics
/// If the folder of crates cannot be read.
pub fn crates() -> BTreeMap<String, PathBuf> {
    let entries = std::fs::read_dir(root().join("crates")).expect("the workspace has crates");
    let folders = entries.map(|entry| entry.expect("an entry of a folder").path());
    let named = |path: PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        (name.expect("crates have plain names").to_owned(), path)
    };
    folders.chain([root().join("bench")]).map(named).collect()
}

/// Returns the parsed `Cargo.toml` of each crate of the workspace, by the name of the crate's folder.
///
/// # Panics
/// If a manifest cannot be read.
pub fn manifests() -> BTreeMap<String, toml::Table> {
    let manifest = |(name, path): (String, PathBuf)| {
        let text =
            std::fs::read_to_string(path.join("Cargo.toml")).expect("each crate has a Cargo.toml");
        (name, text.parse().expect("the Cargo.toml of a crate is valid TOML"))
    };
    crates().into_iter().map(manifest).collect()
}

/// Returns the paths of all Rust files of all crates.
///
/// # Panics
/// If a folder cannot be read.
pub fn rust_files() -> Vec<PathBuf> {
    files_below(crates().into_values().collect(), "rs")
}

/// Returns the paths of all documents of the project: three in its root folder, and all Markdown files below `docs`.
///
/// # Panics
/// If a folder cannot be read.
pub fn documents() -> Vec<PathBuf> {
    let roots = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs"];
    files_below(roots.map(|name| root().join(name)).to_vec(), "md")
}

/// Returns the paths of all Markdown files in the folders of crates: the manual pages of kinds.
///
/// # Panics
/// If a folder cannot be read.
pub fn manuals() -> Vec<PathBuf> {
    files_below(crates().into_values().collect(), "md")
}

fn files_below(mut stack: Vec<PathBuf>, ending: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    while let Some(path) = stack.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).expect("a folder of this workspace");
            stack.extend(entries.map(|entry| entry.expect("an entry of a folder").path()));
        } else if path.extension().is_some_and(|end| end == ending) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns the names of all test functions of the workspace, including the properties inside `proptest!`.
///
/// # Panics
/// If a file cannot be read.
pub fn test_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in rust_files() {
        let text = std::fs::read_to_string(path).expect("a file of this workspace");
        let mut follows_mark = false;
        for line in text.lines().map(str::trim) {
            follows_mark |= line == "#[test]";
            let name = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
            if let Some((name, _)) = name.filter(|_| follows_mark) {
                names.insert(name.to_owned());
                follows_mark = false;
            }
        }
    }
    names
}

/// Returns the numbers of the seeded bugs, from the list in `block::seeded`.
///
/// # Panics
/// If the list cannot be read.
pub fn seeded_bugs() -> BTreeSet<String> {
    let list = root().join("crates/block/src/seeded.rs");
    let text = std::fs::read_to_string(list).expect("the list of seeded bugs");
    let rows = text.lines().filter_map(|line| line.strip_suffix("\","));
    rows.filter_map(|row| row.split_once(" = \"")).map(|(_, number)| number.to_owned()).collect()
}
