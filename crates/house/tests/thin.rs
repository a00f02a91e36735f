//! Checks that the sources of the `cairn` binary use neither the crate `meta` nor the label module of `graph`.
#![allow(clippy::disallowed_methods, reason = "it reads the sources of this workspace")]

/// Module paths that the sources of the `cairn` binary may not contain. It uses `doctor` and `graph` instead.
const BENEATH: [&str; 3] = ["meta::", "graph::labels", "labels::diagnosis"];

#[test]
fn binary_sources_name_neither_meta_crate_nor_label_module() {
    let sources = house::root().join("crates/cairn/src");
    let sources = std::fs::canonicalize(sources).expect("the binary has sources");
    let mut judged = 0;
    for path in house::rust_files() {
        let path = std::fs::canonicalize(path).expect("a file of this workspace");
        if !path.starts_with(&sources) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file of this workspace");
        for beneath in BENEATH {
            assert!(
                !text.contains(beneath),
                "{} uses {beneath}, which the binary must not use",
                path.display()
            );
        }
        judged += 1;
    }
    assert!(judged > 50, "only {judged} files of the binary were found: is the search right?");
}
