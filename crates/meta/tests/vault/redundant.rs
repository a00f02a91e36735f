//! A vault on a redundant disk: superblocks, records and pages that are wrong on one copy of the disk are read from the other.

use std::rc::Rc;

use block::{Env, Result};
use meta::vault::{Options, SEALED_AFTER, Vault};
use sim::SimWorld;

use crate::scene::{self, DISK_BYTES, SHAPE, SMALL, block_on};
use testkit::copied::Copied;
use testkit::recorded::{Disk, Trace};

/// Bytes of the superblocks and the log.
const FRONT_BYTES: usize = (8 << 10) + (64 << 10);

const BLOCK: usize = 4096;

const READ_ONLY: Options = Options { read_only: true, ..SMALL };

/// The bytes of a vault after its last step, and a few steps and a checkpoint earlier.
struct Images {
    before: Vec<u8>,
    now: Vec<u8>,
}

const LAST: u64 = 10;

/// Makes a vault on two equal copies, and ends it without a close.
fn images() -> Images {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disk = Disk::new(0, vec![0; DISK_BYTES], &trace);
    let disks = [disk];
    block_on(&world, async {
        scene::format_as(&env, &disks, SHAPE).await;
        let vault = Vault::open(&env, scene::some(&disks), &Options::default()).await.unwrap();
        scene::run(&vault, &trace, 1, 5).await.unwrap();
        vault.flush().await.unwrap();
        let before = disks[0].bytes.borrow().clone();
        scene::run(&vault, &trace, 6, 7).await.unwrap();
        vault.flush().await.unwrap();
        scene::run(&vault, &trace, 8, LAST).await.unwrap();
        env.sleep(2 * SEALED_AFTER).await;
        let now = disks[0].bytes.borrow().clone();
        Images { before, now }
    })
}

/// A device of two copies, of which one has wrong bytes.
struct Rotten {
    world: SimWorld,
    disks: [Rc<Disk>; 2],
    device: Rc<Copied>,
}

impl Rotten {
    fn new(now: &[u8], at: usize, wrong: &[u8], copy: usize, preferred: usize) -> Self {
        let trace = Trace::default();
        let disks = [0, 1].map(|n| Disk::new(n, now.to_vec(), &trace));
        disks[copy].bytes.borrow_mut()[at..at + wrong.len()].copy_from_slice(wrong);
        let device = Copied::new(disks.clone());
        device.preferred.set(preferred);
        Self { world: SimWorld::new(2), disks, device }
    }

    async fn open(&self, env: &Env, options: &Options) -> Result<Vault> {
        Vault::open(env, vec![Some(self.device.lower())], options).await
    }

    fn has_alike(&self, at: usize) -> bool {
        let block = |n: usize| self.disks[n].bytes.borrow()[at..at + BLOCK].to_vec();
        block(0) == block(1)
    }
}

/// Returns the offsets of the blocks that are used now, or were used before.
fn used(images: &Images) -> Vec<usize> {
    let is_used = |at: &usize| {
        [&images.now, &images.before]
            .iter()
            .any(|image| image[*at..*at + BLOCK].iter().any(|byte| *byte != 0))
    };
    (0..DISK_BYTES).step_by(BLOCK).filter(is_used).collect()
}

/// Calls `each` for every used block that is overwritten, or that a lost write left as it was before, on each copy.
fn every_block(images: &Images, mut each: impl FnMut(&Rotten, usize, &str)) {
    for at in used(images) {
        let lost = &images.before[at..at + BLOCK];
        let rot = vec![0xda; BLOCK];
        for (wrong, what) in [(lost, "lost write"), (&rot, "rot")] {
            if *wrong == images.now[at..at + BLOCK] {
                continue;
            }
            for (copy, preferred) in [(0, 0), (1, 1), (1, 0)] {
                let rotten = Rotten::new(&images.now, at, wrong, copy, preferred);
                each(&rotten, at, &format!("{what} at {at}, copy {copy}, preferred {preferred}"));
            }
        }
    }
}

#[test]
fn vault_opens_with_last_step_if_one_copy_of_disk_has_wrong_block() {
    let images = images();
    let mut restored = 0;
    every_block(&images, |rotten, at, what| {
        block_on(&rotten.world, async {
            let env = rotten.world.env();
            let vault =
                rotten.open(&env, &SMALL).await.unwrap_or_else(|why| panic!("{what}: {why}"));
            if rotten.device.restores.get() > 0 {
                assert!(rotten.has_alike(at), "{what}");
                restored += 1;
            }
            assert_eq!(scene::shown(&vault).await.unwrap(), LAST, "{what}");
            vault.close().await.unwrap();
        });
    });
    // The superblock, and the records behind the checkpoint; those in no order that the reads see first.
    assert!(restored >= 2 * 4, "{restored} blocks were restored");
}

#[test]
fn vault_opens_from_copy_that_was_wrong_without_the_other_copy() {
    let images = images();
    every_block(&images, |rotten, _, what| {
        block_on(&rotten.world, async {
            let env = rotten.world.env();
            let vault = rotten.open(&env, &SMALL).await.unwrap();
            // Reads of all pages find the wrong one, and the checkpoint of the close writes it again.
            scene::shown(&vault).await.unwrap();
            vault.close().await.unwrap();
            let wrong = if what.contains("copy 0") { 0 } else { 1 };
            if wrong != rotten.device.preferred.get() {
                return;
            }
            rotten.device.out.set(Some(1 - wrong));
            let vault =
                rotten.open(&env, &SMALL).await.unwrap_or_else(|why| panic!("{what}: {why}"));
            assert_eq!(scene::shown(&vault).await.unwrap(), LAST, "{what}");
        });
    });
}

#[test]
fn vault_that_is_read_only_writes_no_copy() {
    let images = images();
    every_block(&images, |rotten, _, what| {
        block_on(&rotten.world, async {
            let env = rotten.world.env();
            let vault = rotten.open(&env, &READ_ONLY).await.unwrap();
            assert_eq!(scene::shown(&vault).await.unwrap(), LAST, "{what}");
            let writes: u64 = rotten.disks.iter().map(|disk| disk.writes.get()).sum();
            assert_eq!(writes, 0, "{what}");
        });
    });
}

#[test]
fn vault_open_refuses_flushed_record_that_is_wrong_on_both_copies() {
    let images = images();
    let mut refused = 0;
    for at in (8 << 10..FRONT_BYTES).step_by(BLOCK) {
        let rotten = Rotten::new(&images.now, at, &[0xda; BLOCK], 0, 0);
        rotten.disks[1].bytes.borrow_mut()[at..at + BLOCK].fill(0xdb);
        block_on(&rotten.world, async {
            let env = rotten.world.env();
            match rotten.open(&env, &SMALL).await {
                Ok(vault) => assert_eq!(scene::shown(&vault).await.unwrap(), LAST, "block {at}"),
                Err(error) => {
                    assert!(error.to_string().contains("damaged on every copy"), "{error}");
                    assert_eq!(rotten.device.restores.get(), 0, "block {at}");
                    refused += 1;
                }
            }
        });
    }
    assert!(refused >= 3, "{refused} records are needed");
}

#[test]
fn vault_check_reports_page_that_is_wrong_on_one_copy_of_disk() {
    let images = images();
    let pages: Vec<_> = used(&images).into_iter().filter(|at| *at >= FRONT_BYTES).collect();
    let mut found = 0;
    for at in pages {
        let rotten = Rotten::new(&images.now, at, &[0xda; BLOCK], 0, 0);
        block_on(&rotten.world, async {
            let env = rotten.world.env();
            let vault = rotten.open(&env, &READ_ONLY).await.unwrap();
            let findings = vault.check().await.unwrap();
            assert!(findings.repairable && findings.count <= 1, "{at}: {findings:?}");
            let found_now = findings.count;
            found += found_now;
            rotten.disks[1].bytes.borrow_mut()[at..at + BLOCK].fill(0xdb);
            let both = vault.check().await.unwrap();
            assert_eq!(
                (both.count, both.repairable),
                (found_now, found_now == 0),
                "{at}: {both:?}"
            );
        });
    }
    assert!(found >= 4, "{found} pages are in use");
}
