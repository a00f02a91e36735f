//! Kills, hangs and replacements of a worker or its daemon: the errors and pauses that clients see.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::keeper::Daemon;
use common::load::Load;
use common::machine::{Name, is_root, noise};
use common::manager::Manager;
use common::{Dir, send, tool, until};

/// Number of times that a test kills the worker of a graph under load.
const KILLS: usize = 9;

/// The longest time that a client may wait for a reply after a kill of the worker, and at a planned restart.
const PAUSE_AFTER_KILL: Duration = Duration::from_secs(5);
const PAUSE_PLANNED: Duration = Duration::from_secs(2);

/// Locks a mutex so that the tests of this file run one after the other, because each test measures times.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a directory with two specs: crypt over a labelled mirror (`home.toml`), and a single disk (`plain.toml`).
fn graphs() -> Dir {
    let dir = Dir::in_memory();
    fs::write(dir.path("key"), noise(64, 7)).unwrap();
    dir.write(
        "home.toml",
        "name = \"home\"\n[disk]\n\
         a = { file = \"a.img\", size = \"256MiB\", create = true, label = true }\n\
         b = { file = \"b.img\", size = \"256MiB\", create = true, label = true }\n\
         [device]\npair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
         safe = { kind = \"crypt\", on = \"pair\", plain = true, key = \"file:key\" }\n\
         [export]\nvol = { on = \"safe\" }\n",
    );
    dir.write(
        "plain.toml",
        "name = \"plain\"\n[disk]\nd = { file = \"d.img\", size = \"64MiB\", create = true }\n\
         [export]\nvol = { on = \"d\" }\n",
    );
    dir
}

/// Writes the spec `above.toml`: its disk is the NBD export of the graph `plain`.
fn write_above(dir: &Dir) {
    let socket = dir.path("run/cairn/plain.sock").display().to_string();
    let above = format!(
        "name = \"above\"\n[disk]\nn = {{ nbd = \"nbd+unix:///vol?socket={socket}\" }}\n\
         [export]\nvol = {{ on = \"n\" }}\n"
    );
    dir.write("above.toml", &above);
}

/// Replaces the worker of the graph `name`, and waits for the next worker. `round` selects one of three ways.
fn replace_in_turn(daemon: &mut Daemon<'_>, name: &str, round: usize) {
    let old = daemon.worker(name);
    match round % 3 {
        // As `systemctl reload`: the daemon executes its program again, which may be a new version.
        0 => send(daemon.pid(), "USR2"),
        // Another daemon takes its place.
        1 => daemon.start_again(&["--replace"]),
        // Only the worker is replaced.
        _ => send(old, "USR2"),
    }
    until("another process is up", || {
        let view = daemon.view();
        let graph = view.iter().flat_map(|view| &view.graphs).find(|graph| graph.name == name);
        graph.is_some_and(|graph| graph.phase == api::Phase::Up && graph.pid != Some(old))
    });
}

#[test]
fn attached_device_pauses_without_errors_during_kills() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = graphs();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    dir.text(&["apply", "plain.toml"]);
    let other = daemon.worker("plain");
    let name = Name::new(&dir);
    dir.text(&["attach", "vol", "--name", &name.name, "--at", "home"]);
    assert_eq!(daemon.graph("home").held, 2);

    let load = Load::start(&dir, &name.shown());
    let mut longest = Duration::ZERO;
    for round in 0..KILLS {
        std::thread::sleep(Duration::from_millis(1100));
        if round % 4 == 3 {
            // The daemon is killed first. Its workers live on.
            let before = daemon.worker("home");
            daemon.kill();
            std::thread::sleep(Duration::from_millis(200));
            daemon.start_again(&[]);
            assert_eq!(daemon.worker("home"), before);
            assert_eq!(daemon.graph("home").held, 2, "{}", daemon.log());
        }
        longest = longest.max(daemon.kill_worker("home"));
    }
    let pause = load.end();
    println!(
        "{KILLS} kills: longest pause {pause:?}, longest until the next one is up {longest:?}"
    );
    assert!(pause < PAUSE_AFTER_KILL, "{pause:?}");
    assert_eq!(daemon.worker("plain"), other, "a crash is one graph's");
    let next = format!("{} resumed", name.shown());
    let log = daemon.log();
    assert!(log.matches("  resumed").count() >= KILLS, "{next}: {log}");

    // A graph cannot stop while its device is in use. An unused device is detached by the stop.
    name.make_fs();
    let ran = dir.cairn(&["stop", "home"]);
    assert!(ran.code == 5 && ran.err.contains("is mounted on"), "{ran:?}");
    name.umount();
    dir.text(&["stop", "home"]);
    assert!(name.is_gone());
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn attached_device_survives_daemon_and_worker_kills_with_fdstore() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = graphs();
    let mut manager = Manager::new(&dir);
    let daemon = ["daemon", "--state", "state"];
    manager.begin(&daemon);
    dir.text(&["apply", "home.toml"]);
    let name = Name::new(&dir);
    name.attach("vol");
    let load = Load::start(&dir, &name.shown());
    let worker = || -> Option<u32> {
        let view =
            api::Client::new(dir.path("run/cairn/daemon.sock")).get(&api::routes::DAEMON).ok()?;
        view.graphs[0].pid.filter(|_| view.graphs[0].phase == api::Phase::Up)
    };
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1100));
        let old = worker().expect("it is up");
        manager.listen();
        let mut names = manager.names();
        names.sort();
        let mount = format!("home/attached/{}/vol/1048576", name.name);
        assert_eq!(names, [&*mount, "home/listener"]);
        send(old, "STOP");
        manager.kill();
        send(old, "KILL");
        until("it is gone", || !std::path::Path::new(&format!("/proc/{old}/fd/0")).exists());
        manager.begin(&daemon);
        until("another process is up", || worker().is_some_and(|pid| pid != old));
    }
    let pause = load.end();
    println!("3 kills of both: longest pause {pause:?}");
    assert!(pause < PAUSE_AFTER_KILL, "{pause:?}");
    dir.text(&["stop", "home"]);
    manager.listen();
    assert_eq!(manager.names(), [""; 0], "what is stopped is not held");
    assert!(name.is_gone());
    assert_eq!(manager.stop(), 0);
}

#[test]
fn attached_device_pauses_shorter_at_planned_restart_than_kill() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = graphs();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let name = Name::new(&dir);
    name.attach("vol");
    let load = Load::start(&dir, &name.shown());
    for round in 0..6 {
        std::thread::sleep(Duration::from_millis(1100));
        replace_in_turn(&mut daemon, "home", round);
    }
    let pause = load.end();
    println!("6 planned restarts: longest pause {pause:?}");
    assert!(pause < PAUSE_PLANNED, "{pause:?}");
    let log = daemon.log();
    assert_eq!(log.matches("has handed over").count(), 6, "{log}");
    assert!(!log.contains("crashed"), "{log}");
    // No resync is needed after a close in order.
    assert!(!log.contains("not closed in order"), "{log}");
    name.detach_well();
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn planned_worker_restart_keeps_nbd_clients_connected() {
    let _alone = alone();
    let dir = graphs();
    let mut daemon = Daemon::start(&dir);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    dir.write(
        "plain.toml",
        &format!(
            "name = \"plain\"\n[nbd]\nlisten = [\"unix:run/plain.sock\", \"tcp:127.0.0.1:{port}\"]\n\
             [disk]\nd = {{ file = \"d.img\", size = \"64MiB\", create = true }}\n\
             [export]\nvol = {{ on = \"d\" }}\n"
        ),
    );
    dir.text(&["apply", "plain.toml"]);
    let socket = dir.path("run/plain.sock").display().to_string();
    // Clients that give up at the first disconnect: one that is mostly idle, and two under load.
    let mut idle = Command::new("qemu-io");
    idle.args(["-f", "raw", &format!("nbd+unix:///vol?socket={socket}")]);
    let idle = idle.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut idle = idle.spawn().unwrap();
    let mut ask = |line: String| idle.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    let uris = [format!("nbd+unix:///vol?socket={socket}"), format!("nbd://127.0.0.1:{port}/vol")];
    for uri in uris {
        let load = Load::of_nbd(&dir, &uri);
        for round in 0..6 {
            ask(format!("write -P {} {}M 1M\n", round + 1, 40 + round));
            std::thread::sleep(Duration::from_millis(700));
            replace_in_turn(&mut daemon, "plain", round);
        }
        let pause = load.end();
        println!("6 planned restarts under {uri}: longest pause {pause:?}");
        assert!(pause < PAUSE_PLANNED, "{pause:?}");
    }
    (0..6).for_each(|round| ask(format!("read -P {} {}M 1M\n", round + 1, 40 + round)));
    ask("flush\nquit\n".to_owned());
    let ran = common::Ran::of(&idle.wait_with_output().unwrap());
    assert_eq!(ran.out.matches("wrote 1048576/1048576").count(), 12, "{ran:?}");
    assert_eq!(ran.out.matches("read 1048576/1048576").count(), 6, "{ran:?}");
    assert!(!ran.out.contains("failed") && !ran.err.contains("error"), "{ran:?}");
    let log = daemon.log();
    assert_eq!(log.matches("has handed over").count(), 12, "{log}");
    assert!(!log.contains("connection of") && !log.contains("crashed"), "{log}");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn nbd_clients_reconnect_after_worker_kills() {
    let _alone = alone();
    let dir = graphs();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "plain.toml"]);
    // Cairn's own NBD disk with qemu's client above it, and qemu's client beside it.
    let socket = dir.path("run/cairn/plain.sock").display().to_string();
    let above = format!(
        "name = \"above\"\n[disk]\nn = {{ nbd = \"nbd+unix:///vol?socket={socket}\" }}\n\
         [device]\nlow = {{ kind = \"partition\", on = \"n\", size = \"32MiB\" }}\n\
         [export]\nvol = {{ on = \"low\" }}\n"
    );
    dir.write("above.toml", &above);
    let serve = dir.serve(&["above.toml"]);
    let image = format!(
        "driver=nbd,server.type=unix,server.path={socket},export=vol,reconnect-delay=30,open-timeout=30"
    );
    let client = |args: &[&str]| {
        let mut qemu = Command::new("qemu-io");
        qemu.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        qemu.spawn().unwrap()
    };
    let mut beside = client(&["--image-opts", &image]);
    let mut through = client(&["-f", "raw", serve.uri()]);
    let mut longest = Duration::ZERO;
    for round in 0..12_u64 {
        let begun = Instant::now();
        for (qemu, from) in [(&mut beside, 40), (&mut through, 4)] {
            let line = format!("write -P {} {}M 1M\n", round + 1, from + round);
            qemu.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        }
        if round % 3 == 0 {
            longest = longest.max(daemon.kill_worker("plain"));
        } else if round % 3 == 1 {
            send(daemon.worker("plain"), "USR2");
        }
        std::thread::sleep(Duration::from_millis(1100).saturating_sub(begun.elapsed()));
    }
    for (mut qemu, from) in [(beside, 40), (through, 4)] {
        let stdin = qemu.stdin.as_mut().unwrap();
        for round in 0..12 {
            let line = format!("read -P {} {}M 1M\n", round + 1, from + round);
            stdin.write_all(line.as_bytes()).unwrap();
        }
        stdin.write_all(b"flush\nquit\n").unwrap();
        let ran = common::Ran::of(&qemu.wait_with_output().unwrap());
        assert_eq!(ran.out.matches("wrote 1048576/1048576").count(), 12, "{ran:?}");
        assert_eq!(ran.out.matches("read 1048576/1048576").count(), 12, "{ran:?}");
        assert!(!ran.out.contains("failed") && !ran.err.contains("error"), "{ran:?}");
    }
    println!("longest until the next one is up: {longest:?}");
    assert!(longest < PAUSE_AFTER_KILL, "{longest:?}");
    assert_eq!(serve.stop().code, 0);
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn nbd_disk_reconnects_after_restart_of_nbd_server() {
    let _alone = alone();
    let dir = graphs();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "plain.toml"]);
    write_above(&dir);
    let serve = dir.serve(&["above.toml"]);
    let reconnects = || {
        let ran = dir.cairn(&["-o", "json", "status", "--at", "above"]);
        let above: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        above[0]["devices"][0]["counters"]["reconnects"].as_u64().unwrap()
    };
    for (what, limit) in [("KILL", PAUSE_AFTER_KILL), ("USR2", PAUSE_PLANNED)] {
        let load = Load::of_nbd(&dir, serve.uri());
        let before = reconnects();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(1100));
            let old = daemon.worker("plain");
            send(old, what);
            until("another process is up", || {
                let graph = daemon.graph("plain");
                graph.phase == api::Phase::Up && graph.pid != Some(old)
            });
        }
        let pause = load.end();
        let connected = reconnects() - before;
        println!("5 times SIG{what}: longest pause {pause:?}, {connected} times connected again");
        assert!(pause < limit, "{what}: {pause:?}");
        // A planned restart keeps the connection.
        let goes_on = connected == 0;
        assert_eq!(goes_on, what == "USR2", "{what}: {connected} times connected again");
    }
    assert_eq!(serve.stop().code, 0);
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn device_on_nbd_disk_survives_worker_and_server_kills() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = graphs();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "plain.toml"]);
    write_above(&dir);
    dir.text(&["apply", "above.toml"]);
    let name = Name::new(&dir);
    dir.text(&["attach", "vol", "--name", &name.name, "--at", "above"]);
    // A listener, a mount, and the unflushed writes.
    assert_eq!(daemon.graph("above").held, 3);
    let load = Load::with(
        &dir,
        &["--ioengine=libaio", "--direct=1", "--size=24M", &format!("--filename={}", name.shown())],
    );
    let mut longest = Duration::ZERO;
    for round in 0..9 {
        std::thread::sleep(Duration::from_millis(800));
        match round % 3 {
            0 => longest = longest.max(daemon.kill_worker("above")),
            1 => {
                send(daemon.worker("plain"), "KILL");
                longest = longest.max(daemon.kill_worker("above"));
            }
            _ => replace_in_turn(&mut daemon, "above", round / 3),
        }
    }
    let pause = load.end();
    println!("3 kills, 3 of both, 3 planned: longest pause {pause:?}, until it is up {longest:?}");
    assert!(pause < PAUSE_AFTER_KILL, "{pause:?}");
    assert_eq!(daemon.graph("above").held, 3, "{}", daemon.log());
    name.detach_well();
    dir.text(&["stop", "above"]);
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn planned_restart_refuses_to_hand_over_memory_disk() {
    let _alone = alone();
    let dir = Dir::new();
    dir.write(
        "fast.toml",
        "name = \"fast\"\n[disk]\nm = { memory = \"16MiB\" }\n[export]\nvol = { on = \"m\" }\n",
    );
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "fast.toml"]);
    let uri = format!("nbd+unix:///vol?socket={}", dir.path("run/cairn/fast.sock").display());
    let wrote = tool(&dir, "qemu-io", &["-f", "raw", &uri, "-c", "write -P 5 0 1M"]);
    assert_eq!(wrote.code, 0, "{wrote:?}");
    let before = daemon.worker("fast");
    daemon.start_again(&["--replace"]);
    until("it was asked", || daemon.log().contains("not replaced"));
    assert!(daemon.log().contains("only in the memory of this process"), "{}", daemon.log());
    assert_eq!(daemon.worker("fast"), before);
    let read = tool(&dir, "qemu-io", &["-f", "raw", &uri, "-c", "read -P 5 0 1M"]);
    assert!(read.code == 0 && !read.out.contains("failed"), "{read:?}");
    assert_eq!(daemon.stop(), 0);
}
