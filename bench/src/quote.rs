//! Writes tables of results into documents, between two lines that mark the place.
#![allow(clippy::disallowed_methods, reason = "it writes a document, not a disk")]

use std::path::Path;

/// Replaces the text between the two marks of a document by `table`.
///
/// # Errors
/// A mark is missing, or the document cannot be read or written.
pub fn between(document: &Path, marks: (&str, &str), table: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", document.display());
    let text = std::fs::read_to_string(document).map_err(failed)?;
    let (begin, end) = marks;
    let missing = |mark| format!("{}: there is no {mark}", document.display());
    let (head, rest) = text.split_once(begin).ok_or_else(|| missing(begin))?;
    let (_, tail) = rest.split_once(end).ok_or_else(|| missing(end))?;
    std::fs::write(document, format!("{head}{begin}\n{table}{end}{tail}")).map_err(failed)
}
