//! Tests of `migrate`: migrations forward and back over kills and power cuts, and the reports of the device.

use std::rc::Rc;
use std::time::Duration;

use crate::migrate::record::{Record, WINDOW_MAX_BYTES, Window};
use block::control::Nothing;
use block::control::job::{Action, Course, Steer, Wait};
use block::{ByteRange, ErrorKind, JobState, Op, Report, Result};
use kind::Value;
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{
    Assembly, Client, CutPolicy, DiskConfig, Door, Model, PartId, Profile, SimDisk, SimWorld,
};
use testkit::Shelf;

/// Bytes of each disk: several windows of a migration in place or to another disk, and a part of a window.
const SIZE: u64 = (3 << 20) + 4096;

/// Largest number of starts of the simulated process in a test, more than any migration of the tests needs.
const LIVES: u64 = 60;

/// Two simulated disks with labels, and the options of the `migrate` device. In place, the second disk is not used.
struct Bench {
    world: SimWorld,
    disks: [Rc<SimDisk>; 2],
    shelf: Rc<Shelf>,
    in_place: bool,
    options: Vec<(&'static str, Value)>,
    lives: u64,
}

/// The devices of the simulated process from a start to the next kill or power cut, and a client.
struct Life {
    graph: Assembly,
    part: PartId,
    client: Client,
}

impl Bench {
    fn new(seed: u64, in_place: bool) -> Self {
        let world = SimWorld::new(seed);
        let disks = [0, 1].map(|n| {
            let disk = SimDisk::new(&world, n, DiskConfig::new(SIZE, Profile::Native512));
            world.plug(format!("/disk{n}"), &disk);
            disk
        });
        let shelf = Shelf::strict(&world.env(), Stream::new(seed, "shelf", 0), Vec::new());
        Self { world, disks, shelf, in_place, options: Vec::new(), lives: 0 }
    }

    fn start(&mut self) -> Life {
        self.lives += 1;
        let order = Stream::new(self.world.seed(), "order", self.lives);
        let graph = Assembly::new(&self.world.env(), crate::REGISTRY, false, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        let (from, to) = self.sides(&mut graph).unwrap();
        let part = graph.add("migrate", &self.options, &[from, to]).unwrap();
        let client = Client::new(&graph.engine, graph.node(part));
        Life { graph, part, client }
    }

    fn sides(&self, graph: &mut Assembly) -> Result<(PartId, PartId)> {
        let path = |n| [("path", Value::Text(format!("/disk{n}")))];
        let from = graph.add("path", &path(0), &[])?;
        if !self.in_place {
            return Ok((from, graph.add("path", &path(1), &[])?));
        }
        let key = ("key", Value::Text("file:/key".to_owned()));
        let crypt = [key, ("plain", Value::Switch(true))];
        Ok((from, graph.add("crypt", &crypt, &[from])?))
    }

    /// Starts the device once, so that the labels hold its state, which a test can then replace. Then blanks the disk.
    fn is_blank_again(&mut self) {
        let life = self.start();
        self.pass(Duration::from_millis(50));
        drop(life);
        self.world.drop_tasks();
        self.disks[0].power_cut(CutPolicy::KeepAll);
        let blank = SimDisk::new(&self.world, 9, DiskConfig::new(SIZE, Profile::Native512));
        self.disks[0].put_back(&blank.image());
    }

    fn read(&self, client: &Client, range: ByteRange) -> Vec<u8> {
        let into = self.world.env().buf(range.len() as usize).unwrap();
        let done = self.world.block_on(client.send(Op::read(range, into.clone()))).unwrap();
        done.result.unwrap();
        into.read().to_vec()
    }

    fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }

    /// Ends the simulated process by a kill or a power cut, at random. Returns whether it was a power cut.
    fn end(&self, draw: &Stream) -> bool {
        let cut = draw.below(2) == 0;
        match cut {
            false => {
                self.world.kill();
                self.pass(Duration::from_secs(1));
            }
            true => {
                self.world.drop_tasks();
                let any = draw.pick(&CutPolicy::ALL);
                let policy = if draw.below(2) == 0 { CutPolicy::DropAll } else { any };
                self.disks.iter().for_each(|disk| disk.power_cut(policy));
            }
        }
        cut
    }
}

impl Life {
    fn report(&self) -> Report {
        self.graph.report(self.part)
    }

    fn job(&self, action: Action) -> Result<Nothing> {
        self.graph.ask::<Steer>(self.part, Course { action })
    }

    fn is_done(&self) -> bool {
        self.report().jobs[0].state == JobState::Done
    }
}

/// Runs a migration under clients, and kills the process or cuts the power again and again until all bytes have moved.
/// After each kill the volume must have all acknowledged writes, after each power cut all flushed writes.
fn lives(seed: u64, in_place: bool, turns: bool) {
    let mut bench = Bench::new(seed, in_place);
    let draw = Stream::new(seed, "lives", u64::from(in_place));
    let model = Rc::new(Model::new(seed, SIZE));
    let tally: Rc<Tally> = Rc::default();
    let mut turned = false;
    if draw.below(2) == 0 {
        bench.options = vec![("speed", Value::Size(32 << 20))];
    }
    loop {
        let life = bench.start();
        let worker = |n| Worker {
            env: bench.world.env(),
            client: Door::Graph(life.client.clone()),
            model: model.clone(),
            tally: tally.clone(),
            draw: Stream::new(seed, "worker", bench.lives << 32 | n),
            mix: Mix::ALL,
        };
        // Reading all bytes takes long, and the process does not die meanwhile.
        if draw.below(3) == 0 {
            bench.world.block_on(worker(u64::from(u32::MAX)).verify()).unwrap();
        }
        (0..4).for_each(|n| worker(n).start(200));
        if turns && !turned && bench.lives == 3 {
            // Mostly within a window.
            bench.pass(Duration::from_nanos(draw.within(0, 5_000_000)));
            turned = life.job(Action::Cancel).is_ok();
        }
        bench.pass(Duration::from_nanos(draw.within(10_000, 20_000_000)));
        let done = life.is_done();
        let wrong = tally.wrong.borrow().as_ref().map(|wrong| wrong.words.clone());
        assert_eq!(wrong, None, "seed {seed}, in place {in_place}, life {}", bench.lives);
        if done && draw.below(2) == 0 {
            bench.world.block_on(worker(u64::from(u32::MAX)).verify()).unwrap();
            let wrong = tally.wrong.borrow().as_ref().map(|wrong| wrong.words.clone());
            assert_eq!(wrong, None, "seed {seed}, in place {in_place}, at the end");
            assert_eq!(life.graph.holders(life.part).len(), 1);
            return;
        }
        assert!(bench.lives < LIVES, "seed {seed}: {:?}", life.report());
        drop(life);
        tally.killed();
        match bench.end(&draw) {
            true => model.power_cut(),
            false => model.restarted(),
        }
    }
}

#[test]
fn migration_survives_kills_and_power_cuts() {
    for seed in 0..16 {
        lives(seed, false, false);
        lives(seed, true, false);
    }
}

#[test]
fn cancelled_migration_survives_kills_and_power_cuts() {
    for seed in 100..124 {
        lives(seed, false, true);
        lives(seed, true, true);
    }
}

#[test]
fn migration_in_place_leaves_bytes_encrypted() {
    let mut bench = Bench::new(1, true);
    let life = bench.start();
    let data = bench.world.env().buf(8192).unwrap();
    data.write().fill(7);
    let range = ByteRange::new(1 << 20, 8192).unwrap();
    let done = bench.world.block_on(life.client.send(Op::write(range, data))).unwrap();
    done.result.unwrap();
    let wait = life.graph.ask_later::<Wait>(life.part, Nothing {});
    bench.world.block_on(wait).unwrap().unwrap();
    let report = life.report();
    assert_eq!((report.jobs[0].state, life.graph.holders(life.part).len()), (JobState::Done, 1));
    assert_ne!(bench.disks[0].peek(range), [7; 8192], "it is encrypted");
    drop(life);
    bench.world.drop_tasks();
    let order = Stream::new(1, "order", 99);
    let mut graph = Assembly::new(&bench.world.env(), crate::REGISTRY, false, order);
    let (_, safe) = bench.sides(&mut graph).unwrap();
    let client = Client::new(&graph.engine, graph.node(safe));
    let read = Op::read(range, bench.world.env().buf(8192).unwrap());
    let done = bench.world.block_on(client.send(read)).unwrap();
    let Op::Read { into, .. } = done.op else { panic!("a read comes back as a read") };
    assert_eq!(*into.read(), [7; 8192]);
}

#[test]
fn migration_pauses_resumes_and_keeps_speed_limit() {
    let mut bench = Bench::new(2, true);
    bench.options = vec![("speed", Value::Size(1 << 20))];
    let life = bench.start();
    bench.pass(Duration::from_secs(1));
    let moved = life.report().jobs[0].progress.done_bytes;
    assert!((1 << 19..3 << 19).contains(&moved), "{moved}");
    life.job(Action::Pause).unwrap();
    bench.pass(Duration::from_millis(100));
    let paused = life.report().jobs[0].clone();
    assert_eq!(paused.state, JobState::Paused);
    assert_eq!(life.job(Action::Pause).unwrap_err().kind(), ErrorKind::InUse);
    // Only the last command counts.
    life.job(Action::Resume).unwrap();
    life.job(Action::Pause).unwrap();
    life.job(Action::Resume).unwrap();
    life.job(Action::Pause).unwrap();
    bench.pass(Duration::from_secs(1));
    let paused = life.report().jobs[0].clone();
    assert_eq!(paused.state, JobState::Paused);
    drop(life);
    // The pause survives a restart.
    bench.world.drop_tasks();
    let life = bench.start();
    bench.pass(Duration::from_secs(5));
    assert_eq!(life.report().jobs[0], paused);
    life.job(Action::Resume).unwrap();
    bench.pass(Duration::from_secs(5));
    assert!(life.is_done());
    let words = life.job(Action::Cancel).unwrap_err().to_string();
    assert!(words.contains("has moved all bytes"), "{words}");
}

#[test]
fn paused_migration_repairs_half_moved_window_after_kill() {
    let mut half_moved = 0;
    for seed in 0..200 {
        let mut bench = Bench::new(seed, true);
        let draw = Stream::new(seed, "moments", 0);
        let life = bench.start();
        bench.pass(Duration::from_nanos(draw.within(10_000, 20_000_000)));
        if life.job(Action::Pause).is_err() {
            continue;
        }
        bench.pass(Duration::from_nanos(draw.below(3_000_000)));
        drop(life);
        bench.world.kill();
        bench.pass(Duration::from_secs(1));
        let is_half_moved = |state: &[u8]| {
            let record = Record::decode(state).unwrap();
            record.paused && record.window.is_some()
        };
        half_moved += u64::from(bench.shelf.bytes().is_some_and(|state| is_half_moved(&state)));
        let life = bench.start();
        bench.pass(Duration::from_secs(1));
        for at in (0..SIZE).step_by(64 << 10) {
            let len = (SIZE - at).min(64 << 10);
            let into = bench.world.env().buf(len as usize).unwrap();
            let read = Op::read(ByteRange::new(at, len).unwrap(), into);
            let done = bench.world.block_on(life.client.send(read)).unwrap();
            done.result.unwrap_or_else(|error| panic!("seed {seed}, at {at}: {error}"));
        }
    }
    assert!(half_moved > 0, "no kill came in a window after a pause");
}

/// A power cut lost writes of clients in the window, but kept the record with the checksums of these writes. The next
/// start repairs the window from the bytes on the disk, also after another kill at a random time.
#[test]
fn migration_repair_records_checksums_of_window_after_lost_writes() {
    let range = ByteRange::new(0, WINDOW_MAX_BYTES).unwrap();
    let mut lost = vec![0; WINDOW_MAX_BYTES as usize];
    for (seed, bytes) in (0..80).zip([4096, WINDOW_MAX_BYTES as usize].into_iter().cycle()) {
        let mut bench = Bench::new(seed, true);
        bench.is_blank_again();
        lost[..bytes].fill(7);
        let window = Some(Window::of(range, &lost));
        let record = Record { back: false, paused: false, size: SIZE, boundary: 0, window };
        bench.shelf.put(Some(record.encode()));

        let draw = Stream::new(seed, "moments", 0);
        let life = bench.start();
        bench.pass(Duration::from_nanos(draw.below(20_000_000)));
        drop(life);
        bench.world.kill();
        bench.pass(Duration::from_secs(1));
        let life = bench.start();
        bench.pass(Duration::from_secs(1));
        assert!(life.is_done(), "seed {seed}: {:?}", life.report());
        assert!(block::is_zero(&bench.read(&life.client, range)), "seed {seed}: other bytes");
    }
}

/// A power cut lost writes of clients in a window that a migration back moves next, among them a sector of zeros. The
/// disk has zeros in this sector. The migration must not take them for a sector that has already moved.
#[test]
fn migration_back_takes_lost_zeros_for_no_moved_sector() {
    let range = ByteRange::new(0, WINDOW_MAX_BYTES).unwrap();
    let mut bench = Bench::new(6, true);
    bench.is_blank_again();
    let mut graph =
        Assembly::new(&bench.world.env(), crate::REGISTRY, false, Stream::new(6, "order", 99));
    let (_, safe) = bench.sides(&mut graph).unwrap();
    let on_disk = bench.read(&Client::new(&graph.engine, graph.node(safe)), range);
    drop(graph);
    bench.world.drop_tasks();
    let mut lost = on_disk.clone();
    lost[..512].fill(0);
    lost[512..1024].fill(7);
    let window = Some(Window::of(range, &lost));
    let record = Record { back: true, paused: false, size: SIZE, boundary: range.end(), window };
    bench.shelf.put(Some(record.encode()));
    let life = bench.start();
    bench.pass(Duration::from_secs(1));
    assert!(life.is_done(), "{:?}", life.report());
    assert!(
        bench.read(&life.client, range) == on_disk,
        "the volume has the bytes that were left on the disk"
    );
}

#[test]
fn migration_stops_while_disk_fails_then_retries() {
    let mut bench = Bench::new(3, true);
    let life = bench.start();
    bench.shelf.fail(true);
    bench.pass(Duration::from_secs(1));
    let report = life.report();
    assert_eq!(report.jobs[0].state, JobState::Stopped);
    assert!(report.next.unwrap().starts_with("cairn job resume"));
    bench.shelf.fail(false);
    bench.pass(Duration::from_secs(40));
    assert!(life.is_done());
}

/// After a crash one sector of the window has moved, and another sector is damaged. The job must stop and report that.
#[test]
fn migration_reports_damaged_window_after_crash() {
    let mut bench = Bench::new(4, true);
    bench.is_blank_again();

    let order = Stream::new(4, "order", 99);
    let mut graph = Assembly::new(&bench.world.env(), crate::REGISTRY, false, order);
    let (plain, safe) = bench.sides(&mut graph).unwrap();
    let write = |part, sector: u64, byte: u8| {
        let data = bench.world.env().buf(512).unwrap();
        data.write().fill(byte);
        let client = Client::new(&graph.engine, graph.node(part));
        let write = Op::write(ByteRange::new(sector * 512, 512).unwrap(), data);
        bench.world.block_on(client.send(write)).unwrap().result.unwrap();
    };
    write(safe, 0, 5);
    write(plain, 1, 0xda);
    drop(graph);
    bench.world.drop_tasks();
    bench.disks[0].power_cut(CutPolicy::KeepAll);
    let range = ByteRange::new(0, WINDOW_MAX_BYTES).unwrap();
    let mut content = vec![0; WINDOW_MAX_BYTES as usize];
    content[..512].fill(5);
    let window = Some(Window::of(range, &content));
    let record = Record { back: false, paused: false, size: SIZE, boundary: 0, window };
    bench.shelf.put(Some(record.encode()));

    let life = bench.start();
    bench.pass(Duration::from_secs(100));
    let job = life.report().jobs[0].clone();
    assert_eq!((job.state, job.progress.done_bytes), (JobState::Stopped, 0));
    assert!(job.detail.contains("1 of 384 sectors"), "{}", job.detail);
    assert!(life.graph.holders(life.part).is_empty(), "neither lower has all bytes");
    let read = |at| {
        let op = Op::read(ByteRange::new(at, 512).unwrap(), bench.world.env().buf(512).unwrap());
        bench.world.block_on(life.client.send(op)).unwrap().result
    };
    assert_eq!(read(4096).unwrap_err().kind(), ErrorKind::Io);
    read(WINDOW_MAX_BYTES).unwrap();
}
