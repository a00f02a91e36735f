//! Measures maps in this process: bytes of metadata for each write, and reads of old and deep versions.

use bench::ground::Ground;
use bench::rows::Row;
use bench::stats::median;
use block::Result;
use pool::live::Version;
use serde_json::json;

use crate::inside::{BLOCK, CACHE_BYTES, Inside, name, timed, us_each};

/// Mapped bytes of the vdisk, its random writes, and those for each snapshot where every snapshot is kept.
const MAPPED_GIB: u64 = 64;
const WRITES: u64 = 3_000_000;
const WRITES_PER_SNAPSHOT: u64 = 100;

/// Promised bytes of metadata for each write.
const WRITE_BYTES: f64 = 400.0;

/// Blocks of the vdisk of reads: 1 GiB.
const READ_BLOCKS: u64 = 1 << 18;

/// Random reads of a version.
const READS: u64 = 50_000;

/// Promised time for each further tree, in microseconds, and the trees that a version may have.
const TREE_US: f64 = 0.25;
const TREES: f64 = 4.0;

/// Measures the bytes written below for each random write, at depth 128 over a large mapped disk.
pub fn writes(ground: &Ground) -> std::result::Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for keeps in [false, true] {
        let inside = Inside::new(ground, MAPPED_GIB * 2, CACHE_BYTES)?;
        let (written, reads, nodes_each, whole_us) = inside.run(async {
            let (disk_name, blocks) = (name("big"), (MAPPED_GIB << 30) / BLOCK);
            let disk = inside.vdisk(&disk_name, blocks).await?;
            inside.fill(&disk, 0, blocks).await?;
            inside.pool.checkpoint().await?;
            let (before, nodes) = (inside.disk.counts(), inside.node_bytes());
            let reads_before = inside.pool.node_counts().0;
            let writes = async {
                for _ in 0..WRITES / WRITES_PER_SNAPSHOT {
                    inside.write_random(&disk, blocks, WRITES_PER_SNAPSHOT, 128).await?;
                    if keeps {
                        inside.pool.snapshot(std::slice::from_ref(&disk_name), None).await?;
                    }
                }
                inside.pool.checkpoint().await
            };
            let (took, ()) = timed(writes).await?;
            let counts = inside.disk.counts().since(before);
            let usage = inside.pool.usage();
            let kept_writes = (usage.data_bytes / BLOCK - blocks).max(1) as f64;
            let nodes = inside.node_bytes().saturating_sub(nodes) as f64;
            Ok((
                counts.metadata_bytes() as f64 / WRITES as f64,
                (inside.pool.node_counts().0 - reads_before) as f64 / WRITES as f64,
                if keeps { nodes / kept_writes } else { nodes },
                us_each(took, WRITES),
            ))
        })?;
        let form = "random writes of 4 KiB at depth 128 over 64 GiB";
        rows.push(Row {
            id: format!("metadata-{}", if keeps { "kept" } else { "written" }),
            title: match keeps {
                false => format!("{form}: metadata written for each, log included"),
                true => {
                    "the same, a snapshot every 100 writes kept: nodes for each block".to_owned()
                }
            },
            aim: format!("{WRITE_BYTES:.0} bytes"),
            figure: match keeps {
                false => format!(
                    "{written:.0} bytes; {reads:.2} node reads of merges, {whole_us:.1} us in all"
                ),
                true => format!(
                    "{nodes_each:.0} bytes; {written:.0} bytes written for each write, \
                     {reads:.2} node reads, {whole_us:.1} us"
                ),
            },
            holds: Some(if keeps { nodes_each } else { written } <= WRITE_BYTES),
            rounds: json!([written, reads, nodes_each, whole_us]),
        });
    }
    Ok(rows)
}

/// Measures the bytes written below for each random write at depth 1, with a flush after each.
pub fn flushed_writes(ground: &Ground) -> std::result::Result<Vec<Row>, String> {
    const BLOCKS: u64 = 1 << 20;
    const COUNT: u64 = 200_000;
    const LOG_BYTES: f64 = 4096.0;
    const NODE_BYTES: f64 = 600.0;
    let inside = Inside::new(ground, 16, CACHE_BYTES)?;
    let (bytes, writes, flushes) = inside.run(async {
        let disk = inside.vdisk(&name("vol"), BLOCKS).await?;
        inside.fill(&disk, 0, BLOCKS).await?;
        inside.pool.checkpoint().await?;
        let before = inside.disk.counts();
        for _ in 0..COUNT {
            inside.write(&disk, inside.draw(BLOCKS)).await?;
            inside.pool.flush().await?;
        }
        inside.pool.checkpoint().await?;
        let counts = inside.disk.counts().since(before);
        let each = |count: u64| count as f64 / COUNT as f64;
        Ok((each(counts.metadata_bytes()), each(counts.writes), each(counts.flushes)))
    })?;
    Ok(vec![Row {
        id: "metadata-flushed".to_owned(),
        title: "random writes of 4 KiB at depth 1, a flush after each: metadata written for each"
            .to_owned(),
        aim: format!("a log block and {NODE_BYTES:.0} bytes"),
        figure: format!("{bytes:.0} bytes in all; {writes:.2} requests, {flushes:.2} flushes"),
        holds: Some(bytes <= LOG_BYTES + NODE_BYTES),
        rounds: json!([bytes, writes, flushes]),
    }])
}

/// Measures the nodes that random reads bring from the disk, with a cache for a tenth of the map.
pub fn node_reads(ground: &Ground) -> std::result::Result<Vec<Row>, String> {
    // Scattered blocks, so that the map is long: a run for each block.
    let fill = async |inside: &Inside<'_>| {
        let disk = inside.vdisk(&name("vol"), READ_BLOCKS).await?;
        inside.fill(&disk, 0, READ_BLOCKS).await?;
        inside.write_random(&disk, READ_BLOCKS, READ_BLOCKS, 32).await?;
        inside.pool.checkpoint().await?;
        Ok::<_, block::Error>(disk)
    };
    let large = Inside::new(ground, 32, CACHE_BYTES)?;
    large.run(fill(&large))?;
    let map_bytes = large.node_bytes();
    let small = Inside::new(ground, 32, map_bytes / 10)?;
    let each = small.run(async {
        let disk = fill(&small).await?;
        read(&small, &disk).await?;
        let before = small.pool.node_counts().0;
        read(&small, &disk).await?;
        Ok((small.pool.node_counts().0 - before) as f64 / READS as f64)
    })?;
    Ok(vec![Row {
        id: "node-reads".to_owned(),
        title: "random reads of 4 KiB, cache for a tenth of the map: node reads for each"
            .to_owned(),
        aim: "one for the tree".to_owned(),
        figure: format!("{each:.2}; the map has {} KiB", map_bytes >> 10),
        holds: Some(each <= 1.0),
        rounds: json!([each, map_bytes]),
    }])
}

/// Measures the nodes that many clones read from the disk, if all of them read one master with a cold cache.
pub fn master(ground: &Ground) -> std::result::Result<Vec<Row>, String> {
    const CLONES: u64 = 1_000;
    const READS_EACH: u64 = 200;
    const LARGE_CACHE: u64 = 256 << 20;
    let inside = Inside::new(ground, 32, LARGE_CACHE)?;
    inside.run(async {
        let gold = inside.vdisk(&name("gold"), READ_BLOCKS).await?;
        inside.fill(&gold, 0, READ_BLOCKS).await?;
        inside.write_random(&gold, READ_BLOCKS, READ_BLOCKS, 32).await?;
        let snapshot = inside.snapshot(&name("gold")).await?;
        for n in 0..CLONES {
            inside.pool.clone_of(&snapshot, &name(&format!("c{n}"))).await?;
        }
        inside.pool.checkpoint().await
    })?;
    let inside = inside.reopened(LARGE_CACHE)?;
    let all_nodes = inside.node_bytes() / BLOCK;
    let before = inside.pool.node_counts().0;
    inside.run(async {
        let into = inside.env().buf(BLOCK as usize)?;
        for n in 0..CLONES {
            let clone = inside.open(&format!("c{n}")).await?;
            for _ in 0..READS_EACH {
                inside.pool.read(&clone, inside.draw(READ_BLOCKS), &into).await?;
            }
        }
        Ok(())
    })?;
    let reads = inside.pool.node_counts().0 - before;
    Ok(vec![Row {
        id: "master".to_owned(),
        title: format!(
            "{CLONES} clones read {READS_EACH} random blocks each of one master, cold cache: nodes \
             read from the disk"
        ),
        aim: "the master's nodes once".to_owned(),
        figure: format!("{reads}; the pool has {all_nodes} nodes"),
        holds: Some(reads <= all_nodes),
        rounds: json!([reads, all_nodes]),
    }])
}

/// Measures a read and a write with ten times the vdisks, the snapshots and the data.
pub fn growth(ground: &Ground) -> std::result::Result<Vec<Row>, String> {
    const MOST: f64 = 1.1;
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..ground.rounds {
        let small = grown(ground, 1)?;
        let large = grown(ground, 10)?;
        ratios[0].push(large.0 / small.0);
        ratios[1].push(large.1 / small.1);
    }
    let [reads, writes] = [&ratios[0], &ratios[1]].map(|all| median(all));
    let words =
        |one: bench::stats::Median| format!("{:.2} ({:.2} to {:.2})", one.value, one.low, one.high);
    Ok(vec![Row {
        id: "growth".to_owned(),
        title: "1,000 instead of 100 vdisks with 10,000 instead of 1,000 snapshots and 10 times \
                the data: time of a request"
            .to_owned(),
        aim: format!("{MOST} times"),
        figure: format!("reads {}, writes {}", words(reads), words(writes)),
        holds: Some(reads.value <= MOST && writes.value <= MOST),
        rounds: json!(ratios),
    }])
}

/// Returns the microseconds of a read and of a write, in a pool of `times` the smallest one.
fn grown(ground: &Ground, times: u64) -> std::result::Result<(f64, f64), String> {
    const SMALL: u64 = 1 << 16;
    let inside = Inside::new(ground, 32, 256 << 20)?;
    inside.run(async {
        let first = inside.vdisk(&name("v0"), READ_BLOCKS).await?;
        inside.fill(&first, 0, READ_BLOCKS).await?;
        for n in 1..100 * times {
            let vdisk = name(&format!("v{n}"));
            let disk = inside.vdisk(&vdisk, SMALL).await?;
            inside.fill(&disk, 0, 4096).await?;
            for _ in 0..10 {
                inside.write_random(&disk, 4096, 16, 16).await?;
                inside.pool.snapshot(std::slice::from_ref(&vdisk), None).await?;
            }
        }
        inside.pool.checkpoint().await?;
        read(&inside, &first).await?;
        let reads = read(&inside, &first).await?;
        let writes = async { inside.write_random(&first, READ_BLOCKS, READS, 1).await };
        Ok((reads, us_each(timed(writes).await?.0, READS)))
    })
}

/// Measures random reads of the head, a middle version and the oldest, 1 to 1,000 snapshots or clones deep.
pub fn depths(ground: &Ground) -> std::result::Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for clones in [false, true] {
        let mut found = Vec::new();
        for depth in [1, 10, 100, 1000] {
            found.push((depth, measured(ground, depth, clones)?));
        }
        let flat = found[0].1[0].0;
        let worst = found.iter().flat_map(|(_, all)| all.map(|(us, _)| us)).fold(0.0, f64::max);
        let requests = found.iter().flat_map(|(_, all)| all.map(|(_, n)| n)).fold(0.0, f64::max);
        let words: Vec<String> = found
            .iter()
            .map(|(depth, [head, middle, oldest])| {
                format!("{depth}: {:.2}, {:.2}, {:.2} us", head.0, middle.0, oldest.0)
            })
            .collect();
        let most = flat + TREE_US * TREES;
        rows.push(Row {
            id: format!("depth-{}", if clones { "clones" } else { "snapshots" }),
            title: format!(
                "random reads of 4 KiB, head, middle and oldest of 1 to 1,000 {}, map in the cache",
                if clones { "clones of each other" } else { "snapshots" }
            ),
            aim: format!("one request below each; flat and {TREE_US} us for each further tree"),
            figure: format!("{requests:.3} requests; {}", words.join("; ")),
            holds: Some(worst <= most && requests < 1.001),
            rounds: json!(
                found
                    .iter()
                    .map(|(depth, all)| json!([depth, all.map(|(us, n)| [us, n])]))
                    .collect::<Vec<_>>()
            ),
        });
    }
    Ok(rows)
}

/// Returns microseconds and requests below of a read, for the head, the middle version and the oldest.
fn measured(
    ground: &Ground,
    depth: u64,
    clones: bool,
) -> std::result::Result<[(f64, f64); 3], String> {
    let inside = Inside::new(ground, 32, 256 << 20)?;
    inside.run(async {
        let gold = name("v0");
        let mut disk = inside.vdisk(&gold, READ_BLOCKS).await?;
        inside.fill(&disk, 0, READ_BLOCKS).await?;
        let mut versions = Vec::new();
        for n in 1..=depth {
            let last = if clones { name(&format!("v{}", n - 1)) } else { gold.clone() };
            let origin = inside.snapshot(&last).await?;
            versions.push(origin.to_string());
            if clones {
                inside.pool.clone_of(&origin, &name(&format!("v{n}"))).await?;
                disk = inside.open(&format!("v{n}")).await?;
            }
            inside.write_random(&disk, READ_BLOCKS, READ_BLOCKS / 100, 32).await?;
            if n % 64 == 0 {
                inside.pool.checkpoint().await?;
            }
        }
        // Twice: a checkpoint settles snapshots that the one before has counted.
        for _ in 0..2 {
            inside.pool.checkpoint().await?;
        }
        let middle = inside.open(&versions[versions.len() / 2]).await?;
        let oldest = inside.open(&versions[0]).await?;
        let mut all = [(0.0, 0.0); 3];
        for (found, version) in all.iter_mut().zip([&disk, &middle, &oldest]) {
            // The first pass brings the map into the cache.
            read(&inside, version).await?;
            let mut us = Vec::new();
            let before = inside.disk.counts().reads;
            for _ in 0..ground.rounds {
                us.push(read(&inside, version).await?);
            }
            let requests = (inside.disk.counts().reads - before) as f64;
            *found = (median(&us).value, requests / (READS * ground.rounds as u64) as f64);
        }
        Ok(all)
    })
}

/// Reads random blocks of a version, one after the other. Returns the microseconds of each.
async fn read(inside: &Inside<'_>, version: &Version) -> Result<f64> {
    let into = inside.env().buf(BLOCK as usize)?;
    let reads = async {
        for _ in 0..READS {
            inside.pool.read(version, inside.draw(READ_BLOCKS), &into).await?;
        }
        Ok(())
    };
    Ok(us_each(timed(reads).await?.0, READS))
}
