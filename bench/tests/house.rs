//! The house as it is drawn: which crate may know which.
#![allow(clippy::disallowed_methods, reason = "it reads the manifests of this workspace")]

use std::collections::BTreeMap;
use std::path::Path;

/// What each crate may name besides libraries. A new edge is a decision: it is made here.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("block", &[]),
    ("meta", &["block"]),
    ("wire", &["block"]),
    ("engine", &["block"]),
    ("kind", &["block", "engine"]),
    ("graph", &["block", "engine", "kind", "meta"]),
    ("tls", &["block"]),
    ("kinds", &["block", "kind", "meta"]),
    ("export", &["block", "engine", "tls", "wire"]),
    ("net", &["block", "kind", "tls", "wire"]),
    ("runtime", &["block"]),
    ("bench", &["api", "block", "engine", "graph", "kinds", "net", "runtime", "wire"]),
    ("api", &[]),
    ("attach", &["block", "wire"]),
    ("supervisor", &["block", "runtime"]),
    (
        "cairn",
        &[
            "api",
            "attach",
            "bench",
            "block",
            "engine",
            "export",
            "graph",
            "supervisor",
            "kind",
            "kinds",
            "meta",
            "net",
            "runtime",
            "tls",
            "wire",
        ],
    ),
    (
        "sim",
        &["block", "engine", "export", "graph", "kind", "kinds", "meta", "net", "runtime", "wire"],
    ),
    ("testkit", &["block", "kind", "kinds", "sim"]),
    ("chaosdisk", &["block", "engine", "export", "runtime", "sim"]),
];

fn manifests() -> BTreeMap<String, toml::Table> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    crates
        .chain([root.join("bench")])
        .map(|path| {
            let text = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), text.parse().unwrap())
        })
        .collect()
}

#[test]
fn dependencies_point_down() {
    let manifests = manifests();
    for (name, manifest) in &manifests {
        let known = MAY_KNOW.iter().find(|(known, _)| known == name);
        let (_, allowed) =
            known.unwrap_or_else(|| panic!("crate {name} has no place in the house"));
        let named = manifest.get("dependencies").and_then(|table| table.as_table());
        for dependency in named.into_iter().flat_map(|table| table.keys()) {
            let ours = manifests.contains_key(dependency);
            assert!(
                !ours || allowed.contains(&dependency.as_str()),
                "{name} must not know {dependency}; it may know {allowed:?}"
            );
        }
    }
}

#[test]
fn no_file_is_too_long_to_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut stack = vec![root.join("crates"), root.join("bench")];
    let mut seen = 0;
    while let Some(path) = stack.pop() {
        if path.is_dir() {
            stack.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let lines = std::fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines <= 800, "{} has {lines} lines; split it by noun", path.display());
            seen += 1;
        }
    }
    assert!(seen > 50, "only {seen} files were found: is this the right place?");
}
