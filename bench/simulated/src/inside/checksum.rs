//! The rows of `checksum`: reads with all checksums in the cache.

use std::hint::black_box;

use bench::rows::Row;
use bench::stats::{Median, median};
use block::Buf;
use kind::Value;
use kinds::checksum::{BLOCK_BYTES, Seed};
use meta::Uuid;
use serde_json::json;

use crate::scene::{Scene, Target};

/// Share of the speed of plain reads with their checksums that reads must have.
const AIM: f64 = 0.9;

/// Bytes that all reads of one round have together.
const ROUND_BYTES: u64 = 512 << 20;

/// Measures reads of a disk in memory, reads of a device with checksums on it, and reads of the disk by a client that
/// computes the checksums itself, in turns.
pub fn reads(rounds: usize) -> Vec<Row> {
    let scenes = ["regions", "journal"].map(|crash| {
        let options = [("crash", Value::Text(crash.to_owned())), ("cache", Value::Size(32 << 20))];
        (crash, Scene::new("checksum", &options))
    });
    let mut rows = Vec::new();
    for bytes in [4 << 10, 64 << 10] {
        for (crash, scene) in &scenes {
            rows.push(row(crash, bytes, rounds, scene));
        }
    }
    rows
}

fn row(crash: &str, bytes: u64, rounds: usize, scene: &Scene) -> Row {
    let count = ROUND_BYTES / bytes;
    let seed = Seed::new(Uuid([7; 16]));
    let (mut all, mut ratios) = ([const { Vec::new() }; 3], Vec::new());
    for _ in 0..rounds {
        let plain = scene.read_ns(Target::Disk, count, bytes, |_, _| ());
        let device = scene.read_ns(Target::Device, count, bytes, |_, _| ());
        let client = scene.read_ns(Target::Disk, count, bytes, |at, buf| sum(&seed, at, buf));
        ratios.push(client / device);
        all.iter_mut().zip([plain, device, client]).for_each(|(all, ns)| all.push(ns));
    }
    let Median { value, low, high } = median(&ratios);
    let [plain, device, client] = all.each_ref().map(|all| median(all).value);
    Row {
        id: format!("checksum-reads-{crash}-{bytes}"),
        title: format!(
            "checksum, {crash}: reads of {} KiB, checksums in the cache, in process",
            bytes >> 10
        ),
        aim: format!("{AIM} of 1 / (time without it + time of the CRC)"),
        figure: format!(
            "{value:.2} ({low:.2} to {high:.2}): {device:.0} ns; without it and with the CRC {client:.0} ns, \
             without both {plain:.0} ns"
        ),
        holds: Some(value >= AIM),
        rounds: json!({ "plain_ns": all[0], "device_ns": all[1], "client_ns": all[2] }),
    }
}

/// Computes the checksums of the blocks in `buf`, which were read at byte `at`.
fn sum(seed: &Seed, at: u64, buf: &Buf) {
    let bytes = buf.read();
    let addresses = (at..).step_by(BLOCK_BYTES as usize);
    for (block, address) in bytes.chunks_exact(BLOCK_BYTES as usize).zip(addresses) {
        black_box(seed.sum(address, block));
    }
}
