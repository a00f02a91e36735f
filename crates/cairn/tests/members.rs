//! Commands that replace, add, remove and scrub members of a mirror, and the events that the server reports.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Stdio;

use api::{Applied, DeviceStatus, EventLine, Status};
use common::machine::{noise, run};
use common::{Dir, Ran, STORE_BYTES, Serve, tool, until};

const MIB: usize = 1 << 20;

/// Offset in bytes of the data on a labelled disk.
const DATA: u64 = 1 << 20;

/// Bytes of the mirror that [`served`] serves.
const BYTES: usize = 8 * MIB - STORE_BYTES as usize;

/// Serves a mirror of two members that is full of random bytes, with an event program that records its arguments.
fn served() -> (Dir, Serve, Vec<u8>) {
    let dir = Dir::new();
    dir.write(
        "home.toml",
        "name = \"home\"\n[disk]\n\
         a = { file = \"a.img\", size = \"10MiB\", create = true, label = true }\n\
         b = { file = \"b.img\", size = \"10MiB\", create = true, label = true }\n\
         [device]\npair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
         [events]\nrun = \"told\"\n[export]\nvol = { on = \"pair\" }\n",
    );
    let told = "#!/bin/sh\necho \"$@ $CAIRN_GRAPH/$CAIRN_DEVICE/$CAIRN_MEMBER\" >> told.log\n";
    dir.write("told", told);
    fs::set_permissions(dir.path("told"), fs::Permissions::from_mode(0o755)).unwrap();
    let serve = dir.serve(&["home.toml"]);
    let bytes = noise(BYTES, 1);
    fs::write(dir.path("noise"), &bytes).unwrap();
    run("nbdcopy", &["--flush", &dir.path("noise").display().to_string(), serve.uri()]);
    (dir, serve, bytes)
}

fn in_sync(dir: &Dir) {
    until("all members are in sync", || dir.cairn(&["status"]).code == 0);
}

fn pair(dir: &Dir) -> DeviceStatus {
    let all: Vec<Status> = dir.json(0, &["status"]);
    let mut devices = all.into_iter().flat_map(|status| status.devices);
    devices.find(|device| device.name == "pair").unwrap()
}

fn data_of(dir: &Dir, disk: &str) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    fs::File::open(dir.path(disk)).unwrap().read_exact_at(&mut bytes, DATA).unwrap();
    bytes
}

#[test]
fn device_commands_replace_insert_and_remove_members() {
    let (dir, serve, bytes) = served();
    in_sync(&dir);
    dir.text(&["create", "c.img", "10M"]);
    dir.write("held.img", &"not blank ".repeat(MIB));
    let ran = dir.cairn(&["device", "replace", "home/b", "held.img"]);
    assert!(ran.code == 5 && ran.err.contains("HOLDS"), "{ran:?}");
    let ran = dir.cairn(&["device", "replace", "home/b", "none.img"]);
    assert!(ran.code == 4, "{ran:?}");
    let would: Applied = dir.json(0, &["device", "replace", "home/b", "c.img", "--dry-run"]);
    assert!(would.changes.iter().any(|line| line.name == "b"), "{would:?}");
    let ran = dir.cairn(&["device", "replace", "home/b", "c.img", "--wait"]);
    assert!(ran.code == 0 && ran.err.contains("set the path of b to c.img"), "{ran:?}");
    in_sync(&dir);
    assert!(data_of(&dir, "c.img") == bytes, "the new one has everything");
    // Adds a third member, and then removes the first one.
    dir.text(&["create", "d.img", "10M"]);
    dir.text(&["device", "insert", "pair/d", "d.img", "--wait"]);
    assert!(data_of(&dir, "d.img") == bytes);
    dir.text(&["device", "remove", "pair/a", "--yes"]);
    let pair = pair(&dir);
    let members: Vec<_> = pair.members.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(members, ["b", "d"]);
    let ran = dir.cairn(&["device", "remove", "pair/d", "--yes"]);
    assert!(ran.code == 3 && ran.err.contains("2"), "a mirror has two members: {ran:?}");
    serve.stop();
}

#[test]
fn device_insert_refuses_invalid_member_name() {
    let (dir, serve, _) = served();
    in_sync(&dir);
    dir.text(&["create", "c.img", "10M"]);
    let long = "n".repeat(65);
    for name in ["ü", "a\"b", "${HOME}", "a b", "-x", ".", long.as_str()] {
        for more in [&[][..], &["--dry-run"]] {
            let ran = dir
                .cairn(&[&["device", "insert", &format!("pair/{name}"), "c.img"], more].concat());
            assert!(ran.code == 2 && ran.err.contains("letters a-z, digits"), "{name}: {ran:?}");
        }
    }
    dir.text(&["check"]);
    serve.stop().ok();
    dir.import(&["home"]).stop().ok();
}

#[test]
fn device_insert_resolves_path_from_caller_directory() {
    let (dir, serve, bytes) = served();
    in_sync(&dir);
    fs::create_dir(dir.path("other")).unwrap();
    for disk in ["other/c.img", "other/d.img"] {
        dir.text(&["create", disk, "10M"]);
    }
    let from_other = |args: &[&str]| {
        let output = dir.command(args).current_dir(dir.path("other")).output().unwrap();
        Ran::of(&output).ok();
    };
    let d = dir.path("other/d.img").display().to_string();
    from_other(&["device", "replace", "home/b", "c.img", "--wait"]);
    from_other(&["device", "insert", "home/d", &d, "--wait"]);
    from_other(&["device", "remove", "home/a", "--yes"]);
    assert!(data_of(&dir, "other/c.img") == bytes && data_of(&dir, "other/d.img") == bytes);
    assert!(dir.text(&["show"]).contains(&d));
    serve.stop().ok();
}

#[test]
fn scrub_reports_changed_bytes_and_repairs_by_trusted_member() {
    let (dir, serve, bytes) = served();
    in_sync(&dir);
    let disk = fs::OpenOptions::new().write(true).open(dir.path("a.img")).unwrap();
    let wrong = [0, 3 * MIB as u64 + 17, BYTES as u64 - 1];
    for at in wrong {
        disk.write_all_at(&[!bytes[at as usize]], DATA + at).unwrap();
    }
    disk.sync_all().unwrap();
    let damaged = data_of(&dir, "a.img");
    // The scrub has changed neither copy, and names the blocks.
    let ran = dir.cairn(&["device", "scrub", "home", "--wait"]);
    assert_eq!(ran.code, 10, "{ran:?}");
    for line in [
        "3 blocks of 512 B differ",
        "differ at byte 3145728 (3 MiB): 512 B",
        "--repair --trust a or b",
    ] {
        assert!(ran.out.contains(line), "{line}: {ran:?}");
    }
    assert!(data_of(&dir, "a.img") == damaged && data_of(&dir, "b.img") == bytes);
    let ran = dir.cairn(&["status"]);
    assert_eq!(ran.code, 10, "{ran:?}");
    assert!(ran.out.contains("DEGRADED") && ran.out.contains("s ago, 3 blocks"), "{ran:?}");
    // A repair does not guess.
    let ran = dir.cairn(&["device", "scrub", "pair", "--repair"]);
    assert!(ran.code == 2 && ran.err.contains("a repair by majority needs 3"), "{ran:?}");
    let ran = dir.cairn(&["device", "scrub", "pair", "--repair", "--trust", "c", "--dry-run"]);
    assert!(ran.code == 4 && ran.err.contains("members: a, b"), "{ran:?}");
    let ran = dir.cairn(&["device", "scrub", "pair", "--trust", "b"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(data_of(&dir, "a.img") == damaged);
    let repair = ["device", "scrub", "pair", "--repair", "--trust", "b"];
    assert!(dir.text(&[&repair[..], &["--dry-run"]].concat()).contains("would be"));
    assert!(dir.text(&[&repair[..], &["--wait"]].concat()).contains("3 blocks repaired"));
    assert!(data_of(&dir, "a.img") == bytes && data_of(&dir, "b.img") == bytes);
    dir.text(&["status"]);
    let device: DeviceStatus = dir.json(0, &["device", "scrub", "home"]);
    assert_eq!(device.name, "pair");
    until("the scrub has ended", || pair(&dir).scrub.unwrap().progress.is_none());
    let ran = dir.cairn(&["device", "scrub", "vol"]);
    assert!(ran.code == 4 && ran.err.contains("devices with copies: pair"), "{ran:?}");
    serve.stop();
}

#[test]
fn server_records_events_and_runs_event_program() {
    let (dir, serve, _) = served();
    in_sync(&dir);
    dir.text(&["device", "fail", "home/b", "--yes"]);
    dir.text(&["device", "resync", "home/b", "--wait"]);
    let events = || {
        let lines = dir.text(&["-o", "json", "events"]);
        let lines = lines.lines().map(|line| serde_json::from_str::<EventLine>(line).unwrap());
        lines.map(|event| event.event).collect::<Vec<_>>()
    };
    let tail = ["member-failed", "resync-begun", "resync-ended"];
    assert!(events().ends_with(&tail.map(str::to_owned)), "{:?}", events());
    let text = dir.text(&["events"]);
    assert!(text.contains("member-failed     pair/b  failed by a command"), "{text}");
    let told = || fs::read_to_string(dir.path("told.log")).unwrap_or_default();
    until("the program was told", || told().ends_with("resync-ended pair b home/pair/b\n"));
    assert!(told().contains("member-failed pair b home/pair/b\n"), "{}", told());
    serve.stop();
}

#[test]
fn event_followers_receive_each_new_event() {
    let (dir, serve, _) = served();
    in_sync(&dir);
    dir.text(&["device", "fail", "home/b", "--yes"]);
    dir.text(&["device", "resync", "home/b", "--wait"]);
    let mut command = dir.command(&["-o", "json", "events", "--follow"]);
    let mut follow = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let mut next =
        || -> EventLine { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    // The stream begins with the past events.
    while next().event != "resync-ended" {}
    for _ in 0..3 {
        dir.text(&["device", "fail", "home/b", "--yes"]);
        assert_eq!(next().event, "member-failed");
        dir.text(&["device", "resync", "home/b", "--wait"]);
        assert_eq!([next().event, next().event], ["resync-begun", "resync-ended"]);
    }
    serve.stop();
    assert!(lines.next().is_none(), "the end of the server is the end of it");
    assert_eq!(follow.wait().unwrap().code(), Some(0));
}

#[test]
fn server_limits_number_of_event_followers() {
    let (dir, serve, _) = served();
    in_sync(&dir);
    let run = dir.path("run/cairn");
    let socket = fs::read_dir(run.join("control")).unwrap().next().unwrap().unwrap().path();
    let follow = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.write_all(b"GET /v1/events/follow?after=1000000 HTTP/1.0\r\n\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        (stream, line.contains(" 200 "))
    };
    for _ in 0..3 {
        let mut all = Vec::new();
        // A closed follower is noticed even if no event happens.
        until("there is room for all", || {
            let (stream, is_in) = follow();
            all.extend(is_in.then_some(stream));
            all.len() == api::FOLLOWERS_MAX
        });
        assert!(!follow().1, "one more is refused");
    }
    serve.stop();
}

#[test]
fn apply_keeps_member_whose_file_was_renamed() {
    let (dir, serve, _) = served();
    in_sync(&dir);
    fs::rename(dir.path("b.img"), dir.path("elsewhere.img")).unwrap();
    let spec = fs::read_to_string(dir.path("home.toml")).unwrap();
    dir.write("more.toml", &format!("{spec}too = {{ on = \"pair\", read_only = true }}\n"));
    dir.text(&["apply", "more.toml"]);
    assert_eq!(dir.cairn(&["status"]).code, 0, "nobody has left");
    fs::rename(dir.path("elsewhere.img"), dir.path("b.img")).unwrap();
    serve.stop().ok();
}

#[test]
fn copy_of_sparse_member_is_sparse() {
    let dir = Dir::new();
    let spec = "name = \"home\"\n[disk]\n\
                a = { file = \"a.img\", size = \"1GiB\", create = true, label = true }\n\
                b = { file = \"b.img\", size = \"1GiB\", create = true, label = true }\n\
                [device]\npair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n[export]\nvol = { on = \"pair\" }\n";
    dir.write("home.toml", spec);
    let serve = dir.serve(&["home.toml"]);
    let io = |command: &str| {
        let ran = tool(&dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", command]);
        assert!(ran.code == 0 && !ran.out.contains("failed"), "{ran:?}");
    };
    io("write -P 7 700M 2M");
    // The disk that takes the place of b has old bytes in a hole of a, and a hole of its own.
    let disk = fs::File::create(dir.path("c.img")).unwrap();
    disk.set_len(1 << 30).unwrap();
    disk.write_all_at(&vec![9; 4 * MIB], 500 << 20).unwrap();
    dir.text(&["device", "replace", "home/b", "c.img", "--wipe", "--wait"]);
    io("write -P 8 3M 1M");
    serve.stop().ok();
    let allocated = |name: &str| fs::metadata(dir.path(name)).unwrap().blocks() * 512;
    assert!(allocated("c.img") < 12 << 20, "{} bytes", allocated("c.img"));
    let (a, c) = (fs::read(dir.path("a.img")).unwrap(), fs::read(dir.path("c.img")).unwrap());
    let end = (1 << 30) - (DATA + STORE_BYTES) as usize;
    let data = |bytes: &[u8]| bytes[DATA as usize..end].to_vec();
    assert!(data(&a) == data(&c), "the copy differs");
}
