//! Rollbacks: a vdisk gets the content of a snapshot, and all snapshots keep their names.

use std::time::Duration;

use block::{Env, ErrorKind, Reason};
use pool::live::{Keep, LINES_MAX, Pool};
use sim::SimWorld;
use testkit::recorded::Trace;

use crate::scene::{
    BLOCKS, assert_whole, blank, block_on, bytes, find, label, make, name, names, open, stamps,
    version,
};

const SIZE: u64 = BLOCKS * 4096;

async fn first_block(env: &Env, pool: &Pool, text: &str) -> u64 {
    let version = find(pool, text).await;
    stamps(env, pool, &version, 1).await.unwrap()[0]
}

async fn write(env: &Env, pool: &Pool, vdisk: &str, stamp: u64) {
    let head = find(pool, vdisk).await;
    pool.write(&head, 0, bytes(env, stamp, 1)).await.unwrap();
}

/// Makes `web` with 1 in snapshot 1, which has the label `monday`, 2 in snapshot 2, and 3 in its head.
async fn make_web(env: &Env, pool: &Pool) {
    pool.create(&name("web"), SIZE).await.unwrap();
    write(env, pool, "web", 1).await;
    assert_eq!(pool.snapshot(&[name("web")], Some(label("monday"))).await.unwrap(), [1]);
    write(env, pool, "web", 2).await;
    assert_eq!(pool.snapshot(&[name("web")], None).await.unwrap(), [2]);
    write(env, pool, "web", 3).await;
}

#[test]
fn rollback_goes_back_and_forward_and_keeps_names_and_numbers() {
    let world = SimWorld::new(1);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        make_web(&env, &pool).await;
        assert_eq!(pool.roll_back(&version("web@monday")).await.unwrap(), Some(3));
        assert_eq!(first_block(&env, &pool, "web").await, 1);
        // The content is that of a snapshot, so no further one is taken.
        assert_eq!(pool.roll_back(&version("web@3")).await.unwrap(), None);
        assert_eq!(first_block(&env, &pool, "web").await, 3);
        write(&env, &pool, "web", 4).await;
        assert_eq!(pool.snapshot(&[name("web")], Some(label("friday"))).await.unwrap(), [4]);
        assert_eq!(pool.roll_back(&version("web@2")).await.unwrap(), None);
        write(&env, &pool, "web", 5).await;
        let error = pool.snapshot(&[name("web")], Some(label("monday"))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        let error = pool.set_label(&version("web@3"), Some(label("friday"))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        let check = async |pool: &Pool| {
            for (text, stamp) in [("web", 5), ("web@1", 1), ("web@monday", 1), ("web@2", 2)] {
                assert_eq!(first_block(&env, pool, text).await, stamp, "{text}");
            }
            for (text, stamp) in [("web@3", 3), ("web@4", 4), ("web@friday", 4)] {
                assert_eq!(first_block(&env, pool, text).await, stamp, "{text}");
            }
            assert_eq!(names(pool).await.unwrap(), ["web", "web@1", "web@2", "web@3", "web@4"]);
            let listed = pool.list("", 10).await.unwrap();
            let listed: Vec<&str> = listed.iter().map(|it| it.name.as_str()).collect();
            assert_eq!(listed, ["web", "web@friday", "web@monday"]);
            assert_eq!(pool.vdisks("", 1).await.unwrap()[0].origin.as_deref(), Some("web@2"));
            assert_whole(&pool.check().await.unwrap(), "");
        };
        check(&pool).await;
        pool.flush().await.unwrap();
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        check(&pool).await;
        pool.clone_of(&version("web@4"), &name("job")).await.unwrap();
        assert_eq!(first_block(&env, &pool, "job").await, 4);
    });
}

#[test]
fn rollback_is_refused_for_open_vdisk_and_missing_snapshot() {
    let world = SimWorld::new(2);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        make_web(&env, &pool).await;
        let id = pool.find(&version("web")).await.unwrap().unwrap();
        let head = pool.open_version(id).await.unwrap();
        let error = pool.roll_back(&version("web@1")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert_eq!(pool.check_rollback(&version("web@1")).await.unwrap_err(), error);
        pool.close_version(id);
        drop(head);
        for missing in ["web@9", "web@sunday", "web", "other@1"] {
            let error = pool.roll_back(&version(missing)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{missing}");
        }
        assert_eq!(names(&pool).await.unwrap(), ["web", "web@1", "web@2"]);
    });
}

#[test]
fn removal_and_rules_reach_snapshots_of_all_lines() {
    let world = SimWorld::new(3);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("other"), SIZE).await.unwrap();
        pool.checkpoint().await.unwrap();
        let before = pool.usage().data_bytes;
        make_web(&env, &pool).await;
        for round in 0..10 {
            pool.roll_back(&version("web@2")).await.unwrap();
            write(&env, &pool, "web", 100 + round).await;
            pool.snapshot(&[name("web")], None).await.unwrap();
            if round % 3 == 0 {
                pool.checkpoint().await.unwrap();
            }
        }
        assert_eq!(pool.snapshots(&name("web"), 1, 100).await.unwrap().len(), 13);
        let keep = Keep { last: 2, interval_s: 0 };
        assert_eq!(pool.keep(&name("web"), keep, false).await.unwrap(), 9);
        // The label keeps the first, and rollbacks hold the second.
        assert_eq!(
            names(&pool).await.unwrap(),
            ["other", "web", "web@1", "web@12", "web@13", "web@2"]
        );
        pool.checkpoint().await.unwrap();
        assert_whole(&pool.check().await.unwrap(), "after the rule");
        let error = {
            let id = pool.find(&version("web@1")).await.unwrap().unwrap();
            let _open = pool.open_version(id).await.unwrap();
            let error = pool.remove(&version("web")).await.unwrap_err();
            pool.close_version(id);
            error
        };
        assert_eq!(error.kind(), ErrorKind::InUse, "a snapshot of the first line is open");
        pool.clone_of(&version("web@1"), &name("job")).await.unwrap();
        // The clone keeps a snapshot; the rollbacks keep none.
        assert_eq!(pool.remove(&version("web")).await.unwrap(), 1);
        let error = pool.find(&version("web@1")).await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::VolumeGone));
        assert_eq!(first_block(&env, &pool, "job").await, 1);
        assert_eq!(names(&pool).await.unwrap(), ["job", "other"]);
        pool.create(&name("web"), SIZE).await.unwrap();
        assert_eq!(pool.snapshot(&[name("web")], None).await.unwrap(), [14]);
        pool.remove(&version("web")).await.unwrap();
        pool.remove(&version("job")).await.unwrap();
        for _ in 0..4 {
            pool.checkpoint().await.unwrap();
            env.sleep(std::time::Duration::from_secs(2)).await;
        }
        assert_whole(&pool.check().await.unwrap(), "after the removals");
        assert_eq!(pool.usage().data_bytes, before);
    });
}

#[test]
fn name_has_limited_number_of_lines() {
    let world = SimWorld::new(4);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        make_web(&env, &pool).await;
        pool.roll_back(&version("web@1")).await.unwrap();
        for _ in 1..LINES_MAX {
            let head = find(&pool, "web").await;
            pool.zero(&head, 0, 1).await.unwrap();
            pool.roll_back(&version("web@1")).await.unwrap();
        }
        let error = pool.roll_back(&version("web@1")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        let keep = Keep { last: 5, interval_s: 0 };
        pool.keep(&name("web"), keep, false).await.unwrap();
        pool.checkpoint().await.unwrap();
        pool.roll_back(&version("web@1")).await.unwrap();
        assert_whole(&pool.check().await.unwrap(), "");
    });
}

#[test]
fn number_of_lost_snapshot_is_not_used_again() {
    let world = SimWorld::new(5);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        make_web(&env, &pool).await;
        pool.flush().await.unwrap();
        let durable = disk.bytes.borrow().clone();
        let lost = pool.snapshot(&[name("web")], None).await.unwrap()[0];
        drop(pool);
        disk.bytes.replace(durable);
        let pool = open(&env, &disk).await.unwrap();
        let next = pool.snapshot(&[name("web")], None).await.unwrap()[0];
        assert!(next > lost, "snapshot {next} after {lost}");
        pool.close().await.unwrap();
        let pool = open(&env, &disk).await.unwrap();
        let numbers = pool.snapshot(&[name("web")], None).await.unwrap();
        assert_eq!(numbers, [next + 1], "a pool that was closed gives its reserve back");
    });
}

#[test]
fn vdisk_is_removed_while_checkpoint_ends_one_of_its_lines() {
    for pause_us in 0..30 {
        let world = SimWorld::new(pause_us);
        let (env, disk) = (world.env(), blank(&Trace::default()));
        block_on(&world, async {
            make(&env, &disk).await;
            let pool = open(&env, &disk).await.unwrap();
            make_web(&env, &pool).await;
            pool.roll_back(&version("web@1")).await.unwrap();
            write(&env, &pool, "web", 4).await;
            assert_eq!(pool.roll_back(&version("web@1")).await.unwrap(), Some(4));
            pool.checkpoint().await.unwrap();
            // The second line has this snapshot alone.
            pool.remove(&version("web@4")).await.unwrap();
            env.sleep(Duration::from_micros(pause_us)).await;
            pool.remove(&version("web")).await.unwrap();
            env.sleep(Duration::from_secs(10)).await;
            assert_whole(&pool.check().await.unwrap(), "");
            assert_eq!(pool.usage().data_bytes, 0);
        });
    }
}

#[test]
fn head_that_only_lost_blocks_is_kept_at_rollback_after_opening() {
    let world = SimWorld::new(7);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        write(&env, &pool, "web", 1).await;
        assert_eq!(pool.snapshot(&[name("web")], None).await.unwrap(), [1]);
        let head = find(&pool, "web").await;
        pool.zero(&head, 0, 1).await.unwrap();
        drop(head);
        pool.close().await.unwrap();
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        let kept = pool.roll_back(&version("web@1")).await.unwrap().expect("a snapshot is taken");
        assert_eq!(first_block(&env, &pool, "web").await, 1);
        assert_eq!(first_block(&env, &pool, &format!("web@{kept}")).await, 0);
        pool.close().await.unwrap();
        drop(pool);
        // Nothing has changed since, so nothing is taken.
        let pool = open(&env, &disk).await.unwrap();
        assert_eq!(pool.roll_back(&version(&format!("web@{kept}"))).await.unwrap(), None);
        assert_eq!(first_block(&env, &pool, "web").await, 0);
    });
}
