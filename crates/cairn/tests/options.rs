//! Live changes of disk options: `cairn apply` reopens a disk while clients use it.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use api::{Applied, GraphView};
use common::load::Load;
use common::machine::noise;
use common::{Dir, STORE_BYTES, Serve, tool, until};
use rustix::fs::OFlags;

/// Returns the spec of a mirror on two labelled disks, with the options `a` and `b` of the disks.
fn spec(a: &str, b: &str) -> String {
    format!(
        "name = \"home\"\n[disk]\n\
         a = {{ file = \"a.img\", size = \"64MiB\", create = true, label = true{a} }}\n\
         b = {{ file = \"b.img\", size = \"64MiB\", create = true, label = true{b} }}\n\
         [device]\npair = {{ kind = \"mirror\", on = [\"a\", \"b\"] }}\n[export]\n\
         vol = {{ on = \"pair\" }}\n"
    )
}

fn served() -> (Dir, Serve) {
    let dir = Dir::new();
    dir.write("home.toml", &spec("", ""));
    let serve = dir.serve(&["home.toml"]);
    (dir, serve)
}

fn in_sync(dir: &Dir) {
    until("all members are in sync", || dir.cairn(&["status"]).code == 0);
}

/// Whether the process `pid` has `file` open for writing with O_DIRECT.
fn is_direct(pid: u32, file: &Path) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let flags = fds.flatten().filter_map(|fd| {
        let is_it = std::fs::read_link(fd.path()).is_ok_and(|at| at == file);
        let info = format!("/proc/{pid}/fdinfo/{}", fd.file_name().to_string_lossy());
        let info = std::fs::read_to_string(info).ok().filter(|_| is_it)?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
        Some(OFlags::from_bits_retain(u32::from_str_radix(&flags, 8).ok()?))
    });
    // The other descriptor is only used to query extents.
    let writes: Vec<OFlags> = flags.filter(|flags| flags.contains(OFlags::RDWR)).collect();
    assert_eq!(writes.len(), 1, "{file:?} is open to be written once");
    writes[0].contains(OFlags::DIRECT)
}

#[test]
fn apply_reopens_labelled_disks_under_load() {
    let (dir, serve) = served();
    let (uri, pid) = (serve.uri().to_owned(), serve.pid());
    let disk = dir.path("a.img").canonicalize().unwrap();
    assert!(is_direct(pid, &disk), "the directory for temporary files has O_DIRECT");
    std::fs::write(dir.path("image"), noise(32 << 20, 3)).unwrap();
    assert_eq!(tool(&dir, "nbdcopy", &["image", &uri]).code, 0);

    let load = Load::of_nbd_with(
        &dir,
        &uri,
        &["--rw=randwrite", "--verify_backlog=64", "--offset=32M", "--size=16M"],
    );
    std::fs::create_dir(dir.path("sub")).unwrap();
    for round in 0..6 {
        let (a, b) = match round % 3 {
            0 => (", cache = \"buffered\"", ""),
            // In odd rounds, the path is spelled differently.
            1 => (", timeout = \"9s\", cache = \"buffered\"", ", timeout = \"8s\""),
            _ => ("", ", cache = \"buffered\", timeout = \"7s\""),
        };
        in_sync(&dir);
        let text = spec(a, b);
        dir.write("next.toml", &text.replace("a.img", ["a.img", "sub/../a.img"][round % 2]));
        let would: Applied = dir.json(0, &["apply", "next.toml", "--dry-run"]);
        let was = is_direct(pid, &disk);
        let applied: Applied = dir.json(0, &["apply", "next.toml"]);
        assert_eq!(would.changes.len(), applied.changes.len());
        assert!(applied.changes.iter().any(|line| line.verb == "change" && line.name == "a"));
        assert_eq!(is_direct(pid, &disk), !a.contains("buffered"), "{round}, before {was}");
        assert!(dir.text(&["diff", "next.toml"]).contains("nothing to do"));
        std::thread::sleep(Duration::from_millis(300));
    }
    in_sync(&dir);
    dir.text(&["check"]);
    load.end();

    assert_eq!(serve.stop().code, 0);
    let end = (63 << 20) - STORE_BYTES as usize;
    let read = |name: &str| std::fs::read(dir.path(name)).unwrap()[1 << 20..end].to_vec();
    assert!(read("a.img") == read("b.img"), "the copies differ");
    assert!(read("a.img")[..32 << 20] == noise(32 << 20, 3)[..], "what was there is there");
    dir.text(&["check"]);
    let serve = dir.serve(&["next.toml"]);
    assert_eq!(dir.cairn(&["status"]).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn apply_refuses_disk_options_that_cannot_change_live() {
    let (dir, serve) = served();
    let before: GraphView = dir.json(0, &["graph"]);
    let larger = spec("", "").replace("a.img\", size = \"64MiB\"", "a.img\", size = \"96MiB\"");
    let smaller = larger.replace("96MiB", "32MiB");
    let cases = [
        (spec(", read_only = true", ""), "read_only cannot change while the disk is in use"),
        (larger.clone(), "Next: cairn device resize a 96MiB"),
        (smaller, "a labelled disk cannot shrink. Next: remove size; or put the data of a"),
    ];
    for (text, words) in &cases {
        dir.write("next.toml", text);
        for dry_run in [&["--dry-run"][..], &[]] {
            let ran = dir.cairn(&[&["apply", "next.toml"], dry_run].concat());
            assert!(ran.code == 9 && ran.err.contains(words), "{words}: {ran:?}");
            assert!(!ran.err.contains("in use by process"), "{ran:?}");
        }
    }
    assert_eq!(dir.json::<GraphView>(0, &["graph"]), before);

    // The advice of the message works: after the disk has grown, the spec matches.
    dir.text(&["device", "resize", "a", "96MiB"]);
    dir.write("next.toml", &larger);
    assert_eq!(
        dir.text(&["apply", "next.toml"]),
        "home already matches the spec; nothing to do.\n"
    );
    in_sync(&dir);
    assert_eq!(serve.stop().code, 0);
}

/// A file is larger than its label records if the server was killed during a resize, after it had extended the file.
#[test]
fn disk_keeps_labelled_size_when_file_is_larger() {
    let (dir, serve) = served();
    assert_eq!(serve.stop().code, 0);
    let file = std::fs::File::options().write(true).open(dir.path("a.img")).unwrap();
    file.set_len(80 << 20).unwrap();
    let serve = dir.serve(&["home.toml"]);
    let view: GraphView = dir.json(0, &["graph"]);
    assert_eq!(view.nodes.iter().find(|node| node.name == "a").unwrap().size_bytes, 62 << 20);
    assert!(dir.text(&["apply", "home.toml"]).contains("nothing to do"));
    dir.text(&["device", "resize", "a"]);
    assert_eq!(serve.stop().code, 0);
    // Now the label holds the new size.
    let ran = dir.cairn(&["serve", "home.toml"]);
    assert!(ran.code != 0 && ran.err.contains("but a.img has 80 MiB"), "{ran:?}");
}

#[test]
fn migration_moves_volume_to_smaller_labelled_disk() {
    let dir = Dir::new();
    let on = |disk: &str, name: &str, size: &str| {
        format!(
            "name = \"home\"\n[disk]\n{disk}\n[device]\n\
             p-{name} = {{ kind = \"partition\", on = \"{name}\", size = \"16MiB\" }}\n[export]\n\
             vol = {{ on = \"p-{name}\" }}\n"
        )
        .replace("SIZE", size)
    };
    let disk = |name: &str| {
        format!(
            "{name} = {{ file = \"{name}.img\", size = \"SIZE\", create = true, label = true }}"
        )
    };
    dir.write("home.toml", &on(&disk("a"), "a", "64MiB"));
    let serve = dir.serve(&["home.toml"]);
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 16M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    dir.write("next.toml", &on(&disk("b"), "b", "32MiB"));
    dir.text(&["apply", "next.toml", "--move"]);
    until("all has moved", || !dir.text(&["graph"]).contains("migrate"));
    let read = ["-f", "raw", serve.uri(), "-c", "read -P 9 0 16M"];
    assert_eq!(tool(&dir, "qemu-io", &read).code, 0);
    assert!(dir.json::<GraphView>(0, &["graph"]).nodes.iter().all(|node| node.name != "a"));
    assert_eq!(serve.stop().code, 0);
}

/// Labels do not record the options of a disk, so the graph starts with the old and the new spec after the kill.
#[test]
fn kill_during_disk_reopen_keeps_acknowledged_writes() {
    let (dir, serve) = served();
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 4M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    dir.write("other.toml", &spec(", cache = \"buffered\"", ", cache = \"buffered\""));
    let mut running = serve;
    for round in 0..12_u64 {
        in_sync(&dir);
        let (now, next) =
            if round % 2 == 0 { ("home.toml", "other.toml") } else { ("other.toml", "home.toml") };
        let mut change = dir.command(&["apply", next]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(round * 1500));
        running.signal("KILL");
        drop(running);
        change.wait().unwrap();
        // One copy of a label that was being written may be stale.
        let checked = dir.cairn(&["check"]);
        assert!([0, 10].contains(&checked.code), "{round}: {checked:?}");
        running = dir.serve(&[if round % 4 < 2 { now } else { next }]);
        let uri = running.uri().to_owned();
        let read = ["-f", "raw", &uri, "-c", "read -P 9 0 4M", "-c", "write -P 9 0 1M"];
        assert_eq!(tool(&dir, "qemu-io", &read).code, 0, "{round}");
        dir.text(&["apply", next]);
    }
    assert_eq!(running.stop().code, 0);
}

#[test]
fn apply_reopens_disk_without_label() {
    let dir = Dir::new();
    let spec = |how: &str| {
        format!(
            "name = \"raw\"\n[disk]\na = {{ file = \"a.img\", size = \"16MiB\", create = true{how} }}\n\
             [export]\nvol = {{ on = \"a\" }}\n"
        )
    };
    dir.write("raw.toml", &spec(""));
    dir.write("next.toml", &spec(", cache = \"buffered\", timeout = \"5s\""));
    let serve = dir.serve(&["raw.toml"]);
    let disk = dir.path("a.img").canonicalize().unwrap();
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 4M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    for (next, direct) in [("next.toml", false), ("raw.toml", true)] {
        dir.text(&["apply", next]);
        let read = ["-f", "raw", serve.uri(), "-c", "read -P 9 0 4M", "-c", "write -P 9 0 4M"];
        assert_eq!(tool(&dir, "qemu-io", &read).code, 0);
        assert_eq!(is_direct(serve.pid(), &disk), direct);
    }
    dir.write("next.toml", &spec(", read_only = true"));
    let ran = dir.cairn(&["apply", "next.toml"]);
    assert!(ran.code == 9 && ran.err.contains("read_only cannot change"), "{ran:?}");
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn apply_refuses_nbd_disk_options_that_cannot_change_live() {
    let dir = Dir::new();
    dir.text(&["create", "far.img", "16M"]);
    let far = dir.serve(&["far.img"]);
    let near = |how: &str| {
        let disk = format!("a = {{ nbd = \"{}\", label = true{how} }}", far.uri());
        format!("name = \"near\"\n[disk]\n{disk}\n[export]\nvol = {{ on = \"a\" }}\n")
    };
    dir.write("near.toml", &near(""));
    let serve = dir.serve(&["near.toml"]);
    dir.write("next.toml", &near(", timeout = \"7s\", reconnect = \"9s\""));
    let ran = dir.cairn(&["apply", "next.toml"]);
    let words =
        "reconnect, timeout of a labelled disk of kind nbd cannot change while the disk is in use";
    assert!(ran.code == 9 && ran.err.contains(words), "{ran:?}");
    let write = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 1M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &write).code, 0);
    assert_eq!(serve.stop().code, 0);
    let serve = dir.serve(&["next.toml"]);
    let read = ["-f", "raw", serve.uri(), "-c", "read -P 9 0 1M"];
    assert_eq!(tool(&dir, "qemu-io", &read).code, 0);
    assert_eq!(serve.stop().code, 0);
    assert_eq!(far.stop().code, 0);
}
