//! A pool on one disk with damaged nodes: all but the range of the node goes on.

use std::cell::RefCell;
use std::rc::Rc;

use block::{Env, ErrorKind};
use pool::live::{Options, Pool};
use sim::SimWorld;
use testkit::recorded::{Disk, Trace};

use crate::scene::{
    BLOCKS, OPTIONS, POOL, blank, block_on, bytes, find, geometry, make, name, open, stamps,
    version,
};

const SIZE: u64 = BLOCKS * 4096;

/// Line of the first vdisk of a pool, as nodes have it.
const FIRST: u64 = 1 << 48 | 1;

/// Overwrites the nodes of the trees of runs of a line.
fn damage(disk: &Disk, line: u64) -> usize {
    let mut count = 0;
    for block in disk.bytes.borrow_mut().chunks_exact_mut(4096) {
        if block.starts_with(b"CNOD") && block[8..16] == line.to_le_bytes() {
            block[100] ^= 0xff;
            count += 1;
        }
    }
    count
}

async fn write(env: &Env, pool: &Pool, vdisk: &str, block: u64, stamp: u64) {
    let head = find(pool, vdisk).await;
    pool.write(&head, block, bytes(env, stamp, 4)).await.unwrap();
}

async fn part(env: &Env, pool: &Pool, text: &str, blocks: u64) -> block::Result<Vec<u64>> {
    let version = find(pool, text).await;
    stamps(env, pool, &version, blocks).await
}

/// Makes a pool with `web` and `other`, writes a checkpoint, and damages all nodes of `web`.
async fn damaged(env: &Env, disk: &Rc<Disk>) -> Pool {
    make(env, disk).await;
    let pool = open(env, disk).await.unwrap();
    pool.create(&name("web"), SIZE).await.unwrap();
    pool.create(&name("other"), SIZE).await.unwrap();
    write(env, &pool, "web", 0, 100).await;
    write(env, &pool, "web", 8, 200).await;
    write(env, &pool, "other", 0, 300).await;
    pool.snapshot(&[name("web")], None).await.unwrap();
    write(env, &pool, "web", 8, 250).await;
    pool.close().await.unwrap();
    drop(pool);
    assert!(damage(disk, FIRST) > 0);
    open(env, disk).await.unwrap()
}

#[test]
fn pool_with_damaged_map_serves_and_takes_all_else() {
    let world = SimWorld::new(1);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        let pool = damaged(&env, &disk).await;
        let error = part(&env, &pool, "web", 4).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(part(&env, &pool, "other", 4).await.unwrap(), [300, 301, 302, 303]);
        let told = Rc::new(RefCell::new(Vec::new()));
        let to = told.clone();
        pool.set_on_damage(Box::new(move |vdisk, error| {
            to.borrow_mut().push((vdisk.to_owned(), error.kind()));
        }));
        write(&env, &pool, "web", 0, 400).await;
        write(&env, &pool, "other", 0, 500).await;
        pool.checkpoint().await.unwrap();
        assert!(pool.damage()[0].starts_with("web: "), "{:?}", pool.damage());
        pool.checkpoint().await.unwrap();
        assert_eq!(*told.borrow(), [("web".to_owned(), ErrorKind::Corrupt)], "told once");
        // New blocks cover the damaged part.
        assert_eq!(part(&env, &pool, "web", 4).await.unwrap(), [400, 401, 402, 403]);
        part(&env, &pool, "web", 12).await.unwrap_err();
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        assert_eq!(part(&env, &pool, "web", 4).await.unwrap(), [400, 401, 402, 403]);
        assert_eq!(part(&env, &pool, "other", 4).await.unwrap(), [500, 501, 502, 503]);
        for round in 0..10 {
            write(&env, &pool, "web", round, 600 + 10 * round).await;
            pool.snapshot(&[name("web")], None).await.unwrap();
            pool.checkpoint().await.unwrap();
        }
        assert_eq!(part(&env, &pool, "web", 2).await.unwrap(), [600, 610]);
        let checked = pool.check().await.unwrap();
        assert!(!checked.damage.is_empty() && checked.leaked.is_none(), "{checked:?}");
        assert_eq!(checked.lost, []);
        let words = &checked.damage[0];
        assert!(words.starts_with("web: bytes 0 to 262144 of "), "{words}");
        assert!(checked.damage.iter().all(|words| words.starts_with("web: ")), "{checked:?}");
    });
}

#[test]
fn vdisk_with_damaged_map_is_rolled_back_and_removed() {
    let world = SimWorld::new(2);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        let pool = damaged(&env, &disk).await;
        pool.clone_of(&version("web@1"), &name("job")).await.unwrap();
        write(&env, &pool, "job", 20, 700).await;
        pool.roll_back(&version("web@1")).await.unwrap();
        pool.checkpoint().await.unwrap();
        pool.remove(&version("job")).await.unwrap();
        pool.remove(&version("web")).await.unwrap();
        for _ in 0..4 {
            pool.checkpoint().await.unwrap();
            env.sleep(std::time::Duration::from_secs(2)).await;
        }
        assert_eq!(part(&env, &pool, "other", 4).await.unwrap(), [300, 301, 302, 303]);
        write(&env, &pool, "other", 0, 800).await;
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        assert_eq!(part(&env, &pool, "other", 4).await.unwrap(), [800, 801, 802, 803]);
        assert_eq!(pool.vdisks("", 10).await.unwrap().len(), 1);
    });
}

#[test]
fn pool_without_a_flushed_record_is_read_or_opened_with_accepted_loss() {
    let world = SimWorld::new(3);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make(&env, &disk).await;
        let pool = open(&env, &disk).await.unwrap();
        pool.create(&name("web"), SIZE).await.unwrap();
        pool.create(&name("other"), SIZE).await.unwrap();
        for (vdisk, stamp) in
            [("web", 100), ("other", 200), ("web", 300), ("web", 400), ("web", 500)]
        {
            write(&env, &pool, vdisk, stamp / 100, stamp).await;
            pool.flush().await.unwrap();
        }
        drop(pool);
        // The last record proves those before it.
        let records: Vec<usize> = {
            let bytes = disk.bytes.borrow();
            let log = 1 << 20..2 << 20;
            log.step_by(512).filter(|at| bytes[*at..].starts_with(b"CAIRNLOG")).collect()
        };
        assert!(records.len() > 5, "{records:?}");
        let damaged = records[records.len() - 4];
        disk.bytes.borrow_mut()[damaged + 120] ^= 1;
        let (pool, lost) =
            Pool::open(&env, &disk.lower(), POOL, geometry(), OPTIONS).await.unwrap();
        let lost = lost.expect("a flushed record is missing");
        assert!(lost.why.contains("is missing, although all up to"), "{lost:?}");
        assert_eq!(lost.behind, Vec::<String>::new());
        let head = find(&pool, "web").await;
        let error = pool.write(&head, 0, bytes(&env, 1, 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        assert_eq!(stamps(&env, &pool, &head, 5).await.unwrap()[1..], [100, 101, 102, 103]);
        drop((head, pool));
        let accepting = Options { accept_loss: true, ..OPTIONS };
        let (pool, lost) =
            Pool::open(&env, &disk.lower(), POOL, geometry(), accepting).await.unwrap();
        assert_eq!(lost.expect("the record is still missing").behind, ["web"]);
        assert_eq!(part(&env, &pool, "web", 8).await.unwrap()[3..], [300, 400, 401, 402, 403]);
        assert_eq!(
            part(&env, &pool, "web", 9).await.unwrap()[8],
            0,
            "no record proves the last one"
        );
        assert_eq!(part(&env, &pool, "other", 4).await.unwrap(), [0; 4], "the lost record");
        write(&env, &pool, "other", 0, 900).await;
        drop(pool);
        let pool = open(&env, &disk).await.unwrap();
        assert_eq!(part(&env, &pool, "other", 1).await.unwrap(), [900]);
    });
}
