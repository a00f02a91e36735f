//! Checks the number of lines of each Rust file.
#![allow(clippy::disallowed_methods, reason = "it reads the sources of this workspace")]

/// The largest number of lines of a Rust file.
const LINES_MAX: usize = 800;

#[test]
fn source_file_fits_line_limit() {
    let files = house::rust_files();
    assert!(files.len() > 50, "only {} files were found: is this the right place?", files.len());
    for path in files {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines; split it by noun", path.display());
    }
}
