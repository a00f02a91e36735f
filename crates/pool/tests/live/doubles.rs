//! A pool on one disk: inner nodes and tables have second copies.

use std::collections::BTreeMap;
use std::rc::Rc;

use block::Env;
use pool::live::{Checked, Options, Pool};
use sim::SimWorld;
use testkit::recorded::{Disk, Trace};

use crate::scene::{
    OPTIONS, POOL, assert_whole, blank, block_on, bytes, find, geometry, make, name, open, stamps,
    version,
};

/// Writes of a vdisk, so many that its trees have inner nodes.
const WRITES: u64 = 600;

const EXTENT_BYTES: usize = 1 << 20;

/// Returns the offsets of the nodes on a disk by their bytes: first those with two copies, then those with one.
fn nodes(disk: &Disk) -> (Vec<[usize; 2]>, Vec<usize>) {
    let mut copies: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for (n, block) in disk.bytes.borrow().chunks_exact(4096).enumerate() {
        if block.starts_with(b"CNOD") {
            copies.entry(block.to_vec()).or_default().push(n * 4096);
        }
    }
    let (mut doubles, mut singles) = (Vec::new(), Vec::new());
    for (bytes, offsets) in copies {
        let (kind, level) = (bytes[5], bytes[6]);
        match offsets[..] {
            [one] => {
                assert!(level == 0 && kind != 5, "a node of kind {kind}, level {level}");
                singles.push(one);
            }
            [one, other] => {
                assert!(level > 0 || kind == 5, "two nodes of kind {kind}, level {level}");
                doubles.push([one, other]);
            }
            _ => panic!("{} equal nodes", offsets.len()),
        }
    }
    (doubles, singles)
}

async fn make_full(env: &Env, disk: &Rc<Disk>) {
    make(env, disk).await;
    let pool = open(env, disk).await.unwrap();
    pool.create(&name("web"), 1 << 30).await.unwrap();
    let head = find(&pool, "web").await;
    for n in 0..WRITES {
        pool.write(&head, 2 * n, bytes(env, 1000 + n, 1)).await.unwrap();
    }
    pool.snapshot(&[name("web")], None).await.unwrap();
    pool.write(&head, 0, bytes(env, 5000, 1)).await.unwrap();
    drop(head);
    pool.close().await.unwrap();
}

async fn assert_content(env: &Env, pool: &Pool) {
    let mut expected: Vec<u64> = (0..WRITES).flat_map(|n| [1000 + n, 0]).collect();
    let old = find(pool, "web@1").await;
    assert_eq!(stamps(env, pool, &old, 2 * WRITES).await.unwrap(), expected);
    expected[0] = 5000;
    let head = find(pool, "web").await;
    assert_eq!(stamps(env, pool, &head, 2 * WRITES).await.unwrap(), expected);
}

fn damage(disk: &Disk, offsets: impl Iterator<Item = usize>) {
    offsets.for_each(|at| disk.bytes.borrow_mut()[at + 200] ^= 0x55);
}

async fn check(env: &Env, disk: &Rc<Disk>, read_only: bool) -> Checked {
    let options = Options { read_only, ..OPTIONS };
    let (pool, _) = Pool::open(env, &disk.lower(), POOL, geometry(), options).await.unwrap();
    pool.check().await.unwrap()
}

#[test]
fn either_copy_of_inner_nodes_and_tables_is_enough() {
    for damaged in [0, 1] {
        let world = SimWorld::new(1);
        let (env, disk) = (world.env(), blank(&Trace::default()));
        block_on(&world, async {
            make_full(&env, &disk).await;
            let (doubles, singles) = nodes(&disk);
            assert!(doubles.len() > 15 && singles.len() > 2, "{} {}", doubles.len(), singles.len());
            for [one, other] in &doubles {
                assert_ne!(one / EXTENT_BYTES, other / EXTENT_BYTES, "both are in one extent");
            }
            damage(&disk, doubles.iter().map(|copies| copies[damaged]));
            let pool = open(&env, &disk).await.unwrap();
            assert_content(&env, &pool).await;
            pool.clone_of(&version("web@1"), &name("job")).await.unwrap();
            pool.checkpoint().await.unwrap();
            assert_whole(&Checked { copies: Vec::new(), ..pool.check().await.unwrap() }, "");
            assert_whole(&pool.check().await.unwrap(), "after a check that writes");
            pool.remove(&version("job")).await.unwrap();
            assert_content(&env, &pool).await;
            pool.close().await.unwrap();
            assert_whole(&check(&env, &disk, true).await, "after its close");
        });
    }
}

#[test]
fn check_reports_damaged_copies_and_writes_them_again() {
    let world = SimWorld::new(2);
    let (env, disk) = (world.env(), blank(&Trace::default()));
    block_on(&world, async {
        make_full(&env, &disk).await;
        let (doubles, _) = nodes(&disk);
        let before = disk.bytes.borrow().clone();
        damage(&disk, doubles.iter().map(|copies| copies[1]));
        let wrong = disk.bytes.borrow().clone();
        let checked = check(&env, &disk, true).await;
        assert_whole(&Checked { copies: Vec::new(), ..checked.clone() }, "without its copies");
        let web = checked.copies.iter().filter(|words| words.starts_with("web: a copy")).count();
        let tables = checked.copies.iter().filter(|words| words.starts_with("the table ")).count();
        assert!(web > 0 && tables > 5, "{:?}", checked.copies);
        assert!(*disk.bytes.borrow() == wrong, "a check of a stopped pool writes nothing");
        let pool = open(&env, &disk).await.unwrap();
        assert!(!pool.check().await.unwrap().copies.is_empty());
        drop(pool);
        let healed = disk.bytes.borrow();
        let is_healed = |at: usize| healed[at..at + 4096] == before[at..at + 4096];
        let count = doubles.iter().filter(|[_, second]| is_healed(*second)).count();
        assert!(count >= web, "{count} copies are healed");
    });
}
