//! The log of a server: events of devices and stages of the server, each with its level and graph.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use common::keeper::{Daemon, home};
use common::{Dir, Ran, until};
use serde_json::Value;

/// A graph in which writes to one member of a mirror, to a single disk, and flushes of another disk fail.
const FAULTY: &str = r#"
name = "faulty"
[disk]
a = { file = "a.img", size = "4MiB", create = true, label = true }
b = { file = "b.img", size = "4MiB", create = true, label = true }
c = { memory = "4MiB" }
d = { memory = "4MiB" }
e = { memory = "4MiB" }
[device]
bad = { kind = "error", on = "b", op = "write", after = 1, size = "64KiB" }
pair = { kind = "mirror", on = ["a", "bad"] }
full = { kind = "error", on = "c", op = "write", with = "nospace" }
lost = { kind = "error", on = "d", op = "flush" }
late = { kind = "error", on = "e", op = "read", when = "after", with = "corrupt" }
[export]
vol = { on = "pair" }
full-vol = { on = "full" }
lost-vol = { on = "lost" }
late-vol = { on = "late" }
"#;

/// Requests that fail in each of its devices.
const REQUESTS: &str = r#"
io() { uri="nbd+unix:///$1?socket=$unixsocket"; shift; qemu-io -f raw "$@" "$uri" >/dev/null 2>&1; }
io vol -c "write 0 4k" -c "write 0 4k" -c "write 0 4k"
for i in 1 2 3 4 5; do io full-vol -c "write 0 4k" -c "write 4k 4k"; done
io lost-vol -c "write 0 4k" -c flush
io late-vol -c "read 0 4k"
"#;

fn served(dir: &Dir, more: &[&str]) -> Ran {
    dir.write("faulty.toml", FAULTY);
    dir.cairn(&[&["serve", "faulty.toml", "--run", REQUESTS], more].concat())
}

#[test]
fn log_has_line_with_level_and_graph_for_failure_of_each_device() {
    let dir = Dir::new();
    let ran = served(&dir, &[]);
    let has = |line: &str| ran.err.lines().filter(|one| one.starts_with(line)).count();
    for line in [
        "error: faulty: bad: device-error: ",
        "error: faulty: pair/bad: member-failed: ",
        "error: faulty: full: device-full: ",
        "error: faulty: lost: flush-failed: ",
        "error: faulty: late: device-error: ",
    ] {
        // Failures of one kind in one device share a line.
        assert_eq!(has(line), 1, "{line}: {ran:?}");
    }
    assert!(has("up, Cairn") == 1, "{ran:?}");
    assert!(!ran.err.contains("io_uring"), "a detail is logged on request only: {ran:?}");
}

#[test]
fn json_log_has_device_and_event_of_each_failure() {
    let dir = Dir::new();
    let ran = served(&dir, &["--log", "json"]);
    let lines: Vec<Value> =
        ran.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(lines.iter().all(|line| line["graph"] == "faulty"), "{ran:?}");
    let find = |event: &str| {
        let found = lines.iter().find(|line| line["event"] == event);
        found.unwrap_or_else(|| panic!("no {event}: {ran:?}"))
    };
    let failed = find("member-failed");
    assert!(failed["device"] == "pair" && failed["member"] == "bad", "{failed}");
    let full = find("device-full");
    assert!(full["level"] == "error" && full["device"] == "full", "{full}");
    let begun = lines.iter().any(|line| {
        line["level"] == "info" && line["message"].as_str().unwrap().starts_with("up, Cairn")
    });
    assert!(begun, "{ran:?}");
}

#[test]
fn only_verbose_log_has_details() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "1M"]);
    let details = |more: &[&str]| {
        let serve = ["serve", "disk.img", "--run", "true", "--log", "json"];
        let ran = dir.cairn(&[&serve, more].concat());
        ran.err.lines().filter(|line| line.contains("\"level\":\"debug\"")).count()
    };
    assert_eq!((details(&[]), details(&["--verbose"])), (0, 1));
}

#[test]
fn daemon_log_has_start_and_end_of_daemon_and_graphs() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    dir.text(&["device", "fail", "home/b", "--yes"]);
    until("the event is in the log", || daemon.log().contains("member-failed"));
    let worker = daemon.worker("home");
    daemon.kill_worker("home");
    until("the graph is up again", || daemon.log().matches("home: up, process").count() == 2);
    dir.text(&["stop", "home"]);
    assert_eq!(daemon.stop(), 0);
    let log = daemon.log();
    let mut rest = log.as_str();
    for line in [
        "the daemon of Cairn",
        "the daemon is ready: 0 graphs",
        &format!("home: starting, process {worker}"),
        &format!("home: up, process {worker}"),
        "error: home: pair/b: member-failed: failed by a command",
        "warning: home: the worker ended after",
        "home: starting",
        "home: up",
        "home: stopping",
        "home: stopped",
        "the daemon ends",
    ] {
        let found = rest.find(line).unwrap_or_else(|| panic!("no {line:?} in order: {log}"));
        rest = &rest[found + line.len()..];
    }
}
