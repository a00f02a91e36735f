//! What a worker says, as systemd would hear it. `docs/formats/keeper.md` is its document.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The longest message.
pub const WORDS_MAX_BYTES: usize = 64 << 10;

/// Before the last word: why.
pub const FAILURE: &str = "X_CAIRN_FAILURE";

/// With the last word: another one would end the same way.
pub const LASTING: &str = "X_CAIRN_LASTING";

/// It has handed everything over.
pub const RENEWED: &str = "X_CAIRN_RENEWED";

/// A program that is to run outside of the worker's filter of system calls, as [`Event`] in JSON.
pub const EVENT: &str = "X_CAIRN_EVENT";

/// A program that is run for an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its absolute path.
    pub program: PathBuf,
    /// Its working directory.
    pub directory: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What its environment has besides.
    pub variables: BTreeMap<String, String>,
}

impl Event {
    /// The message of a worker that has it run; `None` if that is longer than a message may be.
    pub fn message(&self) -> Option<String> {
        let event = serde_json::to_string(self).expect("it has only fields that JSON knows");
        let message = format!("{EVENT}={event}");
        (message.len() <= WORDS_MAX_BYTES).then_some(message)
    }
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NotifyMessage {
    /// The descriptor that comes with it is to be held.
    pub store: bool,
    /// Descriptors of that name are to be closed.
    pub remove: bool,
    /// The name.
    pub name: String,
    /// Clients can connect.
    pub ready: bool,
    /// It ends in order.
    pub stopping: bool,
    /// It still turns.
    pub alive: bool,
    /// It has handed everything over.
    pub renewed: bool,
    /// The code that it ends with.
    pub exit: Option<u8>,
    /// Why.
    pub failure: Option<String>,
    /// Another one would end the same way, until somebody does something.
    pub lasting: bool,
    /// A program that is to be run.
    pub event: Option<Event>,
}

impl NotifyMessage {
    /// What a message says; what is not known in it says nothing.
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
                "STOPPING" => words.stopping |= is_so,
                "WATCHDOG" => words.alive |= is_so,
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

    /// The last words of a worker: its code, and why, as one message.
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
    fn words_mean_what_the_document_says() {
        let store = NotifyMessage::parse(b"FDSTORE=1\nFDNAME=attached/home/vol/4096");
        assert!(store.store && !store.remove && store.name == "attached/home/vol/4096");
        let remove = NotifyMessage::parse(b"FDSTOREREMOVE=1\nFDNAME=listener");
        assert!(remove.remove && !remove.store && remove.name == "listener");
        assert!(NotifyMessage::parse(b"STATUS=well\nREADY=1\n").ready);
        assert!(
            NotifyMessage::parse(b"WATCHDOG=1").alive
                && NotifyMessage::parse(b"STOPPING=1").stopping
        );
        assert!(NotifyMessage::parse(b"X_CAIRN_RENEWED=1").renewed);
        assert!(NotifyMessage::parse(b"X_CAIRN_LASTING=1").lasting);
        for nothing in [&b""[..], b"READY", b"READY=0", b"EXIT_STATUS=256", b"\xff\xfe=1"] {
            assert_eq!(NotifyMessage::parse(nothing), NotifyMessage::default());
        }
    }

    #[test]
    fn message_of_an_event_is_read_back() {
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
    fn last_words_of_any_length_arrive() {
        let why = "a is missing\nerror: so is \"b\"";
        let last = NotifyMessage::parse(NotifyMessage::last(4, why).as_bytes());
        assert_eq!((last.exit, last.failure.as_deref()), (Some(4), Some(why)));
        let long = NotifyMessage::last(1, &"\u{1}".repeat(WORDS_MAX_BYTES));
        assert!(long.len() <= WORDS_MAX_BYTES);
        assert!(NotifyMessage::parse(long.as_bytes()).failure.is_some());
    }
}
