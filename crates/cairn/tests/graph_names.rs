//! The choice of a running graph by its name, and the messages of commands that cannot choose or find one.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use api::{EventLine, GraphView, Phase, Status};
use common::keeper::{Daemon, mirror};
use common::{Dir, PAIR, Ran, until};

/// Returns a directory in which the graphs `home` and `disk.img` run.
fn two() -> (Dir, common::Serve, common::Serve) {
    let dir = Dir::new();
    dir.write("pair.toml", PAIR);
    dir.text(&["create", "disk.img", "1M"]);
    let (one, two) = (dir.serve(&["pair.toml"]), dir.serve(&["disk.img"]));
    (dir, one, two)
}

#[test]
fn status_top_events_graph_show_and_ls_select_graph_by_name() {
    let (dir, _one, _two) = two();
    let status: Vec<Status> = dir.json(0, &["status", "home"]);
    assert_eq!(status.iter().map(|status| &*status.graph).collect::<Vec<_>>(), ["home"]);
    let listed: Vec<GraphView> = dir.json(0, &["ls", "disk.img"]);
    assert_eq!(listed.iter().map(|graph| &*graph.name).collect::<Vec<_>>(), ["disk.img"]);
    let graph: GraphView = dir.json(0, &["graph", "home"]);
    assert_eq!(graph.name, "home");
    assert!(dir.text(&["show", "home"]).contains("kind = \"mirror\""));
    assert!(dir.text(&["top", "home", "--once", "--interval", "100ms"]).contains("mirror"));
    assert_eq!(dir.text(&["job", "ls", "home"]), "no job is in progress.\n");
    dir.text(&["device", "fail", "home/b", "--yes"]);
    let event: EventLine = dir.json(0, &["events", "home"]);
    assert_eq!((&*event.graph, &*event.event), ("home", "member-failed"));
    assert_eq!(dir.text(&["events", "disk.img"]), "");
    // A name takes precedence over a file of that name.
    dir.write("home", "");
    assert_eq!(dir.cairn(&["status", "home"]).code, 10);
    assert_eq!(dir.cairn(&["status", "--at", "home"]).code, 10);
    assert_eq!(dir.cairn(&["status", "home", "--at", "home"]).code, 2);
}

#[test]
fn messages_about_choice_of_graph_list_names() {
    let (dir, _one, _two) = two();
    for args in [&["top", "--once"][..], &["events"], &["graph"], &["show"]] {
        let ran = dir.cairn(args);
        let list =
            "2 graphs are running. Next: choose a graph by one of\n  --at disk.img\n  --at home\n";
        assert!(ran.code == 2 && ran.err.ends_with(list), "{ran:?}");
    }
    for args in [&["status", "hame"][..], &["top", "hame"], &["graph", "hame"], &["ls", "hame"]] {
        let ran = dir.cairn(args);
        let words = "no running graph is called hame; running: disk.img, home";
        assert!(ran.code == 4 && ran.err.contains(words), "{ran:?}");
    }
    let ran = dir.cairn(&["locate", "nope", "0"]);
    let words = "no running graph has an export named nope; running: disk.img, home";
    assert!(ran.code == 4 && ran.err.contains(words), "{ran:?}");
}

#[test]
fn graphs_of_same_name_are_chosen_by_socket() {
    let dir = Dir::new();
    dir.write("pair.toml", PAIR);
    dir.write(
        "twin.toml",
        "name = \"home\"\n[disk]\nm = { memory = \"1MiB\" }\n[export]\nvol = { on = \"m\" }\n",
    );
    let _one = dir.serve(&["pair.toml"]);
    let two = dir.serve(&["twin.toml", "--listen", "unix:twin.sock"]);
    let ran = dir.cairn(&["show"]);
    let at = dir.path(&format!("run/cairn/control/home-{}.sock", two.pid()));
    assert!(ran.code == 2 && ran.err.contains(&format!("--at {}", at.display())), "{ran:?}");
}

#[test]
fn status_and_ls_succeed_under_idle_daemon() {
    let dir = Dir::new();
    let mut daemon = Daemon::start(&dir);
    for verb in ["status", "ls"] {
        let idle = "the daemon runs no graph. Next: cairn apply SPEC, or cairn import\n";
        assert_eq!(dir.text(&[verb]), idle);
        assert!(dir.json::<Vec<serde_json::Value>>(0, &[verb]).is_empty());
        // A named graph is asked for, and missing.
        let ran = dir.cairn(&[verb, "home"]);
        assert!(ran.code == 4 && ran.err.contains("no graph is running"), "{ran:?}");
    }
    assert_eq!(dir.cairn(&["top", "--once"]).code, 4);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn status_by_name_reports_kept_graph_without_worker() {
    let dir = Dir::new();
    let mut daemon = Daemon::start(&dir);
    for name in ["home", "more"] {
        dir.write(&format!("{name}.toml"), &mirror(name, ""));
        dir.text(&["apply", &format!("{name}.toml")]);
    }
    std::fs::rename(dir.path("more-a.img"), dir.path("away")).unwrap();
    daemon.kill_worker("home");
    common::send(daemon.worker("more"), "KILL");
    until("it fails", || {
        daemon.graph("more").problem.is_some_and(|it| it.message.contains("a of"))
    });
    let ran = dir.cairn(&["status", "more"]);
    assert!(ran.code == 11 && ran.out.starts_with("more   WAITING   "), "{ran:?}");
    assert!(!ran.out.contains("home"), "{ran:?}");
    let kept = dir.json::<Vec<Status>>(11, &["status", "--at", "more"]).remove(0).kept.unwrap();
    assert!(matches!(kept.phase, Phase::Waiting | Phase::Starting), "{kept:?}");
    let ran = dir.cairn(&["top", "more"]);
    let words = "the daemon keeps more, but its worker does not run";
    assert!(ran.code == 11 && ran.err.contains(words), "{ran:?}");
    assert_eq!(dir.text(&["status", "home"]).split(' ').next(), Some("home"));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn device_remove_asks_and_wait_joins_running_resync_and_scrub() {
    let dir = Dir::new();
    // So slow that the copy and the scrub still run when the commands wait for them.
    let slow =
        mirror("home", "").replace("kind = \"mirror\"", "kind = \"mirror\", speed = \"64MiB\"");
    assert!(slow.contains("speed"));
    dir.write("home.toml", &slow.replace("16MiB", "256MiB"));
    let serve = dir.serve(&["home.toml"]);
    dir.text(&["create", "c.img", "256M"]);
    // The member is copied completely.
    dir.text(&["device", "insert", "home/c", "c.img"]);
    // The second one finds the copy at its end.
    for _ in 0..2 {
        let ran = dir.cairn(&["device", "resync", "home/c", "--wait"]);
        assert_eq!((ran.code, &*ran.out), (0, "pair/c  in sync\n"), "{ran:?}");
    }
    let ran = dir.cairn(&["device", "resync", "home/c"]);
    assert!(ran.code == 5 && ran.err.contains("is in sync already"), "{ran:?}");

    let ran = dir.cairn(&["device", "remove", "home/c"]);
    let words = "no terminal to ask for a confirmation. Next: add --yes";
    assert!(ran.code == 2 && ran.err.contains(words), "{ran:?}");
    assert!(dir.text(&["graph"]).contains("c "));
    assert!(dir.text(&["device", "remove", "home/c", "--dry-run"]).contains("would"));
    dir.text(&["device", "remove", "home/c", "--yes"]);
    assert!(!dir.text(&["graph"]).contains("c "));
    dir.text(&["device", "scrub", "pair"]);
    let ran = dir.cairn(&["device", "scrub", "pair", "--wait"]);
    assert!(ran.code == 0 && ran.out.contains("copies alike"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
}

/// The stop waits for the write in flight, which a delay device holds.
#[test]
fn apply_to_stopping_graph_is_refused_at_once() {
    let dir = Dir::new();
    let spec = "name = \"home\"\n[disk]\nm = { memory = \"1MiB\" }\n[device]\n\
                slow = { kind = \"delay\", on = \"m\", write = \"6s\" }\n[export]\nvol = { on = \"slow\" }\n";
    dir.write("home.toml", spec);
    let serve = dir.serve(&["home.toml"]);
    let mut writes = std::process::Command::new("qemu-io");
    writes.args(["-f", "raw", serve.uri(), "-c", "write 0 4k"]).current_dir(&dir.0);
    let mut writes = writes.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let in_flight = || dir.text(&["-o", "json", "top"]).contains("\"in_flight\": 1");
    until("the write is in flight", in_flight);
    serve.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    let ran: Ran = dir.cairn(&["apply", "home.toml"]);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let words = "home is stopping, and is not changed any more. Next: ";
    assert!(ran.code == 5 && ran.err.contains(words), "{ran:?}");
    assert_eq!(serve.end().code, 0);
    writes.wait().unwrap();
}
