//! `cairn repair`: makes the lost label of a disk again from the labels of the graph's other disks.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::fs::FileExt;

use common::machine::{noise, run};
use common::{Dir, Ran, STORE_BYTES, tool, until};

const MIB: u64 = 1 << 20;

fn spec(devices: &str, export: &str) -> String {
    format!(
        "name = \"home\"\n[disk]\n\
         a = {{ file = \"a.img\", size = \"16MiB\", create = true, label = true }}\n\
         b = {{ file = \"b.img\", size = \"16MiB\", create = true, label = true }}\n\
         [device]\n{devices}\n[export]\nvol = {{ on = \"{export}\" }}\n"
    )
}

const MIRROR: &str = "both = { kind = \"mirror\", on = [\"a\", \"b\"] }";
const STRIPE: &str = "both = { kind = \"stripe\", on = [\"a\", \"b\"], chunk = \"64KiB\" }";

/// Makes a directory with a graph on two labelled disks that was served once. Its volume is full of random bytes.
fn made(devices: &str, export: &str) -> Dir {
    let dir = Dir::new();
    dir.write("key", "correct horse battery staple");
    dir.write("home.toml", &spec(devices, export));
    let serve = dir.serve(&["home.toml"]);
    std::fs::write(dir.path("image"), noise(13 << 20, 5)).unwrap();
    assert_eq!(tool(&dir, "nbdcopy", &["image", serve.uri()]).code, 0);
    serve.stop().ok();
    dir
}

fn write(dir: &Dir, disk: &str, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(dir.path(disk)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Overwrites all copies of the label of a disk with zeros.
fn wipe(dir: &Dir, disk: &str) {
    for at in [0, 15 * MIB] {
        write(dir, disk, at, &vec![0; MIB as usize]);
    }
}

fn bytes(dir: &Dir) -> [Vec<u8>; 2] {
    ["a.img", "b.img"].map(|disk| std::fs::read(dir.path(disk)).unwrap())
}

/// Checks that the graph starts without further options, and that its volume has the bytes of [`made`].
fn shows_what_it_showed(dir: &Dir) {
    let serve = dir.serve(&["home.toml"]);
    assert_eq!(tool(dir, "nbdcopy", &[serve.uri(), "read"]).code, 0);
    let read = std::fs::read(dir.path("read")).unwrap();
    assert!(read[..13 << 20] == noise(13 << 20, 5)[..], "the bytes of the volume");
    until("all members are in sync", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
    dir.text(&["check"]);
}

fn refused(dir: &Dir, args: &[&str], code: i32, words: &str) {
    let before = bytes(dir);
    let ran: Ran = dir.cairn(&[&["repair"], args, &["--yes"]].concat());
    assert!(
        ran.code == code && (ran.err.contains(words) || ran.out.contains(words)),
        "{words}: {ran:?}"
    );
    assert!(bytes(dir) == before, "nothing is written: {args:?}");
}

#[test]
fn mirror_resyncs_relabelled_member_completely() {
    let dir = made(MIRROR, "both");
    wipe(&dir, "b.img");
    // No client may read these bytes.
    write(&dir, "b.img", 4 * MIB, &vec![7; 4 << 20]);
    let before = bytes(&dir);
    let checked = dir.cairn(&["check"]);
    assert!(checked.code == 10 && checked.out.contains("b: the disk is not found"), "{checked:?}");
    let plan = dir.cairn(&["repair", "home.toml", "--plan"]);
    let would =
        "would write a label on b.img as b of home, change 1: the next start copies all its bytes";
    assert!(plan.code == 10 && plan.out.contains(would), "{plan:?}");
    assert_eq!(dir.cairn(&["repair", "home.toml"]).code, 2, "nobody is there to be asked");
    let by_hand = dir.cairn(&["repair", "home", "--disk", "b=b.img", "--plan"]);
    assert!(by_hand.out.contains(would), "{by_hand:?}");
    assert!(bytes(&dir) == before);

    let done = dir.cairn(&["repair", "home.toml", "--yes"]);
    let lacks = "b.img has no state of both, which other disks have. Next: serve the graph";
    assert!(
        done.code == 10
            && done.out.contains("rewrote the labels on b.img")
            && done.out.contains(lacks),
        "{done:?}"
    );
    let [a, b] = bytes(&dir);
    assert!(a == before[0] && b[MIB as usize..15 << 20] == before[1][MIB as usize..15 << 20]);
    shows_what_it_showed(&dir);
    let end = (15 << 20) - STORE_BYTES as usize;
    let [a, b] = bytes(&dir).map(|bytes| bytes[MIB as usize..end].to_vec());
    assert!(a == b, "all of it was copied");
}

#[test]
fn repair_replaces_damaged_label() {
    let dir = made(MIRROR, "both");
    for at in [64 << 10, 320 << 10, 15 * MIB + (64 << 10), 15 * MIB + (320 << 10)] {
        write(&dir, "b.img", at + 600, b"damaged");
    }
    assert_eq!(dir.cairn(&["check"]).code, 11);
    assert_eq!(dir.cairn(&["repair", "home.toml", "--yes"]).code, 10);
    shows_what_it_showed(&dir);

    // Only `--disk` can identify a disk with an unknown content.
    for at in [0, 15 * MIB] {
        write(&dir, "b.img", at, &noise(MIB as usize, at));
    }
    refused(&dir, &["home.toml"], 10, "if that disk is b, --disk b=b.img");
    assert_eq!(dir.cairn(&["repair", "home", "--disk", "b=b.img", "--yes"]).code, 10);
    shows_what_it_showed(&dir);
}

#[test]
fn repair_relabels_only_copy_with_trust_option() {
    let dir = made(STRIPE, "both");
    wipe(&dir, "b.img");
    let words = "b may hold the only copy of some bytes of vol, and b.img cannot be matched to it. \
                 Next: if b.img has those bytes, --trust b";
    refused(&dir, &["home.toml"], 11, words);
    refused(&dir, &["home", "--disk", "b=b.img"], 10, words);
    let plan = dir.cairn(&["repair", "home.toml", "--trust", "b", "--plan"]);
    assert!(plan.out.contains("vol shows the bytes of this disk unchanged"), "{plan:?}");
    dir.text(&["repair", "home.toml", "--trust", "b", "--yes"]);
    shows_what_it_showed(&dir);
}

#[test]
fn repair_cannot_restore_lost_key_slots() {
    let crypt = |name: &str, on: &str| {
        format!(
            "{name} = {{ kind = \"crypt\", on = \"{on}\", key = \"file:key\", kdf_memory = \"1MiB\", kdf_passes = 1 }}\n"
        )
    };
    let below = "both = { kind = \"mirror\", on = [\"sa\", \"sb\"] }";
    let dir = made(&format!("{}{}{below}", crypt("sa", "a"), crypt("sb", "b")), "both");
    wipe(&dir, "b.img");
    refused(
        &dir,
        &["home", "--disk", "b=b.img"],
        11,
        "the state of sb (crypt) was only in the label of b",
    );
    // The other disk has a copy of the keys of a device above the mirror.
    let dir = made(&format!("{}{}", MIRROR.to_owned() + "\n", crypt("safe", "both")), "safe");
    wipe(&dir, "b.img");
    assert_eq!(dir.cairn(&["repair", "home", "--disk", "b=b.img", "--yes"]).code, 10);
    shows_what_it_showed(&dir);
    // Now the repaired disk has them too.
    wipe(&dir, "a.img");
    assert_eq!(dir.cairn(&["repair", "home", "--disk", "a=a.img", "--yes"]).code, 10);
    shows_what_it_showed(&dir);
}

#[test]
fn repair_refuses_while_another_disk_is_missing() {
    let dir = made(MIRROR, "both");
    let three = spec(&MIRROR.replace("\"b\"", "\"b\", \"c\""), "both");
    let c = "[disk]\nc = { file = \"c.img\", size = \"16MiB\", create = true, label = true }";
    dir.write("three.toml", &three.replace("[disk]", c));
    let serve = dir.serve(&["home.toml"]);
    dir.text(&["apply", "three.toml"]);
    until("all members are in sync", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
    wipe(&dir, "b.img");
    std::fs::create_dir(dir.path("away")).unwrap();
    std::fs::rename(dir.path("c.img"), dir.path("away/c.img")).unwrap();
    refused(&dir, &["home", "--disk", "b=b.img"], 10, "c of home is not found either");
    std::fs::rename(dir.path("away/c.img"), dir.path("c.img")).unwrap();
    // One label is enough to restore the others.
    wipe(&dir, "c.img");
    assert_eq!(dir.cairn(&["repair", "three.toml", "--yes"]).code, 10);
    std::fs::rename(dir.path("three.toml"), dir.path("home.toml")).unwrap();
    shows_what_it_showed(&dir);
}

#[test]
fn repair_refuses_disk_of_doubtful_identity() {
    let dir = made(MIRROR, "both");
    refused(&dir, &["home", "--disk", "b=b.img"], 2, "b of home still has its label, on b.img");
    let serve = dir.serve(&["home.toml"]);
    let running = dir.cairn(&["repair", "home", "--disk", "b=b.img", "--yes"]);
    assert!(
        running.code == 5 && running.err.contains("cairn device replace home/NAME"),
        "{running:?}"
    );
    serve.stop().ok();
    std::fs::create_dir(dir.path("away")).unwrap();
    std::fs::rename(dir.path("b.img"), dir.path("away/b.img")).unwrap();
    std::fs::write(dir.path("b.img"), vec![0; 16 << 20]).unwrap();
    let cases = [
        ("b=away/b.img", 5, "away/b.img is \"b\" of \"home\""),
        ("b=a.img", 5, "a.img is \"a\" of \"home\""),
        ("b=nowhere", 4, "nowhere"),
        ("c=b.img", 4, "home has no labelled disk \"c\"; its labelled disks: a, b"),
        ("b=small.img", 6, "small.img has 8 MiB (8388608 B), but b had 16 MiB"),
        ("b=held.img", 5, "HOLDS ext4"),
    ];
    std::fs::write(dir.path("small.img"), vec![0; 8 << 20]).unwrap();
    std::fs::write(dir.path("held.img"), vec![0; 16 << 20]).unwrap();
    run("mkfs.ext4", &["-q", &dir.path("held.img").display().to_string()]);
    for (disk, code, words) in cases {
        refused(&dir, &["home", "--disk", disk], code, words);
    }
    refused(&dir, &["home.toml", "--trust", "b"], 2, "omit --trust b");
    refused(&dir, &["home", "--trust", "b"], 2, "the place of the disk b is not known");
}

/// Serves the graph and fills the first MiB of the volume with `byte`. Then restores the earlier image of `disk`.
fn put_back(dir: &Dir, disk: &str, byte: u8) {
    std::fs::copy(dir.path(disk), dir.path("older")).unwrap();
    let serve = dir.serve(&["home.toml"]);
    let write = format!("write -P {byte} 0 1M");
    assert_eq!(tool(dir, "qemu-io", &["-f", "raw", "-c", &write, serve.uri()]).code, 0);
    serve.stop().ok();
    std::fs::rename(dir.path("older"), dir.path(disk)).unwrap();
}

#[test]
fn start_refuses_stripe_disk_restored_from_backup() {
    let dir = made(STRIPE, "both");
    put_back(&dir, "b.img", 9);
    let before = bytes(&dir);
    let serve = &["serve", "home.toml", "--run", "true"];
    for args in [&["check"][..], serve, &["import", "home", "--dry-run"]] {
        let ran = dir.cairn(args);
        let is_told = format!("{}{}", ran.out, ran.err).contains("older than the other disks");
        assert!(ran.code == 11 && is_told, "{args:?}: {ran:?}");
    }
    refused(&dir, &["home", "--disk", "b=a.img", "--trust", "b"], 2, "is not the disk b");
    let plan = dir.cairn(&["repair", "home.toml", "--trust", "b", "--plan"]);
    assert!(plan.out.contains("would accept b.img as b of home"), "{plan:?}");
    assert!(bytes(&dir) == before, "nothing is written");

    // For example, restored from a backup.
    dir.text(&["repair", "home.toml", "--trust", "b", "--yes"]);
    dir.text(&["check"]);
    let serve = dir.serve(&["home.toml"]);
    let old = ["-f", "raw", "-r", "-c", "read -P 9 0 64k", "-c", "read -P 9 128k 64k", serve.uri()];
    assert_eq!(tool(&dir, "qemu-io", &old).code, 0, "what is on a is as it was last");
    serve.stop().ok();
}

#[test]
fn start_refuses_copy_of_disk_made_while_in_use() {
    let dir = made(STRIPE, "both");
    let serve = dir.serve(&["home.toml"]);
    std::fs::copy(dir.path("b.img"), dir.path("older")).unwrap();
    serve.stop().ok();
    std::fs::rename(dir.path("older"), dir.path("b.img")).unwrap();
    let ran = dir.cairn(&["serve", "home.toml", "--run", "true"]);
    assert!(ran.code == 11 && ran.err.contains("b: is older than the other disks"), "{ran:?}");
}

#[test]
fn check_reports_stale_member_that_start_resyncs() {
    let dir = made(MIRROR, "both");
    put_back(&dir, "b.img", 9);
    let checked = dir.cairn(&["check"]);
    assert!(
        checked.code == 10 && checked.out.contains("b: is older than the other"),
        "{checked:?}"
    );
    let serve = dir.serve(&["home.toml"]);
    let new = ["-f", "raw", "-r", "-c", "read -P 9 0 1M", serve.uri()];
    assert_eq!(tool(&dir, "qemu-io", &new).code, 0);
    until("all members are in sync", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
    dir.text(&["check"]);
}
