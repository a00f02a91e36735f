//! Measures the cost of an idle server: its threads must not wake up, and it must use little memory.
#![allow(clippy::disallowed_methods, reason = "it reads the real clock and /proc")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::machine::{Name, is_root, run};
use common::{Dir, Serve};

/// Pause before the measurement: after it, the server's check of request deadlines has run for the last time.
const SETTLE: Duration = Duration::from_secs(8);

const IDLE: Duration = Duration::from_secs(10);

const MIB: u64 = 1 << 20;

/// A spec with twenty disks and devices: tables, hooks and mirrors.
const SPEC: &str = r#"
name = "quiet"
[disk]
m = { memory = "256MiB" }
n = { null = "256MiB" }
f1 = { file = "f1.img", size = "64MiB", create = true }
f2 = { file = "f2.img", size = "64MiB", create = true }
f3 = { file = "f3.img", size = "64MiB", create = true }
f4 = { file = "f4.img", size = "64MiB", create = true }
[device]
p1 = { kind = "partition", on = "m", size = "64MiB" }
p2 = { kind = "partition", on = "m", size = "64MiB" }
p3 = { kind = "partition", on = "m", size = "rest" }
s12 = { kind = "stripe", on = ["p1", "p2"] }
all = { kind = "concat", on = ["s12", "p3"] }
seen = { kind = "pass", on = "all" }
slow = { kind = "limit", on = "seen", iops = 10000000 }
fast = { kind = "delay", on = "slow", time = "0s" }
pair = { kind = "mirror", on = ["f1", "f2"] }
twin = { kind = "mirror", on = ["f3", "f4"] }
both = { kind = "stripe", on = ["pair", "twin"] }
late = { kind = "delay", on = "both", time = "1us" }
void = { kind = "linear", on = "n", start = "4KiB" }
gone = { kind = "pass", on = "void" }
[export]
vol = { on = "fast" }
safe = { on = "late" }
null = { on = "gone" }
"#;

fn status(serve: &Serve, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", serve.pid())).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the number of times that the server's threads went to sleep so far; before each time, a thread was awake.
/// The io_uring workers of the kernel do not count, because the kernel starts and ends these threads by itself.
fn sleeps(serve: &Serve) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", serve.pid())).unwrap();
    let of = |task: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let field = |key| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        if field("Name:").is_none_or(|name| name.starts_with("iou-wrk")) {
            return 0;
        }
        field("voluntary_ctxt_switches:").unwrap().parse::<u64>().unwrap()
    };
    tasks.map(of).sum()
}

/// Connects an NBD client that completes the handshake and then sends nothing.
fn idle_client(serve: &Serve) -> UnixStream {
    let socket = serve.uri().split("socket=").nth(1).unwrap();
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut hello = 3_u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend(1_u32.to_be_bytes());
    hello.extend(3_u32.to_be_bytes());
    hello.extend(b"vol");
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

fn requests(dir: &Dir, serve: &Serve, export: &str, pattern: &str) -> u64 {
    let uri = serve.uri().replace("/vol?", &format!("/{export}?"));
    let seconds = "2s";
    let args = ["bench", &uri, "--pattern", pattern, "--rounds", "1", "--time", seconds, "--yes"];
    let measured: Vec<serde_json::Value> = dir.json(0, &args);
    2 * measured[0]["median_iops"].as_f64().unwrap() as u64
}

#[test]
fn server_sleeps_while_large_graph_is_idle() {
    let dir = Dir::new();
    dir.write("quiet.toml", SPEC);
    let serve = dir.serve(&["quiet.toml"]);
    let mut sent = 0;
    while sent < 100_000 {
        for export in ["vol", "safe", "null"] {
            sent += requests(&dir, &serve, export, "randread");
            sent += requests(&dir, &serve, export, "randwrite");
        }
    }
    let clients: Vec<_> = (0..4).map(|_| idle_client(&serve)).collect();
    std::thread::sleep(SETTLE);
    let before = sleeps(&serve);
    std::thread::sleep(IDLE);
    assert_eq!(sleeps(&serve) - before, 0, "wake-ups in {IDLE:?}");
    // The memory disk holds the written bytes. They are no overhead.
    let written = 256 * MIB;
    let anonymous = status(&serve, "RssAnon") * 1024 + status(&serve, "VmLck") * 1024;
    assert!(anonymous <= 16 * MIB + written, "{} MiB after {sent} requests", anonymous / MIB);
    drop(clients);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn server_sleeps_while_attached_device_is_idle() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    dir.write("one.toml", "[disk]\nd = { memory = \"64MiB\" }\n[export]\nvol = { on = \"d\" }\n");
    let serve = dir.serve(&["one.toml"]);
    let name = Name::new(&dir);
    name.attach("vol");
    run("mkfs.ext4", &["-q", &name.shown()]);
    std::thread::sleep(SETTLE);
    let before = sleeps(&serve);
    std::thread::sleep(IDLE);
    assert_eq!(sleeps(&serve) - before, 0, "wake-ups in {IDLE:?}");
    name.detach_well();
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn server_uses_little_memory_while_graph_is_idle() {
    let dir = Dir::new();
    dir.write("quiet.toml", &SPEC.replace("memory = ", "null = "));
    let serve = dir.serve(&["quiet.toml"]);
    let mut sent = 0;
    while sent < 100_000 {
        sent += requests(&dir, &serve, "vol", "randread");
        sent += requests(&dir, &serve, "safe", "randwrite");
    }
    std::thread::sleep(Duration::from_millis(200));
    let empty = status(&serve, "RssAnon") * 1024 + status(&serve, "VmLck") * 1024;
    assert!(empty <= 16 * MIB, "{} KiB after {sent} requests", empty / 1024);
    let clients: Vec<_> = (0..50).map(|_| idle_client(&serve)).collect();
    let full = status(&serve, "RssAnon") * 1024 + status(&serve, "VmLck") * 1024;
    let each = full.saturating_sub(empty) / clients.len() as u64;
    assert!(each <= MIB, "{} KiB for each idle connection", each / 1024);
}
