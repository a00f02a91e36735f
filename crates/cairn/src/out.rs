//! Output of commands: text for people, JSON for programs.

use std::borrow::Cow;
use std::io::{ErrorKind, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde::Serialize;

use crate::exit::{Exit, Failure, Result};

pub use crate::log::note;

/// Form of printed results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Form {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl Form {
    /// Prints `value` as JSON, or the output of `text`. Returns success as the result of a verb.
    pub fn print<T: Serialize>(self, value: &T, text: impl FnOnce() -> String) -> Result {
        match self {
            Self::Text => print(&text())?,
            Self::Json => {
                let mut json = serde_json::to_string_pretty(value)
                    .expect("a printed result can be written as JSON");
                json.push('\n');
                print(&json)?;
            }
        }
        Ok(Exit::Ok)
    }
}

/// Escapes characters that a terminal would interpret, because the text may include names and words from disks and
/// other machines. The escapes are those of JSON, so that escaped JSON has the same value.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_unsafe(c) {
            true => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Whether a character is a control character, or changes the direction of the text after it.
fn is_unsafe(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Prints text, with escapes for characters that a terminal would interpret.
pub fn print(text: &str) -> Result<()> {
    print_raw(&escaped(text))
}

/// Prints text without escapes. A closed pipe (`| head`) is no failure.
pub fn print_raw(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::io(&error, "writing the result"))
        }
        _ => Ok(()),
    }
}

/// Returns the time from `unix_s`, in seconds since 1970, until now; zero if `unix_s` is in the future.
pub fn since(unix_s: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(now.as_secs().saturating_sub(unix_s))
}

/// Returns a number with its noun: `1 error`, `2 errors`.
pub fn count(n: u64, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}

/// Returns the name of a graph for people. If several graphs have this name, the result includes the first part of
/// the uuid.
pub fn title(graph: &str, uuid: &str, is_one_of_many: bool) -> String {
    match is_one_of_many {
        true => format!("{graph} ({uuid:.8})"),
        false => graph.to_owned(),
    }
}

/// Returns a table as text. Each column is as wide as its widest cell, with two blanks between columns. `marks` has a
/// character for each column; `>` aligns the column on the right.
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
    fn printed_text_escapes_terminal_control_characters() {
        let text = "home \u{1b}]0;x\u{7}\r\u{9b}2J\u{202e} \u{e9}\n\tb";
        assert_eq!(escaped(text), "home \\u001b]0;x\\u0007\\u000d\\u009b2J\\u202e \u{e9}\n\tb");
        let json = serde_json::to_string(text).unwrap();
        assert_eq!(serde_json::from_str::<String>(&escaped(&json)).unwrap(), text);
        assert!(!escaped(&json).contains(is_unsafe));
    }

    #[test]
    fn printed_table_aligns_columns() {
        let rows = [vec!["a".into(), "10".into(), "x".into()], vec!["long".into(), "7".into()]];
        assert_eq!(columns("<><", &rows), "a     10  x\nlong   7\n");
    }
}
