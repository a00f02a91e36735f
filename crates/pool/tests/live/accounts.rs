//! The accounts of vdisks and snapshots, and quotas.

use block::{Env, ErrorKind};
use pool::live::{Account, ListedSnapshot, Pool};
use sim::SimWorld;
use testkit::recorded::Trace;

use crate::scene::{BLOCKS, assert_whole, blank, block_on, bytes, find, make, name, open, version};

const SIZE: u64 = BLOCKS * 4096;

async fn account(pool: &Pool, vdisk: &str) -> Account {
    let listed = pool.vdisks("", 10).await.unwrap();
    listed.iter().find(|it| it.name == vdisk).expect("the vdisk is there").account
}

async fn write(env: &Env, pool: &Pool, vdisk: &str, block: u64, blocks: u64) {
    let head = find(pool, vdisk).await;
    pool.write(&head, block, bytes(env, 100 * block + 1, blocks)).await.unwrap();
}

async fn alone(pool: &Pool, vdisk: &str) -> Vec<(u64, u64)> {
    let listed = pool.snapshots(&name(vdisk), 1, 100).await.unwrap();
    listed
        .iter()
        .map(|ListedSnapshot { number, alone_blocks, .. }| (*number, *alone_blocks))
        .collect()
}

#[test]
fn accounts_count_blocks_of_head_snapshots_and_clones() {
    let world = SimWorld::new(1);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        write(&env, &pool, "web", 0, 10).await;
        pool.snapshot(&[name("web")], None).await.unwrap();
        write(&env, &pool, "web", 6, 6).await;
        pool.snapshot(&[name("web")], None).await.unwrap();
        write(&env, &pool, "web", 9, 3).await;
        pool.clone_of(&version("web@1"), &name("job")).await.unwrap();
        write(&env, &pool, "job", 0, 2).await;
        write(&env, &pool, "job", 1, 2).await;
        pool.checkpoint().await.unwrap();
        let web = account(&pool, "web").await;
        assert_eq!((web.head, web.dead, web.unfound), (12, 7, 0));
        let job = account(&pool, "job").await;
        assert_eq!((job.head, job.dead, job.nodes), (3, 0, 1));
        // Blocks 6 to 9 of the first are overwritten, and 9 to 11 of the second.
        let counts = alone(&pool, "web").await;
        assert_eq!(counts.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!([counts[0].1, counts[1].1], [4, 3]);
        pool.flush().await.unwrap();
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        assert_eq!(account(&pool, "web").await, web);
        // No other version holds three blocks of the removed one.
        let before = pool.usage().data_bytes;
        pool.remove(&version("web@2")).await.unwrap();
        pool.checkpoint().await.unwrap();
        assert_eq!(before - pool.usage().data_bytes, 3 * 4096);
        let web = account(&pool, "web").await;
        assert_eq!((web.head, web.dead), (12, 4));
        assert_whole(&pool.check().await.unwrap(), "");
    });
}

async fn data(pool: &Pool, name: &str) -> (u64, u64) {
    let counted = pool.count_data(&version(name), 0).await.unwrap();
    assert_eq!(counted.next, None);
    (counted.own, counted.inherited)
}

#[test]
fn count_of_data_separates_own_blocks_from_inherited_blocks() {
    let world = SimWorld::new(9);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("gold"), SIZE).await.unwrap();
        write(&env, &pool, "gold", 0, 10).await;
        pool.snapshot(&[name("gold")], None).await.unwrap();
        pool.clone_of(&version("gold@1"), &name("job")).await.unwrap();
        write(&env, &pool, "gold", 8, 4).await;
        write(&env, &pool, "job", 5, 2).await;
        write(&env, &pool, "job", 30, 1).await;
        let number = pool.snapshot(&[name("job")], None).await.unwrap()[0];
        pool.clone_of(&version(&format!("job@{number}")), &name("deep")).await.unwrap();
        write(&env, &pool, "deep", 0, 1).await;
        pool.zero(&*find(&pool, "deep").await, 5, 3).await.unwrap();
        let is = async |when| {
            assert_eq!(data(&pool, "gold").await, (12, 0), "{when}");
            assert_eq!(data(&pool, "gold@1").await, (10, 0), "{when}");
            assert_eq!(data(&pool, "job").await, (3, 8), "{when}");
            assert_eq!(data(&pool, "deep").await, (1, 7), "{when}");
        };
        is("in memory").await;
        pool.checkpoint().await.unwrap();
        is("in trees").await;
        write(&env, &pool, "deep", 0, 1).await;
        is("in both").await;
        let counted = pool.count_data(&version("job"), 6).await.unwrap();
        assert_eq!((counted.own, counted.inherited), (2, 3), "from block 6 on");
        let error = pool.count_data(&version("job@7"), 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn newest_snapshot_before_rollback_holds_blocks_alone() {
    let world = SimWorld::new(2);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        write(&env, &pool, "web", 0, 10).await;
        pool.snapshot(&[name("web")], None).await.unwrap();
        write(&env, &pool, "web", 20, 5).await;
        assert_eq!(pool.roll_back(&version("web@1")).await.unwrap(), Some(2));
        write(&env, &pool, "web", 40, 2).await;
        pool.checkpoint().await.unwrap();
        let web = account(&pool, "web").await;
        assert_eq!((web.head, web.dead), (2, 15));
        let counts = alone(&pool, "web").await;
        assert_eq!(counts[1], (2, 5));
    });
}

#[test]
fn quota_bounds_vdisk_with_its_snapshots() {
    let world = SimWorld::new(3);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        write(&env, &pool, "web", 0, 20).await;
        let error = pool.set_quota(&name("web"), 10 * 4096).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        pool.set_quota(&name("web"), 40 * 4096).await.unwrap();
        pool.snapshot(&[name("web")], None).await.unwrap();
        write(&env, &pool, "web", 0, 15).await;
        let head = find(&pool, "web").await;
        let begun = env.now();
        let error = pool.write(&head, 20, bytes(&env, 1, 8)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.message().contains("its quota is 160 KiB"), "{error}");
        assert_eq!(env.now().since(begun), pool::live::ROOM_WITHIN);
        // Other vdisks go on, and so do discards.
        pool.create(&name("other"), SIZE).await.unwrap();
        write(&env, &pool, "other", 0, 60).await;
        pool.zero(&head, 0, 2).await.unwrap();
        // Blocks that are written over and over are found by a fold.
        for _ in 0..20 {
            pool.write(&head, 4, bytes(&env, 5, 2)).await.unwrap();
        }
        pool.remove(&version("web@1")).await.unwrap();
        pool.write(&head, 20, bytes(&env, 1, 8)).await.unwrap();
        drop((head, pool));
        let pool = open(&env, &disk).await.unwrap();
        assert_eq!(pool.vdisks("", 10).await.unwrap()[1].quota_bytes, 40 * 4096);
        let head = find(&pool, "web").await;
        let error = pool.write(&head, 30, bytes(&env, 1, 30)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        pool.set_quota(&name("web"), 0).await.unwrap();
        pool.write(&head, 30, bytes(&env, 1, 30)).await.unwrap();
        assert_whole(&pool.check().await.unwrap(), "");
    });
}
