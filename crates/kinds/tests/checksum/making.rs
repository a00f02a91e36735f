//! First checksums of a lower with unknown bytes.

use block::ErrorKind;
use kinds::checksum::{BLOCK_BYTES, Redundancy};
use sim::SimWorld;
use testkit::recorded::{Disk, Event, Moment, Trace};

use crate::scene::{
    BLOCKS, Crash, DATA_BYTES, DATA_START, Scene, block_on, content, formatted, in_world,
};

async fn old_disk(env: &block::Env, trace: &Trace) -> std::rc::Rc<Disk> {
    let disk = formatted(env, trace, false).await;
    for block in 0..BLOCKS {
        let at = (DATA_START + block * BLOCK_BYTES) as usize;
        disk.bytes.borrow_mut()[at..at + BLOCK_BYTES as usize].copy_from_slice(&content(block, 7));
    }
    disk
}

#[test]
fn unknown_bytes_are_served_at_once_and_verified_when_they_have_checksums() {
    for crash in [Crash::Regions, Crash::Journal] {
        in_world(async |env| {
            let disk = old_disk(env, &Trace::default()).await;
            let scene = Scene::open(env, &disk, crash, Redundancy::None).await.unwrap();
            assert_eq!(scene.core.numbers().unsummed_bytes, DATA_BYTES);
            assert_eq!(scene.read(3, 1).await.unwrap(), content(3, 7));
            scene.write(2, &content(2, 8)).await.unwrap();
            scene.zero(4, 1).await.unwrap();
            scene.quiet().await;
            assert_eq!(scene.core.numbers().unsummed_bytes, 0);
            let expected = [7, 7, 8, 7, 0, 7, 7, 7];
            for (block, version) in (0..).zip(expected) {
                assert_eq!(scene.read(block, 1).await.unwrap(), content(block, version));
            }
            scene.rot(6);
            assert_eq!(scene.read(6, 1).await.err().unwrap().kind(), ErrorKind::Corrupt);
            let scene = scene.reopen().await;
            assert_eq!(scene.core.numbers().unsummed_bytes, 0);
            assert_eq!(scene.read(6, 1).await.err().unwrap().kind(), ErrorKind::Corrupt);
        });
    }
}

/// The disk rots after a power cut. A block that had been verified, with a flush afterwards, has its checksum.
#[test]
fn flush_makes_first_checksums_durable() {
    for crash in [Crash::Regions, Crash::Journal] {
        let (world, trace) = (SimWorld::new(1), Trace::default());
        let env = world.env();
        let disk = block_on(&world, old_disk(&env, &trace));
        trace.take();
        let mut moment = Moment::new(disk.bytes.borrow().clone());
        block_on(&world, async {
            let scene = Scene::open(&env, &disk, crash, Redundancy::None).await.unwrap();
            scene.quiet().await;
            assert_eq!(scene.core.numbers().unsummed_bytes, 0);
            scene.flush().await.unwrap();
        });
        trace.take().iter().for_each(|event| moment.note(event));
        moment.cuts(|image| {
            in_world(async |env| {
                let disk = Disk::new(0, image.to_vec(), &Trace::default());
                let scene = Scene::open(env, &disk, crash, Redundancy::None).await.unwrap();
                assert_eq!(scene.core.numbers().unsummed_bytes, 0);
                scene.rot(6);
                assert_eq!(scene.read(6, 1).await.err().unwrap().kind(), ErrorKind::Corrupt);
            });
        });
    }
}

/// Writes while first checksums are made, cut at every write: flushed blocks are right, and no block is damaged.
#[test]
fn first_checksums_survive_power_cut_at_any_write() {
    for crash in [Crash::Regions, Crash::Journal] {
        let (world, trace) = (SimWorld::new(1), Trace::default());
        let env = world.env();
        let disk = block_on(&world, old_disk(&env, &trace));
        trace.take();
        let before = disk.bytes.borrow().clone();
        block_on(&world, async {
            let scene = Scene::open(&env, &disk, crash, Redundancy::None).await.unwrap();
            trace.note(Event::Begun(1));
            scene.write(2, &content(2, 8)).await.unwrap();
            scene.quiet().await;
            trace.note(Event::Begun(2));
            scene.write(3, &content(3, 8)).await.unwrap();
            scene.flush().await.unwrap();
            trace.note(Event::Answered(2));
            scene.quiet().await;
        });
        let mut moment = Moment::new(before);
        let (mut begun, mut durable, mut states) = (0, 0, 0);
        for event in trace.take() {
            match event {
                Event::Begun(number) => begun = number,
                Event::Answered(number) => durable = number,
                Event::Flush { .. } => {
                    moment.cuts(|image| {
                        states += 1;
                        look(image, crash, (durable, begun));
                    });
                }
                Event::Write { .. } => {}
            }
            moment.note(&event);
        }
        assert!(states > 100, "only {states} states");
    }
}

fn look(image: Vec<u8>, crash: Crash, (durable, begun): (u64, u64)) {
    let world = SimWorld::new(2);
    let env = world.env();
    let disk = Disk::new(0, image, &Trace::default());
    block_on(&world, async {
        let scene = Scene::open(&env, &disk, crash, Redundancy::None).await.unwrap();
        scene.quiet().await;
        for block in 0..BLOCKS {
            let bytes = scene.read(block, 1).await.unwrap();
            let is_old = bytes == content(block, 7);
            match block {
                // Bytes behind a write in flight may be torn in marked regions.
                2 | 3 if durable < block - 1 && begun >= block - 1 => {
                    assert!(is_old || bytes == content(block, 8) || crash == Crash::Regions);
                }
                2 | 3 => assert_eq!(bytes == content(block, 8), durable >= block - 1),
                _ => assert!(is_old, "block {block}"),
            }
        }
        let numbers = scene.core.numbers();
        assert_eq!((numbers.damaged, numbers.unsummed_bytes), (0, 0));
    });
}
