//! Snapshots without a command, rules that remove them, and labels.

use std::time::Duration;

use block::ErrorKind;
use pool::live::{Keep, Pool, Taking};
use sim::SimWorld;
use testkit::recorded::Trace;

use crate::scene::{
    BLOCKS, assert_whole, blank, block_on, bytes, find, label, make, name, open, stamps, version,
};

const SIZE: u64 = BLOCKS * 4096;

async fn numbers(pool: &Pool, vdisk: &str) -> Vec<u64> {
    let all = pool.snapshots(&name(vdisk), 1, 10_000).await.unwrap();
    all.into_iter().map(|snapshot| snapshot.number).collect()
}

#[test]
fn snapshots_at_cadence_are_taken_after_changes_only_and_over_openings() {
    let world = SimWorld::new(21);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let mut pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        pool.set_taking(&name("web"), Taking::Every(Duration::from_millis(10))).await.unwrap();
        let mut taken = 0;
        for round in 0..3 {
            let web = find(&pool, "web").await;
            for n in 0..20 {
                pool.write(&web, n, bytes(&env, 1 + n + 100 * round, 1)).await.unwrap();
                env.sleep(Duration::from_millis(10)).await;
            }
            env.sleep(Duration::from_secs(1)).await;
            let count = numbers(&pool, "web").await.len() as u64;
            assert!((19..=22).contains(&(count - taken)), "{count} after {taken}");
            taken = count;
            // Each has one write more than the one before.
            let last = numbers(&pool, "web").await.last().copied().unwrap();
            let before = find(&pool, &format!("web@{}", last - 1)).await;
            let is = stamps(&env, &pool, &before, BLOCKS).await.unwrap();
            assert_eq!((is[18], is[19] > 100 * round), (19 + 100 * round, false));
            pool.close().await.unwrap();
            drop((web, before, pool));
            pool = open(&env, &disk).await.unwrap();
        }
        pool.set_taking(&name("web"), Taking::ByCommand).await.unwrap();
        // An opening may take one without changes.
        taken = numbers(&pool, "web").await.len() as u64;
        let web = find(&pool, "web").await;
        pool.write(&web, 0, bytes(&env, 5, 1)).await.unwrap();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(numbers(&pool, "web").await.len() as u64, taken);
    });
}

#[test]
fn snapshots_with_flush_or_write_have_changes_up_to_there() {
    let world = SimWorld::new(22);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        for vdisk in ["flushed", "written"] {
            pool.create(&name(vdisk), SIZE).await.unwrap();
        }
        pool.set_taking(&name("flushed"), Taking::WithFlush).await.unwrap();
        pool.set_taking(&name("written"), Taking::WithWrite).await.unwrap();
        let (flushed, written) = (find(&pool, "flushed").await, find(&pool, "written").await);
        pool.flush().await.unwrap();
        for n in 0..4 {
            pool.write(&flushed, n, bytes(&env, 1 + n, 1)).await.unwrap();
            pool.write(&written, n, bytes(&env, 1 + n, 1)).await.unwrap();
            if n % 2 == 1 {
                pool.flush().await.unwrap();
                pool.flush().await.unwrap();
            }
        }
        pool.zero(&written, 0, 2).await.unwrap();
        assert_eq!(numbers(&pool, "flushed").await, [1, 2], "a flush without changes takes none");
        for (number, expected) in [(1, [1, 2, 0, 0]), (2, [1, 2, 3, 4])] {
            let found = find(&pool, &format!("flushed@{number}")).await;
            assert_eq!(stamps(&env, &pool, &found, 4).await.unwrap(), expected);
        }
        assert_eq!(numbers(&pool, "written").await, [1, 2, 3, 4, 5]);
        for (number, expected) in [(1, [1, 0, 0, 0]), (3, [1, 2, 3, 0]), (5, [0, 0, 3, 4])] {
            let found = find(&pool, &format!("written@{number}")).await;
            assert_eq!(stamps(&env, &pool, &found, 4).await.unwrap(), expected);
        }
    });
}

#[test]
fn rules_keep_last_snapshots_first_ones_of_intervals_and_those_in_use() {
    let world = SimWorld::new(23);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        let web = find(&pool, "web").await;
        for n in 0..60 {
            pool.write(&web, n % BLOCKS, bytes(&env, 1 + n, 1)).await.unwrap();
            let text = (n == 6).then(|| label("keep"));
            pool.snapshot(&[name("web")], text).await.unwrap();
            env.sleep(Duration::from_secs(1)).await;
        }
        pool.clone_of(&version("web@9"), &name("job")).await.unwrap();
        let id = pool.find(&version("web@11")).await.unwrap().unwrap();
        let opened = pool.open_version(id).await.unwrap();
        let rule = Keep { last: 3, interval_s: 20 };
        let would = pool.check_keep(&name("web"), rule).await.unwrap();
        let removed = pool.keep(&name("web"), rule, true).await.unwrap();
        assert_eq!(would, removed);
        let left = numbers(&pool, "web").await;
        assert_eq!(left.len() as u64, 60 - removed);
        for number in [7, 9, 11, 58, 59, 60] {
            assert!(left.contains(&number), "{number} of {left:?}");
        }
        // Of 60 s, the first of each 20 s, of which there are 3 or 4.
        assert!((8..=10).contains(&left.len()), "{left:?}");
        let is = stamps(&env, &pool, &opened, BLOCKS).await.unwrap();
        assert_eq!((is[10], is[11]), (11, 0));
        pool.close_version(id);
        // The rule stays.
        for n in 0..5 {
            pool.write(&web, n, bytes(&env, 1000 + n, 1)).await.unwrap();
            pool.snapshot(&[name("web")], None).await.unwrap();
        }
        pool.keep(&name("web"), Keep { last: 2, interval_s: 0 }, true).await.unwrap();
        assert_eq!(numbers(&pool, "web").await, [7, 9, 64, 65]);
        pool.snapshot(&[name("web")], None).await.unwrap();
        pool.remove(&version("web@7")).await.unwrap();
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(numbers(&pool, "web").await, [9, 65, 66]);
        assert_whole(&pool.check().await.unwrap(), "after rules");
        let job = find(&pool, "job").await;
        let is = stamps(&env, &pool, &job, BLOCKS).await.unwrap();
        assert_eq!((is[8], is[9]), (9, 0));
    });
}

#[test]
fn labels_move_between_snapshots() {
    let world = SimWorld::new(24);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        for _ in 0..3 {
            pool.snapshot(&[name("web")], None).await.unwrap();
        }
        pool.set_label(&version("web@1"), Some(label("a"))).await.unwrap();
        pool.set_label(&version("web@2"), Some(label("b"))).await.unwrap();
        let error = pool.set_label(&version("web@3"), Some(label("a"))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        pool.set_label(&version("web@a"), Some(label("c"))).await.unwrap();
        pool.set_label(&version("web@c"), Some(label("c"))).await.unwrap();
        pool.set_label(&version("web@b"), None).await.unwrap();
        pool.set_label(&version("web@3"), Some(label("a"))).await.unwrap();
        pool.close().await.unwrap();
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        let all = pool.snapshots(&name("web"), 1, 10).await.unwrap();
        let labels: Vec<_> = all.iter().map(|snapshot| snapshot.label.as_deref()).collect();
        assert_eq!(labels, [Some("c"), None, Some("a")]);
        let found = pool.find(&version("web@a")).await.unwrap().unwrap();
        assert_eq!(found.snapshot, Some(3));
        assert_eq!(pool.find(&version("web@b")).await.unwrap(), None);
    });
}
