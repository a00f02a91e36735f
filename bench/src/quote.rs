//! Tables of results in documents, between two lines that mark the place.
#![allow(clippy::disallowed_methods, reason = "it reads and writes a document, not a disk")]

use std::path::Path;

/// Replaces the text between the two marks of a document by `table`.
///
/// # Errors
/// A mark is missing, or the document cannot be read or written.
pub fn put(document: &Path, marks: (&str, &str), table: &str) -> Result<(), String> {
    let text = read(document)?;
    let [head, _, tail] = parts(&text, marks).map_err(|error| of(document, &error))?;
    let (begin, end) = marks;
    std::fs::write(document, format!("{head}{begin}\n{table}{end}{tail}"))
        .map_err(|error| of(document, &error))
}

/// Returns the text between the two marks of a document.
///
/// # Errors
/// A mark is missing, or the document cannot be read.
pub fn between(document: &Path, marks: (&str, &str)) -> Result<String, String> {
    let text = read(document)?;
    let [_, table, _] = parts(&text, marks).map_err(|error| of(document, &error))?;
    Ok(table.trim_start().to_owned())
}

/// Returns the text before, between and after the two marks.
fn parts<'a>(text: &'a str, (begin, end): (&str, &str)) -> Result<[&'a str; 3], String> {
    let missing = |mark| format!("there is no {mark}");
    let (head, rest) = text.split_once(begin).ok_or_else(|| missing(begin))?;
    let (table, tail) = rest.split_once(end).ok_or_else(|| missing(end))?;
    Ok([head, table, tail])
}

fn read(document: &Path) -> Result<String, String> {
    std::fs::read_to_string(document).map_err(|error| of(document, &error))
}

fn of(document: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", document.display())
}
