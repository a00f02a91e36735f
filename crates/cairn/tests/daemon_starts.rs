//! Starts of a graph by `cairn daemon`: the retries after a failed start, the failures after which the daemon does not
//! retry, and options that count for one start only.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs;

use api::Phase;
use common::keeper::{Daemon, home, io, mirror};
use common::{Dir, send, until};

#[test]
fn daemon_applies_trust_option_at_first_start_only() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    let spec = mirror("home", "").replace("[\"a\", \"b\"] }", "[\"a\", \"b\"], trust = \"a\" }");
    dir.write("home.toml", &spec);
    dir.text(&["apply", "home.toml"]);
    until("both are in sync", || dir.cairn(&["status"]).code == 0);
    io(&dir, "home", "write -P 1 0 1M");
    dir.text(&["device", "fail", "home/a", "--yes"]);
    io(&dir, "home", "write -P 2 0 1M");
    daemon.kill_worker("home");
    daemon.settled();
    until("both are in sync", || dir.cairn(&["status"]).code == 0);
    io(&dir, "home", "read -P 2 0 1M");
    // A spec with `trust` can still be applied while the graph runs.
    dir.write("home.toml", &format!("{spec}more = {{ on = \"pair\", read_only = true }}\n"));
    let ran = dir.cairn(&["apply", "home.toml"]);
    let note = "trust = a counts only at a start: pair is running";
    assert!(ran.code == 0 && ran.err.contains(note), "{ran:?}");
    // Applying the same spec again does not repeat the trust.
    dir.text(&["device", "fail", "home/a", "--yes"]);
    io(&dir, "home", "write -P 3 0 1M");
    send(daemon.worker("home"), "TERM");
    until("it is stopped", || daemon.graph("home").phase == Phase::Stopped);
    dir.text(&["apply", "home.toml"]);
    until("both are in sync", || dir.cairn(&["status"]).code == 0);
    io(&dir, "home", "read -P 3 0 1M");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn apply_never_recreates_missing_disk_of_graph() {
    let dir = Dir::new();
    fs::create_dir(dir.path("mounted")).unwrap();
    let spec = |path: &str| {
        format!(
            "name = \"raw\"\n[disk]\nd = {{ file = \"{path}\", size = \"4MiB\", create = true }}\n\
             [export]\nvol = {{ on = \"d\" }}\n"
        )
    };
    dir.write("raw.toml", &spec("mounted/d.img"));
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "raw.toml"]);
    send(daemon.worker("raw"), "TERM");
    until("it is stopped", || daemon.graph("raw").phase == Phase::Stopped);
    fs::rename(dir.path("mounted/d.img"), dir.path("d.img")).unwrap();
    let ran = dir.cairn(&["apply", "raw.toml"]);
    assert!(ran.code != 0 && !dir.path("mounted/d.img").exists(), "{ran:?}");
    // With another path it is another disk.
    dir.write("raw.toml", &spec("mounted/other.img"));
    dir.text(&["apply", "raw.toml"]);
    assert!(dir.path("mounted/other.img").exists());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn daemon_starts_graphs_without_waiting_for_failing_graph() {
    let dir = home();
    for name in ["more", "newer", "torn"] {
        dir.write(&format!("{name}.toml"), &mirror(name, ""));
    }
    let mut daemon = Daemon::start(&dir);
    for name in ["home", "more", "newer", "torn"] {
        dir.text(&["apply", &format!("{name}.toml")]);
    }
    assert_eq!(daemon.stop(), 0);
    fs::rename(dir.path("more-a.img"), dir.path("away")).unwrap();
    let newer = fs::read_to_string(daemon.file("newer")).unwrap();
    fs::write(daemon.file("newer"), newer.replacen("state 1", "state 2", 1)).unwrap();
    let torn = fs::read(daemon.file("torn")).unwrap();
    fs::write(daemon.file("torn"), &torn[..torn.len() / 2]).unwrap();
    fs::create_dir(dir.path("state/no-graph")).unwrap();

    let mut daemon = Daemon::start(&dir);
    io(&dir, "home", "write -P 1 0 4k");
    let ran = dir.cairn(&["status"]);
    assert_eq!(ran.code, 11, "{ran:?}");
    let line = |name: &str| {
        let mut lines = ran.out.lines().filter(|line| line.starts_with(&format!("{name}   ")));
        lines.next().unwrap_or_else(|| panic!("{name}: {ran:?}")).to_owned()
    };
    assert!(line("home").contains("ok"));
    assert!(
        line("more").contains("WAITING") && line("more").contains("a of \"more\" not found"),
        "{ran:?}"
    );
    for args in [&["top", "--at", "more"][..], &["job", "ls", "--at", "more"], &["undo", "more"]] {
        let ran = dir.cairn(args);
        let told = ran.err.contains("the daemon keeps more, but its worker does not run");
        assert!(ran.code == 11 && told && ran.err.contains("a of \"more\" not found"), "{ran:?}");
    }
    assert!(line("newer").contains("version 2"), "{ran:?}");
    let torn = line("torn");
    assert!(torn.contains("the record has ") && torn.contains(" of its "), "{ran:?}");
    // The graph starts by itself as soon as its disk is back.
    fs::rename(dir.path("away"), dir.path("more-a.img")).unwrap();
    until("more is up", || daemon.graph("more").phase == Phase::Up);
    // The message names the process that holds the disk.
    let ran = dir.cairn(&["info", "home-a.img"]);
    let holder = format!("process {} (cairn)", daemon.worker("home"));
    assert!(ran.out.contains(&holder), "{ran:?}");
    // A corrected file is noticed when SIGHUP makes the daemon look.
    fs::write(daemon.file("newer"), newer).unwrap();
    send(daemon.pid(), "HUP");
    until("newer is up", || daemon.graph("newer").phase == Phase::Up);
    // A file beyond correction may be dropped, or its spec applied anew.
    dir.text(&["apply", "torn.toml"]);
    assert_eq!(dir.cairn(&["status"]).code, 0);
    assert_eq!(daemon.stop(), 0);
}

/// The labels stay marked as open, because `stop` cannot reach a worker that would close the graph.
#[test]
fn stop_reports_open_labels_when_worker_does_not_run() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let socket = dir.path("run/cairn/home.sock");
    assert!(socket.exists());
    fs::rename(dir.path("home-a.img"), dir.path("away")).unwrap();
    send(daemon.worker("home"), "KILL");
    until("it is missed", || daemon.graph("home").problem.is_some());
    let said = dir.text(&["stop", "home"]);
    assert!(
        said.contains("may show it as open on this machine. Next: cairn import home"),
        "{said}"
    );
    assert!(!socket.exists());
    fs::rename(dir.path("away"), dir.path("home-a.img")).unwrap();
    // The advice of the message works.
    dir.text(&["import", "home"]);
    let said = dir.text(&["stop", "home"]);
    assert!(said.contains("any machine may open its disks"), "{said}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn daemon_ends_retries_at_once_after_permanent_fault() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    io(&dir, "home", "write -P 5 0 1M");
    assert_eq!(daemon.stop(), 0);
    let whole = fs::read(dir.path("home-b.img")).unwrap();
    let mut damaged = whole.clone();
    for at in [64 << 10, 320 << 10] {
        damaged[at + 600] ^= 1;
        damaged[(15 << 20) + at + 600] ^= 1;
    }
    fs::write(dir.path("home-b.img"), damaged).unwrap();
    // While another disk is missing, the daemon goes on trying, because that disk may explain the damage.
    fs::rename(dir.path("home-a.img"), dir.path("away")).unwrap();
    let mut daemon = Daemon::start(&dir);
    until("it is tried again", || daemon.graph("home").starts > 2);
    assert_ne!(daemon.graph("home").phase, Phase::GivenUp);
    assert_eq!(daemon.stop(), 0);
    fs::rename(dir.path("away"), dir.path("home-a.img")).unwrap();
    let mut daemon = Daemon::start(&dir);
    let graph = daemon.graph("home");
    assert_eq!((graph.phase, graph.starts), (Phase::GivenUp, 1), "{}", daemon.log());
    let ran = dir.cairn(&["status"]);
    assert!(
        ran.out.starts_with("home   GIVEN UP   b: ") && ran.out.contains("next: fix the cause"),
        "{ran:?}"
    );
    fs::write(dir.path("home-b.img"), whole).unwrap();
    send(daemon.pid(), "HUP");
    until("it is up", || daemon.graph("home").phase == Phase::Up);
    io(&dir, "home", "read -P 5 0 1M");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn daemon_applies_degraded_option_at_each_start() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    io(&dir, "home", "write -P 5 0 1M");
    dir.text(&["stop", "home"]);
    // A disk is found under any name, so it must be moved to another directory.
    fs::create_dir(dir.path("away")).unwrap();
    fs::rename(dir.path("home-b.img"), dir.path("away/b.img")).unwrap();
    let ran = dir.cairn(&["import", "home"]);
    assert!(ran.code == 10 && ran.err.contains("--degraded"), "{ran:?}");
    assert!(!daemon.file("home").exists());
    let said = dir.text(&["import", "home", "--degraded"]);
    assert!(said.starts_with("home  up, degraded.  nbd+unix://"), "{said}");
    assert_eq!(dir.cairn(&["status"]).code, 10);
    daemon.kill_worker("home");
    io(&dir, "home", "read -P 5 0 1M");
    assert_eq!(daemon.stop(), 0);
    let mut daemon = Daemon::start(&dir);
    io(&dir, "home", "read -P 5 0 1M");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

/// A command for a graph that fails to start runs at once. It does not wait for the daemon's next start of the graph.
#[test]
fn daemon_runs_command_at_once_between_start_retries() {
    let dir = Dir::new();
    let names = ["home", "other", "third"];
    names.iter().for_each(|name| dir.write(&format!("{name}.toml"), &mirror(name, "")));
    let mut daemon = Daemon::start(&dir);
    for name in names {
        dir.text(&["apply", &format!("{name}.toml")]);
    }
    assert_eq!(daemon.stop(), 0);
    fs::create_dir(dir.path("away")).unwrap();
    for name in names {
        let disk = format!("{name}-b.img");
        fs::rename(dir.path(&disk), dir.path("away").join(disk)).unwrap();
    }
    let mut daemon = Daemon::start(&dir);
    // Refused with the reason, as if there had been no earlier try. The retries go on.
    let ran = dir.cairn(&["apply", "home.toml"]);
    assert!(ran.code == 10 && ran.err.contains("--degraded"), "{ran:?}");
    let starts = daemon.graph("home").starts;
    until("it is tried again", || daemon.graph("home").starts > starts);
    let said = dir.text(&["apply", "home.toml", "--degraded"]);
    assert!(said.starts_with("home  up, degraded.  nbd+unix://"), "{said}");
    // The missing member returns while its graph runs.
    let said = dir.cairn(&["status"]).out;
    let next = "bring member b back, and cairn apply the spec; or cairn device replace pair/b PATH";
    assert!(said.contains(&format!("  next: {next}\n")), "{said}");
    let ran = dir.cairn(&["device", "resync", "home/b"]);
    assert!(ran.err.ends_with(&format!("member b is absent. Next: {next}\n")), "{ran:?}");
    fs::rename(dir.path("away/home-b.img"), dir.path("home-b.img")).unwrap();
    dir.text(&["apply", "home.toml"]);
    until("in sync", || dir.cairn(&["status", "--at", "home"]).code == 0);
    until("the other is brought up", || {
        let ran = dir.cairn(&["import", "other", "--degraded"]);
        // A retry in progress holds the disks open for a moment.
        assert!(ran.code == 0 || !ran.err.contains("cannot be started now"), "{ran:?}");
        ran.code == 0
    });
    assert_eq!(daemon.graph("other").phase, Phase::Up);
    fs::rename(dir.path("away/other-b.img"), dir.path("other-b.img")).unwrap();
    dir.text(&["device", "replace", "pair/b", "other-b.img", "--at", "other"]);
    until("in sync", || dir.cairn(&["status", "--at", "other"]).code == 0);
    dir.text(&["stop", "third"]);
    assert!(!daemon.file("third").exists());
    io(&dir, "home", "write -P 5 0 1M");
    daemon.kill_worker("home");
    io(&dir, "home", "read -P 5 0 1M");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}
