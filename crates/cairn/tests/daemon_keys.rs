//! Keys that a worker can read only once, from a descriptor or a terminal: the daemon hands them to the next worker.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs;
use std::io::Read;

use common::keeper::Daemon;
use common::memory::{holds, memory};
use common::{Dir, tool, until};

/// Makes a directory with the spec of a labelled crypt device whose key comes from `source`.
fn keyed(source: &str) -> Dir {
    let dir = Dir::new();
    dir.write(
        "home.toml",
        &format!(
            "name = \"home\"\n[disk]\n\
             a = {{ file = \"a.img\", size = \"16MiB\", create = true, label = true }}\n\
             [device]\nsafe = {{ kind = \"crypt\", on = \"a\", key = \"{source}\", \
             kdf_memory = \"8MiB\", kdf_passes = 1 }}\n[export]\nvol = {{ on = \"safe\" }}\n"
        ),
    );
    dir
}

#[test]
fn daemon_hands_one_shot_key_to_next_worker() {
    let dir = keyed("fd:5");
    let mut key = [0; 48];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut key).unwrap();
    // A newline at the end would not belong to the key.
    key[47] |= 1;
    fs::write(dir.path("key"), key).unwrap();
    let mut daemon = Daemon::start(&dir);
    let apply = |with: &str| {
        let line = format!("exec {} apply home.toml {with}", env!("CARGO_BIN_EXE_cairn"));
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", &line]).current_dir(&dir.0);
        bash.env("XDG_RUNTIME_DIR", dir.path("run")).stdin(std::process::Stdio::null());
        common::Ran::of(&bash.output().unwrap())
    };
    let ran = apply("5<key");
    assert_eq!(ran.code, 0, "{ran:?}");
    fs::remove_file(dir.path("key")).unwrap();
    let uri = format!("nbd+unix:///vol?socket={}", dir.path("run/cairn/home.sock").display());
    let io = |what: &str| {
        let ran = tool(&dir, "qemu-io", &["-f", "raw", &uri, "-c", what]);
        assert!(ran.code == 0 && !ran.out.contains("failed"), "{ran:?}");
    };
    io("write -P 7 0 64k");
    assert_eq!(daemon.graph("home").held, 2, "a listener, and the key");
    let nowhere = |pid: u32, what: &str| {
        for (n, piece) in key.chunks(16).enumerate() {
            let found = memory(pid).iter().any(|(_, bytes)| holds(bytes, piece));
            assert!(!found, "piece {n} of the passphrase is in the memory of {what}");
        }
    };
    nowhere(daemon.pid(), "the daemon");
    nowhere(daemon.worker("home"), "the first process");
    daemon.kill_worker("home");
    io("read -P 7 0 64k");
    nowhere(daemon.worker("home"), "the second process");
    // The key also survives the end of the daemon.
    daemon.kill();
    daemon.start_again(&[]);
    assert_eq!(daemon.graph("home").held, 2, "{}", daemon.log());
    daemon.kill_worker("home");
    io("read -P 7 0 64k");
    // A stop discards the key. The next start asks for it again, and refuses a wrong one.
    dir.text(&["stop", "home"]);
    fs::write(dir.path("wrong"), "hunter2").unwrap();
    let ran = apply("5<wrong");
    assert!(ran.code == 7 && ran.err.contains("no key slot opens"), "{ran:?}");
    let ran = apply("");
    assert!(ran.code == 7 && ran.err.contains("fd:5"), "{ran:?}");
    fs::write(dir.path("key"), key).unwrap();
    assert_eq!(apply("5<key").code, 0);
    io("read -P 7 0 64k");
    assert_eq!(daemon.stop(), 0);
    // The next daemon has the graph, but no source for its key.
    daemon.start_again(&[]);
    until("it says so", || daemon.log().contains("must be given to cairn apply"));
    let ran = dir.cairn(&["status"]);
    assert!(ran.code == 11 && ran.out.contains("cairn apply"), "{ran:?}");
    dir.text(&["stop", "home"]);
    assert_eq!(apply("5<key").code, 0);
    io("read -P 7 0 64k");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn start_without_terminal_reports_missing_key() {
    let dir = keyed("ask");
    let mut daemon = Daemon::start(&dir);
    let ran = dir.cairn(&["apply", "home.toml"]);
    assert!(ran.code == 7 && ran.err.contains("no terminal for the prompt"), "{ran:?}");
    assert!(daemon.view().unwrap().graphs.is_empty());
    assert_eq!(daemon.stop(), 0);
}
