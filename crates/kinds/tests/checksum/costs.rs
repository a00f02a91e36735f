//! Costs of requests: flushes, records, and reads of the disk.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block::{Lower, Op, all};
use kind::Value;
use kinds::checksum::{BLOCK_BYTES, Redundancy};
use sim::Profile::Native4k;
use sim::draw::Stream;
use sim::{Assembly, DiskConfig, SimDisk, SimWorld};

use crate::scene::{
    BLOCKS, Crash, Scene, block_on, content, format_with_log, in_world, open_core, run,
};

#[test]
fn writes_to_marked_region_cost_one_record_and_no_flush() {
    in_world(async |env| {
        let scene = Scene::new(env, Crash::Regions).await;
        scene.write(0, &content(0, 1)).await.unwrap();
        let costs = || (scene.disk.flushes.get(), scene.disk.writes.get());
        let records = || scene.vault.counters().records;
        let ((flushes, writes), before) = (costs(), records());
        for version in 2..30 {
            scene.write(version % 2, &content(version % 2, version)).await.unwrap();
        }
        assert_eq!(records() - before, 28);
        // Each write is one of the data and one of the log; checkpoints come in between.
        assert!(costs().1 - writes <= 28 * 2 + 20, "{} writes", costs().1 - writes);
        assert!(costs().0 - flushes <= 8, "{} flushes", costs().0 - flushes);
    });
}

#[test]
fn first_write_to_region_costs_one_more_record_and_one_flush_of_each_lower() {
    in_world(async |env| {
        let scene = Scene::new(env, Crash::Regions).await;
        let (flushes, records) = (scene.disk.flushes.get(), scene.vault.counters().records);
        scene.write(2, &content(2, 1).repeat(2)).await.unwrap();
        assert_eq!(scene.vault.counters().records, records + 2);
        // The vault and the data are parts of one disk here.
        assert_eq!(scene.disk.flushes.get(), flushes + 2);
    });
}

#[test]
fn reads_with_checksums_in_cache_read_data_alone() {
    for crash in [Crash::Regions, Crash::Journal] {
        in_world(async |env| {
            let scene = Scene::new(env, crash).await;
            scene.read(0, BLOCKS).await.unwrap();
            let reads = scene.disk.reads.get();
            for block in 0..BLOCKS {
                scene.read(block, 1).await.unwrap();
            }
            assert_eq!(scene.disk.reads.get(), reads + BLOCKS);
        });
    }
}

/// Blocks of the simulated disk, without its vault.
const MANY: u64 = 1024;

/// Length of the vault's log.
const LOG_BYTES: u64 = 4 << 20;

/// Number of writes that are timed.
const WRITES: u64 = 2000;

/// A simulated disk with flushes of 2 ms: its vault, its data, and its writes.
struct Timed {
    world: SimWorld,
    disk: Rc<SimDisk>,
    lowers: [Lower; 2],
    _graph: Assembly,
}

impl Timed {
    fn new() -> Self {
        let world = SimWorld::new(3);
        let (vault, data) = (LOG_BYTES + (2 << 20), MANY * BLOCK_BYTES);
        let config = DiskConfig { flush_ns: 2_000_000, ..DiskConfig::new(vault + data, Native4k) };
        let disk = SimDisk::new(&world, 0, config);
        world.plug("/disk", &disk);
        let order = Stream::new(1, "order", 0);
        let mut graph = Assembly::new(&world.env(), kinds::REGISTRY, true, order);
        let path = [("path", Value::Text("/disk".to_owned()))];
        let all = graph.add("path", &path, &[]).unwrap();
        let part = |graph: &mut Assembly, start, size| {
            let options = [("start", Value::Size(start)), ("size", Value::Size(size))];
            let part = graph.add("linear", &options, &[all]).unwrap();
            graph.lower(part)
        };
        let lowers = [part(&mut graph, 0, vault), part(&mut graph, vault, data)];
        Self { world, disk, lowers, _graph: graph }
    }

    /// Returns the simulated time of all writes to random blocks at this depth.
    async fn time(&self, depth: u64, write: impl AsyncFn(Op)) -> Duration {
        let env = self.world.env();
        let begun = env.now();
        let left = Cell::new(WRITES);
        let client = async |number| {
            let random = Stream::new(number, "writes", 0);
            while left.get() > 0 {
                left.set(left.get() - 1);
                let data = env.buf(BLOCK_BYTES as usize).unwrap();
                data.write().fill(number as u8 | 1);
                write(Op::write(run(random.below(MANY), 1), data)).await;
            }
        };
        all((0..depth).map(|number| Box::pin(client(number))).collect()).await;
        env.now().since(begun)
    }
}

#[test]
fn writes_to_marked_regions_take_at_most_twice_the_time_of_plain_disk() {
    for depth in [1, 32] {
        let timed = Timed::new();
        let (env, [vault, data]) = (timed.world.env(), &timed.lowers);
        block_on(&timed.world, async {
            let plain = timed.time(depth, async |op| data.call(op).await.result.unwrap()).await;
            format_with_log(&env, vault, data, true, LOG_BYTES).await;
            let lowers = (vault, vault, data.clone());
            let (core, vault) =
                open_core(&env, lowers, Crash::Regions, Redundancy::None).await.unwrap();
            let write = async |mut op| core.submit(&mut op).await.unwrap();
            // The first pass marks the regions.
            for block in 0..MANY {
                let data = env.buf(BLOCK_BYTES as usize).unwrap();
                data.write().fill(9);
                write(Op::write(run(block, 1), data)).await;
            }
            let (bytes, records) = (timed.disk.bytes_written(), vault.counters().records);
            let checkpoints = vault.counters().checkpoints;
            let summed = timed.time(depth, &write).await;
            let bytes = (timed.disk.bytes_written() - bytes) as f64;
            let counters = vault.counters();
            println!(
                "depth {depth}: {plain:?} plain, {summed:?} with checksums; {:.2} times the data, {} \
                 records, {} checkpoints",
                bytes / (WRITES * BLOCK_BYTES) as f64,
                counters.records - records,
                counters.checkpoints - checkpoints
            );
            assert!(summed < 2 * plain, "depth {depth}: {summed:?}, {plain:?} plain");
        });
    }
}
