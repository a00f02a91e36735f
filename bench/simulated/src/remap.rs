//! The rows of `remap`: speed, bytes and flushes of first writes, and the reads of a start.

use bench::rows::Row;
use kind::Value;
use serde_json::json;

use crate::row;
use crate::scene::{REQUEST, Scene};

/// Blocks of a volume with a map of almost 1,000 pages.
const BLOCKS: u64 = 500_000;

/// Distance in blocks between two writes, which visits all blocks and changes another page of the map each time.
const STRIDE: u64 = 7_919;

fn volume(blocks: u64, block_bytes: u64, disk_bytes: u64) -> Scene {
    let size = |name, bytes| (name, Value::Size(bytes));
    let options = vec![size("size", blocks * block_bytes), size("block", block_bytes)];
    Scene::new("remap", options, disk_bytes)
}

/// Measures first writes beside writes to blocks that are mapped, which pass through to the disk.
pub fn first_writes() -> Vec<Row> {
    let measure = |depth| {
        let (scene, writes) = (volume(BLOCKS, REQUEST, 3 << 30), 4096);
        let mapped = |n| (BLOCKS - 1 - n) * REQUEST;
        scene.write(32, writes, mapped);
        scene.rest();
        let plain = scene.write(depth, writes, mapped);
        let first = scene.write(depth, writes, |n| n * STRIDE % (BLOCKS / 2) * REQUEST);
        let ratio = plain.as_secs_f64() / first.as_secs_f64();
        row(
            format!("remap-first-writes-{depth}"),
            format!("remap: first writes of 4 KiB, depth {depth}, simulated time"),
            "0.5 of the plain disk".to_owned(),
            format!("{ratio:.2}"),
            ratio >= 0.5,
            json!({ "plain_us": plain.as_micros(), "first_us": first.as_micros() }),
        )
    };
    [1, 32].map(measure).into()
}

/// Measures the bytes that the disk writes for first writes all over the volume, with about four checkpoints.
pub fn bytes() -> Vec<Row> {
    let measure = |(depth, writes, most): (u64, u64, f64)| {
        let scene = volume(BLOCKS, REQUEST, 3 << 30);
        let before = scene.used();
        scene.write(depth, writes, |n| n * STRIDE % BLOCKS * REQUEST);
        let after = scene.used();
        let bytes = after.bytes_written - before.bytes_written;
        let ratio = bytes as f64 / (writes * REQUEST) as f64;
        row(
            format!("remap-bytes-{depth}"),
            format!(
                "remap: bytes written for a first write of 4 KiB, anywhere, map of 1,000 pages, depth {depth}"
            ),
            format!("{most} × its bytes"),
            format!("{ratio:.2} ×"),
            ratio <= most,
            json!({ "writes": writes, "bytes": bytes, "flushes": after.flushes - before.flushes }),
        )
    };
    [(1, 41_000, 2.1), (32, 250_000, 1.2)].map(measure).into()
}

/// Counts the flushes of writes in order to new blocks of 64 KiB.
pub fn flushes() -> Vec<Row> {
    let (block, blocks) = (64 << 10, 64);
    let scene = volume(10_000, block, 700 << 20);
    let before = scene.used();
    scene.write(1, blocks * block / REQUEST, |n| n * REQUEST);
    let flushes = scene.used().flushes - before.flushes;
    vec![row(
        "remap-flushes".to_owned(),
        "remap: flushes for a new block of 64 KiB that is written in order, 4 KiB at a time"
            .to_owned(),
        "2".to_owned(),
        format!("{:.2}", flushes as f64 / blocks as f64),
        flushes <= 2 * blocks,
        json!({ "flushes": flushes, "blocks": blocks }),
    )]
}

/// Counts the reads of a start after a kill, for two sizes of the volume.
pub fn starts() -> Vec<Row> {
    let reads = |blocks: u64| {
        let mut scene = volume(blocks, 64 << 10, 4 << 30);
        scene.write(32, 1000, |n| n * (64 << 10));
        scene.rest();
        scene.kill();
        let before = scene.used();
        scene.start();
        scene.rest();
        scene.used().reads - before.reads
    };
    let (small, large) = (reads(1 << 19), reads(1 << 24));
    vec![row(
        "remap-start".to_owned(),
        "remap: reads of a start after a kill, volume of 32 GiB and of 1 TiB".to_owned(),
        "the same".to_owned(),
        format!("{small} and {large}"),
        large <= small + 4,
        json!({ "small": small, "large": large }),
    )]
}
