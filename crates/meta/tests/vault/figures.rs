//! Measures the vault's map of a disk of 1 TiB in a small cache, and the time of an opening after a kill.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use block::{ChildId, Core, Done, Env, Info, Lower, Op, Started};
use meta::alloc::{Allocator, Policy};
use meta::vault::{Array, Options, Shape, Spec, Vault};
use sim::SimWorld;
use sim::draw::Stream;
use zerocopy::little_endian::U64;

use crate::scene::block_on;

const PAGE: u64 = 4096;

/// A simulated disk of 5 GiB that uses memory only for its written pages.
#[derive(Default)]
pub struct Sparse {
    pages: RefCell<BTreeMap<u64, Box<[u8]>>>,
    reads: Cell<u64>,
}

impl Core for Sparse {
    fn start(&self, op: &mut Op) -> Started {
        let mut pages = self.pages.borrow_mut();
        match op {
            Op::Read { range, into, .. } => {
                self.reads.set(self.reads.get() + 1);
                for (page, into) in
                    (range.start()..).step_by(4096).zip(into.write().chunks_mut(4096))
                {
                    match pages.get(&(page / PAGE)) {
                        Some(bytes) => into.copy_from_slice(bytes),
                        None => into.fill(0),
                    }
                }
            }
            Op::Write { range, data, .. } => {
                for (page, from) in (range.start()..).step_by(4096).zip(data.read().chunks(4096)) {
                    pages.insert(page / PAGE, from.into());
                }
            }
            Op::WriteZeroes { range, .. } => {
                let zeroed = range.start() / PAGE..range.end() / PAGE;
                pages.retain(|page, _| !zeroed.contains(page));
            }
            Op::Flush => {}
            _ => unreachable!("a vault does not do that here"),
        }
        Started::Done(Ok(()))
    }

    fn poll(&self, _: ChildId, _: &mut Context<'_>) -> Poll<Done> {
        unreachable!("everything is done at once")
    }

    fn abandon(&self, _: ChildId) {}
}

/// Number of blocks of 4 KiB in 1 TiB.
const BLOCKS: u64 = 1 << 28;

/// Bytes of the vault's disk. 2^28 records of 8 bytes need 528,416 pages, each with 8 KiB on the disk.
const DISK_BYTES: u64 = 5 << 30;

const CACHE_BYTES: usize = 64 << 20;

#[allow(clippy::disallowed_methods, reason = "it measures real time")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let result = work();
    (result, begun.elapsed())
}

async fn open(env: &Env, lower: &Lower) -> Vault {
    let options = Options { cache_bytes: CACHE_BYTES, ..Options::default() };
    Vault::open(env, vec![Some(lower.clone())], &options).await.unwrap()
}

async fn look_up(map: &Array<U64>, times: u64, mut place: impl FnMut() -> u64) {
    for _ in 0..times {
        map.get(place()).await.unwrap();
    }
}

/// Fills the vault's log to one half, which is as far as possible before a checkpoint begins.
async fn fill_log(vault: &Vault) {
    vault.flush().await.unwrap();
    let mut transaction = vault.begin();
    let id = transaction.create(&Spec::array::<[u8; 4000]>("other", 0, 100)).unwrap();
    vault.commit(transaction).await.unwrap();
    let array = Array::<[u8; 4000]>::new(vault, id);
    let (checkpoints, mut used) = (vault.counters().checkpoints, 0);
    while used + 500_000 < vault.geometry().log_bytes / 2 {
        let mut transaction = vault.begin();
        for record in 0..100 {
            array.set(&mut transaction, record, &[7; 4000]).unwrap();
        }
        vault.commit(transaction).await.unwrap();
        used += 100 * 4024 + PAGE;
    }
    assert_eq!(vault.counters().checkpoints, checkpoints, "all of it is to be replayed");
}

#[test]
fn vault_map_of_one_tebibyte_runs_in_64_mib_cache() {
    let (world, random) = (SimWorld::new(1), Stream::new(1, "places", 0));
    let env = world.env();
    let lower =
        Lower::new(Rc::<Sparse>::default(), 0, Info::disk(DISK_BYTES, 4096), "large".into());
    let map = block_on(&world, async {
        Vault::format(&env, std::slice::from_ref(&lower), Shape::default()).await.unwrap();
        let vault = open(&env, &lower).await;
        let mut transaction = vault.begin();
        let id = transaction.create(&Spec::array::<U64>("map", 0, BLOCKS)).unwrap();
        vault.commit(transaction).await.unwrap();
        id
    });
    let vault = block_on(&world, open(&env, &lower));
    let array = Array::<U64>::new(&vault, map);
    // The test changes more pages than the cache holds, all over the map.
    let changes = 40_000;
    let written = timed(|| {
        block_on(&world, async {
            for first in (0..changes).step_by(100) {
                let mut transaction = vault.begin();
                for n in first..first + 100 {
                    array.set(&mut transaction, n * 6700, &U64::new(n + 1)).unwrap();
                }
                vault.commit(transaction).await.unwrap();
            }
        });
    });
    let cached = timed(|| block_on(&world, look_up(&array, 100_000, || random.below(400_000))));
    let anywhere = timed(|| block_on(&world, look_up(&array, 20_000, || random.below(BLOCKS))));
    block_on(&world, async {
        for n in 0..changes {
            assert_eq!(array.get(n * 6700).await.unwrap(), U64::new(n + 1));
        }
    });
    let counters = vault.counters();
    let memory = counters.pages_peak * PAGE as usize;
    assert!(memory <= CACHE_BYTES, "{memory} bytes");
    block_on(&world, fill_log(&vault));
    drop((vault, array));
    // This is a kill: the vault was not closed.
    let (vault, restart) = timed(|| block_on(&world, open(&env, &lower)));
    let log_bytes = vault.geometry().log_bytes / 2;
    let most = Duration::from_secs(2) + Duration::from_secs_f64(log_bytes as f64 / 200e6);
    println!(
        "a map of {BLOCKS} records: {} pages in memory at most ({} MiB), {} checkpoints\n\
         {:.2} us for each of {changes} changes, 100 in a transaction\n\
         {:.2} us for a lookup in the cache, {:.2} us anywhere in the map, without the disk's time\n\
         {restart:?} for a start after a kill, with {log_bytes} bytes of log to replay",
        counters.pages_peak,
        memory >> 20,
        counters.checkpoints,
        written.1.as_secs_f64() * 1e6 / changes as f64,
        cached.1.as_secs_f64() * 1e6 / 100_000.0,
        anywhere.1.as_secs_f64() * 1e6 / 20_000.0,
    );
    assert!(restart < most, "{restart:?}; at most {most:?}");
}

/// The test maps random blocks of a map of 1 TiB to newly allocated data blocks.
#[test]
fn allocator_for_one_tebibyte_runs_in_64_mib_cache() {
    let (world, random) = (SimWorld::new(1), Stream::new(1, "blocks", 0));
    let env = world.env();
    let info = Info::disk(DISK_BYTES, 4096);
    let disk = Rc::<Sparse>::default();
    let lower = Lower::new(disk.clone(), 0, info, "large".into());
    let (vault, all) = block_on(&world, async {
        Vault::format(&env, std::slice::from_ref(&lower), Shape::default()).await.unwrap();
        let vault = open(&env, &lower).await;
        let mut transaction = vault.begin();
        Allocator::create(&mut transaction, "a", 0, BLOCKS, BLOCKS).unwrap();
        vault.commit(transaction).await.unwrap();
        let all = Allocator::open(&vault, "a", 0, Policy::FirstFree).unwrap();
        // The front is full: the allocator must not search it twice.
        for _ in 0..100 {
            let mut transaction = vault.begin();
            all.take(&mut transaction, BLOCKS / 200).await.unwrap();
            vault.commit(transaction).await.unwrap();
        }
        (vault, all)
    });
    let (placed, took) = timed(|| {
        block_on(&world, async {
            let mut placed = 0;
            for _ in 0..1000 {
                let mut transaction = vault.begin();
                let places = all.take(&mut transaction, 32).await.unwrap();
                for place in places.first..places.first + places.count {
                    all.put(&mut transaction, random.below(BLOCKS), Some(place)).unwrap();
                }
                vault.commit(transaction).await.unwrap();
                placed += places.count;
            }
            placed
        })
    });
    let counters = vault.counters();
    let memory = counters.pages_peak * PAGE as usize;
    println!(
        "{placed} blocks placed at random in a map of {BLOCKS}, half of whose places are taken: {:.2} us \
         for each, {} MiB at most",
        took.as_secs_f64() * 1e6 / placed as f64,
        memory >> 20
    );
    assert!(memory <= CACHE_BYTES && placed == 32_000, "{memory} bytes, {placed} blocks");
    // If each search read half of the bitmap, the test would take minutes.
    assert!(took < Duration::from_secs(60), "{took:?}");
    block_on(&world, async {
        vault.close().await.unwrap();
        drop(all);
        let vault = open(&env, &lower).await;
        let all = Allocator::open(&vault, "a", 0, Policy::FirstFree).unwrap();
        let before = disk.reads.get();
        let taken = BLOCKS / 200 * 100 + 32_000;
        assert_eq!(all.taken().await.unwrap(), taken);
        let reads = disk.reads.get() - before;
        // One page of the bitmap, and those of the map of pages above it.
        assert!(reads <= 4, "the number of taken blocks took {reads} reads");
    });
}
