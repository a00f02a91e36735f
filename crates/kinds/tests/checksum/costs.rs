//! Costs of requests: flushes, records, and reads of the disk.

use crate::scene::{BLOCKS, Crash, Scene, content, in_world};

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
