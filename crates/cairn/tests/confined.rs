//! Confinement of processes: a worker runs behind a seccomp filter, an event program does not, and a server does not
//! write its pid file through a symbolic link.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};

use common::keeper::{Daemon, home, io, mirror};
use common::{Dir, until};

/// Returns the `NoNewPrivs` and `Seccomp` fields of the text in `/proc/PID/status`.
fn confinement(status: &str) -> (String, String) {
    let of = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim().to_owned()
    };
    (of("NoNewPrivs:"), of("Seccomp:"))
}

fn confinement_of(pid: u32) -> (String, String) {
    confinement(&std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap())
}

/// Makes a directory with the spec of a mirror, and an event program that saves its `/proc/self/status` at each event.
fn with_program() -> Dir {
    let dir = home();
    dir.write("home.toml", &mirror("home", "[events]\nrun = \"told\"\n"));
    let script = "#!/bin/sh\n{ pwd; echo \"$1 $CAIRN_GRAPH\"; cat /proc/self/status; } > told.new\nmv told.new told.txt\n";
    dir.write("told", script);
    std::fs::set_permissions(dir.path("told"), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn told(dir: &Dir) -> String {
    until("the program has run", || dir.path("told.txt").exists());
    std::fs::read_to_string(dir.path("told.txt")).unwrap()
}

#[test]
fn system_call_filter_confines_worker_but_not_event_program() {
    let dir = with_program();
    let daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let all = |pid: u32| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.map(|task| {
            let status = task.unwrap().path().join("status");
            confinement(&std::fs::read_to_string(status).unwrap())
        })
    };
    let filtered = ("1".to_owned(), "2".to_owned());
    assert!(all(daemon.worker("home")).all(|task| task == filtered));
    let unfiltered = confinement_of(daemon.pid());
    assert_eq!(unfiltered, confinement_of(std::process::id()));
    io(&dir, "home", "write -P 3 0 1M");
    dir.text(&["device", "fail", "pair/b", "--yes"]);
    let status = told(&dir);
    assert_eq!(confinement(&status), unfiltered, "{status}");
    assert!(status.starts_with(&format!("{}\nmember-failed home\n", dir.0.display())), "{status}");
    assert!(!daemon.log().contains("without a filter"), "{}", daemon.log());
}

#[test]
fn foreground_server_runs_without_system_call_filter() {
    let dir = with_program();
    let serve = dir.serve(&["home.toml"]);
    let unfiltered = confinement_of(std::process::id());
    assert_eq!(confinement_of(serve.pid()), unfiltered);
    dir.text(&["device", "fail", "pair/b", "--yes"]);
    assert_eq!(confinement(&told(&dir)), unfiltered);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn server_does_not_write_pid_file_through_symlink() {
    let dir = home();
    dir.write("precious", "bytes\n");
    symlink("precious", dir.path("pid")).unwrap();
    let ran = dir.cairn(&["serve", "home.toml", "--pidfile", "pid", "--run", "true"]);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("writing pid"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(dir.path("precious")).unwrap(), "bytes\n");
}
