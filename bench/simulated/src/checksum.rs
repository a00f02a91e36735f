//! The rows of `checksum`: speed, bytes and flushes of writes, and reads of checksums beyond the cache.

use bench::rows::Row;
use kind::Value;
use serde_json::json;

use crate::row;
use crate::scene::{REQUEST, Scene};

/// Bytes of a disk.
const DISK_BYTES: u64 = 1 << 30;

/// Bytes of the area that a load of writes visits, at random.
const AREA_BYTES: u64 = 16 << 20;

/// Bytes of a region.
const REGION_BYTES: u64 = 1 << 20;

fn options(crash: &str) -> Vec<(&'static str, Value)> {
    vec![("crash", Value::Text(crash.to_owned())), ("cache", Value::Size(2 << 20))]
}

/// Returns the address of write `n` in the area: all blocks in an order without neighbours.
fn in_area(n: u64) -> u64 {
    n * 1_237 * REQUEST % AREA_BYTES
}

/// Writes one block of each region of the area, which marks them.
fn mark(scene: &Scene) {
    scene.write(1, AREA_BYTES / REGION_BYTES, |n| n * REGION_BYTES);
}

/// Measures writes to marked regions beside writes to the plain disk.
pub fn writes() -> Vec<Row> {
    let measure = |depth| {
        let writes = 4096;
        let plain = Scene::plain(DISK_BYTES).write(depth, writes, in_area);
        let scene = Scene::new("checksum", options("regions"), DISK_BYTES);
        mark(&scene);
        let before = scene.used().flushes;
        let summed = scene.write(depth, writes, in_area);
        let flushes = scene.used().flushes - before;
        let ratio = plain.as_secs_f64() / summed.as_secs_f64();
        row(
            format!("checksum-writes-{depth}"),
            format!(
                "checksum, regions: writes of 4 KiB to marked regions, depth {depth}, simulated time"
            ),
            "0.5 of the plain disk".to_owned(),
            format!("{ratio:.2}"),
            ratio >= 0.5,
            json!({ "plain_us": plain.as_micros(), "summed_us": summed.as_micros(), "flushes": flushes }),
        )
    };
    [1, 32].map(measure).into()
}

/// Counts the flushes of writes to marked regions without a flush of a client. The proof of an idle log, and that of each
/// checkpoint, have two.
pub fn flushes() -> Vec<Row> {
    let scene = Scene::new("checksum", options("regions"), DISK_BYTES);
    mark(&scene);
    let (before, writes) = (scene.used().flushes, 4096);
    scene.write(32, writes, in_area);
    let flushes = scene.used().flushes - before;
    vec![row(
        "checksum-flushes".to_owned(),
        format!("checksum, regions: flushes of {writes} writes to marked regions, depth 32"),
        "those of checkpoints and proofs".to_owned(),
        flushes.to_string(),
        flushes <= 8,
        json!({ "flushes": flushes, "writes": writes }),
    )]
}

/// Counts the flushes of 32 first writes to one region at once.
pub fn first_writes() -> Vec<Row> {
    let scene = Scene::new("checksum", options("regions"), DISK_BYTES);
    let before = scene.used().flushes;
    scene.write(32, 32, |n| n * REQUEST);
    let flushes = scene.used().flushes - before;
    vec![row(
        "checksum-first-writes".to_owned(),
        "checksum, regions: flushes of 32 first writes to a region, depth 32".to_owned(),
        "1".to_owned(),
        flushes.to_string(),
        flushes <= 1,
        json!({ "flushes": flushes }),
    )]
}

/// Measures the bytes that are written, with the metadata on a disk of their own.
pub fn bytes() -> Vec<Row> {
    let measure = |(crash, most, aim): (&str, f64, &str)| {
        let scene = Scene::apart("checksum", options(crash), [DISK_BYTES; 2]);
        mark(&scene);
        scene.rest();
        let written = |n| scene.bytes_written_to(n);
        let (before, writes) = ([written(0), written(1)], 100_000);
        scene.write(32, writes, in_area);
        scene.rest();
        let all = (writes * REQUEST) as f64;
        let [data, meta] = [0, 1].map(|n| (written(n) - before[n]) as f64 / all);
        row(
            format!("checksum-bytes-{crash}"),
            format!("checksum, {crash}: bytes written for a write of 4 KiB, in 16 MiB, depth 32"),
            aim.to_owned(),
            format!("{data:.2} × on the data, {meta:.2} × in metadata"),
            data + meta <= most,
            json!({ "writes": writes, "data": data, "metadata": meta }),
        )
    };
    let aims = [("regions", 1.2, "data + log + pages: 1.2 ×"), ("journal", 2.3, "2.3 ×")];
    aims.map(measure).into()
}

/// Measures reads with checksums beyond the cache, and counts the reads of the disk.
pub fn reads() -> Vec<Row> {
    // Each page of checksums is that of 2 MiB of data. The cache has room for a quarter of them.
    let (pages, bytes) = (1_900, 4 * DISK_BYTES);
    let place = |n: u64| n * 1_237 % pages * (2 << 20);
    let plain = Scene::plain(bytes).read(1, pages, place);
    let scene = Scene::new("checksum", options("regions"), bytes);
    scene.write(32, pages, place);
    scene.rest();
    let before = scene.used().reads;
    let summed = scene.read(1, pages, place);
    let count = (scene.used().reads - before) as f64 / pages as f64;
    let ratio = summed.as_secs_f64() / plain.as_secs_f64();
    vec![row(
        "checksum-reads".to_owned(),
        "checksum: reads of 4 KiB with checksums beyond the cache, depth 1, simulated time"
            .to_owned(),
        "2 reads, in parallel".to_owned(),
        format!("{count:.2} reads, {ratio:.2} × the time of one"),
        (1.5..=2.01).contains(&count) && ratio <= 1.3,
        json!({ "reads": count, "plain_us": plain.as_micros(), "summed_us": summed.as_micros() }),
    )]
}
