//! A pool on a device that has grown.

use std::rc::Rc;

use block::{Env, ErrorKind};
use pool::geometry::Geometry;
use pool::live::{Options, Pool};
use sim::SimWorld;
use testkit::recorded::{Disk, Trace};

use crate::scene::{
    DISK_BYTES, OPTIONS, POOL, assert_whole, blank, block_on, bytes, find, geometry, make, name,
    open, stamps,
};

const GROWN_BYTES: usize = 48 << 20;

/// Returns a larger disk with the same bytes at its front.
fn grown(disk: &Disk) -> Rc<Disk> {
    let mut bytes = disk.bytes.borrow().clone();
    bytes.resize(GROWN_BYTES, 0);
    Disk::new(0, bytes, &Trace::default())
}

async fn open_as(env: &Env, disk: &Rc<Disk>, labels: Geometry) -> block::Result<Pool> {
    Ok(Pool::open(env, &disk.lower(), POOL, labels, OPTIONS).await?.0)
}

/// Makes a small pool with 1000 to 1099 in `web`.
async fn small(env: &Env) -> Rc<Disk> {
    let disk = blank(&Trace::default());
    make(env, &disk).await;
    let pool = open(env, &disk).await.unwrap();
    assert_eq!(pool.bytes(), DISK_BYTES as u64);
    pool.create(&name("web"), 1 << 30).await.unwrap();
    let head = find(&pool, "web").await;
    pool.write(&head, 0, bytes(env, 1000, 100)).await.unwrap();
    drop(head);
    pool.close().await.unwrap();
    disk
}

#[test]
fn pool_uses_all_of_grown_device() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let small = small(&env).await;
        let before = open(&env, &small).await.unwrap().usage();
        let disk = grown(&small);
        let read_only = Options { read_only: true, ..OPTIONS };
        let (pool, _) = Pool::open(&env, &disk.lower(), POOL, geometry(), read_only).await.unwrap();
        assert_eq!(pool.bytes(), DISK_BYTES as u64, "open for reading, it does not grow");
        drop(pool);
        let pool = open_as(&env, &disk, geometry()).await.unwrap();
        assert_eq!(pool.bytes(), GROWN_BYTES as u64);
        let usage = pool.usage();
        let more = usage.free_bytes + usage.kept_bytes - before.free_bytes - before.kept_bytes;
        assert!(more >= 30 << 20, "{more} bytes more");
        // More than the small pool could take.
        let head = find(&pool, "web").await;
        for n in 1..60 {
            pool.write(&head, 100 * n, bytes(&env, 1000 + 100 * n, 100)).await.unwrap();
        }
        let expected: Vec<u64> = (1000..7000).collect();
        assert_eq!(stamps(&env, &pool, &head, 6000).await.unwrap(), expected);
        drop(head);
        assert_whole(&pool.check().await.unwrap(), "");
        drop(pool);
        // The header counts before the labels, and after them.
        for labels in [geometry(), geometry().grown(GROWN_BYTES as u64).unwrap()] {
            let pool = open_as(&env, &disk, labels).await.unwrap();
            assert_eq!(pool.bytes(), GROWN_BYTES as u64);
            let head = find(&pool, "web").await;
            assert_eq!(stamps(&env, &pool, &head, 6000).await.unwrap(), expected);
            assert_whole(&pool.check().await.unwrap(), "");
        }
    });
}

#[test]
fn pool_image_from_before_its_growth_is_refused() {
    let world = SimWorld::new(2);
    let env = world.env();
    block_on(&world, async {
        let small = small(&env).await;
        let old = grown(&small);
        let labels = geometry().grown(GROWN_BYTES as u64).unwrap();
        let error = open_as(&env, &old, labels).await.err().expect("an older image");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("the label and the header of the pool differ"), "{error}");
        let error = open_as(&env, &small, labels).await.err().expect("a truncated pool");
        assert!(error.message().contains("it is truncated"), "{error}");
    });
}
