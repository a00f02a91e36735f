//! Pools without free space, and pools on devices without free space.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block::{Env, ErrorKind, NO_SPACE_MAX, Result};
use pool::live::Pool;
use sim::SimWorld;
use sim::draw::Stream;
use testkit::recorded::{Fails, Trace};

use crate::scene::{assert_whole, blank, block_on, bytes, find, make, name, open, stamps, version};

/// Blocks of a vdisk that is larger than the pool.
const BLOCKS: u64 = 8192;

/// Writes random blocks until one finds no space. Returns the number of writes that succeeded.
async fn fill(env: &Env, pool: &Pool, vdisk: &str, draw: &Stream) -> (u64, Result<()>) {
    let head = find(pool, vdisk).await;
    for count in 0..BLOCKS {
        let block = draw.below(BLOCKS);
        let written = pool.write(&head, block, bytes(env, 1_000_000 + block, 1)).await;
        if written.is_err() {
            return (count, written);
        }
    }
    panic!("a vdisk that is larger than its pool was filled");
}

#[test]
fn full_pool_refuses_writes_and_has_space_again_after_removals() {
    let world = SimWorld::new(11);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    let draw = Stream::new(11, "blocks", 0);
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        let mut first = 0;
        for round in 0..8 {
            let vdisk = format!("v{round}");
            pool.create(&name(&vdisk), BLOCKS * 4096).await.unwrap();
            let begun = env.now();
            let (count, result) = fill(&env, &pool, &vdisk, &draw).await;
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert!(env.now().since(begun) >= pool::live::ROOM_WITHIN, "a write waits for space");
            assert_eq!(pool.usage().free_bytes, 0);
            if round == 0 {
                first = count;
            }
            assert!(count > first * 3 / 4, "round {round}: {count} of {first}");
            // All else continues.
            pool.flush().await.unwrap();
            pool.checkpoint().await.unwrap();
            let head = find(&pool, &vdisk).await;
            let is = stamps(&env, &pool, &head, BLOCKS).await.unwrap();
            let wrong = (0..).zip(&is).find(|(block, is)| **is != 0 && **is != 1_000_000 + block);
            assert_eq!(wrong, None);
            pool.zero(&head, 0, BLOCKS / 2).await.unwrap();
            assert_whole(&pool.check().await.unwrap(), &vdisk);
            pool.remove(&version(&vdisk)).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        pool.checkpoint().await.unwrap();
        assert_eq!(pool.usage().data_bytes, 0);
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        assert_whole(&pool.check().await.unwrap(), "after all");
    });
}

#[test]
fn full_pool_folds_maps_to_find_overwritten_blocks() {
    let world = SimWorld::new(12);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    let draw = Stream::new(12, "blocks", 0);
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), 1000 * 4096).await.unwrap();
        let web = find(&pool, "web").await;
        for block in (0..1000).step_by(50) {
            pool.write(&web, block, bytes(&env, 1 + block, 50)).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        // Few enough changes that no checkpoint folds them by itself.
        for block in 0..100 {
            pool.write(&web, block, bytes(&env, 2001 + block, 1)).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        let account = pool.vdisks("", 1).await.unwrap()[0].account;
        assert_eq!((account.head, account.unfound), (1100, 100));
        pool.create(&name("rest"), BLOCKS * 4096).await.unwrap();
        let (_, result) = fill(&env, &pool, "rest", &draw).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NoSpace);
        let account = pool.vdisks("rest", 1).await.unwrap()[0].account;
        assert_eq!((account.head, account.unfound), (1000, 0));
        assert_whole(&pool.check().await.unwrap(), "");
    });
}

/// Starts a step of a test in a task. Returns the place of its result.
fn begin<T: 'static>(
    env: &Env,
    step: impl Future<Output = Result<T>> + 'static,
) -> Rc<RefCell<Option<Result<T>>>> {
    let result = Rc::new(RefCell::new(None));
    let into = result.clone();
    env.spawn("a step of a test", async move { *into.borrow_mut() = Some(step.await) });
    result
}

#[test]
fn writes_and_checkpoints_wait_for_space_below_while_reads_go_on() {
    let world = SimWorld::new(13);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    let full = |is_full| disk.fails.set(Fails { is_full, ..Fails::default() });
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), 64 * 4096).await.unwrap();
        let web = find(&pool, "web").await;
        pool.write(&web, 0, bytes(&env, 1, 16)).await.unwrap();

        full(true);
        let (to, version, data) = (pool.clone(), web.clone(), bytes(&env, 100, 4));
        let written = begin(&env, async move { to.write(&version, 0, data).await });
        env.sleep(NO_SPACE_MAX / 2).await;
        assert!(written.borrow().is_none() && pool.waiting_below() > 0);
        let is = stamps(&env, &pool, &web, 16).await.unwrap();
        assert_eq!(is, (1..17).collect::<Vec<u64>>());
        full(false);
        env.sleep(Duration::from_secs(1)).await;
        written.take().expect("the write has ended").unwrap();
        assert_eq!(pool.waiting_below(), 0);

        full(true);
        let to = pool.clone();
        let done = begin(&env, async move { to.checkpoint().await });
        env.sleep(NO_SPACE_MAX / 2).await;
        assert!(done.borrow().is_none() && pool.waiting_below() > 0, "{:?}", done.borrow());
        full(false);
        env.sleep(Duration::from_secs(2)).await;
        done.take().expect("the checkpoint has ended").unwrap();
        assert_whole(&pool.check().await.unwrap(), "after two waits");
        drop((pool, web));
        let pool = open(&env, &disk).await.unwrap();
        let web = find(&pool, "web").await;
        let is = stamps(&env, &pool, &web, 16).await.unwrap();
        assert_eq!(is, (100..104).chain(5..17).collect::<Vec<u64>>());
    });
}

#[test]
fn pool_fails_after_longest_wait_for_space_below() {
    let world = SimWorld::new(14);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), 64 * 4096).await.unwrap();
        let web = find(&pool, "web").await;
        pool.write(&web, 0, bytes(&env, 1, 16)).await.unwrap();
        pool.flush().await.unwrap();
        disk.fails.set(Fails { is_full: true, ..Fails::default() });
        let begun = env.now();
        let error = pool.write(&web, 0, bytes(&env, 100, 4)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(env.now().since(begun) >= NO_SPACE_MAX);
        assert!(pool.failure().is_some());
        drop((pool, web));
        disk.fails.set(Fails::default());
        let pool = open(&env, &disk).await.unwrap();
        let web = find(&pool, "web").await;
        let is = stamps(&env, &pool, &web, 16).await.unwrap();
        // The refused write may have taken effect, or not.
        assert_eq!(is[4..], (5..17).collect::<Vec<u64>>());
        assert_whole(&pool.check().await.unwrap(), "after a failure");
    });
}
