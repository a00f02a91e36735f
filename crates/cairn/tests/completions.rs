//! Completion of words in bash: verbs, options, and the names of running graphs.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::keeper::Daemon;
use common::{Dir, PAIR, Ran, Serve, send};

/// Calls the completion function as readline does. The arguments are the line, the word at the cursor as far as it is
/// behind the last break, and all words as readline splits them.
const CALL: &str = r#"
source <(cairn completions bash)
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 current=$2
shift 2
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_cairn cairn "$current" ""
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// A second graph, with an encrypted device and a slow migration.
const WORK: &str = r#"
name = "work"
[disk]
m = { memory = "1MiB" }
c = { file = "c.img", size = "16MiB", create = true, label = true }
d = { file = "d.img", size = "16MiB", create = true, label = true }
[device]
safe = { kind = "crypt", on = "m", key = "file:safe.key", plain = true }
moving = { kind = "migrate", on = ["c", "d"], speed = "64KiB" }
[export]
vol = { on = "safe" }
moved = { on = "moving" }
"#;

/// Adds the directory of `cairn` to the path of a command.
fn with_path(dir: &Dir, program: &str) -> Command {
    let cairn = Path::new(env!("CARGO_BIN_EXE_cairn")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new(program);
    command.current_dir(&dir.0).env("XDG_RUNTIME_DIR", dir.path("run"));
    command.env("PATH", format!("{}:{path}", cairn.display()));
    command
}

/// Returns the words with which bash could complete the last one of a command line of `cairn`.
fn completed(dir: &Dir, words: &[&str]) -> Vec<String> {
    let mut pieces = vec!["cairn".to_owned()];
    for word in words {
        let mut piece = String::new();
        for c in word.chars() {
            if matches!(c, ':' | '=') {
                pieces.extend((!piece.is_empty()).then(|| std::mem::take(&mut piece)));
                pieces.push(c.to_string());
            } else {
                piece.push(c);
            }
        }
        pieces.extend((!piece.is_empty() || word.is_empty()).then_some(piece));
    }
    let current = pieces.last().filter(|piece| !matches!(&***piece, ":" | "=")).cloned();
    let line = format!("cairn {}", words.join(" "));
    let mut command = with_path(dir, "bash");
    command.args(["--norc", "-c", CALL, "bash", &line, &current.unwrap_or_default()]).args(&pieces);
    let ran = Ran::of(&command.stdin(Stdio::null()).output().unwrap());
    assert_eq!((ran.code, &*ran.err), (0, ""), "{words:?}: {ran:?}");
    ran.out.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Returns the completions that are no options.
fn named(dir: &Dir, words: &[&str]) -> Vec<String> {
    completed(dir, words).into_iter().filter(|word| !word.starts_with('-')).collect()
}

fn served() -> (Dir, Serve) {
    let dir = Dir::new();
    dir.write("home.toml", PAIR);
    let serve = dir.serve(&["home.toml"]);
    (dir, serve)
}

#[test]
fn completion_knows_exports_devices_members_and_disks_of_running_graph() {
    let (dir, _serve) = served();
    assert_eq!(named(&dir, &["locate", ""]), ["vol", "all"]);
    assert_eq!(named(&dir, &["attach", "v"]), ["vol"]);
    assert_eq!(named(&dir, &["locate", "home/"]), ["home/vol", "home/all"]);
    assert_eq!(named(&dir, &["device", "scrub", ""]), ["pair"]);
    assert_eq!(named(&dir, &["device", "fail", ""]), ["pair/a", "pair/b"]);
    assert_eq!(named(&dir, &["device", "replace", "pair/"]), ["pair/a", "pair/b"]);
    assert_eq!(named(&dir, &["device", "resync", "home/b"]), ["home/b"]);
    assert_eq!(named(&dir, &["device", "insert", ""]), ["pair/"]);
    assert_eq!(named(&dir, &["device", "resize", ""]), ["a", "b"]);
    assert_eq!(named(&dir, &["status", "--at", ""]), ["home"]);
    assert_eq!(named(&dir, &["status", "--at=h"]), ["home"]);
    assert!(named(&dir, &["undo", ""]).starts_with(&["home".to_owned(), "home.toml".to_owned()]));
    assert!(named(&dir, &["key", "ls", ""]).is_empty(), "no device has key slots");
}

#[test]
fn completion_of_ambiguous_name_has_name_of_graph() {
    let (dir, _serve) = served();
    std::fs::write(dir.path("safe.key"), common::machine::noise(64, 1)).unwrap();
    dir.write("work.toml", WORK);
    let _work = dir.serve(&["work.toml"]);
    assert_eq!(named(&dir, &["status", "--at", ""]), ["home", "work"]);
    assert_eq!(named(&dir, &["locate", ""]), ["home/vol", "all", "work/vol", "moved"]);
    assert_eq!(named(&dir, &["locate", "--at", "work", ""]), ["vol", "moved"]);
    assert_eq!(named(&dir, &["locate", "work/v"]), ["work/vol"]);
    assert_eq!(named(&dir, &["key", "ls", ""]), ["safe"]);
    assert_eq!(named(&dir, &["job", "watch", ""]), ["moving", "1"]);
    assert_eq!(named(&dir, &["job", "cancel", "work/m"]), ["work/moving"]);
}

#[test]
fn completion_of_stop_names_graphs_of_daemon() {
    let dir = Dir::new();
    assert!(named(&dir, &["stop", ""]).is_empty());
    let _daemon = Daemon::start(&dir);
    dir.write("home.toml", PAIR);
    dir.text(&["apply", "home.toml"]);
    assert_eq!(named(&dir, &["stop", ""]), ["home"]);
    dir.text(&["stop", "home"]);
    assert!(named(&dir, &["stop", ""]).is_empty());
}

#[test]
fn completion_knows_verbs_options_kinds_sources_and_pages() {
    let dir = Dir::new();
    let help = dir.text(&["--help"]);
    let (_, verbs) = help.split_once("Commands:\n").unwrap();
    let verbs = verbs.split("\n\n").next().unwrap().lines().filter(|line| !line.starts_with("   "));
    let verbs: Vec<_> = verbs.map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(verbs.len() > 25, "{help}");
    assert_eq!(named(&dir, &[""]), verbs);

    let flags = completed(&dir, &["serve", "--"]);
    for flag in
        dir.text(&["serve", "--help"]).split_whitespace().filter(|word| word.starts_with("--"))
    {
        let flag = flag.trim_end_matches([';', ',', '.']);
        assert!(flags.iter().any(|known| known == flag), "{flag}: {flags:?}");
    }
    assert_eq!(completed(&dir, &["-o", ""]), ["text", "json"]);
    assert_eq!(named(&dir, &["help", "ki"]), ["kinds"]);
    assert_eq!(named(&dir, &["kinds", "m"]), ["memory", "mirror", "migrate"]);
    assert_eq!(
        named(&dir, &["key", "add", "safe", "--key", ""]),
        ["ask", "file:", "fd:", "credential:"]
    );
    assert_eq!(named(&dir, &["attach", "x", "--by", ""]), ["fuse", "nbd"]);
    assert_eq!(named(&dir, &["man", "--page", "cairn-sp"]), ["cairn-spec.5"]);

    dir.write("one.toml", "");
    dir.write("two words.toml", "");
    dir.write("safe.key", "");
    assert_eq!(completed(&dir, &["validate", "o"]), ["one.toml"]);
    assert_eq!(completed(&dir, &["validate", "t"]), ["two\\ words.toml"]);
    assert!(!completed(&dir, &["validate", ""]).contains(&"safe.key".to_owned()));
    // Readline keeps everything up to the last colon or equals sign.
    assert_eq!(completed(&dir, &["key", "add", "x", "--new-key", "file:s"]), ["safe.key"]);
    assert_eq!(completed(&dir, &["import", "--key", "safe=fi"]), ["file:"]);
    assert_eq!(completed(&dir, &["import", "--key", "safe=file:s"]), ["safe.key"]);
    assert_eq!(completed(&dir, &["key", "add", "x", "--key=cr"]), ["credential:"]);
}

/// A stopped server accepts connections and never answers.
#[test]
fn completion_ends_in_time_when_server_is_stopped() {
    let (dir, serve) = served();
    let second = Dir::new();
    second.write("far.toml", &PAIR.replace("home", "far").replace("vol", "far-vol"));
    let far =
        second.command(&["serve", "far.toml"]).env("XDG_RUNTIME_DIR", dir.path("run")).spawn();
    let mut far = far.unwrap();
    common::until("both graphs run", || named(&dir, &["locate", "far-"]) == ["far-vol"]);
    send(serve.pid(), "STOP");
    let begun = Instant::now();
    let found = named(&dir, &["locate", "far-"]);
    let took = begun.elapsed();
    send(serve.pid(), "CONT");
    far.kill().unwrap();
    far.wait().unwrap();
    // Without a limit the reply is awaited for ten seconds.
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(found, ["far-vol"], "the other graph answers");
}

#[test]
fn completion_prints_nothing_without_graphs_or_for_unknown_shell() {
    let dir = Dir::new();
    assert!(named(&dir, &["locate", ""]).is_empty());
    assert!(named(&dir, &["device", "fail", "x/"]).is_empty());
    let mut command = dir.command(&["--", "cairn", "locate", ""]);
    let ran = Ran::of(&command.env("CAIRN_COMPLETE", "nosuch").output().unwrap());
    assert_eq!((ran.code, &*ran.out, &*ran.err), (0, "", ""));
}

#[test]
fn completion_script_is_printed_for_each_shell() {
    let dir = Dir::new();
    for (shell, words) in [
        ("bash", "complete -o nosort -F _cairn cairn"),
        ("zsh", "#compdef cairn"),
        ("fish", "--command cairn"),
        ("elvish", "arg-completer[cairn]"),
        ("powershell", "-CommandName cairn"),
    ] {
        let script = dir.text(&["completions", shell]);
        assert!(script.contains(words) && script.contains("CAIRN_COMPLETE"), "{shell}: {script}");
    }
}

/// Types into a bash at a terminal, with the script where the package bash-completion loads scripts from.
#[test]
fn bash_completes_commands_while_they_are_typed() {
    let (dir, _serve) = served();
    let scripts = dir.path("share/bash-completion/completions");
    std::fs::create_dir_all(&scripts).unwrap();
    std::fs::write(scripts.join("cairn"), dir.text(&["completions", "bash"])).unwrap();
    let mut command = with_path(&dir, "script");
    command.args(["--quiet", "--command", "bash --norc --noprofile -i", "/dev/null"]);
    command.env("TERM", "dumb").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bash = command.spawn().unwrap();
    let typed = "source share/bash-completion/completions/cairn\n\
                 cairn loc\tv\t--at h\t0 >typed\n\
                 cairn device re\t\tsy\tpair/\t\ta --dry-\t >>typed\nexit\n";
    bash.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let ran = Ran::of(&bash.wait_with_output().unwrap());
    let result = std::fs::read_to_string(dir.path("typed")).unwrap();
    assert!(
        result.starts_with("vol 0 B -> part -> pair (mirrored) -> a: 1 MiB"),
        "{result}\n{ran:?}"
    );
    assert!(result.contains("would resync"), "{result}\n{ran:?}");
}
