//! Openings and checks of damaged journals.

use std::rc::Rc;

use block::ErrorKind;
use meta::journal::{Findings, Journal, Loss, Options, RING_START};
use sim::SimWorld;
use testkit::copied::Copied;
use testkit::recorded::{Disk, Trace};

use crate::scene::{
    DATA_START, Scene, Target, Way, block_on, blocks_of, expected, formatted, range_of,
};

/// Sectors of the ring of one step: the front of its record, and two parts.
const STEP_BYTES: usize = 3 * 4096;

/// Returns a disk with a journal of four records, none of them in place. The third one is flushed, and the fourth one states
/// that.
fn four_records(world: &SimWorld) -> Rc<Disk> {
    let disk = formatted(world, &Trace::default());
    block_on(world, async {
        let scene = Scene::open(&world.env(), &disk).await.unwrap();
        // An unrelated block below, as the pass runs when half of the ring is full.
        for step in 1..=3 {
            small(&scene, step).await;
        }
        scene.journal.sync().await.unwrap();
        small(&scene, 4).await;
    });
    disk
}

/// Appends a step of one part: two sectors of the ring.
async fn small(scene: &Scene, step: u64) {
    let bytes = crate::scene::content(step);
    scene.journal.append(vec![scene.part(step, &bytes)]).await.unwrap();
}

const SMALL_BYTES: usize = 2 * 4096;

/// Returns the blocks with the contents of these steps.
fn blocks(steps: &[u64]) -> Vec<u8> {
    let mut all = expected(&[], 0);
    for step in steps {
        all[(step * 512) as usize..][..512].copy_from_slice(&crate::scene::content(*step));
    }
    all
}

fn flip(disk: &Disk, ring_offset: usize) {
    disk.bytes.borrow_mut()[RING_START as usize + ring_offset] ^= 1;
}

fn accepting() -> Options {
    Options { accept_loss: true, ..Options::default() }
}

async fn check(world: &SimWorld, disk: &Rc<Disk>) -> Findings {
    Journal::check(&world.env(), &disk.lower(), 0).await.unwrap()
}

#[test]
fn journal_open_refuses_flushed_record_with_wrong_payload() {
    for step in 1..=3_u64 {
        let world = SimWorld::new(1);
        let disk = four_records(&world);
        flip(&disk, (step as usize - 1) * SMALL_BYTES + 4096 + 100);
        block_on(&world, async {
            let env = world.env();
            let refused = Scene::open(&env, &disk).await.err().expect("record is damaged");
            assert_eq!(refused.kind(), ErrorKind::Corrupt);
            let words = refused.to_string();
            assert!(words.contains(&format!("record {step}")), "{words}");
            assert!(refused.next_step().is_some_and(|next| next.contains("--accept-loss")));
            let findings = check(&world, &disk).await;
            assert!(findings.is_damaged && findings.count == 1, "{findings:?}");
            let scene = Scene::open_with(&env, &disk, accepting()).await.unwrap();
            let ranges = vec![(0, range_of(step))];
            assert_eq!(scene.opened.loss, Some(Loss { missing: 0, ranges }));
            let kept: Vec<_> = (1..=4).filter(|other| *other != step).collect();
            assert_eq!(scene.read_all().await.unwrap(), blocks(&kept));
            scene.journal.close().await.unwrap();
            assert_eq!(check(&world, &disk).await, Findings::default());
        });
    }
}

#[test]
fn journal_open_refuses_missing_flushed_record() {
    for step in 1..=3_u64 {
        let world = SimWorld::new(1);
        let disk = four_records(&world);
        flip(&disk, (step as usize - 1) * SMALL_BYTES + 50);
        block_on(&world, async {
            let env = world.env();
            let refused = Scene::open(&env, &disk).await.err().expect("a record is missing");
            assert_eq!(refused.kind(), ErrorKind::Corrupt);
            let words = refused.to_string();
            assert!(words.contains(&format!("record {step} is missing")), "{words}");
            assert!(check(&world, &disk).await.is_damaged);
            let scene = Scene::open_with(&env, &disk, accepting()).await.unwrap();
            assert_eq!(scene.opened.loss, Some(Loss { missing: 1, ranges: Vec::new() }));
            // Record 4 was never flushed, so it does not count behind damage.
            let kept: Vec<_> = (1..=3).filter(|other| *other != step).collect();
            assert_eq!(scene.read_all().await.unwrap(), blocks(&kept));
        });
    }
}

#[test]
fn journal_log_ends_at_unflushed_record_with_wrong_payload() {
    let world = SimWorld::new(1);
    let disk = four_records(&world);
    flip(&disk, 3 * SMALL_BYTES + 4096);
    block_on(&world, async {
        let findings = check(&world, &disk).await;
        assert_eq!((findings.records, findings.count, findings.is_damaged), (3, 0, false));
        let scene = Scene::open(&world.env(), &disk).await.unwrap();
        assert_eq!((scene.opened.records, &scene.opened.loss), (3, &None));
        assert_eq!(scene.read_all().await.unwrap(), blocks(&[1, 2, 3]));
        // The numbers and the opening of the lost record do not come back.
        small(&scene, 4).await;
        scene.journal.sync().await.unwrap();
    });
    block_on(&world, async {
        let scene = Scene::open(&world.env(), &disk).await.unwrap();
        assert_eq!(scene.read_all().await.unwrap(), blocks(&[1, 2, 3, 4]));
    });
}

#[test]
fn journal_replays_no_part_of_unflushed_record_with_one_wrong_part() {
    let world = SimWorld::new(1);
    let disk = formatted(&world, &Trace::default());
    block_on(&world, async {
        let scene = Scene::open(&world.env(), &disk).await.unwrap();
        scene.step(1).await.unwrap();
        drop(scene);
        flip(&disk, STEP_BYTES - 4096);
        let scene = Scene::open(&world.env(), &disk).await.unwrap();
        assert_eq!(scene.read_all().await.unwrap(), expected(&[], 0));
        assert_ne!(blocks_of(1)[0], blocks_of(1)[1]);
    });
}

#[test]
fn journal_opens_with_either_copy_of_root() {
    for slot in 0..2 {
        let world = SimWorld::new(1);
        let disk = formatted(&world, &Trace::default());
        block_on(&world, async {
            let env = world.env();
            for life in 1..=3 {
                let scene = Scene::open(&env, &disk).await.unwrap();
                scene.step(life).await.unwrap();
                drop(scene);
                disk.bytes.borrow_mut()[slot * 4096 + 70] ^= 1;
                let findings = check(&world, &disk).await;
                assert_eq!((findings.count, findings.is_damaged), (1, false), "{findings:?}");
            }
            let scene = Scene::open(&env, &disk).await.unwrap();
            assert_eq!(scene.read_all().await.unwrap(), expected(&[Way::Ring; 3], 3));
        });
    }
}

#[test]
fn journal_verifies_record_that_is_read_again() {
    const LARGE: u64 = 32 << 20;
    const PIECE: usize = 512 << 10;
    let world = SimWorld::new(1);
    let disk = Disk::new(0, vec![0; 64 << 20], &Trace::default());
    block_on(&world, async {
        let (env, lower) = (world.env(), disk.lower());
        Journal::format(&env, &lower, 0, crate::scene::UUID, LARGE, 1).await.unwrap();
        let start = Journal::bytes(LARGE);
        let target = crate::scene::Target::new(&env, &lower, start);
        let opened = Journal::open(&env, &lower, 0, &Options::default(), target).await;
        let (journal, _) = opened.unwrap();
        // Twice as much as stays in memory, and less than half of the ring.
        let count = 16;
        for n in 0..count {
            let data = env.buf(PIECE).unwrap();
            data.write().fill(n as u8 + 1);
            let part = meta::journal::NewPart::data(0, (n * PIECE) as u64, data, &[]);
            journal.append(vec![part]).await.unwrap();
        }
        let part = |n: usize| {
            let range = block::ByteRange::new((n * PIECE + 512) as u64, 512).unwrap();
            journal.find(0, range)[0]
        };
        for n in 0..count {
            let content = journal.read(&part(n)).await.unwrap().expect("it is in the ring");
            assert!(content.data.unwrap().read().iter().all(|byte| *byte == n as u8 + 1));
        }
        // Any byte of the last piece, which is not in memory.
        let at = RING_START as usize + count * (PIECE + 4096) - 1;
        disk.bytes.borrow_mut()[at] ^= 1;
        let error = journal.read(&part(count - 1)).await.err().expect("its payload is damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        disk.bytes.borrow_mut()[at] ^= 1;
        journal.settle().await.unwrap();
        let bytes = disk.bytes.borrow();
        for (n, piece) in bytes[start as usize..][..count * PIECE].chunks(PIECE).enumerate() {
            assert!(piece.iter().all(|byte| *byte == n as u8 + 1), "piece {n}");
        }
    });
}

/// The first copy has ignored all flushes since the fourth record. The ring of the other one has gone round since.
#[test]
fn journal_goes_on_from_copy_that_is_laps_ahead() {
    let world = SimWorld::new(1);
    let disk = formatted(&world, &Trace::default());
    let mut stale = Vec::new();
    block_on(&world, async {
        let scene = Scene::open(&world.env(), &disk).await.unwrap();
        for step in 1..=40 {
            let part = scene.part(step % 4, &crate::scene::content(step));
            scene.journal.append(vec![part]).await.unwrap();
            scene.journal.sync().await.unwrap();
            if step == 4 {
                stale = disk.bytes.borrow().clone();
            }
        }
    });
    let disks = [Disk::new(1, stale, &Trace::default()), disk];
    let device = Copied::new(disks.clone());
    block_on(&world, async {
        let (env, lower) = (world.env(), device.lower());
        let target = Target::new(&env, &lower, DATA_START);
        let opened = Journal::open(&env, &lower, 0, &Options::default(), target).await;
        let (journal, opened) = opened.unwrap_or_else(|why| panic!("{why}"));
        assert!(opened.records > 0 && opened.loss.is_none(), "{opened:?}");
        for step in 37..=40 {
            let at = (DATA_START + step % 4 * 512) as usize;
            let found = disks[1].bytes.borrow()[at..at + 512].to_vec();
            assert_eq!(found, crate::scene::content(step), "step {step}");
        }
        drop(journal);
    });
}

#[test]
fn journal_reads_damaged_roots_records_and_payload_from_other_copy() {
    // Damage to a root, to both roots, to the header of a flushed record, to payload of a flushed and of an unflushed record.
    let ring = RING_START as usize;
    let payload = ring + 3 * SMALL_BYTES + 4096;
    for places in [&[70][..], &[70, 4096 + 70], &[ring + 50], &[ring + 4096], &[payload]] {
        for copy in 0..2 {
            let world = SimWorld::new(1);
            let one = four_records(&world);
            let image = one.bytes.borrow().clone();
            let two = Disk::new(1, image.clone(), &Trace::default());
            let disks = [one, two];
            places.iter().for_each(|at| disks[copy].bytes.borrow_mut()[*at] ^= 1);
            let device = Copied::new(disks.clone());
            block_on(&world, async {
                let (env, lower) = (world.env(), device.lower());
                let findings = Journal::check(&env, &lower, 0).await.unwrap();
                assert!(!findings.is_damaged && findings.records == 4, "{findings:?}");
                assert_eq!(device.restores.get(), 0, "a check writes nothing");
                let target = Target::new(&env, &lower, DATA_START);
                let opened = Journal::open(&env, &lower, 0, &Options::default(), target).await;
                let (journal, opened) =
                    opened.unwrap_or_else(|why| panic!("{places:?}, {copy}: {why}"));
                assert_eq!((opened.records, opened.loss), (4, None), "{places:?}, {copy}");
                // The first read is of copy 0. Roots are read from both.
                let is_noticed = copy == 0 || places[0] == 70;
                if is_noticed && places[0] >= ring {
                    assert!(
                        disks[copy].bytes.borrow()[ring..ring + 0x8000]
                            == image[ring..ring + 0x8000]
                    );
                    assert_eq!(device.restores.get(), 1, "{places:?}, {copy}");
                }
                let bytes = disks[1 - copy].bytes.borrow()[DATA_START as usize..].to_vec();
                assert_eq!(bytes, blocks(&[1, 2, 3, 4]), "{places:?}, {copy}");
                drop(journal);
            });
        }
    }
}
