//! Wrong command lines of `cairn`, as data: each `bad/NAME.case` holds a command, its preparation, its whole stderr and
//! its exit code. `CASES=write` rewrites the expected output. Read the differences before you commit them.
//!
//! | line | meaning |
//! | --- | --- |
//! | `# words` | subject of the case |
//! | `sh: LINE` | run before, by a shell in an empty directory; `$CAIRN` is the binary |
//! | `root: WHY` | needs root; other users skip the case |
//! | `as: USER` | run the command as that user |
//! | `cairn: LINE` | the arguments, as a shell parses them |
//! | `end: LINE` | run afterwards, whatever the result was |
//! | `exit: N` | the exit code |
//! | all further lines | stderr; the directory is `DIR`, process ids are `PID` |
//!
//! A server in the background writes its pid file to `pid`, and is killed at the end.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Dir, Ran, send};

/// One `.case` file: the lines before `exit:`, and the expected exit code and stderr.
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

    /// Runs the command of the case, and returns its exit code and stderr in the form of the `.case` file.
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
                // That user may have no access to the build directory.
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
        // Notes about missing system calls depend on the kernel.
        let lines = ran.err.lines().filter(|line| !line.starts_with("note: "));
        let err: String = lines.map(|line| format!("{line}\n")).collect();
        let err = err.replace(&dir.0.display().to_string(), "DIR");
        format!("exit: {}\n{}", ran.code, without_ids(&err))
    }
}

/// Replaces numbers in stderr that change in each run: `process 123` by `process PID`, `/dev/loop1` by `/dev/loopN`.
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
fn command_prints_expected_message_for_each_bad_input() {
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
fn bad_input_case_has_exit_code_and_message() {
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
