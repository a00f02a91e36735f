//! Checks the dependencies between the crates of the workspace.

use house::manifests;

/// For each crate, the crates of Cairn that it may depend on. A new dependency needs a decision and an entry here.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("block", &[]),
    ("meta", &["block"]),
    ("pool", &["block", "meta"]),
    ("wire", &["block"]),
    ("house", &[]),
    ("engine", &["block"]),
    ("kind", &["block", "engine", "meta"]),
    ("graph", &["block", "engine", "kind", "meta"]),
    ("doctor", &["block", "engine", "graph", "kind", "meta"]),
    ("tls", &["block"]),
    ("kinds", &["block", "kind", "meta", "pool"]),
    ("export", &["block", "engine", "tls", "wire"]),
    ("net", &["block", "kind", "tls", "wire"]),
    ("runtime", &["block"]),
    (
        "bench",
        &["api", "block", "engine", "graph", "kinds", "meta", "net", "pool", "runtime", "wire"],
    ),
    // Apart from `bench`, which is in the program `cairn`.
    ("bench-simulated", &["bench", "block", "engine", "kind", "kinds", "meta", "sim", "testkit"]),
    ("api", &["block"]),
    ("attach", &["block", "wire"]),
    ("supervisor", &["block", "runtime"]),
    (
        "cairn",
        &[
            "api",
            "attach",
            "bench",
            "block",
            "doctor",
            "engine",
            "export",
            "graph",
            "supervisor",
            "kind",
            "kinds",
            "net",
            "runtime",
            "tls",
            "wire",
        ],
    ),
    (
        "sim",
        &["block", "doctor", "engine", "export", "graph", "kind", "kinds", "meta", "net", "wire"],
    ),
    ("testkit", &["block", "engine", "kind", "sim"]),
    ("chaosdisk", &["block", "engine", "export", "runtime", "sim"]),
];

#[test]
fn crate_dependencies_equal_table_of_allowed_dependencies() {
    let manifests = manifests();
    for (name, manifest) in &manifests {
        let known = MAY_KNOW.iter().find(|(known, _)| known == name);
        let (_, allowed) = known
            .unwrap_or_else(|| panic!("the table of dependencies has no row for the crate {name}"));
        let named = manifest.get("dependencies").and_then(|table| table.as_table());
        let named = named.into_iter().flat_map(|table| table.keys());
        let ours: Vec<_> = named.filter(|name| manifests.contains_key(*name)).collect();
        for dependency in &ours {
            assert!(
                allowed.contains(&dependency.as_str()),
                "the crate {name} may not depend on {dependency}, only on {allowed:?}"
            );
        }
        for dependency in *allowed {
            assert!(
                ours.iter().any(|ours| ours == dependency),
                "the crate {name} no longer depends on {dependency}: remove {dependency} from the \
                 table"
            );
        }
    }
}
