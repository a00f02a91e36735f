//! Measures snapshots and clones in this process: their own work, and the bytes that they keep.

use std::cell::Cell;
use std::pin::Pin;
use std::time::Duration;

use bench::ground::Ground;
use bench::rows::Row;
use bench::stats::median;
use serde_json::json;

use crate::inside::{BLOCK, CACHE_BYTES, Inside, all, name, timed, us_each};

/// Snapshots of a round, each after one write.
const SNAPSHOTS: u64 = 20_000;

/// Promised work of a snapshot, in microseconds.
const SNAPSHOT_US: f64 = 5.0;

/// Snapshots of the history: those of Parallax's build of a kernel at 10 ms, and the writes between them.
const HISTORY: u64 = 66_000;
const HISTORY_WRITES: u64 = 99_000;

/// Promised bytes that a snapshot keeps past a checkpoint, and those of Parallax (section 6.2.3).
const KEPT_BYTES: f64 = 512.0;
const PARALLAX_KB: f64 = 5.84;

/// Writes to a disk between its snapshot and the last one, before it is cloned.
const CLONE_WRITES: u64 = 8_000;

/// Promised work of a clone, in microseconds.
const CLONE_US: f64 = 50.0;

/// Clones that a command makes, and the promised time in seconds.
const CLONES: u64 = 10_000;
const CLONES_S: f64 = 2.0;

/// Blocks of the vdisks: 4 GiB.
const BLOCKS: u64 = 1 << 20;

/// Measures the work of a snapshot: writes with and without a snapshot after each.
pub fn own_work(ground: &Ground) -> Result<Vec<Row>, String> {
    let (mut own_us, mut write_us) = (Vec::new(), Vec::new());
    for _ in 0..ground.rounds {
        let inside = Inside::new(ground, 16, CACHE_BYTES)?;
        let (without, with) = inside.run(async {
            let (plain, past) = (name("plain"), name("past"));
            let (plain, past_disk) =
                (inside.vdisk(&plain, BLOCKS).await?, inside.vdisk(&past, BLOCKS).await?);
            let (without, ()) = timed(async {
                for n in 0..SNAPSHOTS {
                    inside.write(&plain, n).await?;
                }
                Ok(())
            })
            .await?;
            let (with, ()) = timed(async {
                for n in 0..SNAPSHOTS {
                    inside.write(&past_disk, n).await?;
                    inside.pool.snapshot(std::slice::from_ref(&past), None).await?;
                }
                Ok(())
            })
            .await?;
            Ok((us_each(without, SNAPSHOTS), us_each(with, SNAPSHOTS)))
        })?;
        own_us.push(with - without);
        write_us.push(without);
    }
    let (own, write) = (median(&own_us), median(&write_us).value);
    Ok(vec![Row {
        id: "snapshot".to_owned(),
        title: "a snapshot after each write of 4 KiB: its own work".to_owned(),
        aim: format!("{SNAPSHOT_US:.0} us"),
        figure: format!(
            "{:.1} us ({:.1} to {:.1}), beside {write:.1} us for the write",
            own.value, own.low, own.high
        ),
        holds: Some(own.value <= SNAPSHOT_US),
        rounds: json!(own_us),
    }])
}

/// Measures a snapshot under load, beside a write of the same disk at the same time: the time until it is taken, without
/// a flush.
pub fn under_load(ground: &Ground) -> Result<Vec<Row>, String> {
    const COUNT: usize = 1_000;
    const DEPTH: usize = 32;
    const SLICE_US: f64 = 25.0;
    const PAUSE: Duration = Duration::from_millis(1);
    let inside = Inside::new(ground, 16, CACHE_BYTES)?;
    let (mut writes_us, mut snapshots_us) = (Vec::new(), Vec::new());
    inside.run(async {
        let (busy, own) = (inside.vdisk(&name("busy"), BLOCKS).await?, name("own"));
        let own_disk = inside.vdisk(&own, BLOCKS).await?;
        let (is_over, env) = (Cell::new(false), inside.env());
        let load = async {
            while !is_over.get() {
                inside.write_random(&busy, BLOCKS, 256, DEPTH).await?;
                env.give_way().await;
            }
            Ok(())
        };
        let checkpoints = async {
            while !is_over.get() {
                inside.pool.checkpoint().await?;
            }
            Ok(())
        };
        let measured = async {
            for n in 0..COUNT as u64 {
                env.sleep(PAUSE).await;
                writes_us.push(timed(inside.write(&own_disk, n)).await?.0.as_secs_f64() * 1e6);
                env.sleep(PAUSE).await;
                let snapshot = inside.pool.snapshot(std::slice::from_ref(&own), None);
                snapshots_us.push(timed(snapshot).await?.0.as_secs_f64() * 1e6);
            }
            is_over.set(true);
            Ok(())
        };
        let together: [Pin<Box<dyn Future<Output = block::Result<()>> + '_>>; 3] =
            [Box::pin(load), Box::pin(checkpoints), Box::pin(measured)];
        all(together.into()).await
    })?;
    let (write, snapshot) = (median(&writes_us).value, median(&snapshots_us).value);
    let high = |all: &mut Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() * 99 / 100]
    };
    let (write_high, snapshot_high) = (high(&mut writes_us), high(&mut snapshots_us));
    Ok(vec![Row {
        id: "snapshot-load".to_owned(),
        title: format!(
            "a snapshot under {DEPTH} random writes and checkpoints without pause, --async: time beyond \
             that of a write"
        ),
        aim: format!("{SNAPSHOT_US:.0} us, and a slice of {SLICE_US:.0} us"),
        figure: format!(
            "{:.0} us; snapshot {snapshot:.0} us, 99 % {snapshot_high:.0} us; write {write:.0} us, \
             99 % {write_high:.0} us",
            snapshot - write
        ),
        holds: Some(snapshot - write <= SNAPSHOT_US + SLICE_US),
        rounds: json!([write, snapshot, write_high, snapshot_high]),
    }])
}

/// Measures the bytes that snapshots keep: a history as that of Parallax's build of a kernel, beside the same writes
/// without snapshots.
pub fn kept(ground: &Ground) -> Result<Vec<Row>, String> {
    let node_bytes = |snapshots: u64| {
        let inside = Inside::new(ground, 16, CACHE_BYTES)?;
        inside.run(async {
            let past = name("past");
            let disk = inside.vdisk(&past, BLOCKS).await?;
            let mut block = 0;
            for n in 0..HISTORY {
                // A compiler writes new files one after the other, and few blocks twice.
                while block * HISTORY < (n + 1) * HISTORY_WRITES {
                    inside.write(&disk, block).await?;
                    block += 1;
                }
                if n * snapshots / HISTORY != (n + 1) * snapshots / HISTORY {
                    inside.pool.snapshot(std::slice::from_ref(&past), None).await?;
                }
            }
            inside.pool.checkpoint().await?;
            Ok(inside.node_bytes())
        })
    };
    let (without, with) = (node_bytes(0)?, node_bytes(HISTORY)?);
    let each = with.saturating_sub(without) as f64 / HISTORY as f64;
    let whole_kb = with as f64 / HISTORY as f64 / 1000.0;
    Ok(vec![Row {
        id: "snapshot-kept".to_owned(),
        title: format!("{HISTORY} snapshots, 1.5 blocks written between two: kept for each"),
        aim: format!("{KEPT_BYTES:.0} bytes; Parallax: {PARALLAX_KB} KB"),
        figure: format!("{each:.0} bytes; {whole_kb:.2} KB with the map of the written blocks"),
        holds: Some(each <= KEPT_BYTES),
        rounds: json!({"node_bytes_without": without, "node_bytes_with": with}),
    }])
}

/// Measures the work of a clone of a fresh master, and of a disk with writes since its last checkpoint.
pub fn clones(ground: &Ground) -> Result<Vec<Row>, String> {
    const EACH: u64 = 500;
    const WRITTEN: u64 = 8;
    let (mut fresh_us, mut written_us) = (Vec::new(), Vec::new());
    for _ in 0..ground.rounds {
        let inside = Inside::new(ground, 16, CACHE_BYTES)?;
        let (fresh, written) = inside.run(async {
            let gold = name("gold");
            let disk = inside.vdisk(&gold, BLOCKS).await?;
            inside.fill(&disk, 0, 1 << 16).await?;
            let origin = inside.snapshot(&gold).await?;
            inside.pool.checkpoint().await?;
            let (fresh, ()) = timed(async {
                for n in 0..EACH {
                    inside.pool.clone_of(&origin, &name(&format!("f{n}"))).await?;
                }
                Ok(())
            })
            .await?;
            let mut written = Vec::new();
            for n in 0..WRITTEN {
                inside.write_random(&disk, BLOCKS, CLONE_WRITES, 32).await?;
                let (time, ()) = timed(async {
                    let origin = inside.snapshot(&gold).await?;
                    inside.pool.clone_of(&origin, &name(&format!("w{n}"))).await?;
                    Ok(())
                })
                .await?;
                written.push(us_each(time, 1));
            }
            Ok((us_each(fresh, EACH), written))
        })?;
        fresh_us.push(fresh);
        written_us.extend(written);
    }
    let row = |id: &str, title: String, us: &[f64]| {
        let us_median = median(us);
        Row {
            id: id.to_owned(),
            title,
            aim: format!("{CLONE_US:.0} us"),
            figure: format!(
                "{:.1} us ({:.1} to {:.1})",
                us_median.value, us_median.low, us_median.high
            ),
            holds: Some(us_median.value <= CLONE_US),
            rounds: json!(us),
        }
    };
    Ok(vec![
        row("clone-fresh", "a clone of a fresh master: its own work".to_owned(), &fresh_us),
        row(
            "clone-written",
            format!("snapshot and clone of a disk after {CLONE_WRITES} random writes: own work"),
            &written_us,
        ),
    ])
}

/// Measures a clone's bytes: 100 scattered writes to a clone of a master of 1 GiB.
pub fn clone_bytes(ground: &Ground) -> Result<Vec<Row>, String> {
    const CLONED: u64 = 100;
    const WRITES: u64 = 100;
    let inside = Inside::new(ground, 16, CACHE_BYTES)?;
    let each = inside.run(async {
        let gold = name("gold");
        let disk = inside.vdisk(&gold, BLOCKS).await?;
        inside.fill(&disk, 0, 1 << 18).await?;
        let origin = inside.snapshot(&gold).await?;
        for n in 0..CLONED {
            inside.pool.clone_of(&origin, &name(&format!("c{n}"))).await?;
        }
        inside.pool.checkpoint().await?;
        let before = inside.node_bytes();
        for n in 0..CLONED {
            let clone = inside.open(&format!("c{n}")).await?;
            inside.write_random(&clone, 1 << 18, WRITES, 1).await?;
        }
        inside.pool.checkpoint().await?;
        Ok((inside.node_bytes() - before) as f64 / CLONED as f64)
    })?;
    Ok(vec![Row {
        id: "clone-bytes".to_owned(),
        title: format!("{WRITES} scattered writes to a clone: bytes of nodes, its rows included"),
        aim: "one node of 4 KiB; copied paths: 550 KiB".to_owned(),
        figure: format!("{each:.0} bytes, mean of {CLONED} clones of {BLOCK}-byte blocks"),
        holds: None,
        rounds: json!(each),
    }])
}

/// Measures many clones of one snapshot.
pub fn many_clones(ground: &Ground) -> Result<Vec<Row>, String> {
    let mut took_s = Vec::new();
    for _ in 0..ground.rounds {
        let inside = Inside::new(ground, 16, CACHE_BYTES)?;
        took_s.push(inside.run(async {
            let gold = name("gold");
            let disk = inside.vdisk(&gold, BLOCKS).await?;
            inside.fill(&disk, 0, 1 << 16).await?;
            let origin = inside.snapshot(&gold).await?;
            let (took, ()) = timed(async {
                for n in 0..CLONES {
                    inside.pool.clone_of(&origin, &name(&format!("c{n}"))).await?;
                }
                inside.pool.flush().await
            })
            .await?;
            Ok(took.as_secs_f64())
        })?);
    }
    let took = median(&took_s);
    Ok(vec![Row {
        id: "clones-10000".to_owned(),
        title: format!("{CLONES} clones in process, and a flush"),
        aim: format!("{CLONES_S:.0} s"),
        figure: format!("{:.2} s ({:.2} to {:.2})", took.value, took.low, took.high),
        holds: Some(took.value <= CLONES_S),
        rounds: json!(took_s),
    }])
}
