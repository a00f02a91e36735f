//! Devices with persistent objects under `cairn serve`: growth of the disks below, insertion under a volume in use, and the
//! check of a mirror's store.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::fs::FileExt;

use api::{DeviceStatus, Status};
use common::{Dir, STORE_BYTES, io, tool, until};

fn spec(disks: &[(&str, &str)], devices: &str, top: &str) -> String {
    let disk = |(name, size): &(&str, &str)| {
        format!(
            "{name} = {{ file = \"{name}.img\", size = \"{size}\", create = true, label = true }}\n"
        )
    };
    let disks: String = disks.iter().map(disk).collect();
    let device = if devices.is_empty() { String::new() } else { format!("[device]\n{devices}\n") };
    format!("name = \"g\"\n[disk]\n{disks}{device}[export]\nvol = {{ on = \"{top}\" }}\n")
}

fn device(dir: &Dir, name: &str) -> DeviceStatus {
    let all: Vec<Status> = dir.json(0, &["status"]);
    let devices = all.into_iter().flat_map(|status| status.devices);
    devices.into_iter().find(|device| device.name == name).unwrap()
}

/// Returns the count of writes to a MiB.
fn count(dir: &Dir, mib: u64) -> String {
    let name = format!("writes to MiB {mib}");
    let rows = device(dir, "w").rows;
    rows.into_iter().find(|row| row.name == name).map_or("none".to_owned(), |row| row.value)
}

fn size(dir: &Dir, uri: &str) -> u64 {
    tool(dir, "nbdinfo", &["--size", uri]).out.trim().parse().expect("a number")
}

#[test]
fn export_of_device_with_objects_grows_with_disk_and_keeps_counts() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(&[("a", "16MiB")], "w = { kind = \"wear\", on = \"a\" }", "w"));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 0 4k", "write -P 0x22 12M 64k", "flush"]);
    let before = size(&dir, serve.uri());
    for grown in ["64M", "1G"] {
        dir.text(&["device", "resize", "a", grown]);
    }
    let after = size(&dir, serve.uri());
    assert!(after > before + (900 << 20), "{before} to {after}");
    io(&dir, serve.uri(), &["read -P 0x11 0 4k", "read -P 0x22 12M 64k"]);
    io(&dir, serve.uri(), &["write -P 0x33 900M 4k", "write -P 0x44 14M 4M", "flush"]);
    assert_eq!(count(&dir, 900), "1");
    serve.signal("KILL");
    drop(serve);

    let serve = dir.import(&["g"]);
    assert_eq!(size(&dir, serve.uri()), after);
    assert_eq!((count(&dir, 0), count(&dir, 12)), ("1".into(), "1".into()));
    let reads = ["read -P 0x11 0 4k", "read -P 0x22 12M 64k", "read -P 0x44 14M 4M"];
    io(&dir, serve.uri(), &reads);
    io(&dir, serve.uri(), &["read -P 0x33 900M 4k", "read -P 0 800M 1M"]);
    assert_eq!(serve.stop().code, 0);
    let checked = dir.text(&["check", "--directory", "."]);
    assert!(checked.contains("sound"), "{checked}");
}

#[test]
fn remap_gets_physical_blocks_from_grown_disk() {
    let dir = Dir::new();
    let thin = "thin = { kind = \"remap\", on = \"a\", size = \"1GiB\" }";
    dir.write("g.toml", &spec(&[("a", "16MiB")], thin, "thin"));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 0 8M", "flush"]);
    let before = device(&dir, "thin").room.unwrap();
    dir.text(&["device", "resize", "a", "256M"]);
    let after = device(&dir, "thin").room.unwrap();
    assert_eq!(after.taken_bytes, before.taken_bytes);
    assert!(after.of_bytes > before.of_bytes + (200 << 20), "{before:?} to {after:?}");
    io(&dir, serve.uri(), &["read -P 0x11 0 8M", "write -P 0x22 512M 100M", "flush"]);
    serve.signal("KILL");
    drop(serve);
    let serve = dir.import(&["g"]);
    io(&dir, serve.uri(), &["read -P 0x11 0 8M", "read -P 0x22 512M 100M", "read -P 0 8M 1M"]);
    assert_eq!(serve.stop().code, 0);
    let checked = dir.text(&["check", "--directory", "."]);
    assert!(checked.contains("sound"), "{checked}");
}

#[test]
fn pool_gets_space_from_grown_disk() {
    let dir = Dir::new();
    let past = "past = { kind = \"versioned\", on = \"a\", size = \"1GiB\" }";
    dir.write("g.toml", &spec(&[("a", "32MiB")], past, "past"));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 0 8M", "flush"]);
    let before = device(&dir, "past").room.unwrap();
    dir.text(&["device", "resize", "a", "256M"]);
    // The pool is opened for writing after the change is committed.
    io(&dir, serve.uri(), &["read -P 0x11 0 8M", "write -P 0x22 512M 100M", "flush"]);
    let after = device(&dir, "past").room.unwrap();
    assert!(after.of_bytes > before.of_bytes + (200 << 20), "{before:?} to {after:?}");
    serve.signal("KILL");
    drop(serve);
    let serve = dir.import(&["g"]);
    io(&dir, serve.uri(), &["read -P 0x11 0 8M", "read -P 0x22 512M 100M", "read -P 0 8M 1M"]);
    assert_eq!(serve.stop().code, 0);
    let checked = dir.text(&["check", "--directory", "."]);
    assert!(checked.contains("sound"), "{checked}");
}

/// With the counts on another disk, the bytes of the volume stay at their places.
#[test]
fn wear_is_inserted_under_volume_in_use_and_taken_out_again() {
    let dir = Dir::new();
    dir.write("plain.toml", &spec(&[("a", "16MiB")], "", "a"));
    let disks = [("a", "16MiB"), ("b", "8MiB")];
    let wear = "w = { kind = \"wear\", on = [\"a\", \"b\"], meta = \"b\" }";
    dir.write("counted.toml", &spec(&disks, wear, "w"));
    let serve = dir.serve(&["plain.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 3M 1M", "flush"]);
    dir.text(&["apply", "counted.toml"]);
    io(&dir, serve.uri(), &["read -P 0x11 3M 1M", "write -P 0x22 5M 4k", "flush"]);
    assert_eq!((count(&dir, 3), count(&dir, 5)), ("none".into(), "1".into()));
    dir.text(&["apply", "plain.toml"]);
    io(&dir, serve.uri(), &["read -P 0x11 3M 1M", "read -P 0x22 5M 4k"]);

    // Before the data, the counts would move them.
    let moved = spec(&[("a", "16MiB")], "w = { kind = \"wear\", on = \"a\" }", "w");
    dir.write("moved.toml", &moved);
    let ran = dir.cairn(&["apply", "moved.toml"]);
    assert!(ran.code != 0 && ran.err.contains("would"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
}

/// Each case of `docs/failures.md`, "A device with objects": its exit code and words, and no byte of the disks changes.
#[test]
fn start_refuses_disks_that_do_not_fit_device_with_objects() {
    let dir = Dir::new();
    let wear = "w = { kind = \"wear\", on = \"a\" }";
    dir.write("g.toml", &spec(&[("a", "16MiB")], wear, "w"));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 0 4k", "flush"]);
    assert_eq!(serve.stop().code, 0);
    // An opening changes the labels, in the first and the last MiB.
    let data = || std::fs::read(dir.path("a.img")).unwrap()[1 << 20..15 << 20].to_vec();
    let used = data();
    let plain = spec(&[("c", "16MiB")], "", "c");
    dir.write("plain.toml", &plain);
    let serve = dir.serve(&["plain.toml"]);
    io(&dir, serve.uri(), &["write -P 0x22 0 4k", "flush"]);
    assert_eq!(serve.stop().code, 0);

    let refused = |disks: &[(&str, &str)], devices: &str, code: i32, words: &str| {
        dir.write("bad.toml", &spec(disks, devices, "w"));
        let ran = dir.cairn(&["serve", "bad.toml"]);
        assert!(ran.code == code && ran.err.contains(words), "{devices}: {ran:?}");
    };
    let remap = "w = { kind = \"remap\", on = \"a\", size = \"1GiB\" }";
    refused(&[("a", "16MiB")], remap, 2, "have a wear of this name, not a remap");
    let foreign = "w = { kind = \"wear\", on = \"c\" }";
    refused(&[("c", "16MiB")], foreign, 4, "but are not new");
    let first = "w = { kind = \"wear\", on = [\"b\", \"a\"], meta = \"b\" }";
    refused(&[("a", "16MiB"), ("b", "8MiB")], first, 3, "is the first device in \"on\"");
    let small = "w = { kind = \"remap\", on = \"d\", size = \"1GiB\", block = \"4KiB\" }";
    refused(&[("d", "3MiB")], small, 3, "use a larger disk");
    assert!(data() == used, "a refused start changed the data of the disk");
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["read -P 0x11 0 4k"]);
    assert_eq!((count(&dir, 0), serve.stop().code), ("1".to_owned(), 0));

    // The labels of the refused start have the added disk, so this case is the last.
    let used = data();
    let apart = "w = { kind = \"wear\", on = [\"a\", \"b\"], meta = \"b\" }";
    refused(&[("a", "16MiB"), ("b", "8MiB")], apart, 2, "with its metadata before the data");
    assert!(data() == used, "a refused start changed the data of the disk");
}

/// Serves a mirror until its labels name its store, and stops it.
fn mirror_with_store(dir: &Dir) {
    let serve = dir.serve(&["g.toml"]);
    io(dir, serve.uri(), &["write -P 0x11 1M 1M", "flush"]);
    until("the store is made", || dir.cairn(&["check"]).out.contains("maps in the store"));
    until("the members are in sync", || dir.cairn(&["status"]).code == 0);
    assert_eq!(serve.stop().code, 0);
    assert!(dir.text(&["check"]).contains("maps in the store"));
}

/// Overwrites the room of the store at the end of the data on these disks of 16 MiB. Returns what the check reports.
fn check_damaged(dir: &Dir, disks: &[&str]) -> String {
    for disk in disks {
        let path = dir.path(&format!("{disk}.img"));
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&vec![0xee; STORE_BYTES as usize], (15 << 20) - STORE_BYTES).unwrap();
    }
    let read = || ["a.img", "b.img"].map(|disk| std::fs::read(dir.path(disk)).unwrap());
    let before = read();
    let checked = dir.cairn(&["check"]);
    assert!(checked.code == 10 && before == read(), "{checked:?}");
    checked.out
}

#[test]
fn check_reports_damaged_store_of_mirror_until_next_start_makes_new_store() {
    let (dir, disks) = (Dir::new(), [("a", "16MiB"), ("b", "16MiB")]);
    dir.write("g.toml", &spec(&disks, "m = { kind = \"mirror\", on = [\"a\", \"b\"] }", "m"));
    mirror_with_store(&dir);
    let found = check_damaged(&dir, &["b"]);
    for words in ["the store of the bitmaps on b is lost", "the next start makes a new store"] {
        assert!(found.contains(words), "{found}");
    }
    mirror_with_store(&dir);
    let found = check_damaged(&dir, &["a", "b"]);
    let words = "the store of the bitmaps cannot be read, so the next start copies members";
    assert!(found.contains(words), "{found}");
    mirror_with_store(&dir);
}

#[test]
fn check_of_mirror_without_store_finds_nothing() {
    let (dir, disks) = (Dir::new(), [("a", "16MiB"), ("b", "16MiB")]);
    let mirror = "m = { kind = \"mirror\", on = [\"a\", \"b\"], store = false }";
    dir.write("g.toml", &spec(&disks, mirror, "m"));
    let serve = dir.serve(&["g.toml"]);
    assert_eq!(size(&dir, serve.uri()), 14 << 20);
    assert_eq!(serve.stop().code, 0);
    assert!(dir.text(&["check"]).contains("regions dirty"));
}
