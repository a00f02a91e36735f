//! NBD programs of other projects as clients of `cairn serve`, and many clients that misbehave at once.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use common::{Dir, Serve, tool, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// Returns a spec with two file disks and a device of `kind` over them: `stripe` or `mirror`.
fn pair(kind: &str) -> String {
    format!(
        "[disk]\na = {{ file = \"a.img\", size = \"64MiB\", create = true }}\n\
         b = {{ file = \"b.img\", size = \"64MiB\", create = true }}\n\
         [device]\npair = {{ kind = \"{kind}\", on = [\"a\", \"b\"] }}\n\
         [export]\nvol = {{ on = \"pair\" }}\n"
    )
}

fn works(dir: &Dir, name: &str, args: &[&str]) -> String {
    let ran = tool(dir, name, args);
    assert!(ran.code == 0 && !ran.out.contains("failed"), "{name} {args:?}: {ran:?}");
    ran.out
}

fn read_bytes(dir: &Dir) -> u64 {
    let top: api::Top = dir.json(0, &["top"]);
    let disks = top.rows.iter().filter(|row| ["a", "b"].contains(&row.name.as_str()));
    disks.map(|row| row.counts.as_ref().unwrap().bytes["read"]).sum()
}

fn in_use(dir: &Dir, name: &str) -> u64 {
    std::fs::metadata(dir.path(name)).unwrap().blocks() * 512
}

#[test]
fn clients_copy_sparse_volume_without_holes() {
    for kind in ["stripe", "mirror"] {
        let dir = Dir::new();
        dir.write("pair.toml", &pair(kind));
        let serve = dir.serve(&["pair.toml"]);
        let uri = serve.uri();
        works(
            &dir,
            "qemu-io",
            &["-f", "raw", uri, "-c", "write -P 7 8M 1M", "-c", "write -P 9 40M 1M"],
        );
        let map: Vec<Value> =
            serde_json::from_str(&works(&dir, "nbdinfo", &["--map", "--json", uri])).unwrap();
        let data: u64 = map
            .iter()
            .filter(|extent| extent["type"] == 0)
            .map(|extent| extent["length"].as_u64().unwrap())
            .sum();
        assert!((2 * MIB as u64..3 * MIB as u64).contains(&data), "{kind}: {map:?}");
        let before = read_bytes(&dir);
        works(&dir, "nbdcopy", &["--connections=4", uri, "copy.img"]);
        let read = read_bytes(&dir) - before;
        assert!((2 * MIB as u64..4 * MIB as u64).contains(&read), "{kind}: read {read} bytes");
        assert!(in_use(&dir, "copy.img") < 4 * MIB as u64);
        works(&dir, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "copy.img", uri]);
        // The copy back into the export keeps the holes.
        works(&dir, "nbdcopy", &["--connections=4", "copy.img", uri]);
        works(&dir, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "copy.img", uri]);
        assert!(in_use(&dir, "a.img") < 4 * MIB as u64, "{kind}");
        assert_eq!(serve.stop().code, 0);
    }
}

#[test]
fn nbdinfo_lists_features_offered_by_server() {
    let dir = Dir::new();
    dir.write("pair.toml", &pair("mirror"));
    let serve = dir.serve(&["pair.toml"]);
    let seen: Value =
        serde_json::from_str(&works(&dir, "nbdinfo", &["--json", serve.uri()])).unwrap();
    assert_eq!(seen["protocol"], "newstyle-fixed");
    assert_eq!(seen["structured"], true);
    let export = &seen["exports"][0];
    assert_eq!(export["export-name"], "vol");
    assert_eq!(export["export-size"], 64 * MIB);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    for can in [
        "can_cache",
        "can_df",
        "can_fast_zero",
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_zero",
    ] {
        assert_eq!(export[can], true, "{can}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_preferred"], 4096);
    assert_eq!(export["block_size_maximum"], 64 * MIB);
}

/// The last request of nbdcopy ends inside a block, and qemu-io writes single bytes.
#[test]
fn nbdcopy_and_qemu_io_write_bytes_at_any_offset() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "4M"]);
    let mut expected: Vec<u8> = (0..1_000_001u32).map(|n| ((n * 31) >> 4) as u8 | 1).collect();
    std::fs::write(dir.path("odd.img"), &expected).unwrap();
    let serve = dir.serve(&["disk.img"]);
    let ran = tool(&dir, "nbdcopy", &["odd.img", serve.uri()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    expected.resize(4 << 20, 0);
    let writes =
        ["write -P 3 1 1", "write -P 4 511 2", "write -P 5 100001 70001", "write -z 7 9999"];
    for (at, len, value) in [(1, 1, 3), (511, 2, 4), (100_001, 70_001, 5), (7, 9999, 0)] {
        expected[at..at + len].fill(value);
    }
    let mut args = vec!["-f", "raw", serve.uri()];
    args.extend(writes.iter().flat_map(|line| ["-c", *line]));
    let ran = tool(&dir, "qemu-io", &args);
    assert!(ran.code == 0 && !ran.out.contains("failed"), "{ran:?}");
    let ran = tool(&dir, "nbdcopy", &[serve.uri(), "out.img"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(std::fs::read(dir.path("out.img")).unwrap() == expected, "other bytes are read");
    assert_eq!(serve.stop().code, 0);
    assert!(std::fs::read(dir.path("disk.img")).unwrap() == expected, "other bytes are stored");
}

/// A raw file of any size is served up to its last byte, and keeps its size.
#[test]
fn nbdcopy_copies_file_of_odd_size_both_ways() {
    let dir = Dir::new();
    for size in [1_000_001, 1, 511, 4096 * 3 + 512] {
        let bytes: Vec<u8> = (0..size as u32).map(|n| ((n * 31) >> 4) as u8 | 1).collect();
        std::fs::write(dir.path("in.img"), &bytes).unwrap();
        std::fs::write(dir.path("odd.img"), vec![0; size]).unwrap();
        let serve = dir.serve(&["odd.img"]);
        for args in [["in.img", serve.uri()], [serve.uri(), "out.img"]] {
            let ran = tool(&dir, "nbdcopy", &args);
            assert_eq!(ran.code, 0, "{size}: {ran:?}");
        }
        let shown = tool(&dir, "nbdinfo", &["--size", serve.uri()]).out;
        assert_eq!(shown.trim(), size.to_string());
        assert_eq!(serve.stop().code, 0);
        for name in ["out.img", "odd.img"] {
            assert!(std::fs::read(dir.path(name)).unwrap() == bytes, "{size}: {name}");
        }
        std::fs::remove_file(dir.path("out.img")).unwrap();
    }
    std::fs::write(dir.path("odd.img"), vec![1; 1_000_001]).unwrap();
    let serve = dir.serve(&["odd.img"]);
    let lines = [
        "write -z 999936 65",
        "read -P 0 999936 65",
        "read -P 1 999424 512",
        "write -P 7 1000000 1",
        "read -P 7 1000000 1",
        "flush",
    ];
    let mut args = vec!["-f", "raw", serve.uri()];
    args.extend(lines.iter().flat_map(|line| ["-c", *line]));
    let ran = tool(&dir, "qemu-io", &args);
    assert!(ran.code == 0 && !ran.out.contains("failed"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
    let bytes = std::fs::read(dir.path("odd.img")).unwrap();
    assert_eq!((bytes.len(), bytes[999_999], bytes[1_000_000]), (1_000_001, 0, 7));
}

/// A disk with a label, or below another device, consists of whole blocks.
#[test]
fn spec_check_refuses_file_of_odd_size_below_label_or_device() {
    let dir = Dir::new();
    std::fs::write(dir.path("odd.img"), vec![0; (8 << 20) + 1]).unwrap();
    for (options, device) in [
        (", label = true", ""),
        ("", "[device]\nt = { kind = \"linear\", on = \"d\", size = \"1MiB\" }\n"),
    ] {
        let on = if device.is_empty() { "d" } else { "t" };
        dir.write(
            "t.toml",
            &format!(
                "[disk]\nd = {{ file = \"odd.img\"{options} }}\n{device}[export]\nvol = {{ on = \"{on}\" }}\n"
            ),
        );
        let ran = dir.cairn(&["validate", "t.toml"]);
        assert!(ran.code == 3 && ran.err.contains("has 8388609 bytes"), "{ran:?}");
        assert!(ran.err.contains("truncate -s 8389120"), "{ran:?}");
    }
}

#[test]
fn qemu_tools_convert_zero_and_discard_volume() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "64M"]);
    let serve = dir.serve(&["disk.img"]);
    let uri = serve.uri();
    works(
        &dir,
        "qemu-io",
        &[
            "-f",
            "raw",
            uri,
            "-c",
            "write -f -P 3 0 8M",
            "-c",
            "write -z 1M 1M",
            "-c",
            "write -z -u 2M 1M",
            "-c",
            "discard 3M 1M",
            "-c",
            "flush",
            "-c",
            "read -P 3 0 1M",
            "-c",
            "read -P 0 1M 3M",
            "-c",
            "read -P 3 4M 4M",
        ],
    );
    works(&dir, "qemu-img", &["convert", "-f", "raw", "-O", "qcow2", uri, "disk.qcow2"]);
    works(&dir, "qemu-img", &["compare", "-f", "raw", uri, "disk.qcow2"]);
    works(&dir, "qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", "disk.qcow2", uri]);
    works(&dir, "qemu-img", &["compare", "-f", "raw", uri, "disk.qcow2"]);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn fio_reads_back_writes_to_volume() {
    let memory = "[disk]\nm = { memory = \"16MiB\" }\n[export]\nvol = { on = \"m\" }\n".to_owned();
    for spec in [memory, pair("mirror")] {
        let dir = Dir::new();
        dir.write("pair.toml", &spec);
        let serve = dir.serve(&["pair.toml"]);
        let uri = format!("--uri={}", serve.uri());
        works(
            &dir,
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                "--rw=randwrite",
                "--bsrange=4k-64k",
                "--size=8m",
                "--iodepth=16",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--fsync=32",
                "--randseed=7",
            ],
        );
        assert_eq!(serve.stop().code, 0);
    }
}

#[test]
fn server_reports_connection_limit_to_refused_client() {
    let dir = Dir::new();
    dir.write(
        "one.toml",
        "[nbd]\nmax_connections = 1\n[disk]\nm = { memory = \"1MiB\" }\n[export]\nvol = { on = \"m\" }\n",
    );
    let serve = dir.serve(&["one.toml"]);
    let _first = greeted(&serve).expect("the first one is let in");
    let words = "the server has reached its limit of 1 connections; try again later";
    // libnbd shows a server's message only with debugging on; otherwise it has its own.
    let shown = format!("LIBNBD_DEBUG=1 nbdinfo '{}'", serve.uri());
    let ran = tool(&dir, "sh", &["-c", &shown]);
    assert!(ran.code != 0 && ran.err.contains(words), "{ran:?}");
    let ran = tool(&dir, "nbdcopy", &[serve.uri(), "null:"]);
    assert!(ran.code != 0 && ran.err.contains("server policy prevents NBD_OPT_GO"), "{ran:?}");
    let ran = tool(&dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", "read 0 4k"]);
    assert!(ran.err.contains(words), "{ran:?}");
    let ran = dir.cairn(&["info", serve.uri()]);
    assert!(ran.err.contains(words), "{ran:?}");
}

/// Connects to the server and reads the NBD greeting. Returns `None` if the server sent no greeting.
fn greeted(serve: &Serve) -> Option<UnixStream> {
    let path = serve.uri().split_once("socket=").unwrap().1;
    let mut stream = UnixStream::connect(path).ok()?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).ok()?;
    Some(stream)
}

fn raise_open_files() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    maximum.unwrap_or(1 << 20)
}

#[test]
fn server_bounds_files_and_memory_of_idle_connections() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "16M"]);
    let serve = dir.serve(&["disk.img"]);
    let path = serve.uri().split_once("socket=").unwrap().1;
    let count = 10_000.min(raise_open_files().saturating_sub(500)) as usize;
    let idle: Vec<_> = (0..count).map(|_| UnixStream::connect(path).unwrap()).collect();
    let open = std::fs::read_dir(format!("/proc/{}/fd", serve.pid())).unwrap().count();
    assert!(open < 300, "{open} open files");
    let status = std::fs::read_to_string(format!("/proc/{}/status", serve.pid())).unwrap();
    let resident = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kib: u64 = resident.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 200 << 10, "{resident}");
    // None of them sends anything within 10 s, so the server drops them. Then it has room, while they are still
    // connected.
    until("a client is served", || tool(&dir, "nbdinfo", &["--size", serve.uri()]).code == 0);
    drop(idle);
    let ran = serve.stop();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.lines().count() < 100, "{} lines", ran.err.lines().count());
}

#[test]
fn server_pauses_accept_at_descriptor_limit() {
    let dir = Dir::new();
    dir.write(
        "many.toml",
        "[nbd]\nlisten = \"unix:x.sock\"\nmax_connections = 400\n\
         [disk]\nm = { memory = \"1MiB\" }\n[export]\nvol = { on = \"m\" }\n",
    );
    let line = "ulimit -n 64; exec \"$CAIRN\" serve many.toml --pidfile pid";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", line]).current_dir(&dir.0).env("CAIRN", env!("CARGO_BIN_EXE_cairn"));
    command.env("XDG_RUNTIME_DIR", dir.path("run"));
    let said = std::fs::File::create(dir.path("said")).unwrap();
    command.stdout(std::process::Stdio::null()).stderr(said);
    let mut child = command.spawn().unwrap();
    until("the server", || dir.path("pid").exists());
    let mut crowd: Vec<_> =
        (0..120).map(|_| UnixStream::connect(dir.path("x.sock")).unwrap()).collect();
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    std::thread::sleep(std::time::Duration::from_millis(200));
    // This query may have to wait or may get no answer, but it does not hang for ever.
    let asked = dir.command(&["status"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let before = ticks();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(ticks() - before < 60, "it burns the core: {} ticks", ticks() - before);
    // The accepted clients are served, and the others as soon as there is room.
    crowd[0].write_all(&3_u32.to_be_bytes()).unwrap();
    crowd.truncate(1);
    let uri = format!("nbd+unix:///vol?socket={}", dir.path("x.sock").display());
    until("a client is served", || tool(&dir, "nbdinfo", &["--size", &uri]).out == "1048576\n");
    let mut asked = asked;
    asked.wait().unwrap();
    dir.text(&["status"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let said = std::fs::read_to_string(dir.path("said")).unwrap();
    let waiting = "Too many open files (os error 24); new connections wait until others close";
    let told = said.lines().filter(|line| line.contains("x.sock: ") && line.contains(waiting));
    assert_eq!(told.count(), 1, "{said}");

    let few = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 40; exec \"$CAIRN\" serve many.toml"])
        .current_dir(&dir.0)
        .env("CAIRN", env!("CARGO_BIN_EXE_cairn"))
        .output();
    let ran = common::Ran::of(&few.unwrap());
    assert!(ran.code == 1 && ran.err.contains("may open 40 files"), "{ran:?}");
}
