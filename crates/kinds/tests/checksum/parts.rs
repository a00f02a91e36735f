//! A mirror of checksum devices on disks with blocks of 512 bytes: writes of parts of blocks that have rotted on one member.

use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Member, MemberState, Op};
use kind::{Surroundings, Value};
use kinds::checksum::BLOCK_BYTES;
use sim::draw::Stream;
use sim::{Assembly, DiskConfig, PartId, Profile, SimDisk, SimWorld};
use testkit::Shelf;

use crate::scene::{block_on, content, run};

/// Bytes of each disk: the checksums, their log, and some data.
const DISK_BYTES: u64 = 448 << 10;
const BLOCKS: u64 = 12;
const SECTOR_BYTES: usize = 512;

struct Stack {
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    graph: Assembly,
    mirror: PartId,
}

impl Stack {
    /// Makes the devices, and writes version 1 of each block.
    fn written(seed: u64, most_ns: u64) -> Self {
        let world = SimWorld::new(seed);
        let env = world.env();
        let shelf = Shelf::strict(&env, Stream::new(seed, "shelf", 0), Vec::new());
        let order = Stream::new(seed, "order", 0);
        let graph = Assembly::new(&env, kinds::REGISTRY, false, order);
        let mut graph = graph.in_world(&world).on_labels(shelf);
        let (mut disks, mut sums) = (Vec::new(), Vec::new());
        for n in 0..2 {
            let config = DiskConfig {
                destage: 0,
                most_ns,
                ..DiskConfig::new(DISK_BYTES, Profile::Native512)
            };
            let disk = SimDisk::new(&world, n, config);
            world.plug(format!("/disk{n}"), &disk);
            disks.push(disk);
            let path = Value::Text(format!("/disk{n}"));
            let part = graph.add("path", &[("path", path)], &[]).unwrap();
            graph.surround(Surroundings { redundancy_above: true, ..Surroundings::default() });
            sums.push(graph.add("checksum", &[], &[part]).unwrap());
        }
        graph.surround(Surroundings::default());
        let trust = Value::Text(graph.name(sums[0]).to_owned());
        let mirror = graph.add("mirror", &[("trust", trust)], &sums).unwrap();
        let stack = Self { world, disks, graph, mirror };
        stack.until_in_sync();
        for block in 0..BLOCKS {
            stack.write(run(block, 1), &content(block, 1));
        }
        stack
    }

    fn until_in_sync(&self) {
        for _ in 0..60_000 {
            if self.members().iter().all(|member| member.state == MemberState::InSync) {
                return;
            }
            self.world.run(self.world.env().now().after(Duration::from_millis(1))).unwrap();
        }
        panic!("{:?}", self.members());
    }

    fn members(&self) -> Vec<Member> {
        self.graph.report(self.mirror).members
    }

    fn op(&self, range: ByteRange, bytes: &[u8]) -> Op {
        let data = self.world.env().buf(bytes.len()).unwrap();
        data.write().copy_from_slice(bytes);
        Op::write(range, data)
    }

    fn write(&self, range: ByteRange, bytes: &[u8]) {
        let (lower, op) = (self.graph.lower(self.mirror), self.op(range, bytes));
        block_on(&self.world, async { lower.call(op).await }).result.unwrap();
    }

    /// Returns the place of a block with these bytes on a disk.
    fn place(&self, disk: usize, bytes: &[u8]) -> Option<u64> {
        let all = self.disks[disk].peek(ByteRange::new(0, DISK_BYTES).unwrap());
        let blocks = (0..).step_by(BLOCK_BYTES as usize).zip(all.chunks(BLOCK_BYTES as usize));
        blocks.filter(|(_, block)| *block == bytes).map(|(at, _)| at).last()
    }

    /// Changes a bit in the last sector of a block of version 1 on the second disk.
    fn rot(&self, block: u64) {
        let at = self.place(1, &content(block, 1)).expect("the block is on the disk");
        assert!(self.disks[1].rot(at + BLOCK_BYTES - 7));
    }
}

fn sector(block: u64, n: u64) -> ByteRange {
    ByteRange::new(block * BLOCK_BYTES + n * SECTOR_BYTES as u64, SECTOR_BYTES as u64).unwrap()
}

/// Returns version 1 of a block with version 2 in these sectors.
fn mixed(block: u64, sectors: &[usize]) -> Vec<u8> {
    let (mut bytes, new) = (content(block, 1), content(block, 2));
    for n in sectors {
        let part = n * SECTOR_BYTES..(n + 1) * SECTOR_BYTES;
        bytes[part.clone()].copy_from_slice(&new[part]);
    }
    bytes
}

#[test]
fn write_of_part_of_rotten_block_keeps_member_in_sync() {
    let stack = Stack::written(1, 100_000);
    stack.rot(3);
    stack.write(sector(3, 0), &content(3, 2)[..SECTOR_BYTES]);
    let members = stack.members();
    assert!(members.iter().all(|member| member.state == MemberState::InSync), "{members:?}");
    assert_eq!((members[0].errors, members[1].errors), (0, 1), "{members:?}");
    let whole = mixed(3, &[0]);
    assert!(stack.place(0, &whole).is_some() && stack.place(1, &whole).is_some());
}

/// A write over several blocks changes a part of the first and of the last one. The blocks between them need not be read.
#[test]
fn write_across_rotten_blocks_keeps_member_in_sync() {
    let stack = Stack::written(2, 100_000);
    (3..6).for_each(|block| stack.rot(block));
    let first = sector(3, 2).start();
    let range = ByteRange::between(first, sector(5, 1).end()).unwrap();
    let new: Vec<u8> = (3..6).flat_map(|block| content(block, 2)).collect();
    let skipped = (first - 3 * BLOCK_BYTES) as usize;
    stack.write(range, &new[skipped..][..range.len() as usize]);
    let members = stack.members();
    assert_eq!(members[1].state, MemberState::InSync, "{members:?}");
    for whole in [mixed(3, &[2, 3, 4, 5, 6, 7]), content(4, 2), mixed(5, &[0, 1])] {
        assert!(stack.place(0, &whole).is_some() && stack.place(1, &whole).is_some());
    }
}

#[test]
fn member_whose_blocks_rot_is_failed_by_writes_of_parts() {
    let stack = Stack::written(3, 100_000);
    for block in 0..10 {
        assert_eq!(stack.members()[1].state, MemberState::InSync);
        stack.rot(block);
        stack.write(sector(block, 1), &content(block, 2)[SECTOR_BYTES..2 * SECTOR_BYTES]);
    }
    let members = stack.members();
    assert_eq!(members[1].state, MemberState::Failed, "{members:?}");
    assert_eq!(members[0].state, MemberState::InSync, "{members:?}");
}

/// Writes to other parts of a rotten block at the same time are all on both disks.
#[test]
fn concurrent_writes_of_parts_of_rotten_block_reach_both_members() {
    for seed in 0..200 {
        let stack = Stack::written(seed, 1_000_000);
        stack.rot(3);
        let lower = stack.graph.lower(stack.mirror);
        let new = content(3, 2);
        let writes = (0..4_usize).map(|n| {
            // Another write has read the block by now, and has not written it yet, for some of the delays.
            let delay = Duration::from_micros((seed * n as u64 * 17) % 2_500);
            stack.world.run(stack.world.env().now().after(delay)).unwrap();
            let bytes = &new[n * SECTOR_BYTES..(n + 1) * SECTOR_BYTES];
            lower.start(stack.op(sector(3, n as u64), bytes))
        });
        let writes: Vec<_> = writes.collect();
        block_on(&stack.world, async {
            for write in writes {
                write.await.result.unwrap();
            }
        });
        let whole = mixed(3, &[0, 1, 2, 3]);
        assert!(stack.place(0, &whole).is_some() && stack.place(1, &whole).is_some(), "{seed}");
    }
}
