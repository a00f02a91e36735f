//! Commands and signals to a daemon that overlap: a restart during another restart, a stop during a restart, and a
//! hand-over with a graph that does not run. Programs that use an attached device must get no error.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Child, Command};
use std::time::Duration;

use common::keeper::Daemon;
use common::machine::{Background, Name, is_root, noise};
use common::{Dir, Ran, send, until};

/// Duration of each flush of the graph: long enough for a signal to arrive while the flush is in flight.
const FLUSH: Duration = Duration::from_millis(1500);

/// Pause of a test after the begin of a stop or a hand-over, long enough for the flush of the graph to begin.
const BEGUN: Duration = Duration::from_millis(400);

const LEN: usize = 1 << 20;

/// Makes a directory with the spec of a graph whose flushes take [`FLUSH`]. `label`: whether its disk has a label.
fn slow(label: bool) -> Dir {
    let dir = Dir::in_memory();
    let text = format!(
        "name = \"slow\"\n[disk]\n\
         d = {{ file = \"d.img\", size = \"32MiB\", create = true, label = {label} }}\n\
         [device]\nlate = {{ kind = \"delay\", on = \"d\", flush = \"{}ms\" }}\n\
         [export]\nvol = {{ on = \"late\" }}\n",
        FLUSH.as_millis()
    );
    dir.write("slow.toml", &text);
    dir
}

/// Starts a `cairn` command, and does not wait for its end.
fn begin(dir: &Dir, args: &[&str]) -> Child {
    let mut command = dir.command(args);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command.spawn().unwrap()
}

fn end(child: Child) -> Ran {
    Ran::of(&child.wait_with_output().unwrap())
}

/// Writes 1 MiB to an attached device, flushes it, and checks that a read returns the same bytes.
fn works(name: &Name<'_>, seed: u64) {
    let mut device = name.open();
    let (bytes, mut there) = (noise(LEN, seed), vec![0; LEN]);
    device.write_all(&bytes).and_then(|()| device.sync_all()).expect("it is written");
    device.seek(SeekFrom::Start(0)).unwrap();
    device.read_exact(&mut there).unwrap();
    assert!(there == bytes, "what was written is read");
}

#[test]
fn daemon_keeps_descriptors_when_restarts_overlap() {
    if !is_root() {
        return;
    }
    let dir = slow(true);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "slow.toml"]);
    let name = Name::new(&dir);
    name.attach("vol");
    for round in 0..2 {
        let old = daemon.worker("slow");
        let begun = daemon.log().matches("adopts worker process").count();
        send(daemon.pid(), "USR2");
        // The next daemon makes this one hand over, which begins with a flush.
        until("it is found", || daemon.log().matches("adopts worker process").count() > begun);
        std::thread::sleep(BEGUN);
        match round {
            0 => send(daemon.pid(), "USR2"),
            // In the other rounds the daemon is killed meanwhile.
            _ => {
                daemon.kill();
                daemon.start_again(&[]);
            }
        }
        until("another process is up", || {
            let view = daemon.view();
            let graph = view.and_then(|view| view.graphs.into_iter().next());
            graph.is_some_and(|graph| graph.phase == api::Phase::Up && graph.pid != Some(old))
        });
        works(&name, round);
        until("all is held", || daemon.graph("slow").held == 2);
    }
    name.detach_well();
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn restarted_daemon_keeps_descriptors_of_graph_without_worker() {
    if !is_root() {
        return;
    }
    let dir = slow(true);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "slow.toml"]);
    let name = Name::new(&dir);
    name.attach("vol");
    works(&name, 7);
    fs::rename(dir.path("d.img"), dir.path("away")).unwrap();
    send(daemon.worker("slow"), "KILL");
    until("it is missed", || daemon.graph("slow").problem.is_some());
    // The read waits, and succeeds in the end.
    let mut reader = Command::new("dd");
    reader.args([
        &format!("if={}", name.shown()),
        "of=/dev/null",
        "bs=4k",
        "count=1",
        "iflag=direct",
    ]);
    let mut reader = Background::start(&mut reader);
    // The daemon does not leave while it holds descriptors that it cannot hand to a worker.
    let ran = dir.cairn(&["daemon", "--state", "state", "--replace"]);
    assert!(ran.code == 5 && ran.err.contains("slow does not run"), "{ran:?}");
    assert_eq!(daemon.graph("slow").held, 2);
    let begun = daemon.log().matches("the daemon restarts").count();
    send(daemon.pid(), "USR2");
    until("it begins anew", || daemon.log().matches("the daemon restarts").count() > begun);
    daemon.settled();
    assert_eq!(daemon.graph("slow").held, 2, "{}", daemon.log());
    fs::rename(dir.path("away"), dir.path("d.img")).unwrap();
    send(daemon.pid(), "HUP");
    daemon.worker("slow");
    assert_eq!(reader.end(), Some(0), "{}", daemon.log());
    works(&name, 8);
    name.detach_well();
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn stop_flushes_and_closes_graph_during_worker_restart() {
    if !is_root() {
        return;
    }
    let dir = slow(true);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "slow.toml"]);
    let name = Name::new(&dir);
    name.attach("vol");
    let bytes = noise(LEN, 3);
    // The bytes are only in the page cache.
    fs::File::options().write(true).open(name.path()).unwrap().write_all(&bytes).unwrap();
    send(daemon.worker("slow"), "USR2");
    std::thread::sleep(BEGUN);
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
    assert!(name.is_gone(), "{}", daemon.log());
    let disk = fs::read(dir.path("d.img")).unwrap();
    assert!(disk[meta::AREA_BYTES as usize..].starts_with(&bytes), "all of it was flushed");
}

#[test]
fn worker_finishes_stop_despite_restart_signal_and_daemon_stop() {
    let dir = slow(true);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "slow.toml"]);
    // Another daemon would find the worker and send it SIGUSR1, which must not shorten the stop.
    let stop = begin(&dir, &["stop", "slow"]);
    until("it stops", || daemon.graph("slow").phase == api::Phase::Stopping);
    send(daemon.graph("slow").pid.unwrap(), "USR1");
    let ran = end(stop);
    assert!(
        ran.code == 0 && ran.out.contains("any machine may open its disks"),
        "{ran:?} {}",
        daemon.log()
    );
    // A stop of the daemon does not count as a second signal to a graph that is stopping.
    dir.text(&["apply", "slow.toml"]);
    let stop = begin(&dir, &["stop", "slow"]);
    until("it stops", || daemon.graph("slow").phase == api::Phase::Stopping);
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
    let ran = end(stop);
    assert_eq!(ran.code, 0, "{ran:?} {}", daemon.log());
}

#[test]
fn daemon_keeps_running_when_replacement_fails() {
    let dir = slow(true);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "slow.toml"]);
    let replace = |args: &[&str]| dir.cairn(&[&["daemon", "--replace"], args].concat());
    let ran = replace(&["--state", "state", "--metrics", "0.0.0.0:9797"]);
    assert!(ran.code == 2 && ran.err.contains("loopback"), "{ran:?}");
    let ran = replace(&["--state", "other"]);
    let named = ran.err.contains(&dir.path("state").display().to_string());
    assert!(ran.code == 5 && named && ran.err.contains("Next: --state"), "{ran:?}");
    // The daemon still runs, and keeps its graphs.
    daemon.kill_worker("slow");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn apply_warns_when_daemon_record_cannot_be_written() {
    let dir = slow(false);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "slow.toml"]);
    let text = fs::read_to_string(dir.path("slow.toml")).unwrap();
    dir.write("more.toml", &format!("{text}more = {{ on = \"late\", read_only = true }}\n"));
    let apply = begin(&dir, &["apply", "more.toml"]);
    let file = daemon.file("slow");
    until("it is under way", || {
        fs::read(&file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("more"))
    });
    let in_the_way = file.with_file_name("graph.new");
    fs::create_dir(&in_the_way).unwrap();
    let ran = end(apply);
    let told = ran.err.contains("was not written") && ran.err.contains("apply the spec again");
    assert!(ran.code == 0 && told, "{ran:?}");
    fs::remove_dir(&in_the_way).unwrap();
    daemon.kill_worker("slow");
    assert!(
        daemon.log().contains("no label shows whether the change was complete"),
        "{}",
        daemon.log()
    );
    dir.text(&["apply", "more.toml"]);
    daemon.kill_worker("slow");
    let ls = dir.text(&["ls", "--at", "slow"]);
    assert!(ls.contains("more"), "{ls}");
    assert_eq!(daemon.stop(), 0);
}
