//! Files of served disks that another program truncates, deletes or renames.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::OpenOptions;

use common::{Dir, Ran, Serve, tool};

const PAIR: &str = "name = \"p\"\n[disk]\n\
                    a = { file = \"a.img\", size = \"64MiB\", create = true, label = true }\n\
                    b = { file = \"b.img\", size = \"64MiB\", create = true, label = true }\n\
                    [device]\nm = { kind = \"mirror\", on = [\"a\", \"b\"] }\n[export]\nvol = { on = \"m\" }\n";

fn io(dir: &Dir, serve: &Serve, command: &str) -> Ran {
    let mut ran = tool(dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", command]);
    ran.out.push_str(&std::mem::take(&mut ran.err));
    ran
}

/// Runs the qemu-io read `command` eight times, so that the mirror reads from every member. All must succeed.
fn reads_are(dir: &Dir, serve: &Serve, command: &str) {
    for _ in 0..8 {
        let ran = io(dir, serve, command);
        assert!(ran.code == 0 && !ran.out.contains("failed"), "{ran:?}");
    }
}

fn cut(dir: &Dir, name: &str, bytes: u64) {
    OpenOptions::new().write(true).open(dir.path(name)).unwrap().set_len(bytes).unwrap();
}

fn events(dir: &Dir) -> String {
    dir.text(&["events"])
}

#[test]
fn mirror_fails_and_resyncs_truncated_member() {
    let dir = Dir::new();
    dir.write("p.toml", PAIR);
    let serve = dir.serve(&["p.toml"]);
    assert_eq!(io(&dir, &serve, "write -P 9 0 61M").code, 0);
    cut(&dir, "b.img", 20 << 20);
    assert_eq!(io(&dir, &serve, "write -P 9 60M 1M").code, 0);
    reads_are(&dir, &serve, "read -P 9 25M 30M");
    let status = dir.cairn(&["status"]);
    assert!(status.code == 10 && status.out.contains("truncated the file"), "{status:?}");
    assert!(events(&dir).contains("disk-cut"), "{}", events(&dir));
    assert!(dir.path("b.img").metadata().unwrap().len() < 64 << 20, "nothing was written to it");
    serve.stop().ok();

    cut(&dir, "b.img", 64 << 20);
    assert_eq!(dir.cairn(&["check"]).code, 10, "its label is not sound");
    let serve = dir.serve(&["p.toml", "--wipe", "b"]);
    common::until("b is in sync", || dir.cairn(&["status"]).code == 0);
    reads_are(&dir, &serve, "read -P 9 25M 30M");
    serve.stop().ok();
}

#[test]
fn only_disk_fails_requests_after_file_is_truncated() {
    let dir = Dir::new();
    let serve = {
        assert_eq!(dir.cairn(&["create", "d.img", "16M"]).code, 0);
        dir.serve(&["d.img"])
    };
    assert_eq!(io(&dir, &serve, "write -P 7 0 16M").code, 0);
    cut(&dir, "d.img", 1 << 20);
    // Even a write to the last block must fail, for it would extend the file again.
    let ran = io(&dir, &serve, "write -P 7 15M 1M");
    assert!(ran.out.contains("error"), "{ran:?}");
    assert_eq!(dir.path("d.img").metadata().unwrap().len(), 1 << 20);
    let status = dir.cairn(&["status"]);
    assert!(status.code == 11 && status.out.contains("truncated the file"), "{status:?}");
    drop(serve);
}

#[test]
fn mirror_fails_member_whose_file_is_deleted() {
    let dir = Dir::new();
    dir.write("p.toml", PAIR);
    let serve = dir.serve(&["p.toml"]);
    assert_eq!(io(&dir, &serve, "write -P 9 0 1M").code, 0);
    std::fs::remove_file(dir.path("b.img")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(io(&dir, &serve, "write -P 8 0 1M").code, 0);
    let status = dir.cairn(&["status"]);
    assert!(status.code == 10 && status.out.contains("failed"), "{status:?}");
    assert!(events(&dir).contains("disk-deleted"), "{}", events(&dir));
    reads_are(&dir, &serve, "read -P 8 0 1M");
    serve.stop().ok();
}

#[test]
fn server_keeps_serving_deleted_file_of_only_disk() {
    let dir = Dir::new();
    assert_eq!(dir.cairn(&["create", "d.img", "16M"]).code, 0);
    let serve = dir.serve(&["d.img"]);
    std::fs::remove_file(dir.path("d.img")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(io(&dir, &serve, "write -P 7 0 1M").code, 0);
    let status = dir.cairn(&["status"]);
    assert!(status.code == 10 && status.out.contains("deleted"), "{status:?}");
    let from = status.out.split_whitespace().find(|word| word.starts_with("/proc/"));
    let from = from.unwrap_or_else(|| panic!("it shows where: {status:?}"));
    let saved = std::fs::read(from).unwrap();
    assert!(saved.len() == 16 << 20 && saved[..1 << 20].iter().all(|byte| *byte == 7));
    drop(serve);
}

#[test]
fn event_reports_renamed_file_of_disk() {
    let dir = Dir::new();
    assert_eq!(dir.cairn(&["create", "d.img", "16M"]).code, 0);
    let serve = dir.serve(&["d.img"]);
    std::fs::rename(dir.path("d.img"), dir.path("e.img")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(io(&dir, &serve, "write -P 7 0 1M").code, 0);
    assert_eq!(dir.cairn(&["status"]).code, 0);
    assert!(events(&dir).contains("disk-moved"), "{}", events(&dir));
    serve.stop().ok();
}

#[test]
fn failed_first_start_removes_only_files_that_it_created() {
    let dir = Dir::new();
    let crypt = |on: &str| {
        PAIR.replace(
            "[export]",
            &format!("s = {{ kind = \"crypt\", on = \"{on}\", key = \"file:none\" }}\n[export]"),
        )
        .replace("vol = { on = \"m\" }", "vol = { on = \"s\" }")
    };
    dir.write("p.toml", &crypt("m"));
    let ran = dir.cairn(&["serve", "p.toml", "--run", "true"]);
    assert!(ran.code == 7 && ran.err.contains("none"), "{ran:?}");
    let exists = |name: &str| dir.path(name).exists();
    assert!(!exists("a.img") && !exists("b.img"), "files are left");
    // The first start of a graph whose disks were there, or of which one disk was there.
    dir.write("p.toml", PAIR);
    dir.cairn(&["serve", "p.toml", "--run", "true"]).ok();
    dir.write("p.toml", &crypt("m"));
    assert_ne!(dir.cairn(&["serve", "p.toml", "--run", "true"]).code, 0);
    assert!(exists("a.img") && exists("b.img"));
    dir.text(&["create", "raw.img", "64M"]);
    let raw = "[disk]\na = { file = \"raw.img\" }\nb = { file = \"new.img\", size = \"64MiB\", create = true }\n\
               [device]\nall = { kind = \"concat\", on = [\"a\", \"b\"] }\n\
               bad = { kind = \"crypt\", on = \"all\", key = \"file:none\", plain = true }\n[export]\nvol = { on = \"bad\" }\n";
    dir.write("raw.toml", raw);
    assert_eq!(dir.cairn(&["serve", "raw.toml", "--run", "true"]).code, 7);
    assert!(exists("raw.img"), "a disk with data is gone");
}
