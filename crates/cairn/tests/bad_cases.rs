//! Bad input of the command line, as data: each `bad/NAME.case` is a command, what it needs, its whole
//! stderr and its exit code. `CASES=write` writes down what is said now, to be read before it is
//! committed.
//!
//! | line | meaning |
//! | --- | --- |
//! | `# words` | what the case is about |
//! | `sh: LINE` | run before, by a shell in an empty directory; `$CAIRN` is the binary |
//! | `root: WHY` | only root can do this; others pass the case over |
//! | `as: USER` | run the command as that user |
//! | `cairn: LINE` | the arguments, as a shell takes them |
//! | `end: LINE` | run afterwards, whatever came of it |
//! | `exit: N` | the code |
//! | all that follows | stderr; the directory is `DIR`, ids of processes are `PID` |
//!
//! A server in the background writes its pid file to `pid`, and is killed at the end.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Dir, Ran, send};

/// What stands before `exit:`, and what is expected.
struct Case {
    name: String,
    path: PathBuf,
    lines: Vec<(String, String)>,
    expected: String,
}

impl Case {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let at = text.find("exit:").unwrap_or(text.len());
        let (head, expected) = text.split_at(at);
        let lines = head.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.map(|line| {
            let (key, value) = line.split_once(": ").unwrap_or_else(|| panic!("{path:?}: {line}"));
            (key.to_owned(), value.to_owned())
        });
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Self { name, lines: lines.collect(), expected: expected.to_owned(), path }
    }

    fn all(&self, wanted: &str) -> String {
        let lines = self.lines.iter().filter(|(key, _)| key == wanted);
        lines.map(|(_, value)| format!("{value}\n")).collect()
    }

    /// What is said now, in the form of the file.
    fn said(&self) -> String {
        let dir = Dir::new();
        let shell = |lines: &str| {
            let mut command = Command::new("sh");
            command.args(["-ec", lines]).current_dir(&dir.0).stdin(Stdio::null());
            command.env("CAIRN", env!("CARGO_BIN_EXE_cairn"));
            command.env("XDG_RUNTIME_DIR", dir.path("run")).env_remove("NOTIFY_SOCKET");
            command.env("COLUMNS", "100");
            command
        };
        let ready = shell(&self.all("sh")).status().unwrap();
        assert!(ready.success(), "{}: what it needs cannot be made: {ready}", self.name);
        let user = self.all("as");
        let program = match user.trim() {
            "" => "\"$CAIRN\"".to_owned(),
            user => {
                // Where we were built that user may have no business.
                fs::copy(env!("CARGO_BIN_EXE_cairn"), dir.path("cairn")).unwrap();
                format!("setpriv --reuid={user} --regid={user} --clear-groups -- ./cairn")
            }
        };
        let command = format!("exec {program} {}", self.all("cairn").trim());
        let ran = Ran::of(&shell(&command).output().unwrap());
        if let Ok(pid) = fs::read_to_string(dir.path("pid")) {
            send(pid.trim().parse().unwrap(), "KILL");
        }
        assert!(shell(&self.all("end")).status().unwrap().success(), "{}: its end", self.name);
        // Which calls this kernel offers is another matter.
        let lines = ran.err.lines().filter(|line| !line.starts_with("note: "));
        let err: String = lines.map(|line| format!("{line}\n")).collect();
        let err = err.replace(&dir.0.display().to_string(), "DIR");
        format!("exit: {}\n{}", ran.code, without_ids(&err))
    }
}

/// `process 123` is `process PID`, `/dev/loop1` is `/dev/loopN`: numbers that are others each time.
fn without_ids(text: &str) -> String {
    let mut text = text.to_owned();
    for (before, id) in [("process ", "PID"), ("/dev/loop", "N")] {
        let mut parts = text.split(before);
        let mut all = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
            let id = if rest.len() < part.len() { id } else { "" };
            write!(all, "{before}{id}{rest}").unwrap();
        }
        text = all;
    }
    text
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(Case::read).collect()
}

#[test]
fn every_case_says_what_is_expected() {
    let rewrite = std::env::var("CASES").is_ok_and(|what| what == "write");
    let root = rustix::process::geteuid().is_root();
    let mut wrong = String::new();
    for case in cases() {
        if !root && !case.all("root").is_empty() {
            eprintln!("passed over: {}: needs root: {}", case.name, case.all("root").trim());
            continue;
        }
        let said = case.said();
        if rewrite {
            let text = fs::read_to_string(&case.path).unwrap();
            let head = text.split("exit:").next().unwrap();
            fs::write(&case.path, format!("{head}{said}")).unwrap();
        } else if said != case.expected {
            let Case { name, expected, .. } = &case;
            writeln!(wrong, "{name}: expected\n{expected}{name}: said\n{said}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_failure_has_a_code_and_words() {
    for case in cases() {
        let code = case.expected.lines().next().unwrap().trim_start_matches("exit: ");
        assert!(code.parse::<u8>().is_ok_and(|code| (1..=12).contains(&code)), "{}", case.name);
        assert!(
            case.expected.lines().nth(1).is_some_and(|line| !line.is_empty()),
            "{}: nothing is said",
            case.name
        );
    }
}
