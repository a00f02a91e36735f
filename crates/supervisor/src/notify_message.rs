//! The messages of a worker, in systemd's format. `docs/formats/keeper.md` defines them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Length of the longest message.
pub const WORDS_MAX_BYTES: usize = 64 << 10;

/// The reason of a failure. It comes before the exit code.
pub const FAILURE: &str = "X_CAIRN_FAILURE";

/// A note beside the exit code: another worker would end the same way.
pub const LASTING: &str = "X_CAIRN_LASTING";

/// The worker has handed everything over.
pub const RENEWED: &str = "X_CAIRN_RENEWED";

/// A program to run outside of the worker's system call filter, as [`Event`] in JSON.
pub const EVENT: &str = "X_CAIRN_EVENT";

/// A program to run for an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its absolute path.
    pub program: PathBuf,
    /// Its working directory.
    pub directory: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables added to its environment.
    pub variables: BTreeMap<String, String>,
}

impl Event {
    /// Returns the message with which a worker asks for the run; `None` if it would be longer than a message
    /// may be.
    pub fn message(&self) -> Option<String> {
        let event = serde_json::to_string(self).expect("it has only fields that JSON knows");
        let message = format!("{EVENT}={event}");
        (message.len() <= WORDS_MAX_BYTES).then_some(message)
    }
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NotifyMessage {
    /// Whether to hold the descriptor that comes with it.
    pub store: bool,
    /// Whether to close the descriptors with this name.
    pub remove: bool,
    /// Name of the descriptors.
    pub name: String,
    /// Whether clients can connect.
    pub ready: bool,
    /// Whether it has handed everything over.
    pub renewed: bool,
    /// Its exit code.
    pub exit: Option<u8>,
    /// The reason.
    pub failure: Option<String>,
    /// Whether another worker would end the same way, until the operator intervenes.
    pub lasting: bool,
    /// A program to run.
    pub event: Option<Event>,
}

impl NotifyMessage {
    /// Parses a message. Unknown parts are ignored.
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

    /// Returns the last message of a worker: its exit code and the reason.
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
    fn parse_follows_documented_format() {
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
    fn parse_reads_back_event_message() {
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
    fn last_message_of_any_length_is_parsed() {
        let why = "a is missing\nerror: so is \"b\"";
        let last = NotifyMessage::parse(NotifyMessage::last(4, why).as_bytes());
        assert_eq!((last.exit, last.failure.as_deref()), (Some(4), Some(why)));
        let long = NotifyMessage::last(1, &"\u{1}".repeat(WORDS_MAX_BYTES));
        assert!(long.len() <= WORDS_MAX_BYTES);
        assert!(NotifyMessage::parse(long.as_bytes()).failure.is_some());
    }
}
