//! Measures the removal of snapshots and the return of space, in this process.

use bench::ground::Ground;
use bench::rows::Row;
use block::Result;
use pool::live::Keep;
use pool::name::{VdiskName, VersionName};
use serde_json::json;

use crate::inside::{CACHE_BYTES, Inside, name, timed};

/// Snapshots that are removed: an hour of one every 10 ms.
const SNAPSHOTS: u64 = 360_000;

/// Promised times of the removal by a rule, and of one snapshot after the other, in seconds.
const BY_RULE_S: f64 = 10.0;
const ONE_BY_ONE_S: f64 = 60.0;

/// Blocks of a removed vdisk, and the promised speed of their return.
const RETURNED: u64 = 4 << 20;
const RETURNED_PER_S: f64 = 2.5e6;

/// Blocks that the clients write again and again between the snapshots: 64 MiB.
const SPAN: u64 = 16 << 10;

/// Makes a vdisk with snapshots, each after the write of one random block.
async fn history(inside: &Inside<'_>, past: &VdiskName) -> Result<()> {
    let disk = inside.vdisk(past, SPAN).await?;
    for _ in 0..SNAPSHOTS {
        inside.write_random(&disk, SPAN, 1, 1).await?;
        inside.pool.snapshot(std::slice::from_ref(past), None).await?;
    }
    inside.pool.checkpoint().await
}

/// Waits until no block of a snapshot is left, of which each holds one.
async fn until_returned(inside: &Inside<'_>) -> Result<()> {
    while inside.pool.usage().data_bytes > SPAN * crate::inside::BLOCK {
        inside.pool.checkpoint().await?;
        inside.env().sleep(std::time::Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Measures the removal of all snapshots by a rule, and of one after the other.
pub fn snapshots(ground: &Ground) -> std::result::Result<Vec<Row>, String> {
    let by_rule = {
        let inside = Inside::new(ground, 16, CACHE_BYTES)?;
        inside.run(async {
            let past = name("past");
            history(&inside, &past).await?;
            let removed = async {
                let rule = Keep { last: 1, interval_s: 0 };
                inside.pool.keep(&past, rule, false).await?;
                until_returned(&inside).await
            };
            Ok(timed(removed).await?.0.as_secs_f64())
        })?
    };
    let (named, whole) = {
        let inside = Inside::new(ground, 16, CACHE_BYTES)?;
        inside.run(async {
            let past = name("past");
            history(&inside, &past).await?;
            let all = inside.pool.snapshots(&past, 1, SNAPSHOTS as usize + 1).await?;
            let removed = async {
                for snapshot in all.iter().rev() {
                    let name = VersionName::parse(&format!("past@{}", snapshot.number))?;
                    inside.pool.remove(&name).await?;
                }
                Ok(())
            };
            let (named, ()) = timed(removed).await?;
            let (rest, ()) = timed(until_returned(&inside)).await?;
            Ok((named.as_secs_f64(), (named + rest).as_secs_f64()))
        })?
    };
    let row = |id: &str, title: String, most: f64, took: f64, figure: String| Row {
        id: id.to_owned(),
        title,
        aim: format!("{most:.0} s"),
        figure,
        holds: Some(took <= most),
        rounds: json!([took]),
    };
    Ok(vec![
        row(
            "remove-rule",
            format!("removal of {SNAPSHOTS} snapshots by a rule, until their space is back"),
            BY_RULE_S,
            by_rule,
            format!("{by_rule:.1} s"),
        ),
        row(
            "remove-each",
            "the same, one command for each, newest first".to_owned(),
            ONE_BY_ONE_S,
            whole,
            format!("{whole:.1} s, {named:.1} s until the last name is gone"),
        ),
    ])
}

/// Measures the return of the blocks of a removed vdisk.
pub fn space(ground: &Ground) -> std::result::Result<Vec<Row>, String> {
    let mut per_s = Vec::new();
    for _ in 0..ground.rounds.min(3) {
        let inside = Inside::new(ground, 32, CACHE_BYTES)?;
        per_s.push(inside.run(async {
            let big = name("big");
            let id = inside.pool.create(&big, RETURNED * crate::inside::BLOCK).await?;
            let disk = inside.pool.open_version(id).await?;
            inside.fill(&disk, 0, RETURNED).await?;
            inside.write_random(&disk, RETURNED, 1 << 19, 32).await?;
            drop(disk);
            inside.pool.close_version(id);
            inside.pool.checkpoint().await?;
            let returned = async {
                inside.pool.remove(&VersionName::parse("big")?).await?;
                while inside.pool.usage().data_bytes > 0 {
                    inside.pool.checkpoint().await?;
                    inside.env().sleep(std::time::Duration::from_millis(1)).await;
                }
                Ok(())
            };
            Ok(RETURNED as f64 / timed(returned).await?.0.as_secs_f64())
        })?);
    }
    let found = bench::stats::median(&per_s);
    Ok(vec![Row {
        id: "space".to_owned(),
        title: "return of the space of a removed vdisk of 16 GiB, an eighth of it scattered"
            .to_owned(),
        aim: format!("{:.1} million blocks a second", RETURNED_PER_S / 1e6),
        figure: format!(
            "{:.1} ({:.1} to {:.1})",
            found.value / 1e6,
            found.low / 1e6,
            found.high / 1e6
        ),
        holds: Some(found.value >= RETURNED_PER_S),
        rounds: json!(per_s),
    }])
}
