//! Discards of freed blocks on the device below.

use std::time::Duration;

use pool::BLOCK_BYTES;
use pool::live::{Options, Pool};
use sim::SimWorld;
use testkit::recorded::Trace;

use crate::scene::{
    BLOCKS, OPTIONS, POOL, assert_whole, blank, block_on, bytes, find, geometry, make, name,
    stamps, version,
};

const BYTES: u64 = BLOCKS * BLOCK_BYTES as u64;

/// Waits until the pool does nothing in the background.
async fn rest(env: &block::Env) {
    env.sleep(Duration::from_secs(2)).await;
}

#[test]
fn freed_blocks_are_discarded_below_after_checkpoint_and_then_used_again() {
    let world = SimWorld::new(31);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let (pool, _) = Pool::open(&env, &disk.lower(), POOL, geometry(), OPTIONS).await.unwrap();
        for vdisk in ["kept", "gone"] {
            pool.create(&name(vdisk), BYTES).await.unwrap();
            let head = find(&pool, vdisk).await;
            pool.write(&head, 0, bytes(&env, 100, BLOCKS)).await.unwrap();
        }
        pool.snapshot(&[name("kept")], None).await.unwrap();
        let kept = find(&pool, "kept").await;
        pool.write(&kept, 0, bytes(&env, 200, 8)).await.unwrap();
        pool.checkpoint().await.unwrap();
        rest(&env).await;
        assert_eq!(disk.discarded.get(), 0, "a snapshot has the overwritten blocks");
        pool.remove(&version("gone")).await.unwrap();
        pool.checkpoint().await.unwrap();
        rest(&env).await;
        assert_eq!(disk.discarded.get(), BYTES);
        assert_whole(&pool.check().await.unwrap(), "after discards");
        pool.checkpoint().await.unwrap();
        rest(&env).await;
        assert_eq!(disk.discarded.get(), BYTES, "each block is discarded once");
        // More rounds than the pool has room for: discarded blocks are used again.
        for round in 0..80 {
            pool.create(&name("again"), BYTES).await.unwrap();
            let head = find(&pool, "again").await;
            pool.write(&head, 0, bytes(&env, 1000 * round, BLOCKS)).await.unwrap();
            pool.checkpoint().await.unwrap();
            let is = stamps(&env, &pool, &head, BLOCKS).await.unwrap();
            assert!(is.iter().copied().eq(1000 * round..1000 * round + BLOCKS));
            drop(head);
            pool.remove(&version("again")).await.unwrap();
            pool.checkpoint().await.unwrap();
        }
        rest(&env).await;
        let is = stamps(&env, &pool, &kept, BLOCKS).await.unwrap();
        assert!(is.iter().copied().eq((200..208).chain(108..100 + BLOCKS)));
        assert_whole(&pool.check().await.unwrap(), "at the end");
        assert_eq!(pool.undiscarded(), 0);
    });
}

#[test]
fn pool_without_discards_keeps_bytes_of_freed_blocks() {
    let world = SimWorld::new(32);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let options = Options { discard: false, ..OPTIONS };
        let (pool, _) = Pool::open(&env, &disk.lower(), POOL, geometry(), options).await.unwrap();
        pool.create(&name("gone"), BYTES).await.unwrap();
        let head = find(&pool, "gone").await;
        pool.write(&head, 0, bytes(&env, 100, BLOCKS)).await.unwrap();
        drop(head);
        pool.remove(&version("gone")).await.unwrap();
        pool.checkpoint().await.unwrap();
        rest(&env).await;
        assert_eq!(disk.discarded.get(), 0);
    });
}
