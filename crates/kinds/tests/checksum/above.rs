//! Two devices below a redundant device, after power cuts: one member may rot besides.

use block::{Op, Result};
use kinds::checksum::{BLOCK_BYTES, Redundancy};
use sim::SimWorld;
use testkit::recorded::{Disk, Event, Moment, SECTOR, Trace};

use crate::scene::{Crash, DATA_START, Scene, block_on, content, formatted};

/// Byte that a recorded disk leaves in place of a torn write.
const GARBAGE: u8 = 0xda;

/// Blocks that the scenario writes. Block 0 is written first alone, and flushed; block 1 is in its region.
pub const USED: u64 = 4;

/// A pair of members, as a mirror above has them.
struct Members([Scene; 2]);

impl Members {
    async fn write(&self, block: u64, bytes: &[u8]) {
        for member in &self.0 {
            member.write(block, bytes).await.unwrap();
        }
    }

    async fn flush(&self) {
        for member in &self.0 {
            member.submit(Op::Flush).await.unwrap();
        }
    }

    /// Reads a block from each member. A member that fails gets the bytes of the other one; if both fail, both get those of a
    /// last resort. Returns the bytes of the first member.
    async fn read(&self, block: u64) -> Vec<u8> {
        let [one, other] = &self.0;
        let found: [Result<Vec<u8>>; 2] = [one.read(block, 1).await, other.read(block, 1).await];
        match found {
            [Ok(bytes), Ok(_)] => bytes,
            [Ok(bytes), Err(_)] => {
                other.write(block, &bytes).await.unwrap();
                bytes
            }
            [Err(_), Ok(bytes)] => {
                one.write(block, &bytes).await.unwrap();
                bytes
            }
            [Err(_), Err(_)] => {
                let bytes = one.last_resort(block).await.unwrap();
                self.write(block, &bytes).await;
                bytes
            }
        }
    }
}

async fn open(env: &block::Env, disks: &[std::rc::Rc<Disk>]) -> Members {
    let open = |n: usize| Scene::open(env, &disks[n], Crash::Regions, Redundancy::Above);
    Members([open(0).await.unwrap(), open(1).await.unwrap()])
}

/// The versions of each block that a power cut may leave: the durable one, then later ones.
pub type Versions = [Vec<u64>; USED as usize];

/// Judges two members that a power cut has left. Block 0 of member `rotten` has rotted.
fn look(images: [Vec<u8>; 2], rotten: Option<usize>, versions: &Versions, what: &str) {
    let (world, trace) = (SimWorld::new(2), Trace::default());
    let env = world.env();
    let disk = |(n, image)| Disk::new(n, image, &trace);
    let disks: Vec<_> = images.into_iter().enumerate().map(disk).collect();
    block_on(&world, async {
        if let Some(rotten) = rotten {
            disks[rotten].bytes.borrow_mut()[DATA_START as usize + 9] ^= 1;
        }
        let members = open(&env, &disks).await;
        for block in 0..USED {
            let bytes = members.read(block).await;
            check(block, &bytes, &versions[block as usize], what);
            assert!(members.read(block).await == bytes, "{what}: block {block}, again");
        }
        members.flush().await;
        env.sleep(4 * crate::scene::CLEAR_DELAY).await;
        members.flush().await;
        env.sleep(4 * crate::scene::CLEAR_DELAY).await;
        for member in &members.0 {
            let numbers = member.core.numbers();
            assert_eq!((numbers.accepted, numbers.unverified_bytes), (0, 0), "{what}");
            assert_eq!(numbers.marked_bytes, 0, "{what}");
        }
    });
}

pub fn check(block: u64, bytes: &[u8], versions: &[u64], what: &str) {
    if versions.iter().any(|version| content(block, *version) == bytes) {
        return;
    }
    assert!(versions.len() > 1, "{what}: block {block} is wrong");
    for (n, sector) in bytes.chunks(SECTOR).enumerate() {
        let fits = |version: &u64| content(block, *version)[n * SECTOR..][..SECTOR] == *sector;
        let is_torn = sector.iter().all(|byte| *byte == GARBAGE);
        assert!(is_torn || versions.iter().any(fits), "{what}: sector {n} of block {block}");
    }
}

#[test]
fn redundant_device_above_gets_right_blocks_after_power_cut_and_rot() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks: Vec<_> = (0..2)
        .map(|n| {
            let disk = block_on(&world, formatted(&env, &Trace::default(), true));
            let bytes = disk.bytes.borrow().clone();
            Disk::new(n, bytes, &trace)
        })
        .collect();
    let before: Vec<_> = disks.iter().map(|disk| disk.bytes.borrow().clone()).collect();
    let writes = [(0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 3)];
    block_on(&world, async {
        let members = open(&env, &disks).await;
        for (number, (block, version)) in (1..).zip(writes) {
            trace.note(Event::Begun(number));
            members.write(block, &content(block, version)).await;
            if number == 1 || number == 5 {
                members.flush().await;
                trace.note(Event::Answered(number));
            }
        }
    });
    let mut moments: Vec<_> = before.into_iter().map(Moment::new).collect();
    let mut versions: Versions = std::array::from_fn(|_| vec![0]);
    let (mut states, mut events) = (0_usize, trace.take());
    events.push(Event::Flush { disk: 0 });
    for (number, event) in events.into_iter().enumerate() {
        match &event {
            Event::Begun(step) => {
                let (block, version) = writes[*step as usize - 1];
                versions[block as usize].push(version);
            }
            Event::Answered(_) => {
                for versions in &mut versions {
                    versions.drain(..versions.len() - 1);
                }
            }
            Event::Flush { disk } => {
                let cold = versions[0] == [1];
                let (cut, other) = (&moments[*disk], &moments[1 - *disk]);
                cut.cuts(|image| {
                    states += 1;
                    let second = match states % 3 {
                        0 => other.with(|_, _| false),
                        1 => other.with(|_, _| true),
                        _ => other.with(|n, s| (n + s) % 2 == 0),
                    };
                    let rotten = [None, Some(0), Some(1)][states / 3 % 3].filter(|_| cold);
                    let mut images = [image, second];
                    if *disk == 1 {
                        images.swap(0, 1);
                    }
                    let what = format!("at event {number}, state {states}, rot on {rotten:?}");
                    look(images, rotten, &versions, &what);
                });
                moments[*disk].note(&event);
            }
            Event::Write { disk, .. } => moments[*disk].note(&event),
        }
    }
    assert!(states > 300, "only {states} states");
    assert_eq!(DATA_START % BLOCK_BYTES, 0);
}
