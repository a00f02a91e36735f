//! The rows of `checksum`: reads with all checksums in the cache.

use std::hint::black_box;
use std::time::Instant;

use bench::rows::Row;
use bench::stats::{Median, median};
use kind::Value;
use kinds::checksum::{BLOCK_BYTES, Seed};
use meta::Uuid;
use serde_json::json;

use crate::scene::Scene;

/// Share of the speed of plain reads with their checksums that reads must have.
const AIM: f64 = 0.9;

/// Bytes that all reads of one round have together.
const ROUND_BYTES: u64 = 512 << 20;

/// Measures reads of a disk in memory without and with checksums, and the checksums of as many bytes alone in a warm cache,
/// in turns.
pub fn reads(rounds: usize) -> Vec<Row> {
    let plain = Scene::new(None);
    let summed = ["regions", "journal"].map(|crash| {
        let options = [("crash", Value::Text(crash.to_owned())), ("cache", Value::Size(32 << 20))];
        (crash, Scene::new(Some(("checksum", &options))))
    });
    let mut rows = Vec::new();
    for bytes in [4 << 10, 64 << 10] {
        for (crash, summed) in &summed {
            rows.push(row(crash, bytes, rounds, &plain, summed));
        }
    }
    rows
}

fn row(crash: &str, bytes: u64, rounds: usize, plain: &Scene, summed: &Scene) -> Row {
    let count = ROUND_BYTES / bytes;
    let (mut all, mut ratios) = ([const { Vec::new() }; 3], Vec::new());
    for _ in 0..rounds {
        let ns = [plain.read_ns(count, bytes), summed.read_ns(count, bytes), sum_ns(count, bytes)];
        ratios.push((ns[0] + ns[2]) / ns[1]);
        all.iter_mut().zip(ns).for_each(|(all, ns)| all.push(ns));
    }
    let Median { value, low, high } = median(&ratios);
    let [without, with, sum] = all.each_ref().map(|all| median(all).value);
    Row {
        id: format!("checksum-reads-{crash}-{bytes}"),
        title: format!(
            "checksum, {crash}: reads of {} KiB, checksums in the cache, in process",
            bytes >> 10
        ),
        aim: format!("{AIM} of 1 / (time without it + time of the CRC)"),
        figure: format!(
            "{value:.2} ({low:.2} to {high:.2}): {with:.0} ns, without it {without:.0} ns, CRC {sum:.0} ns"
        ),
        holds: Some(value >= AIM),
        rounds: json!({ "plain_ns": all[0], "summed_ns": all[1], "crc_ns": all[2] }),
    }
}

/// Computes the checksums of `bytes` bytes `count` times. Returns the nanoseconds of each time.
fn sum_ns(count: u64, bytes: u64) -> f64 {
    let data = vec![0x5a; bytes as usize];
    let seed = Seed::new(Uuid([7; 16]));
    let begun = Instant::now();
    for n in 0..count {
        for (block, address) in
            data.chunks_exact(BLOCK_BYTES as usize).zip((n * bytes..).step_by(4096))
        {
            black_box(seed.sum(address, black_box(block)));
        }
    }
    begun.elapsed().as_nanos() as f64 / count as f64
}
