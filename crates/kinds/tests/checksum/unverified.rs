//! A mirror of checksum devices: after an unclean stop it rewrites the blocks that a member cannot verify.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block::control::copies::{Changed, Pending};
use block::control::member::{Fail, Name, Resync, Stale};
use block::control::{Command, Nothing, Reply, Verb as _, VerbInfo};
use block::env::LocalFuture;
use block::{ByteRange, Device, Info, MemberState, Needs, Op, Request, Result, State, error};
use kind::Value;
use kinds::checksum::{BLOCK_BYTES, Core, NEEDS, Redundancy};
use meta::vault::Vault;
use sim::draw::Stream;
use sim::{Assembly, CutPolicy, DiskConfig, PartId, Profile, SimDisk, SimWorld};
use testkit::Shelf;

use crate::scene::{
    BLOCKS, Crash, DATA_BYTES, REGION, VAULT_BYTES, block_on, content, format_vault, open_core, run,
};

/// A checksum device that reports the blocks that it cannot verify.
pub struct Sums {
    pub core: Core,
    /// The vault of the core.
    _vault: Vault,
    /// Whether requests for the block status fail, as if their checksums had rotted.
    fails_status: Cell<bool>,
    /// Whether reads fail, as if the disk had lost flushed blocks.
    fails_reads: Cell<bool>,
}

impl Sums {
    pub fn new((core, vault): (Core, Vault)) -> Rc<Self> {
        let fails = || Cell::new(false);
        Rc::new(Self { core, _vault: vault, fails_status: fails(), fails_reads: fails() })
    }
}

impl Device for Sums {
    fn info(&self) -> &Info {
        self.core.info()
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        if self.fails_status.get() && matches!(request.op, Op::Status { .. }) {
            return Err(error!(Corrupt, "a page of the checksums is wrong"));
        }
        if self.fails_reads.get() && matches!(request.op, Op::Read { .. }) {
            return Err(error!(Corrupt, "the block is lost"));
        }
        self.core.submit(&mut request.op).await
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        const VERBS: &[&VerbInfo] = &[Pending::INFO, Changed::INFO];
        VERBS
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        if command.is::<Changed>() {
            let more = self.core.more_unverified();
            return Box::pin(async move {
                more.await;
                Ok(Reply::of::<Changed>(Nothing {}))
            });
        }
        let range = command.range.or(ByteRange::new(0, self.info().size)).unwrap();
        let unverified = self.core.unverified(range);
        Box::pin(async move { Ok(Reply::of::<Pending>(unverified)) })
    }
}

pub fn needs() -> Needs {
    Needs { children: 8, ..NEEDS }
}

/// A mirror of two checksum devices, each on a disk with the data and a disk with the vault.
struct Stack {
    world: SimWorld,
    shelf: Rc<Shelf>,
    data: Vec<Rc<SimDisk>>,
    vaults: Vec<Rc<SimDisk>>,
    running: Option<Running>,
}

struct Running {
    graph: Assembly,
    members: Vec<Rc<Sums>>,
    mirror: PartId,
}

impl Stack {
    /// Creates the devices, and writes version 1 of each block. Everything is clean since.
    fn written() -> Self {
        let world = SimWorld::new(1);
        let disk = |number: u64, size| {
            let config = DiskConfig { destage: 0, ..DiskConfig::new(size, Profile::Native512) };
            let disk = SimDisk::new(&world, number, config);
            world.plug(format!("/disk{number}"), &disk);
            disk
        };
        let data = vec![disk(0, DATA_BYTES), disk(1, DATA_BYTES)];
        let vaults = vec![disk(2, VAULT_BYTES), disk(3, VAULT_BYTES)];
        let shelf = Shelf::strict(&world.env(), Stream::new(1, "shelf", 0), Vec::new());
        let mut stack = Self { world, shelf, data, vaults, running: None };
        stack.start(true, true);
        stack.until_verified();
        (0..BLOCKS).for_each(|block| stack.write(block, 1));
        stack.submit(Op::Flush).unwrap();
        stack.pass(Duration::from_secs(60));
        stack
    }

    fn start(&mut self, makes: bool, clean: bool) {
        let env = self.world.env();
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&env, kinds::REGISTRY, false, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        self.shelf.close(clean);
        let mut disk = |n: usize| {
            graph.add("path", &[("path", Value::Text(format!("/disk{n}")))], &[]).unwrap()
        };
        let disks = [disk(0), disk(1), disk(2), disk(3)];
        let (mut members, mut parts) = (Vec::new(), Vec::new());
        for n in 0..2 {
            let (data, vault) = (graph.lower(disks[n]), graph.lower(disks[2 + n]));
            let opened = block_on(&self.world, async {
                if makes {
                    format_vault(&env, &vault, &data, true).await;
                }
                let lowers = (&vault, &vault, data);
                open_core(&env, lowers, Crash::Regions, Redundancy::Above).await.unwrap()
            });
            let sums = Sums::new(opened);
            let on = [disks[n], disks[2 + n]];
            parts.push(graph.adopt(&format!("sums{n}"), sums.clone(), needs(), &on).unwrap());
            members.push(sums);
        }
        let options = [
            ("region", Value::Size(REGION)),
            ("clear_delay", Value::Duration(Duration::from_secs(1))),
        ];
        let trust = ("trust", Value::Text("sums0".to_owned()));
        let options = if makes { [&[trust][..], &options].concat() } else { options.to_vec() };
        let mirror = graph.add("mirror", &options, &parts).unwrap();
        self.running = Some(Running { graph, members, mirror });
    }

    /// Kills the process. The disks keep all writes.
    fn kill(&mut self) {
        self.running = None;
        self.world.drop_tasks();
        let disks = self.data.iter().chain(&self.vaults);
        disks.for_each(|disk| disk.power_cut(CutPolicy::KeepAll));
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }

    fn submit(&self, op: Op) -> Result<Op> {
        let lower = self.running().graph.lower(self.running().mirror);
        let done = block_on(&self.world, async { lower.call(op).await });
        done.result.map(|()| done.op)
    }

    fn write(&self, block: u64, version: u64) {
        let data = self.world.env().buf(BLOCK_BYTES as usize).unwrap();
        data.write().copy_from_slice(&content(block, version));
        self.submit(Op::write(run(block, 1), data)).unwrap();
    }

    fn read(&self, block: u64) -> Result<Vec<u8>> {
        let into = self.world.env().buf(BLOCK_BYTES as usize).unwrap();
        let Op::Read { into, .. } = self.submit(Op::read(run(block, 1), into))? else {
            unreachable!("it stays a read")
        };
        let bytes = into.read().to_vec();
        Ok(bytes)
    }

    fn states(&self) -> Vec<MemberState> {
        let report = self.running().graph.report(self.running().mirror);
        report.members.iter().map(|member| member.state).collect()
    }

    /// Waits until the members are in sync, and all their blocks are verified.
    fn until_verified(&self) {
        let is_verified = |sums: &Rc<Sums>| sums.core.numbers().unverified_bytes == 0;
        for _ in 0..60_000 {
            let in_sync = self.states().iter().all(|state| *state == MemberState::InSync);
            if in_sync && self.running().members.iter().all(is_verified) {
                return;
            }
            self.pass(Duration::from_millis(1));
        }
        let numbers = self.running().members.iter().map(|sums| sums.core.numbers());
        panic!("{:?} {:?}", self.states(), numbers.collect::<Vec<_>>());
    }

    fn put(&self, member: usize, block: u64, byte: u8) {
        self.data[member].overwrite(run(block, 1), byte);
    }

    fn on_disk(&self, member: usize, block: u64) -> Vec<u8> {
        self.data[member].peek(run(block, 1))
    }

    /// Whether both members have version `version` of a block.
    fn has(&self, block: u64, version: u64) -> bool {
        (0..2).all(|member| self.on_disk(member, block) == content(block, version))
    }
}

/// Block 2 was in flight at the kill, so block 3 of its region is unverified too. It rots then.
#[test]
fn block_is_rewritten_from_member_that_verifies_it_after_unclean_stop() {
    for (rotten, reads, kills) in
        [(0, true, 1), (0, false, 1), (1, true, 1), (1, false, 1), (0, true, 2), (0, false, 2)]
    {
        let mut stack = Stack::written();
        stack.write(2, 2);
        stack.kill();
        stack.put(rotten, 3, 0xee);
        // The opening writes a state before it copies.
        for _ in 1..kills {
            stack.start(false, false);
            stack.kill();
        }
        stack.start(false, false);
        let what = format!("rot on {rotten}, reads: {reads}, kills: {kills}");
        if reads {
            assert_eq!(stack.read(3).unwrap(), content(3, 1), "{what}");
        }
        stack.until_verified();
        assert!(stack.has(2, 2) && stack.has(3, 1), "{what}");
        assert_eq!(stack.read(3).unwrap(), content(3, 1), "{what}");
    }
}

#[test]
fn last_resort_is_written_to_all_members() {
    for reads in [true, false] {
        let mut stack = Stack::written();
        stack.write(2, 2);
        stack.kill();
        stack.put(0, 2, 0xe0);
        stack.put(1, 2, 0xe1);
        stack.start(false, false);
        let torn = vec![0xe0; BLOCK_BYTES as usize];
        if reads {
            assert_eq!(stack.read(2).unwrap(), torn);
        }
        stack.until_verified();
        assert!((0..2).all(|member| stack.on_disk(member, 2) == torn));
        assert_eq!(stack.read(2).unwrap(), torn);
    }
}

/// The members differ in no region of the mirror's, so no resync comes upon the block.
#[test]
fn block_that_scan_of_member_leaves_is_rewritten_without_resync() {
    let mut stack = Stack::written();
    stack.write(2, 2);
    stack.kill();
    stack.put(1, 3, 0xee);
    stack.start(false, true);
    assert_eq!(stack.states(), [MemberState::InSync; 2]);
    stack.until_verified();
    assert!(stack.has(3, 1));
}

/// The second member had all writes at the first kill, and lacks one at the second kill.
#[test]
fn member_that_has_missed_write_since_unclean_stop_is_not_asked() {
    let mut stack = Stack::written();
    stack.write(2, 2);
    stack.kill();
    stack.start(false, false);
    let Running { graph, mirror, .. } = stack.running();
    let member = "sums1".to_owned();
    graph.ask::<Fail>(*mirror, Name { member: member.clone() }).unwrap();
    stack.write(3, 2);
    stack.submit(Op::Flush).unwrap();
    graph.ask::<Resync>(*mirror, Stale { member: Some(member) }).unwrap();
    stack.write(7, 2);
    assert_eq!(stack.states()[1], MemberState::Copying);
    stack.kill();
    stack.put(0, 3, 0xee);
    stack.start(false, false);
    assert_eq!(stack.states()[1], MemberState::Copying);
    // The only current copy has rotted in a marked region.
    assert_eq!(stack.read(3).unwrap(), vec![0xee; BLOCK_BYTES as usize]);
}

/// The second member may have other bytes in block 2, which has zeros on the source.
#[test]
fn block_status_is_data_if_source_cannot_answer_after_unclean_stop() {
    let mut stack = Stack::written();
    stack.submit(Op::WriteZeroes { range: run(2, 1), unmap: true, fua: false }).unwrap();
    stack.kill();
    stack.start(false, false);
    assert_eq!(stack.states(), [MemberState::InSync, MemberState::Copying]);
    let status = |is_answered: bool| {
        stack.running().members[0].fails_status.set(!is_answered);
        let status = Op::Status { range: run(2, 1), extents: Vec::new() };
        let Op::Status { extents, .. } = stack.submit(status).unwrap() else {
            unreachable!("it stays a status request")
        };
        extents[0].state
    };
    assert!(status(true).is_zero());
    assert_eq!(status(false), State::Data);
}

/// The source has lost the flushed block 3. On the second member a write to its region was in flight.
#[test]
fn unverified_block_of_divided_member_is_last_resort_if_source_has_lost_it() {
    let mut stack = Stack::written();
    stack.write(2, 2);
    stack.kill();
    stack.put(1, 3, 0xee);
    stack.start(false, false);
    assert_eq!(stack.states(), [MemberState::InSync, MemberState::Copying]);
    stack.running().members[0].fails_reads.set(true);
    assert_eq!(stack.read(3).unwrap(), vec![0xee; BLOCK_BYTES as usize]);
    assert_eq!(stack.on_disk(0, 3), stack.on_disk(1, 3));
}
