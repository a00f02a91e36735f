//! Thin volumes under `cairn serve`: kills of the server, live changes, a full disk, and discards that free space.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use api::{DeviceStatus, Health, Job, JobState, LocateStep, Status};
use common::{Dir, io, tool, until};

const DISK: &str =
    "[disk]\na = { file = \"a.img\", size = \"16MiB\", create = true, label = true }\n";

fn spec(options: &str) -> String {
    let device = format!("thin = {{ kind = \"remap\", on = \"a\", size = \"1GiB\"{options} }}");
    format!("name = \"g\"\n{DISK}[device]\n{device}\n[export]\nvol = {{ on = \"thin\" }}\n")
}

fn thin(dir: &Dir) -> DeviceStatus {
    let all: Vec<Status> = dir.json(0, &["status"]);
    let devices = all.into_iter().flat_map(|status| status.devices);
    devices.into_iter().find(|device| device.name == "thin").unwrap()
}

fn taken(dir: &Dir) -> u64 {
    thin(dir).room.unwrap().taken_bytes
}

/// Returns the offset on the disk of the volume's byte at `offset`; `None` if no space is allocated for the byte.
fn place(dir: &Dir, offset: &str) -> Option<u64> {
    let place: LocateStep = dir.json(0, &["locate", "vol", offset]);
    place.below.first().map(|disk| disk.offset_bytes)
}

#[test]
fn thin_volume_keeps_acknowledged_writes_after_kill() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(""));
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 1M 200k", "write -P 0x22 900M 4k", "flush"]);
    io(&dir, serve.uri(), &["write -P 0x33 901M 4k", "discard 1M 64k"]);
    serve.signal("KILL");
    drop(serve);
    let serve = dir.serve(&["g.toml"]);
    let reads = ["read -P 0 1M 64k", "read -P 0x11 1088k 136k", "read -P 0x22 900M 4k"];
    io(&dir, serve.uri(), &reads);
    io(&dir, serve.uri(), &["read -P 0x33 901M 4k", "read -P 0 921604k 60k"]);
    assert_eq!(taken(&dir), 5 * (64 << 10));
    assert!(place(&dir, "900MiB").is_some());
    assert!(place(&dir, "1MiB").is_none() && place(&dir, "500MiB").is_none());
    let said = dir.text(&["status"]);
    assert!(said.contains("thin: 320 KiB of") && !said.contains("thin: failed"), "{said}");
    let said = dir.text(&["status", "--all"]);
    assert!(said.contains("\n  thin: failed  0\n"), "{said}");
    let map = tool(&dir, "nbdinfo", &["--map", serve.uri()]);
    assert!(map.out.contains("hole,zero"), "{map:?}");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn apply_inserts_remap_device_into_running_graph() {
    let dir = Dir::new();
    let other = "[disk]\nb = { memory = \"1MiB\" }\n[export]\nother = { on = \"b\" }\n";
    dir.write("before.toml", &format!("name = \"g\"\n{other}"));
    let with = |options| {
        spec(options).replace("[disk]\n", "[disk]\nb = { memory = \"1MiB\" }\n")
            + "other = { on = \"b\" }\n"
    };
    dir.write("log.toml", &with(", policy = \"log\""));
    dir.write("pack.toml", &with(", policy = \"log\", pack = true"));
    let serve = dir.serve(&["before.toml"]);
    let uri = serve.uri().replace("///other", "///vol");
    dir.text(&["apply", "log.toml"]);
    for block in 0..40 {
        let byte = block + 1;
        io(&dir, &uri, &[&format!("write -P {byte} {block}M 64k")]);
    }
    io(&dir, &uri, &["discard 0 30M"]);
    let (behind, first) = (place(&dir, "39MiB").unwrap(), place(&dir, "30MiB").unwrap());
    assert_eq!((behind - first, taken(&dir)), (9 * (64 << 10), 10 * (64 << 10)));
    dir.text(&["apply", "pack.toml"]);
    let done = || {
        let jobs: Vec<Job> = dir.json(0, &["job", "ls"]);
        jobs.iter().any(|job| job.device == "thin" && job.work.state == JobState::Done)
    };
    until("it is packed", done);
    for block in 30..40 {
        let byte = block + 1;
        io(&dir, &uri, &[&format!("read -P {byte} {block}M 64k")]);
        assert!(place(&dir, &format!("{block}MiB")).unwrap() < first, "block {block} is in front");
    }
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn discard_frees_space_of_full_thin_volume() {
    let dir = Dir::new();
    dir.write("g.toml", &spec(""));
    let serve = dir.serve(&["g.toml"]);
    let ran = tool(&dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", "write -P 1 0 32M"]);
    assert!(ran.out.contains("No space left") || ran.err.contains("No space left"), "{ran:?}");
    let status = thin(&dir);
    assert_eq!(status.health, Health::Limited);
    assert!(dir.text(&["status"]).contains("   limited   "));
    io(&dir, serve.uri(), &["discard 0 8M", "write -P 2 100M 4M", "read -P 2 100M 4M", "flush"]);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn validate_refuses_impossible_remap_options() {
    let dir = Dir::new();
    let cases = [
        (DISK.replace(", label = true", ""), "", "label = true on the disks"),
        (DISK.to_owned(), ", block = \"6KiB\"", "block 6144 is not a power of two; 4096 is"),
        (DISK.to_owned(), ", block = \"4KiB\"", ""),
        (DISK.to_owned(), ", meta = \"a\"", "is the only device"),
        (DISK.replace("16MiB", "6MiB"), ", block = \"4KiB\"", "the metadata of"),
    ];
    for (disk, options, words) in cases {
        dir.write("g.toml", &spec(options).replace(DISK, &disk));
        let ran = dir.cairn(&["validate", "g.toml"]);
        assert_eq!(ran.code, if words.is_empty() { 0 } else { 3 }, "{options}: {ran:?}");
        assert!((ran.out + &ran.err).contains(words), "{options}: {words}");
    }
}
