//! Tests of `remap` over kills, power cuts, full disks and lost maps, and of packing, which moves blocks.

use std::rc::Rc;
use std::time::Duration;

use block::control::Nothing;
use block::control::job::{Action, Course, Steer, Wait};
use block::{ByteRange, ErrorKind, JobState, Op, OpKind, Report, Result, State};
use kind::Value;
use meta::vault::{Array, Options, Shape, Spec, Vault};
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{
    Assembly, Client, CutPolicy, DiskConfig, Door, Faults, Model, PartId, Profile, SimDisk,
    SimWorld,
};
use testkit::Shelf;
use zerocopy::little_endian::U64;

/// Time after which the record of a request is proven, if nothing else happens.
const PROVEN_AFTER: Duration = Duration::from_secs(3);

const BLOCK: u64 = 4096;

/// Bytes of each simulated disk.
const DISK: u64 = 512 << 10;

/// One simulated disk, or a disk for the data and a disk for the map, with labels, and the options of the remap device.
struct Bench {
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    shelf: Rc<Shelf>,
    options: Vec<(&'static str, Value)>,
    lives: u64,
}

/// The devices of the simulated process from a start to the next kill or power cut, and a client.
struct Life {
    graph: Assembly,
    part: PartId,
    client: Client,
}

fn size(name: &'static str, bytes: u64) -> (&'static str, Value) {
    (name, Value::Size(bytes))
}

impl Bench {
    /// Prepares a remap device of `blocks` blocks on `disks` disks.
    fn new(seed: u64, disks: u64, blocks: u64) -> Self {
        let world = SimWorld::new(seed);
        let disk = |n| {
            let config = DiskConfig { destage: 0, ..DiskConfig::new(DISK, Profile::Native512) };
            let disk = SimDisk::new(&world, n, config);
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks = (0..disks).map(disk).collect();
        let options = vec![size("size", blocks * BLOCK), size("block", BLOCK)];
        let shelf = Shelf::strict(&world.env(), Stream::new(seed, "shelf", 0), Vec::new());
        Self { world, disks, shelf, options, lives: 0 }
    }

    fn set(&mut self, name: &'static str, value: Value) {
        self.options.retain(|(known, _)| *known != name);
        self.options.push((name, value));
    }

    fn try_start(&mut self) -> Result<Life> {
        self.lives += 1;
        let order = Stream::new(self.world.seed(), "order", self.lives);
        let graph = Assembly::new(&self.world.env(), crate::REGISTRY, false, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        let path = |n| [("path", Value::Text(format!("/disk{n}")))];
        let mut on = Vec::new();
        for n in 0..self.disks.len() {
            on.push(graph.add("path", &path(n), &[])?);
        }
        let mut options = self.options.clone();
        if let [_, meta] = on[..] {
            options.push(("meta", Value::Text(graph.name(meta).to_owned())));
        }
        let part = graph.add("remap", &options, &on)?;
        let client = Client::new(&graph.engine, graph.node(part));
        Ok(Life { graph, part, client })
    }

    fn start(&mut self) -> Life {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }

    fn power_cut(&self, policy: CutPolicy) {
        self.world.drop_tasks();
        self.disks.iter().for_each(|disk| disk.power_cut(policy));
    }

    fn kill(&self) {
        self.world.kill();
        self.pass(Duration::from_secs(1));
    }

    fn send(&self, life: &Life, op: Op) -> Result<Op> {
        let done = self.world.block_on(life.client.send(op)).unwrap();
        done.result.map(|()| done.op)
    }

    fn write_of(&self, start: u64, len: u64, byte: u8) -> Op {
        let data = self.world.env().buf(len as usize).unwrap();
        data.write().fill(byte);
        Op::write(range(start, len), data)
    }

    fn write(&self, life: &Life, start: u64, len: u64, byte: u8) -> Result<()> {
        self.send(life, self.write_of(start, len, byte)).map(drop)
    }

    fn discard(&self, life: &Life, start: u64, len: u64) {
        self.send(life, Op::Discard { range: range(start, len), fua: false }).unwrap();
    }

    fn read(&self, life: &Life, start: u64, len: u64) -> Result<Vec<u8>> {
        let into = self.world.env().buf(len as usize).unwrap();
        let Op::Read { into, .. } = self.send(life, Op::read(range(start, len), into))? else {
            panic!("a read comes back as a read")
        };
        let bytes = into.read().to_vec();
        Ok(bytes)
    }

    fn states(&self, life: &Life, of: ByteRange) -> Vec<(u64, State)> {
        let op = Op::Status { range: of, extents: Vec::new() };
        let Op::Status { extents, .. } = self.send(life, op).unwrap() else {
            panic!("it comes back as it went")
        };
        extents.into_iter().map(|extent| (extent.len, extent.state)).collect()
    }
}

impl Life {
    fn report(&self) -> Report {
        self.graph.report(self.part)
    }

    /// Returns the number of allocated blocks on the disk, and of all blocks on the disk.
    fn places(&self) -> (u64, u64) {
        let room = self.report().room.unwrap();
        (room.taken_bytes / BLOCK, room.of_bytes / BLOCK)
    }

    fn job(&self, action: Action) -> Result<Nothing> {
        self.graph.ask::<Steer>(self.part, Course { action })
    }

    /// Returns the address on the disk of a byte of the remap device; `None` if the byte has no space on the disk.
    fn place(&self, byte: u64) -> Option<u64> {
        let device = self.graph.resolve(self.part, range(byte, 1)).unwrap();
        device.first().map(|below| below.range.start())
    }
}

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).unwrap()
}

/// Runs clients on a remap device over twelve starts with a kill or a power cut after each. `pack`: whether the device
/// moves blocks meanwhile. After each kill the device must have all acknowledged writes, after each power cut all
/// flushed writes.
fn lives(seed: u64, disks: u64, pack: bool) {
    let mut bench = Bench::new(seed, disks, 40);
    let policy = ["first-free", "log", "near"][seed as usize % 3];
    bench.set("policy", Value::Text(policy.to_owned()));
    bench.set("pack", Value::Switch(pack));
    let draw = Stream::new(seed, "lives", disks);
    let model = Rc::new(Model::new(seed, 40 * BLOCK));
    let tally: Rc<Tally> = Rc::default();
    for _ in 0..12 {
        let life = bench.start();
        let worker = |n| Worker {
            env: bench.world.env(),
            client: Door::Graph(life.client.clone()),
            model: model.clone(),
            tally: tally.clone(),
            draw: Stream::new(seed, "worker", bench.lives << 32 | n),
            mix: Mix::ALL,
        };
        bench.world.block_on(worker(u64::from(u32::MAX)).verify()).unwrap();
        (0..4).for_each(|n| worker(n).start(100));
        bench.pass(Duration::from_nanos(draw.within(10_000, 60_000_000)));
        let wrong = tally.wrong.borrow().as_ref().map(|wrong| wrong.words.clone());
        assert_eq!(wrong, None, "seed {seed}, disks {disks}, life {}", bench.lives);
        let error = tally.error.borrow().clone();
        assert!(error.is_none(), "seed {seed}, disks {disks}, life {}: {error:?}", bench.lives);
        drop(life);
        tally.killed();
        if draw.below(2) == 0 {
            bench.kill();
            model.restarted();
        } else {
            let any = draw.pick(&CutPolicy::ALL);
            bench.power_cut(if draw.below(2) == 0 { CutPolicy::DropAll } else { any });
            model.power_cut();
        }
    }
}

#[test]
fn remap_survives_kills_and_power_cuts() {
    for seed in 0..8 {
        lives(seed, 1, false);
        lives(seed, 2, false);
    }
}

#[test]
fn remap_survives_kills_and_power_cuts_during_packing() {
    for seed in 100..108 {
        lives(seed, 1, true);
        lives(seed, 2, true);
    }
}

/// A partial write to a new block must not show the bytes of the freed block that had the same place on the disk.
#[test]
fn remap_zeroes_rest_of_block_at_first_partial_write() {
    let mut bench = Bench::new(1, 1, 40);
    let life = bench.start();
    bench.write(&life, 0, 8 * BLOCK, 0xaa).unwrap();
    let places: Vec<_> = (0..8).map(|n| life.place(n * BLOCK).unwrap()).collect();
    bench.discard(&life, 0, 8 * BLOCK);
    assert_eq!(life.places().0, 0);
    bench.pass(PROVEN_AFTER);
    // A part of the first block, all of the second, a part of the third.
    let (start, len) = (20 * BLOCK + 1024, 2 * BLOCK - 512);
    bench.write(&life, start, len, 0xbb).unwrap();
    assert!(
        (20..23).all(|n| places.contains(&life.place(n * BLOCK).unwrap())),
        "they are used again"
    );
    let bytes = bench.read(&life, 20 * BLOCK, 3 * BLOCK).unwrap();
    for (at, byte) in (20 * BLOCK..).zip(&bytes) {
        let written = (start..start + len).contains(&at);
        assert_eq!(*byte, if written { 0xbb } else { 0 }, "byte {at}");
    }
    assert_eq!(bench.read(&life, 0, 8 * BLOCK).unwrap(), vec![0; 8 * BLOCK as usize]);
    let hole = |blocks: u64| (blocks * BLOCK, State::Hole);
    let states = bench.states(&life, range(0, 40 * BLOCK));
    assert_eq!(states, [hole(20), (3 * BLOCK, State::Data), hole(17)]);
}

/// The test cuts the power at many moments of the first write to a block. Afterwards the block may have zeros or the
/// new bytes, and never other bytes.
#[test]
fn power_cut_during_first_write_leaves_zeros_or_new_bytes() {
    let (mut zeros, mut written) = (0, 0);
    for step in 0..60 {
        for policy in CutPolicy::ALL {
            let mut bench = Bench::new(step, 1, 40);
            let life = bench.start();
            bench.write(&life, 0, 8 * BLOCK, 0xaa).unwrap();
            bench.discard(&life, 0, 8 * BLOCK);
            bench.pass(Duration::from_secs(5));
            let call = life.client.send(bench.write_of(30 * BLOCK + 512, BLOCK, 0xbb));
            bench.pass(Duration::from_micros(50 * step));
            drop((call, life));
            bench.power_cut(policy);
            let life = bench.start();
            let bytes = bench.read(&life, 30 * BLOCK, 2 * BLOCK).unwrap();
            let part = 512..512 + BLOCK as usize;
            assert!(bytes[..512].iter().chain(&bytes[part.end..]).all(|byte| *byte == 0));
            match bytes[part.start] {
                0 => zeros += 1,
                _ => written += 1,
            }
            let one = bytes[part.start];
            assert!([0, 0xbb].contains(&one) && bytes[part].iter().all(|byte| *byte == one));
        }
    }
    assert!(zeros > 20 && written > 20, "{zeros} and {written}: both are met");
}

/// The blocks are unmapped already when the zeros are written, but no flush has made that durable.
#[test]
fn zeros_with_fua_survive_power_cut_after_discard_without_flush() {
    let mut bench = Bench::new(1, 1, 40);
    let life = bench.start();
    bench.write(&life, 0, 8 * BLOCK, 0xaa).unwrap();
    bench.send(&life, Op::Flush).unwrap();
    bench.discard(&life, 0, 8 * BLOCK);
    let zeros = Op::WriteZeroes { range: range(0, 4 * BLOCK), unmap: true, fua: true };
    bench.send(&life, zeros).unwrap();
    drop(life);
    bench.power_cut(CutPolicy::DropAll);
    let life = bench.start();
    assert_eq!(bench.read(&life, 0, 4 * BLOCK).unwrap(), vec![0; 4 * BLOCK as usize]);
}

#[test]
fn full_remap_delays_first_writes_then_fails() {
    let mut bench = Bench::new(1, 1, 1000);
    let life = bench.start();
    let (_, places) = life.places();
    assert!((50..120).contains(&places), "{places}");
    for block in 0..places {
        bench.write(&life, block * BLOCK, BLOCK, 0x11).unwrap();
    }
    assert_eq!((life.places(), life.report().next.is_some()), ((places, places), true));
    assert_eq!(life.report().health, block::Health::Limited);
    let begun = bench.world.env().now();
    let error = bench.write(&life, 900 * BLOCK, BLOCK, 0x22).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("discard"), "{error}");
    let waited = bench.world.env().now().since(begun);
    assert_eq!(waited.as_secs(), 10);

    // Many wait; one more is refused at once. All other requests go on.
    let write = |n: u64| life.client.send(bench.write_of((900 + n) * BLOCK, BLOCK, 0x33));
    let waiting: Vec<_> = (0..16).map(write).collect();
    bench.pass(Duration::from_secs(1));
    let begun = bench.world.env().now();
    let refused = bench.world.block_on(write(16)).unwrap().result.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(bench.world.env().now().since(begun) < Duration::from_millis(10));
    assert_eq!(bench.read(&life, 3 * BLOCK, BLOCK).unwrap(), [0x11; BLOCK as usize]);
    bench.write(&life, 3 * BLOCK, BLOCK, 0x44).unwrap();
    bench.send(&life, Op::Flush).unwrap();
    bench.discard(&life, 5 * BLOCK, 16 * BLOCK);
    for call in waiting {
        bench.world.block_on(call).unwrap().result.unwrap();
    }
    assert_eq!(life.places(), (places, places));
    assert!(bench.world.env().now().since(begun) < Duration::from_secs(1));
    assert_eq!(bench.read(&life, 905 * BLOCK, BLOCK).unwrap(), [0x33; BLOCK as usize]);
    assert_eq!(bench.read(&life, 5 * BLOCK, BLOCK).unwrap(), [0; BLOCK as usize]);
}

#[test]
fn remap_discards_freed_blocks_on_lower() {
    let mut bench = Bench::new(1, 1, 40);
    let life = bench.start();
    let discards = || {
        let disk = life.graph.node(0);
        let look = |counters: &engine::Counters| {
            (counters.ops(OpKind::Discard), counters.bytes(OpKind::Discard))
        };
        life.graph.engine.counters(disk, look)
    };
    bench.write(&life, 0, 8 * BLOCK, 0x11).unwrap();
    bench.discard(&life, 512, 8 * BLOCK - 512);
    assert_eq!(discards(), (0, 0), "a crash could bring the blocks back");
    bench.pass(PROVEN_AFTER);
    assert_eq!(discards(), (1, 7 * BLOCK), "the first block is not whole");
    assert_eq!(bench.read(&life, 0, 512).unwrap(), [0x11; 512]);
    let zeros = Op::WriteZeroes { range: range(512, 8 * BLOCK - 512), unmap: false, fua: true };
    bench.send(&life, zeros).unwrap();
    let bytes = bench.read(&life, 0, 2 * BLOCK).unwrap();
    assert!(
        bytes[..512].iter().all(|byte| *byte == 0x11) && bytes[512..].iter().all(|byte| *byte == 0)
    );
}

/// If each write took a part of the last free blocks and waited for the rest, the writes would wait for each other.
#[test]
fn remap_writes_that_wait_for_space_do_not_deadlock() {
    let mut bench = Bench::new(1, 1, 1000);
    let life = bench.start();
    let (_, places) = life.places();
    for block in 0..places - 5 {
        bench.write(&life, block * BLOCK, BLOCK, 0x11).unwrap();
    }
    // Holes of two, two and one block.
    bench.discard(&life, 10 * BLOCK, 2 * BLOCK);
    bench.discard(&life, 20 * BLOCK, 2 * BLOCK);
    let write = |at: u64, count| life.client.send(bench.write_of(at * BLOCK, count * BLOCK, 0x22));
    let calls = [write(900, 7), write(920, 9), write(940, 5)];
    let mut refused = 0;
    for call in calls {
        refused += u32::from(bench.world.block_on(call).unwrap().result.is_err());
    }
    assert_eq!(refused, 2, "nine places are enough for one of them");
}

#[test]
fn remap_opening_reports_lost_map_as_corrupt() {
    let mut bench = Bench::new(1, 2, 40);
    let life = bench.start();
    bench.write(&life, 0, BLOCK, 0x11).unwrap();
    drop(life);
    bench.power_cut(CutPolicy::KeepAll);
    let blank = SimDisk::new(&bench.world, 9, DiskConfig::new(DISK, Profile::Native512)).image();
    let whole = bench.disks[1].image();
    bench.disks[1].put_back(&blank);
    let error = bench.try_start().err().expect("there is no map");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("is missing on"), "{error}");
    bench.world.drop_tasks();
    bench.disks[1].put_back(&whole);
    let life = bench.start();
    assert_eq!(bench.read(&life, 0, BLOCK).unwrap(), [0x11; BLOCK as usize]);
    // While it runs, placed blocks stay usable, no new block is placed, and flushes fail.
    bench.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    assert!(bench.write(&life, 9 * BLOCK, BLOCK, 0x22).is_err());
    bench.write(&life, 0, BLOCK, 0x33).unwrap();
    assert_eq!(bench.read(&life, 0, BLOCK).unwrap(), [0x33; BLOCK as usize]);
    assert!(bench.send(&life, Op::Flush).is_err());
    assert_eq!(life.report().health, block::Health::Failed);
}

/// Until its commit, a live change may be undone, and a mirror below the remap device cannot mark dirty regions.
#[test]
fn remap_writes_nothing_before_live_change_is_committed() {
    let mut bench = Bench::new(1, 2, 40);
    let life = bench.start();
    bench.write(&life, 0, BLOCK, 0x11).unwrap();
    let places = life.places();
    drop(life);
    bench.power_cut(CutPolicy::KeepAll);
    bench.shelf.hold_back();
    let bytes = |bench: &Bench| bench.disks.iter().map(|disk| disk.peek(range(0, DISK))).collect();
    let before: Vec<Vec<u8>> = bytes(&bench);
    let life = bench.start();
    bench.pass(Duration::from_secs(1));
    let after: Vec<Vec<u8>> = bytes(&bench);
    assert!(before == after, "the opening wrote to a disk before the commit");
    assert_eq!(life.places(), places);
    bench.shelf.release();
    assert_eq!(bench.read(&life, 0, BLOCK).unwrap(), [0x11; BLOCK as usize]);
    let opened: Vec<Vec<u8>> = bytes(&bench);
    assert!(opened != before, "the vault is open for writing after the commit");
}

/// The remap device must report a lost map before the commit of a live change, because afterwards no undo is possible.
#[test]
fn live_change_fails_before_commit_if_map_is_lost() {
    let mut bench = Bench::new(1, 2, 40);
    drop(bench.start());
    bench.power_cut(CutPolicy::KeepAll);
    let blank = SimDisk::new(&bench.world, 9, DiskConfig::new(DISK, Profile::Native512)).image();
    bench.disks[1].put_back(&blank);
    bench.shelf.hold_back();
    let error = bench.try_start().err().expect("there is no map");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn remap_rejects_changed_size_and_block() {
    let mut bench = Bench::new(1, 1, 40);
    drop(bench.start());
    bench.power_cut(CutPolicy::KeepAll);
    for (name, bytes, words) in
        [("size", 44 * BLOCK, "size = \"160KiB\""), ("block", 2 * BLOCK, "block = \"4KiB\"")]
    {
        let before = bench.options.clone();
        bench.set(name, Value::Size(bytes));
        let error = bench.try_start().err().expect("it was made otherwise");
        assert!(error.to_string().contains(words), "{error}");
        bench.options = before;
        bench.world.drop_tasks();
    }
    // The state is gone, and the disks are not new.
    bench.shelf.put(None);
    let error = bench.try_start().err().expect("nothing says what is there");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn remap_first_write_costs_no_flush_and_first_overwrite_one_proof() {
    let mut bench = Bench::new(1, 1, 40);
    let life = bench.start();
    bench.pass(Duration::from_secs(5));
    let disk = life.graph.node(0);
    let flushes = || life.graph.engine.counters(disk, |counters| counters.ops(OpKind::Flush));
    let before = flushes();
    bench.write(&life, 0, 4 * BLOCK, 0x11).unwrap();
    assert_eq!(flushes() - before, 0);
    // An unproven record names this block. The first write in place must change that, once.
    bench.write(&life, 0, BLOCK, 0x22).unwrap();
    assert_eq!(flushes() - before, 2);
    for _ in 0..10 {
        bench.write(&life, BLOCK, 3 * BLOCK, 0x33).unwrap();
    }
    assert_eq!(flushes() - before, 2);
}

#[test]
fn remap_packing_moves_used_blocks_before_free_blocks() {
    let mut bench = Bench::new(1, 1, 60);
    bench.set("policy", Value::Text("log".to_owned()));
    let life = bench.start();
    assert!(life.report().jobs.is_empty());
    for block in 0..60 {
        bench.write(&life, block * BLOCK, BLOCK, block as u8 + 1).unwrap();
    }
    let first = life.place(0).unwrap();
    // Discard three of four blocks.
    for block in (0..60).filter(|block| block % 4 != 3) {
        bench.discard(&life, block * BLOCK, BLOCK);
    }
    drop(life);
    bench.power_cut(CutPolicy::KeepAll);

    bench.set("pack", Value::Switch(true));
    bench.set("speed", Value::Size(BLOCK * 4));
    let life = bench.start();
    bench.pass(Duration::from_millis(1100));
    life.job(Action::Pause).unwrap();
    bench.pass(Duration::from_secs(2));
    let paused = life.report().jobs[0].clone();
    assert_eq!(
        (paused.state, paused.progress.done_bytes < paused.progress.all_bytes),
        (JobState::Paused, true)
    );
    drop(life);
    bench.power_cut(CutPolicy::DropAll);

    // The pause survives a restart.
    let life = bench.start();
    bench.pass(Duration::from_secs(60));
    assert_eq!(life.report().jobs[0].state, JobState::Paused);
    life.job(Action::Resume).unwrap();
    let wait = life.graph.ask_later::<Wait>(life.part, Nothing {});
    bench.world.block_on(wait).unwrap().unwrap();
    let report = life.report();
    assert_eq!(report.jobs[0].state, JobState::Done);
    assert_eq!(life.places().0, 15);
    for block in 0..60 {
        let kept = block % 4 == 3;
        let expected = if kept { block as u8 + 1 } else { 0 };
        assert_eq!(bench.read(&life, block * BLOCK, BLOCK).unwrap(), [expected; BLOCK as usize]);
        let place = life.place(block * BLOCK);
        assert_eq!(place.is_some(), kept);
        assert!(place.is_none_or(|place| (first..first + 15 * BLOCK).contains(&place)));
    }
    assert!(life.job(Action::Pause).is_err(), "it is done");
    drop(life);
    bench.power_cut(CutPolicy::DropAll);
    let life = bench.start();
    for block in (0..60).filter(|block| block % 4 == 3) {
        let expected = [block as u8 + 1; BLOCK as usize];
        assert_eq!(bench.read(&life, block * BLOCK, BLOCK).unwrap(), expected);
    }
}

/// A caller, such as a live change that exceeds its time limit, may stop waiting for a vault's checkpoint at any time.
/// The vault still writes the pages of the checkpoint, and the next checkpoint writes the other pages.
#[test]
fn vault_checkpoint_completes_after_caller_stops_waiting() {
    let shape = Shape { log_bytes: Some(1 << 20), objects: 8, bytes: None };
    let with = Options {
        cache_bytes: 400 * 4096,
        read_only: false,
        may_degrade: false,
        vault: None,
        bytes: None,
    };
    for micros in (0..3000).step_by(60) {
        let bench = Bench::new(micros, 0, 40);
        let disk = DiskConfig::new(4 << 20, Profile::Native512);
        bench.world.plug("/disk0", &SimDisk::new(&bench.world, 0, disk));
        let graph =
            Assembly::new(&bench.world.env(), crate::REGISTRY, false, Stream::new(1, "", 0));
        let mut graph = graph.in_world(&bench.world);
        let disk = graph.add("path", &[("path", Value::Text("/disk0".to_owned()))], &[]).unwrap();
        let (env, lower) = (bench.world.env(), graph.lower(disk));
        let (count, step) = (16_000, 480);
        let done = bench.world.block_on(async {
            Vault::format(&env, std::slice::from_ref(&lower), shape).await?;
            let vault = Vault::open(&env, vec![Some(lower.clone())], &with).await?;
            let mut transaction = vault.begin();
            let id = transaction.create(&Spec::array::<U64>("a", 0, count))?;
            vault.commit(transaction).await?;
            let array = Array::<U64>::new(&vault, id);
            for record in (0..count).step_by(step) {
                let mut transaction = vault.begin();
                array.set(&mut transaction, record, &U64::new(record + 1))?;
                vault.commit(transaction).await?;
            }
            let _ = env.within(Duration::from_micros(micros), vault.flush()).await;
            // The next checkpoint has other pages.
            let mut transaction = vault.begin();
            array.set(&mut transaction, 1, &U64::new(7))?;
            vault.commit(transaction).await?;
            vault.close().await?;
            let vault = Vault::open(&env, vec![Some(lower)], &with).await?;
            let array = Array::<U64>::new(&vault, id);
            for record in (0..count).step_by(step) {
                assert_eq!(array.get(record).await?.get(), record + 1, "cut after {micros} us");
            }
            Ok(())
        });
        let done: Result<()> = done.unwrap();
        done.unwrap();
    }
}
