//! Tests of a vault on several disks whose copies fail, are missing, are resynced, or were written separately.

use block::{Env, ErrorKind};
use meta::vault::{CopyState, Options, Vault};
use sim::SimWorld;

use crate::scene::{self, SMALL, block_on, some};
use testkit::recorded::{Disk, Fails, Trace};

const ALONE: Options = Options { may_degrade: true, ..SMALL };

/// Makes a vault as [`begin`] does, and opens it with a cache so large that the tests' few pages cause no checkpoint.
async fn begin_large(env: &Env, copies: usize) -> (Vault, Vec<std::rc::Rc<Disk>>, Trace) {
    let (vault, disks, trace) = begin(env, copies).await;
    vault.close().await.unwrap();
    let vault = Vault::open(env, some(&disks), &Options::default()).await.unwrap();
    (vault, disks, trace)
}

/// Makes a vault with `copies` copies, and commits three steps. Returns the vault, its disks and their recorded events.
async fn begin(env: &Env, copies: usize) -> (Vault, Vec<std::rc::Rc<Disk>>, Trace) {
    let trace = Trace::default();
    let disks = scene::blank(copies, &trace);
    scene::format(env, &disks).await;
    let vault = Vault::open(env, some(&disks), &SMALL).await.unwrap();
    scene::run(&vault, &trace, 1, 3).await.unwrap();
    (vault, disks, trace)
}

#[test]
fn vault_commit_costs_one_flush_on_each_copy() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = begin_large(&env, 3).await;
        let counts = || disks.iter().map(|disk| (disk.flushes.get(), disk.writes.get()));
        let before: Vec<_> = counts().collect();
        scene::run(&vault, &trace, 4, 4).await.unwrap();
        for ((flushes, writes), now) in before.iter().zip(counts()) {
            assert_eq!(now, (flushes + 1, writes + 1));
        }
    });
}

#[test]
fn vault_records_failed_copy_durably_before_acknowledging_commit() {
    let wrong = [
        Fails { writes_left: Some(0), ..Fails::default() },
        Fails { flushes: true, ..Fails::default() },
    ];
    for (number, fails) in wrong.into_iter().enumerate() {
        let world = SimWorld::new(1);
        let env = world.env();
        block_on(&world, async {
            let (vault, disks, trace) = begin_large(&env, 2).await;
            disks[1].fails.set(fails);
            scene::run(&vault, &trace, 4, 4).await.unwrap();
            assert_eq!(vault.copy_state(1).0, CopyState::Behind);
            assert!(vault.copy_state(1).1.is_some(), "it is known why");
            // Nothing more is needed: the process may end here.
            drop(vault);
            disks[1].fails.set(Fails::default());
            let stale = Vault::open(&env, vec![None, Some(disks[1].lower())], &SMALL).await;
            assert_eq!(stale.err().unwrap().kind(), ErrorKind::Degraded, "case {number}");
            let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
            assert_eq!(vault.copy_state(1).0, CopyState::Behind, "the other one knows");
            assert_eq!(scene::shown(&vault).await.unwrap(), 4);
        });
    }
}

#[test]
fn vault_marks_copy_stale_that_fails_during_checkpoint() {
    for writes in 0..12 {
        let world = SimWorld::new(1);
        let env = world.env();
        block_on(&world, async {
            let (vault, disks, trace) = begin(&env, 2).await;
            disks[0].fails.set(Fails { writes_left: Some(writes), ..Fails::default() });
            vault.flush().await.unwrap();
            scene::run(&vault, &trace, 4, 9).await.unwrap();
            assert_eq!(vault.copy_state(0).0, CopyState::Behind, "after {writes} writes");
            drop(vault);
            disks[0].fails.set(Fails::default());
            let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
            assert_eq!(scene::shown(&vault).await.unwrap(), 9);
            assert_eq!(vault.copy_state(0).0, CopyState::Behind);
        });
    }
}

#[test]
fn vault_stays_failed_after_last_copy_fails_until_reopened() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = begin(&env, 2).await;
        let fails = Fails { flushes: true, ..Fails::default() };
        disks.iter().for_each(|disk| disk.fails.set(fails));
        let error = scene::run(&vault, &trace, 4, 4).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Faulted, "{error}");
        disks.iter().for_each(|disk| disk.fails.set(Fails::default()));
        let error = scene::run(&vault, &trace, 4, 4).await.unwrap_err();
        assert!(error.to_string().contains("open the vault again"), "{error}");
        assert_eq!(vault.flush().await.unwrap_err().kind(), ErrorKind::Faulted);
        drop(vault);
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        assert!((3..=4).contains(&scene::shown(&vault).await.unwrap()));
    });
}

#[test]
fn vault_opens_with_all_commits_from_resynced_copy_alone() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = begin(&env, 2).await;
        disks[1].fails.set(Fails { flushes: true, ..Fails::default() });
        scene::run(&vault, &trace, 4, 30).await.unwrap();
        assert_eq!(vault.rejoin(0).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(vault.rejoin(1).await.unwrap_err().kind(), ErrorKind::Io, "it still fails");
        disks[1].fails.set(Fails::default());
        vault.rejoin(1).await.unwrap();
        assert_eq!(vault.copy_state(1).0, CopyState::Current);
        scene::run(&vault, &trace, 31, 33).await.unwrap();
        drop(vault);
        let alone = vec![None, Some(disks[1].lower())];
        let vault = Vault::open(&env, alone, &ALONE).await.unwrap();
        assert_eq!(scene::shown(&vault).await.unwrap(), 33);
    });
}

#[test]
fn vault_resync_of_copy_includes_concurrent_commits() {
    for seed in 0..20 {
        let world = SimWorld::new(seed);
        let env = world.env();
        block_on(&world, async {
            let (vault, disks, trace) = begin(&env, 2).await;
            disks[0].fails.set(Fails { writes_left: Some(0), ..Fails::default() });
            scene::run(&vault, &trace, 4, 5).await.unwrap();
            disks[0].fails.set(Fails::default());
            let other = vault.clone();
            let (sent, done) = (std::rc::Rc::new(std::cell::Cell::new(false)), vault.clone());
            let flag = sent.clone();
            env.spawn("steps", async move {
                scene::run(&other, &trace, 6, 40).await.unwrap();
                flag.set(true);
            });
            done.rejoin(0).await.unwrap();
            while !sent.get() {
                env.give_way().await;
            }
            drop((vault, done));
            let alone = vec![Some(disks[0].lower()), None];
            let vault = Vault::open(&env, alone, &ALONE).await.unwrap();
            assert_eq!(scene::shown(&vault).await.unwrap(), 40, "seed {seed}");
        });
    }
}

#[test]
fn vault_resync_fills_blank_disk_that_replaces_lost_copy() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, mut disks, trace) = begin(&env, 2).await;
        drop(vault);
        disks[0] = Disk::new(0, vec![0; scene::DISK_BYTES], &trace);
        let refused = Vault::open(&env, some(&disks), &SMALL).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Degraded, "{refused}");
        let vault = Vault::open(&env, some(&disks), &ALONE).await.unwrap();
        vault.rejoin(0).await.unwrap();
        scene::run(&vault, &trace, 4, 4).await.unwrap();
        drop(vault);
        let alone = vec![Some(disks[0].lower()), None];
        let vault = Vault::open(&env, alone, &ALONE).await.unwrap();
        assert_eq!(scene::shown(&vault).await.unwrap(), 4);
    });
}

#[test]
fn vault_open_rejects_split_brain_of_copies() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = begin(&env, 2).await;
        drop(vault);
        let alone =
            |copy: usize| (0..2).map(|n| (n == copy).then(|| disks[n].lower())).collect::<Vec<_>>();
        let one = Vault::open(&env, alone(0), &ALONE).await.unwrap();
        scene::run(&one, &trace, 4, 6).await.unwrap();
        drop(one);
        let two = Vault::open(&env, alone(1), &ALONE).await.unwrap();
        scene::run(&two, &trace, 4, 4).await.unwrap();
        drop(two);
        let error = Vault::open(&env, some(&disks), &SMALL).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("split brain"), "{error}");
        // Each of them is still usable alone.
        let one = Vault::open(&env, alone(0), &SMALL).await.unwrap();
        assert_eq!(scene::shown(&one).await.unwrap(), 6);
    });
}

#[test]
fn vault_open_rejects_stale_copy_that_was_written_alone() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = begin_large(&env, 2).await;
        disks[1].fails.set(Fails { flushes: true, ..Fails::default() });
        scene::run(&vault, &trace, 4, 6).await.unwrap();
        drop(vault);
        disks[1].fails.set(Fails::default());
        // The first copy is not opened in between: an opening raises the epoch too.
        let two = Vault::open(&env, vec![None, Some(disks[1].lower())], &ALONE).await.unwrap();
        scene::run(&two, &trace, 4, 4).await.unwrap();
        drop(two);
        let error = Vault::open(&env, some(&disks), &SMALL).await.err().unwrap();
        assert!(error.to_string().contains("split brain"), "{error}");
    });
}

#[test]
fn vault_open_rejects_copy_in_wrong_position_or_other_vault() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, trace) = begin(&env, 2).await;
        let uuid = vault.uuid();
        drop(vault);
        let swapped = vec![Some(disks[1].lower()), Some(disks[0].lower())];
        let error = Vault::open(&env, swapped, &SMALL).await.err().unwrap();
        assert!(error.to_string().contains("the disk for copy"), "{error}");
        let others = scene::blank(2, &trace);
        scene::format(&env, &others).await;
        let mixed = vec![Some(disks[0].lower()), Some(others[1].lower())];
        assert_eq!(
            Vault::open(&env, mixed, &SMALL).await.err().unwrap().kind(),
            ErrorKind::Invalid
        );
        let named = Options { vault: Some(uuid), ..SMALL };
        let error = Vault::open(&env, some(&others), &named).await.err().unwrap();
        assert!(error.to_string().contains("not"), "{error}");
        let one = vec![Some(disks[0].lower())];
        let error = Vault::open(&env, one, &SMALL).await.err().unwrap();
        assert!(error.to_string().contains("2 copies; 1 disks"), "{error}");
    });
}

#[test]
fn vault_open_rejects_newer_version_and_unknown_features_without_writing() {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, async {
        let (vault, disks, _) = begin(&env, 1).await;
        drop(vault);
        let with = |at: usize, value: u8| {
            let mut bytes = disks[0].bytes.borrow().clone();
            for slot in [0, 4096] {
                bytes[slot + at] = value;
                let sum = meta::vault::superblock::superblock_checksum(&bytes[slot..]);
                bytes[slot + 16..slot + 24].copy_from_slice(&sum.to_le_bytes());
            }
            Disk::new(0, bytes, &Trace::default())
        };
        let read_only = Options { read_only: true, ..SMALL };
        for (at, value, words, reads) in [
            (8, 3, "version 3", false),
            (40, 1, "features", false),
            (32, 4, "only read", true),
            (24, 1, "", true),
        ] {
            let disk = [with(at, value)];
            let writes = Vault::open(&env, some(&disk), &SMALL).await;
            match writes.err() {
                Some(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert!(!words.is_empty() && error.to_string().contains(words), "{error}");
                }
                None => assert!(words.is_empty(), "field {at}"),
            }
            if !words.is_empty() {
                assert_eq!(disk[0].writes.get(), 0, "nothing was written");
            }
            let looks = Vault::open(&env, some(&disk), &read_only).await;
            assert_eq!(looks.is_ok(), reads, "field {at}");
        }
    });
}
