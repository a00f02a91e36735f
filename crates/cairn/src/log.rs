//! The log of a server on its standard error: lines of text, or one JSON object for each line.

use std::io::Write;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde::Serialize;

use crate::out::escaped;

/// Form of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum LogForm {
    /// For people.
    #[default]
    Text,
    /// For programs: one object a line.
    Json,
}

/// The format of this process's log.
struct Log {
    form: LogForm,
    /// Name of the graph that all lines are about; `None` for the log of a process with several graphs.
    graph: Option<String>,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// A log line as JSON. New versions only add fields.
#[derive(Serialize)]
struct Line<'l> {
    unix_ms: u64,
    level: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<&'l str>,
    message: &'l str,
}

/// Sets the format of this process's log. Only the first call has an effect.
pub fn begin(form: LogForm, graph: Option<&str>) {
    let _ = LOG.set(Log { form, graph: graph.map(str::to_owned) });
}

/// Returns the form of this process's log lines.
pub fn form() -> LogForm {
    LOG.get().map_or(LogForm::Text, |log| log.form)
}

impl LogForm {
    /// Returns the word for this form on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Writes a line to the log of a server, or prints a warning of a command.
pub fn note(line: &str) {
    let text = match LOG.get() {
        Some(Log { form: LogForm::Json, graph }) => json(line, graph.as_deref(), now_ms()),
        _ => line.to_owned(),
    };
    // Without a standard error the line is lost.
    let _ = writeln!(std::io::stderr(), "{}", escaped(&text));
}

/// Writes a line to standard error, as [`note`] does, from a message as for [`format!`].
macro_rules! note {
    ($($message:tt)+) => { $crate::log::note(&format!($($message)+)) };
}

/// Writes a warning to standard error, as [`note`] does, from a message as for [`format!`].
macro_rules! warn {
    ($($message:tt)+) => { $crate::log::note(&format!("warning: {}", format_args!($($message)+))) };
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}

fn json(line: &str, graph: Option<&str>, unix_ms: u64) -> String {
    let levels = [("error: ", "error"), ("warning: ", "warning"), ("note: ", "note")];
    let found = levels.iter().find_map(|(begin, level)| Some((*level, line.strip_prefix(begin)?)));
    let (level, message) = found.unwrap_or(("info", line));
    let line = Line { unix_ms, level, pid: std::process::id(), graph, message };
    serde_json::to_string(&line).expect("a log line can be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_log_writes_each_line_as_one_object() {
        let pid = std::process::id();
        let said = json("warning: a \"disk\"\nis late", Some("home"), 7);
        let wanted = format!(
            "{{\"unix_ms\":7,\"level\":\"warning\",\"pid\":{pid},\"graph\":\"home\",\
             \"message\":\"a \\\"disk\\\"\\nis late\"}}"
        );
        assert_eq!(said, wanted);
        let said = json("flushed", None, 0);
        assert!(said.contains("\"level\":\"info\"") && !said.contains("graph"), "{said}");
    }
}
