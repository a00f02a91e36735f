//! Tests of mirrors with their maps in a store on their members.

use std::time::Duration;

use block::{ByteRange, MemberState, Op};
use kind::Value;
use meta::vault::page::PAGE_BYTES;
use meta::vault::superblock::Superblock;
use sim::draw::Stream;
use sim::{CutPolicy, Faults, SimWorld};

use super::record::Record;
use super::room;
use super::tests::{MIB, Pair};

const KIB: u64 = 1 << 10;

/// Bytes in the regions that a first write of 4 KiB marks: its own, and those that the next writes in sequence reach.
const MARKED: u64 = 6 * 64 * KIB;

/// Options of a mirror with small regions, which are cleared soon.
fn options() -> [(&'static str, Value); 2] {
    let delay = Value::Duration(Duration::from_millis(50));
    [("region", Value::Size(64 * KIB)), ("clear_delay", delay)]
}

/// Creates a mirror of two new disks with a store, and waits until both members are in sync and the labels name the store.
fn pair() -> Pair {
    let pair = Pair::with_room(&SimWorld::new(1), 2, 8 * MIB, &options());
    until_stored(&pair);
    pair
}

fn record(pair: &Pair) -> Option<Record> {
    let bytes = pair.shelf.as_ref().expect("the disks have labels").bytes()?;
    Some(Record::decode(&bytes).expect("the mirror wrote it"))
}

fn until_stored(pair: &Pair) {
    let is_over = || {
        let has_store = record(pair).is_some_and(|record| record.store().is_some());
        has_store && pair.second().state == MemberState::InSync
    };
    while !is_over() {
        pair.pass(Duration::from_millis(1));
    }
}

/// Returns the copies that the newest superblock on disk `n` records as current, as a bitmap.
fn current_on(pair: &Pair, n: usize) -> u32 {
    let start = room::range(pair.disks[n].config().size).start();
    let page = |slot: u64| ByteRange::new(start + slot * PAGE_BYTES as u64, PAGE_BYTES as u64);
    let superblock = |slot: u64| {
        let bytes = pair.disks[n].peek(page(slot).expect("a page has bytes"));
        Superblock::decode(&bytes).ok()
    };
    let all = [superblock(0), superblock(1)].into_iter().flatten();
    let newest = all.max_by_key(|superblock| (superblock.epoch.number, superblock.sequence));
    newest.map_or(0, |superblock| superblock.current)
}

#[test]
fn new_mirror_moves_its_maps_to_store_on_members() {
    let pair = pair();
    let record = record(&pair).unwrap();
    assert_eq!(record.room.as_ref().unwrap().lowers, [8 * MIB; 2]);
    assert_eq!(record.store().unwrap().regions.region_bytes(), 64 * KIB);
    assert_eq!(pair.size(), room::range(8 * MIB).start());
    assert!(record.active.is_empty());
    assert_eq!([current_on(&pair, 0), current_on(&pair, 1)], [0b11; 2]);
    let labels = pair.shelf.as_ref().unwrap().writes();
    (0..20).for_each(|n| pair.write(n * 256 * KIB, 3));
    assert_eq!(pair.shelf.as_ref().unwrap().writes(), labels, "no mark is in labels");
}

#[test]
fn mirror_without_new_disks_keeps_maps_in_labels() {
    let pair = Pair::labelled(8 * MIB, &options());
    assert!(record(&pair).unwrap().room.is_none());
    assert_eq!(pair.size(), 8 * MIB);
}

/// Returns a state of version 4, as mirrors wrote it before they had stores: of a mirror of 8 MiB with two members in sync and
/// regions of 64 KiB, of which region 2 is dirty.
fn state_of_version_4(names: &[String]) -> Vec<u8> {
    let mut bytes = vec![0; 64 + 2 * 104 + 16];
    (bytes[0], bytes[4], bytes[6], bytes[8], bytes[16]) = (4, 2, 1, 9, 5);
    (bytes[26], bytes[34]) = (0x80, 1);
    bytes[48..56].fill(0xff);
    for (n, name) in names.iter().enumerate() {
        let at = 64 + 104 * n;
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        (bytes[at + 64], bytes[at + 72], bytes[at + 80]) = (1, 9, 5);
        (bytes[at + 88], bytes[at + 96]) = (9, 5);
    }
    bytes[64 + 2 * 104] = 0b100;
    bytes
}

#[test]
fn mirror_with_state_of_version_4_keeps_its_size_and_maps_in_labels() {
    let mut pair = Pair::labelled(8 * MIB, &options());
    let state = state_of_version_4(&pair.running().names);
    pair.cut(&[CutPolicy::KeepAll]);
    let shelf = pair.shelf.as_ref().unwrap();
    shelf.precede_plans();
    shelf.put(Some(state));
    pair.start();
    assert_eq!((pair.size(), pair.to_copy()), (8 * MIB, 64 * KIB));
    // The last block is where a store would be.
    pair.write(8 * MIB - 4096, 7);
    pair.until(|second| second.state == MemberState::InSync);
    pair.power_cut();
    assert_eq!((pair.size(), pair.to_copy()), (8 * MIB, 64 * KIB));
    pair.until(|second| second.state == MemberState::InSync);
    assert!(record(&pair).unwrap().room.is_none());
    assert!(pair.is_alike());
    assert_eq!(pair.read(8 * MIB - 4096), 7);
}

#[test]
fn resync_copies_dirty_regions_of_store_after_power_cut() {
    let mut pair = pair();
    pair.write(0, 1);
    pair.send(Op::Flush);
    // The region is cleared, and another one is dirty.
    pair.pass(Duration::from_secs(1));
    pair.write(2 * MIB, 2);
    pair.power_cut();
    assert_eq!(pair.to_copy(), MARKED);
    until_stored(&pair);
    assert!(pair.is_alike());
    pair.power_cut();
    assert_eq!(pair.second().state, MemberState::InSync, "the region was cleared with the resync");
}

#[test]
fn mirror_clears_dirty_regions_without_flush_of_client() {
    let mut pair = pair();
    (0..10).for_each(|n| pair.write(n * 512 * KIB, 1));
    pair.pass(Duration::from_secs(1));
    pair.power_cut();
    assert_eq!(pair.second().state, MemberState::InSync);
    assert!(pair.is_alike());
}

#[test]
fn resync_of_failed_member_copies_missed_regions_of_store_after_power_cut() {
    let mut pair = pair();
    pair.fail();
    pair.write(MIB, 5);
    pair.send(Op::Flush);
    // The region is not dirty any more when the power fails.
    pair.pass(Duration::from_secs(1));
    assert_eq!((current_on(&pair, 0), current_on(&pair, 1)), (0b01, 0b11));
    pair.cut(&[CutPolicy::KeepAll, CutPolicy::KeepAll]);
    pair.start();
    assert_eq!(pair.to_copy(), 64 * KIB);
    until_stored(&pair);
    assert!(pair.is_alike());
    assert_eq!([current_on(&pair, 0), current_on(&pair, 1)], [0b11; 2]);
}

#[test]
fn member_comes_in_sync_after_its_replica_of_store() {
    let pair = pair();
    pair.fail();
    pair.write(MIB, 5);
    pair.pass(Duration::from_secs(1));
    assert_eq!(current_on(&pair, 0), 0b01);
    pair.resync();
    pair.until(|second| second.state == MemberState::InSync);
    assert_eq!([current_on(&pair, 0), current_on(&pair, 1)], [0b11; 2]);
}

/// The store records that it has left the replica behind only when the member is being copied again.
#[test]
fn member_that_missed_no_write_comes_in_sync_after_its_replica() {
    let pair = pair();
    pair.fail();
    pair.pass(Duration::from_millis(1));
    assert_eq!(current_on(&pair, 0), 0b11);
    pair.resync();
    // Before the replica is current again, the store records that it was left behind.
    pair.write(MIB, 5);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.second().state, MemberState::InSync);
    assert_eq!([current_on(&pair, 0), current_on(&pair, 1)], [0b11; 2]);
}

/// Until the labels record that a member is stale, the other replica must count it as current: the labels may not get there.
#[test]
fn replica_is_left_behind_after_labels_record_stale_member() {
    let pair = pair();
    pair.shelf.as_ref().unwrap().hold(true);
    pair.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    let write = pair.client().send(pair.write_of(3 * MIB, 9));
    let mut write = std::pin::pin!(write);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(write.as_mut().poll(&mut cx).is_pending());
    pair.pass(Duration::from_secs(2));
    assert_eq!(current_on(&pair, 0), 0b11);
    pair.shelf.as_ref().unwrap().hold(false);
    pair.world.block_on(write).unwrap().result.unwrap();
    pair.pass(Duration::from_secs(2));
    assert_eq!(current_on(&pair, 0), 0b01);
    assert_eq!(pair.second().state, MemberState::Failed);
    assert!(record(&pair).unwrap().store().is_some(), "the store goes on without it");
}

#[test]
fn maps_return_to_labels_if_last_member_cannot_write_store() {
    let mut pair = pair();
    pair.fail();
    pair.write(0, 1);
    pair.disks[0].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    let refused = pair.client().send(pair.write_of(3 * MIB, 9));
    assert!(pair.world.block_on(refused).unwrap().result.is_err(), "its data are not written");
    pair.disks[0].set_faults(Faults::default());
    pair.write(4 * MIB, 9);
    assert!(record(&pair).unwrap().store().is_none());
    pair.cut(&[CutPolicy::KeepAll]);
    pair.start();
    assert_eq!(pair.to_copy(), 3 * MARKED);
    until_stored(&pair);
    assert!(pair.is_alike());
}

#[test]
fn late_member_does_not_hold_up_marks_of_others() {
    let pair = Pair::with_room(&SimWorld::new(1), 2, 8 * MIB, &{
        let timeout = ("timeout", Value::Duration(Duration::from_millis(100)));
        [options().to_vec(), vec![timeout]].concat()
    });
    until_stored(&pair);
    pair.disks[1].set_faults(Faults { hang: 1_000_000, ..Faults::default() });
    let begun = pair.world.env().now();
    pair.write(5 * MIB, 1);
    assert!(pair.world.env().now().since(begun) < Duration::from_secs(1));
    assert_eq!(pair.second().state, MemberState::Failed);
}

/// Damages every replica of the store: all regions count as dirty.
#[test]
fn mirror_copies_everything_if_store_is_lost() {
    let mut pair = pair();
    pair.write(0, 1);
    pair.cut(&[CutPolicy::KeepAll]);
    let room = room::range(8 * MIB);
    pair.disks.iter().for_each(|disk| disk.overwrite(room, 0xee));
    pair.start();
    assert_eq!(pair.to_copy(), pair.size());
    until_stored(&pair);
    assert!(pair.is_alike());
}

#[test]
fn maps_of_store_are_read_if_one_replica_is_lost() {
    let mut pair = pair();
    pair.write(0, 1);
    pair.cut(&[CutPolicy::KeepAll]);
    pair.disks[0].overwrite(room::range(8 * MIB), 0xee);
    pair.start();
    assert_eq!(pair.to_copy(), MARKED);
}

#[test]
fn store_has_all_maps_when_labels_name_it() {
    let speed = ("speed", Value::Size(64 * KIB));
    let options = [&options()[..], &[speed]].concat();
    let mut pair = Pair::with_room(&SimWorld::new(1), 2, 8 * MIB, &options);
    until_stored(&pair);
    pair.write(0, 1);
    pair.power_cut();
    for is_named in [false, true] {
        while record(&pair).is_some_and(|record| record.store().is_some()) != is_named {
            pair.pass(Duration::from_micros(1));
        }
    }
    assert_eq!(pair.second().state, MemberState::Copying);
    pair.cut(&[CutPolicy::DropAll]);
    pair.start();
    while pair.second().state != MemberState::InSync {
        pair.pass(Duration::from_millis(10));
    }
    assert!(pair.is_alike());
}

/// Marks in a store do not change labels, so labels do not show that a member is an older image.
#[test]
fn member_that_is_older_image_by_its_replica_is_copied_whole() {
    let mut pair = pair();
    let image = pair.disks[1].image();
    (0..10).for_each(|n| pair.write(n * 512 * KIB, 1));
    pair.send(Op::Flush);
    // No region is dirty any more.
    pair.pass(Duration::from_secs(1));
    pair.cut(&[CutPolicy::KeepAll]);
    pair.disks[1].put_back(&image);
    pair.start();
    assert_eq!(pair.to_copy(), pair.size());
    until_stored(&pair);
    assert!(pair.is_alike());
}

/// Starts a mirror after two power cuts. At the second one, the first label alone has the state that leaves the store. With
/// `is_image`, the second disk is an image from before some writes: its label has the same state as at the first power cut.
fn pair_with_store_left_on_first(is_image: bool) -> Pair {
    let mut pair = pair();
    let shelf = pair.shelf.clone().unwrap();
    // Both labels have the last state.
    pair.pass(Duration::from_secs(1));
    let (image, states) = (pair.disks[1].image(), shelf.states());
    (0..10).for_each(|n| pair.write(n * 512 * KIB, 1));
    pair.send(Op::Flush);
    // No region is dirty any more.
    pair.pass(Duration::from_secs(1));
    pair.write(7 * MIB, 2);
    pair.cut(&[CutPolicy::KeepAll]);
    // The first state reaches both labels, and no other one.
    shelf.stop_after(Some(2));
    pair.start();
    pair.cut(&[CutPolicy::KeepAll]);
    shelf.stop_after(None);
    shelf.restore_on(1, &states);
    if is_image {
        pair.disks[1].put_back(&image);
    }
    assert!(record(&pair).unwrap().store().is_none());
    pair.start();
    pair
}

#[test]
fn older_image_with_state_that_names_left_store_is_copied_whole() {
    let pair = pair_with_store_left_on_first(true);
    assert_eq!(pair.to_copy(), pair.size());
    until_stored(&pair);
    assert!(pair.is_alike());
}

#[test]
fn member_with_state_that_names_left_store_is_copied_in_dirty_regions() {
    let pair = pair_with_store_left_on_first(false);
    assert_eq!(pair.to_copy(), MARKED);
    until_stored(&pair);
    assert!(pair.is_alike());
}

#[test]
fn resync_of_older_image_does_not_go_on_where_member_was() {
    let mut pair = pair();
    pair.fail();
    (0..100).for_each(|n| pair.write(n * 64 * KIB, 1));
    let image = pair.disks[1].image();
    pair.resync();
    pair.until(|second| second.progress.is_none_or(|it| it.done_bytes * 2 > it.all_bytes));
    pair.cut(&[CutPolicy::KeepAll]);
    pair.disks[1].put_back(&image);
    pair.start();
    until_stored(&pair);
    assert!(pair.is_alike());
}

/// A disk with a failed flush may return older bytes, also if only the store has flushed it.
#[test]
fn member_that_fails_flush_of_new_store_is_failed() {
    let mut pair = pair();
    pair.send(Op::Flush);
    pair.cut(&[CutPolicy::KeepAll]);
    pair.disks[1].set_faults(Faults { flush_error: 1_000_000, ..Faults::default() });
    pair.start();
    assert_eq!(pair.second().state, MemberState::InSync);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.second().state, MemberState::Failed);
}

/// The disks grow while the mirror is closed: the store moves, and its former bytes read as zeros.
#[test]
fn mirror_that_grows_moves_store_and_zeros_its_former_room() {
    let mut pair = pair();
    pair.fail();
    pair.write(MIB, 5);
    pair.pass(Duration::from_secs(1));
    pair.cut(&[CutPolicy::KeepAll]);
    let before = room::range(8 * MIB);
    pair.disks.iter().for_each(|disk| disk.enlarge(8 * MIB));
    pair.start();
    assert_eq!(pair.size(), room::range(16 * MIB).start());
    assert_eq!(pair.read(before.start()), 0);
    let bytes = pair.disks[0].peek(before);
    assert!(bytes.iter().all(|byte| *byte == 0));
    until_stored(&pair);
    assert!(pair.is_alike());
    assert_eq!(record(&pair).unwrap().room.unwrap().lowers, [16 * MIB; 2]);
}

/// The flushed bytes of a mirror, by slot of 64 KiB, and the bytes that unflushed writes may have left there.
struct Contents {
    flushed: Vec<u8>,
    later: Vec<Vec<u8>>,
}

/// Random writes, flushes, failures and returns of a member with power cuts at random times.
#[test]
fn mirror_with_store_keeps_flushed_writes_over_power_cuts() {
    (0..40).for_each(|seed| {
        let steps = Steps::new(seed);
        steps.run();
    });
}

struct Steps {
    pair: Pair,
    draw: Stream,
    contents: Contents,
}

const SLOTS: u64 = 24;

impl Steps {
    fn new(seed: u64) -> Self {
        let pair = Pair::with_room(&SimWorld::new(seed), 2, 4 * MIB, &options());
        let contents =
            Contents { flushed: vec![0; SLOTS as usize], later: vec![Vec::new(); SLOTS as usize] };
        Self { pair, draw: Stream::new(seed, "steps", 0), contents }
    }

    fn run(mut self) {
        for _ in 0..12 {
            for _ in 0..self.draw.below(12) {
                self.step();
            }
            let policies = [(); 2].map(|()| match self.draw.below(4) {
                0 => CutPolicy::KeepAll,
                1 => CutPolicy::DropAll,
                2 => CutPolicy::Prefix,
                _ => CutPolicy::Random,
            });
            let soon = Duration::from_micros(self.draw.below(20_000));
            self.pair.pass(soon);
            self.pair.cut(&policies);
            self.pair.start();
            self.check();
        }
    }

    fn step(&mut self) {
        match self.draw.below(10) {
            0 => self.pair.fail_if_possible(),
            1 => self.pair.resync_if_possible(),
            2 => self.pair.pass(Duration::from_millis(self.draw.below(300))),
            3 | 4 => {
                self.pair.send(Op::Flush);
                for (flushed, later) in
                    self.contents.flushed.iter_mut().zip(&mut self.contents.later)
                {
                    *flushed = later.last().copied().unwrap_or(*flushed);
                    later.clear();
                }
            }
            _ => {
                let slot = self.draw.below(SLOTS);
                let byte = 1 + self.draw.below(250) as u8;
                self.contents.later[slot as usize].push(byte);
                self.pair.write(slot * 64 * KIB, byte);
            }
        }
    }

    /// Waits until both members are in sync or failed, and checks that they are alike and have the flushed writes.
    fn check(&mut self) {
        if self.draw.below(3) > 0 {
            self.pair.resync_if_possible();
            self.pair.until(|second| second.state == MemberState::InSync);
            assert!(self.pair.is_alike());
        }
        for slot in 0..SLOTS {
            let read = self.pair.read(slot * 64 * KIB);
            let flushed = self.contents.flushed[slot as usize];
            let later = &mut self.contents.later[slot as usize];
            assert!(read == flushed || later.contains(&read), "slot {slot}: {read}");
            // A power cut has decided.
            self.contents.flushed[slot as usize] = read;
            later.clear();
        }
        self.pair.send(Op::Flush);
    }
}
