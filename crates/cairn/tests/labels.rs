//! Labelled disks under `cairn serve`, `info`, `wipe` and `apply`: starts by label, and refusals with their messages.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs;

use common::keeper::Daemon;
use common::machine::relabel;
use common::{Dir, Ran, STORE_BYTES, tool};

const PAIR: &str = r#"
name = "home"
[disk]
a = { file = "a.img", size = "8MiB", create = true, label = true }
b = { file = "b.img", size = "8MiB", create = true, label = true }
[device]
pair = { kind = "mirror", on = ["a", "b"] }
[export]
vol = { on = "pair" }
"#;

/// Offset in bytes of the label area at the end of a disk of 8 MiB.
const BACK: u64 = 7 << 20;

/// Runs `cairn serve home.toml` with `args`, and meanwhile the qemu-io `commands`, which are separated by semicolons.
fn io(dir: &Dir, args: &[&str], commands: &str) -> Ran {
    let commands: String = commands.split(';').map(|one| format!(" -c '{}'", one.trim())).collect();
    let run = format!("qemu-io -f raw \"$uri\"{commands}");
    dir.cairn(&[&["serve", "home.toml", "--run", &run], args].concat())
}

fn pair() -> Dir {
    let dir = Dir::new();
    dir.write("home.toml", PAIR);
    dir
}

#[test]
fn start_finds_labelled_disks_with_swapped_paths() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 1M").code, 0);
    fs::rename(dir.path("a.img"), dir.path("x")).unwrap();
    fs::rename(dir.path("b.img"), dir.path("a.img")).unwrap();
    fs::rename(dir.path("x"), dir.path("b.img")).unwrap();
    let ran = io(&dir, &[], "read -P 7 0 1M");
    assert!(ran.code == 0 && ran.out.contains("read 1048576/1048576"), "{ran:?}");
    assert!(ran.err.contains("note: a.img is disk b by its label, not a"), "{ran:?}");
}

#[test]
fn mirror_reads_returning_member_only_after_resync() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 1 0 1M").code, 0);
    fs::rename(dir.path("b.img"), dir.path("away")).unwrap();
    assert_eq!(io(&dir, &[], "read 0 4k").code, 10);
    assert_eq!(io(&dir, &["--degraded"], "write -P 2 0 1M").code, 0);
    fs::rename(dir.path("away"), dir.path("b.img")).unwrap();
    let serve = dir.serve(&["home.toml"]);
    let done = dir.cairn(&["device", "resync", "pair/b", "--wait"]);
    // The resync starts by itself. If it has ended already, the command reports that.
    assert!(done.code == 0 || done.err.contains("b is "), "{done:?}");
    common::until("b is in sync", || dir.cairn(&["status"]).code == 0);
    assert_eq!(serve.stop().code, 0);
    let data = 1 << 20..(7 << 20) - STORE_BYTES as usize;
    let read = |name: &str| fs::read(dir.path(name)).unwrap()[data.clone()].to_vec();
    assert!(read("a.img") == read("b.img") && read("b.img")[0] == 2);
}

#[test]
fn resync_after_kill_keeps_acknowledged_writes() {
    let dir = pair();
    let serve = dir.serve(&["home.toml"]);
    let write = tool(&dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", "write -P 9 0 2M"]);
    assert!(write.out.contains("wrote 2097152/2097152"), "{write:?}");
    serve.signal("KILL");
    assert_eq!(serve.end().code, -9);
    let ran = dir.cairn(&["info", "a.img"]);
    assert!(ran.out.contains("or not closed by that host"), "{ran:?}");
    let ran = io(&dir, &[], "read -P 9 0 2M");
    assert!(ran.code == 0 && ran.out.contains("read 2097152/2097152"), "{ran:?}");
    let ran = dir.cairn(&["info", "a.img"]);
    assert!(ran.out.contains("disk \"a\"") && ran.out.contains("closed"), "{ran:?}");
}

#[test]
fn info_reports_graph_of_labelled_disk_even_in_use() {
    let dir = pair();
    let serve = dir.serve(&["home.toml"]);
    for in_use in [true, false] {
        let out = dir.text(&["info", "a.img"]);
        assert!(out.lines().next().unwrap().ends_with(", labelled"), "{out}");
        assert!(out.contains("label: disk \"a\"") && out.contains("of \"home\""), "{out}");
        let holder = format!("in use by process {} (cairn)", serve.pid());
        assert_eq!((out.contains(&holder), out.contains(", closed")), (in_use, !in_use), "{out}");
        let facts: serde_json::Value = dir.json(0, &["info", "a.img"]);
        assert_eq!(
            (&facts["format"], &facts["label"]["graph"]),
            (&"labelled".into(), &"home".into())
        );
        if in_use {
            // The probe did not release the server's lock.
            let ran = dir.cairn(&["serve", "a.img", "--run", "true"]);
            assert!(ran.code == 5 && ran.err.contains(&holder), "{ran:?}");
            serve.signal("TERM");
            // Its socket goes before the process does, and with that the lock.
            common::until("it has ended", || !dir.text(&["info", "a.img"]).contains(&holder));
        }
    }
    assert_eq!(serve.end().code, 0);
}

#[test]
fn start_refuses_label_of_newer_version_without_writing() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 4k").code, 0);
    relabel(&dir, "b.img", BACK, |copy| copy[8] = 2);
    let before = fs::read(dir.path("b.img")).unwrap();
    let ran = dir.cairn(&["serve", "home.toml", "--run", "true"]);
    assert!(ran.code == 9 && ran.err.contains("a label of version 2"), "{ran:?}");
    assert!(fs::read(dir.path("b.img")).unwrap() == before);
}

#[test]
fn start_refuses_disk_open_on_other_machine_without_take() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 4k").code, 0);
    relabel(&dir, "b.img", BACK, |copy| {
        copy[120] = 1;
        copy[136..152].fill(0x5a);
        copy[280..287].copy_from_slice(b"another");
    });
    let ran = dir.cairn(&["serve", "home.toml", "--degraded", "--run", "true"]);
    assert!(ran.code == 5 && ran.err.contains("open on the machine \"another\""), "{ran:?}");
    let ran = io(&dir, &["--take"], "read -P 7 0 4k");
    assert!(ran.code == 0 && ran.out.contains("read 4096/4096"), "{ran:?}");
}

#[test]
fn serve_dry_run_lists_disks_without_writing() {
    let dir = pair();
    dir.text(&["create", "a.img", "8M"]);
    let made = tool(&dir, "sh", &["-c", "truncate -s 8M b.img && mkfs.ext4 -q -L old b.img"]);
    assert_eq!(made.code, 0, "{made:?}");
    for verb in [&["serve", "home.toml", "--dry-run"][..], &["validate", "home.toml"]] {
        let ran = dir.cairn(verb);
        assert_eq!(ran.code, 5, "{ran:?}");
        assert!(ran.out.contains("HOLDS ext4 \"old\"; refused without --wipe b"), "{ran:?}");
    }
    let ran = dir.cairn(&["serve", "home.toml", "--dry-run", "--wipe", "b"]);
    assert!(ran.code == 0 && ran.out.contains("blank"), "{ran:?}");
    assert!(fs::read(dir.path("a.img")).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(io(&dir, &["--wipe", "b"], "write -P 7 0 4k").code, 0);
}

#[test]
fn serve_dry_run_returns_exit_code_of_start() {
    let stripe = PAIR.replace("\"mirror\"", "\"stripe\", chunk = \"64KiB\"");
    for (spec, code, words) in
        [(PAIR, 10, "the other disks have all data"), (&stripe, 4, "vol cannot be served without")]
    {
        let dir = pair();
        dir.write("home.toml", spec);
        assert_eq!(io(&dir, &[], "read 0 4k").code, 0);
        fs::rename(dir.path("b.img"), dir.path("run/away")).unwrap();
        let start = dir.cairn(&["serve", "home.toml", "--run", "true"]);
        assert!(start.code == code && start.err.contains(words), "{start:?}");
        for verb in [["serve", "home.toml"], ["import", "home"]] {
            let dry = dir.cairn(&[&verb[..], &["--dry-run"]].concat());
            assert!(dry.code == code && dry.err.contains(words), "{dry:?}");
            assert!(dry.out.contains("missing      b") && dry.out.contains("without b"), "{dry:?}");
            assert!(!dry.out.contains("survives") && !dry.out.contains("nowhere"), "{dry:?}");
        }
    }
}

#[test]
fn serve_dry_run_lists_path_of_each_disk() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "read 0 4k").code, 0);
    fs::rename(dir.path("a.img"), dir.path("x")).unwrap();
    fs::rename(dir.path("b.img"), dir.path("a.img")).unwrap();
    fs::rename(dir.path("x"), dir.path("b.img")).unwrap();
    let dry = dir.text(&["serve", "home.toml", "--dry-run"]);
    assert!(
        dry.contains("labelled     a  b.img") && dry.contains("labelled     b  a.img"),
        "{dry}"
    );
    // Only a is left, at the path of b.
    fs::remove_file(dir.path("a.img")).unwrap();
    dir.write("home.toml", &PAIR.replace("a.img", "nope/a.img"));
    let dry = dir.cairn(&["serve", "home.toml", "--dry-run"]);
    assert!(dry.code == 10 && dry.out.contains("labelled     a  b.img"), "{dry:?}");
    let missing = dry.out.lines().find(|line| line.starts_with("missing"));
    assert!(missing.is_some_and(|line| line.contains(" b ") && !line.contains("img")), "{dry:?}");
}

#[test]
fn start_resyncs_new_blank_disk_in_place_of_member() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 1M").code, 0);
    fs::remove_file(dir.path("a.img")).unwrap();
    let serve = dir.serve(&["home.toml", "--wipe", "a"]);
    common::until("a is in sync", || dir.cairn(&["status"]).code == 0);
    assert_eq!(serve.stop().code, 0);
    let bytes = fs::read(dir.path("a.img")).unwrap();
    assert!(bytes[1 << 20..2 << 20].iter().all(|byte| *byte == 7));
}

#[test]
fn wipe_removes_label_but_keeps_data_of_disk() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 4k").code, 0);
    let ran = dir.cairn(&["wipe", "a.img", "--dry-run"]);
    assert!(ran.code == 0 && ran.out.contains("would remove the label of disk \"a\""), "{ran:?}");
    dir.text(&["wipe", "a.img", "--yes"]);
    let bytes = fs::read(dir.path("a.img")).unwrap();
    assert!(bytes[..1 << 20].iter().chain(&bytes[7 << 20..]).all(|byte| *byte == 0));
    assert_eq!(bytes[1 << 20], 7);
}

/// Returns the spec of a graph with the single disk `b.img` and `options` of the disk.
fn raw(options: &str) -> String {
    format!(
        "name = \"raw\"\n[disk]\nd = {{ file = \"b.img\"{options} }}\n[export]\nvol = {{ on = \"d\" }}\n"
    )
}

#[test]
fn serve_refuses_labelled_disk_as_raw_unless_read_only() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 4M").code, 0);
    let before = fs::read(dir.path("b.img")).unwrap();
    dir.write("raw.toml", &raw(""));
    for args in [
        &["serve", "b.img", "--run", "true"][..],
        &["serve", "b.img", "--dry-run"],
        &["serve", "raw.toml", "--run", "true"],
        &["serve", "raw.toml", "--dry-run"],
    ] {
        let ran = dir.cairn(args);
        assert_eq!(ran.code, 5, "{args:?}: {ran:?}");
        for words in [
            "disk \"b\" of the graph \"home\"",
            "cairn import home",
            "--read-only",
            "cairn wipe b.img",
            "label = false",
        ] {
            assert!(ran.err.contains(words), "{words}: {ran:?}");
        }
    }
    let read = "qemu-io -r -f raw \"$uri\" -c 'read -P 7 1M 4M'";
    assert_eq!(dir.cairn(&["serve", "b.img", "--read-only", "--run", read]).code, 0);
    assert_eq!(dir.cairn(&["serve", "raw.toml", "--read-only", "--run", read]).code, 0);
    dir.write("raw.toml", &raw(", read_only = true"));
    assert_eq!(dir.cairn(&["serve", "raw.toml", "--run", read]).code, 0);
    assert!(fs::read(dir.path("b.img")).unwrap() == before);
    // The label may have been written by Cairn in a guest.
    dir.write("raw.toml", &raw(", label = false"));
    let write = "qemu-io -f raw \"$uri\" -c 'write -P 2 0 4k'";
    assert_eq!(dir.cairn(&["serve", "raw.toml", "--run", write]).code, 0);
}

#[test]
fn apply_accepts_raw_disk_that_client_labelled_while_served() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 4M").code, 0);
    fs::rename(dir.path("b.img"), dir.path("image")).unwrap();
    fs::write(dir.path("b.img"), vec![0; 8 << 20]).unwrap();
    dir.write("raw.toml", &raw(""));
    let serve = dir.serve(&["raw.toml"]);
    assert_eq!(tool(&dir, "nbdcopy", &["image", serve.uri()]).code, 0);
    dir.write("raw.toml", &raw(", timeout = \"20s\""));
    dir.text(&["apply", "raw.toml"]);
    serve.stop().ok();
    assert_eq!(dir.cairn(&["serve", "raw.toml", "--run", "true"]).code, 5);
}

#[test]
fn daemon_refuses_raw_disk_that_has_label() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 4M").code, 0);
    let before = fs::read(dir.path("b.img")).unwrap();
    let mut daemon = Daemon::start(&dir);
    dir.write("raw.toml", &raw(""));
    for args in [&["apply", "raw.toml", "--dry-run"][..], &["apply", "raw.toml"]] {
        let ran = dir.cairn(args);
        assert!(ran.code == 5 && ran.err.contains("of the graph \"home\""), "{args:?}: {ran:?}");
    }
    assert!(!dir.cairn(&["ls"]).out.contains("raw"), "a graph that never came up is not kept");
    assert!(fs::read(dir.path("b.img")).unwrap() == before);
    dir.write("raw.toml", &raw(", label = false"));
    dir.text(&["apply", "raw.toml"]);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn apply_refuses_raw_disk_that_has_label() {
    let dir = pair();
    assert_eq!(io(&dir, &[], "write -P 7 0 4M").code, 0);
    fs::write(dir.path("c.img"), vec![0; 8 << 20]).unwrap();
    let spec = |more: &str, export: &str| {
        format!(
            "name = \"raw\"\n[disk]\nc = {{ file = \"c.img\" }}\n{more}[export]\nvol = {{ on = \"c\" }}\n{export}"
        )
    };
    dir.write("raw.toml", &spec("", ""));
    let serve = dir.serve(&["raw.toml"]);
    let before = fs::read(dir.path("b.img")).unwrap();
    dir.write("raw.toml", &spec("b = { file = \"b.img\" }\n", "more = { on = \"b\" }\n"));
    for args in [&["apply", "raw.toml", "--dry-run"][..], &["apply", "raw.toml"]] {
        let ran = dir.cairn(args);
        assert!(ran.code == 5 && ran.err.contains("of the graph \"home\""), "{args:?}: {ran:?}");
    }
    assert!(fs::read(dir.path("b.img")).unwrap() == before);
    let read = tool(&dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", "write -P 1 0 4k"]);
    assert_eq!(read.code, 0, "the graph is as before: {read:?}");
    dir.write(
        "raw.toml",
        &spec("b = { file = \"b.img\", label = false }\n", "more = { on = \"b\" }\n"),
    );
    dir.text(&["apply", "raw.toml"]);
    serve.stop().ok();
}
