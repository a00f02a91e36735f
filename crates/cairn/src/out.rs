//! What the command prints: text for people, JSON for programs.

use std::io::{ErrorKind, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde::Serialize;

use crate::exit::{Failure, Result};

pub use crate::log::note;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Form {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl Form {
    /// Prints `value` as JSON, or the text of it.
    pub fn print<T: Serialize>(self, value: &T, text: impl FnOnce() -> String) -> Result<()> {
        match self {
            Self::Text => print(&text()),
            Self::Json => {
                let mut json = serde_json::to_string_pretty(value)
                    .expect("these structs have only fields that JSON knows");
                json.push('\n');
                print(&json)
            }
        }
    }
}

/// Prints text as it is. A reader that has gone (`| head`) has seen enough: that is no failure.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::io(&error, "writing the result"))
        }
        _ => Ok(()),
    }
}

/// How long ago that was, in whole seconds; nothing if it is yet to come.
pub fn since(unix_s: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(now.as_secs().saturating_sub(unix_s))
}

/// So many of something: `1 error`, `2 errors`.
pub fn count(n: u64, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}

/// A graph, with the beginning of its uuid if it is not the only one of its name.
pub fn title(graph: &str, uuid: &str, is_one_of_many: bool) -> String {
    match is_one_of_many {
        true => format!("{graph} ({})", &uuid[..8]),
        false => graph.to_owned(),
    }
}

/// Columns, each as wide as its widest cell, two blanks apart; those marked `>` to the right.
pub fn columns(marks: &str, rows: &[Vec<String>]) -> String {
    let marks: Vec<char> = marks.chars().collect();
    let width = |n: usize| {
        rows.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..marks.len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let width = widths[n];
            match marks[n] {
                '>' => line.push_str(&format!("{cell:>width$}  ")),
                _ => line.push_str(&format!("{cell:<width$}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "10".into(), "x".into()], vec!["long".into(), "7".into()]];
        assert_eq!(columns("<><", &rows), "a     10  x\nlong   7\n");
    }
}
