//! The files of this workspace, for checks of the code itself. Depends on no other crate of Cairn. For tests only.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "it reads the sources of this workspace, and is no part of a product"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of each crate of the workspace, by its name.
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

/// The manifest of each crate of the workspace, by the name of its folder.
///
/// # Panics
/// If a manifest cannot be read.
pub fn manifests() -> BTreeMap<String, toml::Table> {
    let manifest = |(name, path): (String, PathBuf)| {
        let text = std::fs::read_to_string(path.join("Cargo.toml")).expect("each crate has one");
        (name, text.parse().expect("cargo has read it as well"))
    };
    crates().into_iter().map(manifest).collect()
}

/// All Rust files of all crates.
///
/// # Panics
/// If a folder cannot be read.
pub fn rust_files() -> Vec<PathBuf> {
    let mut stack: Vec<_> = crates().into_values().collect();
    let mut files = Vec::new();
    while let Some(path) = stack.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).expect("a folder of this workspace");
            stack.extend(entries.map(|entry| entry.expect("an entry of a folder").path()));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}
