//! `cairn serve`: its start, its stop, its options, and NBD programs of other projects as its clients.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use common::{Dir, PAIR, Ran, listing, send, tool, until};

fn with_disk() -> Dir {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "16M"]);
    dir
}

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn serve_exports_file_as_raw_volume() {
    let dir = with_disk();
    let serve = dir.serve(&["disk.img"]);
    assert!(serve.banner.starts_with("vol  16 MiB (16777216 B), blocks of "), "{}", serve.banner);
    let socket = dir.path("run/cairn/disk.img.sock");
    let uri = format!("nbd+unix:///vol?socket={}", socket.display());
    assert_eq!(serve.uri(), uri);
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(&dir.path("run/cairn")), 0o700);
    assert_eq!(mode(&dir.path("run/cairn/control")), 0o700);

    assert_eq!(tool(&dir, "nbdinfo", &["--size", &uri]).out, "16777216\n");
    let wrote = ["-f", "raw", &uri, "-c", "write -P 7 1M 64k", "-c", "read -P 7 1M 64k"];
    let ran = tool(&dir, "qemu-io", &wrote);
    assert!(ran.code == 0 && !ran.out.contains("failed"), "{ran:?}");

    let ran = serve.stop();
    assert_eq!((ran.code, &*ran.out), (0, "flushed; closed 0 connections.\n"), "{ran:?}");
    assert!(!socket.exists());
    assert_eq!(listing(&dir.path("run/cairn/control")), [""; 0]);
    let bytes = std::fs::read(dir.path("disk.img")).unwrap();
    assert!(bytes[1 << 20..][..64 << 10].iter().all(|byte| *byte == 7));
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 64 << 10);
}

#[test]
fn example_commands_in_serve_banner_work() {
    let dir = with_disk();
    let serve = dir.serve(&["disk.img"]);
    let lines = serve.banner.lines().skip_while(|line| !line.contains("try:"));
    // Attaching has tests of its own, with device names of their own.
    let (attach, lines): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| line.contains("cairn attach"));
    assert_eq!((attach.len(), lines.len()), (1, 3));
    for (line, program) in lines.iter().zip(["nbdinfo", "qemu-img", "fio"]) {
        let line = line.replace("try:", "").replace("--runtime=5", "--runtime=1");
        assert!(line.trim().starts_with(program), "{line}");
        let ran = tool(&dir, "sh", &["-ec", &line]);
        assert_eq!(ran.code, 0, "{line}: {ran:?}");
    }
    assert!(dir.path("vol.qcow2").exists());
}

#[test]
fn server_closes_and_counts_connections_when_stopped() {
    let dir = with_disk();
    let serve = dir.serve(&["disk.img"]);
    let mut client = Command::new("qemu-io")
        .args(["-f", "raw", serve.uri()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("qemu-io is needed: install the package qemu-utils");
    client.stdin.as_mut().unwrap().write_all(b"write -P 3 0 4k\n").unwrap();
    until("a connection", || {
        let all: Vec<api::Status> = dir.json(0, &["status"]);
        all[0].connections == 1
    });
    until("the write", || std::fs::read(dir.path("disk.img")).unwrap()[0] == 3);
    let ran = serve.stop();
    assert_eq!((ran.code, &*ran.out), (0, "flushed; closed 1 connection.\n"), "{ran:?}");
    client.kill().unwrap();
    client.wait().unwrap();
}

/// Returns the spec of a memory disk under a `delay` device. `what` is the option that delays requests by ten minutes.
fn slow(what: &str) -> String {
    format!(
        "[disk]\nm = {{ memory = \"1MiB\" }}\n\
         [device]\nslow = {{ kind = \"delay\", on = \"m\", {what} = \"10min\" }}\n\
         [export]\nvol = {{ on = \"slow\" }}\n"
    )
}

#[test]
fn server_reports_unanswered_flush_after_stop_deadline() {
    let dir = Dir::new();
    dir.write("slow.toml", &slow("flush"));
    let ran = dir.serve(&["slow.toml", "--stop-timeout", "200ms"]).stop();
    assert_eq!((ran.code, &*ran.out), (12, ""), "{ran:?}");
    assert!(ran.err.contains("stopped after 200 ms with 0 requests unanswered"), "{ran:?}");
    assert!(ran.err.contains("slow (delay): 1"), "{ran:?}");
}

#[test]
fn server_stops_within_zero_timeout_when_idle() {
    let dir = Dir::new();
    dir.write("m.toml", "[disk]\nm = { memory = \"1MiB\" }\n[export]\nvol = { on = \"m\" }\n");
    let ran = dir.serve(&["m.toml", "--stop-timeout", "0s"]).stop();
    assert_eq!((ran.code, &*ran.out), (0, "flushed; closed 0 connections.\n"), "{ran:?}");
}

#[test]
fn server_reports_unanswered_request_after_stop_deadline() {
    let dir = Dir::new();
    dir.write("slow.toml", &slow("write"));
    let serve = dir.serve(&["slow.toml", "--stop-timeout", "200ms"]);
    let mut client = Command::new("qemu-io")
        .args(["-f", "raw", serve.uri(), "-c", "write 0 4k"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("qemu-io is needed: install the package qemu-utils");
    until("the write", || {
        let top: api::Top = dir.json(0, &["top"]);
        let slow = top.rows.iter().find(|row| row.name == "slow").unwrap();
        slow.counts.as_ref().unwrap().in_flight == 1
    });
    let ran = serve.stop();
    assert_eq!(ran.code, 12, "{ran:?}");
    assert!(ran.err.contains("stopped after 200 ms with 1 request unanswered"), "{ran:?}");
    assert!(ran.err.contains("slow (delay): 1"), "{ran:?}");
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn server_reports_failed_flush_when_stopped() {
    let dir = Dir::new();
    dir.write(
        "bad.toml",
        "[disk]\nm = { memory = \"1MiB\" }\n\
         [device]\nbad = { kind = \"error\", on = \"m\", op = \"flush\" }\n\
         [export]\nvol = { on = \"bad\" }\n",
    );
    let ran = dir.serve(&["bad.toml"]).stop();
    assert_eq!((ran.code, &*ran.out), (12, ""), "{ran:?}");
    assert!(ran.err.contains("the flush at the end failed: vol: "), "{ran:?}");
}

#[test]
fn serve_run_passes_uri_and_returns_exit_code() {
    let dir = with_disk();
    let line = "nbdinfo --size \"$uri\"; echo $size; test -S \"$unixsocket\" && exit 7";
    let ran = dir.cairn(&["serve", "disk.img", "--run", line]);
    assert_eq!((ran.code, &*ran.out), (7, "16777216\n16777216\n"), "{ran:?}");
    let ran = dir.cairn(&["serve", "disk.img", "--run", "true"]);
    assert_eq!((ran.code, &*ran.out), (0, "flushed; closed 0 connections.\n"));
    let ran = dir.cairn(&["serve", "disk.img", "--run", "kill -9 $$"]);
    assert_eq!(ran.code, 128 + 9);
}

#[test]
fn serve_run_forwards_first_signal_and_ends_at_second() {
    let dir = with_disk();
    let start = |line: &str| {
        let mut command = dir.command(&["serve", "disk.img", "--run", line]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // The command has no blocked signals, so SIGTERM ends it.
    let child = start("touch ready; exec sleep 100");
    until("the command", || dir.path("ready").exists());
    send(child.id(), "TERM");
    let ran = Ran::of(&child.wait_with_output().unwrap());
    assert_eq!((ran.code, &*ran.out), (0, "flushed; closed 0 connections.\n"), "{ran:?}");

    let line = "trap 'touch told' TERM; touch stubborn; \
                n=0; while [ ! -e over ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done";
    let child = start(line);
    until("the stubborn command", || dir.path("stubborn").exists());
    send(child.id(), "INT");
    until("the first signal", || dir.path("told").exists());
    send(child.id(), "INT");
    let pid = child.id();
    until("its end", || !dir.path(&format!("run/cairn/control/disk.img-{pid}.sock")).exists());
    dir.write("over", "");
    let ran = Ran::of(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, 12, "{ran:?}");
    assert!(ran.err.contains("second signal"), "{ran:?}");
}

#[test]
fn pid_file_exists_while_server_runs() {
    let dir = with_disk();
    let serve = dir.serve(&["disk.img", "--pidfile", "pid"]);
    let text = std::fs::read_to_string(dir.path("pid")).unwrap();
    assert_eq!(text, format!("{}\n", serve.pid()));
    dir.text(&["create", "other.img", "1M"]);
    let ran = dir.cairn(&["serve", "other.img", "--pidfile", "pid", "--run", "true"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.err.contains(&serve.pid().to_string()), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
    assert!(!dir.path("pid").exists());
    // A pid file that an earlier process left behind does not matter.
    dir.write("pid", &format!("{}\n", u32::MAX));
    let ran = dir.cairn(&["serve", "other.img", "--pidfile", "pid", "--run", "cat pid"]);
    assert!(ran.code == 0 && !ran.out.contains(&u32::MAX.to_string()), "{ran:?}");
}

#[test]
fn serve_refuses_disk_of_another_server() {
    let dir = with_disk();
    let serve = dir.serve(&["disk.img"]);
    let ran = dir.cairn(&["serve", "disk.img", "--listen", "unix:x.sock", "--run", "true"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.err.contains(&format!("process {}", serve.pid())), "{ran:?}");
    let ran = dir.cairn(&["info", "disk.img"]);
    assert!(ran.out.contains(&format!("process {}", serve.pid())), "{ran:?}");
}

#[test]
fn serve_dry_run_creates_no_file_or_socket() {
    let dir = Dir::new();
    dir.write("pair.toml", PAIR);
    let before = listing(&dir.0);
    let out = dir.text(&["serve", "pair.toml", "--dry-run"]);
    assert!(out.contains("would create a.img, 64 MiB (67108864 B)\n"), "{out}");
    assert!(out.contains("would listen on unix:"), "{out}");
    assert_eq!(listing(&dir.0), before);
}

#[test]
fn server_notifies_service_manager_of_start_and_end() {
    let dir = with_disk();
    let manager = UnixDatagram::bind(dir.path("notify")).unwrap();
    manager.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let mut command = dir.command(&["serve", "disk.img", "--run", "true"]);
    let ran = command.env("NOTIFY_SOCKET", dir.path("notify")).output().unwrap();
    assert!(ran.status.success());
    let mut heard = Vec::new();
    for _ in 0..4 {
        let mut buf = [0; 64];
        let n = manager.recv(&mut buf).unwrap();
        heard.push(String::from_utf8_lossy(&buf[..n]).into_owned());
    }
    let [stored, removed] = ["FDSTORE=1\nFDNAME=listener", "FDSTOREREMOVE=1\nFDNAME=listener"];
    assert_eq!(heard, [stored, "READY=1", "STOPPING=1", removed]);
}

#[test]
fn read_only_export_refuses_writes() {
    let dir = with_disk();
    dir.write("pair.toml", PAIR);
    for target in ["disk.img", "pair.toml"] {
        let line = "qemu-io -f raw \"$uri\" -c 'write 0 4k' 2>&1; qemu-io -r -f raw \"$uri\" -c 'read 0 4k'";
        let ran = dir.cairn(&["serve", target, "--read-only", "--run", line]);
        assert!(ran.out.contains("read 4096/4096"), "{ran:?}");
        assert!(!ran.out.contains("wrote"), "{ran:?}");
    }
}

#[test]
fn serve_needs_insecure_option_for_tcp_beyond_loopback() {
    let dir = with_disk();
    let args = ["serve", "disk.img", "--listen", "tcp:0.0.0.0:0", "--run", "nbdinfo --size $uri"];
    let ran = dir.cairn(&args);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("--insecure"), "{ran:?}");
    let ran = dir.cairn(&[&args[..], &["--insecure"]].concat());
    assert_eq!((ran.code, ran.out.lines().next()), (0, Some("16777216")), "{ran:?}");
    assert!(ran.err.contains("warning: the server at tcp:0.0.0.0:0 accepts every host"), "{ran:?}");
    let local =
        ["serve", "disk.img", "--listen", "tcp:127.0.0.1:0", "--run", "nbdinfo --size $uri"];
    let ran = dir.cairn(&local);
    assert!(ran.code == 0 && !ran.err.contains("warning"), "{ran:?}");
}

#[test]
fn serve_raises_resource_limits() {
    let dir = with_disk();
    let ran = dir.cairn(&["serve", "disk.img", "--run", "ulimit -Sn; ulimit -Hn"]);
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!(lines[0], lines[1]);
}
