//! `cairn check` on the vaults of a stopped graph: the check reads the state of devices, and writes nothing.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use common::{Dir, Ran, tool};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// The value of every byte that the tests write to the volume.
const DATA: u8 = 0x11;

fn spec(device: &str, on: &str) -> String {
    format!(
        "name = \"g\"\n[disk]\n\
         a = {{ file = \"a.img\", size = \"16MiB\", create = true, label = true }}\n\
         b = {{ file = \"b.img\", size = \"16MiB\", create = true, label = true }}\n\
         [device]\n{device}\n\
         thin = {{ kind = \"remap\", on = \"{on}\", size = \"1GiB\", block = \"64KiB\" }}\n\
         [export]\nvol = {{ on = \"thin\" }}\nrest = {{ on = \"b\" }}\n"
    )
}

/// Makes a directory with a thin volume that was written, and whose server was then stopped, or killed if `killed`.
fn made(text: &str, killed: bool) -> Dir {
    let dir = Dir::new();
    dir.write("key", "correct horse battery staple");
    dir.write("g.toml", text);
    let serve = dir.serve(&["g.toml"]);
    let uri = serve.uri().replace("///rest?", "///vol?");
    for (n, at) in ["1M", "200M", "900M", "300M"].iter().enumerate() {
        let write = format!("write -P {DATA} {at} {}k", 64 * (n + 1));
        let ran = tool(&dir, "qemu-io", &["-f", "raw", &uri, "-c", &write, "-c", "flush"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    match killed {
        true => {
            serve.signal("KILL");
            serve.end();
        }
        false => {
            serve.stop().ok();
        }
    }
    dir
}

fn bytes(dir: &Dir) -> [Vec<u8>; 2] {
    ["a.img", "b.img"].map(|disk| std::fs::read(dir.path(disk)).unwrap())
}

fn put(dir: &Dir, at: usize, byte: u8) {
    put_all(dir, at, &[byte]);
}

fn put_all(dir: &Dir, at: usize, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(dir.path("a.img")).unwrap();
    file.write_all_at(bytes, at as u64).unwrap();
}

/// Runs `cairn check`, and verifies that the check changed no byte of the disks.
fn checked(dir: &Dir) -> Ran {
    let before = bytes(dir);
    let ran = dir.cairn(&["check"]);
    assert!(bytes(dir) == before, "a check writes nothing");
    ran
}

/// Flips a byte in one page after the other that holds records of the vault, and runs `cairn check` after each. Returns
/// the number of checks with each exit code and message.
fn every_page_flipped(dir: &Dir) -> BTreeMap<(i32, &'static str), usize> {
    let [disk, _] = bytes(dir);
    let mut said = BTreeMap::new();
    for page in (MIB..15 * MIB).step_by(PAGE) {
        let held = &disk[page..page + PAGE];
        let Some(at) = held.iter().position(|byte| ![0, DATA].contains(byte)) else { continue };
        // In the middle of the used part of the page.
        let last = held.iter().rposition(|byte| *byte != 0).unwrap();
        let at = page + (at + last) / 2;
        put(dir, at, disk[at] ^ 0x40);
        let ran = checked(dir);
        put(dir, at, disk[at]);
        let words = ["superblock on", "log is damaged", "no copy has page", "page ", "sound"];
        let words = words.into_iter().find(|words| ran.out.contains(words)).unwrap();
        assert!((ran.code == 0) == (words == "sound"), "{at}: {ran:?}");
        *said.entry((ran.code, words)).or_default() += 1;
    }
    let ran = checked(dir);
    assert!(ran.code == 0 && ran.out.contains("sound\n"), "{ran:?}");
    said
}

#[test]
fn check_finds_flipped_byte_in_each_page_of_vault() {
    let dir = made(&spec("", "a"), false);
    let said = every_page_flipped(&dir);
    println!("{said:?}");
    assert_eq!(said.get(&(10, "superblock on")), Some(&2), "one of the two is enough: {said:?}");
    assert!(said.contains_key(&(11, "page ")), "a page of the map: {said:?}");
    assert!(said.contains_key(&(11, "no copy has page")), "a page of its directory: {said:?}");
    assert!(!said.contains_key(&(11, "log is damaged")), "all of it is applied: {said:?}");
    // If its disk is missing, the check reports only that.
    std::fs::create_dir(dir.path("away")).unwrap();
    std::fs::rename(dir.path("a.img"), dir.path("away/a.img")).unwrap();
    let ran = dir.cairn(&["check"]);
    assert!(ran.code == 11 && ran.out.contains("a: the disk is not found"), "{ran:?}");
    assert!(!ran.out.contains("the state of the device"), "{ran:?}");
    std::fs::rename(dir.path("away/a.img"), dir.path("a.img")).unwrap();
    // One superblock is no longer recognizable.
    let [disk, _] = bytes(&dir);
    for at in [MIB, MIB + PAGE] {
        let magic = [disk[at] ^ 1];
        for (gone, why) in
            [(&[0; PAGE][..], "missing"), (&[7; PAGE], "overwritten"), (&magic, "overwritten")]
        {
            put_all(&dir, at, gone);
            let ran = checked(&dir);
            assert!(
                ran.code == 10 && ran.out.contains("superblock on") && ran.out.contains(why),
                "{ran:?}"
            );
            put_all(&dir, at, &disk[at..at + PAGE]);
        }
    }
    put_all(&dir, MIB, &[0; PAGE]);
    let serve = dir.serve(&["g.toml"]);
    let uri = serve.uri().replace("///rest?", "///vol?");
    let again = ["-f", "raw", &uri, "-c", "write -P 17 1M 64k", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &again).code, 0);
    serve.stop().ok();
    assert_eq!(checked(&dir).code, 0, "the next superblock is where none was");
    // Both superblocks.
    for at in [MIB, MIB + PAGE] {
        put(&dir, at + 64, 0xff);
    }
    let ran = checked(&dir);
    assert!(
        ran.code == 11 && ran.out.contains("thin: the state of the device cannot be opened"),
        "{ran:?}"
    );
    assert!(ran.out.lines().all(|line| line.matches("Next: ").count() <= 1), "{ran:?}");
}

#[test]
fn check_reads_vault_log_before_replay() {
    let dir = made(&spec("", "a"), true);
    let said = every_page_flipped(&dir);
    println!("{said:?}");
    assert!(said.contains_key(&(11, "log is damaged")), "a record before the last: {said:?}");
}

#[test]
fn check_reads_vault_through_lower_devices() {
    let tables = "half = { kind = \"partition\", on = \"a\", start = \"1MiB\", size = \"12MiB\" }";
    let dir = made(&spec(tables, "half"), false);
    let said = every_page_flipped(&dir);
    assert!(
        said.contains_key(&(11, "page ")) && said.contains_key(&(10, "superblock on")),
        "{said:?}"
    );

    let pair = spec("pair = { kind = \"mirror\", on = [\"a\", \"b\"] }", "pair");
    let dir = made(&pair.replace("rest = { on = \"b\" }", ""), false);
    assert_eq!(checked(&dir).code, 0);
    // The label of one is repaired by the process that has checked the vault.
    put(&dir, (64 << 10) + 700, 0x55);
    put(&dir, (320 << 10) + 700, 0x55);
    assert_eq!(checked(&dir).code, 10);
    dir.text(&["repair", "--yes"]);
    // One member is missing.
    std::fs::create_dir(dir.path("away")).unwrap();
    std::fs::rename(dir.path("b.img"), dir.path("away/b.img")).unwrap();
    let alone = dir.cairn(&["check"]);
    assert!(alone.code == 10 && !alone.out.contains("thin: "), "{alone:?}");
    put(&dir, MIB + 64, 0xff);
    put(&dir, MIB + PAGE + 64, 0xff);
    let alone = dir.cairn(&["check"]);
    assert!(
        alone.code == 11 && alone.out.contains("thin: the state of the device cannot be opened"),
        "{alone:?}"
    );

    let safe = "safe = { kind = \"crypt\", on = \"a\", key = \"file:key\", kdf_memory = \"1MiB\", kdf_passes = 1 }";
    let dir = made(&spec(safe, "safe"), false);
    let ran = checked(&dir);
    assert!(
        ran.code == 0 && ran.out.contains("is on safe, and was not checked without a key"),
        "{ran:?}"
    );
}
