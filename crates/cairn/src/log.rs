//! The log of a server on its standard error: lines of text, or one JSON object for each line. Each line has a level,
//! and the graph that it is about.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use api::EventLine;
use block::Level;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::out::escaped;

/// Options of the log of a server.
#[derive(Args, Clone, Copy, Default)]
pub struct LogArgs {
    /// Form of log lines: text, or one JSON object each
    #[arg(long, value_name = "FORM", value_enum, default_value_t)]
    log: LogForm,
    /// Also log details for the search for a fault
    #[arg(long, short = 'v')]
    verbose: bool,
}

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
    args: LogArgs,
    /// Whether lines of text name the graph, because other processes write to the same log.
    is_shared: bool,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Name of the graph that all lines are about; not set in a process with several graphs.
static GRAPH: OnceLock<String> = OnceLock::new();

/// A log line as JSON. New versions only add fields.
#[derive(Serialize)]
struct Line<'l> {
    unix_ms: u64,
    level: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<&'l str>,
    message: &'l str,
}

/// Sets the format of this process's log. The log of a worker is shared with its daemon and other workers. Only the
/// first call has an effect.
pub fn begin(args: LogArgs, is_shared: bool) {
    let _ = LOG.set(Log { args, is_shared });
}

/// Sets the graph that all further lines of this process are about. Only the first call has an effect.
pub fn set_graph(name: &str) {
    let _ = GRAPH.set(name.to_owned());
}

/// Returns the arguments for a child process that give its log the format of this process's log.
pub fn arguments() -> Vec<&'static str> {
    let LogArgs { log, verbose } = LOG.get().map(|log| log.args).unwrap_or_default();
    let verbose = verbose.then_some("--verbose");
    ["--log", log.word()].into_iter().chain(verbose).collect()
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

/// Writes a line to the log of a server, or prints a warning of a command. The level of the line is the word before its
/// first colon, or information without one.
pub fn note(line: &str) {
    let (level, message) = level_of(line);
    let graph = GRAPH.get().map(String::as_str);
    write(level, graph, message, |level, graph| match (level, graph) {
        ("info", None) => message.to_owned(),
        ("info", Some(graph)) => format!("{graph}: {message}"),
        (level, None) => format!("{level}: {message}"),
        (level, Some(graph)) => format!("{level}: {graph}: {message}"),
    });
}

/// Writes a line about the graph `graph` to the log of a process with several graphs, as [`note`] does.
pub fn note_of(graph: &str, line: &str) {
    let (level, message) = level_of(line);
    write(level, Some(graph), message, |level, _| match level {
        "info" => format!("{graph}: {message}"),
        level => format!("{level}: {graph}: {message}"),
    });
}

/// Writes a stage in the life of this server to its log: that it is up, or has stopped. In text on a terminal
/// the server's own output says so already.
pub fn stage(words: &str) {
    let is_json = LOG.get().is_some_and(|log| log.args.log == LogForm::Json);
    if is_json || !std::io::stderr().is_terminal() {
        note(words);
    }
}

/// Writes a detail to the log, if the log has details.
pub fn debug(words: &str) {
    if LOG.get().is_some_and(|log| log.args.verbose) {
        note(&format!("debug: {words}"));
    }
}

/// Writes an event of a device to the log.
pub fn event(line: &EventLine, level: Level) {
    let EventLine { event, graph, device, member, words, .. } = line;
    let place = member.iter().fold(device.clone(), |place, member| format!("{place}/{member}"));
    let more = if words.is_empty() { String::new() } else { format!(": {words}") };
    let level = level.word();
    print(&match LOG.get() {
        Some(Log { args: LogArgs { log: LogForm::Json, .. }, .. }) => json(&Line {
            unix_ms: now_ms(),
            level,
            pid: std::process::id(),
            graph: Some(graph),
            event: Some(event),
            device: Some(device),
            member: member.as_deref(),
            message: &format!("{place}: {event}{more}"),
        }),
        _ => format!("{level}: {graph}: {place}: {event}{more}"),
    });
}

/// Returns the level of a line and its message.
fn level_of(line: &str) -> (&'static str, &str) {
    let levels = ["error", "warning", "note", "debug"];
    let found = levels.iter().find_map(|level| {
        let message = line.strip_prefix(level)?.strip_prefix(": ")?;
        Some((*level, message))
    });
    found.unwrap_or(("info", line))
}

/// Writes a line in the form of the log. `text` returns its text from the level, and from the graph if a line of text
/// must name it.
fn write(
    level: &'static str,
    graph: Option<&str>,
    message: &str,
    text: impl FnOnce(&'static str, Option<&str>) -> String,
) {
    print(&match LOG.get() {
        Some(Log { args: LogArgs { log: LogForm::Json, .. }, .. }) => json(&Line {
            unix_ms: now_ms(),
            level,
            pid: std::process::id(),
            graph,
            event: None,
            device: None,
            member: None,
            message,
        }),
        log => text(level, graph.filter(|_| log.is_some_and(|log| log.is_shared))),
    });
}

fn print(line: &str) {
    // Without a standard error the line is lost.
    let _ = writeln!(std::io::stderr(), "{}", escaped(line));
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

fn json(line: &Line<'_>) -> String {
    serde_json::to_string(line).expect("a log line can be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_log_writes_each_line_as_one_object() {
        let line = Line {
            unix_ms: 7,
            level: "warning",
            pid: 9,
            graph: Some("home"),
            event: None,
            device: None,
            member: None,
            message: "a \"disk\"\nis late",
        };
        let wanted = "{\"unix_ms\":7,\"level\":\"warning\",\"pid\":9,\"graph\":\"home\",\
                      \"message\":\"a \\\"disk\\\"\\nis late\"}";
        assert_eq!(json(&line), wanted);
    }

    #[test]
    fn log_level_is_word_before_first_colon() {
        assert_eq!(level_of("warning: a: b"), ("warning", "a: b"));
        assert_eq!(level_of("flushed: warning: b"), ("info", "flushed: warning: b"));
        assert_eq!(level_of("warnings: b"), ("info", "warnings: b"));
    }
}
