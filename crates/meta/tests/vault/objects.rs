//! Tests of the objects of a vault, without crashes.

use std::pin::Pin;
use std::time::Duration;

use block::{Env, ErrorKind, all};
use meta::vault::{Array, Bitmap, LAZY_WITHIN, Log, ObjectId, Options, Shape, Spec, Vault};
use sim::SimWorld;
use zerocopy::little_endian::{U32, U64};

use crate::scene::{self, SMALL, block_on, some};
use testkit::recorded::{Disk, Event, Trace};

async fn empty(env: &Env) -> (Vault, Vec<std::rc::Rc<Disk>>, Trace) {
    let trace = Trace::default();
    let disks = scene::blank(1, &trace);
    Vault::format(env, &scene::lowers(&disks), scene::SHAPE).await.unwrap();
    let vault = Vault::open(env, some(&disks), &SMALL).await.unwrap();
    (vault, disks, trace)
}

async fn made(vault: &Vault, spec: &Spec) -> ObjectId {
    let mut transaction = vault.begin();
    let id = transaction.create(spec).unwrap();
    vault.commit(transaction).await.unwrap();
    id
}

#[test]
fn vault_transaction_creates_and_fills_object_at_once() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, _) = empty(&env).await;
        let mut transaction = vault.begin();
        let id = transaction.create(&Spec::array::<U32>("a", 0, 100)).unwrap();
        let array = Array::<U32>::new(&vault, id);
        array.set(&mut transaction, 99, &U32::new(7)).unwrap();
        assert!(vault.find("a", 0).is_none(), "nothing of it is seen yet");
        vault.commit(transaction).await.unwrap();
        assert_eq!(array.get(99).await.unwrap(), U32::new(7));
        drop((vault, array));
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        let array = Array::<U32>::new(&vault, vault.find("a", 0).unwrap());
        assert_eq!(array.get(99).await.unwrap(), U32::new(7));
        assert_eq!(array.get(100).await.unwrap_err().kind(), ErrorKind::OutOfRange);
        assert_eq!(
            Array::<U64>::new(&vault, id).get(0).await.unwrap_err().kind(),
            ErrorKind::Invalid,
            "its records have another size"
        );
    });
}

#[test]
fn vault_array_sets_records_across_pages_in_one_transaction() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, ..) = empty(&env).await;
        let id = made(&vault, &Spec::array::<U64>("a", 0, 1100)).await;
        let array = Array::<U64>::new(&vault, id);
        let records: Vec<_> = (1..=700).map(U64::new).collect();
        let mut transaction = vault.begin();
        array.set_many(&mut transaction, 400, &records).unwrap();
        let beyond = array.set_many(&mut vault.begin(), 401, &records);
        assert_eq!(beyond.unwrap_err().kind(), ErrorKind::OutOfRange);
        vault.commit(transaction).await.unwrap();
        let mut found = vec![U64::ZERO; 1100];
        array.get_many(0, &mut found).await.unwrap();
        assert!(found[..400].iter().all(|record| *record == U64::ZERO));
        assert_eq!(found[400..], records);
    });
}

#[test]
fn dropped_vault_transaction_releases_reserved_pages_and_role() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, ..) = empty(&env).await;
        let free = vault.counters().free_pages;
        let mut transaction = vault.begin();
        transaction.create(&Spec::bitmap("a", 0, 100_000)).unwrap();
        assert_eq!(
            vault.begin().create(&Spec::bitmap("a", 0, 8)).unwrap_err().kind(),
            ErrorKind::InUse,
            "the role is promised"
        );
        drop(transaction);
        assert_eq!(vault.counters().free_pages, free);
        made(&vault, &Spec::bitmap("a", 0, 8)).await;
    });
}

#[test]
fn vault_never_returns_content_of_deleted_object() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, _) = empty(&env).await;
        let free = vault.counters().free_pages;
        let id = made(&vault, &Spec::array::<U64>("a", 0, 2000)).await;
        let array = Array::<U64>::new(&vault, id);
        let mut transaction = vault.begin();
        (0..200).for_each(|n| array.set(&mut transaction, n * 9, &U64::new(n + 1)).unwrap());
        vault.commit(transaction).await.unwrap();
        vault.flush().await.unwrap();
        let mut transaction = vault.begin();
        transaction.delete_all_of("a").unwrap();
        let mut other = vault.begin();
        array.set(&mut other, 1, &U64::new(1)).unwrap();
        vault.commit(transaction).await.unwrap();
        assert_eq!(vault.commit(other).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(vault.counters().free_pages, free);
        let new = made(&vault, &Spec::array::<U64>("b", 0, 2000)).await;
        assert!(new > id, "numbers are never used again");
        let mut seen = vec![U64::ZERO; 2000];
        Array::<U64>::new(&vault, new).get_many(0, &mut seen).await.unwrap();
        assert!(seen.iter().all(|record| *record == U64::ZERO));
        drop((vault, array));
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        Array::<U64>::new(&vault, new).get_many(0, &mut seen).await.unwrap();
        assert!(seen.iter().all(|record| *record == U64::ZERO));
        assert!(vault.owned_by("a").is_empty());
    });
}

#[test]
fn vault_object_keeps_content_after_growth() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, _) = empty(&env).await;
        let id = made(&vault, &Spec::array::<U64>("a", 0, 500)).await;
        made(&vault, &Spec::bitmap("b", 0, 100)).await;
        let array = Array::<U64>::new(&vault, id);
        let mut transaction = vault.begin();
        array.set(&mut transaction, 499, &U64::new(3)).unwrap();
        transaction.grow(id, 3000).unwrap();
        array.set(&mut transaction, 2999, &U64::new(4)).unwrap();
        vault.commit(transaction).await.unwrap();
        drop((vault, array));
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        assert_eq!(vault.object(id).unwrap().runs.len(), 2, "there was another object behind it");
        let array = Array::<U64>::new(&vault, id);
        assert_eq!(array.get(499).await.unwrap(), U64::new(3));
        assert_eq!(array.get(2999).await.unwrap(), U64::new(4));
        assert_eq!(array.get(1500).await.unwrap(), U64::ZERO);
    });
}

#[test]
fn concurrent_vault_commits_share_log_records() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, _) = empty(&env).await;
        let id = made(&vault, &Spec::array::<U64>("a", 0, 100)).await;
        let before = (vault.counters(), disks[0].flushes.get());
        for n in 0..50 {
            let vault = vault.clone();
            env.spawn("one of many", async move {
                let mut transaction = vault.begin();
                let array = Array::<U64>::new(&vault, id);
                array.set(&mut transaction, n, &U64::new(n)).unwrap();
                vault.commit(transaction).await.unwrap();
            });
        }
        while vault.counters().transactions < before.0.transactions + 50 {
            env.give_way().await;
        }
        let records = vault.counters().records - before.0.records;
        assert!(records < 40, "{records} records for 50 transactions");
        let flushes = disks[0].flushes.get() - before.1;
        assert!(flushes <= records + 2 * (vault.counters().checkpoints), "{flushes} flushes");
    });
}

#[test]
fn vault_makes_advisory_changes_durable_within_five_seconds() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = empty(&env).await;
        let id = made(&vault, &Spec::array::<U64>("a", 0, 100).advisory()).await;
        let plain = made(&vault, &Spec::array::<U64>("a", 1, 100)).await;
        let array = Array::<U64>::new(&vault, id);
        let mut transaction = vault.begin();
        Array::<U64>::new(&vault, plain).set(&mut transaction, 0, &U64::new(1)).unwrap();
        assert_eq!(vault.note(transaction).await.unwrap_err().kind(), ErrorKind::Invalid);
        env.sleep(Duration::from_secs(60)).await;
        trace.take();
        for n in 0..10 {
            let mut transaction = vault.begin();
            array.set(&mut transaction, n, &U64::new(9)).unwrap();
            vault.note(transaction).await.unwrap();
        }
        assert_eq!(array.get(9).await.unwrap(), U64::new(9));
        assert!(trace.take().is_empty(), "nothing was written for it");
        // The commit of another object makes them durable without a flush of their own.
        let mut transaction = vault.begin();
        Array::<U64>::new(&vault, plain).set(&mut transaction, 0, &U64::new(1)).unwrap();
        vault.commit(transaction).await.unwrap();
        let flushes = trace.take().iter().filter(|e| matches!(e, Event::Flush { .. })).count();
        assert_eq!(flushes, 1);
        let image = disks[0].bytes.borrow().clone();
        let mut transaction = vault.begin();
        array.set(&mut transaction, 20, &U64::new(8)).unwrap();
        vault.note(transaction).await.unwrap();
        env.sleep(LAZY_WITHIN + Duration::from_millis(1)).await;
        assert!(LAZY_WITHIN < Duration::from_secs(5));
        let later = disks[0].bytes.borrow().clone();
        for (image, place, value) in [(image, 9, 9), (later, 20, 8)] {
            let again = [Disk::new(0, image, &trace)];
            let vault = Vault::open(&env, some(&again), &SMALL).await.unwrap();
            let array = Array::<U64>::new(&vault, id);
            assert_eq!(array.get(place).await.unwrap(), U64::new(value));
        }
    });
}

#[test]
fn vault_bitmap_sets_counts_and_finds_bits_across_pages() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, ..) = empty(&env).await;
        let id = made(&vault, &Spec::bitmap("a", 0, 100_000)).await;
        let bits = Bitmap::new(&vault, id);
        let mut transaction = vault.begin();
        // The run crosses the boundary of a page, which is at 32448.
        bits.put(&mut transaction, 3, 90_000, true).unwrap();
        bits.put(&mut transaction, 32_446, 5, false).unwrap();
        bits.put(&mut transaction, 70_000, 3, false).unwrap();
        vault.commit(transaction).await.unwrap();
        assert_eq!(bits.count().await.unwrap(), 90_000 - 8);
        assert_eq!(bits.find_back(90_003).await.unwrap(), Some(70_002));
        assert_eq!(bits.find_back(70_000).await.unwrap(), Some(32_450));
        assert_eq!(bits.find_back(32_448).await.unwrap(), Some(32_447));
        assert_eq!(bits.find_back(3).await.unwrap(), Some(2));
        let find = async |from, wanted| bits.find_clear(from, wanted).await.unwrap();
        assert_eq!(find(0, 3).await, Some(0));
        assert_eq!(find(0, 4).await, Some(32_446));
        assert_eq!(find(4, 5).await, Some(32_446));
        assert_eq!(find(32_447, 5).await, Some(90_003));
        assert_eq!(find(0, 9_997).await, Some(90_003));
        assert_eq!(find(0, 9_998).await, None);
        assert!(bits.test(90_002).await.unwrap() && !bits.test(90_003).await.unwrap());
        assert_eq!(bits.test(100_000).await.unwrap_err().kind(), ErrorKind::OutOfRange);
    });
}

#[test]
fn vault_array_keeps_highest_of_concurrent_raises() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, _) = empty(&env).await;
        let array = Array::<U64>::new(&vault, made(&vault, &Spec::array::<U64>("a", 0, 600)).await);
        let raise = async |index, least| {
            let mut transaction = vault.begin();
            array.raise(&mut transaction, index, least).unwrap();
            vault.commit(transaction).await.unwrap();
        };
        let raises: Vec<Pin<Box<dyn Future<Output = ()>>>> =
            [7, 9, 8].iter().map(|least| Box::pin(raise(599, *least)) as _).collect();
        all(raises).await;
        raise(599, 3).await;
        raise(0, 1 << 40).await;
        let id = vault.find("a", 0).unwrap();
        let error = array.raise(&mut vault.begin(), 600, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
        drop((vault, array));
        // The opening replays the raises.
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        let array = Array::<U64>::new(&vault, id);
        for (index, value) in [(599, 9), (0, 1 << 40), (1, 0)] {
            assert_eq!(array.get(index).await.unwrap().get(), value, "number {index}");
        }
    });
}

#[test]
fn vault_log_keeps_entries_of_concurrent_transactions_in_order() {
    for seed in 0..30 {
        let world = SimWorld::new(seed);
        let env = world.env();
        block_on(&world, async {
            let (vault, disks, _) = empty(&env).await;
            let id = made(&vault, &Spec::log("a", 0, 10_000)).await;
            let log = std::rc::Rc::new(Log::open(&vault, id).await.unwrap());
            for n in 0..20_u8 {
                let (vault, log) = (vault.clone(), log.clone());
                env.spawn("adds", async move {
                    let mut transaction = vault.begin();
                    log.append(&mut transaction, &[n; 30]).await.unwrap();
                    log.append(&mut transaction, &[n; 31]).await.unwrap();
                    if n % 5 != 4 {
                        vault.commit(transaction).await.unwrap();
                    }
                });
            }
            env.sleep(Duration::from_secs(1)).await;
            drop((vault, log));
            let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
            let log = Log::open(&vault, id).await.unwrap();
            let (mut at, mut seen) = (log.first(), Vec::new());
            while let Some(entry) = log.get(at).await.unwrap() {
                at = entry.next;
                seen.push(entry.bytes);
            }
            assert_eq!(seen.len(), 32, "those that were dropped are not there");
            assert!(seen.chunks(2).all(|two| two[0][..] == two[1][1..]));
        });
    }
}

#[test]
fn vault_returns_error_kind_for_exceeded_limit() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = empty(&env).await;
        let id = made(&vault, &Spec::array::<[u8; 4000]>("a", 0, 12)).await;
        let array = Array::<[u8; 4000]>::new(&vault, id);
        let mut transaction = vault.begin();
        (0..3).for_each(|n| array.set(&mut transaction, n, &[1; 4000]).unwrap());
        let error = vault.commit(transaction).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        let bits = Bitmap::new(&vault, made(&vault, &Spec::bitmap("b", 0, 10)).await);
        assert!(bits.put(&mut vault.begin(), 8, 3, true).is_err());
        let error = vault.begin().create(&Spec::bitmap("c", 0, 1 << 40)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let log = Log::open(&vault, made(&vault, &Spec::log("d", 0, 100)).await).await.unwrap();
        let error = log.append(&mut vault.begin(), &[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let read_only = Options { read_only: true, ..SMALL };
        drop(vault);
        let again = [Disk::new(0, disks[0].bytes.borrow().clone(), &trace)];
        let vault = Vault::open(&env, some(&again), &read_only).await.unwrap();
        assert_eq!(vault.flush().await.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(again[0].writes.get(), 0);
        for shape in
            [Shape { objects: 0, ..scene::SHAPE }, Shape { log_bytes: Some(1), ..scene::SHAPE }]
        {
            let error = Vault::format(&env, &scene::lowers(&again), shape).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    });
}

#[test]
fn vault_load_reads_pages_of_unloaded_object_once() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, _) = empty(&env).await;
        let id = made(&vault, &Spec::array::<U64>("a", 0, 2000)).await;
        let array = Array::<U64>::new(&vault, id);
        let mut transaction = vault.begin();
        (0..4).for_each(|n| array.set(&mut transaction, n * 508, &U64::new(1)).unwrap());
        vault.commit(transaction).await.unwrap();
        vault.unload(id).await.unwrap();
        let reads = || disks[0].reads.get();
        let before = reads();
        vault.load(id).await.unwrap();
        assert_eq!(reads(), before + 4);
        array.get(1999).await.unwrap();
        assert_eq!(reads(), before + 4);
    });
}

#[test]
fn vault_commit_succeeds_while_buffer_pool_is_exhausted() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = empty(&env).await;
        scene::format(&env, &disks).await;
        drop(vault);
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        let mut taken = Vec::new();
        for bytes in [1 << 20, 4096] {
            while let Ok(buf) = env.buf(bytes) {
                taken.push(buf);
            }
        }
        scene::run(&vault, &trace, 1, 20).await.unwrap();
        vault.flush().await.unwrap();
        assert_eq!(scene::shown(&vault).await.unwrap(), 20);
        assert!(env.buf(4096).is_err(), "what it works with is nobody else's");
        drop((vault, taken));
        env.sleep(Duration::from_secs(3)).await;
        let pool = env.pool();
        assert_eq!(pool.free_bytes(), pool.limit_bytes(), "all of it came back");
    });
}
