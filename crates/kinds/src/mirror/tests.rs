//! Tests of `mirror` that inspect its members and the content of their disks.

use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use block::control::Verb;
use block::control::member::{Fail, Name, Resync, Stale};
use block::{ByteRange, Extent, MemberState, Op, State};
use kind::Value;
use sim::draw::Stream;
use sim::{Assembly, Client, CutPolicy, DiskConfig, Faults, PartId, Profile, SimDisk, SimWorld};
use testkit::Shelf;

pub(super) const MIB: u64 = 1 << 20;

/// A mirror over simulated disks, two in most tests. Without labels the mirror trusts its first member.
pub(super) struct Pair {
    pub(super) world: SimWorld,
    pub(super) shelf: Option<Rc<Shelf>>,
    options: Vec<(&'static str, Value)>,
    pub(super) disks: Vec<Rc<SimDisk>>,
    running: Option<Running>,
}

pub(super) struct Running {
    graph: Assembly,
    pub(super) names: Vec<String>,
    mirror: PartId,
}

impl Pair {
    pub(super) fn new(size: u64) -> Self {
        Self::over(size, false, &[])
    }

    /// Creates a mirror over two labelled disks, and waits until its members are in sync.
    pub(super) fn labelled(size: u64, options: &[(&'static str, Value)]) -> Self {
        let pair = Self::over(size, true, options);
        pair.until(|second| second.state == MemberState::InSync);
        pair
    }

    /// Creates a mirror over two disks. The mirror keeps its state in the labels of the disks if they are `labelled`.
    pub(super) fn over(size: u64, labelled: bool, options: &[(&'static str, Value)]) -> Self {
        Self::of(2, size, labelled, options)
    }

    /// Creates a mirror over `count` disks with blocks of 512 bytes.
    pub(super) fn of(
        count: usize,
        size: u64,
        labelled: bool,
        options: &[(&'static str, Value)],
    ) -> Self {
        Self::with_profiles(&vec![Profile::Native512; count], size, labelled, options)
    }

    /// Creates a mirror over one disk for each of the `profiles`.
    pub(super) fn with_profiles(
        profiles: &[Profile],
        size: u64,
        labelled: bool,
        options: &[(&'static str, Value)],
    ) -> Self {
        Self::in_world(&SimWorld::new(1), profiles, size, labelled, false, options)
    }

    /// Creates a mirror of `count` new disks, whose members have room for its store, in the world `world`.
    pub(super) fn with_room(
        world: &SimWorld,
        count: usize,
        size: u64,
        options: &[(&'static str, Value)],
    ) -> Self {
        Self::in_world(world, &vec![Profile::Native512; count], size, true, true, options)
    }

    fn in_world(
        world: &SimWorld,
        profiles: &[Profile],
        size: u64,
        labelled: bool,
        has_room: bool,
        options: &[(&'static str, Value)],
    ) -> Self {
        let world = world.clone();
        let disk = |(n, profile): (usize, &Profile)| {
            let config = DiskConfig { destage: 0, ..DiskConfig::new(size, *profile) };
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks: Vec<_> = profiles.iter().enumerate().map(disk).collect();
        if !labelled {
            // A resync skips ranges that are zero on both members.
            disks[0].overwrite(ByteRange::new(0, size).unwrap(), 5);
        }
        let strict = || Shelf::strict(&world.env(), Stream::new(1, "shelf", 0), Vec::new());
        let shelf = labelled.then(strict);
        if let Some(shelf) = shelf.as_ref().filter(|_| has_room) {
            shelf.precede_plans();
        }
        let mut pair = Self { world, shelf, options: options.to_vec(), disks, running: None };
        pair.start();
        pair
    }

    pub(super) fn start(&mut self) {
        let order = Stream::new(1, "order", 0);
        let env = self.world.env();
        let mut graph = Assembly::new(&env, crate::REGISTRY, false, order).in_world(&self.world);
        if let Some(shelf) = &self.shelf {
            graph = graph.on_labels(shelf.clone());
            shelf.close(false);
        }
        let mut part = |n| {
            let path = Value::Text(format!("/disk{n}"));
            graph.add("path", &[("path", path)], &[]).unwrap()
        };
        let parts: Vec<_> = (0..self.disks.len()).map(&mut part).collect();
        let names: Vec<_> = parts.iter().map(|part| graph.name(*part).to_owned()).collect();
        let trust = ("trust", Value::Text(names[0].clone()));
        let options = [&[trust][..], &self.options].concat();
        let mirror = graph.add("mirror", &options, &parts).unwrap();
        self.running = Some(Running { graph, names, mirror });
    }

    /// Cuts the power, and restarts the mirror. The first disk keeps all writes, the second disk only flushed writes.
    pub(super) fn power_cut(&mut self) {
        self.cut(&[CutPolicy::KeepAll, CutPolicy::DropAll]);
        self.start();
    }

    /// Cuts the power of each disk, with one of the `policies`.
    pub(super) fn cut(&mut self, policies: &[CutPolicy]) {
        self.world.drop_tasks();
        self.running = None;
        let disks = self.disks.iter().zip(policies.iter().cycle());
        disks.for_each(|(disk, policy)| disk.power_cut(*policy));
    }

    pub(super) fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub(super) fn client(&self) -> Client {
        let Running { graph, mirror, .. } = self.running();
        Client::new(&graph.engine, graph.node(*mirror))
    }

    pub(super) fn ask<V: Verb>(&self, args: V::Args) {
        self.try_ask::<V>(args).unwrap();
    }

    pub(super) fn try_ask<V: Verb>(&self, args: V::Args) -> block::Result<V::Answer> {
        let Running { graph, mirror, .. } = self.running();
        graph.ask::<V>(*mirror, args)
    }

    pub(super) fn report(&self) -> block::Report {
        let Running { graph, mirror, .. } = self.running();
        graph.report(*mirror)
    }

    /// Fails the second member of the mirror by command.
    pub(super) fn fail(&self) {
        self.ask::<Fail>(Name { member: self.running().names[1].clone() });
    }

    /// Fails the second member of the mirror by command, unless it is out already.
    pub(super) fn fail_if_possible(&self) {
        let name = Name { member: self.running().names[1].clone() };
        let _ = self.try_ask::<Fail>(name);
    }

    /// Begins a resync of the second member by command, unless it is in sync or being copied.
    pub(super) fn resync_if_possible(&self) {
        let _ = self.try_ask::<Resync>(Stale { member: Some(self.running().names[1].clone()) });
    }

    /// Returns the value of the byte at `start`.
    pub(super) fn read(&self, start: u64) -> u8 {
        let range = ByteRange::new(start, 4096).unwrap();
        let into = self.world.env().buf(4096).unwrap();
        let read = self.world.block_on(self.client().send(Op::read(range, into)));
        let Op::Read { into, .. } = read.unwrap().op else { panic!("it was a read") };
        into.read()[0]
    }

    /// Begins a resync of the second member by command.
    pub(super) fn resync(&self) {
        self.ask::<Resync>(Stale { member: Some(self.running().names[1].clone()) });
    }

    pub(super) fn write_of(&self, start: u64, byte: u8) -> Op {
        self.long_write_of(start, 4096, byte)
    }

    pub(super) fn long_write_of(&self, start: u64, len: u64, byte: u8) -> Op {
        let data = self.world.env().buf(len as usize).unwrap();
        data.write().fill(byte);
        Op::write(ByteRange::new(start, len).unwrap(), data)
    }

    pub(super) fn write(&self, start: u64, byte: u8) {
        self.send(self.write_of(start, byte));
    }

    pub(super) fn send(&self, op: Op) {
        self.world.block_on(self.client().send(op)).unwrap().result.unwrap();
    }

    pub(super) fn second(&self) -> block::Member {
        self.report().members[1].clone()
    }

    /// Returns the number of bytes that the running resync must copy to the second member.
    pub(super) fn to_copy(&self) -> u64 {
        self.second().progress.expect("it is copied").all_bytes
    }

    pub(super) fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }

    pub(super) fn until(&self, over: impl Fn(&block::Member) -> bool) {
        while !over(&self.second()) {
            self.pass(Duration::from_micros(10));
        }
    }

    /// Returns the size of the mirror in bytes.
    pub(super) fn size(&self) -> u64 {
        let Running { graph, mirror, .. } = self.running();
        graph.info(*mirror).size
    }

    pub(super) fn is_alike(&self) -> bool {
        let all = ByteRange::new(0, self.size()).unwrap();
        self.disks[0].peek(all) == self.disks[1].peek(all)
    }
}

#[test]
fn resync_restarts_if_member_fails_during_resync() {
    let pair = Pair::new(8 * MIB);
    // The first copy is almost done. A region that it has passed is written without the member. Then that copy must not
    // mark the member as in sync.
    pair.until(|second| second.progress.is_some_and(|copy| copy.done_bytes == 7 * MIB));
    pair.fail();
    pair.write(3 * MIB, 7);
    pair.resync();
    pair.until(|second| second.state == MemberState::InSync);
    assert!(pair.is_alike());
}

#[test]
fn mirror_fails_member_at_once_after_failed_flush() {
    let pair = Pair::new(MIB);
    pair.until(|second| second.state == MemberState::InSync);
    pair.write(0, 7);
    pair.disks[0].set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    pair.disks[1].set_faults(Faults { flush_error: 1_000_000, ..Faults::default() });
    let flush = pair.client().send(Op::Flush);
    pair.pass(Duration::from_millis(10));
    assert_eq!(pair.second().state, MemberState::Failed);
    // The reply of the first member is late, and counts.
    pair.world.block_on(flush).unwrap().result.unwrap();
}

/// The mirror acknowledges a write that a member misses only after the label of the other member records the stale
/// member. Otherwise a start after a crash could read the stale member.
#[test]
fn degraded_write_waits_until_label_records_stale_member() {
    let pair = Pair::over(MIB, true, &[]);
    let shelf = pair.shelf.clone().expect("its disks are labelled");
    pair.until(|second| second.state == MemberState::InSync);
    pair.write(0, 7);
    pair.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    shelf.hold(true);
    let mut write = std::pin::pin!(pair.client().send(pair.write_of(4096, 8)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(write.as_mut().poll(&mut cx).is_pending());
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.second().state, MemberState::Failed);
    assert!(write.as_mut().poll(&mut cx).is_pending(), "the label does not say so yet");
    let before = shelf.writes();
    shelf.hold(false);
    pair.world.block_on(write).unwrap().result.unwrap();
    assert!(shelf.writes() > before);
}

#[test]
fn mirror_resyncs_only_dirty_regions_after_power_cut() {
    let mut pair = Pair::labelled(64 * MIB, &[]);
    for region in [3, 40, 63] {
        pair.write(region * MIB + 8192, 7);
    }
    pair.power_cut();
    assert_eq!(pair.to_copy(), 3 * MIB);
    pair.until(|second| second.state == MemberState::InSync);
    assert!(pair.is_alike());
}

/// The disk loses all unflushed writes, so the mirror must flush its members before it marks a region as clean.
#[test]
fn mirror_members_agree_on_clean_regions_after_power_cut() {
    let mut pair = Pair::labelled(64 * MIB, &[]);
    pair.write(3 * MIB, 7);
    pair.pass(Duration::from_secs(12));
    let writes = pair.report().counters;
    pair.pass(Duration::from_secs(3600));
    assert_eq!(pair.report().counters, writes, "there is nothing left to do");
    pair.power_cut();
    assert_eq!(pair.second().state, MemberState::InSync);
    assert!(pair.is_alike());
}

#[test]
fn region_stays_dirty_while_write_to_one_member_is_slow() {
    let clear_delay = ("clear_delay", Value::Duration(Duration::from_millis(10)));
    let mut pair = Pair::labelled(64 * MIB, &[clear_delay]);
    pair.disks[1].set_faults(Faults { hang: 1_000_000, ..Faults::default() });
    let mut write = std::pin::pin!(pair.client().send(pair.write_of(3 * MIB, 7)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(write.as_mut().poll(&mut cx).is_pending());
    // First the labels record that the region is dirty.
    while pair.disks[1].in_flight().is_empty() {
        pair.pass(Duration::from_micros(100));
    }
    pair.disks[1].set_faults(Faults::default());
    pair.pass(Duration::from_secs(5));
    pair.power_cut();
    pair.pass(Duration::from_secs(1));
    pair.until(|second| second.state == MemberState::InSync);
    assert!(pair.is_alike());
}

#[test]
fn mirror_marks_region_dirty_durably_before_write() {
    let pair = Pair::over(8 * MIB, true, &[]);
    let shelf = pair.shelf.clone().expect("its disks are labelled");
    pair.until(|second| second.state == MemberState::InSync);
    pair.write(0, 7);
    shelf.hold(true);
    let mut write = std::pin::pin!(pair.client().send(pair.write_of(4 * MIB, 8)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(write.as_mut().poll(&mut cx).is_pending());
    // A write to a region that is already dirty does not wait.
    pair.write(4096, 9);
    pair.pass(Duration::from_secs(1));
    let at = ByteRange::new(4 * MIB, 512).unwrap();
    assert!(pair.disks.iter().all(|disk| disk.peek(at) == [0; 512]), "no label says so yet");
    shelf.hold(false);
    pair.world.block_on(write).unwrap().result.unwrap();
}

#[test]
fn resync_copies_only_regions_missed_by_failed_member() {
    let pair = Pair::labelled(64 * MIB, &[]);
    pair.write(3 * MIB, 7);
    pair.pass(Duration::from_secs(12));
    pair.fail();
    pair.write(20 * MIB, 8);
    pair.pass(Duration::from_secs(60));
    pair.write(21 * MIB, 8);
    pair.resync();
    assert_eq!(pair.to_copy(), 2 * MIB);
    pair.until(|second| second.state == MemberState::InSync);
    assert!(pair.is_alike());
}

/// The labels record the progress of a resync from time to time. The recorded regions are durable on the member.
#[test]
fn resync_resumes_after_power_cut() {
    let mut pair = Pair::over(64 * MIB, true, &[]);
    pair.fail();
    (0..64).for_each(|region| pair.write(region * MIB, 7));
    pair.pass(Duration::from_secs(60));
    pair.resync();
    assert_eq!(pair.to_copy(), 64 * MIB);
    pair.until(|second| second.progress.is_some_and(|copy| copy.done_bytes >= 32 * MIB));
    pair.power_cut();
    assert!((32 * MIB..=36 * MIB).contains(&pair.to_copy()), "{}", pair.to_copy());
    pair.until(|second| second.state == MemberState::InSync);
    assert!(pair.is_alike());
}

/// Sends `writes` writes to the mirror, one every 20 milliseconds. Returns the number of label updates in that time.
fn updates(pair: &Pair, writes: u64, write: impl Fn(u64) -> Op) -> u64 {
    let before = pair.shelf.as_ref().unwrap().writes();
    for n in 0..writes {
        pair.send(write(n));
        pair.pass(Duration::from_millis(20));
    }
    pair.shelf.as_ref().unwrap().writes() - before
}

#[test]
fn mirror_bitmap_causes_few_label_updates() {
    let pair = Pair::labelled(64 * MIB, &[]);
    let somewhere = |n: u64| pair.write_of(n * 7919 % 16384 * 4096, 7);
    updates(&pair, 1000, somewhere);
    let random = updates(&pair, 3000, somewhere);
    assert!(random <= 90, "{random} updates for 3000 random writes");
    pair.pass(Duration::from_secs(60));
    let in_a_row = |n: u64| pair.long_write_of(n % 128 * (MIB / 2), MIB / 2, 7);
    let sequential = updates(&pair, 1000, in_a_row);
    assert!((1..=30).contains(&sequential), "{sequential} updates for 1000 writes in a row");
}

#[test]
fn spare_replaces_failed_member() {
    let spares = [("spares", Value::Integer(1))];
    let mut three = Pair::of(3, 4 * MIB, true, &spares);
    let states = |three: &Pair| {
        let members = three.report().members;
        members.into_iter().map(|member| member.state).collect::<Vec<_>>()
    };
    three.until(|second| second.state == MemberState::InSync);
    assert_eq!(states(&three), [MemberState::InSync, MemberState::InSync, MemberState::Spare]);
    assert_eq!(three.report().health, block::Health::Ok);
    three.write(MIB, 7);
    let range = ByteRange::new(0, 4 * MIB).unwrap();
    assert!(three.disks[2].peek(range).iter().all(|byte| *byte == 0), "it has no copy");
    three.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    three.write(2 * MIB, 8);
    assert_eq!(states(&three), [MemberState::InSync, MemberState::Failed, MemberState::Copying]);
    three.pass(Duration::from_secs(5));
    assert_eq!(states(&three), [MemberState::InSync, MemberState::Failed, MemberState::InSync]);
    assert!(three.disks[2].peek(range) == three.disks[0].peek(range));
    // The spec is unchanged: the failed member is now the surplus one.
    three.disks[1].set_faults(Faults::default());
    three.power_cut();
    three.pass(Duration::from_secs(5));
    assert_eq!(states(&three), [MemberState::InSync, MemberState::Spare, MemberState::InSync]);
    assert!(three.disks[2].peek(range) == three.disks[0].peek(range));
}

/// While clients send requests, a resync has about a sixth of the speed that it has without clients.
#[test]
fn resync_yields_to_clients_and_completes() {
    let pair = Pair::new(96 * MIB);
    let copied = |pair: &Pair| pair.second().progress.map_or(96 * MIB, |copy| copy.done_bytes);
    let window = Duration::from_millis(20);
    pair.pass(window);
    let alone = copied(&pair);
    assert!(alone > 10 * MIB, "{alone} bytes");
    // Long enough that the throttle notices the clients.
    let begun = pair.world.env().now();
    let mut before = 0;
    for n in 0.. {
        pair.write(n % 64 * 4096, 7);
        let past = pair.world.env().now().since(begun);
        before = if past < window { copied(&pair) } else { before };
        if past > window * 5 {
            break;
        }
    }
    let beside = (copied(&pair) - before) / 4;
    let sixth = alone / 6;
    assert!(
        (sixth / 2..=sixth * 3 / 2).contains(&beside),
        "{beside} beside clients, {alone} alone"
    );
}

/// A write fails on the last member in sync, which stays in sync. The write is still in flight to the second member
/// when the resync of the second member ends. Once the second member has the write, the mirror fails the first member.
#[test]
fn mirror_fails_last_member_that_missed_write_after_resync_of_other() {
    let pair = Pair::new(8 * MIB);
    pair.until(|second| second.progress.is_some_and(|copy| copy.done_bytes == 4 * MIB));
    pair.disks[0].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    pair.disks[1].set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    // The write goes to a range that was copied already.
    let mut write = std::pin::pin!(pair.client().send(pair.write_of(0, 7)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(write.as_mut().poll(&mut cx).is_pending());
    pair.disks[1].set_faults(Faults::default());
    pair.pass(Duration::from_millis(1));
    let first = || pair.report().members[0].clone();
    assert_eq!((first().state, first().errors), (MemberState::InSync, 1));
    assert_eq!(pair.second().state, MemberState::Copying);
    pair.disks[0].set_faults(Faults::default());
    pair.until(|second| second.state == MemberState::InSync);
    assert!(write.as_mut().poll(&mut cx).is_pending());

    pair.world.block_on(write).unwrap().result.unwrap();
    assert_eq!((first().state, pair.second().state), (MemberState::Failed, MemberState::InSync));
}

/// A disk with a failed flush may have lost writes that a member has which is copied from it.
#[test]
fn nothing_is_copied_from_member_after_its_failed_flush() {
    let pair = Pair::new(8 * MIB);
    pair.until(|second| second.progress.is_some_and(|copy| copy.done_bytes == 4 * MIB));
    pair.write(6 * MIB, 7);
    pair.disks[0].set_faults(Faults { flush_error: 1_000_000, ..Faults::default() });
    pair.disks[1].set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    let mut flush = std::pin::pin!(pair.client().send(Op::Flush));
    assert!(flush.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    pair.disks[1].set_faults(Faults::default());
    pair.pass(Duration::from_millis(1));
    let first = pair.report().members[0].clone();
    assert_eq!((first.state, first.errors), (MemberState::InSync, 1));
    assert_eq!(pair.second().state, MemberState::Stale);
    pair.world.block_on(flush).unwrap().result.unwrap_err();
}

/// A write to the source timed out and may still land. It would change the source after the resync copied the range.
#[test]
fn resync_refuses_source_with_late_requests() {
    let timeout = ("timeout", Value::Duration(Duration::from_secs(1)));
    let pair = Pair::over(MIB, false, &[timeout]);
    pair.until(|second| second.state == MemberState::InSync);
    pair.fail();
    pair.disks[0].set_faults(Faults { hang: 1_000_000, ..Faults::default() });
    let write = pair.client().send(pair.write_of(0, 7));
    pair.world.block_on(write).unwrap().result.unwrap_err();
    pair.disks[0].set_faults(Faults::default());
    let Running { graph, names, mirror } = pair.running();
    let resync = |member| graph.ask::<Resync>(*mirror, Stale { member });
    let refused = resync(Some(names[1].clone())).unwrap_err().to_string();
    assert!(refused.contains("a late write would make a copy of that member differ"), "{refused}");
    resync(None).unwrap();
    assert_eq!(pair.second().state, MemberState::Failed);

    pair.disks[0].release();
    pair.pass(Duration::from_millis(1));
    pair.resync();
    pair.until(|second| second.state == MemberState::InSync);
    assert!(pair.is_alike());
}

/// A write to the last member times out, and the member stays in sync. The late write must land before the mirror
/// sends a newer write to the same range.
#[test]
fn mirror_fences_late_write_from_newer_bytes() {
    let timeout = ("timeout", Value::Duration(Duration::from_secs(1)));
    let pair = Pair::over(MIB, false, &[timeout]);
    pair.until(|second| second.state == MemberState::InSync);
    pair.fail();
    pair.disks[0].set_faults(Faults { hang: 1_000_000, ..Faults::default() });
    let write = pair.client().send(pair.write_of(0, 7));
    pair.world.block_on(write).unwrap().result.unwrap_err();
    pair.disks[0].set_faults(Faults::default());

    let mut since = std::pin::pin!(pair.client().send(pair.write_of(0, 9)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(since.as_mut().poll(&mut cx).is_pending());
    pair.pass(Duration::from_millis(100));
    assert!(since.as_mut().poll(&mut cx).is_pending(), "it waits");
    // A write to another range does not wait.
    pair.world.block_on(pair.client().send(pair.write_of(4096, 3))).unwrap().result.unwrap();
    pair.disks[0].release();
    pair.world.block_on(since).unwrap().result.unwrap();
    pair.pass(Duration::from_millis(100));
    assert!(pair.disks[0].peek(ByteRange::new(0, 512).unwrap()).iter().all(|byte| *byte == 9));
}

/// While a flush is in flight to the only member in sync, another member comes in sync, and the first member is failed.
#[test]
fn mirror_retries_flush_on_members_that_came_in_sync() {
    let pair = Pair::new(MIB);
    pair.until(|second| second.state == MemberState::InSync);
    pair.fail();
    pair.disks[0].set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    let mut flush = std::pin::pin!(pair.client().send(Op::Flush));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(flush.as_mut().poll(&mut cx).is_pending());
    pair.pass(Duration::from_micros(1));
    pair.disks[0].set_faults(Faults::default());
    pair.resync();
    pair.until(|second| second.state == MemberState::InSync);
    assert!(flush.as_mut().poll(&mut cx).is_pending(), "it is on its way still");
    let member = pair.running().names[0].clone();
    pair.ask::<Fail>(Name { member });
    pair.world.block_on(flush).unwrap().result.unwrap();
}

/// A resync is restarted while a write of the previous resync is in flight. If the new resync did not wait, this write
/// could land after the member has come in sync.
#[test]
fn resync_waits_for_late_write_of_previous_resync() {
    let timeout = ("timeout", Value::Duration(Duration::from_millis(50)));
    let pair = Pair::over(MIB, false, &[timeout]);
    pair.disks[1].set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    // The first resync has read its range and begun to write it.
    pair.pass(Duration::from_millis(10));
    pair.fail();
    pair.resync();
    pair.disks[1].set_faults(Faults::default());
    // Longer than the timeout, shorter than the shortest stall.
    pair.pass(Duration::from_millis(80));
    pair.write(0, 7);
    pair.pass(Duration::from_secs(10));
    assert!(
        pair.is_alike() || pair.second().state != MemberState::InSync,
        "the late write is on top"
    );
    assert_eq!(pair.second().state, MemberState::Failed);
    pair.resync();
    pair.until(|second| second.state == MemberState::InSync);
    assert!(pair.is_alike());
}

/// Block status fails on the first member, so the mirror must return the extents of the second member only.
#[test]
fn mirror_returns_block_status_of_one_member() {
    let (world, size) = (SimWorld::new(1), ("memory", Value::Size(MIB)));
    let mut graph = Assembly::new(&world.env(), crate::REGISTRY, true, Stream::new(1, "order", 0));
    let disks = [(); 2].map(|()| graph.add("memory", std::slice::from_ref(&size), &[]).unwrap());
    let fails =
        [("op", Value::List(vec!["status".to_owned()])), ("when", Value::Text("after".to_owned()))];
    let bad = graph.add("error", &fails, &disks[..1]).unwrap();
    let trust = ("trust", Value::Text(graph.name(bad).to_owned()));
    let mirror = graph.add("mirror", &[trust], &[bad, disks[1]]).unwrap();
    world.run(world.env().now().after(Duration::from_secs(1))).unwrap();

    let client = Client::new(&graph.engine, graph.node(mirror));
    let range = ByteRange::new(0, MIB).unwrap();
    let status = client.send(Op::Status { range, extents: Vec::new() });
    let Op::Status { extents, .. } = world.block_on(status).unwrap().op else { panic!() };
    // The first member has holes. The second one was copied from it, and has data everywhere.
    assert_eq!(extents, [Extent { len: MIB, state: State::Data }]);
}

/// The source of a resync is failed by command during a read, and its bytes change. The resync must read the range
/// again from another member.
#[test]
fn resync_rereads_range_when_source_fails_during_read() {
    let pair = Pair::of(3, MIB, false, &[]);
    let is_in_sync = |member: &block::Member| member.state == MemberState::InSync;
    while !pair.report().members.iter().all(is_in_sync) {
        pair.pass(Duration::from_millis(1));
    }
    pair.fail();
    pair.write(0, 7);
    pair.send(Op::Flush);
    pair.disks[0].set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    pair.resync();
    pair.pass(Duration::from_millis(1));
    pair.disks[0].set_faults(Faults::default());
    pair.ask::<Fail>(Name { member: pair.running().names[0].clone() });
    assert!(pair.disks[0].rot(0));
    pair.until(is_in_sync);
    let all = ByteRange::new(0, MIB).unwrap();
    assert!(pair.disks[1].peek(all) == pair.disks[2].peek(all), "members in sync are alike");
}

/// While a block-status request is in flight to the only member in sync, a second member comes in sync, and the first
/// member is failed. The mirror must then ask the second member.
#[test]
fn mirror_retries_block_status_on_member_that_came_in_sync() {
    let (world, disk) = (SimWorld::new(1), ("memory", Value::Size(MIB)));
    let mut graph = Assembly::new(&world.env(), crate::REGISTRY, true, Stream::new(1, "order", 0));
    let disks = [(); 2].map(|()| graph.add("memory", std::slice::from_ref(&disk), &[]).unwrap());
    let slow = |n, verb, seconds| (n, [(verb, Value::Duration(Duration::from_secs(seconds)))]);
    let members = [slow(0, "flush", 1), slow(1, "read", 2)]
        .map(|(n, options)| graph.add("delay", &options, &disks[n..=n]).unwrap());
    let second = graph.name(members[1]).to_owned();
    let trust = ("trust", Value::Text(second.clone()));
    let mirror = graph.add("mirror", &[trust], &members).unwrap();
    let client = Client::new(&graph.engine, graph.node(mirror));
    let range = ByteRange::new(0, MIB).unwrap();

    // The status request waits for the write of the resync, and is in flight when the resync flushes.
    world.run(world.env().now().after(Duration::from_millis(1))).unwrap();
    let status = client.send(Op::Status { range, extents: Vec::new() });
    while graph.report(mirror).members[0].state != MemberState::InSync {
        world.run(world.env().now().after(Duration::from_millis(10))).unwrap();
    }
    graph.ask::<Fail>(mirror, Name { member: second }).unwrap();
    world.block_on(status).unwrap().result.unwrap();
}
