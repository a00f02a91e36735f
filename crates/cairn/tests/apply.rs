//! `cairn apply` and `cairn device resize`: live changes of graphs while clients use them.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use api::{Applied, GraphView};
use common::load::Load;
use common::machine::{Name, is_root, noise, run};
use common::{Dir, STORE_BYTES, Serve, tool, until};

/// Returns the spec of an encrypted mirror with two members, with further disks, devices and exports.
fn spec(disks: &str, devices: &str, exports: &str) -> String {
    format!(
        "name = \"home\"\n[disk]\n\
         a = {{ file = \"a.img\", size = \"64MiB\", create = true, label = true }}\n\
         b = {{ file = \"b.img\", size = \"64MiB\", create = true, label = true }}\n{disks}\n\
         [device]\n\
         safe = {{ kind = \"crypt\", on = \"pair\", key = \"file:key\", kdf_memory = \"1MiB\", \
         kdf_passes = 1 }}\n{devices}\n[export]\n{exports}\n"
    )
}

const C: &str = "c = { file = \"c.img\", size = \"64MiB\", create = true, label = true }";
const PAIR: &str = "pair = { kind = \"mirror\", on = [\"a\", \"b\"] }";
const VOL: &str = "vol = { on = \"safe\" }";

fn served() -> (Dir, Serve) {
    let dir = Dir::new();
    dir.write("key", "correct horse battery staple");
    dir.write("home.toml", &spec("", PAIR, VOL));
    let serve = dir.serve(&["home.toml"]);
    (dir, serve)
}

fn in_sync(dir: &Dir) {
    until("all members are in sync", || dir.cairn(&["status"]).code == 0);
}

/// `show` writes the addresses of the server, which the spec leaves out.
#[test]
fn shown_spec_is_no_change() {
    let (dir, serve) = served();
    dir.write("shown.toml", &dir.text(&["show"]));
    let applied: Applied = dir.json(0, &["apply", "shown.toml", "--dry-run"]);
    assert!(applied.changes.is_empty(), "{applied:?}");
    dir.text(&["apply", "shown.toml"]);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn clients_keep_working_during_every_live_change() {
    let (dir, serve) = served();
    let uri = serve.uri().to_owned();
    let load = Load::of_nbd_with(
        &dir,
        &uri,
        &["--rw=randwrite", "--iodepth=16", "--verify_backlog=64", "--size=48M"],
    );
    let slow = "slow = { kind = \"delay\", on = \"safe\", time = \"1ms\" }";
    let three = "pair = { kind = \"mirror\", on = [\"a\", \"b\", \"c\"] }";
    let moved = "pair = { kind = \"mirror\", on = [\"b\", \"c\"] }";
    let mut no_a = spec(C, moved, VOL);
    no_a = no_a.lines().filter(|line| !line.starts_with("a = ")).collect::<Vec<_>>().join("\n");
    let steps = [
        spec("", &format!("{PAIR}\n{slow}"), "vol = { on = \"slow\" }"),
        spec(C, &format!("{three}\n{slow}"), "vol = { on = \"slow\" }"),
        spec(C, three, VOL),
        no_a,
    ];
    for step in &steps {
        in_sync(&dir);
        dir.write("next.toml", step);
        let applied: Applied = dir.json(0, &["apply", "next.toml"]);
        assert!(!applied.changes.is_empty());
        std::thread::sleep(Duration::from_millis(300));
    }
    in_sync(&dir);
    let longest = load.end();
    assert!(longest < Duration::from_secs(5), "a client waited for {longest:?}");

    // The changed graph opens again from its labels, and needs none of the removed disks.
    assert_eq!(serve.stop().code, 0);
    let end = (63 << 20) - STORE_BYTES as usize;
    let read = |name: &str| std::fs::read(dir.path(name)).unwrap()[1 << 20..end].to_vec();
    assert!(read("b.img") == read("c.img"), "the copies differ");
    let refused = dir.cairn(&["serve", "home.toml", "--dry-run"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.err.contains("do not list that disk"), "{refused:?}");
    // A power cut in a `--wipe` that leaves half of a label does not make it a truncated disk either.
    let half = std::fs::File::options().write(true).open(dir.path("a.img")).unwrap();
    half.write_all_at(&vec![0; 1 << 20], half.metadata().unwrap().len() - (1 << 20)).unwrap();
    let refused = dir.cairn(&["serve", "home.toml", "--dry-run"]);
    assert!(refused.code == 5 && refused.err.contains("--wipe a"), "{refused:?}");
    assert!(!refused.err.contains("another program has overwritten"), "{refused:?}");
    std::fs::remove_file(dir.path("a.img")).unwrap();
    let serve = dir.serve(&["next.toml"]);
    assert_eq!(dir.cairn(&["status"]).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn apply_leaves_graph_unchanged_when_change_is_impossible() {
    let (dir, serve) = served();
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 4M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    let before: GraphView = dir.json(0, &["graph"]);
    let three = "pair = { kind = \"mirror\", on = [\"a\", \"b\", \"c\"] }";
    dir.text(&["create", "held.img", "64M"]);
    run("mkfs.ext4", &["-q", &dir.path("held.img").display().to_string()]);
    let plain = "plain = { file = \"plain.img\" }";
    std::fs::write(dir.path("plain.img"), vec![0; 1 << 20]).unwrap();
    dir.text(&["create", "blank.img", "64M"]);
    let part = "p = { kind = \"partition\", on = \"safe\", start = \"1MiB\", size = \"4MiB\" }";
    let cases = [
        // The volume would have other bytes, or fewer.
        (
            spec("", PAIR, VOL).replace("kdf_passes", "unit = \"4KiB\", kdf_passes"),
            9,
            "other bytes",
        ),
        (spec("", &format!("{PAIR}\n{part}"), "vol = { on = \"p\" }"), 9, "other bytes"),
        (spec(plain, PAIR, "vol = { on = \"plain\" }"), 9, "vol would show other bytes"),
        // Another graph, or another address.
        (spec("", PAIR, VOL).replace("\"home\"", "\"away\""), 2, "the spec is of \"away\""),
        (
            spec("", PAIR, VOL).replace("[disk]", "[nbd]\nlisten = \"unix:x.sock\"\n[disk]"),
            9,
            "the spec changes [nbd]",
        ),
        // Faults of the spec, reported as by validate.
        (spec("", PAIR, "vol = { on = \"sage\" }"), 3, "did you mean \"safe\"?"),
        // A missing disk, or one that holds other data.
        (spec(&C.replace("create = true, ", ""), three, VOL), 4, "c.img"),
        (spec(&C.replace("c.img", "held.img"), three, VOL), 5, "HOLDS ext4"),
        // A disk in use that would move to a place without its data.
        (
            spec("", PAIR, VOL).replace("b.img", "blank.img"),
            2,
            "label of disk b, which is in use on b.img",
        ),
        (
            spec("", PAIR, VOL).replace("b.img", "none.img"),
            2,
            "label of disk b, which is in use on b.img",
        ),
    ];
    for (text, code, words) in &cases {
        dir.write("next.toml", text);
        let ran = dir.cairn(&["apply", "next.toml"]);
        assert!(ran.code == *code && ran.err.contains(words), "{code} {words}: {ran:?}\n{text}");
    }
    // From another directory the paths would mean other files.
    std::fs::create_dir(dir.path("sub")).unwrap();
    let elsewhere = dir.command(&["apply", "../home.toml"]).current_dir(dir.path("sub")).output();
    let ran = common::Ran::of(&elsewhere.unwrap());
    assert!(ran.code == 2 && ran.err.contains("run this command in that directory"), "{ran:?}");
    // A disk in use is not wiped.
    let ran = dir.cairn(&["apply", "home.toml", "--wipe", "a"]);
    assert!(ran.code == 5 && ran.err.contains("a.img is in use by this graph"), "{ran:?}");
    assert_eq!(dir.json::<GraphView>(0, &["graph"]), before);
    assert_eq!(dir.text(&["diff", "home.toml"]), "home already matches the spec; nothing to do.\n");
    let read = ["-f", "raw", serve.uri(), "-c", "read -P 9 0 4M"];
    assert_eq!(tool(&dir, "qemu-io", &read).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn apply_of_spec_with_absolute_paths_works_in_any_directory() {
    let dir = Dir::new();
    let paths = dir.0.display();
    dir.write("key", "correct horse battery staple");
    let key = format!("file:{paths}/key");
    dir.write("home.toml", &spec("", PAIR, VOL).replace("file:key", &key));
    let _serve = dir.serve(&["home.toml"]);
    let absolute = spec(C, PAIR, "vol = { on = \"safe\" }\nmore = { on = \"c\" }")
        .replace("file:key", &key)
        .replace("file = \"", &format!("file = \"{paths}/"));
    std::fs::create_dir(dir.path("sub")).unwrap();
    dir.write("sub/home.toml", &absolute);
    let sub = dir.path("sub");
    let apply = |verb| {
        common::Ran::of(&dir.command(&[verb, "home.toml"]).current_dir(&sub).output().unwrap())
    };
    let ran = apply("apply");
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = apply("diff");
    assert!(ran.code == 0 && ran.out.contains("already matches"), "{ran:?}");
    dir.write("sub/home.toml", &absolute.replace(&format!("{paths}/c.img"), "c.img"));
    let ran = apply("diff");
    assert!(ran.code == 2 && ran.err.contains("relative to"), "{ran:?}");
}

#[test]
fn apply_rolls_back_change_when_new_device_cannot_open() {
    let (dir, serve) = served();
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 4M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    // The mirror is rebuilt, and then the key of another device is missing.
    let other = "d = { file = \"d.img\", size = \"16MiB\", create = true, label = true }";
    let three = "pair = { kind = \"mirror\", on = [\"a\", \"b\", \"c\"] }\n\
                 other = { kind = \"crypt\", on = \"d\", key = \"file:nowhere\" }";
    let exports = format!("{VOL}\nmore = {{ on = \"other\" }}");
    dir.write("next.toml", &spec(&format!("{C}\n{other}"), three, &exports));
    for _ in 0..3 {
        let ran = dir.cairn(&["apply", "next.toml"]);
        assert!(ran.code == 7 || ran.code == 4, "{ran:?}");
        assert!(ran.err.contains("nowhere"), "{ran:?}");
        let graph: GraphView = dir.json(0, &["graph"]);
        assert_eq!(graph.nodes.len(), 4);
        let read = ["-f", "raw", serve.uri(), "-c", "read -P 9 0 4M", "-c", "write -P 9 0 1M"];
        assert_eq!(tool(&dir, "qemu-io", &read).code, 0);
        in_sync(&dir);
    }
    // With the key, the change succeeds.
    dir.write("nowhere", "another passphrase");
    let applied: Applied = dir.json(0, &["apply", "next.toml"]);
    assert!(applied.changes.iter().any(|line| line.name == "more"));
    in_sync(&dir);
    assert_eq!(serve.stop().code, 0);
    let serve = dir.serve(&["next.toml"]);
    let read = ["-f", "raw", serve.uri(), "-c", "read -P 9 0 4M"];
    assert_eq!(tool(&dir, "qemu-io", &read).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn apply_is_atomic_if_server_is_killed() {
    let (dir, serve) = served();
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 4M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    let three = "pair = { kind = \"mirror\", on = [\"a\", \"b\", \"c\"] }";
    dir.write("more.toml", &spec(C, three, VOL));
    let mut running = Some(serve);
    let mut happened = 0;
    for round in 0..20_u64 {
        in_sync(&dir);
        let (now, next) =
            if round % 2 == 0 { ("home.toml", "more.toml") } else { ("more.toml", "home.toml") };
        let mut change = dir.command(&["apply", next]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(round * 2000));
        let killed = running.take().unwrap();
        killed.signal("KILL");
        drop(killed);
        change.wait().unwrap();
        // The labels match exactly one of the two specs. The other one is refused for that reason.
        let opens = |name: &str| {
            let ran = dir.cairn(&["serve", name, "--dry-run"]);
            assert!([0, 3, 5].contains(&ran.code), "{round}: {ran:?}");
            ran.code == 0
        };
        let has_happened = !opens(now);
        happened += u32::from(has_happened);
        let again = dir.serve(&[if has_happened { next } else { now }]);
        let read = ["-f", "raw", again.uri(), "-c", "read -P 9 0 4M"];
        assert_eq!(tool(&dir, "qemu-io", &read).code, 0, "{round}");
        if !has_happened {
            in_sync(&dir);
            dir.json::<Applied>(0, &["apply", next]);
        }
        if next == "home.toml" {
            // The label of the removed disk says so, and it would be refused as a new disk.
            std::fs::remove_file(dir.path("c.img")).unwrap();
        }
        running = Some(again);
    }
    println!("{happened} of 20 have happened");
    assert_eq!(running.unwrap().stop().code, 0);
}

#[test]
fn apply_refuses_to_remove_export_with_connected_client() {
    let (dir, serve) = served();
    let two = format!("{VOL}\nagain = {{ on = \"safe\", read_only = true }}");
    dir.write("two.toml", &spec("", PAIR, &two));
    dir.json::<Applied>(0, &["apply", "two.toml"]);
    let uri = serve.uri().replace("///vol?", "///again?");
    let mut client = Command::new("qemu-io")
        .args(["-r", "-f", "raw", &uri])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    until("it is connected", || dir.cairn(&["status"]).out.contains("1 connection"));
    let ran = dir.cairn(&["apply", "home.toml"]);
    assert!(
        ran.code == 5 && ran.err.contains("the export again has connected clients (1)"),
        "{ran:?}"
    );
    drop(client.stdin.take());
    client.wait().unwrap();
    until("it has left", || dir.cairn(&["status"]).out.contains("0 connections"));
    dir.json::<Applied>(0, &["apply", "home.toml"]);
    assert_ne!(tool(&dir, "nbdinfo", &[&uri]).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn resize_grows_disk_under_mounted_file_system() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "512M"]);
    let serve = dir.serve(&["disk.img"]);
    let name = Name::new(&dir);
    name.attach("vol");
    run("mkfs.xfs", &["-q", &name.shown()]);
    name.mount();
    let kept = name.mount_point().join("kept");
    std::fs::write(&kept, noise(8 << 20, 1)).unwrap();

    let ran = dir.cairn(&["device", "resize", "disk", "256M"]);
    assert!(ran.code == 9 && ran.err.contains("would shrink"), "{ran:?}");
    let ran = dir.cairn(&["device", "resize", "disk", "0"]);
    assert!(ran.code == 2 && ran.err.contains("must be above 0"), "{ran:?}");
    let ran = dir.cairn(&["device", "resize", "vol", "1G"]);
    assert!(ran.code == 4 && ran.err.contains("; disks: disk"), "{ran:?}");
    assert_eq!(
        dir.text(&["device", "resize", "disk"]),
        "disk.img already matches the spec; nothing to do.\n"
    );
    dir.text(&["device", "resize", "disk", "1G", "--dry-run"]);
    assert_eq!(std::fs::metadata(dir.path("disk.img")).unwrap().len(), 512 << 20);
    dir.json::<Applied>(0, &["device", "resize", "disk", "1G"]);
    assert_eq!(run("blockdev", &["--getsize64", &name.shown()]).trim(), "1073741824");
    assert_eq!(tool(&dir, "nbdinfo", &["--size", serve.uri()]).out.trim(), "1073741824");
    run("xfs_growfs", &[&name.mount_point().display().to_string()]);
    let more = name.mount_point().join("more");
    std::fs::write(&more, noise(600 << 20, 2)).unwrap();
    name.umount();
    name.mount();
    assert!(std::fs::read(&kept).unwrap() == noise(8 << 20, 1), "the old file differs");
    assert!(std::fs::read(&more).unwrap() == noise(600 << 20, 2), "the new file differs");
    name.umount();
    name.detach_well();
    assert_eq!(serve.stop().code, 0);
    run("xfs_repair", &["-n", "-f", &dir.path("disk.img").display().to_string()]);
}

#[test]
fn apply_turns_disk_in_use_into_mirror_with_new_disk() {
    let dir = Dir::new();
    let disk = |name: &str| {
        format!(
            "{name} = {{ file = \"{name}.img\", size = \"18MiB\", create = true, label = true }}\n"
        )
    };
    let spec = |more: &str, on: &str| {
        format!("name = \"n\"\n[disk]\n{}{more}[export]\nvol = {{ on = \"{on}\" }}\n", disk("a"))
    };
    dir.write("one.toml", &spec("", "a"));
    let pair = "[device]\np = { kind = \"mirror\", on = [\"b\", \"a\"] }\n";
    dir.write("two.toml", &spec(&format!("{}{pair}", disk("b")), "p"));
    let serve = dir.serve(&["one.toml"]);
    let bytes = noise(16 << 20, 9);
    std::fs::write(dir.path("noise"), &bytes).unwrap();
    run("nbdcopy", &["--flush", &dir.path("noise").display().to_string(), serve.uri()]);
    dir.text(&["apply", "two.toml", "--dry-run"]);
    dir.text(&["apply", "two.toml"]);
    in_sync(&dir);
    serve.stop().ok();
    for disk in ["a.img", "b.img"] {
        let all = std::fs::read(dir.path(disk)).unwrap();
        assert!(all[1 << 20..17 << 20] == bytes, "{disk}");
    }
}

/// A disk that grows by less than a block of data, or not at all, stays open as it is.
#[test]
fn resize_of_disk_without_more_data_changes_nothing() {
    let (dir, serve) = served();
    let disk = std::fs::OpenOptions::new().write(true).open(dir.path("a.img")).unwrap();
    for more in [0, 512] {
        disk.set_len((64 << 20) + more).unwrap();
        for _ in 0..2 {
            let applied: Applied = dir.json(0, &["device", "resize", "a"]);
            assert!(applied.changes.is_empty(), "{applied:?}");
        }
        assert!(dir.text(&["graph"]).contains("62 MiB"));
    }
    assert_eq!(dir.cairn(&["status"]).code, 0);
    let (write, read) = ("write -P 9 0 4M", "read -P 9 0 4M");
    let ran = tool(&dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", write, "-c", read]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn resize_refuses_disk_beneath_migration() {
    let dir = Dir::new();
    dir.write(
        "n.toml",
        "name = \"n\"\n[disk]\n\
         d = { file = \"d.img\", size = \"64MiB\", create = true, label = true }\n\
         e = { file = \"e.img\", size = \"64MiB\", create = true, label = true }\n\
         [device]\nm = { kind = \"migrate\", on = [\"d\", \"e\"], speed = \"1MiB\" }\n\
         [export]\nvol = { on = \"m\" }\n",
    );
    let serve = dir.serve(&["n.toml"]);
    for more in [&[][..], &["--dry-run"]] {
        let ran = dir.cairn(&[&["device", "resize", "d", "100MiB"], more].concat());
        assert!(ran.code == 5 && ran.err.contains("the migration m is above d"), "{ran:?}");
        assert_eq!(std::fs::metadata(dir.path("d.img")).unwrap().len(), 64 << 20);
    }
    serve.stop().ok();
}

#[test]
fn apply_permits_stricter_alignment_for_connected_clients() {
    let dir = Dir::new();
    let memory = "name = \"fast\"\n[disk]\nm = { memory = \"16MiB\" }\n";
    dir.write("fast.toml", &format!("{memory}[export]\nvol = {{ on = \"m\" }}\n"));
    let serve = dir.serve(&["fast.toml"]);
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 4M"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    let text = format!(
        "{memory}f = {{ file = \"f.img\", size = \"16MiB\", create = true }}\n[device]\n\
         pair = {{ kind = \"mirror\", on = [\"m\", \"f\"], trust = \"m\" }}\n[export]\n\
         vol = {{ on = \"pair\" }}\n"
    );
    dir.write("next.toml", &text);
    dir.text(&["apply", "next.toml"]);
    let read = ["-f", "raw", serve.uri(), "-c", "read -P 9 0 4M"];
    assert_eq!(tool(&dir, "qemu-io", &read).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn resize_of_labelled_members_grows_mirror_under_load() {
    let (dir, serve) = served();
    let uri = serve.uri().to_owned();
    let size = || -> u64 {
        tool(&dir, "nbdinfo", &["--size", &uri]).out.trim().parse().expect("a number")
    };
    let (small, large) = ((62 << 20) - STORE_BYTES, (94 << 20) - STORE_BYTES);
    std::fs::write(dir.path("image"), noise(small as usize, 3)).unwrap();
    assert_eq!(tool(&dir, "nbdcopy", &["image", &uri]).code, 0);
    assert_eq!(size(), small);
    let ran = dir.cairn(&["device", "resize", "a", "64M"]);
    assert!(ran.code == 2 && ran.err.contains("grows by 1 MiB at least"), "{ran:?}");

    let load = Load::of_nbd_with(
        &dir,
        &uri,
        &["--rw=randwrite", "--verify_backlog=64", "--offset=32M", "--size=16M"],
    );
    std::thread::sleep(Duration::from_millis(500));
    let would: Applied = dir.json(0, &["device", "resize", "a", "96M", "--dry-run"]);
    assert!(
        would
            .changes
            .iter()
            .any(|line| line.verb == "grow" && line.words.starts_with("a.img to 96 MiB")),
        "{would:?}"
    );
    dir.text(&["device", "resize", "a", "96M"]);
    assert_eq!(size(), small, "a mirror is as large as its smallest member");
    dir.text(&["device", "resize", "b", "96M"]);
    assert_eq!(size(), large);
    load.end();
    in_sync(&dir);
    let write = ["-f", "raw", &uri, "-c", "write -P 7 80M 1M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &write).code, 0);
    dir.text(&["check"]);
    serve.signal("KILL");
    serve.end();

    // The labels hold the new size.
    let serve = dir.import(&["home", "--key", "safe=file:key"]);
    let uri = serve.uri().to_owned();
    assert_eq!(tool(&dir, "nbdinfo", &["--size", &uri]).out.trim(), large.to_string());
    assert_eq!(tool(&dir, "qemu-io", &["-f", "raw", &uri, "-c", "read -P 7 80M 1M"]).code, 0);
    assert_eq!(tool(&dir, "nbdcopy", &[&uri, "read"]).code, 0);
    let read = std::fs::read(dir.path("read")).unwrap();
    assert!(read[..32 << 20] == noise(small as usize, 3)[..32 << 20], "what was there is there");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn start_finds_label_at_new_end_of_grown_disk() {
    let dir = Dir::new();
    dir.write(
        "one.toml",
        "name = \"one\"\n[disk]\na = { file = \"a.img\", size = \"16MiB\", create = true, label = true }\n\
         [export]\nvol = { on = \"a\" }\n",
    );
    let serve = dir.serve(&["one.toml"]);
    dir.text(&["device", "resize", "a", "32M"]);
    dir.text(&["check"]);
    serve.signal("KILL");
    serve.end();
    // The back label was here before the disk grew. These bytes belong to the client now, not to the label.
    let file = std::fs::File::options().write(true).open(dir.path("a.img")).unwrap();
    file.write_all_at(&vec![7; 1 << 20], 15 << 20).unwrap();
    dir.text(&["check"]);
    let serve = dir.import(&["one"]);
    let read = ["-f", "raw", "-r", serve.uri(), "-c", "read -P 7 14M 1M"];
    assert_eq!(tool(&dir, "qemu-io", &read).code, 0);
    assert_eq!(serve.stop().code, 0);
}
