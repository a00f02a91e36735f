//! Tests of the allocator of data blocks: its choice under each policy, concurrent callers, the state after a restart.

use std::collections::BTreeSet;
use std::rc::Rc;

use block::ErrorKind;
use meta::alloc::{Allocator, Places, Policy};
use meta::vault::{Options, Vault};
use sim::SimWorld;
use sim::draw::Stream;

use crate::scene::{self, SMALL, block_on, some};
use testkit::recorded::Trace;

const PLACES: u64 = 500;

async fn opened(
    env: &block::Env,
    policy: Policy,
) -> (Vault, Vec<Rc<testkit::recorded::Disk>>, Allocator) {
    let disks = scene::blank(1, &Trace::default());
    Vault::format(env, &scene::lowers(&disks), scene::SHAPE).await.unwrap();
    let vault = Vault::open(env, some(&disks), &SMALL).await.unwrap();
    let mut transaction = vault.begin();
    Allocator::create(&mut transaction, "a", 0, 1000, PLACES).unwrap();
    vault.commit(transaction).await.unwrap();
    let all = Allocator::open(&vault, "a", 0, policy).unwrap();
    (vault, disks, all)
}

async fn take(vault: &Vault, all: &Allocator, most: u64) -> Places {
    let mut transaction = vault.begin();
    let places = all.take(&mut transaction, most).await.unwrap();
    vault.commit(transaction).await.unwrap();
    places
}

async fn free(vault: &Vault, all: &Allocator, first: u64, count: u64) {
    let mut transaction = vault.begin();
    let freed = all.free(&mut transaction, Places { first, count }).unwrap();
    transaction.keep(freed);
    vault.commit(transaction).await.unwrap();
}

#[test]
fn allocator_takes_free_data_blocks_in_order_of_policy() {
    let expected = [
        (Policy::FirstFree, [5, 6, 50]),
        (Policy::LogStructured, [100, 101, 102]),
        (Policy::NearLast, [100, 101, 102]),
    ];
    for (policy, places) in expected {
        let world = SimWorld::new(1);
        let env = world.env();
        block_on(&world, async {
            let (vault, _, all) = opened(&env, policy).await;
            assert_eq!(take(&vault, &all, 100).await, Places { first: 0, count: 100 });
            free(&vault, &all, 5, 2).await;
            free(&vault, &all, 50, 1).await;
            for place in places {
                assert_eq!(
                    take(&vault, &all, 1).await,
                    Places { first: place, count: 1 },
                    "{policy:?}"
                );
            }
        });
    }
}

#[test]
fn allocator_searches_before_last_block_when_end_is_full() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, _, all) = opened(&env, Policy::NearLast).await;
        take(&vault, &all, PLACES).await;
        free(&vault, &all, 490, 2).await;
        free(&vault, &all, 3, 1).await;
        assert_eq!(take(&vault, &all, 9).await, Places { first: 491, count: 1 });
        assert_eq!(take(&vault, &all, 9).await, Places { first: 490, count: 1 });
        assert_eq!(take(&vault, &all, 9).await, Places { first: 3, count: 1 });
        let error = all.take(&mut vault.begin(), 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let (vault, _, all) = opened(&env, Policy::LogStructured).await;
        take(&vault, &all, PLACES - 1).await;
        free(&vault, &all, 7, 3).await;
        assert_eq!(take(&vault, &all, 9).await, Places { first: 499, count: 1 });
        assert_eq!(take(&vault, &all, 9).await, Places { first: 7, count: 3 });
    });
}

#[test]
fn allocator_never_reserves_data_block_for_two_transactions() {
    for policy in [Policy::FirstFree, Policy::LogStructured, Policy::NearLast] {
        let world = SimWorld::new(1);
        let env = world.env();
        block_on(&world, async {
            let (vault, _, all) = opened(&env, policy).await;
            let mut one = vault.begin();
            let (mut two, mut three) = (vault.begin(), vault.begin());
            let mut seen = BTreeSet::new();
            for transaction in [&mut one, &mut two, &mut three] {
                let Places { first, count } = all.take(transaction, 3).await.unwrap();
                assert!((first..first + count).all(|place| seen.insert(place)), "{policy:?}");
            }
            drop(two);
            vault.commit(one).await.unwrap();
            vault.commit(three).await.unwrap();
            assert_eq!(all.taken().await.unwrap(), 6);
            let first = take(&vault, &all, 100).await;
            assert!(first.count > 0 && all.taken().await.unwrap() == 6 + first.count);
        });
    }
}

/// Several clients move data blocks at random. The map and the bitmap of used blocks must agree at the end, and after a
/// restart.
#[test]
fn allocator_map_and_bitmap_agree_after_concurrent_block_moves() {
    for seed in 0..12 {
        let (world, random) = (SimWorld::new(seed), Stream::new(seed, "moves", 0));
        let env = world.env();
        let policies = [Policy::FirstFree, Policy::LogStructured, Policy::NearLast];
        let policy = policies[seed as usize % 3];
        block_on(&world, async {
            let (vault, disks, all) = opened(&env, policy).await;
            let all = Rc::new(all);
            let open = Rc::new(std::cell::Cell::new(4));
            for client in 0..4 {
                let (vault, all, open, key) =
                    (vault.clone(), all.clone(), open.clone(), random.next());
                env.spawn("moves blocks", async move {
                    let random = Stream::new(key, "client", 0);
                    for _ in 0..60 {
                        move_one(&vault, &all, client * 100 + random.below(100), &random).await;
                    }
                    open.set(open.get() - 1);
                });
            }
            while open.get() > 0 {
                env.give_way().await;
            }
            agree(&all).await;
            drop((vault, all));
            let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
            agree(&Allocator::open(&vault, "a", 0, policy).unwrap()).await;
            let found = vault.check().await.unwrap();
            assert!(found.pages > 3 && found.count == 0, "{found:?}");
        });
    }
}

async fn move_one(vault: &Vault, all: &Allocator, block: u64, random: &Stream) {
    let mut transaction = vault.begin();
    let before = all.place(block).await.unwrap();
    let now = match random.below(4) {
        0 => None,
        _ => Some(all.take(&mut transaction, 1).await.unwrap().first),
    };
    all.put(&mut transaction, block, now).unwrap();
    if let Some(first) = before {
        let freed = all.free(&mut transaction, Places { first, count: 1 }).unwrap();
        transaction.keep(freed);
    }
    if random.below(10) > 0 {
        vault.commit(transaction).await.unwrap();
    }
}

async fn agree(all: &Allocator) {
    let mut seen = BTreeSet::new();
    for block in 0..1000 {
        if let Some(place) = all.place(block).await.unwrap() {
            assert!(seen.insert(place), "place {place} has two blocks");
        }
    }
    assert_eq!(all.taken().await.unwrap(), seen.len() as u64);
}

#[test]
fn vault_check_reports_page_damaged_on_one_copy_without_writing() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let trace = Trace::default();
        let disks = scene::blank(2, &trace);
        scene::format(&env, &disks).await;
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        scene::run(&vault, &trace, 1, 5).await.unwrap();
        let home = vault.geometry().home(0, 0) as usize;
        vault.close().await.unwrap();
        // Damages both homes of the directory's page on one copy.
        disks[1].bytes.borrow_mut()[home + 100] ^= 1;
        disks[1].bytes.borrow_mut()[home + 4196] ^= 1;
        let writes = disks[1].writes.get();
        let read_only = Options { read_only: true, ..SMALL };
        let vault = Vault::open(&env, some(&disks), &read_only).await.unwrap();
        let found = vault.check().await.unwrap();
        assert_eq!((found.count, found.repairable), (1, true), "{found:?}");
        assert!(found.wrong[0].contains("page 0 on disk1"), "{found:?}");
        assert_eq!(disks[1].writes.get(), writes);
        // Once the check has found it, and the vault is writable, the next checkpoint repairs it.
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        assert_eq!(vault.check().await.unwrap().count, 1);
        vault.flush().await.unwrap();
        assert_eq!(vault.check().await.unwrap().count, 0);
        // Damage on both copies means loss, and the check reports it.
        let page = vault.geometry().home(1, 0) as usize;
        drop(vault);
        for disk in &disks {
            for at in (page..page + 16384).step_by(4096) {
                disk.bytes.borrow_mut()[at + 50] ^= 1;
            }
        }
        let vault = Vault::open(&env, some(&disks), &read_only).await.unwrap();
        let found = vault.check().await.unwrap();
        assert!(!found.repairable && found.count >= 2, "{found:?}");
    });
}

#[test]
fn allocator_reuses_freed_data_block_only_after_proof() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, _, all) = opened(&env, Policy::FirstFree).await;
        take(&vault, &all, PLACES / 2).await;
        let mut transaction = vault.begin();
        let freed = all.free(&mut transaction, Places { first: 3, count: 1 }).unwrap();
        transaction.keep_until_proven(freed);
        assert_eq!(take(&vault, &all, 1).await.first, PLACES / 2, "it is not free yet");
        vault.commit(transaction).await.unwrap();
        assert!(vault.holds_until_proof());
        assert_eq!(take(&vault, &all, 1).await.first, PLACES / 2 + 1, "no record proves that");
        vault.prove().await.unwrap();
        assert_eq!(take(&vault, &all, 1).await.first, 3);
    });
}
