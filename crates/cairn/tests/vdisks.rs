//! Virtual disks under `cairn serve`: `cairn vdisk`, clones that are made when their names are opened, kills of the
//! server, live changes beneath, and wrong input.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use api::EventLine;
use common::control::Control;
use common::{Dir, Serve, tool};
use serde_json::{Value, json};

const SPEC: &str = r#"name = "g"
[disk]
a = { file = "a.img", size = "64MiB", create = true, label = true }
b = { file = "b.img", size = "64MiB", create = true, label = true }
[device]
both = { kind = "mirror", on = ["a", "b"] }
vms  = { kind = "pool", on = "both" }
"#;

/// Runs the qemu-io `commands` on the volume `name`, which must all succeed.
fn io(dir: &Dir, name: &str, commands: &[&str]) {
    let uri = uri(dir, name);
    let mut args = vec!["-f", "raw", &uri];
    let is_snapshot = name.contains('@') || ["vms/monday", "vms/2"].contains(&name);
    if is_snapshot && !name.contains('+') {
        args.insert(0, "-r");
    }
    commands.iter().for_each(|command| args.extend(["-c", command]));
    let ran = tool(dir, "qemu-io", &args);
    assert!(ran.code == 0 && !ran.out.contains("failed"), "{name}: {commands:?}: {ran:?}");
}

fn uri(dir: &Dir, name: &str) -> String {
    format!("nbd+unix:///{name}?socket={}", dir.path("s.sock").display())
}

fn begin(dir: &Dir, spec: &str) -> Serve {
    dir.serve(&[spec, "--listen", "unix:s.sock"])
}

/// Returns the names of exports that `cairn vdisk ls` lists.
fn listed(dir: &Dir, args: &[&str]) -> Vec<String> {
    let all: Vec<Value> = dir.json(0, &[&["vdisk", "ls"], args].concat());
    all.iter().map(|it| it["export"].as_str().unwrap().to_owned()).collect()
}

/// Returns the shared bytes that `cairn vdisk ls --shared` lists.
fn shared(dir: &Dir, of: &str) -> Vec<u64> {
    let all: Vec<Value> = dir.json(0, &["vdisk", "ls", of, "--shared"]);
    all.iter().map(|it| it["shared_bytes"].as_u64().unwrap()).collect()
}

#[test]
fn snapshots_and_clones_of_virtual_disk_keep_their_bytes_over_kill_and_live_change() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let serve = begin(&dir, "g.toml");
    dir.text(&["vdisk", "create", "vms/gold", "40G"]);
    io(&dir, "vms/gold", &["write -P 0xab 1M 2M", "write -P 0x11 512 1024"]);
    let said = dir.text(&["vdisk", "snap", "vms/gold@v1"]);
    assert!(said.starts_with("vms/gold@v1  snapshot\n  nbd+unix:///vms/gold@v1?socket="), "{said}");
    io(&dir, "vms/gold", &["write -P 0xcd 1M 1M", "flush"]);
    io(&dir, "vms/gold@v1", &["read -P 0xab 1M 2M", "read -P 0x11 512 1k", "read -P 0 3M 64k"]);
    // The name of a clone makes it.
    io(&dir, "vms/gold@v1+job", &["read -P 0xab 1M 2M", "write -P 7 0 4k", "flush"]);
    let said = dir.text(&["vdisk", "clone", "vms/gold@v1", "vms/web-{n}", "--count", "12"]);
    assert!(said.starts_with("12 clones of vms/gold@v1 in ") && said.ends_with("  and 2 more\n"));
    serve.signal("KILL");
    drop(serve);
    let serve = begin(&dir, "g.toml");
    io(&dir, "vms/gold", &["read -P 0xcd 1M 1M", "read -P 0xab 2M 1M"]);
    io(&dir, "vms/gold@v1", &["read -P 0xab 1M 2M"]);
    io(&dir, "vms/gold@v1+job", &["read -P 0xab 1M 2M", "read -P 7 0 4k"]);
    io(&dir, "vms/web-12", &["read -P 0xab 1M 2M", "read -P 0x11 512 1k"]);
    // A change beneath the pool.
    let more = SPEC.replace("vms  = ", "c = { kind = \"pass\", on = \"both\" }\nvms  = ");
    dir.write("more.toml", &more.replace("\"pool\", on = \"both\"", "\"pool\", on = \"c\""));
    dir.text(&["apply", "more.toml"]);
    io(&dir, "vms/gold@v1+job", &["read -P 0xab 1M 2M", "read -P 7 0 4k", "write -P 8 0 4k"]);
    assert_eq!(serve.stop().code, 0);
    let ran = dir.cairn(&["check", "--directory", "."]);
    // The copy of the mirror may be unfinished after the kill.
    assert!([0, 10].contains(&ran.code), "{ran:?}");
    assert!(ran.out.contains("vms   pool: ") && !ran.out.contains(": vms: "), "{ran:?}");
    let _serve = begin(&dir, "more.toml");
    io(&dir, "vms/gold@v1+job", &["read -P 8 0 4k"]);
    let names = listed(&dir, &["vms"]);
    assert_eq!(names.len(), 14);
    assert_eq!(names[..2], ["vms/gold", "vms/gold@v1+job"]);
}

#[test]
fn vdisk_verbs_list_resize_and_remove() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let _serve = begin(&dir, "g.toml");
    for name in ["vms/db", "vms/log"] {
        dir.text(&["vdisk", "create", name, "8MiB"]);
    }
    io(&dir, "vms/db", &["write -P 1 0 4M", "flush"]);
    let said = dir.text(&["vdisk", "snap", "vms/db@x", "vms/log@x"]);
    assert!(said.contains("vms/db@x  snapshot") && said.contains("vms/log@x  snapshot"), "{said}");
    let said = dir.text(&["vdisk", "snap", "vms/db", "--async"]);
    assert!(said.starts_with("vms/db@2  snapshot, durable after the next flush"), "{said}");
    assert_eq!(listed(&dir, &["vms/db"]), ["vms/db@x", "vms/db@2"]);
    dir.text(&["vdisk", "clone", "vms/db", "vms/copy"]);
    let all: Vec<Value> = dir.json(0, &["vdisk", "ls"]);
    assert_eq!(all[0]["origin"], "db@3", "{all:?}");
    // The clone depends on the snapshot that was taken for it.
    let said = dir.text(&["vdisk", "rm", "vms/db@3", "--yes"]);
    assert_eq!(said, "vms/db@3  name removed; its space stays for 1 clone\n");
    io(&dir, "vms/copy", &["read -P 1 0 4M"]);
    assert_eq!(listed(&dir, &["vms/db"]), ["vms/db@x", "vms/db@2"]);
    let said = dir.text(&["vdisk", "resize", "vms/log", "16MiB"]);
    assert!(said.starts_with("vms/log  16 MiB now"), "{said}");
    io(&dir, "vms/log", &["write -P 2 15M 1M", "discard 15M 1M"]);
    dir.text(&["vdisk", "resize", "vms/log", "8MiB"]);
    let said = dir.text(&["vdisk", "rm", "vms/db", "vms/log@x", "--dry-run"]);
    let would = "would remove vms/db; its space stays for 1 clone\n\
                 would remove vms/log@x; its space comes back\n";
    assert_eq!(said, would);
    assert_eq!(listed(&dir, &[]), ["vms/copy", "vms/db", "vms/log"]);
    dir.text(&["vdisk", "rm", "vms/db", "vms/log", "--yes"]);
    assert_eq!(listed(&dir, &[]), ["vms/copy"]);
    io(&dir, "vms/copy", &["read -P 1 0 4M"]);
    let ran = dir.cairn(&["vdisk", "rm", "vms/copy"]);
    assert_eq!(ran.code, 2, "without a terminal it asks nobody: {ran:?}");
}

#[test]
fn virtual_disk_takes_snapshots_by_itself_and_keeps_some() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let _serve = begin(&dir, "g.toml");
    dir.text(&["vdisk", "create", "vms/db", "8MiB"]);
    let said = dir.text(&["vdisk", "snap", "vms/db", "--every", "write"]);
    assert_eq!(said, "vms/db  takes a snapshot with each write from now on\n");
    io(&dir, "vms/db", &["write -P 1 0 4k", "write -P 2 0 4k", "write -P 3 0 4k", "flush"]);
    dir.text(&["vdisk", "snap", "vms/db", "--every", "never"]);
    io(&dir, "vms/db", &["write -P 4 0 4k", "flush"]);
    assert_eq!(listed(&dir, &["vms/db"]), ["vms/db@1", "vms/db@2", "vms/db@3"]);
    io(&dir, "vms/db@2", &["read -P 2 0 4k"]);
    dir.text(&["vdisk", "label", "vms/db@1", "first"]);
    let said = dir.text(&["vdisk", "keep", "vms/db", "--last", "1", "--dry-run"]);
    assert_eq!(said, "vms/db  would remove 1 snapshot\n");
    let said = dir.text(&["vdisk", "keep", "vms/db", "--last", "1"]);
    assert_eq!(said, "vms/db  1 snapshot removed; their space comes back\n");
    assert_eq!(listed(&dir, &["vms/db"]), ["vms/db@first", "vms/db@3"]);
    dir.text(&["vdisk", "clone", "vms/db@first", "vms/a"]);
    dir.text(&["vdisk", "clone", "vms/a", "vms/b"]);
    dir.text(&["vdisk", "clone", "vms/a", "vms/c"]);
    dir.text(&["vdisk", "rm", "vms/a@3", "--yes"]);
    let drawn = drawn(&dir);
    let lines = [
        "vms/db                   8 MiB",
        "├─ @first                AGE old",
        "│  └─ vms/a              8 MiB",
        "│     ├─ @2              AGE old",
        "│     │  └─ vms/b        8 MiB",
        "│     └─ @3              removed, and kept for its clones",
        "│        └─ vms/c        8 MiB",
        "└─ and 1 more snapshot",
    ];
    assert_eq!(drawn, lines);
    let all: Vec<Value> = dir.json(0, &["vdisk", "ls"]);
    assert_eq!((&all[3]["taking"], &all[3]["keep_last"]), (&"by_command".into(), &1.into()));
}

/// Returns the lines of the tree of the pool, without the ages of snapshots.
fn drawn(dir: &Dir) -> Vec<String> {
    let text = dir.text(&["vdisk", "tree", "vms"]);
    let without_age =
        |line: &str| match line.strip_suffix(" old").and_then(|it| it.rsplit_once("  ")) {
            Some((name, _)) => format!("{name}  AGE old"),
            None => line.to_owned(),
        };
    text.lines().map(without_age).collect()
}

#[test]
fn rollback_goes_back_and_forward() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let serve = begin(&dir, "g.toml");
    dir.text(&["vdisk", "create", "vms/web", "8M"]);
    io(&dir, "vms/web", &["write -P 1 0 64k"]);
    dir.text(&["vdisk", "snap", "vms/web@monday"]);
    io(&dir, "vms/web", &["write -P 2 0 64k"]);
    let would = dir.text(&["vdisk", "rollback", "vms/web@monday", "--dry-run"]);
    assert_eq!(would, "would roll back vms/web to @monday\n");
    io(&dir, "vms/web", &["read -P 2 0 64k"]);
    let back = dir.text(&["vdisk", "rollback", "vms/web@monday"]);
    let words = "vms/web  has the bytes of @monday; those before are in vms/web@2\n";
    assert_eq!(back, words);
    io(&dir, "vms/web", &["read -P 1 0 64k", "write -P 3 64k 64k"]);
    assert_eq!(listed(&dir, &["vms/web"]).len(), 2);
    let lines = [
        "vms/web                  8 MiB, rolled back to @monday",
        "├─ @monday               AGE old",
        "└─ and 1 more snapshot",
    ];
    assert_eq!(drawn(&dir), lines);
    serve.signal("KILL");
    drop(serve);
    let _serve = begin(&dir, "g.toml");
    io(&dir, "vms/web", &["read -P 1 0 64k", "read -P 3 64k 64k"]);
    let forward: Value = dir.json(0, &["vdisk", "rollback", "vms/web@2"]);
    assert!(forward["taken"].as_u64().unwrap() > 2, "{forward}");
    io(&dir, "vms/web", &["read -P 2 0 64k", "read -P 0 64k 64k"]);
    io(&dir, "vms/web@monday", &["read -P 1 0 64k"]);
}

#[test]
fn commands_that_make_and_remove_virtual_disks_are_events() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let _serve = begin(&dir, "g.toml");
    dir.text(&["vdisk", "create", "vms/web", "8M", "--dry-run"]);
    dir.text(&["vdisk", "create", "vms/web", "8M"]);
    dir.text(&["vdisk", "snap", "vms/web@monday"]);
    dir.text(&["vdisk", "clone", "vms/web@monday", "vms/job-{n}", "--count", "3"]);
    dir.text(&["vdisk", "rollback", "vms/web@monday"]);
    dir.text(&["vdisk", "rm", "vms/web@monday", "--yes"]);
    dir.text(&["vdisk", "rm", "vms/job-2", "--yes"]);
    let lines = dir.text(&["-o", "json", "events"]);
    let lines = lines.lines().map(|line| serde_json::from_str::<EventLine>(line).unwrap());
    let of_pool = lines.filter(|event| event.device == "vms");
    let told: Vec<_> = of_pool
        .map(|it| format!("{} {}: {}", it.event, it.member.unwrap_or_default(), it.words))
        .collect();
    assert_eq!(
        told,
        [
            "vdisk-created web: 8 MiB",
            "vdisk-created job-1: clone of web@monday, and 2 more",
            "vdisk-rolled-back web: to web@monday",
            "vdisk-removed web@monday: 4 clones depend on it",
            "vdisk-removed job-2: ",
        ]
    );
}

#[test]
fn lists_show_space_and_quota_bounds_it() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let _serve = begin(&dir, "g.toml");
    dir.text(&["vdisk", "create", "vms/web", "40M", "--quota", "6M"]);
    io(&dir, "vms/web", &["write -P 1 0 2M"]);
    dir.text(&["vdisk", "snap", "vms/web@v1"]);
    io(&dir, "vms/web", &["write -P 2 0 1M", "flush"]);
    // A checkpoint makes the figures exact.
    dir.text(&["vdisk", "create", "vms/short", "4M"]);
    dir.text(&["vdisk", "rm", "vms/short", "--yes"]);
    let view = || -> Value { dir.json::<Vec<Value>>(0, &["vdisk", "ls", "vms"]).remove(0) };
    common::until("the checkpoint counts", || view()["snapshot_bytes"] == 1 << 20);
    let web = view();
    assert_eq!(web["own_bytes"], 2 << 20, "{web}");
    assert_eq!(web["quota_bytes"], 6 << 20, "{web}");
    let snapshots: Vec<Value> = dir.json(0, &["vdisk", "ls", "vms/web"]);
    // The blocks, and few nodes of the map.
    let nodes = snapshots[0]["alone_bytes"].as_u64().unwrap() - (1 << 20);
    assert!(nodes < 64 << 10, "{snapshots:?}");
    let table = dir.text(&["vdisk", "ls", "vms"]);
    let title: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(title[..4], ["VDISK", "SIZE", "OWN", "SNAPSHOTS"], "{table}");
    let uri = uri(&dir, "vms/web");
    let ran = tool(&dir, "qemu-io", &["-f", "raw", &uri, "-c", "write -P 3 8M 8M"]);
    assert!(format!("{ran:?}").contains("No space left on device"), "{ran:?}");
    let refused = dir.cairn(&["vdisk", "resize", "vms/web", "--quota", "1M"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    let said = dir.text(&["vdisk", "resize", "vms/web", "--quota", "none"]);
    assert!(said.starts_with("vms/web  no quota\n"), "{said}");
    io(&dir, "vms/web", &["write -P 3 8M 8M"]);
}

/// The offsets of the records in the log of the pool on a disk.
fn records(disk: &[u8]) -> Vec<usize> {
    (0..disk.len()).step_by(512).filter(|at| disk[*at..].starts_with(b"CAIRNLOG")).collect()
}

#[test]
fn pool_without_a_flushed_record_is_served_with_accepted_loss() {
    let dir = Dir::new();
    dir.write(
        "g.toml",
        "name = \"g\"\n[disk]\na = { file = \"a.img\", size = \"64MiB\", create = true, label = true }\n\
         [device]\nvms = { kind = \"pool\", on = \"a\" }\n",
    );
    let serve = begin(&dir, "g.toml");
    for vdisk in ["vms/web", "vms/db"] {
        dir.text(&["vdisk", "create", vdisk, "8M"]);
        io(&dir, vdisk, &["write -P 1 0 64k", "flush"]);
    }
    for n in 1..5 {
        io(&dir, "vms/web", &[&format!("write -P {n} {n}M 64k"), "flush"]);
    }
    serve.signal("KILL");
    drop(serve);
    let mut disk = std::fs::read(dir.path("a.img")).unwrap();
    let all = records(&disk);
    disk[all[all.len() - 3] + 100] ^= 1;
    std::fs::write(dir.path("a.img"), disk).unwrap();
    let serve = begin(&dir, "g.toml");
    let status = dir.cairn(&["status"]);
    assert!(status.out.contains("all up to"), "{status:?}");
    assert!(status.out.contains("--accept-loss"), "{status:?}");
    let refused = dir.cairn(&["vdisk", "snap", "vms/db"]);
    assert!(refused.code != 0 && refused.err.contains("open for reading"), "{refused:?}");
    serve.stop();
    let serve = dir.serve(&["g.toml", "--listen", "unix:s.sock", "--accept-loss"]);
    let status = dir.cairn(&["status"]);
    assert!(status.out.contains("later records changed web"), "{status:?}");
    io(&dir, "vms/db", &["read -P 1 0 64k", "write -P 9 1M 64k", "flush"]);
    serve.stop();
    let _serve = begin(&dir, "g.toml");
    io(&dir, "vms/db", &["read -P 9 1M 64k"]);
    let status = dir.cairn(&["status"]);
    assert!(!status.out.contains("missing"), "{status:?}");
}

#[test]
fn wrong_vdisk_commands_are_refused_with_next_step() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let _serve = begin(&dir, "g.toml");
    dir.text(&["vdisk", "create", "vms/web", "8MiB"]);
    dir.text(&["vdisk", "snap", "vms/web@v1"]);
    io(&dir, "vms/web", &["write -P 3 4M 64k", "flush"]);
    let cases: [(&[&str], i32, &str); 25] = [
        (&["create", "web", "8MiB"], 2, "\"web\" names no pool"),
        (&["create", "vms/web", "8MiB"], 5, "the vdisk web exists already"),
        (&["create", "nix/web", "8MiB"], 4, "nix"),
        (&["create", "vms/web@v2", "8MiB"], 2, "web@v2"),
        (&["create", "vms/a", "1000"], 2, "1000 bytes are not a multiple of 4096"),
        (&["create", "vms/a", "0"], 2, "impossible"),
        (&["create", "vms/a", "512TiB"], 2, "impossible"),
        (&["snap", "vms/nix"], 4, "the pool has no nix"),
        (&["snap", "vms/web@v1"], 5, "web@v1 exists already"),
        (&["snap", "vms/web@v2", "vms/web@v2"], 2, "web is named twice"),
        (&["snap", "vms/web@7"], 2, "7"),
        (&["clone", "vms/web@v9", "vms/b"], 4, "the pool has no snapshot web@v9"),
        (&["clone", "vms/web@v1", "vms/b", "--count", "3"], 2, "does not have {n}"),
        (&["clone", "vms/web@v1", "vms/web"], 5, "the vdisk web exists already"),
        (&["rollback", "vms/web@v9"], 4, "the pool has no web@v9"),
        (&["rollback", "vms/nix@v1"], 4, "the pool has no nix"),
        (&["rollback", "vms/web"], 2, "vms/web is no snapshot"),
        (&["resize", "vms/web", "1MiB"], 2, "web has data at byte 4194304, behind the size"),
        (&["rm", "vms/web@v9", "--yes"], 4, "the pool has no web@v9"),
        (&["ls", "vms/nix"], 4, "the pool has no nix"),
        (&["snap", "vms/web", "--every", "often"], 2, "flush, write or never"),
        (&["keep", "vms/web"], 2, "this rule would keep no snapshot"),
        (&["keep", "vms/web", "--each", "10ms"], 2, "--each is 1s at least"),
        (&["label", "vms/web@v1", "a/b"], 2, "a/b"),
        (&["label", "vms/web@9", "x"], 4, "the pool has no web@9"),
    ];
    for (args, code, words) in cases {
        for dry_run in [true, false] {
            let mut args = [&["vdisk"], args].concat();
            if dry_run && args[1] != "ls" {
                args.push("--dry-run");
            }
            let ran = dir.cairn(&args);
            assert!(
                ran.code == code && ran.err.contains(words),
                "{args:?}: {code} {words}: {ran:?}"
            );
        }
    }
    // Clients that look for a removed clone do not get a new one.
    io(&dir, "vms/web@v1+job", &["write -P 1 0 4k"]);
    dir.text(&["vdisk", "rm", "vms/web@v1+job", "--yes"]);
    let ran =
        tool(&dir, "qemu-io", &["-f", "raw", &uri(&dir, "vms/web@v1+job"), "-c", "read 0 4k"]);
    assert!(ran.code != 0 && ran.err.contains("was removed"), "{ran:?}");
    dir.text(&["vdisk", "clone", "vms/web@v1", "vms/web@v1+job"]);
    io(&dir, "vms/web@v1+job", &["read -P 0 0 4k"]);
    assert_eq!(listed(&dir, &["vms/web"]), ["vms/web@v1"], "no refused command had an effect");
}

#[test]
fn versioned_device_keeps_snapshots_inside_of_graph() {
    let dir = Dir::new();
    let spec = SPEC.replace("kind = \"pool\"", "kind = \"versioned\", size = \"32MiB\"");
    dir.write("g.toml", &(spec + "[export]\nvol = { on = \"vms\" }\n"));
    let serve = begin(&dir, "g.toml");
    io(&dir, "vol", &["write -P 1 0 8M", "flush"]);
    let said = dir.text(&["vdisk", "snap", "vms@monday"]);
    assert!(said.starts_with("vms/monday  snapshot\n  nbd+unix:///vms/monday?socket="), "{said}");
    io(&dir, "vol", &["write -P 2 0 4M", "flush"]);
    dir.text(&["vdisk", "snap", "vms"]);
    io(&dir, "vms/monday", &["read -P 1 0 8M"]);
    io(&dir, "vms/2", &["read -P 2 0 4M", "read -P 1 4M 4M"]);
    io(&dir, "vms/monday+test", &["read -P 1 0 8M", "write -P 3 0 1M"]);
    io(&dir, "vol", &["read -P 2 0 4M", "read -P 1 4M 4M"]);
    assert_eq!(listed(&dir, &["vms"]), ["vms/monday", "vms/2"]);
    assert_eq!(shared(&dir, "vms"), [8 << 20, 8 << 20]);
    dir.text(&["vdisk", "rm", "vms/2", "--yes"]);
    assert_eq!(listed(&dir, &["vms"]), ["vms/monday"]);
    assert_eq!(serve.stop().code, 0);
}

/// Devices and exports on virtual disks: a mirror of a virtual disk and a disk, a pool on a virtual disk, and a clone
/// that the spec names.
#[test]
fn devices_on_virtual_disks_come_back_after_kill_and_from_their_disks() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let serve = begin(&dir, "g.toml");
    for (name, size) in [("web", "20M"), ("nest", "40M"), ("gold", "8M"), ("new", "4M")] {
        dir.text(&["vdisk", "create", &format!("vms/{name}"), size]);
    }
    io(&dir, "vms/gold", &["write -P 5 0 1M"]);
    dir.text(&["vdisk", "snap", "vms/gold@v1"]);
    let disk = "c = { file = \"c.img\", size = \"32MiB\", create = true, label = true }\n";
    let spec = SPEC.replace("[device]", &format!("{disk}[device]"))
        + "pair = { kind = \"mirror\", on = [\"vms/web\", \"c\"] }\n\
           inner = { kind = \"pool\", on = \"vms/nest\" }\n\
           safe = { kind = \"crypt\", on = \"vms/new\", key = \"file:key\" }\n";
    dir.write("key", &"k".repeat(32));
    fs::set_permissions(dir.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    let exports = "[export]\nweb = { on = \"pair\" }\njob = { on = \"vms/gold@v1+job\" }\n\
                   safe_vol = { on = \"safe\" }\n";
    dir.write("more.toml", &format!("{spec}{exports}"));
    let said = dir.text(&["apply", "more.toml"]);
    assert!(said.contains("add     vms/web          volume of 20 MiB on vms\n"), "{said}");
    dir.text(&["vdisk", "create", "inner/deep", "10M"]);
    dir.write("deep.toml", &format!("{spec}{exports}deep = {{ on = \"inner/deep\" }}\n"));
    dir.text(&["apply", "deep.toml"]);
    io(&dir, "web", &["write -P 1 0 1M", "flush"]);
    io(&dir, "job", &["read -P 5 0 1M", "write -P 2 4k 4k", "flush"]);
    io(&dir, "deep", &["write -P 3 1M 1M", "flush"]);
    // A new encryption would destroy the bytes of the written part.
    dir.text(&["vdisk", "create", "vms/blank", "4M"]);
    for on in ["\"vms/gold\", \"vms/blank\"", "\"vms/blank\", \"vms/gold\""] {
        let more = format!(
            "{spec}row = {{ kind = \"concat\", on = [{on}] }}\n\
             over = {{ kind = \"crypt\", on = \"row\", key = \"file:key\" }}\n\
             {exports}more = {{ on = \"over\" }}\n"
        );
        dir.write("over.toml", &more);
        let refused = dir.cairn(&["apply", "over.toml"]);
        assert!(refused.code != 0 && refused.err.contains("not new"), "{refused:?}");
    }
    // A device has the virtual disk, so no client gets it, and it cannot be removed.
    let refused = tool(&dir, "qemu-io", &["-f", "raw", &uri(&dir, "vms/web"), "-c", "read 0 4k"]);
    assert!(refused.err.contains("a device or an export of the graph uses vms/web"), "{refused:?}");
    let refused = dir.cairn(&["vdisk", "rm", "vms/web", "--yes"]);
    assert!(refused.code == 5 && refused.err.contains("web is open"), "{refused:?}");
    // Snapshots go on.
    dir.text(&["vdisk", "snap", "vms/web@now"]);
    io(&dir, "vms/web@now", &["read -P 1 0 1M"]);
    let said = dir.text(&["locate", "deep", "1M"]);
    assert!(said.contains("inner/deep (placed) -> vms/nest (placed) -> both (mirrored)"), "{said}");
    serve.signal("KILL");
    drop(serve);
    let bytes: [(&str, &[&str]); 3] = [
        ("web", &["read -P 1 0 1M"]),
        ("job", &["read -P 5 0 4k", "read -P 2 4k 4k"]),
        ("deep", &["read -P 3 1M 1M", "read -P 0 0 1M"]),
    ];
    let serve = begin(&dir, "deep.toml");
    bytes.iter().for_each(|(name, commands)| io(&dir, name, commands));
    // Its virtual disk has no bytes yet, and its key is that of the first start.
    io(&dir, "safe_vol", &["write -P 9 0 1M", "flush"]);
    assert_eq!(serve.stop().code, 0);
    let serve = begin(&dir, "deep.toml");
    io(&dir, "safe_vol", &["read -P 9 0 1M"]);
    assert_eq!(serve.stop().code, 0);
    let serve =
        dir.import(&["g", "--directory", ".", "--listen", "unix:s.sock", "--key", "safe=file:key"]);
    bytes.iter().for_each(|(name, commands)| io(&dir, name, commands));
    assert_eq!(serve.stop().code, 0);
    let ran = dir.cairn(&["check", "--directory", "."]);
    assert!([0, 10].contains(&ran.code), "{ran:?}");
    assert!(ran.out.contains("mirror: vms/web in sync, c in sync"), "{ran:?}");
    // A graph whose volume does not exist is not started, and its disks stay closed.
    dir.write("none.toml", &format!("{spec}{exports}none = {{ on = \"inner/none\" }}\n"));
    let ran = dir.cairn(&["serve", "none.toml", "--listen", "unix:s.sock"]);
    assert!(ran.code == 2 && ran.err.contains("no volume \"inner/none\""), "{ran:?}");
    let _serve = begin(&dir, "deep.toml");
    bytes.iter().for_each(|(name, commands)| io(&dir, name, commands));
}

#[test]
fn http_routes_create_list_and_remove_virtual_disks_and_snapshots() {
    let dir = Dir::new();
    dir.write("g.toml", SPEC);
    let serve = begin(&dir, "g.toml");
    let control = Control::of(&dir, "g", &serve);
    let body = |answer: String| -> Value {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(body).unwrap()
    };
    let get = |path: &str| body(control.get(path));
    let post =
        |path: &str, args: Value| body(control.post(path, "application/json", &args.to_string()));
    let on = |mut args: Value| {
        args["device"] = json!("vms");
        args
    };
    let none = json!({});
    let size = |name: &str, size: u64| on(json!({"name": name, "size_bytes": size}));
    assert_eq!(post("/v1/volume/create", size("web", 8 << 20)), none);
    assert_eq!(post("/v1/volume/resize", size("web", 16 << 20)), none);
    io(&dir, "vms/web", &["write -P 1 0 1M", "flush"]);
    let snap = on(json!({"vdisks": ["web"], "label": "monday"}));
    let dry = |mut args: Value| {
        args["dry_run"] = json!(true);
        args
    };
    assert_eq!(post("/v1/vdisk/snapshot", dry(snap.clone())), json!({"numbers": []}));
    assert_eq!(post("/v1/vdisk/snapshot", snap), json!({"numbers": [1]}));
    io(&dir, "vms/web", &["write -P 2 0 1M", "flush"]);
    let clones = on(json!({"of": "web@monday", "names": ["a", "b"]}));
    assert_eq!(post("/v1/vdisk/clone", clones), none);
    io(&dir, "vms/b", &["read -P 1 0 1M"]);
    let data = json!({"own_bytes": 0, "inherited_bytes": 1 << 20, "next_bytes": null});
    assert_eq!(get("/v1/vdisk/data?device=vms&version=b"), data);
    let data = json!({"own_bytes": 512 << 10, "inherited_bytes": 0, "next_bytes": null});
    assert_eq!(get("/v1/vdisk/data?device=vms&version=web@1&from_bytes=524288"), data);
    assert_eq!(shared(&dir, "vms"), [1 << 20, 1 << 20, 0]);
    let quota = on(json!({"vdisk": "a", "quota_bytes": 1 << 20}));
    assert_eq!(post("/v1/vdisk/quota", quota), none);
    let every = on(json!({"vdisk": "a", "taking": {"every_us": 10_000}}));
    assert_eq!(post("/v1/vdisk/take", every), none);
    let label = on(json!({"snapshot": "web@monday", "label": "first"}));
    assert_eq!(post("/v1/vdisk/label", label), none);
    assert_eq!(
        post("/v1/vdisk/rollback", on(json!({"to": "web@first"}))),
        json!({"taken": 2}),
        "the bytes before are kept"
    );
    io(&dir, "vms/web", &["read -P 1 0 1M"]);
    let listed = get("/v1/vdisks?device=vms");
    let listed = listed["vdisks"].as_array().unwrap();
    let of = |field: &str| listed.iter().map(|it| it[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), [json!("a"), json!("b"), json!("web")]);
    assert_eq!(of("origin")[0], json!("web@first"));
    assert_eq!(of("quota_bytes"), [json!(1 << 20), json!(0), json!(0)]);
    assert_eq!(of("taking")[0], json!({"every_us": 10_000}));
    let page = get("/v1/vdisks?device=vms&after=a&most=1");
    assert_eq!(page["vdisks"][0]["name"], json!("b"));
    assert_eq!(page["vdisks"].as_array().unwrap().len(), 1);
    let page = get("/v1/vdisk/snapshots?device=vms&vdisk=web&from=2");
    let numbers = page["snapshots"].as_array().unwrap().iter().map(|it| it["number"].clone());
    assert_eq!(numbers.collect::<Vec<_>>(), [json!(2)]);
    let keep = on(json!({"vdisk": "web", "last": 1, "once": true}));
    assert_eq!(post("/v1/vdisk/keep", keep), json!({"removed": 0}), "one has a label, one is last");
    let remove = |name: &str| on(json!({"name": name}));
    assert_eq!(post("/v1/volume/remove", remove("web@first")), json!({"dependants": 3}));
    assert_eq!(post("/v1/volume/remove", remove("a")), json!({"dependants": 0}));
    let refused = |path: &str, args: Value, status: &str, words: &str| {
        let answer = control.post(path, "application/json", &args.to_string());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains(words), "{answer}");
    };
    refused("/v1/volume/create", size("b", 1 << 20), "409", "b");
    refused("/v1/volume/remove", json!({"device": "nope", "name": "b"}), "404", "no device");
    refused("/v1/volume/remove", json!({"name": "b"}), "422", "device");
    refused("/v1/vdisk/clone", json!({"device": "both", "of": "b", "names": []}), "501", "vdisks");
    assert!(control.get("/v1/vdisks").starts_with("HTTP/1.1 400"));
    assert!(control.get("/v1/vdisks?device=vms&most=x").starts_with("HTTP/1.1 400"));
}
