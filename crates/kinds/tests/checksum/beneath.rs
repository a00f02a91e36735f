//! A mirror beneath a checksum device: a region is made alike after the checksum device has been through it, and no copy is
//! chosen before.

use std::rc::Rc;
use std::time::Duration;

use block::control::copies::{Action, Pending, Scrub};
use block::control::member::{Fail, Name, Resync, Stale};
use block::control::{Command, Member, Nothing, Verb};
use block::{ByteRange, Copies, ErrorKind, Lower, MemberState, Op, Result};
use kind::{Surroundings, Upper, Value};
use kinds::checksum::{BLOCK_BYTES, Core, Redundancy};
use meta::vault::Vault;
use sim::draw::Stream;
use sim::{Assembly, CutPolicy, DiskConfig, PartId, Profile, SimDisk, SimWorld};
use testkit::Shelf;

use crate::scene::{
    BLOCKS, Crash, DATA_BYTES, REGION, VAULT_BYTES, block_on, content, format_vault, open_core,
    read, run,
};

/// A mirror of labelled disks, and a disk for the vault of the checksum device above it.
struct Stack {
    world: SimWorld,
    shelf: Rc<Shelf>,
    /// The disks of the members, then that of the vault.
    disks: Vec<Rc<SimDisk>>,
    options: Vec<(&'static str, Value)>,
    running: Option<Running>,
}

struct Running {
    graph: Assembly,
    mirror: PartId,
    vault: Lower,
    core: Option<(Core, Vault)>,
}

fn alive(world: &SimWorld, time: Duration) {
    world.run(world.env().now().after(time)).unwrap();
}

impl Stack {
    /// Creates a mirror of `count` new disks with zeros, and a checksum device above it. Its blocks have version 1, and the
    /// device was closed in order since.
    fn written(count: usize) -> Self {
        let world = SimWorld::new(1);
        let size = |n| if n == count { VAULT_BYTES } else { DATA_BYTES };
        let disk = |n: usize| {
            let config = DiskConfig { destage: 0, ..DiskConfig::new(size(n), Profile::Native512) };
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks: Vec<_> = (0..=count).map(disk).collect();
        let shelf = Shelf::strict(&world.env(), Stream::new(1, "shelf", 0), Vec::new());
        let options = vec![("region", Value::Size(REGION))];
        let mut stack = Self { world, shelf, disks, options, running: None };
        stack.start(true);
        let env = stack.world.env();
        let running = stack.running.as_ref().unwrap();
        let data = running.graph.lower(running.mirror);
        block_on(&stack.world, format_vault(&env, &running.vault, &data, true));
        stack.open();
        // A new mirror copies its first member to the others, without a verifier.
        stack.until_in_sync();
        (0..BLOCKS).for_each(|block| stack.write(block, 1));
        stack.restart();
        stack
    }

    fn members(&self) -> usize {
        self.disks.len() - 1
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    /// Starts the graph without the checksum device. `clean`: the graph was closed in order.
    fn start(&mut self, clean: bool) {
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&self.world.env(), kinds::REGISTRY, false, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        self.shelf.close(clean);
        let mut part = |n: usize| {
            graph.add("path", &[("path", Value::Text(format!("/disk{n}")))], &[]).unwrap()
        };
        let parts: Vec<_> = (0..self.disks.len()).map(&mut part).collect();
        let (vault, members) = parts.split_last().unwrap();
        graph.surround(Surroundings {
            uppers: vec![Upper { name: "sums".to_owned(), verifies: true }],
            ..Surroundings::default()
        });
        let trust = ("trust", Value::Text(graph.name(members[0]).to_owned()));
        let options = [&[trust][..], &self.options].concat();
        let mirror = graph.add("mirror", &options, members).unwrap();
        let vault = graph.lower(*vault);
        self.running = Some(Running { graph, mirror, vault, core: None });
    }

    /// Opens the checksum device, which scans the pending ranges.
    fn open(&mut self) {
        let running = self.running.as_mut().expect("it runs");
        let data = running.graph.lower(running.mirror);
        let lowers = (&running.vault, &running.vault, data);
        let env = self.world.env();
        let opened = open_core(&env, lowers, Crash::Regions, Redundancy::Below);
        running.core = Some(block_on(&self.world, opened).unwrap());
    }

    /// Closes everything in order, and starts it again.
    fn restart(&mut self) {
        let running = self.running.take().expect("it runs");
        block_on(&self.world, async move {
            let (core, vault) = running.core.expect("it is open");
            core.close().await.unwrap();
            vault.close().await.unwrap();
            running.graph.close().await;
        });
        self.end();
        self.start(true);
        self.open();
    }

    /// Kills the process, and starts the graph without the checksum device.
    fn kill(&mut self) {
        self.running = None;
        self.end();
        self.start(false);
    }

    /// Kills the process, and replaces the disk of a member by one without a label.
    fn blank(&mut self, member: usize) {
        self.running = None;
        self.end();
        self.shelf.blank(member);
        self.start(false);
    }

    /// Ends the process. The disks keep all writes.
    fn end(&self) {
        self.world.drop_tasks();
        self.disks.iter().for_each(|disk| disk.power_cut(CutPolicy::KeepAll));
    }

    fn core(&self) -> &Core {
        &self.running().core.as_ref().expect("it is open").0
    }

    fn submit(&self, mut op: Op) -> Result<()> {
        block_on(&self.world, async { self.core().submit(&mut op).await })
    }

    fn write(&self, block: u64, version: u64) {
        let data = self.world.env().buf(BLOCK_BYTES as usize).unwrap();
        data.write().copy_from_slice(&content(block, version));
        self.submit(Op::write(run(block, 1), data)).unwrap();
    }

    fn read(&self, block: u64) -> Result<Vec<u8>> {
        let env = self.world.env();
        block_on(&self.world, async { read(&env, self.core(), run(block, 1), false).await })
    }

    /// Reads a block of the mirror. Returns the bytes, and the copies that were read or avoided.
    fn read_copy(&self, block: u64, avoid: Copies, last_resort: bool) -> Result<(Vec<u8>, Copies)> {
        let lower = self.running().graph.lower(self.running().mirror);
        let into = self.world.env().buf(BLOCK_BYTES as usize).unwrap();
        let read = Op::Read { range: run(block, 1), into, avoid, last_resort };
        let done = block_on(&self.world, async { lower.call(read).await });
        let copies = done.copies();
        let bytes = done.into_buf()?.read().to_vec();
        Ok((bytes, copies))
    }

    fn ask<V: Verb>(&self, args: V::Args) -> Result<V::Answer> {
        let lower = self.running().graph.lower(self.running().mirror);
        let whole = ByteRange::new(0, DATA_BYTES).unwrap();
        let command = Command::new::<V>(args).at(whole);
        block_on(&self.world, async { lower.control::<V>(command).await })
    }

    fn pending(&self) -> Vec<(u64, u64)> {
        self.ask::<Pending>(Nothing {}).unwrap().ranges
    }

    fn states(&self) -> Vec<MemberState> {
        self.reports().iter().map(|member| member.state).collect()
    }

    fn reports(&self) -> Vec<Member> {
        self.running().graph.report(self.running().mirror).members
    }

    fn command<V: Verb<Args = Name>>(&self, member: usize) {
        let member = self.reports()[member].name.clone();
        self.running().graph.ask::<V>(self.running().mirror, Name { member }).unwrap();
    }

    fn resync(&self, member: usize) {
        let member = Some(self.reports()[member].name.clone());
        self.running().graph.ask::<Resync>(self.running().mirror, Stale { member }).unwrap();
    }

    fn until_in_sync(&self) {
        for _ in 0..10_000 {
            if self.states().iter().all(|state| *state == MemberState::InSync) {
                return;
            }
            alive(&self.world, Duration::from_millis(1));
        }
        panic!("{:?}; pending {:?}", self.states(), self.pending());
    }

    fn on_disk(&self, member: usize, block: u64) -> Vec<u8> {
        self.disks[member].peek(run(block, 1))
    }

    fn rot(&self, member: usize, block: u64) {
        assert!(self.disks[member].rot(block * BLOCK_BYTES + 700));
    }

    /// Whether all members have version `version` of a block.
    fn has(&self, block: u64, version: u64) -> bool {
        (0..self.members()).all(|member| self.on_disk(member, block) == content(block, version))
    }
}

fn all_but(copy: usize) -> Copies {
    Copies::all_but(copy)
}

#[test]
fn copies_stay_readable_after_unclean_stop_to_reads_that_avoid_others() {
    let mut stack = Stack::written(3);
    stack.write(2, 2);
    stack.kill();
    alive(&stack.world, Duration::from_secs(90));
    assert_eq!(stack.states()[0], MemberState::InSync);
    assert_eq!(stack.states()[1..], [MemberState::Copying; 2]);
    for copy in 0..3 {
        stack.disks[copy].overwrite(run(2, 1), 0x10 + copy as u8);
    }
    for copy in 0..3 {
        let (bytes, copies) = stack.read_copy(2, all_but(copy), false).unwrap();
        assert_eq!(bytes[0], 0x10 + copy as u8);
        assert!(copies.has(copy));
        // The bytes of a last resort are accepted as they are.
        let (bytes, _) = stack.read_copy(2, all_but(copy), true).unwrap();
        assert_eq!(bytes[0], 0x10);
        let (bytes, copies) = stack.read_copy(2, Copies::NONE, copy == 1).unwrap();
        assert_eq!((bytes[0], copies), (0x10, Copies::first(1)));
    }
    stack.disks[0].spoil(2 * BLOCK_BYTES);
    for last_resort in [false, true] {
        let error = stack.read_copy(2, Copies::NONE, last_resort).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }
    assert_eq!(stack.read_copy(2, Copies::first(1), false).unwrap().0[0], 0x11);
}

#[test]
fn region_is_made_alike_after_unclean_stop_when_verifier_has_been_through() {
    for rotten in 0..3 {
        let mut stack = Stack::written(3);
        stack.write(0, 2);
        stack.write(6, 2);
        stack.kill();
        // Blocks beside the writes in flight, in the same regions.
        stack.rot(rotten, 1);
        stack.rot((rotten + 1) % 3, 7);
        // One member lacks the unflushed write.
        let (bytes, lacks) = (content(6, 1), 1 + rotten % 2);
        (0..8).for_each(|sector| {
            let range = ByteRange::new(6 * BLOCK_BYTES + sector * 512, 512).unwrap();
            stack.disks[lacks].overwrite(range, bytes[sector as usize * 512]);
        });
        alive(&stack.world, Duration::from_secs(90));
        // The regions behind a write are marked with it.
        assert_eq!(stack.pending(), [(0, DATA_BYTES)]);
        let before: Vec<_> = (0..3).map(|member| stack.on_disk(member, 1)).collect();
        alive(&stack.world, Duration::from_secs(90));
        assert!((0..3).all(|member| stack.on_disk(member, 1) == before[member]));
        stack.open();
        stack.until_in_sync();
        for (block, version) in [(0, 2), (1, 1), (6, 2), (7, 1)] {
            assert!(stack.has(block, version), "block {block}, rot on {rotten}");
            assert_eq!(stack.read(block).unwrap(), content(block, version));
        }
        assert_eq!(stack.pending(), []);
        assert_eq!(stack.core().numbers().damaged, 0);
    }
}

#[test]
fn returning_member_heals_rot_of_others_before_it_is_copied_to() {
    let stack = Stack::written(2);
    stack.command::<Fail>(1);
    stack.write(2, 2);
    stack.rot(0, 3);
    alive(&stack.world, Duration::from_secs(3));
    stack.resync(1);
    stack.until_in_sync();
    assert!(stack.has(2, 2) && stack.has(3, 1));
    assert_eq!(stack.core().numbers().repaired, 2, "block 3, and the stale block 2");
}

#[test]
fn block_that_is_bad_on_all_copies_does_not_hold_region_up() {
    let mut stack = Stack::written(2);
    stack.write(2, 2);
    stack.kill();
    stack.rot(0, 3);
    stack.rot(1, 3);
    stack.disks[0].spoil(4 * BLOCK_BYTES);
    stack.open();
    stack.until_in_sync();
    assert!(stack.has(2, 2));
    assert_eq!(stack.on_disk(0, 3), stack.on_disk(1, 3));
}

#[test]
fn range_that_verifier_finds_alike_is_not_copied() {
    let mut stack = Stack::written(2);
    stack.write(2, 2);
    stack.kill();
    let before = stack.disks[1].bytes_written();
    stack.open();
    stack.until_in_sync();
    let words = "the source may have rotted since, and these bytes are right";
    assert_eq!(stack.disks[1].bytes_written(), before, "{words}");
}

#[test]
fn region_with_unreadable_block_of_source_is_made_alike() {
    let mut stack = Stack::written(2);
    stack.write(2, 2);
    stack.kill();
    stack.disks[0].spoil(2 * BLOCK_BYTES + 1024);
    stack.disks[0].spoil(3 * BLOCK_BYTES);
    stack.open();
    stack.until_in_sync();
    assert!(stack.has(2, 2) && stack.has(3, 1));
    assert_eq!(stack.core().numbers().damaged, 0);
}

#[test]
fn member_that_begins_to_return_during_pass_is_not_copied_to_after_it() {
    let mut stack = Stack::written(2);
    stack.kill();
    let verified = |stack: &Stack| {
        let verdict = block::control::copies::Verdict { alike: true };
        stack.ask::<block::control::copies::Verified>(verdict).unwrap();
        alive(&stack.world, Duration::from_secs(5));
    };
    verified(&stack);
    assert_eq!(stack.states()[1], MemberState::InSync, "nothing was in flight");
    stack.command::<Fail>(1);
    let data = stack.world.env().buf(BLOCK_BYTES as usize).unwrap();
    let lower = stack.running().graph.lower(stack.running().mirror);
    block_on(&stack.world, async { lower.write(run(2, 1), data).await.unwrap() });
    stack.resync(1);
    verified(&stack);
    assert_eq!(stack.states()[1], MemberState::Copying, "the pass began before");
    assert_eq!(stack.pending(), [(REGION, REGION)]);
    verified(&stack);
    assert_eq!(stack.states()[1], MemberState::InSync);
    stack.open();
}

#[test]
fn ranges_that_no_verifier_asks_about_are_copied_without_one() {
    let mut stack = Stack::written(2);
    stack.write(0, 2);
    stack.kill();
    alive(&stack.world, Duration::from_secs(600));
    assert_eq!(stack.reports()[1].progress.unwrap().done_bytes, 0, "no verifier has asked yet");
    let lower = stack.running().graph.lower(stack.running().mirror);
    let command = Command::new::<Pending>(Nothing {}).at(run(0, 5));
    let asked = block_on(&stack.world, async { lower.control::<Pending>(command).await });
    assert_eq!(asked.unwrap().ranges, [(0, 5 * BLOCK_BYTES)]);
    alive(&stack.world, Duration::from_secs(59));
    assert_eq!(stack.reports()[1].progress.unwrap().done_bytes, 0);
    alive(&stack.world, Duration::from_secs(2));
    let progress = stack.reports()[1].progress.unwrap();
    assert_eq!((progress.done_bytes, progress.all_bytes), (REGION, DATA_BYTES));
    assert_eq!(stack.states()[1], MemberState::Copying);
    stack.open();
    stack.until_in_sync();
}

#[test]
fn member_without_copy_is_copied_to_without_verifier() {
    let mut stack = Stack::written(2);
    stack.write(2, 2);
    stack.blank(1);
    stack.disks[1].overwrite(run(0, BLOCKS), 0xee);
    // Its bytes are no copy.
    let (bytes, copies) = stack.read_copy(2, all_but(1), false).unwrap();
    assert_eq!((bytes, copies), (content(2, 2), all_but(1).with(0)));
    assert_eq!(stack.pending(), []);
    stack.until_in_sync();
    assert!(stack.has(2, 2) && stack.has(3, 1));
}

#[test]
fn member_without_copy_does_not_wait_after_restart_either() {
    let mut stack = Stack::written(3);
    stack.blank(2);
    stack.kill();
    assert_eq!(stack.states()[2], MemberState::Copying);
    stack.disks[2].overwrite(run(0, BLOCKS), 0xee);
    let (bytes, _) = stack.read_copy(2, all_but(2), false).unwrap();
    assert_eq!(bytes, content(2, 1));
    stack.until_in_sync();
    assert!((0..BLOCKS).all(|block| stack.has(block, 1)));
}

#[test]
fn read_error_beneath_verifier_rewrites_range_after_pass() {
    let stack = Stack::written(2);
    // The other copy has rotted in another block of the same read.
    stack.rot(1, 5);
    stack.disks[0].spoil(4 * BLOCK_BYTES);
    let env = stack.world.env();
    for _ in 0..8 {
        let found =
            block_on(&stack.world, async { read(&env, stack.core(), run(4, 2), false).await });
        assert_eq!(found.unwrap(), [content(4, 1), content(5, 1)].concat());
    }
    alive(&stack.world, Duration::from_secs(5));
    assert!(stack.has(4, 1) && stack.has(5, 1));
    assert_eq!(stack.pending(), []);
}

#[test]
fn scrub_of_mirror_reports_differences_to_verifier() {
    let stack = Stack::written(2);
    stack.rot(0, 3);
    stack.rot(1, 4);
    let mirror = stack.running().mirror;
    let repair =
        Action { repair: true, trust: Some(stack.reports()[0].name.clone()), ..Action::default() };
    let refused = stack.running().graph.ask::<Scrub>(mirror, repair).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let scrub = || {
        stack.running().graph.ask::<Scrub>(mirror, Action::default()).unwrap();
        alive(&stack.world, Duration::from_secs(20));
        stack.running().graph.report(mirror).scrub.unwrap()
    };
    let found = scrub();
    assert_eq!((found.differing_blocks, found.repaired_blocks), (2, 0));
    assert!((0..BLOCKS).all(|block| stack.has(block, 1)));
    assert_eq!(stack.core().numbers().repaired, 2);
    stack.rot(0, 2);
    stack.disks[1].spoil(6 * BLOCK_BYTES);
    assert_eq!(scrub().differing_blocks, 0, "the members cannot be compared");
    assert!((0..BLOCKS).all(|block| stack.has(block, 1)));
    assert_eq!(stack.pending(), []);
}
