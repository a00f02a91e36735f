//! Measures what openings and closings of virtual disks and pools cost, in this process.

use bench::ground::Ground;
use bench::rows::Row;
use bench::stats::median;
use pool::geometry::Geometry;
use serde_json::json;

use crate::inside::{BLOCK, CACHE_BYTES, Inside, name};

/// Blocks of the vdisks: 4 GiB.
const BLOCKS: u64 = 1 << 20;

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages = text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| format!("unexpected statm: {text}"))
}

/// Measures the memory that closed vdisks keep after a checkpoint: growth from equal batches of clones, each of which is
/// opened, read and closed.
pub fn closed(ground: &Ground) -> Result<Vec<Row>, String> {
    const BATCH: u64 = 10_000;
    const FIRST: u64 = 3;
    const BATCHES: u64 = 13;
    const SMALL_CACHE: u64 = 1 << 20;
    const MOST_BYTES: f64 = 16.0;
    let inside = Inside::new(ground, 64, SMALL_CACHE)?;
    let snapshot = inside.run(async {
        let gold = inside.vdisk(&name("gold"), BLOCKS).await?;
        inside.fill(&gold, 0, 4096).await?;
        inside.snapshot(&name("gold")).await
    })?;
    let mut held: Vec<f64> = Vec::new();
    for batch in 0..BATCHES {
        inside.run(async {
            let into = inside.env().buf(BLOCK as usize)?;
            for n in 0..BATCH {
                let clone = name(&format!("c{batch}-{n}"));
                let id = inside.pool.clone_of(&snapshot, &clone).await?;
                let version = inside.pool.open_version(id).await?;
                inside.pool.read(&version, 1, &into).await?;
                drop(version);
                inside.pool.close_version(id);
            }
            inside.pool.checkpoint().await
        })?;
        held.push(resident_bytes()?.saturating_sub(inside.disk.kept_bytes()) as f64);
    }
    let (first, last) = (held[FIRST as usize - 1], held[held.len() - 1]);
    let each = (last - first) / ((BATCHES - FIRST) * BATCH) as f64;
    Ok(vec![Row {
        id: "closed".to_owned(),
        title: format!(
            "{} clones opened, read and closed, after the next checkpoint: growth of resident memory",
            (BATCHES - FIRST) * BATCH
        ),
        aim: format!("0; {MOST_BYTES:.0} bytes count as noise"),
        figure: format!("{each:.1} bytes each; {:.0} KiB in all", (last - first) / 1024.0),
        holds: Some(each <= MOST_BYTES),
        rounds: json!(held),
    }])
}

/// Measures the start of a pool that was killed with a long log: half of a log of 1 GiB, where a checkpoint would begin.
pub fn start_with_log(ground: &Ground) -> Result<Vec<Row>, String> {
    const GIB: u64 = 64;
    const SHARE: u64 = 2;
    const REPLAY_BYTES_PER_S: f64 = 200e6;
    const START_S: f64 = 2.0;
    let whole = Geometry::new(GIB << 30).map_err(|error| error.to_string())?.log_bytes();
    // Each flushed write has a record of one block.
    let writes = whole / SHARE / BLOCK - 1_000;
    let (mut took_s, mut log_bytes) = (Vec::new(), 0.0);
    for _ in 0..ground.rounds {
        let inside = Inside::new(ground, GIB, CACHE_BYTES)?;
        log_bytes = inside.run(async {
            let disk = inside.vdisk(&name("vol"), BLOCKS).await?;
            inside.fill(&disk, 0, BLOCKS).await?;
            inside.pool.checkpoint().await?;
            let before = inside.disk.counts();
            for _ in 0..writes {
                inside.write(&disk, inside.draw(BLOCKS)).await?;
                inside.pool.flush().await?;
            }
            Ok(inside.disk.counts().since(before).metadata_bytes() as f64)
        })?;
        let (_opened, took) = inside.killed(CACHE_BYTES)?;
        took_s.push(took.as_secs_f64());
    }
    let took = median(&took_s);
    let most = START_S + log_bytes / REPLAY_BYTES_PER_S;
    Ok(vec![Row {
        id: "start-log".to_owned(),
        title: format!(
            "a pool killed with {:.0} MiB of log, where a checkpoint would begin: start, disk in memory",
            log_bytes / (1 << 20) as f64
        ),
        aim: format!("{most:.1} s: 2 s, and the log at 200 MB/s"),
        figure: format!("{:.2} s ({:.2} to {:.2})", took.value, took.low, took.high),
        holds: Some(took.value <= most),
        rounds: json!(took_s),
    }])
}
