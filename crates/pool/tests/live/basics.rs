//! Operations of a pool without faults.

use std::time::Duration;

use block::{ErrorKind, all};
use pool::geometry::Geometry;
use pool::live::{Checked, Listed, Options, Pool, UNFLUSHED_BYTES_MAX, Usage};
use sim::SimWorld;
use testkit::recorded::{Disk, Event, Trace};

use crate::scene::{
    BLOCKS, OPTIONS, POOL, assert_whole, blank, block_on, bytes, find, geometry, label, make, name,
    names, open, stamps, version,
};

const SIZE: u64 = BLOCKS * 4096;

#[test]
fn new_vdisk_reads_zeros_and_keeps_what_is_written_over_openings() {
    let world = SimWorld::new(1);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        let web = find(&pool, "web").await;
        assert_eq!(stamps(&env, &pool, &web, BLOCKS).await.unwrap(), vec![0; BLOCKS as usize]);
        pool.write(&web, 3, bytes(&env, 100, 4)).await.unwrap();
        let mut expected = vec![0; BLOCKS as usize];
        expected[3..7].copy_from_slice(&[100, 101, 102, 103]);
        assert_eq!(stamps(&env, &pool, &web, BLOCKS).await.unwrap(), expected);
        pool.flush().await.unwrap();
        drop((web, pool));
        // The process ended without a checkpoint.
        let pool = open(&env, &disk).await.unwrap();
        let web = find(&pool, "web").await;
        assert_eq!(stamps(&env, &pool, &web, BLOCKS).await.unwrap(), expected);
        pool.zero(&web, 4, 2).await.unwrap();
        pool.close().await.unwrap();
        expected[4..6].fill(0);
        drop((web, pool));
        let pool = open(&env, &disk).await.unwrap();
        let web = find(&pool, "web").await;
        assert_eq!(stamps(&env, &pool, &web, BLOCKS).await.unwrap(), expected);
    });
}

#[test]
fn snapshots_and_clones_keep_their_blocks_through_checkpoints_and_openings() {
    let world = SimWorld::new(2);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("gold"), SIZE).await.unwrap();
        let gold = find(&pool, "gold").await;
        pool.write(&gold, 0, bytes(&env, 10, 8)).await.unwrap();
        assert_eq!(pool.snapshot(&[name("gold")], Some(label("v1"))).await.unwrap(), [1]);
        pool.write(&gold, 4, bytes(&env, 20, 2)).await.unwrap();
        pool.clone_of(&version("gold@v1"), &name("job")).await.unwrap();
        let job = find(&pool, "job").await;
        pool.write(&job, 0, bytes(&env, 30, 1)).await.unwrap();
        pool.flush().await.unwrap();
        let check = async |pool: &pool::live::Pool| {
            let read = async |name: &str| {
                let version = find(pool, name).await;
                stamps(&env, pool, &version, 9).await.unwrap()
            };
            assert_eq!(read("gold").await, [10, 11, 12, 13, 20, 21, 16, 17, 0]);
            assert_eq!(read("gold@v1").await, [10, 11, 12, 13, 14, 15, 16, 17, 0]);
            assert_eq!(read("gold@1").await, [10, 11, 12, 13, 14, 15, 16, 17, 0]);
            assert_eq!(read("job").await, [30, 11, 12, 13, 14, 15, 16, 17, 0]);
        };
        check(&pool).await;
        pool.checkpoint().await.unwrap();
        check(&pool).await;
        drop((gold, job, pool));
        let pool = open(&env, &disk).await.unwrap();
        check(&pool).await;
        let checked = pool.check().await.unwrap();
        assert_whole(&checked, "");
        assert_eq!(names(&pool).await.unwrap(), ["gold", "gold@1", "job"]);
        let listed = pool.vdisks("gold", 10).await.unwrap();
        assert_eq!(listed[0].origin.as_deref(), Some("gold@v1"));
    });
}

#[test]
fn snapshot_cannot_be_written() {
    let world = SimWorld::new(4);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        pool.snapshot(&[name("web")], None).await.unwrap();
        let snapshot = find(&pool, "web@1").await;
        let written = pool.write(&snapshot, 0, bytes(&env, 1, 1)).await;
        assert_eq!(written.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(pool.zero(&snapshot, 0, 1).await.unwrap_err().kind(), ErrorKind::ReadOnly);
    });
}

/// Both writes are in one record, because both wait when the record is made.
#[test]
fn overlapping_writes_of_one_record_are_replayed_in_order() {
    let world = SimWorld::new(5);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        let web = find(&pool, "web").await;
        let writes =
            [(4, 10), (2, 20)].map(|(at, stamp)| pool.write(&web, at, bytes(&env, stamp, 4)));
        let done = all(writes.map(Box::pin).into()).await;
        done.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
        pool.flush().await.unwrap();
        drop((web, pool));
        let pool = open(&env, &disk).await.unwrap();
        let web = find(&pool, "web").await;
        let is = stamps(&env, &pool, &web, 8).await.unwrap();
        assert_eq!(is, [0, 0, 20, 21, 22, 23, 12, 13]);
    });
}

#[test]
fn space_of_removed_vdisk_comes_back() {
    let world = SimWorld::new(3);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("other"), SIZE).await.unwrap();
        pool.checkpoint().await.unwrap();
        pool.checkpoint().await.unwrap();
        let before = pool.usage();
        pool.create(&name("web"), SIZE).await.unwrap();
        let web = find(&pool, "web").await;
        for round in 0..20 {
            pool.write(&web, round, bytes(&env, 1000 * round, 40)).await.unwrap();
            pool.snapshot(&[name("web")], None).await.unwrap();
            if round % 3 == 0 {
                pool.checkpoint().await.unwrap();
            }
        }
        drop(web);
        assert!(pool.usage().data_bytes > before.data_bytes + 40 * 20 * 1024);
        pool.remove(&version("web@7")).await.unwrap();
        pool.checkpoint().await.unwrap();
        let checked = pool.check().await.unwrap();
        assert_whole(&checked, "");
        pool.remove(&version("web")).await.unwrap();
        let error = pool.find(&version("web")).await.unwrap_err();
        assert_eq!(error.reason(), Some(block::Reason::VolumeGone));
        pool.checkpoint().await.unwrap();
        pool.checkpoint().await.unwrap();
        let checked = pool.check().await.unwrap();
        assert_whole(&checked, "");
        assert_eq!(pool.usage().data_bytes, before.data_bytes);
    });
}

#[test]
fn lists_have_labels_and_pages() {
    let world = SimWorld::new(5);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        for vdisk in ["a", "a-b", "b"] {
            pool.create(&name(vdisk), SIZE).await.unwrap();
        }
        pool.snapshot(&[name("a"), name("b")], Some(label("x"))).await.unwrap();
        for _ in 0..300 {
            pool.snapshot(&[name("a")], None).await.unwrap();
        }
        pool.remove(&version("a@200")).await.unwrap();
        let texts = |listed: Vec<Listed>| listed.into_iter().map(|it| it.name).collect::<Vec<_>>();
        assert_eq!(texts(pool.list("", 10).await.unwrap()), ["a", "a-b", "a@x", "b", "b@x"]);
        assert_eq!(texts(pool.list("a-b", 2).await.unwrap()), ["a@x", "b"]);
        let page = pool.snapshots(&name("a"), 1, 2).await.unwrap();
        assert_eq!((page[0].number, page[0].label.as_deref()), (1, Some("x")));
        assert_eq!((page[1].number, page[1].label.as_deref()), (2, None));
        let page = pool.snapshots(&name("a"), 150, 100).await.unwrap();
        let numbers: Vec<u64> = page.iter().map(|it| it.number).collect();
        assert_eq!(numbers, (150..=250).filter(|number| *number != 200).collect::<Vec<_>>());
        assert_eq!(pool.snapshots(&name("a"), 290, 100).await.unwrap().len(), 12);
        assert_eq!(pool.snapshots(&name("a-b"), 1, 100).await.unwrap(), []);
        let error = pool.snapshots(&name("c"), 1, 100).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn check_of_pool_open_for_reading_counts_changes_of_log_as_used() {
    let world = SimWorld::new(6);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        let web = find(&pool, "web").await;
        pool.write(&web, 0, bytes(&env, 1, 4)).await.unwrap();
        pool.checkpoint().await.unwrap();
        pool.write(&web, 2, bytes(&env, 100, 4)).await.unwrap();
        pool.flush().await.unwrap();
        drop((web, pool));
        let options = Options { read_only: true, ..OPTIONS };
        let (pool, _) = Pool::open(&env, &disk.lower(), POOL, geometry(), options).await.unwrap();
        let checked = pool.check().await.unwrap();
        let expected = Checked { vdisks: 1, ..Checked::default() };
        assert_eq!(checked, expected, "what no checkpoint has merged is neither lost nor leaked");
        let web = find(&pool, "web").await;
        let mut content = vec![1, 2, 100, 101, 102, 103];
        content.resize(BLOCKS as usize, 0);
        assert_eq!(stamps(&env, &pool, &web, BLOCKS).await.unwrap(), content);
    });
}

#[test]
fn data_without_a_flush_are_bounded() {
    let world = SimWorld::new(8);
    let bytes_of_disk = 768 << 20;
    let disk = Disk::new(0, vec![0; bytes_of_disk], &Trace::default());
    let env = world.env();
    block_on(&world, async {
        let geometry = Geometry::new(bytes_of_disk as u64).unwrap();
        Pool::make(&env, &disk.lower(), POOL, geometry).await.unwrap();
        let (pool, _) = Pool::open(&env, &disk.lower(), POOL, geometry, OPTIONS).await.unwrap();
        pool.create(&name("web"), 1 << 30).await.unwrap();
        let web = find(&pool, "web").await;
        let (begun, before) = (env.now(), disk.flushes.get());
        let half = UNFLUSHED_BYTES_MAX / (2 << 20);
        for n in 0..half - 1 {
            pool.write(&web, n * 256, bytes(&env, 1 + n, 256)).await.unwrap();
        }
        assert_eq!(disk.flushes.get(), before);
        for n in half - 1..half + 1 {
            pool.write(&web, n * 256, bytes(&env, 1 + n, 256)).await.unwrap();
        }
        env.sleep(Duration::from_millis(10)).await;
        assert_eq!(disk.flushes.get(), before + 1);
        assert!(env.now().since(begun) < Duration::from_secs(4), "before the bound in time");
    });
}

#[test]
fn idle_pool_writes_one_record_that_proves_the_last_ones() {
    let world = SimWorld::new(9);
    let (env, trace) = (world.env(), Trace::default());
    let disk = blank(&trace);
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        let web = find(&pool, "web").await;
        pool.write(&web, 0, bytes(&env, 1, 16)).await.unwrap();
        let before = pool.usage();
        pool.write(&web, 0, bytes(&env, 50, 16)).await.unwrap();
        pool.flush().await.unwrap();
        let kept = |usage: &Usage| usage.free_bytes;
        assert_eq!(kept(&pool.usage()), kept(&before) - 16 * 4096, "the old blocks wait");
        trace.take();
        env.sleep(Duration::from_secs(3)).await;
        assert_eq!(kept(&pool.usage()), kept(&before), "the old blocks are free");
        let events = trace.take();
        let writes = events.iter().filter(|event| matches!(event, Event::Write { .. })).count();
        assert_eq!((writes, events.len()), (1, 2), "one record and one flush");
        env.sleep(Duration::from_secs(60)).await;
        assert!(trace.take().is_empty(), "an idle pool writes nothing");
        drop((web, pool));
        let pool = open(&env, &disk).await.unwrap();
        let web = find(&pool, "web").await;
        let expected: Vec<u64> = (50..66).collect();
        assert_eq!(stamps(&env, &pool, &web, 16).await.unwrap(), expected);
    });
}
