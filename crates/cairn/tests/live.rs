//! Commands that show or change a running graph: `device`, `locate`, `ls`, `show`, `graph` and `top`.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::net::UnixListener;

use api::{DeviceStatus, GraphView, Health, LocateStep, SpecText, Status, Top};
use common::control::Control;
use common::{Dir, PAIR, tool};

fn pair() -> (Dir, common::Serve) {
    let dir = Dir::new();
    dir.write("pair.toml", PAIR);
    let serve = dir.serve(&["pair.toml"]);
    (dir, serve)
}

#[test]
fn device_commands_fail_and_resync_mirror_member() {
    let (dir, serve) = pair();
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 4M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    assert_eq!(dir.cairn(&["status"]).code, 0);

    // Without a terminal the command cannot ask for confirmation, so it does nothing.
    let ran = dir.cairn(&["device", "fail", "home/b"]);
    assert!(ran.code == 2 && ran.err.contains("--yes"), "{ran:?}");
    let out = dir.text(&["device", "fail", "home/b", "--dry-run"]);
    assert_eq!(out, "pair/b  in sync; would fail the member\n");
    assert_eq!(dir.text(&["device", "fail", "b", "--dry-run"]), out);
    let ran = dir.cairn(&["device", "fail", "z", "--yes"]);
    assert!(ran.code == 4 && ran.err.contains("no member z; members: pair/a, pair/b"), "{ran:?}");
    let ran = dir.cairn(&["device", "insert", "c", "c.img"]);
    assert!(ran.code == 2 && ran.err.contains("as in pair/c"), "{ran:?}");
    assert_eq!(dir.cairn(&["status"]).code, 0);

    assert_eq!(dir.text(&["device", "fail", "home/b", "--yes"]), "pair/b  failed\n");
    let ran = dir.cairn(&["status"]);
    assert_eq!(ran.code, 10, "{ran:?}");
    assert!(ran.out.starts_with("home   DEGRADED   pair: 1 of 2 members in sync\n"), "{ran:?}");
    assert!(ran.out.contains("\n  b  failed    failed by a command"), "{ran:?}");
    assert!(ran.out.contains("\n  next: cairn device resync pair/b\n"), "{ran:?}");
    assert!(ran.out.contains("failed by a command, for "), "{ran:?}");
    let graph: GraphView = dir.json(0, &["graph"]);
    let health = |name: &str| graph.nodes.iter().find(|n| n.name == name).unwrap().health;
    assert_eq!((health("pair"), health("a")), (Health::Degraded, Health::Ok));
    let drawn = dir.text(&["graph"]);
    assert!(drawn.contains(", failed member\n") && drawn.contains("DEGRADED"), "{drawn}");
    let dot = dir.text(&["graph", "--dot"]);
    assert!(dot.contains("failed member\", shape=cylinder, color=red"), "{dot}");

    // The last member in sync cannot be failed.
    let ran = dir.cairn(&["device", "fail", "pair/a", "--yes"]);
    assert!(ran.code == 5 && ran.err.contains("last member"), "{ran:?}");

    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 8 4M 1M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    let out = dir.text(&["device", "resync", "home/b", "--dry-run"]);
    assert_eq!(out, "pair/b  failed; would resync the member from members in sync\n");
    assert_eq!(dir.cairn(&["status"]).code, 10);
    // Without a terminal there is no progress bar.
    let ran = dir.cairn(&["device", "resync", "home/b", "--wait"]);
    assert_eq!((ran.code, &*ran.out, &*ran.err), (0, "pair/b  in sync\n", ""));
    assert_eq!(dir.cairn(&["status"]).code, 0);
    assert_eq!(dir.cairn(&["device", "resync", "pair/b"]).code, 5);

    assert_eq!(serve.stop().code, 0);
    let read = |name: &str| std::fs::read(dir.path(name)).unwrap();
    assert!(read("a.img") == read("b.img"), "the copies differ");
    assert!(read("b.img")[5 << 20..][..1 << 20].iter().all(|byte| *byte == 8));
}

#[test]
fn locate_finds_byte_on_disks() {
    let (dir, _serve) = pair();
    let file = |name: &str| dir.path(name).display().to_string();
    assert_eq!(
        dir.text(&["locate", "vol", "4KiB"]),
        format!(
            "vol 4 KiB -> part -> pair (mirrored) -> a: 1 MiB + 4 KiB\n\
             \x20                                   `-> b: 1 MiB + 4 KiB\n\
             \x20 a  {}  byte 1052672\n\
             \x20 b  {}  byte 1052672\n",
            file("a.img"),
            file("b.img")
        )
    );
    let place: LocateStep = dir.json(0, &["locate", "vol", "4096"]);
    assert_eq!((&*place.name, place.below[0].offset_bytes), ("part", (1 << 20) + 4096));
    let b = &place.below[0].below[1];
    assert_eq!((b.path.as_deref(), b.path_offset_bytes), (Some(&*file("b.img")), Some(1052672)));
    assert_eq!((&place.path, place.path_offset_bytes), (&None, None));
    let ran = dir.cairn(&["locate", "nope", "0"]);
    assert!(ran.code == 4 && ran.err.contains("vol, all"), "{ran:?}");
    let ran = dir.cairn(&["locate", "vol", "16MiB"]);
    assert!(ran.code == 2 && ran.err.contains("16777216 bytes"), "{ran:?}");
}

#[test]
fn ls_show_and_graph_describe_running_graph() {
    let (dir, serve) = pair();
    let ls = dir.text(&["ls"]);
    assert!(ls.contains(serve.uri()) && ls.contains("512, read-only"), "{ls}");
    let all: Vec<GraphView> = dir.json(0, &["ls"]);
    assert_eq!((all.len(), all[0].pid, all[0].exports.len()), (1, Some(serve.pid()), 2));
    let shown: SpecText = dir.json(0, &["show"]);
    assert!(shown.text.contains("run/cairn/home.sock"), "{}", shown.text);
    assert_eq!(dir.text(&["show"]), shown.text);
    let drawn = dir.text(&["graph"]);
    assert!(drawn.contains("├─ a") && drawn.contains("see above"), "{drawn}");
    assert!(dir.text(&["graph", "--dot"]).starts_with("digraph \"home\""));
    assert!(dir.text(&["graph", "--svg"]).starts_with("<svg "));
}

/// The file of the disk is truncated while it is served, so reads past its end fail.
#[test]
fn status_reports_errors_of_disk_only_if_there_are_any() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "4M"]);
    let serve = dir.serve(&["disk.img"]);
    assert!(!dir.text(&["status"]).contains("error"));
    let status: Vec<Status> = dir.json(0, &["status"]);
    assert_eq!(status[0].devices[0].errors, 0);
    std::fs::OpenOptions::new()
        .write(true)
        .open(dir.path("disk.img"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let ran = tool(&dir, "qemu-io", &["-r", "-f", "raw", serve.uri(), "-c", "read 2M 4k"]);
    assert_ne!(ran.code, 0, "{ran:?}");
    let ran = dir.cairn(&["status"]);
    assert!(ran.out.contains("\n  disk: ") && ran.out.contains("since the start\n"), "{ran:?}");
    let status: Vec<Status> = dir.json(ran.code, &["status"]);
    assert!(status[0].devices[0].errors > 0, "{status:?}");
}

#[test]
fn top_counts_requests() {
    let (dir, serve) = pair();
    let args =
        ["-f", "raw", serve.uri(), "-c", "write 0 64k", "-c", "read 0 64k", "-c", "read 0 4k"];
    assert_eq!(tool(&dir, "qemu-io", &args).code, 0);
    let top: Top = dir.json(0, &["top"]);
    let row = |name: &str| top.rows.iter().find(|row| row.name == name).unwrap();
    let reads = |name: &str| row(name).counts.as_ref().unwrap().ops["read"];
    assert!(reads("part") >= 2, "{top:?}");
    assert_eq!(reads("part"), reads("pair"));
    assert_eq!(reads("pair"), reads("a") + reads("b"));
    assert!(row("b").counts.as_ref().unwrap().bytes["write"] >= 64 << 10);
    let text = dir.text(&["top", "--once", "--interval", "100ms"]);
    assert!(text.starts_with("DEVICE ") && text.lines().count() == 1 + top.rows.len(), "{text}");
    assert_eq!(dir.cairn(&["top", "--once", "--interval", "1ms"]).code, 2);
}

#[test]
fn top_counts_labelled_disk_beneath_tables() {
    let dir = Dir::new();
    dir.write(
        "t.toml",
        "[disk]\na = { file = \"a.img\", size = \"8MiB\", create = true, label = true }\n\
         b = { file = \"b.img\", size = \"8MiB\", create = true, label = true }\n\
         [device]\nboth = { kind = \"stripe\", on = [\"a\", \"b\"], chunk = \"64KiB\" }\n\
         [export]\nvol = { on = \"both\" }\n",
    );
    let serve = dir.serve(&["t.toml"]);
    let written = || {
        let top: Top = dir.json(0, &["top"]);
        let row = |name| top.rows.iter().find(|row| row.name == name).unwrap();
        ["a", "b"].map(|name| row(name).counts.as_ref().unwrap().bytes["write"])
    };
    let before = written();
    let args = ["-f", "raw", serve.uri(), "-c", "write 0 1M"];
    assert_eq!(tool(&dir, "qemu-io", &args).code, 0);
    assert_eq!(written(), before.map(|bytes| bytes + (512 << 10)));
}

#[test]
fn top_shows_fused_tables_as_one_row() {
    let dir = Dir::new();
    dir.write(
        "t.toml",
        "[disk]\nd = { memory = \"8MiB\" }\n[device]\n\
         p = { kind = \"partition\", on = \"d\", size = \"1MiB\" }\n\
         q = { kind = \"partition\", on = \"d\", size = \"rest\" }\n\
         both = { kind = \"concat\", on = [\"q\", \"p\"] }\n\
         h = { kind = \"pass\", on = \"both\" }\n[export]\nvol = { on = \"h\" }\n",
    );
    let serve = dir.serve(&["t.toml"]);
    assert_eq!(tool(&dir, "nbdinfo", &["--size", serve.uri()]).out, "8388608\n");
    assert_eq!(tool(&dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", "read 0 4k"]).code, 0);
    let top: Top = dir.json(0, &["top"]);
    let rows: Vec<_> = top.rows.iter().map(|row| (&*row.name, row.fused.join(" "))).collect();
    assert_eq!(rows, [("h", "".into()), ("both", "q p".into()), ("d", "".into())]);
    let reads: Vec<_> =
        top.rows.iter().map(|row| row.counts.as_ref().map(|counts| counts.ops["read"])).collect();
    assert!(reads[0].is_none() && reads[1] >= Some(1), "{reads:?}");
    assert_eq!(reads[1], reads[2]);
}

#[test]
fn command_selects_one_of_two_graphs_with_at_option() {
    let (dir, one) = pair();
    dir.text(&["create", "disk.img", "1M"]);
    let two = dir.serve(&["disk.img"]);
    let control = |name: &str, pid| dir.path(&format!("run/cairn/control/{name}-{pid}.sock"));
    let at = control("disk.img", two.pid()).display().to_string();

    let ran = dir.cairn(&["show"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("--at disk.img\n"), "{ran:?}");
    assert!(dir.text(&["show", "--at", &at]).contains("disk.img"));
    let all: Vec<Status> = dir.json(0, &["status"]);
    assert_eq!(all.len(), 2);
    // The name of the graph selects it.
    let device: DeviceStatus = dir.json(0, &["device", "fail", "home/b", "--yes"]);
    assert_eq!(device.health, Health::Degraded);
    assert_eq!(dir.cairn(&["status"]).code, 10);
    assert_eq!(dir.cairn(&["status", "--at", &at]).code, 0);

    // The socket of a killed process is skipped and removed.
    one.signal("KILL");
    assert_eq!(one.end().code, -9);
    assert_eq!(dir.text(&["show"]), dir.text(&["show", "--at", &at]));
    assert_eq!(std::fs::read_dir(dir.path("run/cairn/control")).unwrap().count(), 1);
}

#[test]
fn serve_opens_control_socket_at_chosen_path() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "1M"]);
    let serve = dir.serve(&["disk.img", "--at", "here.sock"]);
    assert_eq!(dir.cairn(&["status"]).code, 4);
    assert_eq!(dir.cairn(&["status", "--at", "here.sock"]).code, 0);
    dir.text(&["create", "other.img", "1M"]);
    let ran = dir.cairn(&["serve", "other.img", "--at", "here.sock", "--run", "true"]);
    assert!(ran.code == 5 && ran.err.contains("here.sock"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
    assert!(!dir.path("here.sock").exists());
    // A file that is no socket is not overwritten.
    dir.write("file", "mine");
    assert_eq!(dir.cairn(&["serve", "disk.img", "--at", "file", "--run", "true"]).code, 5);
    assert_eq!(std::fs::read_to_string(dir.path("file")).unwrap(), "mine");
}

#[test]
fn server_refuses_runtime_directory_writable_by_other_users() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "1M"]);
    let path = dir.path("run/cairn");
    std::fs::create_dir_all(path.join("control")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let listen = ["--listen", "unix:x.sock", "--run", "true"];
    for args in [&["serve", "disk.img", "--run", "true"][..], &["status"]] {
        let ran = dir.cairn(args);
        assert!(ran.code == 7 && ran.err.contains("XDG_RUNTIME_DIR"), "{args:?}: {ran:?}");
    }
    assert_eq!(dir.cairn(&[&["serve", "disk.img"], &listen[..]].concat()).code, 7);
    // With explicit socket paths that directory is not needed.
    let ran = dir.cairn(&[&["serve", "disk.img", "--at", "c.sock"], &listen[..]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn commands_fail_when_no_graph_is_running() {
    let dir = Dir::new();
    for args in [&["status"][..], &["ls"], &["top"], &["show"], &["graph"], &["locate", "v", "0"]] {
        let ran = dir.cairn(args);
        assert_eq!(ran.code, 4, "{args:?}: {ran:?}");
        assert!(ran.err.contains("no graph and no daemon is running"), "{ran:?}");
    }
    let ran = dir.cairn(&["status", "--at", "nope.sock"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    // A program that listens there, but speaks another protocol.
    let listener = UnixListener::bind(dir.path("x.sock")).unwrap();
    let talker = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"NBDMAGIC").unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let ran = dir.cairn(&["status", "--at", "x.sock"]);
    assert!(ran.code == 8 && ran.err.contains("invalid reply"), "{ran:?}");
    talker.join().unwrap();
}

#[test]
fn control_socket_answers_http_requests() {
    let (dir, serve) = pair();
    let control = Control::of(&dir, "home", &serve);
    let get = |path: &str| control.get(path);
    assert!(get("/v1/status").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(get("/v2").starts_with("HTTP/1.1 404"));
    assert!(get("/v1/locate?export=nope&offset=0").starts_with("HTTP/1.1 404"));
    assert!(get("/v1/locate?export=vol").starts_with("HTTP/1.1 400"));
    assert!(get("/v1/device/fail").starts_with("HTTP/1.1 405"));
    assert!(control.send("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    // Errors of the HTTP library have the same form as all others.
    let post = |kind: &str, body: &str| control.post("/v1/job", kind, body);
    let repair = |body: &str| control.post("/v1/repair", "application/json", body);
    // Without labels there is nothing to repair. A repair with default arguments gets as far as that.
    let bare = control.send("POST /v1/repair HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    for answer in [repair("null"), repair("{}"), bare] {
        assert!(answer.starts_with("HTTP/1.1 501"), "{answer}");
    }
    for (answer, status) in [
        (repair("[]"), "422"),
        (repair("{\"dry_run\": true}"), "400"),
        (get("/v1/locate?export=vol&offset=-1"), "400"),
        (get("/v1/device/fail"), "405"),
        (post("application/json", "{"), "400"),
        (post("application/json", "[]"), "422"),
        (post("text/plain", "{}"), "415"),
    ] {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("application/json"), "{answer}");
        let problem: api::Problem = serde_json::from_str(body).unwrap();
        assert!(problem.exit == 2 && !problem.message.is_empty(), "{answer}");
    }
}
