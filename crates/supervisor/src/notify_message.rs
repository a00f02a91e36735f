//! The messages of a worker to its supervisor, in systemd's format. `docs/formats/keeper.md` defines them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Length in bytes of the longest message of a worker.
pub const WORDS_MAX_BYTES: usize = 64 << 10;

/// Field of a message: the reason of a failure. The worker sends it before its exit code.
pub const FAILURE: &str = "X_CAIRN_FAILURE";

/// Field of a message with an exit code: another worker would end in the same way.
pub const LASTING: &str = "X_CAIRN_LASTING";

/// Field of a message: the worker has handed over all of its state to the next worker.
pub const RENEWED: &str = "X_CAIRN_RENEWED";

/// Field of a message: a program that the supervisor runs, because the worker's filter of system calls would refuse
/// it. The value is an [`Event`] in JSON.
pub const EVENT: &str = "X_CAIRN_EVENT";

/// A program that the supervisor runs for an event of a graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Working directory of the program.
    pub directory: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Variables added to the environment of the program.
    pub variables: BTreeMap<String, String>,
}

impl Event {
    /// Returns the message with which a worker makes the supervisor run the program; `None` if the message would be
    /// too long.
    pub fn message(&self) -> Option<String> {
        let event = serde_json::to_string(self).expect("an event can be written as JSON");
        let message = format!("{EVENT}={event}");
        (message.len() <= WORDS_MAX_BYTES).then_some(message)
    }
}

/// A message of a worker to its supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NotifyMessage {
    /// Whether the supervisor must hold the descriptor that comes with the message.
    pub store: bool,
    /// Whether the supervisor must close the held descriptors called `name`.
    pub remove: bool,
    /// Name of the descriptor to hold, or of the descriptors to close.
    pub name: String,
    /// Whether clients can connect to the worker.
    pub ready: bool,
    /// Whether the worker has handed over all of its state to the next worker.
    pub renewed: bool,
    /// Exit code with which the worker ends.
    pub exit: Option<u8>,
    /// The reason of the worker's failure, if the message has one.
    pub failure: Option<String>,
    /// Whether another worker would end in the same way, until the operator changes something.
    pub lasting: bool,
    /// A program that the supervisor must run.
    pub event: Option<Event>,
}

impl NotifyMessage {
    /// Parses a message of a worker. Ignores unknown fields.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut words = Self::default();
        for line in String::from_utf8_lossy(bytes).lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let is_so = value == "1";
            match key {
                "FDSTORE" => words.store |= is_so,
                "FDSTOREREMOVE" => words.remove |= is_so,
                "FDNAME" => value.clone_into(&mut words.name),
                "READY" => words.ready |= is_so,
                RENEWED => words.renewed |= is_so,
                LASTING => words.lasting |= is_so,
                "EXIT_STATUS" => words.exit = value.parse().ok(),
                EVENT => words.event = serde_json::from_str(value).ok(),
                FAILURE => words.failure = serde_json::from_str(value).ok(),
                _ => {}
            }
        }
        words
    }

    /// Returns the last message of a worker, with its exit code and the reason why it ends.
    pub fn last(exit: u8, failure: &str) -> String {
        let most = WORDS_MAX_BYTES / 8;
        let end = failure.char_indices().map(|(at, _)| at).find(|at| *at >= most);
        let failure = &failure[..end.unwrap_or(failure.len())];
        let failure = serde_json::to_string(failure).expect("a string is JSON");
        format!("{FAILURE}={failure}\nEXIT_STATUS={exit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notify_message_parse_follows_documented_format() {
        let store = NotifyMessage::parse(b"FDSTORE=1\nFDNAME=attached/home/vol/4096");
        assert!(store.store && !store.remove && store.name == "attached/home/vol/4096");
        let remove = NotifyMessage::parse(b"FDSTOREREMOVE=1\nFDNAME=listener");
        assert!(remove.remove && !remove.store && remove.name == "listener");
        assert!(NotifyMessage::parse(b"STATUS=well\nREADY=1\n").ready);
        // Any message shows that the worker still turns.
        assert_eq!(NotifyMessage::parse(b"WATCHDOG=1\nSTOPPING=1"), NotifyMessage::default());
        assert!(NotifyMessage::parse(b"X_CAIRN_RENEWED=1").renewed);
        assert!(NotifyMessage::parse(b"X_CAIRN_LASTING=1").lasting);
        for nothing in [&b""[..], b"READY", b"READY=0", b"EXIT_STATUS=256", b"\xff\xfe=1"] {
            assert_eq!(NotifyMessage::parse(nothing), NotifyMessage::default());
        }
    }

    #[test]
    fn notify_message_parse_reads_back_event() {
        let event = Event {
            program: "/bin/mail \n x".into(),
            directory: "/".into(),
            arguments: vec!["failed".to_owned(), "EXIT_STATUS=3\nREADY=1".to_owned()],
            variables: BTreeMap::from([("CAIRN_WORDS".to_owned(), "\"".to_owned())]),
        };
        let words = NotifyMessage::parse(event.message().unwrap().as_bytes());
        assert_eq!(words, NotifyMessage { event: Some(event.clone()), ..NotifyMessage::default() });
        let arguments = vec!["x".repeat(WORDS_MAX_BYTES)];
        assert_eq!(Event { arguments, ..event }.message(), None);
    }

    #[test]
    fn notify_message_parse_accepts_long_failure_text() {
        let why = "a is missing\nerror: so is \"b\"";
        let last = NotifyMessage::parse(NotifyMessage::last(4, why).as_bytes());
        assert_eq!((last.exit, last.failure.as_deref()), (Some(4), Some(why)));
        let long = NotifyMessage::last(1, &"\u{1}".repeat(WORDS_MAX_BYTES));
        assert!(long.len() <= WORDS_MAX_BYTES);
        assert!(NotifyMessage::parse(long.as_bytes()).failure.is_some());
    }
}
