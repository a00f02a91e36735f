//! Measures the real binary: clones by commands, names that are opened on demand, memory, starts after kills.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bench::ground::{Ground, Medium};
use bench::load::{self, Load, Pattern, Verify};
use bench::rows::Row;
use bench::served::{Bed, Served};
use bench::stats::median;
use serde_json::json;

use crate::inside::BLOCK;

/// Clones that one command makes, and the promised time in seconds.
const CLONES: u64 = 10_000;
const CLONES_S: f64 = 2.0;

/// Connections that are open while further clones are created by their first use, and the number of these.
const OPEN: u64 = 10_000;
const FIRST_USES: u64 = 1_000;

/// Longest wait for a reply of such a handshake, and the time after which a connection is idle.
const IDLE_HANDSHAKE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(3);

/// Promised time from the connection to a clone that does not exist yet to its first bytes, at the 99th percentile.
const FIRST_USE_MS: f64 = 1.0;

/// Promised memory of an open, idle virtual disk with its connection (16 KiB each).
const OPEN_KIB: f64 = 32.0;

/// Promised memory of a pool: changes, nodes, and the buffers and the program itself.
const POOL_MIB: f64 = 50.0 + 64.0;

/// Promised time of a start after a kill without the replay of a log, speed of the replay, and largest log.
const START: Duration = Duration::from_secs(2);
const LOG_BYTES_PER_S: f64 = 200e6;
const LOG_BYTES: f64 = (1u64 << 30) as f64;

/// The spec of a pool on one file.
pub const SPEC: &str = "[disk]\na = { file = \"a.img\", size = \"32GiB\", create = true, label = true }\n\
                        [device]\nvms = { kind = \"pool\", on = \"a\" }\n";

/// Random writes of 4 KiB, until the client is stopped.
pub const WRITES: Load = Load {
    pattern: Pattern::RandomWrite,
    connections: 4,
    depth: 32,
    block: BLOCK as u32,
    shift: 0,
    warm_up: Duration::ZERO,
    time: Duration::ZERO,
    span: None,
    verify: Verify::Nothing,
    flush_every: None,
    structured: false,
};

/// Runs a verb of the `cairn` program on the server, and returns how long it took.
pub fn verb(bed: &Bed, words: &[&str]) -> Result<Duration, String> {
    let mut command = bed.command(words)?;
    command.arg("--at").arg(bed.path("control.sock"));
    let begun = Instant::now();
    let output = command.stderr(std::process::Stdio::piped()).output();
    let took = begun.elapsed();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(took),
        false => Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Starts a server with a pool and a virtual disk `vms/gold`, whose first GiB is written, and takes its snapshot `v1`.
fn gold<'b>(ground: &Ground, bed: &'b Bed) -> Result<Served<'b>, String> {
    // The spec goes on in its table [nbd].
    let connections = 2 * OPEN;
    let served = bed.serve(&format!("max_connections = {connections}\n{SPEC}"))?;
    verb(bed, &["vdisk", "create", "vms/gold", "4G"])?;
    ground.fill(&served.uri_of("vms/gold"), 1 << 30)?;
    verb(bed, &["vdisk", "snap", "vms/gold@v1"])?;
    Ok(served)
}

/// Measures 10,000 clones by one command.
pub fn clones(ground: &Ground) -> Result<Vec<Row>, String> {
    let mut took_s = Vec::new();
    for _ in 0..ground.rounds {
        let bed = Bed::new(&Medium::Disk.place(ground), "clones")?;
        let _served = gold(ground, &bed)?;
        let count = CLONES.to_string();
        let words = ["vdisk", "clone", "vms/gold@v1", "vms/job-{n}", "--count", &count];
        took_s.push(verb(&bed, &words)?.as_secs_f64());
    }
    let took = median(&took_s);
    Ok(vec![Row {
        id: "command-clones".to_owned(),
        title: format!("{CLONES} clones by one command, durable, file on this machine's disk"),
        aim: format!("{CLONES_S:.0} s"),
        figure: format!("{:.2} s ({:.2} to {:.2})", took.value, took.low, took.high),
        holds: Some(took.value <= CLONES_S),
        rounds: json!(took_s),
    }])
}

/// Returns the resident memory of the server, in KiB.
fn resident_kib(served: &Served<'_>) -> f64 {
    let path = format!("/proc/{}/status", served.pid());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0.0)
}

/// Opens a connection that stays idle, without a buffer in this process: the handshake of an NBD client up to the first
/// request (NBD protocol, fixed newstyle negotiation, `NBD_OPT_GO`).
fn idle(socket: &Path, export: &str) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(IDLE_HANDSHAKE))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let name = export.as_bytes();
    let mut sent = 3u32.to_be_bytes().to_vec();
    sent.extend_from_slice(b"IHAVEOPT");
    sent.extend_from_slice(&7u32.to_be_bytes());
    sent.extend_from_slice(&(name.len() as u32 + 6).to_be_bytes());
    sent.extend_from_slice(&(name.len() as u32).to_be_bytes());
    sent.extend_from_slice(name);
    sent.extend_from_slice(&[0; 2]);
    stream.write_all(&sent)?;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        std::io::copy(&mut Read::by_ref(&mut stream).take(word(16).into()), &mut std::io::sink())?;
        match word(12) {
            1 => return Ok(stream),
            refused if refused >= 1 << 31 => {
                return Err(std::io::Error::other(format!("{export} is refused: {refused:#x}")));
            }
            _ => {}
        }
    }
}

/// Measures clones that are made by their first use, beside 9,000 open ones, and the memory of these.
pub fn first_use(ground: &Ground) -> Result<Vec<Row>, String> {
    let bed = Bed::new(&Medium::Disk.place(ground), "first")?;
    let served = gold(ground, &bed)?;
    let env = ground.core.env();
    let uri = |n: u64| served.uri_of(&format!("vms/gold@v1+job{n}"));
    let used = async |n: u64| {
        let client = load::connect(&env, &uri(n), false).await?;
        load::read(&env, &client, n % 1000 * BLOCK, BLOCK).await?;
        Ok::<_, block::Error>(client)
    };
    let before_kib = resident_kib(&served);
    let socket = bed.path("nbd.sock");
    let idle = (0..OPEN).map(|n| idle(&socket, &format!("vms/gold@v1+job{n}")));
    let idle = idle.collect::<std::io::Result<Vec<_>>>().map_err(|error| error.to_string())?;
    std::thread::sleep(IDLE);
    let each_kib = (resident_kib(&served) - before_kib) / OPEN as f64;
    let first_uses = async {
        let mut ms = Vec::new();
        for n in OPEN..OPEN + FIRST_USES {
            let begun = Instant::now();
            let client = used(n).await?;
            ms.push(begun.elapsed().as_secs_f64() * 1e3);
            client.close();
        }
        Ok::<_, block::Error>(ms)
    };
    let mut ms = ground.asleep(|| {
        let measured = ground.core.block_on(first_uses);
        measured.map_err(|error| error.to_string())
    })?;
    drop(idle);
    ms.sort_by(f64::total_cmp);
    let p99 = ms[ms.len() * 99 / 100];
    Ok(vec![
        Row {
            id: "first-use".to_owned(),
            title: format!(
                "connection to a clone that does not exist yet, until its first 4 KiB, {OPEN} open"
            ),
            aim: format!("{FIRST_USE_MS:.0} ms at the 99th percentile"),
            figure: format!("{p99:.2} ms, median {:.2} ms", median(&ms).value),
            holds: Some(p99 <= FIRST_USE_MS),
            rounds: json!(ms),
        },
        Row {
            id: "open-memory".to_owned(),
            title: "an open, idle clone with its connection: resident memory".to_owned(),
            aim: format!("{OPEN_KIB:.0} KiB"),
            figure: format!("{each_kib:.1} KiB, mean of {OPEN}"),
            holds: Some(each_kib <= OPEN_KIB),
            rounds: json!(each_kib),
        },
    ])
}

/// Measures the memory of a pool under random writes.
pub fn memory(ground: &Ground) -> Result<Vec<Row>, String> {
    let bed = Bed::new(&Medium::Memory.place(ground), "memory")?;
    let spec = SPEC.replace("32GiB", "8GiB");
    let served = bed.serve(&spec)?;
    verb(&bed, &["vdisk", "create", "vms/vol", "4G"])?;
    let idle_kib = resident_kib(&served);
    let load = Load { time: Duration::from_secs(8), ..WRITES };
    let outcome = ground.load(&served.uri_of("vms/vol"), &load)?;
    let mib = (resident_kib(&served) - idle_kib) / 1024.0;
    Ok(vec![Row {
        id: "pool-memory".to_owned(),
        title: "a pool after random writes of 4 KiB for 8 s: growth of resident memory".to_owned(),
        aim: format!("{POOL_MIB:.0} MiB: 50 of changes, 64 of nodes"),
        figure: format!("{mib:.0} MiB after {} writes, from {:.0}", outcome.ops, idle_kib / 1024.0),
        holds: Some(mib <= POOL_MIB),
        rounds: json!([idle_kib, mib]),
    }])
}

/// Kills the server of a pool under load in each round, at another time in each, and measures the next start.
pub fn starts(ground: &Ground) -> Result<Vec<Row>, String> {
    let bed = Bed::new(&Medium::Disk.place(ground), "starts")?;
    let mut served = bed.serve(SPEC)?;
    verb(&bed, &["vdisk", "create", "vms/vol", "8G"])?;
    let mut took_ms = Vec::new();
    for round in 0..ground.rounds {
        let time = Duration::from_millis(2000 + 900 * round as u64);
        let (again, ms) = served.killed_under(ground, "vms/vol", &WRITES, time)?;
        served = again;
        took_ms.push(ms);
    }
    let worst = took_ms.iter().copied().fold(0.0, f64::max);
    let longest_ms = START.as_secs_f64() * 1e3 + LOG_BYTES / LOG_BYTES_PER_S * 1e3;
    Ok(vec![Row {
        id: "start-pool".to_owned(),
        title:
            "a pool killed under random writes, file on this machine's disk: start to first answer"
                .to_owned(),
        aim: format!("{longest_ms:.0} ms: 2 s, and a log of 1 GiB at 200 MB/s"),
        figure: format!("{worst:.0} ms at most, median {:.0} ms", median(&took_ms).value),
        holds: Some(worst <= longest_ms),
        rounds: json!(took_ms),
    }])
}
