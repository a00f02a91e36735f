//! A pool on a mirror: bytes that are wrong on one member are read from the other one, and written again.

use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, ErrorKind, Lower};
use kind::Value;
use pool::live::{Options, Pool};
use sim::draw::Stream;
use sim::{Assembly, DiskConfig, Profile, SimDisk, SimWorld};

use crate::scene::{
    BLOCKS, DISK_BYTES, OPTIONS, POOL, assert_whole, block_on, bytes, find, geometry, make_on,
    name, stamps, version,
};

const SIZE: u64 = BLOCKS * 4096;

/// Bytes of the near area, in front of the log.
const AREA_BYTES: u64 = 1 << 20;

/// A mirror of two simulated disks.
struct Mirrored {
    world: SimWorld,
    disks: [Rc<SimDisk>; 2],
    graph: Assembly,
    lower: Lower,
}

impl Mirrored {
    fn new(seed: u64) -> Self {
        let world = SimWorld::new(seed);
        let mut graph =
            Assembly::new(&world.env(), kinds::REGISTRY, false, Stream::new(seed, "order", 0));
        let config = || DiskConfig::new(DISK_BYTES as u64, Profile::Native512);
        let disks = [0, 1].map(|n| SimDisk::new(&world, n, config()));
        let parts = [0, 1].map(|n| {
            let path = format!("/disk{n}");
            world.plug(&path, &disks[n]);
            graph.add("path", &[("path", Value::Text(path))], &[]).unwrap()
        });
        let trust = ("trust", Value::Text(graph.name(parts[0]).to_owned()));
        let mirror = graph.add("mirror", &[trust], &parts).unwrap();
        let lower = graph.lower(mirror);
        // The second disk gets the bytes of the first one.
        world.run(world.env().now().after(Duration::from_secs(60))).unwrap();
        Self { world, disks, graph, lower }
    }

    async fn open(&self, options: Options) -> Pool {
        let opened = Pool::open(&self.world.env(), &self.lower, POOL, geometry(), options).await;
        let (pool, lost) = opened.unwrap();
        assert_eq!(lost, None, "a flushed record is missing");
        pool
    }

    /// Overwrites all blocks of a disk that `is_chosen` chooses by their bytes. Returns their offsets.
    fn damage(&self, disk: usize, is_chosen: impl Fn(u64, &[u8]) -> bool) -> Vec<u64> {
        let mut damaged = Vec::new();
        for offset in (0..DISK_BYTES as u64).step_by(4096) {
            let range = ByteRange::new(offset, 4096).unwrap();
            if is_chosen(offset, &self.disks[disk].peek(range)) {
                self.disks[disk].overwrite(range, 0xee);
                damaged.push(offset);
            }
        }
        damaged
    }

    fn block(&self, disk: usize, offset: u64) -> Vec<u8> {
        self.disks[disk].peek(ByteRange::new(offset, 4096).unwrap())
    }
}

fn is_node(bytes: &[u8]) -> bool {
    bytes.starts_with(b"CNOD")
}

/// Whether a block has one of the stamps from 1000 to 1999 in each word.
fn is_data(bytes: &[u8]) -> bool {
    let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    (1000..2000).contains(&stamp) && bytes[4088..] == bytes[..8]
}

#[test]
fn damage_of_one_mirror_member_is_read_from_the_other_and_healed() {
    let mirrored = Mirrored::new(1);
    let env = mirrored.world.env();
    block_on(&mirrored.world, async {
        make_on(&env, &mirrored.lower).await;
        let pool = mirrored.open(OPTIONS).await;
        pool.create(&name("web"), SIZE).await.unwrap();
        let head = find(&pool, "web").await;
        pool.write(&head, 0, bytes(&env, 1000, 20)).await.unwrap();
        pool.snapshot(&[name("web")], None).await.unwrap();
        pool.write(&head, 10, bytes(&env, 1500, 20)).await.unwrap();
        drop(head);
        pool.close().await.unwrap();
        drop(pool);
        // Half of the data are wrong on one disk, the other half on the other disk, and so are the nodes.
        let half = |n: u64| move |offset: u64| offset / 4096 % 2 == n;
        let mut damaged = Vec::new();
        for disk in [0, 1] {
            let is_half = half(disk as u64);
            let is_chosen =
                |at: u64, bytes: &[u8]| is_half(at) && (is_data(bytes) || is_node(bytes));
            damaged.extend(mirrored.damage(disk, is_chosen).into_iter().map(|at| (disk, at)));
        }
        assert!(damaged.len() > 40, "{}", damaged.len());
        let mut expected: Vec<u64> = (1000..1010).chain(1500..1520).collect();
        expected.resize(BLOCKS as usize, 0);
        // Open for reading, the pool writes nothing.
        let read_only = Options { read_only: true, ..OPTIONS };
        let pool = mirrored.open(read_only).await;
        let head = find(&pool, "web").await;
        assert_eq!(stamps(&env, &pool, &head, BLOCKS).await.unwrap(), expected);
        for (disk, offset) in &damaged {
            assert_eq!(mirrored.block(*disk, *offset), [0xee; 4096]);
        }
        drop((head, pool));
        let pool = mirrored.open(OPTIONS).await;
        for _ in 0..6 {
            let head = find(&pool, "web").await;
            assert_eq!(stamps(&env, &pool, &head, BLOCKS).await.unwrap(), expected);
            let old = find(&pool, "web@1").await;
            let is = stamps(&env, &pool, &old, 20).await.unwrap();
            assert_eq!(is, (1000..1020).collect::<Vec<_>>());
        }
        assert_whole(&pool.check().await.unwrap(), "");
        let data =
            damaged.iter().filter(|(disk, offset)| is_data(&mirrored.block(1 - disk, *offset)));
        let mut healed = 0;
        for (disk, offset) in data {
            healed +=
                usize::from(mirrored.block(*disk, *offset) == mirrored.block(1 - disk, *offset));
        }
        assert!(healed > 10, "{healed} blocks are healed");
        drop(pool);
    });
    mirrored.graph.engine.abandon();
}

#[test]
fn damaged_log_on_one_mirror_member_is_read_from_the_other() {
    for disk in [0, 1] {
        let mirrored = Mirrored::new(2);
        let env = mirrored.world.env();
        block_on(&mirrored.world, async {
            make_on(&env, &mirrored.lower).await;
            let pool = mirrored.open(OPTIONS).await;
            pool.create(&name("web"), SIZE).await.unwrap();
            let head = find(&pool, "web").await;
            for round in 0..30 {
                pool.write(&head, round, bytes(&env, 1000 + round, 1)).await.unwrap();
                pool.flush().await.unwrap();
            }
            drop((head, pool));
            let log = AREA_BYTES..2 * AREA_BYTES;
            let is_record = |at: u64, bytes: &[u8]| log.contains(&at) && bytes != [0; 4096];
            assert!(mirrored.damage(disk, is_record).len() > 20);
            let pool = mirrored.open(OPTIONS).await;
            let head = find(&pool, "web").await;
            let is = stamps(&env, &pool, &head, 30).await.unwrap();
            assert_eq!(is, (1000..1030).collect::<Vec<_>>());
        });
        mirrored.graph.engine.abandon();
    }
}

#[test]
fn damaged_superblocks_on_one_mirror_member_are_read_from_the_other() {
    for disk in [0, 1] {
        let mirrored = Mirrored::new(4);
        let env = mirrored.world.env();
        block_on(&mirrored.world, async {
            make_on(&env, &mirrored.lower).await;
            let pool = mirrored.open(OPTIONS).await;
            pool.create(&name("web"), SIZE).await.unwrap();
            pool.close().await.unwrap();
            drop(pool);
            let far = geometry().far;
            let is_area = |at: u64, _: &[u8]| at < AREA_BYTES || at >= far;
            assert_eq!(mirrored.damage(disk, is_area).len(), 512);
            let pool = mirrored.open(OPTIONS).await;
            assert!(pool.find(&version("web")).await.unwrap().is_some());
        });
        mirrored.graph.engine.abandon();
    }
}

#[test]
fn damage_of_both_mirror_members_is_error_of_that_range() {
    let mirrored = Mirrored::new(3);
    let env = mirrored.world.env();
    block_on(&mirrored.world, async {
        make_on(&env, &mirrored.lower).await;
        let pool = mirrored.open(OPTIONS).await;
        pool.create(&name("web"), SIZE).await.unwrap();
        let head = find(&pool, "web").await;
        pool.write(&head, 0, bytes(&env, 1000, 20)).await.unwrap();
        let is_chosen =
            |_: u64, bytes: &[u8]| is_data(bytes) && bytes[..8] == 1007_u64.to_le_bytes();
        assert_eq!(mirrored.damage(0, is_chosen).len(), 1);
        assert_eq!(mirrored.damage(1, is_chosen).len(), 1);
        let error = stamps(&env, &pool, &head, 20).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("block 7 of vdisk \"web\""), "{error}");
        assert_eq!(stamps(&env, &pool, &head, 7).await.unwrap().len(), 7);
        assert!(pool.find(&version("web")).await.unwrap().is_some());
    });
    mirrored.graph.engine.abandon();
}
