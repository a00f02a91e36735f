//! Migrations while clients write: encryption in place, decryption, and a move to another disk.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::time::{Duration, Instant};

use api::{Applied, GraphView, Job, JobState};
use common::load::Load;
use common::{Dir, Serve, tool, until};

/// Bytes of data on a labelled disk of 64 MiB.
const SIZE: usize = 62 << 20;

/// Bytes of each write and each comparison of the tests.
const BLOCK: usize = 64 << 10;

const A: &str = "a = { file = \"a.img\", size = \"64MiB\", create = true, label = true }";
const B: &str = "b = { file = \"b.img\", size = \"64MiB\", create = true, label = true }";
const C: &str = "c = { file = \"c.img\", size = \"64MiB\", create = true, label = true }";
const SAFE: &str = "safe = { kind = \"crypt\", on = \"a\", key = \"file:key\", \
                    kdf_memory = \"1MiB\", kdf_passes = 1 }";

fn spec(disks: &str, devices: &str, on: &str) -> String {
    format!(
        "name = \"home\"\n[disk]\n{disks}\n[device]\n{devices}\n[export]\nvol = {{ on = \"{on}\" }}\n"
    )
}

/// Makes a directory with the specs of a disk, of an encryption of the disk, and of another disk to move its bytes to.
fn dir() -> Dir {
    let dir = Dir::new();
    dir.write("key", "correct horse battery staple");
    dir.write("plain.toml", &spec(A, "", "a"));
    dir.write("safe.toml", &spec(A, SAFE, "safe"));
    dir.write("other.toml", &spec(B, "", "b"));
    dir
}

/// The byte that fills each block of the volume after the acknowledged writes.
struct Known(Vec<u8>);

impl Known {
    fn write(&mut self, dir: &Dir, uri: &str, block: usize, byte: u8) {
        let (at, len) = (block * BLOCK, BLOCK);
        let write = format!("write -P {byte} {at} {len}");
        assert_eq!(tool(dir, "qemu-io", &["-f", "raw", uri, "-c", &write]).code, 0);
        self.0[block] = byte;
    }

    fn fill(dir: &Dir, uri: &str) -> Self {
        let mut known = Self(vec![0; SIZE / BLOCK]);
        for n in 0..8 {
            let (blocks, byte) = (known.0.len() / 8, 0x10 + n as u8);
            let write = format!("write -P {byte} {} {}", n * blocks * BLOCK, blocks * BLOCK);
            assert_eq!(tool(dir, "qemu-io", &["-f", "raw", uri, "-c", &write]).code, 0);
            known.0[n * blocks..(n + 1) * blocks].fill(byte);
        }
        known
    }

    fn check(&self, dir: &Dir, uri: &str) {
        let out = dir.path("out.img").display().to_string();
        assert_eq!(tool(dir, "nbdcopy", &[uri, &out]).code, 0);
        let bytes = std::fs::read(&out).unwrap();
        assert_eq!(bytes.len(), SIZE);
        for (n, block) in bytes.chunks(BLOCK).enumerate() {
            let wrong = block.iter().position(|byte| *byte != self.0[n]);
            assert_eq!(wrong, None, "in block {n}, which should hold {:#x}", self.0[n]);
        }
    }
}

/// Whether the disk holds a block that is filled with `byte`, and so is not encrypted.
fn is_plain(dir: &Dir, disk: &str, byte: u8) -> bool {
    let bytes = std::fs::read(dir.path(disk)).unwrap();
    bytes.chunks(BLOCK).any(|block| block.iter().all(|one| *one == byte))
}

fn jobs(dir: &Dir) -> Vec<Job> {
    dir.json(0, &["job", "ls"])
}

fn until_moved(dir: &Dir) {
    until("the bytes have moved", || jobs(dir).is_empty());
}

#[test]
fn migration_encrypts_and_decrypts_volume_in_use() {
    let dir = dir();
    let serve = dir.serve(&["plain.toml"]);
    let uri = serve.uri().to_owned();
    let known = Known::fill(&dir, &uri);
    assert!(is_plain(&dir, "a.img", 0x17));
    // Without `--move` the change is refused.
    let ran = dir.cairn(&["apply", "safe.toml"]);
    assert!(ran.code == 9 && ran.err.contains("apply with --move"), "{ran:?}");
    let before: GraphView = dir.json(0, &["graph"]);
    let would: Applied = dir.json(0, &["apply", "safe.toml", "--move", "--dry-run"]);
    assert!(would.notes.iter().any(|note| note.contains("safe-move")), "{would:?}");
    assert_eq!(dir.json::<GraphView>(0, &["graph"]), before);

    let load =
        Load::of_nbd_with(&dir, &uri, &["--iodepth=16", "--verify_backlog=64", "--size=48M"]);
    std::thread::sleep(Duration::from_millis(500));
    dir.text(&["apply", "safe.toml", "--move", "--speed", "24MiB"]);
    // Only one migration at a time.
    let ran = dir.cairn(&["apply", "plain.toml", "--move"]);
    assert!(ran.code == 5 && ran.err.contains("another migration is in progress"), "{ran:?}");
    until_moved(&dir);
    let longest = load.end();
    assert!(longest < Duration::from_secs(2), "a client waited for {longest:?}");
    // The blocks that fio did not write are unchanged, and their plain text is nowhere on the disk.
    let tail = Known(known.0[..].to_vec());
    let uri_tail = &uri;
    for block in 48 * 16..SIZE / BLOCK {
        let (at, byte) = (block * BLOCK, tail.0[block]);
        let read = format!("read -P {byte} {at} {BLOCK}");
        assert_eq!(tool(&dir, "qemu-io", &["-f", "raw", uri_tail, "-c", &read]).code, 0, "{block}");
    }
    assert!(!is_plain(&dir, "a.img", 0x17));
    assert_eq!(serve.stop().code, 0);

    // The labels record the new state, so the old spec is refused.
    let ran = dir.cairn(&["serve", "plain.toml"]);
    assert!(ran.code != 0 && ran.err.contains("\"safe\" keeps"), "{ran:?}");
    let serve = dir.serve(&["safe.toml"]);
    let known = Known::fill(&dir, serve.uri());
    dir.text(&["apply", "plain.toml", "--move", "--wait"]);
    until_moved(&dir);
    known.check(&dir, serve.uri());
    assert!(is_plain(&dir, "a.img", 0x17));
    assert_eq!(serve.stop().code, 0);
    let serve = dir.serve(&["plain.toml"]);
    known.check(&dir, serve.uri());
    assert_eq!(serve.stop().code, 0);
}

/// The key derivation takes a second or more. `apply` ends the derivation before clients must wait for the live change.
#[test]
fn apply_derives_key_without_delaying_clients() {
    let dir = dir();
    let costly = SAFE.replace("\"1MiB\", kdf_passes = 1", "\"256MiB\", kdf_passes = 10");
    assert_ne!(costly, SAFE);
    dir.write("costly.toml", &spec(A, &costly, "safe"));
    let serve = dir.serve(&["plain.toml"]);
    let uri = serve.uri().to_owned();
    let known = Known::fill(&dir, &uri);
    let load = Load::of_nbd_with(&dir, &uri, &["--iodepth=16", "--size=48M"]);
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    dir.text(&["apply", "costly.toml", "--move"]);
    let took = begun.elapsed();
    let longest = load.end();
    assert!(longest < took / 2, "a client waited for {longest:?}, and the change took {took:?}");
    until_moved(&dir);
    assert_eq!(serve.stop().code, 0);
    // The disk holds the key slots that were prepared before the change.
    let serve = dir.serve(&["costly.toml"]);
    let read = format!("read -P {} {} {BLOCK}", known.0[SIZE / BLOCK - 1], SIZE - BLOCK);
    assert_eq!(tool(&dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", &read]).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn migration_moves_volume_to_other_disk() {
    let dir = dir();
    let serve = dir.serve(&["plain.toml"]);
    let known = Known::fill(&dir, serve.uri());
    dir.text(&["apply", "other.toml", "--move", "--wait"]);
    until_moved(&dir);
    known.check(&dir, serve.uri());
    let shown: GraphView = dir.json(0, &["graph"]);
    let names: Vec<_> = shown.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["b"]);
    assert_eq!(serve.stop().code, 0);
    std::fs::remove_file(dir.path("a.img")).unwrap();
    let serve = dir.serve(&["other.toml"]);
    known.check(&dir, serve.uri());
    assert_eq!(serve.stop().code, 0);
}

/// With a store behind its data, the mirror would be too small for the bytes of the disk.
#[test]
fn migration_moves_volume_to_new_mirror_without_store() {
    let dir = dir();
    let disks = format!("{B}\n{C}");
    let spec = |more: &str| {
        let mirror = format!("pair = {{ kind = \"mirror\", on = [\"b\", \"c\"]{more} }}");
        spec(&disks, &mirror, "pair")
    };
    dir.write("small.toml", &spec(""));
    dir.write("pair.toml", &spec(", store = false"));
    let serve = dir.serve(&["plain.toml"]);
    let known = Known::fill(&dir, serve.uri());
    let refused = dir.cairn(&["apply", "small.toml", "--move"]);
    assert!(refused.code == 3 && refused.err.contains("store = false"), "{refused:?}");
    dir.text(&["apply", "pair.toml", "--move", "--wait"]);
    until_moved(&dir);
    known.check(&dir, serve.uri());
    assert_eq!(serve.stop().code, 0);
    let serve = dir.import(&["home"]);
    known.check(&dir, serve.uri());
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn migration_stays_paused_over_restart_and_cancels_completely() {
    let dir = dir();
    let serve = dir.serve(&["plain.toml"]);
    let known = Known::fill(&dir, serve.uri());
    dir.text(&["apply", "safe.toml", "--move", "--speed", "16MiB"]);
    until("some has moved", || jobs(&dir)[0].work.progress.done_bytes > 4 << 20);
    let paused: Job = dir.json(0, &["job", "pause", "safe-move"]);
    until("it rests", || jobs(&dir)[0].work.state == JobState::Paused);
    let status = dir.text(&["status"]);
    assert!(status.contains("  safe-move: migration from a to safe, "), "{status}");
    assert!(status.contains("MiB, paused\n"), "{status}");
    let done = jobs(&dir)[0].work.progress.done_bytes;
    assert!(done >= paused.work.progress.done_bytes && done < SIZE as u64);
    assert_eq!(serve.stop().code, 0);
    // The pause survives a restart.
    let serve = dir.serve(&["safe.toml"]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        (jobs(&dir)[0].work.state, jobs(&dir)[0].work.progress.done_bytes),
        (JobState::Paused, done)
    );
    known.check(&dir, serve.uri());
    let ran = dir.cairn(&["job", "pause", "1"]);
    assert!(ran.code == 5 && ran.err.contains("paused already"), "{ran:?}");
    let ran = dir.cairn(&["job", "cancel", "7"]);
    assert!(ran.code == 4 && ran.err.contains("jobs in progress: 1 (safe-move)"), "{ran:?}");
    dir.text(&["job", "cancel", "1"]);
    until_moved(&dir);
    known.check(&dir, serve.uri());
    assert!(is_plain(&dir, "a.img", 0x17));
    assert_eq!(serve.stop().code, 0);
    let serve = dir.serve(&["plain.toml"]);
    known.check(&dir, serve.uri());
    // A cancelled migration leaves no step for `undo`.
    assert!(!dir.text(&["undo", "home", "--list"]).contains("until"));
    let ran = dir.cairn(&["undo", "home", "--dry-run"]);
    assert!(ran.code == 4 && ran.err.contains("has no earlier spec"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn migration_refuses_stale_target() {
    let dir = dir();
    let serve = dir.serve(&["plain.toml"]);
    Known::fill(&dir, serve.uri());
    dir.text(&["apply", "other.toml", "--move", "--speed", "16MiB"]);
    until("some has moved", || jobs(&dir)[0].work.progress.done_bytes > 4 << 20);
    assert_eq!(serve.stop().code, 0);
    std::fs::create_dir(dir.path("away")).unwrap();
    std::fs::copy(dir.path("b.img"), dir.path("away/older")).unwrap();
    let serve = dir.import(&["home", "--directory", "."]);
    until("more has moved", || jobs(&dir)[0].work.progress.done_bytes > 8 << 20);
    assert_eq!(serve.stop().code, 0);
    std::fs::rename(dir.path("away/older"), dir.path("b.img")).unwrap();
    for args in [&["check"][..], &["import", "home"]] {
        let ran = dir.cairn(args);
        let said = format!("{}{}", ran.out, ran.err);
        assert!(ran.code == 11 && said.contains("b: is older than the other disks"), "{ran:?}");
    }
}

#[test]
fn device_resize_refuses_disk_beneath_encrypting_migration() {
    let dir = dir();
    let serve = dir.serve(&["plain.toml"]);
    dir.text(&["apply", "safe.toml", "--move", "--speed", "1MiB"]);
    let ran = dir.cairn(&["device", "resize", "a", "80MiB"]);
    assert!(ran.code == 5 && ran.err.contains("the migration safe-move is above a"), "{ran:?}");
    assert_eq!(std::fs::metadata(dir.path("a.img")).unwrap().len(), 64 << 20);
    dir.text(&["job", "cancel", "safe-move"]);
    until_moved(&dir);
    dir.text(&["device", "resize", "a", "80MiB"]);
    assert_eq!(serve.stop().code, 0);
}

/// The test kills the server at random times during a migration, and restarts it from the spec or by `import`. The
/// volume must have all acknowledged writes, and the migration must continue from its boundary.
#[test]
fn migration_survives_server_kills() {
    let dir = dir();
    let mut serve = dir.serve(&["plain.toml"]);
    let mut known = Known::fill(&dir, serve.uri());
    dir.text(&["apply", "safe.toml", "--move", "--speed", "8MiB"]);
    let (mut kills, mut draw) = (0_u32, 1_u64);
    let mut next = |most: u64| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) % most
    };
    while !jobs(&dir).is_empty() {
        let uri = serve.uri().to_owned();
        for _ in 0..3 {
            let block = next((SIZE / BLOCK) as u64) as usize;
            known.write(&dir, &uri, block, next(250) as u8);
        }
        std::thread::sleep(Duration::from_millis(next(60)));
        serve.signal("KILL");
        assert_eq!(serve.end().code, -9);
        kills += 1;
        serve = match kills % 3 {
            0 => dir.import(&["home", "--key", "safe=file:key", "--directory", "."]),
            _ => dir.serve(&["safe.toml"]),
        };
        if kills.is_multiple_of(5) {
            known.check(&dir, serve.uri());
        }
    }
    println!("{kills} kills");
    assert!(kills >= 20, "{kills} kills were too few");
    known.check(&dir, serve.uri());
    assert!(!is_plain(&dir, "a.img", 0x17));
    assert_eq!(stop(serve), 0);
}

fn stop(serve: Serve) -> i32 {
    serve.stop().code
}
