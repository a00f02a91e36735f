//! Chains of clones of clones: their reads stay short, and their space comes back.

use std::time::Duration;

use block::Env;
use pool::live::Pool;
use sim::SimWorld;
use testkit::recorded::Trace;

use crate::scene::{
    BLOCKS, assert_whole, blank, block_on, bytes, find, make, name, open, stamps, version,
};

const SIZE: u64 = BLOCKS * 4096;

/// Clones in a chain with writes.
const WRITTEN: u64 = 70;

/// Clones in a chain without writes.
const UNWRITTEN: u64 = 600;

fn link(n: u64) -> String {
    format!("v{n}")
}

/// Makes a clone of the vdisk `n` with the next number.
async fn clone_next(pool: &Pool, n: u64) {
    let number = pool.snapshot(&[name(&link(n))], None).await.unwrap()[0];
    let origin = version(&format!("{}@{number}", link(n)));
    pool.clone_of(&origin, &name(&link(n + 1))).await.unwrap();
}

/// Makes a chain in which each clone writes a block, and checks that each has the blocks of those before it.
async fn chain(
    env: &Env,
    mut pool: Pool,
    steps_per_checkpoint: u64,
    reopen: impl AsyncFn(Pool) -> Pool,
) -> Pool {
    pool.create(&name("v0"), SIZE).await.unwrap();
    let mut expected = vec![vec![0; BLOCKS as usize]];
    for n in 0..WRITTEN {
        let head = find(&pool, &link(n)).await;
        let block = n * 13 % BLOCKS;
        let mut content = expected[n as usize].clone();
        match n % 7 {
            6 => {
                pool.zero(&head, block, 1).await.unwrap();
                content[block as usize] = 0;
            }
            _ => {
                pool.write(&head, block, bytes(env, 1000 + n, 1)).await.unwrap();
                content[block as usize] = 1000 + n;
            }
        }
        drop(head);
        expected[n as usize] = content.clone();
        clone_next(&pool, n).await;
        expected.push(content);
        if n % steps_per_checkpoint == steps_per_checkpoint - 1 {
            pool.checkpoint().await.unwrap();
        }
        if n % 50 == 40 {
            pool = reopen(pool).await;
        }
        if n % 9 == 0 {
            let from = n.saturating_sub(30);
            for (n, content) in (from..).zip(&expected[from as usize..]) {
                let head = find(&pool, &link(n)).await;
                assert_eq!(stamps(env, &pool, &head, BLOCKS).await.unwrap(), *content, "{n}");
            }
        }
    }
    for (n, content) in (0..).zip(&expected) {
        let head = find(&pool, &link(n)).await;
        assert_eq!(stamps(env, &pool, &head, BLOCKS).await.unwrap(), *content, "{n}");
    }
    pool
}

/// Removes a chain of vdisks, and waits until the last one is gone.
async fn remove(env: &Env, pool: &Pool, links: impl Iterator<Item = u64>) {
    for n in links {
        pool.remove(&version(&link(n))).await.unwrap();
    }
    let mut before = None;
    while before != Some(pool.usage()) {
        before = Some(pool.usage());
        env.sleep(Duration::from_secs(3)).await;
        pool.checkpoint().await.unwrap();
    }
}

fn written_chain(steps_per_checkpoint: u64, is_newest_first: bool) {
    let world = SimWorld::new(1);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("other"), SIZE).await.unwrap();
        pool.checkpoint().await.unwrap();
        let before = pool.usage().data_bytes;
        let reopen = async |pool: Pool| {
            pool.flush().await.unwrap();
            env.sleep(Duration::from_millis(1)).await;
            drop(pool);
            open(&env, &disk).await.unwrap()
        };
        let pool = chain(&env, pool, steps_per_checkpoint, reopen).await;
        assert_whole(&pool.check().await.unwrap(), "the whole chain");
        // Half of the chain is removed behind the others, which read its blocks.
        let half = WRITTEN / 2;
        remove(&env, &pool, 0..half).await;
        assert_whole(&pool.check().await.unwrap(), "half of the chain");
        let pool = reopen(pool).await;
        let head = find(&pool, &link(WRITTEN)).await;
        let content = stamps(&env, &pool, &head, BLOCKS).await.unwrap();
        assert!(content.iter().filter(|stamp| **stamp != 0).count() > BLOCKS as usize / 2);
        drop(head);
        match is_newest_first {
            true => remove(&env, &pool, (half..=WRITTEN).rev()).await,
            false => remove(&env, &pool, half..=WRITTEN).await,
        }
        assert_whole(&pool.check().await.unwrap(), "nothing of the chain");
        assert_eq!(pool.usage().data_bytes, before);
    });
}

#[test]
fn chain_of_written_clones_is_read_and_released() {
    written_chain(1, true);
    written_chain(3, false);
    written_chain(40, true);
}

#[test]
fn long_chain_of_unwritten_clones_is_read_and_released() {
    let world = SimWorld::new(2);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("v0"), SIZE).await.unwrap();
        let head = find(&pool, "v0").await;
        pool.write(&head, 7, bytes(&env, 70, 1)).await.unwrap();
        drop(head);
        for n in 0..UNWRITTEN {
            clone_next(&pool, n).await;
        }
        pool.flush().await.unwrap();
        env.sleep(Duration::from_millis(1)).await;
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        let head = find(&pool, &link(UNWRITTEN)).await;
        assert_eq!(stamps(&env, &pool, &head, 8).await.unwrap()[7], 70);
        pool.write(&head, 1, bytes(&env, 10, 1)).await.unwrap();
        drop(head);
        assert_whole(&pool.check().await.unwrap(), "the whole chain");
        remove(&env, &pool, 0..=UNWRITTEN).await;
        assert_whole(&pool.check().await.unwrap(), "nothing of the chain");
        assert_eq!(pool.usage().data_bytes, 0);
    });
}
