//! Checksum devices under `cairn serve`: rot on real files, kills, insertion under a volume in use, growth, wrong input.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::fs::FileExt;

use api::{DeviceStatus, Status};
use common::{Dir, io, tool, try_io, until};

/// Returns a spec with these disks, of 32 MiB each, and these devices; `top` is exported.
fn spec(disks: &[&str], devices: &str, top: &str) -> String {
    let disk = |name: &&str| {
        format!(
            "{name} = {{ file = \"{name}.img\", size = \"32MiB\", create = true, label = true }}\n"
        )
    };
    let disks: String = disks.iter().map(disk).collect();
    let device = if devices.is_empty() { String::new() } else { format!("[device]\n{devices}\n") };
    format!("name = \"g\"\n[disk]\n{disks}{device}[export]\nvol = {{ on = \"{top}\" }}\n")
}

const BELOW: &str =
    "m = { kind = \"mirror\", on = [\"a\", \"b\"] }\ns = { kind = \"checksum\", on = \"m\" }";
const ABOVE: &str = "p = { kind = \"checksum\", on = \"a\" }\nq = { kind = \"checksum\", on = \"b\" }\n\
                     m = { kind = \"mirror\", on = [\"p\", \"q\"] }";
const ALONE: &str = "s = { kind = \"checksum\", on = \"a\" }";

/// Returns the status of a device. A mirror that copies is degraded, so the exit code does not count.
fn device(dir: &Dir, name: &str) -> DeviceStatus {
    let ran = dir.cairn(&["-o", "json", "status"]);
    let all: Vec<Status> = serde_json::from_str(&ran.out).unwrap();
    let devices = all.into_iter().flat_map(|status| status.devices);
    devices.into_iter().find(|device| device.name == name).unwrap()
}

/// Returns the value of a row of a device.
fn row(dir: &Dir, name: &str, row: &str) -> Option<String> {
    let rows = device(dir, name).rows;
    rows.into_iter().find(|one| one.name == row).map(|row| row.value)
}

/// Returns a counter of a device.
fn counter(dir: &Dir, name: &str, counter: &str) -> u64 {
    let counters = device(dir, name).counters;
    counters.into_iter().find(|(name, _)| name == counter).unwrap().1
}

/// Returns the places in a disk's file of the blocks of 4096 bytes that are filled with `byte`.
fn blocks_of(dir: &Dir, disk: &str, byte: u8) -> Vec<u64> {
    let bytes = std::fs::read(dir.path(&format!("{disk}.img"))).unwrap();
    let blocks = (0..).step_by(4096).zip(bytes.chunks(4096));
    blocks.filter(|(_, block)| block.iter().all(|one| *one == byte)).map(|(at, _)| at).collect()
}

/// Returns the places of 256 such blocks in disk `a`, without those in the ring of a journal in front of them.
fn in_place(dir: &Dir, byte: u8) -> Vec<u64> {
    let mut all = blocks_of(dir, "a", byte);
    all.split_off(all.len() - 256)
}

/// Lets a disk rot: overwrites bytes of its file at each of `places`.
fn rot(dir: &Dir, disk: &str, places: &[u64]) {
    let file = std::fs::File::options().write(true).open(dir.path(&format!("{disk}.img"))).unwrap();
    places.iter().for_each(|at| file.write_all_at(b"rot", at + 100).unwrap());
}

#[test]
fn checksum_above_mirror_restores_copy_that_rots() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(&["a", "b"], BELOW, "s"));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x5a 1M 1M", "flush"]);
    let places = blocks_of(&dir, "a", 0x5a);
    assert_eq!(places.len(), 256);
    rot(&dir, "a", &places[3..9]);
    // The mirror chooses either copy.
    until("the repair of all blocks", || {
        io(&dir, serve.uri(), &["read -P 0x5a 1M 1M"]);
        counter(&dir, "s", "repaired") == 6
    });
    assert_eq!(blocks_of(&dir, "a", 0x5a), places);
    assert_eq!(counter(&dir, "s", "damaged"), 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn mirror_above_checksums_restores_copy_that_rots() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(&["a", "b"], ABOVE, "m"));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x5a 1M 1M", "flush"]);
    let places = blocks_of(&dir, "a", 0x5a);
    rot(&dir, "a", &places[3..5]);
    until("the repair of all blocks", || {
        io(&dir, serve.uri(), &["read -P 0x5a 1M 1M"]);
        blocks_of(&dir, "a", 0x5a) == places
    });
    assert!(counter(&dir, "p", "damaged") > 0);
    assert_eq!(serve.stop().code, 0);
}

/// After a kill, one copy of the mirror has none of the superblocks and log records of the checksum device above.
#[test]
fn checksum_above_mirror_starts_with_one_copy_of_its_store() {
    for disk in ["a", "b"] {
        let dir = Dir::new();
        dir.write("g.toml", &spec(&["a", "b"], BELOW, "s"));
        let serve = dir.serve(&["g.toml"]);
        for byte in 1..5 {
            io(&dir, serve.uri(), &[&format!("write -P {byte} {byte}M 1M"), "flush"]);
        }
        serve.signal("KILL");
        drop(serve);
        let bytes = std::fs::read(dir.path(&format!("{disk}.img"))).unwrap();
        let is_of_store =
            |page: &[u8]| page.starts_with(b"CAIRNVLT") || page.starts_with(b"CAIRNREC");
        let pages = (0..).step_by(4096).zip(bytes.chunks(4096));
        let places: Vec<u64> = pages.filter(|(_, page)| is_of_store(page)).map(|it| it.0).collect();
        assert!(places.len() > 4, "{places:?}");
        rot(&dir, disk, &places);
        let serve = dir.import(&["g"]);
        for byte in 1..5 {
            io(&dir, serve.uri(), &[&format!("read -P {byte} {byte}M 1M")]);
        }
        assert_eq!(counter(&dir, "s", "damaged"), 0);
        assert_eq!(serve.stop().code, 0);
    }
}

/// Without another copy, a read of wrong bytes fails, and a write of the block makes it good.
#[test]
fn checksum_alone_fails_reads_of_rot_until_block_is_written() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(&["a"], ALONE, "s"));
    let serve = dir.serve(&["g.toml"]);
    assert_eq!(row(&dir, "s", "crash").as_deref(), Some("journal"));
    io(&dir, serve.uri(), &["write -P 0x5a 1M 1M", "flush"]);
    assert_eq!(serve.stop().code, 0);
    rot(&dir, "a", &in_place(&dir, 0x5a)[3..4]);
    let serve = dir.import(&["g"]);
    io(&dir, serve.uri(), &["read -P 0x5a 1M 12k"]);
    assert!(try_io(&dir, serve.uri(), &["read -P 0x5a 1060864 4k"]).is_err());
    assert!(counter(&dir, "s", "damaged") > 0);
    let next = device(&dir, "s").next;
    assert!(next.as_deref().is_some_and(|next| next.contains("write them again")), "{next:?}");
    io(&dir, serve.uri(), &["write -P 0x5a 1060864 4k", "read -P 0x5a 1M 1M"]);
    assert_eq!(serve.stop().code, 0);
}

/// Acknowledged writes are there after a kill, in each of the three stacks, and nothing counts as damaged.
#[test]
fn acknowledged_writes_to_checksums_survive_kills() {
    for (devices, top, sums) in
        [(ALONE, "s", vec!["s"]), (BELOW, "s", vec!["s"]), (ABOVE, "m", vec!["p", "q"])]
    {
        let dir = Dir::new();
        dir.write("g.toml", &spec(&["a", "b"], devices, top));
        let mut serve = dir.serve(&["g.toml"]);
        for byte in 1..6 {
            let write = format!("write -P {byte} {}k 192k", byte * 128);
            io(&dir, serve.uri(), &[&write, "write -z 4M 1M"]);
            serve.signal("KILL");
            drop(serve);
            serve = dir.import(&["g"]);
            let now = format!("read -P {byte} {}k 192k", byte * 128);
            let before = format!("read -P {} {}k 128k", byte - 1, (byte - 1) * 128);
            io(&dir, serve.uri(), &[&now, &before, "read -P 0 4M 1M"]);
            for sum in &sums {
                assert_eq!(counter(&dir, sum, "damaged"), 0, "{devices}");
            }
        }
        assert_eq!(serve.stop().code, 0);
        // A mirror beneath a verifier takes a minute until it copies what no verifier reads: the metadata.
        let checked = dir.cairn(&["check", "--directory", "."]);
        assert!(checked.out.contains("sound") || checked.out.contains("repairable"), "{checked:?}");
    }
}

/// Over a volume in use, with the checksums on another disk: the bytes stay, a job makes the first checksums, and the device
/// is taken out again.
#[test]
fn checksum_is_inserted_under_volume_in_use_and_taken_out_again() {
    let dir = Dir::new();
    dir.write("plain.toml", &spec(&["a"], "", "a"));
    let apart = "s = { kind = \"checksum\", on = [\"a\", \"b\"], meta = \"b\" }";
    dir.write("summed.toml", &spec(&["a", "b"], apart, "s"));
    let serve = dir.serve(&["plain.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 3M 1M", "flush"]);
    dir.text(&["apply", "summed.toml"]);
    io(&dir, serve.uri(), &["read -P 0x11 3M 1M", "write -P 0x22 5M 1M", "flush"]);
    until("the first checksums", || row(&dir, "s", "without checksums yet").is_none());
    rot(&dir, "a", &in_place(&dir, 0x11)[..1]);
    assert!(try_io(&dir, serve.uri(), &["read 3M 4k"]).is_err());
    dir.text(&["apply", "plain.toml"]);
    io(&dir, serve.uri(), &["read 3M 4k", "read -P 0x22 5M 1M"]);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn checksum_grows_with_its_disk() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(&["a"], ALONE, "s"));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 1M 1M", "flush"]);
    dir.text(&["device", "resize", "a", "256M"]);
    io(&dir, serve.uri(), &["read -P 0x11 1M 1M", "write -P 0x22 200M 1M", "flush"]);
    until("the first checksums", || row(&dir, "s", "without checksums yet").is_none());
    serve.signal("KILL");
    drop(serve);
    let serve = dir.import(&["g"]);
    io(&dir, serve.uri(), &["read -P 0x11 1M 1M", "read -P 0x22 200M 1M", "read -P 0 100M 1M"]);
    rot(&dir, "a", &in_place(&dir, 0x22)[..1]);
    assert!(try_io(&dir, serve.uri(), &["read 200M 4k"]).is_err());
    assert_eq!(serve.stop().code, 0);
}

/// Each case of `docs/failures.md`, "Checksums": its exit code and its words.
#[test]
fn start_of_checksum_refuses_lost_state_and_other_crash_option() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(&["a"], ALONE, "s"));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 1M 1M", "flush"]);
    assert_eq!(serve.stop().code, 0);

    let other = "s = { kind = \"checksum\", on = \"a\", crash = \"regions\" }";
    dir.write("bad.toml", &spec(&["a"], other, "s"));
    let ran = dir.cairn(&["serve", "bad.toml"]);
    assert!(ran.code != 0 && ran.err.contains("was made with crash = \"journal\""), "{ran:?}");
    assert!(ran.err.contains("set crash = \"journal\""), "{ran:?}");

    let whole = std::fs::read(dir.path("a.img")).unwrap();
    // Each has two copies of its root, of a page each.
    let wipe = |magic: &[u8]| {
        let from = whole.chunks(4096).position(|page| page.starts_with(magic)).unwrap() * 4096;
        let file = std::fs::File::options().write(true).open(dir.path("a.img")).unwrap();
        file.write_all_at(&[0; 8192], from as u64).unwrap();
    };
    wipe(b"CAIRNJNL");
    for accepts in [&[][..], &["--accept-loss"]] {
        let import = ["import", "g", "--directory", "."];
        let ran = dir.cairn(&[&import[..], accepts].concat());
        assert!(ran.code == 11 && ran.err.contains("journal of the device is missing"), "{ran:?}");
        assert!(ran.err.contains("--accept-loss does not help"), "{ran:?}");
    }
    // The store is the old one: with the roots of its journal, the start succeeds.
    let from = whole.chunks(4096).position(|page| page.starts_with(b"CAIRNJNL")).unwrap() * 4096;
    let file = std::fs::File::options().write(true).open(dir.path("a.img")).unwrap();
    file.write_all_at(&whole[from..from + 8192], from as u64).unwrap();
    let serve = dir.import(&["g"]);
    io(&dir, serve.uri(), &["read -P 0x11 1M 1M"]);
    assert_eq!(serve.stop().code, 0);
    std::fs::write(dir.path("a.img"), &whole).unwrap();

    wipe(b"CAIRNVLT");
    let ran = dir.cairn(&["import", "g", "--directory", "."]);
    assert!(ran.code != 0 && ran.err.contains("the vault of the checksum is missing"), "{ran:?}");
    assert!(ran.err.contains("--accept-loss"), "{ran:?}");
    let serve = dir.import(&["g", "--accept-loss"]);
    io(&dir, serve.uri(), &["read -P 0x11 1M 1M"]);
    let summary = device(&dir, "s").summary;
    assert!(summary.contains("made anew"), "{summary}");
    until("the first checksums", || row(&dir, "s", "without checksums yet").is_none());
    assert_eq!(serve.stop().code, 0);
    let serve = dir.import(&["g"]);
    rot(&dir, "a", &in_place(&dir, 0x11)[..1]);
    assert!(try_io(&dir, serve.uri(), &["read 1M 4k"]).is_err());
    assert_eq!(serve.stop().code, 0);
}

/// The job of the first checksums is paused over a kill, and goes on when it is resumed.
#[test]
fn first_checksums_are_job_that_stays_paused_over_restart() {
    let dir = Dir::new();
    dir.write("plain.toml", &spec(&["a"], "", "a"));
    let slow = "s = { kind = \"checksum\", on = [\"a\", \"b\"], meta = \"b\", speed = \"64KiB\" }";
    dir.write("summed.toml", &spec(&["a", "b"], slow, "s"));
    let serve = dir.serve(&["plain.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 3M 4M", "flush"]);
    dir.text(&["apply", "summed.toml"]);
    until("the job", || row(&dir, "s", "without checksums yet").is_some());
    dir.text(&["job", "pause", "s"]);
    until("the pause", || dir.text(&["job", "ls"]).contains("paused"));
    let jobs = dir.text(&["job", "ls"]);
    assert!(jobs.contains("checksums") && jobs.contains("paused"), "{jobs}");
    assert!(row(&dir, "s", "without checksums yet").is_some());
    let ran = dir.cairn(&["job", "cancel", "s"]);
    assert!(ran.code != 0 && ran.err.contains("pause the job"), "{ran:?}");
    serve.signal("KILL");
    drop(serve);

    let serve = dir.import(&["g"]);
    io(&dir, serve.uri(), &["read -P 0x11 3M 4M"]);
    let jobs = dir.text(&["job", "ls"]);
    assert!(jobs.contains("paused"), "{jobs}");
    dir.write("fast.toml", &spec(&["a", "b"], &slow.replace("64KiB", "1GiB"), "s"));
    dir.text(&["apply", "fast.toml"]);
    until("the job", || dir.text(&["job", "ls"]).contains("paused"));
    dir.text(&["job", "resume", "s"]);
    until("the first checksums", || row(&dir, "s", "without checksums yet").is_none());
    rot(&dir, "a", &blocks_of(&dir, "a", 0x11)[..1]);
    assert!(try_io(&dir, serve.uri(), &["read 3M 4k"]).is_err());
    assert_eq!(serve.stop().code, 0);
}

/// A device on a read-only disk cannot write the changes of its journal in place.
#[test]
fn read_only_checksum_is_refused_until_its_journal_has_no_changes() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(&["a"], ALONE, "s"));
    let read_only =
        spec(&["a"], ALONE, "s").replace("label = true", "label = true, read_only = true");
    let read_only = read_only.replace("size = \"32MiB\", create = true, ", "");
    dir.write("read.toml", &read_only);
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 1M 1M", "flush"]);
    serve.signal("KILL");
    drop(serve);
    let ran = dir.cairn(&["serve", "read.toml"]);
    assert!(ran.code == 7 && ran.err.contains("changes that are not in place"), "{ran:?}");
    let serve = dir.import(&["g"]);
    assert_eq!(serve.stop().code, 0);
    let serve = dir.serve(&["read.toml"]);
    let ran = tool(&dir, "qemu-io", &["-r", "-f", "raw", serve.uri(), "-c", "read -P 0x11 1M 1M"]);
    assert!(ran.code == 0 && !ran.out.contains("failed"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
}
