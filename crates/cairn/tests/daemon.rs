//! `cairn daemon`: it starts, changes, stops and restarts graphs, and its workers survive its kill.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use api::{Applied, GraphView, KeptGraph, Phase, Status};
use common::keeper::{Daemon, home, io, mirror, uri};
use common::{Dir, send, until};
use serde_json::{Value, json};

#[test]
fn command_selects_graph_by_device_name() {
    let dir = Dir::new();
    let mut daemon = Daemon::start(&dir);
    for name in ["one", "two"] {
        dir.write(&format!("{name}.toml"), &mirror(name, ""));
        dir.text(&["apply", &format!("{name}.toml")]);
    }
    // Both graphs have a disk and a device of these names.
    let ran = dir.cairn(&["device", "scrub", "pair"]);
    assert!(
        ran.code == 2 && ran.err.contains("the name \"pair\" is ambiguous: one/pair, two/pair"),
        "{ran:?}"
    );
    assert!(dir.text(&["device", "scrub", "two/pair"]).contains("is being scrubbed"));
    until("that has ended", || !dir.text(&["status", "--at", "two"]).contains("scrubbing"));
    dir.text(&["device", "resize", "one/a", "32MiB"]);
    assert_eq!(fs::metadata(dir.path("one-a.img")).unwrap().len(), 32 << 20);
    dir.text(&["create", "c.img", "16M"]);
    dir.text(&["device", "insert", "two/c", "c.img", "--wait"]);
    dir.text(&["device", "fail", "two/c", "--yes"]);
    for (args, words) in [
        (&["device", "resize", "d", "1G"][..], "no running graph has a disk named d"),
        (&["job", "pause", "two/move"], "no running graph has a job named two/move"),
        (&["device", "resync", "three/c"], "no running graph has a member named three/c"),
        (&["attach", "nope"], "no running graph has an export named nope"),
        (&["locate", "nope", "0"], "no running graph has an export named nope"),
        (&["key", "ls", "safe"], "no running graph has a device named safe"),
        (&["key", "ls", "three/safe"], "no running graph has a device named three/safe"),
    ] {
        let ran = dir.cairn(args);
        assert!(ran.code == 4 && ran.err.contains(words), "{args:?}: {ran:?}");
    }
    dir.write("key", "correct horse battery staple");
    let crypt = "name = \"crypt\"\n[disk]\n\
                 d = { file = \"d.img\", size = \"16MiB\", create = true, label = true }\n[device]\n\
                 safe = { kind = \"crypt\", on = \"d\", key = \"file:key\", kdf_memory = \"1MiB\", kdf_passes = 1 }\n\
                 [export]\nvol = { on = \"safe\" }\n";
    dir.write("crypt.toml", crypt);
    dir.text(&["apply", "crypt.toml"]);
    for device in ["safe", "crypt/safe"] {
        let shown: Value = dir.json(0, &["key", "ls", device]);
        assert_eq!(
            (&shown["device"], shown["slots"].as_array().map(Vec::len)),
            (&json!("safe"), Some(1))
        );
    }
    assert!(dir.text(&["locate", "two/vol", "4096"]).starts_with("vol 4 KiB -> "));
    dir.write("three.toml", &mirror("three", ""));
    let ran = dir.cairn(&["diff", "three.toml"]);
    assert!(ran.code == 4 && ran.err.contains("is called three"), "{ran:?}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn daemon_starts_changes_and_stops_graph() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    assert!(dir.text(&["status"]).contains("cairn apply SPEC"));

    let looked = dir.text(&["apply", "home.toml", "--dry-run"]);
    assert!(looked.contains("would") && !dir.path("home-a.img").exists(), "{looked}");
    let kept: KeptGraph = dir.json(0, &["apply", "home.toml"]);
    assert_eq!((kept.phase, kept.starts, kept.held), (Phase::Up, 1, 1));
    let up = dir.text(&["ls"]);
    assert!(up.contains("home") && up.contains(&uri(&dir, "home")), "{up}");
    assert!(dir.text(&["show"]).contains("mirror"));
    io(&dir, "home", "write -P 7 0 1M");

    // A live change is kept too.
    dir.write("home.toml", &mirror("home", "again = { on = \"pair\", read_only = true }\n"));
    assert!(dir.text(&["diff", "home.toml"]).contains("would add"));
    let applied: Applied = dir.json(0, &["apply", "home.toml"]);
    assert_eq!(applied.changes[0].name, "again");
    daemon.kill_worker("home");
    let graph: GraphView = dir.json(0, &["graph"]);
    assert_eq!(graph.exports.len(), 2);
    io(&dir, "home", "read -P 7 0 1M");
    until("in sync", || dir.cairn(&["status"]).code == 0);
    let status: Vec<Status> = dir.json(0, &["status"]);
    assert_eq!(status[0].kept.as_ref().unwrap().starts, 2);

    // After a SIGTERM to its worker, the graph stays stopped until the next daemon starts or an order comes.
    send(daemon.worker("home"), "TERM");
    until("it is stopped", || daemon.graph("home").phase == Phase::Stopped);
    let next = "Next: cairn apply SPEC; or cairn stop home, and cairn import home\n";
    assert!(daemon.log().contains(next), "{}", daemon.log());
    let said = dir.cairn(&["status"]).out;
    assert!(
        said.contains("the next daemon starts the graph again")
            && said.contains("next: cairn apply SPEC"),
        "{said}"
    );
    dir.text(&["apply", "home.toml"]);
    io(&dir, "home", "read -P 7 0 1M");

    // The next daemon starts it again, unless it was stopped.
    assert_eq!(daemon.stop(), 0);
    assert!(dir.text(&["import"]).contains("would come up\n"), "the labels are closed");
    let mut daemon = Daemon::start(&dir);
    io(&dir, "home", "read -P 7 0 1M");
    let ran = dir.cairn(&["stop", "else"]);
    assert!(ran.code == 4 && ran.err.contains("the daemon keeps home"), "{ran:?}");
    assert!(dir.text(&["stop", "home", "--dry-run"]).contains("would stop home"));
    assert_eq!(daemon.graph("home").phase, Phase::Up);
    dir.text(&["stop", "home"]);
    assert!(!daemon.file("home").exists());
    let found = dir.text(&["import"]);
    assert!(found.contains("would come up\n") && !found.contains("open on"), "{found}");
    dir.text(&["import", "home"]);
    io(&dir, "home", "read -P 7 0 1M");
    daemon.kill_worker("home");
    io(&dir, "home", "read -P 7 0 1M");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn daemon_drops_graph_that_fails_first_start() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.write("bad.toml", "name = \"bad\"\n[export]\nvol = { on = \"nowhere\" }\n");
    let ran = dir.cairn(&["apply", "bad.toml"]);
    assert!(ran.code == 3 && ran.err.contains("bad.toml:3"), "{ran:?}");
    let serve = dir.serve(&["home.toml", "--listen", "unix:other.sock"]);
    dir.write("same.toml", &mirror("home", "").replace("name = \"home\"", "name = \"same\""));
    let ran = dir.cairn(&["apply", "same.toml"]);
    assert!(ran.code == 5 && ran.err.contains("home-a.img"), "{ran:?}");
    // A graph that is served in the foreground does not belong to the daemon.
    let ran = dir.cairn(&["stop", "home"]);
    assert!(ran.code == 4, "{ran:?}");
    assert_eq!(serve.stop().code, 0);
    dir.write(
        "key.toml",
        &mirror("key", "")
            .replace(
                "[device]\n",
                "[device]\ns = { kind = \"crypt\", on = \"pair\", key = \"ask\" }\n",
            )
            .replace("on = \"pair\" }\n", "on = \"s\" }\n"),
    );
    let ran = dir.cairn(&["apply", "key.toml"]);
    assert_eq!(ran.code, 7, "{ran:?}");
    assert!(daemon.view().unwrap().graphs.is_empty());
    assert!(!daemon.log().contains("starting the next worker"), "{}", daemon.log());
    let left = common::listing(&dir.path("state"));
    assert_eq!(left, [dir.path("state/lock").display().to_string()]);
    assert_eq!(daemon.stop(), 0);
}

/// The daemon cannot find a graph without labels by its disks, so it restarts the graph from the recorded spec.
#[test]
fn daemon_restarts_unlabelled_graph_from_recorded_spec() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "1M"]);
    let spec =
        "name = \"raw\"\n[disk]\nd = { file = \"disk.img\" }\n[export]\nvol = { on = \"d\" }\n";
    dir.write("raw.toml", spec);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "raw.toml"]);
    let said = dir.text(&["stop", "raw"]);
    assert_eq!(said, "raw  stopped, and its disks are free. Next: cairn apply raw.toml\n");
    dir.text(&["apply", "raw.toml"]);
    fs::rename(dir.path("disk.img"), dir.path("away")).unwrap();
    send(daemon.worker("raw"), "KILL");
    until("it is missed", || daemon.graph("raw").problem.is_some());
    let said = dir.text(&["stop", "raw"]);
    assert!(said.ends_with("without a worker. Next: cairn apply raw.toml\n"), "{said}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn second_daemon_refuses_state_directory_in_use() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let again = || {
        let mut command = dir.command(&["daemon", "--state", "state"]);
        common::Ran::of(&command.output().unwrap())
    };
    let ran = again();
    let pid = daemon.pid().to_string();
    assert!(ran.code == 5 && ran.err.contains(&pid) && ran.err.contains("--replace"), "{ran:?}");
    let ran = dir.cairn(&["daemon", "--state", "other"]);
    assert!(ran.code == 5 && ran.err.contains("another daemon already listens at"), "{ran:?}");
    // A daemon that does not answer at this address stays. The message says at which address it answers.
    fs::create_dir(dir.path("there")).unwrap();
    for more in [&[][..], &["--replace"]] {
        let begun = Instant::now();
        let mut command = dir.command(&[&["daemon", "--state", "state"], more].concat());
        let ran =
            common::Ran::of(&command.env("XDG_RUNTIME_DIR", dir.path("there")).output().unwrap());
        let run = dir.path("run");
        let there = format!("whose runtime directory is {}/cairn", run.display());
        let next = format!("Next: XDG_RUNTIME_DIR={}", run.display());
        let told = ran.err.contains(&there) && ran.err.contains(&next) && ran.err.contains(&pid);
        assert!(ran.code == 5 && told && !ran.err.contains("--replace"), "{ran:?}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{more:?} waited");
    }
    assert_eq!(daemon.graph("home").phase, Phase::Up);
    assert_eq!(daemon.stop(), 0);
    fs::set_permissions(dir.path("state"), fs::Permissions::from_mode(0o755)).unwrap();
    let ran = again();
    assert!(ran.code == 7 && ran.err.contains("755"), "{ran:?}");
    let mode = fs::metadata(daemon.file("home")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn commands_refuse_paths_that_are_not_utf8() {
    let dir = home();
    let odd = dir.0.join(OsStr::from_bytes(b"di\xffr"));
    fs::create_dir(&odd).unwrap();
    let refused = |args: &[&str], runtime: &Path| {
        let mut command = dir.command(args);
        command.current_dir(&odd).env("XDG_RUNTIME_DIR", runtime);
        let ran = common::Ran::of(&command.output().unwrap());
        let why = ran.err.contains("di\\xFFr") && ran.err.contains("is not UTF-8");
        assert!(
            ran.code == 2 && why && ran.err.contains("Next: rename that file"),
            "{args:?}: {ran:?}"
        );
    };
    let run = dir.path("run");
    refused(&["daemon", "--state", "state"], &run);
    refused(&["daemon"], &odd);
    let long = dir.path(&"x".repeat(100));
    fs::create_dir(&long).unwrap();
    let ran =
        common::Ran::of(&dir.command(&["daemon"]).env("XDG_RUNTIME_DIR", &long).output().unwrap());
    let told =
        ran.err.contains("more than 106") && ran.err.contains("Next: a shorter XDG_RUNTIME_DIR");
    assert!(ran.code == 2 && told, "{ran:?}");
    let _daemon = Daemon::start(&dir);
    refused(&["apply", "../home.toml"], &run);
    dir.text(&["apply", "home.toml"]);
    refused(&["apply", "../home.toml"], &run);
    refused(&["device", "insert", "home/pair", "c.img"], &run);
    refused(&["undo", "home"], &run);
    dir.text(&["stop", "home"]);
    refused(&["import", "home", "--directory", ".."], &run);
}

#[test]
fn workers_of_many_graphs_outlive_killed_daemon() {
    const GRAPHS: usize = 64;
    let dir = Dir::new();
    let mut daemon = Daemon::start(&dir);
    let name = |n: usize| format!("g{n}");
    for n in 0..GRAPHS {
        let name = name(n);
        dir.write(
            &format!("{name}.toml"),
            &format!(
                "name = \"{name}\"\n[disk]\n\
                 d = {{ file = \"{name}.img\", size = \"1MiB\", create = true }}\n\
                 [export]\nvol = {{ on = \"d\" }}\n"
            ),
        );
        dir.text(&["apply", &format!("{name}.toml")]);
    }
    let pids = |daemon: &Daemon| -> Vec<Option<u32>> {
        daemon.view().unwrap().graphs.iter().map(|graph| graph.pid).collect()
    };
    let before = pids(&daemon);
    assert_eq!(before.len(), GRAPHS);
    // If the daemon is killed, its workers go on, and the next daemon adopts them.
    daemon.kill();
    let ran = dir.cairn(&["stop", "g0"]);
    let next = ", still runs. Next: cairn daemon, then cairn stop g0\n";
    assert!(ran.code == 4 && ran.err.ends_with(next), "{ran:?}");
    for n in [0, GRAPHS - 1] {
        io(&dir, &name(n), "write -P 3 0 4k");
    }
    daemon.start_again(&[]);
    until("all are known", || pids(&daemon) == before);
    // A crash concerns one graph only.
    daemon.kill_worker("g7");
    let changed = pids(&daemon).iter().zip(&before).filter(|(now, then)| now != then).count();
    assert_eq!(changed, 1);
    io(&dir, "g7", "write -P 4 0 4k");
    assert_eq!(daemon.stop(), 0);
    // The graphs start at the same time.
    let mut daemon = Daemon::start(&dir);
    until("all are up", || {
        daemon.view().unwrap().graphs.iter().all(|graph| graph.phase == Phase::Up)
    });
    io(&dir, "g7", "read -P 4 0 4k");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn apply_is_atomic_if_worker_is_killed() {
    let dir = home();
    let c =
        "c = { file = \"home-c.img\", size = \"16MiB\", create = true, label = true }\n[device]";
    let three = mirror("home", "")
        .replace("[device]", c)
        .replace("[\"a\", \"b\"]", "[\"a\", \"b\", \"c\"]");
    dir.write("more.toml", &three);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    io(&dir, "home", "write -P 9 0 4M");
    let mut happened = 0;
    for round in 0..12_u64 {
        until("in sync", || dir.cairn(&["status"]).code == 0);
        let has_c = || {
            let graph: GraphView = dir.json(0, &["graph"]);
            graph.nodes.iter().any(|node| node.name == "c")
        };
        let before = has_c();
        let next = if before { "home.toml" } else { "more.toml" };
        let pid = daemon.worker("home");
        // The daemon delays the next start if a worker dies young again and again.
        std::thread::sleep(Duration::from_secs(1));
        let mut change = dir.command(&["apply", next]);
        change.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut change = change.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round * 6));
        send(pid, "KILL");
        change.wait().unwrap();
        until("it is up again", || {
            let graph = daemon.graph("home");
            assert!(graph.phase != Phase::GivenUp, "{round}: {}", daemon.log());
            graph.phase == Phase::Up && graph.pid != Some(pid)
        });
        io(&dir, "home", "read -P 9 0 4M");
        let after = has_c();
        happened += u32::from(after != before);
        if !after {
            // The label of the removed disk says so, and it would be refused as a new disk.
            let _ = fs::remove_file(dir.path("home-c.img"));
        }
    }
    println!("{happened} of 12 have happened");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

#[test]
fn daemon_replaces_hung_worker_after_watchdog_deadline() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let hung = daemon.worker("home");
    send(hung, "STOP");
    until("it is replaced", || {
        let graph = daemon.graph("home");
        graph.phase == Phase::Up && graph.pid != Some(hung)
    });
    assert!(daemon.log().contains("missed its deadline"), "{}", daemon.log());
    io(&dir, "home", "write -P 1 0 4k");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn daemon_metrics_cover_every_graph() {
    let dir = home();
    dir.write("down.toml", &mirror("down", ""));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let at = port.to_string();
    let mut daemon = Daemon::with(&dir, &["--metrics", &at]);
    for spec in ["home.toml", "down.toml"] {
        dir.text(&["apply", spec]);
    }
    io(&dir, "home", "write -P 1 0 1M");
    let ask = |request: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(port).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let get = || {
        let answer = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
        answer
    };
    let value = |answer: &str, line: &str| -> Option<f64> {
        answer.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
    };
    let ops = "cairn_device_ops_total{graph=\"home\",device=\"pair\",kind=\"mirror\",op=\"write\"}";
    assert!(value(&get(), ops).is_some_and(|n| n >= 1.0), "{}", get());
    let up = "cairn_daemon_graph_up{graph=\"down\"}";
    assert_eq!(value(&get(), up), Some(1.0));
    fs::rename(dir.path("down-a.img"), dir.path("away")).unwrap();
    send(daemon.worker("down"), "KILL");
    until("it is down", || value(&get(), up) == Some(0.0));
    assert!(value(&get(), ops).is_some());
    // Clients that send nothing, and a worker that does not answer: the figures of the others come all the same.
    let idle: Vec<_> = (0..160).map(|_| std::net::TcpStream::connect(port).unwrap()).collect();
    let home = daemon.worker("home");
    send(home, "STOP");
    let begin = Instant::now();
    let page = get();
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_eq!(value(&page, "cairn_daemon_graph_up{graph=\"home\"}"), Some(0.0));
    send(home, "CONT");
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    assert!(open < 100, "{open} descriptors are open beside {} idle clients", idle.len());
    until("it answers again", || {
        value(&get(), "cairn_daemon_graph_up{graph=\"home\"}") == Some(1.0)
    });
    let foreign = "GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert!(ask(foreign).starts_with("HTTP/1.1 403"), "{}", ask(foreign));
    assert_eq!(daemon.stop(), 0);
    let ran = dir.cairn(&["daemon", "--state", "other", "--metrics", "0.0.0.0:1"]);
    assert!(ran.code == 2 && ran.err.contains("127.0.0.1:1"), "{ran:?}");
}

#[test]
fn daemon_restarts_worker_while_all_its_descriptors_are_in_use() {
    const DESCRIPTORS: usize = 64;
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let (pid, limit) = (daemon.pid().to_string(), format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}"));
    let limited = Command::new("prlimit").args(["--pid", &pid, &limit]).status();
    assert!(limited.unwrap().success());
    let socket = dir.path("run/cairn/daemon.sock");
    let idle: Vec<_> = (0..60).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let open = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    until("all descriptors are in use", || open() >= DESCRIPTORS);
    let workers = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let killed = workers();
    send(killed.trim().parse().unwrap(), "KILL");
    until("another worker runs", || !workers().is_empty() && workers() != killed);
    drop(idle);
    until("it is up", || daemon.graph("home").phase == Phase::Up);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn daemon_stops_at_once_after_second_signal() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "16M"]);
    dir.write(
        "slow.toml",
        "name = \"slow\"\n[disk]\nd = { file = \"disk.img\" }\n\
         [device]\ns = { kind = \"delay\", on = \"d\", write = \"10min\" }\n\
         [export]\nvol = { on = \"s\" }\n",
    );
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "slow.toml"]);
    let mut io = std::process::Command::new("qemu-io");
    io.args(["-f", "raw", &uri(&dir, "slow"), "-c", "write 0 4k"]);
    io.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut io = io.spawn().unwrap();
    let is_on_its_way = || {
        let top: api::Top = dir.json(0, &["top"]);
        let counts = top.rows.iter().filter_map(|row| row.counts.as_ref());
        counts.into_iter().any(|counts| counts.in_flight > 0)
    };
    until("the write is on its way", is_on_its_way);
    // The worker gets both signals late, and must count them as two.
    let worker = daemon.worker("slow");
    send(worker, "STOP");
    send(daemon.pid(), "TERM");
    until("it stops", || daemon.graph("slow").phase == Phase::Stopping);
    let begun = std::time::Instant::now();
    let goes_on = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        send(worker, "CONT");
    });
    assert_eq!(daemon.stop(), 12, "{}", daemon.log());
    goes_on.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(daemon.log().contains("second signal"), "{}", daemon.log());
    io.wait().unwrap();
}

#[test]
fn unit_files_pass_systemd_analyze() {
    let dir = Dir::new();
    // The program is not installed on the machine of the test. The names are those of instances.
    let units = [
        ("cairn.service", include_str!("../../../packaging/cairn.service")),
        ("cairn@home.service", include_str!("../../../packaging/cairn@.service")),
        ("cairn@home.socket", include_str!("../../../packaging/cairn@.socket")),
    ];
    let paths = units.map(|(name, unit)| {
        dir.write(name, &unit.replace("/usr/bin/cairn", "/bin/true"));
        dir.path(name)
    });
    let mut verify = std::process::Command::new("systemd-analyze");
    match verify.arg("verify").args(&paths).output() {
        Ok(output) => assert!(output.status.success(), "{:?}", common::Ran::of(&output)),
        Err(error) => eprintln!("passed over: systemd-analyze: {error}"),
    }
}

#[test]
fn units_have_equal_restrictions() {
    let restrictions = |unit: &'static str| {
        let begin = unit.find("# To free memory").expect("restrictions begin there");
        &unit[begin..unit.find("[Install]").expect("a unit can be enabled")]
    };
    let daemon = restrictions(include_str!("../../../packaging/cairn.service"));
    assert_eq!(daemon, restrictions(include_str!("../../../packaging/cairn@.service")));
}

#[test]
fn daemon_json_log_has_one_object_per_line() {
    let dir = home();
    let mut daemon = Daemon::with(&dir, &["--log", "json"]);
    dir.text(&["apply", "home.toml"]);
    daemon.kill_worker("home");
    dir.write("bad.toml", "name = \"bad\"\n[export]\nvol = { on = \"nowhere\" }\n");
    assert_eq!(dir.cairn(&["apply", "bad.toml"]).code, 3);
    assert_eq!(daemon.stop(), 0);
    let log = daemon.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let has = |key: &str, value: &str, words: &str| {
        lines.iter().any(|line| {
            line[key] == value && line["message"].as_str().is_some_and(|said| said.contains(words))
        })
    };
    assert!(has("level", "warning", "the worker ended after"), "{log}");
    assert!(
        has("graph", "bad", "the spec has faults") && has("level", "error", "nowhere"),
        "{log}"
    );
}

#[test]
fn daemon_never_stores_key_that_worker_reads_at_start() {
    let dir = home();
    dir.write("key", "correct horse battery staple");
    let safe = "s = { kind = \"crypt\", on = \"pair\", key = \"file:key\", kdf_memory = \"1MiB\", \
                kdf_passes = 1 }\n[export]";
    let spec = mirror("home", "")
        .replace("[export]", safe)
        .replace("vol = { on = \"pair\" }", "vol = { on = \"s\" }");
    dir.write("home.toml", &spec);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    io(&dir, "home", "write -P 5 0 1M");
    assert!(!fs::read_to_string(daemon.file("home")).unwrap().contains("horse"));
    daemon.kill_worker("home");
    dir.text(&["stop", "home"]);
    let ran = dir.cairn(&["import", "home"]);
    assert!(ran.code == 7 && ran.err.contains("--key s=file:PATH"), "{ran:?}");
    dir.text(&["import", "home", "--key", "s=file:key"]);
    daemon.kill_worker("home");
    io(&dir, "home", "read -P 5 0 1M");
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

/// A restarted worker keeps live changes that no spec contains: a mirror member that a command replaced, and a running
/// decryption after the crypt device was removed from the spec.
#[test]
fn daemon_records_live_changes_that_no_spec_contains() {
    let dir = home();
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    io(&dir, "home", "write -P 7 0 1M");
    fs::File::create(dir.path("new.img")).unwrap().set_len(16 << 20).unwrap();
    dir.text(&["device", "replace", "home/b", "new.img"]);
    until("in sync", || dir.cairn(&["status"]).code == 0);
    fs::remove_file(dir.path("home-b.img")).unwrap();
    daemon.kill_worker("home");
    io(&dir, "home", "read -P 7 0 1M");
    until("in sync", || dir.cairn(&["status"]).code == 0);
    assert!(dir.text(&["show"]).contains("new.img"));
    dir.text(&["stop", "home"]);

    dir.write("key", "correct horse battery staple");
    let disk = "[disk]\na = { file = \"s.img\", size = \"64MiB\", create = true, label = true }\n";
    let safe = "[device]\nsafe = { kind = \"crypt\", on = \"a\", key = \"file:key\", \
                kdf_memory = \"1MiB\", kdf_passes = 1 }\n";
    let export = |on: &str| format!("[export]\nvol = {{ on = \"{on}\" }}\n");
    dir.write("safe.toml", &format!("name = \"s\"\n{disk}{safe}{}", export("safe")));
    dir.write("plain.toml", &format!("name = \"s\"\n{disk}{}", export("a")));
    dir.text(&["apply", "safe.toml"]);
    io(&dir, "s", "write -P 9 0 32M");
    dir.text(&["apply", "plain.toml", "--move", "--speed", "16MiB"]);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        daemon.kill_worker("s");
        io(&dir, "s", "read -P 9 0 32M");
        assert!(dir.text(&["job", "ls"]).contains("a-move"));
    }
    until("the bytes have moved", || dir.text(&["job", "ls"]).contains("no job is in progress"));
    io(&dir, "s", "read -P 9 0 32M");
    daemon.kill_worker("s");
    io(&dir, "s", "read -P 9 0 32M");
    assert!(!dir.text(&["show"]).contains("crypt"));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn daemon_ends_on_signal_that_comes_during_its_restart() {
    for pause in 0..8 {
        let dir = home();
        let daemon = Daemon::start(&dir);
        dir.text(&["apply", "home.toml"]);
        let worker = daemon.worker("home");
        send(daemon.pid(), "USR2");
        std::thread::sleep(Duration::from_millis(pause * pause));
        send(daemon.pid(), "TERM");
        let mut daemon = daemon;
        // It has the exit code of an end in order, and its worker has ended.
        assert_eq!(daemon.ended(), 0, "after {} ms: {}", pause * pause, daemon.log());
        assert!(!Path::new(&format!("/proc/{worker}")).exists(), "after {} ms", pause * pause);
    }
}
