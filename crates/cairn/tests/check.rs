//! `cairn check` and `cairn repair`: whether the labels on disks are sound, and how damaged labels are rewritten.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::fs::FileExt;

use common::machine::{noise, relabel, run};
use common::{Dir, STORE_BYTES, until};

const MIB: u64 = 1 << 20;

fn spec(kind: &str) -> String {
    let chunk = if kind == "stripe" { ", chunk = \"64KiB\"" } else { "" };
    format!(
        "name = \"home\"\n[disk]\n\
         a = {{ file = \"a.img\", size = \"16MiB\", create = true, label = true }}\n\
         b = {{ file = \"b.img\", size = \"16MiB\", create = true, label = true }}\n\
         [device]\nboth = {{ kind = \"{kind}\", on = [\"a\", \"b\"]{chunk} }}\n\
         [export]\nvol = {{ on = \"both\" }}\n"
    )
}

/// Makes a directory with a graph of two labelled disks under a device of `kind`. The graph was served once.
fn made(kind: &str) -> Dir {
    let dir = Dir::new();
    dir.write("home.toml", &spec(kind));
    let serve = dir.serve(&["home.toml"]);
    if kind == "mirror" {
        until("the store is made", || dir.cairn(&["check"]).out.contains("maps in the store"));
    }
    serve.stop().ok();
    dir
}

fn damage(dir: &Dir, disk: &str, from: u64, len: u64) {
    let file = std::fs::File::options().write(true).open(dir.path(disk)).unwrap();
    file.write_all_at(&noise(len as usize, from), from).unwrap();
}

/// Damages both copies of the label in the first MiB of a disk. Each copy can still be recognized as a label.
fn damage_front(dir: &Dir, disk: &str) {
    for at in [64 << 10, 320 << 10] {
        damage(dir, disk, at + 600, 8);
    }
}

fn bytes(dir: &Dir) -> [Vec<u8>; 2] {
    ["a.img", "b.img"].map(|disk| std::fs::read(dir.path(disk)).unwrap())
}

#[test]
fn check_reports_sound_graph_without_writing() {
    let dir = Dir::new();
    assert!(dir.text(&["check"]).ends_with("labelled disk found.\n"));
    let dir = made("mirror");
    let before = bytes(&dir);
    let text = dir.text(&["check"]);
    assert!(text.starts_with("home  change 1, 2 disks: sound\n"), "{text}");
    assert!(text.contains("mirror: a in sync, b in sync; maps in the store"), "{text}");
    assert!(dir.text(&["repair", "--yes"]).contains("no label to repair"));
    assert_eq!(dir.cairn(&["check", "other"]).code, 4);
    assert!(bytes(&dir) == before);
}

#[test]
fn repair_rewrites_label_only_from_complete_copy() {
    let dir = made("mirror");
    // Some bytes of both copies at the front are damaged. The graph starts all the same.
    damage_front(&dir, "b.img");
    let before = bytes(&dir);
    let checked = dir.cairn(&["check", "home"]);
    assert!(
        checked.code == 10 && checked.out.contains("at the disk's front is damaged"),
        "{checked:?}"
    );
    let plan = dir.cairn(&["repair", "--plan"]);
    assert!(plan.code == 10 && plan.out.contains("would rewrite the label on b.img"), "{plan:?}");
    assert_eq!(dir.cairn(&["repair"]).code, 2, "nobody is there to be asked");
    assert!(bytes(&dir) == before);
    assert!(dir.text(&["repair", "--yes"]).contains("rewrote the labels on b.img"));
    dir.text(&["check"]);

    // Now only the front label is left, and then only the back label.
    damage(&dir, "b.img", 15 * MIB, MIB);
    dir.text(&["repair", "home.toml", "--trust", "b", "--yes"]);
    damage_front(&dir, "b.img");
    dir.import(&["home"]).stop().ok();
    let [_, after] = bytes(&dir);
    assert!(
        after[2 * MIB as usize..14 * MIB as usize]
            == before[1][2 * MIB as usize..14 * MIB as usize]
    );
}

#[test]
fn check_and_repair_work_on_running_graph() {
    let dir = made("mirror");
    let serve = dir.serve(&["home.toml"]);
    dir.text(&["check"]);
    // The label of a disk that was removed says nothing about the graph.
    dir.text(&["create", "c.img", "16M"]);
    dir.text(&["device", "insert", "home/c", "c.img"]);
    dir.text(&["device", "remove", "home/c", "--yes"]);
    assert!(!dir.text(&["check"]).contains("damaged"));
    for (from, words) in [(0, "the front of a.img"), (15 * MIB, "the end of a.img")] {
        damage(&dir, "a.img", from, MIB);
        let checked = dir.cairn(&["check"]);
        assert!(checked.code == 10 && checked.out.contains(words), "{checked:?}");
        dir.text(&["repair", "--yes"]);
        dir.text(&["check"]);
    }
    // Both labels are destroyed. The open disk is known all the same.
    damage(&dir, "a.img", 0, MIB);
    damage(&dir, "a.img", 15 * MIB, MIB);
    assert!(dir.cairn(&["check", "home"]).out.contains("the label is gone"));
    dir.text(&["repair", "home", "--yes"]);
    serve.stop().ok();
    dir.text(&["check"]);
    dir.import(&["home"]).stop().ok();
}

#[test]
fn check_reports_lost_disks_and_labels() {
    for (kind, code, words) in
        [("mirror", 10, "the other disks have all data"), ("stripe", 11, "vol cannot be served")]
    {
        let dir = made(kind);
        std::fs::rename(dir.path("b.img"), dir.path("b.gone")).unwrap();
        std::fs::create_dir(dir.path("elsewhere")).unwrap();
        std::fs::rename(dir.path("b.gone"), dir.path("elsewhere/b.img")).unwrap();
        let checked = dir.cairn(&["check"]);
        assert!(checked.code == code && checked.out.contains(words), "{checked:?}");
        assert!(
            dir.cairn(&["check", "home", "--directory", "elsewhere"])
                .out
                .contains("a: the disk is not found")
        );
    }
    let dir = made("mirror");
    for at in [64 << 10, 320 << 10, 15 * MIB + (64 << 10), 15 * MIB + (320 << 10)] {
        damage(&dir, "b.img", at + 600, 8);
    }
    let checked = dir.cairn(&["check"]);
    assert!(checked.code == 11 && checked.out.contains("b.img has a damaged label"), "{checked:?}");
    std::fs::copy(dir.path("a.img"), dir.path("copy.img")).unwrap();
    let checked = dir.cairn(&["check"]);
    assert!(checked.code == 11 && checked.out.contains("one is a copy"), "{checked:?}");
    std::fs::File::options()
        .write(true)
        .open(dir.path("copy.img"))
        .unwrap()
        .set_len(9 * MIB)
        .unwrap();
    let checked = dir.cairn(&["check"]);
    assert!(
        checked.out.contains("restore the disk, or a backup of it"),
        "nobody else is here: {checked:?}"
    );
}

#[test]
fn repair_offers_no_plan_for_truncated_disk() {
    for (kind, next) in
        [("mirror", "with --wipe a: all its bytes are copied"), ("stripe", "a backup of it")]
    {
        let dir = made(kind);
        let disk = std::fs::File::options().write(true).open(dir.path("a.img")).unwrap();
        disk.set_len(9 * MIB).unwrap();
        let before = bytes(&dir);
        for verb in [&["check"][..], &["repair", "--plan"], &["repair", "home.toml", "--yes"]] {
            let ran = dir.cairn(verb);
            assert!(ran.code == 11 && ran.out.contains("damaged: a: a.img has 9437184"), "{ran:?}");
            assert!(ran.out.contains(next) && !ran.out.contains("repairable"), "{ran:?}");
            assert!(!ran.out.contains("would rewrite") && !ran.out.contains("rewrote"), "{ran:?}");
        }
        assert!(bytes(&dir) == before);
    }
    // The recommended `--wipe` works.
    let dir = made("mirror");
    for len in [9, 16] {
        let disk = std::fs::File::options().write(true).open(dir.path("a.img")).unwrap();
        disk.set_len(len * MIB).unwrap();
    }
    let serve = dir.serve(&["home.toml", "--wipe", "a"]);
    until("a is in sync", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
    assert!(dir.text(&["check"]).contains("2 disks: sound"));
}

#[test]
fn check_reports_disk_at_other_path_than_spec() {
    let dir = made("mirror");
    std::fs::rename(dir.path("b.img"), dir.path("moved")).unwrap();
    for there in [false, true] {
        if there {
            dir.text(&["create", "b.img", "16M"]);
        }
        let ran = dir.cairn(&["check", "home.toml"]);
        assert!(ran.code == 10 && ran.out.contains("the disk is at moved, but"), "{ran:?}");
        let started = dir.cairn(&["serve", "home.toml", "--run", "true"]);
        assert!(started.code == if there { 4 } else { 10 }, "as a start says: {started:?}");
    }
    assert!(dir.cairn(&["serve", "home.toml"]).err.contains("with cairn import"));
    dir.text(&["check"]);
    // With their paths exchanged, both disks are found where the labels say.
    std::fs::rename(dir.path("a.img"), dir.path("b.img")).unwrap();
    std::fs::rename(dir.path("moved"), dir.path("a.img")).unwrap();
    dir.text(&["check", "home.toml"]);
}

/// Makes a second directory with hard links to the disks of `dir`. Commands in it do not find the servers of `dir`.
fn elsewhere(dir: &Dir) -> Dir {
    let other = Dir::new();
    for name in ["a.img", "b.img"] {
        std::fs::hard_link(dir.path(name), other.path(name)).unwrap();
    }
    other
}

#[test]
fn check_reports_open_disks_as_in_use() {
    let dir = made("mirror");
    let other = elsewhere(&dir);
    let serve = dir.serve(&["home.toml"]);
    for verb in [&["check"][..], &["check", "home"]] {
        let checked = other.cairn(verb);
        let words = format!("in use: a: a.img: is in use by process {}", serve.pid());
        assert!(checked.out.starts_with("home  change 1, 2 disks: in use\n"), "{checked:?}");
        assert!(checked.code == 5 && checked.out.contains(&words), "{checked:?}");
        assert!(
            !checked.out.contains("damaged") && !checked.out.contains("is not found"),
            "{checked:?}"
        );
    }
    serve.stop().ok();
    assert!(other.text(&["check"]).contains("sound"));
    // Only one of the two disks is in use.
    std::fs::remove_file(dir.path("a.img")).unwrap();
    let serve = dir.serve(&["home.toml", "--degraded"]);
    let checked = other.cairn(&["check"]);
    assert!(checked.code == 5 && checked.out.contains("in use: b: b.img"), "{checked:?}");
    assert!(!checked.out.contains("is not found"), "{checked:?}");
    serve.stop().ok();
}

#[test]
fn check_reports_disks_open_on_other_machine() {
    let dir = made("mirror");
    relabel(&dir, "b.img", 15 * MIB, |copy| {
        copy[120] = 1;
        copy[136..152].fill(0x5a);
        copy[280..287].copy_from_slice(b"another");
    });
    let checked = dir.cairn(&["check"]);
    let words = "in use: b: b.img is marked as open on the machine \"another\"";
    assert!(checked.code == 5 && checked.out.contains(words), "{checked:?}");
    assert!(checked.out.contains("--take"), "{checked:?}");
    // Nor is the label written while that machine has the disk open.
    damage_front(&dir, "b.img");
    let ran = dir.cairn(&["repair", "--yes"]);
    assert!(ran.code == 5 && ran.err.contains("never uses the disks again, --take"), "{ran:?}");
    assert_eq!(dir.cairn(&["repair", "--yes", "--take"]).code, 5, "it is open there still");
    damage(&dir, "b.img", 15 * MIB, MIB);
    let ran = dir.cairn(&["repair", "--yes"]);
    assert!(ran.code == 5 && ran.out.contains("never uses the disks again, --take"), "{ran:?}");
    let ran = dir.cairn(&["repair", "home", "--trust", "b", "--yes", "--take"]);
    assert!(ran.out.contains("rewrote the labels on b.img"), "{ran:?}");
    dir.serve(&["home.toml", "--take"]).stop().ok();
    assert!(dir.text(&["check"]).contains("2 disks: sound"));
}

#[test]
fn check_distinguishes_graphs_of_same_name() {
    let (dir, other) = (made("mirror"), made("mirror"));
    std::fs::copy(other.path("b.img"), dir.path("b.img")).unwrap();
    let ran = dir.cairn(&["serve", "home.toml", "--run", "true"]);
    assert!(ran.code == 5 && ran.err.contains("a.img of "), "{ran:?}");
    assert!(ran.err.contains("--wipe b for ") && !ran.err.contains("apart"), "{ran:?}");
    let of = |name: &str| {
        let facts: serde_json::Value = dir.json(0, &["info", name]);
        facts["label"]["graph_uuid"].as_str().unwrap().to_owned()
    };
    assert!(ran.err.contains(&format!("--wipe b for {}", &of("a.img")[..8])), "{ran:?}");
    let (checked, list) = (dir.cairn(&["check"]).out, dir.text(&["import"]));
    for name in ["a.img", "b.img"] {
        let title = format!("home ({})  ", &of(name)[..8]);
        assert!(checked.contains(&title) && list.contains(&title), "{checked} {list}");
    }
    let serve = dir.serve(&["home.toml", "--wipe", "b"]);
    until("b is in sync", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
    assert!(dir.text(&["check"]).starts_with("home  change"));
}

#[test]
fn start_refuses_truncated_disk_that_was_extended_again() {
    let dir = Dir::new();
    dir.write("home.toml", &spec("mirror"));
    let serve = dir.serve(&["home.toml"]);
    std::fs::write(dir.path("noise"), noise((14 << 20) - STORE_BYTES as usize, 1)).unwrap();
    let fill = [&dir.path("noise").display().to_string(), serve.uri()];
    run("nbdcopy", &[&["--flush"], &fill[..]].concat());
    serve.stop().ok();
    let cut = |disk: &str, len| {
        let file = std::fs::File::options().write(true).open(dir.path(disk)).unwrap();
        file.set_len(len).unwrap();
    };
    let whole = std::fs::read(dir.path("a.img")).unwrap();
    cut("a.img", 10 * MIB);
    let ran = dir.cairn(&["import", "home"]);
    assert!(ran.code == 11 && ran.err.contains("the bytes behind are lost"), "{ran:?}");
    cut("a.img", 16 * MIB);
    for verb in [&["import", "home"], &["serve", "home.toml"]] {
        let ran = dir.cairn(verb);
        assert!(ran.code == 11 && ran.err.contains("cairn repair home --plan"), "{ran:?}");
    }
    let checked = dir.cairn(&["check"]);
    assert!(
        checked.code == 10 && checked.out.contains("then the disk is copied from the others"),
        "{checked:?}"
    );
    // The disk gets its label back, and is copied before any client reads from it.
    let plan = dir.cairn(&["repair", "--plan"]).out;
    assert!(
        plan.contains("would rewrite the label on a.img as a of home, change 1: the next start"),
        "{plan}"
    );
    assert_eq!(dir.cairn(&["repair", "--yes"]).code, 10, "it lacks everything");
    let serve = dir.import(&["home"]);
    let read = [serve.uri(), &dir.path("read").display().to_string()];
    run("nbdcopy", &read);
    let bytes = std::fs::read(dir.path("read")).unwrap();
    assert!(bytes[..] == whole[MIB as usize..][..bytes.len()], "no zeros of the cut are read");
    until("it is copied", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
    let data = MIB as usize..(15 * MIB - STORE_BYTES) as usize;
    assert!(std::fs::read(dir.path("a.img")).unwrap()[data.clone()] == whole[data]);
    // If only the label is lost, the operator may trust the bytes.
    damage(&dir, "a.img", 15 * MIB, MIB);
    assert_eq!(dir.cairn(&["serve", "home.toml"]).code, 11);
    let trusted = dir.text(&["repair", "home", "--trust", "a", "--yes"]);
    assert!(trusted.contains("2 disks: sound"), "{trusted}");
    dir.serve(&["home.toml"]).stop().ok();
    // Of two such members, at least one must be trusted.
    for disk in ["a.img", "b.img"] {
        damage(&dir, disk, 15 * MIB, MIB);
    }
    let ran = dir.cairn(&["repair", "--yes"]);
    assert!(ran.code == 11 && ran.out.matches("not repaired").count() == 2, "{ran:?}");
    assert_eq!(dir.cairn(&["repair", "--trust", "b", "--yes"]).code, 10);
    let serve = dir.serve(&["home.toml"]);
    until("a is copied from b", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
}

#[test]
fn repair_accepts_damaged_only_copy_only_with_trust_option() {
    let dir = made("stripe");
    damage(&dir, "a.img", 15 * MIB, MIB);
    let before = bytes(&dir);
    let ran = dir.cairn(&["repair", "--yes"]);
    assert!(
        ran.code == 11 && ran.out.contains("not repaired: the label at the end of a.img is lost"),
        "{ran:?}"
    );
    assert!(ran.out.contains("cairn repair home --trust a") && bytes(&dir) == before, "{ran:?}");
    dir.text(&["repair", "home", "--trust", "a", "--yes"]);
    dir.serve(&["home.toml"]).stop().ok();
}

/// Makes a mirror whose newest bytes are on disk `b` alone, and damages the end of `b`. If `failed`, a command failed
/// the member `a` before the last writes; else the file of `a` was missing during them.
fn newest_is_cut(failed: bool) -> Dir {
    let dir = made("mirror");
    let fill = |serve: &common::Serve, byte: u8| {
        std::fs::write(dir.path("image"), vec![byte; 4 << 20]).unwrap();
        run("nbdcopy", &["--flush", &dir.path("image").display().to_string(), serve.uri()]);
    };
    let away = dir.path("away");
    let serve = match failed {
        true => {
            let serve = dir.serve(&["home.toml"]);
            dir.text(&["device", "fail", "home/a", "--yes"]);
            serve
        }
        false => {
            std::fs::rename(dir.path("a.img"), &away).unwrap();
            dir.serve(&["home.toml", "--degraded"])
        }
    };
    fill(&serve, 7);
    serve.stop().ok();
    if !failed {
        std::fs::rename(&away, dir.path("a.img")).unwrap();
    }
    damage(&dir, "b.img", 15 * MIB, MIB);
    dir
}

#[test]
fn resync_never_copies_from_stale_member() {
    for failed in [false, true] {
        let dir = newest_is_cut(failed);
        let before = bytes(&dir);
        let ran = dir.cairn(&["check"]);
        assert!(
            ran.code == 11 && ran.out.contains("damaged: b: the label at the end of b.img is lost"),
            "{ran:?}"
        );
        let ran = dir.cairn(&["repair", "--yes"]);
        assert!(
            ran.code == 11
                && ran.out.contains("not repaired: the label at the end of b.img is lost"),
            "{ran:?}"
        );
        assert!(ran.out.contains("no member with every write is present"), "{ran:?}");
        assert!(bytes(&dir) == before && dir.cairn(&["serve", "home.toml"]).code == 11);
        dir.cairn(&["repair", "home", "--trust", "b", "--yes"]);
        let serve = dir.serve(&["home.toml"]);
        run("nbdcopy", &[serve.uri(), &dir.path("read").display().to_string()]);
        assert!(std::fs::read(dir.path("read")).unwrap()[..4 << 20].iter().all(|byte| *byte == 7));
        serve.stop().ok();
    }
}

#[test]
fn repair_refuses_overwritten_only_copy_at_any_path() {
    let dir = made("stripe");
    std::fs::create_dir(dir.path("other")).unwrap();
    damage(&dir, "b.img", 15 * MIB, MIB);
    std::fs::rename(dir.path("b.img"), dir.path("other/b.img")).unwrap();
    dir.write("home.toml", &spec("stripe").replace("b.img", "other/b.img"));
    let before = std::fs::read(dir.path("other/b.img")).unwrap();
    for args in [
        &["repair", "home", "--disk", "b=other/b.img", "--yes"][..],
        &["repair", "home.toml", "--yes"],
    ] {
        let ran = dir.cairn(args);
        let said = format!("{}{}", ran.out, ran.err);
        assert!(
            ran.code != 0 && said.contains("on no other disk. Next: restore the disk"),
            "{ran:?}"
        );
    }
    assert!(std::fs::read(dir.path("other/b.img")).unwrap() == before);
    // The same holds if no export uses the device on it.
    let dir = made("stripe");
    let without = spec("stripe").replace("on = \"both\" }\n", "on = \"c\" }\n").replace(
        "[device]",
        "c = { file = \"c.img\", size = \"4MiB\", create = true, label = true }\n[device]",
    );
    dir.write("home.toml", &without);
    let serve = dir.serve(&["home.toml"]);
    damage(&dir, "a.img", 15 * MIB, MIB);
    let ran = dir.cairn(&["check"]);
    let next = "cairn device replace home/a PATH; cairn repair rewrites only its label";
    assert!(ran.code == 10 && ran.out.contains(next), "{ran:?}");
    serve.signal("KILL");
    serve.end();
    let ran = dir.cairn(&["repair", "--yes"]);
    assert!(ran.code == 11 && ran.out.contains("on no other disk"), "{ran:?}");
}

#[test]
fn check_ignores_failing_disk_of_another_graph() {
    let dir = Dir::new();
    let socket = dir.path("n.sock");
    let mut server = std::process::Command::new("nbdkit")
        .args(["-f", "-U"])
        .arg(&socket)
        .args(["memory", "16M"])
        .spawn()
        .unwrap();
    common::until("nbdkit", || socket.exists());
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    dir.write(
        "far.toml",
        &format!(
            "name = \"far\"\n[disk]\n\
             a = {{ file = \"a.img\", size = \"16MiB\", create = true, label = true }}\n\
             n = {{ nbd = \"{uri}\", label = true, reconnect = \"1s\" }}\n\
             [device]\npair = {{ kind = \"mirror\", on = [\"a\", \"n\"] }}\n\
             [export]\nvol = {{ on = \"pair\" }}\n"
        ),
    );
    dir.write(
        "near.toml",
        "name = \"near\"\n[disk]\nd = { file = \"d.img\", size = \"16MiB\", create = true, label = true }\n\
         [export]\nvol = { on = \"d\" }\n",
    );
    let (far, near) = (dir.serve(&["far.toml"]), dir.serve(&["near.toml"]));
    common::until("all is sound", || dir.cairn(&["check"]).code == 0);
    server.kill().unwrap();
    server.wait().unwrap();
    dir.text(&["check", "near"]);
    let ran = dir.cairn(&["check", "far"]);
    assert!(ran.code == 10 && ran.out.contains("n: the disk is not found"), "{ran:?}");
    assert!(ran.out.contains("cannot be read") && ran.out.contains("a.img"), "{ran:?}");
    near.stop().ok();
    far.signal("KILL");
    far.end();
}

/// Serves `disk` as a raw disk, and writes to its first 6 MiB, which also overwrites the label at its front.
fn write_raw(dir: &Dir, disk: &str) {
    let raw = format!(
        "name = \"raw\"\n[disk]\nd = {{ file = \"{disk}\", label = false }}\n[export]\nvol = {{ on = \"d\" }}\n"
    );
    dir.write("raw.toml", &raw);
    let write = "qemu-io -f raw \"$uri\" -c 'write -P 2 0 6M'";
    assert_eq!(dir.cairn(&["serve", "raw.toml", "--run", write]).code, 0);
}

#[test]
fn resync_copies_member_with_overwritten_front() {
    for is_repaired in [false, true] {
        copies_overwritten_member(is_repaired);
    }
}

fn copies_overwritten_member(is_repaired: bool) {
    let dir = made("mirror");
    let fill = "qemu-io -f raw \"$uri\" -c 'write -P 9 0 13M' -c flush";
    assert_eq!(dir.cairn(&["serve", "home.toml", "--run", fill]).code, 0);
    write_raw(&dir, "b.img");
    let before = bytes(&dir);
    let checked = dir.cairn(&["check"]);
    assert!(
        checked.code == 10 && checked.out.contains("overwritten the label at the front of b.img"),
        "{checked:?}"
    );
    assert!(bytes(&dir) == before, "a check writes nothing");
    if is_repaired {
        assert_eq!(dir.cairn(&["repair", "--yes"]).code, 10, "it lacks everything");
    }
    let serve = dir.serve(&["home.toml"]);
    let read = ["-r", "-f", "raw", serve.uri(), "-c", "read -P 9 0 13M"];
    let read = common::tool(&dir, "qemu-io", &read);
    assert!(read.code == 0 && !read.out.contains("failed"), "{read:?}");
    until("it is copied", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
    let end = (15 * MIB - STORE_BYTES) as usize;
    let [a, b] = bytes(&dir).map(|bytes| bytes[MIB as usize..end].to_vec());
    assert!(a == b && a[..13 << 20].iter().all(|byte| *byte == 9));
}

#[test]
fn repair_accepts_disk_with_overwritten_front_only_with_trust() {
    let dir = made("stripe");
    write_raw(&dir, "b.img");
    assert_eq!(dir.cairn(&["serve", "home.toml"]).code, 11);
    assert_eq!(dir.cairn(&["check"]).code, 11);
    let ran = dir.cairn(&["repair", "--yes"]);
    assert!(ran.code == 11 && ran.out.contains("not repaired"), "{ran:?}");
    assert!(dir.text(&["repair", "home", "--trust", "b", "--yes"]).contains("sound"));
    dir.serve(&["home.toml"]).stop().ok();
    // Of two members with such a front, at least one must be trusted.
    let dir = made("mirror");
    for disk in ["a.img", "b.img"] {
        write_raw(&dir, disk);
    }
    for args in [&["import", "home"][..], &["serve", "home.toml"]] {
        let ran = dir.cairn(args);
        assert!(ran.code == 11 && ran.err.contains("the front of b.img"), "{ran:?}");
        assert!(ran.err.contains("cairn repair home --plan"), "{ran:?}");
    }
    let ran = dir.cairn(&["repair", "--yes"]);
    assert!(ran.code == 11 && ran.out.matches("not repaired").count() == 2, "{ran:?}");
    assert_eq!(dir.cairn(&["repair", "--trust", "b", "--yes"]).code, 10);
    let serve = dir.serve(&["home.toml"]);
    until("a is copied from b", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
}

#[test]
fn start_refuses_overwritten_member_when_others_missed_writes() {
    let dir = made("mirror");
    let away = dir.path("away.img");
    std::fs::rename(dir.path("b.img"), &away).unwrap();
    let fill = "qemu-io -f raw \"$uri\" -c 'write -P 9 0 1M' -c flush";
    assert_eq!(dir.cairn(&["serve", "home.toml", "--degraded", "--run", fill]).code, 0);
    std::fs::rename(&away, dir.path("b.img")).unwrap();
    write_raw(&dir, "a.img");
    let before = bytes(&dir);
    for args in [&["serve", "home.toml"][..], &["serve", "home.toml", "--degraded"]] {
        let ran = dir.cairn(args);
        assert!(ran.code == 11 && ran.err.contains("the front of a.img"), "{ran:?}");
    }
    assert!(bytes(&dir) == before, "a refused start writes nothing");
    assert!(
        dir.cairn(&["repair", "home", "--trust", "a", "--yes"])
            .out
            .contains("rewrote the labels on a.img")
    );
    let serve = dir.serve(&["home.toml"]);
    // Its bytes count as they are, with the other program's writes.
    let read = ["-r", "-f", "raw", serve.uri(), "-c", "read -P 2 0 1M"];
    let read = common::tool(&dir, "qemu-io", &read);
    assert!(read.code == 0 && !read.out.contains("failed"), "{read:?}");
    serve.stop().ok();
}

/// Returns the findings of `cairn check` that are not `sound`: the disk or device of each finding, and its message.
fn findings(dir: &Dir, code: i32) -> Vec<(String, String)> {
    let found: serde_json::Value = dir.json(code, &["check", "home"]);
    let graphs = found["graphs"].as_array().expect("a list of graphs");
    let all = graphs.iter().flat_map(|graph| graph["findings"].as_array().expect("a list"));
    let bad = all.filter(|finding| finding["soundness"] != "sound");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    bad.map(|finding| (text(&finding["name"]), text(&finding["words"]))).collect()
}

#[test]
fn check_reports_no_finding_about_repaired_labels() {
    type Harm = fn(&Dir);
    let blank = |dir: &Dir| {
        let file = std::fs::File::options().write(true).open(dir.path("b.img")).unwrap();
        for at in [0, 15 * MIB] {
            file.write_all_at(&vec![0; MIB as usize], at).unwrap();
        }
    };
    let cases: [(&str, Harm, &[&str], i32); 5] = [
        ("mirror", |dir| damage_front(dir, "b.img"), &["home"], 10),
        ("mirror", |dir| damage(dir, "b.img", 15 * MIB, MIB), &["home"], 10),
        ("mirror", |dir| write_raw(dir, "b.img"), &["home"], 10),
        ("mirror", blank, &["home.toml"], 10),
        ("stripe", |dir| damage(dir, "a.img", 15 * MIB, MIB), &["home", "--trust", "a"], 11),
    ];
    for (kind, harm, args, code) in cases {
        let dir = made(kind);
        harm(&dir);
        let before = findings(&dir, code);
        assert!(!before.is_empty(), "{kind} {args:?}");
        let ran = dir.cairn(&[&["repair"], args, &["--yes"]].concat());
        let after = findings(&dir, ran.code);
        let left: Vec<_> = before.iter().filter(|finding| after.contains(finding)).collect();
        assert!(left.is_empty() && ran.code != 11, "{kind} {args:?}: {left:?} {ran:?}");
    }
}
