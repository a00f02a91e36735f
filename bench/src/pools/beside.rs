//! Measures a pool beside the raw file, qcow2 images and reflinks on XFS, in turns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::routes;
use bench::ground::{Ground, Medium};
use bench::load::{Load, Pattern, Verify};
use bench::rows::Row;
use bench::served::{Bed, Served, said};
use bench::stats::{median, ratio};
use kinds::vdisks::{CloneArgs, CloneOf};
use serde_json::json;

use crate::inside::BLOCK;
use crate::peers::{Qemu, Xfs, tool};
use crate::service::{SPEC, WRITES, verb};

/// Bytes of each volume.
const VOLUME: u64 = 2 << 30;

/// Time of a turn before and while it is measured.
const WARM_UP: Duration = Duration::from_millis(500);
const TURN: Duration = Duration::from_millis(2000);

/// Promised share of the raw file's requests, and bytes below for each byte of a client.
const OF_RAW: f64 = 0.95;
const BYTES: f64 = 1.1;

/// Writes between two flushes, and the promised ratio to qcow2.
const FLUSH_EVERY: u32 = 32;
const OF_QCOW2: f64 = 2.0;

/// Promised growth of processor time, bytes and requests by 100 snapshots a second.
const SNAPSHOT_COST: f64 = 1.04;

/// Random writes to an image before it is cloned.
const CLONE_WRITES: u64 = 8_000;

/// Depth of the chains.
const CHAIN: u64 = 100;

/// The specification of a raw file.
fn raw_spec() -> String {
    format!(
        "[disk]\na = {{ file = \"raw.img\", size = \"{VOLUME}\", create = true }}\n\
         [export]\nvol = {{ on = \"a\" }}\n"
    )
}

/// Makes a qcow2 image in `dir`.
fn qcow2(dir: &Path, name: &str, base: Option<&Path>) -> Result<PathBuf, String> {
    let image = dir.join(name);
    let shown = image.display().to_string();
    match base {
        None => tool("qemu-img", &["create", "-q", "-f", "qcow2", &shown, &VOLUME.to_string()])?,
        Some(base) => {
            let base = base.display().to_string();
            tool("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &base, &shown])?;
        }
    }
    Ok(image)
}

/// Returns the bytes that a process has written to block devices.
fn written_bytes(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// Runs a load. Returns its requests per second, and the bytes written below for each byte of a request.
fn turn(ground: &Ground, uri: &str, pid: u32, load: &Load) -> Result<(f64, f64), String> {
    let before = written_bytes(pid);
    let load = Load { warm_up: Duration::ZERO, time: WARM_UP + TURN, ..load.clone() };
    let outcome = ground.load(uri, &load)?;
    let bytes = (written_bytes(pid) - before) / (outcome.ops as f64 * f64::from(load.block));
    Ok((outcome.iops(), bytes))
}

/// Measures random writes to a pool, a raw file and a qcow2 image, without flushes and with one every 32 writes.
pub fn writes(ground: &Ground) -> Result<Vec<Row>, String> {
    let place = Medium::Disk.place(ground);
    let (raw_bed, pool_bed) = (Bed::new(&place, "raw")?, Bed::new(&place, "pool")?);
    let (raw, pool) = (raw_bed.serve(&raw_spec())?, pool_bed.serve(SPEC)?);
    verb(&pool_bed, &["vdisk", "create", "vms/vol", &VOLUME.to_string()])?;
    let qemu = Qemu::serve(&place, "qcow2", &qcow2(&place, "beside.qcow2", None)?)?;
    let servers =
        [(raw.uri(), raw.pid()), (pool.uri_of("vms/vol"), pool.pid()), (qemu.uri(), qemu.pid())];
    for (uri, _) in &servers {
        ground.fill(uri, VOLUME)?;
    }
    let mut rows = Vec::new();
    for flush_every in [None, Some(FLUSH_EVERY)] {
        let load = Load { flush_every, ..WRITES };
        let mut iops = [const { Vec::new() }; 3];
        let mut bytes = [const { Vec::new() }; 3];
        for _ in 0..ground.rounds {
            for (n, (uri, pid)) in servers.iter().enumerate() {
                let (requests, written) = turn(ground, uri, *pid, &load)?;
                iops[n].push(requests);
                bytes[n].push(written);
            }
        }
        let (of_raw, of_qcow2) = (ratio(&iops[1], &iops[0]), ratio(&iops[1], &iops[2]));
        let [raw, own, theirs] = [0, 1, 2].map(|n| median(&iops[n]).value / 1e3);
        let [raw_bytes, own_bytes, their_bytes] = [0, 1, 2].map(|n| median(&bytes[n]).value);
        let figure = format!(
            "{:.2} of the raw file ({:.2} to {:.2}), {:.2} of qcow2 ({:.2} to {:.2}): {own:.1}, \
             {raw:.1} and {theirs:.1} thousand a second; {own_bytes:.2}, {raw_bytes:.2} and \
             {their_bytes:.2} bytes below for each",
            of_raw.value, of_raw.low, of_raw.high, of_qcow2.value, of_qcow2.low, of_qcow2.high
        );
        let form = "random writes of 4 KiB, 4 connections of depth 32, file with O_DIRECT";
        let (id, title, aim, holds) = match flush_every {
            None => (
                "writes",
                form.to_owned(),
                format!("{OF_RAW} of the raw file, {BYTES} times the bytes below"),
                of_raw.value >= OF_RAW && own_bytes <= BYTES * raw_bytes,
            ),
            Some(every) => (
                "writes-flushed",
                format!("the same with a flush every {every} writes of a connection"),
                format!("{OF_QCOW2} of qcow2"),
                of_qcow2.value >= OF_QCOW2,
            ),
        };
        rows.push(Row {
            id: id.to_owned(),
            title,
            aim,
            figure,
            holds: Some(holds),
            rounds: json!({"raw": iops[0], "pool": iops[1], "qcow2": iops[2], "bytes": bytes}),
        });
    }
    Ok(rows)
}

/// The cost of a request for a server.
#[derive(Clone, Copy)]
struct Cost {
    cpu_us: f64,
    bytes: f64,
    requests: f64,
}

/// Returns the processor time of a process in microseconds.
fn cpu_us(pid: u32) -> f64 {
    // Nanoseconds that the process has run on a processor; its threads have lines of their own.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.map(|entry| std::fs::read_to_string(entry.path().join("schedstat")));
    let ns = texts.filter_map(|text| text.ok()?.split(' ').next()?.parse::<f64>().ok());
    ns.sum::<f64>() / 1e3
}

fn cost(ground: &Ground, served: &Served<'_>, load: &Load) -> Result<Cost, String> {
    let disk = || {
        let top = served.control.get(&routes::TOP).map_err(said)?;
        let row = top.rows.into_iter().find(|row| row.name == "a").ok_or("no disk a")?;
        let counts = row.counts.ok_or("the disk a has no counts")?;
        let of = |all: &BTreeMap<String, u64>| all.get("write").copied().unwrap_or(0) as f64;
        Ok::<_, String>((of(&counts.ops), of(&counts.bytes)))
    };
    let (before, cpu) = (disk()?, cpu_us(served.pid()));
    let outcome = ground.load(&served.uri_of("vms/vol"), load)?;
    let (after, cpu) = (disk()?, cpu_us(served.pid()) - cpu);
    let ops = outcome.ops as f64;
    Ok(Cost {
        cpu_us: cpu / ops,
        bytes: (after.1 - before.1) / ops,
        requests: (after.0 - before.0) / ops,
    })
}

/// Measures what 100 snapshots a second cost the server under random writes.
pub fn cadence(ground: &Ground) -> Result<Vec<Row>, String> {
    let bed = Bed::new(&Medium::Disk.place(ground), "cadence")?;
    let served = bed.serve(SPEC)?;
    verb(&bed, &["vdisk", "create", "vms/vol", &VOLUME.to_string()])?;
    ground.fill(&served.uri_of("vms/vol"), VOLUME)?;
    let load = Load { time: TURN, ..WRITES };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ground.rounds {
        without.push(cost(ground, &served, &load)?);
        verb(&bed, &["vdisk", "snap", "vms/vol", "--every", "10ms"])?;
        with.push(cost(ground, &served, &load)?);
        verb(&bed, &["vdisk", "snap", "vms/vol", "--every", "never"])?;
    }
    let found = |of: fn(&Cost) -> f64| {
        let [with, without] = [&with, &without].map(|all| all.iter().map(of).collect::<Vec<f64>>());
        ratio(&with, &without)
    };
    let all = [found(|c| c.cpu_us), found(|c| c.bytes), found(|c| c.requests)];
    let words = all.map(|one| format!("{:.3} ({:.3} to {:.3})", one.value, one.low, one.high));
    Ok(vec![Row {
        id: "cadence".to_owned(),
        title: "100 snapshots a second under random writes, beside none: the server's cost of a \
                request"
            .to_owned(),
        aim: format!("{SNAPSHOT_COST} of processor time, bytes and requests below"),
        figure: format!("processor time {}, bytes {}, requests {}", words[0], words[1], words[2]),
        holds: Some(all.iter().all(|one| one.value <= SNAPSHOT_COST)),
        rounds: json!({
            "with": with.iter().map(|c| [c.cpu_us, c.bytes, c.requests]).collect::<Vec<_>>(),
            "without": without.iter().map(|c| [c.cpu_us, c.bytes, c.requests]).collect::<Vec<_>>(),
        }),
    }])
}

/// Measures one clone of a fresh image, and one after 8,000 random writes, beside reflinks on XFS and internal
/// snapshots of qcow2.
pub fn clones(ground: &Ground) -> Result<Vec<Row>, String> {
    let place = Medium::Disk.place(ground);
    let bed = Bed::new(&place, "clones")?;
    let pool = bed.serve(SPEC)?;
    verb(&bed, &["vdisk", "create", "vms/vol", &VOLUME.to_string()])?;
    let mut qemu = Qemu::serve(&place, "qcow2", &qcow2(&place, "clones.qcow2", None)?)?;
    let xfs = Xfs::mount(&place)?;
    let image = xfs.at.join("image").display().to_string();
    let write = |count: u64| -> Result<(), String> {
        let count = format!("--number_ios={count}");
        let common = ["--name=w", "--rw=randwrite", "--bs=4k", "--iodepth=32", &count];
        let size = format!("--size={VOLUME}");
        for uri in [pool.uri_of("vms/vol"), qemu_uri(&place)] {
            let uri = format!("--uri={uri}");
            tool("fio", &[&common[..], &["--ioengine=nbd", &uri, &size]].concat())?;
        }
        let file = format!("--filename={image}");
        tool("fio", &[&common[..], &["--ioengine=io_uring", "--direct=1", &file, &size]].concat())
    };
    for uri in [pool.uri_of("vms/vol"), qemu.uri()] {
        ground.fill(&uri, VOLUME)?;
    }
    let size = format!("--size={VOLUME}");
    for file in ["image", "gold"].map(|name| format!("--filename={}", xfs.at.join(name).display()))
    {
        let fill =
            ["--name=f", "--rw=write", "--bs=1M", "--direct=1", "--end_fsync=1", &file, &size];
        tool("fio", &fill)?;
    }
    let mut ms = [const { Vec::new() }; 6];
    for round in 0..ground.rounds {
        for step in 0..2 {
            if step == 1 {
                write(CLONE_WRITES)?;
            }
            let to = format!("c{round}-{step}");
            ms[3 * step].push(clone_vdisk(&pool, &to)?.as_secs_f64() * 1e3);
            // An image that was written once and cloned is no unchanged one on XFS: its extents are split.
            let from = if step == 0 { "gold" } else { "image" };
            ms[3 * step + 1].push(xfs.clone(from, &to)?.as_secs_f64() * 1e3);
            let begun = Instant::now();
            qemu.snapshot(&to)?;
            ms[3 * step + 2].push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    let words = |step: usize| {
        let [own, xfs, qcow2] = [0, 1, 2].map(|n| median(&ms[3 * step + n]).value);
        format!("{own:.2} ms by the control socket, XFS {xfs:.2} ms, qcow2 {qcow2:.2} ms")
    };
    let row = |id: &str, title: String, step: usize| Row {
        id: id.to_owned(),
        title,
        aim: "one flush".to_owned(),
        figure: words(step),
        holds: None,
        rounds: json!([ms[3 * step], ms[3 * step + 1], ms[3 * step + 2]]),
    };
    Ok(vec![
        row(
            "beside-clone-fresh",
            "a clone of an unchanged image, beside a reflink on XFS and an internal snapshot of \
             qcow2"
                .to_owned(),
            0,
        ),
        row(
            "beside-clone-written",
            format!("the same after {CLONE_WRITES} random writes to the image"),
            1,
        ),
    ])
}

/// Returns the URI of the image that qemu-storage-daemon serves in `dir`.
fn qemu_uri(dir: &Path) -> String {
    format!("nbd+unix:///vol?socket={}", dir.join("qsd.sock").display())
}

/// Clones `vms/vol` by a command to the running server. Returns how long that took.
fn clone_vdisk(pool: &Served<'_>, to: &str) -> Result<Duration, String> {
    let args = CloneArgs { of: "vol".to_owned(), names: vec![to.to_owned()], dry_run: false };
    let begun = Instant::now();
    pool.control.command::<CloneOf>("vms", &args).map_err(said)?;
    Ok(begun.elapsed())
}

/// Measures random reads of the top of a chain of clones, beside a chain of qcow2 images.
pub fn chains(ground: &Ground) -> Result<Vec<Row>, String> {
    let place = Medium::Disk.place(ground);
    let bed = Bed::new(&place, "chains")?;
    let pool = bed.serve(SPEC)?;
    verb(&bed, &["vdisk", "create", "vms/v0", &VOLUME.to_string()])?;
    ground.fill(&pool.uri_of("vms/v0"), VOLUME)?;
    let mut image = qcow2(&place, "chain-0.qcow2", None)?;
    ground.fill(&Qemu::serve(&place, "qcow2", &image)?.uri(), VOLUME)?;
    let reads = Load { pattern: Pattern::RandomRead, time: TURN, warm_up: WARM_UP, ..WRITES };
    let reads = Load { verify: Verify::WarmUp, ..reads };
    let mut flat = [Vec::new(), Vec::new()];
    let mut deep = [Vec::new(), Vec::new()];
    let measure = |uri: &str, image: &Path, into: &mut [Vec<f64>; 2]| -> Result<(), String> {
        let qemu = Qemu::serve(&place, "qcow2", image)?;
        for _ in 0..ground.rounds {
            into[0].push(ground.load(uri, &reads)?.iops());
            into[1].push(ground.load(&qemu.uri(), &reads)?.iops());
        }
        Ok(())
    };
    measure(&pool.uri_of("vms/v0"), &image, &mut flat)?;
    // For the same time in each layer, so a faster server writes more. The bytes are those of the layers below.
    let writes = Load { verify: Verify::Everything, ..WRITES };
    let writes = Load { time: Duration::from_millis(150), ..writes };
    for n in 1..=CHAIN {
        verb(&bed, &["vdisk", "clone", &format!("vms/v{}", n - 1), &format!("vms/v{n}")])?;
        ground.load(&pool.uri_of(&format!("vms/v{n}")), &writes)?;
        image = qcow2(&place, &format!("chain-{n}.qcow2"), Some(&image))?;
        ground.load(&Qemu::serve(&place, "qcow2", &image)?.uri(), &writes)?;
    }
    measure(&pool.uri_of(&format!("vms/v{CHAIN}")), &image, &mut deep)?;
    let [own, theirs] = [0, 1].map(|n| median(&deep[n]).value / median(&flat[n]).value);
    let beside = ratio(&deep[0], &deep[1]);
    for n in 0..=CHAIN {
        let _ = std::fs::remove_file(place.join(format!("chain-{n}.qcow2")));
    }
    Ok(vec![Row {
        id: "chains".to_owned(),
        title: format!(
            "random reads of 4 KiB, 4 connections of depth 32, {CHAIN} clones or qcow2 layers deep, \
             beside the flat one"
        ),
        aim: "0.95 of the flat one".to_owned(),
        figure: format!(
            "pool {own:.2}, qcow2 {theirs:.2}; deep, the pool is {:.2} of qcow2 ({:.2} to {:.2})",
            beside.value, beside.low, beside.high
        ),
        holds: Some(own >= 0.95),
        rounds: json!({"flat": flat, "deep": deep, "block": BLOCK}),
    }])
}
