//! `cairn attach` on a machine where a device node, a writable directory or the kernel's NBD client is missing. These
//! tests have a file of their own: each server has a mount namespace, which would keep the mounts of other tests busy.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::path::Path;
use std::process::Command;

use common::machine::{Background, Name, is_root};
use common::{Dir, until};

/// Runs the shell commands `lines` in a new mount namespace, and then starts `cairn serve` in that namespace.
fn elsewhere(dir: &Dir, lines: &str) -> Background {
    dir.text(&["create", "disk.img", "1M"]);
    let script =
        format!("{lines}\nexec {} serve disk.img --pidfile pid", env!("CARGO_BIN_EXE_cairn"));
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &script]).current_dir(&dir.0);
    let child = Background::start(command.env("XDG_RUNTIME_DIR", dir.path("run")));
    until("it serves", || dir.path("pid").exists());
    child
}

#[test]
fn failed_attach_leaves_no_mount_or_device() {
    if !is_root() {
        return;
    }
    let hidden = "mount -t tmpfs tmpfs /dev; mknod /dev/null c 1 3; mknod /dev/urandom c 1 9;";
    for (lines, code, words) in [
        (hidden.to_owned(), 9, "/dev/fuse"),
        (format!("{hidden} mknod /dev/fuse c 10 229"), 9, "no loop devices"),
        (
            format!("{hidden} mknod /dev/fuse c 10 229; ln -s null /dev/loop-control"),
            8,
            "/dev/loop-control",
        ),
        (
            "mkdir -p /run/cairn; mount -t tmpfs -o mode=700,nr_inodes=1 tmpfs /run/cairn".to_owned(),
            6,
            "making /run/cairn",
        ),
        (
            "mkdir -p /run/cairn/attach; mount -t tmpfs -o mode=700,nr_inodes=2 tmpfs /run/cairn/attach"
                .to_owned(),
            6,
            "/run/cairn/attach",
        ),
        (
            "mkdir -p /run/cairn/attach; mount -t tmpfs -o mode=700,ro tmpfs /run/cairn/attach".to_owned(),
            7,
            "/run/cairn/attach",
        ),
        ("mkdir -p /dev/cairn; mount -t tmpfs -o ro tmpfs /dev/cairn".to_owned(), 7, "/dev/cairn"),
    ] {
        let dir = Dir::new();
        let name = Name::new(&dir);
        let mut server = elsewhere(&dir, &lines);
        let ran = dir.cairn(&["attach", "vol", "--name", &name.name, "--by", "fuse"]);
        assert!(
            ran.code == code && ran.err.contains(words) && ran.out.is_empty(),
            "{lines}: {ran:?}"
        );
        assert!(name.is_gone(), "{lines}");
        let root = format!("/proc/{}/root", server.id());
        assert!(!Path::new(&format!("{root}/run/cairn/attach/{}", name.name)).exists());
        // The server does not retry the failed attach, and serves on.
        assert_eq!(dir.cairn(&["status"]).code, 0);
        common::send(server.id(), "TERM");
        assert_eq!(server.end(), Some(0), "{lines}");
    }
}

#[test]
fn attach_reports_missing_kernel_nbd_client() {
    let has_nbd = ["/sys/module/nbd", "/dev/nbd0"].iter().any(|sign| Path::new(sign).exists());
    if !is_root() || has_nbd {
        return;
    }
    let dir = Dir::new();
    let name = Name::new(&dir);
    let hidden = "mount -t tmpfs tmpfs /dev; mknod /dev/null c 1 3; mknod /dev/urandom c 1 9;";
    let mut server = elsewhere(&dir, hidden);
    for (by, words) in
        [(&["--by", "nbd"][..], "or --by fuse"), (&[], "modprobe fuse, or modprobe nbd")]
    {
        let ran = dir.cairn(&[&["attach", "vol", "--name", &name.name], by].concat());
        assert!(ran.code == 9 && ran.err.contains(words) && ran.out.is_empty(), "{by:?}: {ran:?}");
        assert!(ran.err.contains("no /sys/module/nbd"), "{ran:?}");
        assert!(name.is_gone(), "{by:?}");
    }
    assert_eq!(dir.cairn(&["attach", "vol", "--by", "loop"]).code, 2);
    common::send(server.id(), "TERM");
    assert_eq!(server.end(), Some(0));
}
