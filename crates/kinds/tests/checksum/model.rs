//! Random requests of concurrent clients on simulated disks, over kills, power cuts and stops in order, with failing and
//! with lying disks. The test knows the possible bytes of each block, and compares them with each read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Copies, Env, Lower, Op};
use kind::Value;
use kinds::checksum::{BLOCK_BYTES, Core, Mode, Objects, Parts, Redundancy, Target};
use meta::Uuid;
use meta::journal::{Journal, Options as JournalOptions, RING_START};
use meta::vault::Vault;
use sim::disk::{DAMAGE, SECTOR};
use sim::draw::Stream;
use sim::{Assembly, CutPolicy, DiskConfig, Faults, Profile, SimDisk, SimWorld};

use crate::scene::{
    Crash, DEVICE, OWNER, block_on, content, format_vault, open_regions, open_vault, run,
};

/// Blocks of the device: more than the first checksums take in one step.
const BLOCKS: u64 = 96;
const CLIENTS: u64 = 4;
const OWN: u64 = BLOCKS / CLIENTS;
const VAULT_BYTES: u64 = 320 << 10;
const RING_BYTES: u64 = 256 << 10;

/// Number of times that a run opens the device.
const LIVES: u64 = 6;

/// Faults of the disk with the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    None,
    /// Operations fail.
    Loud,
    /// The disk rots, and loses and misdirects writes. Reads may fail, but never lie.
    Silent,
}

type Bytes = Rc<[u8]>;

/// The possible bytes of a block.
struct Known {
    /// The bytes after the last durable change, then those after each later one. Never empty.
    states: Vec<Bytes>,
    /// Number of changes before the first of `states`.
    base: u64,
    /// Index in `states` of the last acknowledged change.
    acked: usize,
    /// Whether a change has failed, so that each sector may have the bytes of any state from `acked` on.
    is_torn: bool,
    /// Whether the disk may have lied about the block before it had a checksum, or when it was accepted: any bytes may be
    /// there, until it is written.
    is_free: bool,
}

impl Known {
    fn new(bytes: Bytes) -> Self {
        Self { states: vec![bytes], base: 0, acked: 0, is_torn: false, is_free: false }
    }

    fn only(&mut self, bytes: Bytes) {
        *self = Self { base: self.base + self.states.len() as u64, ..Self::new(bytes) };
    }

    fn may_be(&self, bytes: &[u8], from: usize, may_tear: bool) -> bool {
        let states = &self.states[from..];
        let sector = SECTOR as usize;
        let fits = |(n, part): (usize, &[u8])| {
            states.iter().any(|state| state[n * sector..][..sector] == *part)
                || may_tear && part.iter().all(|byte| *byte == DAMAGE)
        };
        states.iter().any(|state| **state == *bytes)
            || may_tear && states.len() > 1 && bytes.chunks(sector).enumerate().all(fits)
    }
}

struct Run {
    seed: u64,
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    random: Stream,
    crash: Crash,
    trouble: Trouble,
    graph: RefCell<Option<Assembly>>,
    known: Rc<Vec<RefCell<Known>>>,
    requests: Rc<Cell<u64>>,
    refused: Rc<Cell<u64>>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let world = SimWorld::new(seed);
        let random = Stream::new(seed, "checksum model", 0);
        let profiles = [Profile::Native512, Profile::Native4k, Profile::Emulated512];
        let sizes = [VAULT_BYTES, RING_START + RING_BYTES, BLOCKS * BLOCK_BYTES];
        let disk = |(n, size): (usize, &u64)| {
            let disk =
                SimDisk::new(&world, n as u64, DiskConfig::new(*size, random.pick(&profiles)));
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks = sizes.iter().enumerate().map(disk).collect();
        let crash = if seed.is_multiple_of(2) { Crash::Regions } else { Crash::Journal };
        let trouble = [Trouble::None, Trouble::Loud, Trouble::Silent][(seed / 2 % 3) as usize];
        let zeros: Bytes = content(0, 0).into();
        let known = (0..BLOCKS).map(|_| RefCell::new(Known::new(zeros.clone()))).collect();
        let (graph, requests, refused) = Default::default();
        let known = Rc::new(known);
        Self { seed, world, disks, random, crash, trouble, graph, known, requests, refused }
    }

    fn lowers(&self) -> Vec<Lower> {
        let order = Stream::new(self.random.next(), "order", 0);
        let mut graph = Assembly::new(&self.world.env(), kinds::REGISTRY, false, order);
        let disk = |n: usize| {
            let path = [("path", Value::Text(format!("/disk{n}")))];
            let part = graph.add("path", &path, &[]).unwrap();
            graph.engine.lower(graph.node(part))
        };
        let lowers = (0..self.disks.len()).map(disk).collect();
        *self.graph.borrow_mut() = Some(graph);
        lowers
    }

    async fn format(&self, has_zeros: bool) {
        let (env, lowers) = (self.world.env(), self.lowers());
        format_vault(&env, &lowers[0], &lowers[2], has_zeros).await;
        let uuid = Uuid([9; 16]);
        Journal::format(&env, &lowers[1], 0, uuid, RING_BYTES, 1).await.unwrap();
    }

    async fn open(&self) -> Life {
        let (env, lowers) = (self.world.env(), self.lowers());
        let data = lowers[2].clone();
        let vault = open_vault(&env, &lowers[0], &data).await.unwrap();
        let mut marked = Vec::new();
        let mode = match self.crash {
            Crash::Regions => {
                let regions = open_regions(&env, &vault, data.info().size).await.unwrap();
                marked.extend(regions.unverified());
                Mode::Regions(regions)
            }
            Crash::Journal => {
                let target = Target::new(&data, &vault, OWNER, DEVICE).unwrap();
                let options = JournalOptions::default();
                let opened = Journal::open(&env, &lowers[1], 0, &options, target).await;
                Mode::Journal(opened.unwrap().0)
            }
        };
        let parts = Parts {
            name: "sums".into(),
            env: env.clone(),
            data,
            vault: vault.clone(),
            objects: Objects::open(&vault, OWNER).unwrap(),
            mode,
            device: DEVICE,
            redundancy: Redundancy::None,
            speed: None,
        };
        let core = Rc::new(Core::open(parts).await.unwrap());
        let (known, trouble) = (self.known.clone(), self.trouble);
        let (requests, refused) = (self.requests.clone(), self.refused.clone());
        let stops = Rc::default();
        let running = Rc::default();
        let marked = Rc::new(marked);
        Life { env, core, vault, marked, known, trouble, requests, refused, stops, running }
    }

    fn crash(&self, power: bool) {
        self.world.kill();
        if let Some(graph) = self.graph.take() {
            graph.engine.abandon();
        }
        for disk in &self.disks {
            if power {
                disk.power_cut(self.random.pick(&CutPolicy::ALL));
            }
            disk.set_faults(Faults::default());
        }
        let later = self.world.env().now().after(Duration::from_secs(20));
        self.world.run(later).unwrap();
    }

    fn begin_trouble(&self) {
        let rate = 4_000;
        let faults = match self.trouble {
            Trouble::None => Faults::default(),
            Trouble::Loud => Faults { read_error: rate, write_error: rate, ..Faults::default() },
            Trouble::Silent => {
                Faults { rot: rate, lost_write: rate, misdirected: rate, ..Faults::default() }
            }
        };
        self.disks[2].set_faults(faults);
    }
}

/// A running device.
#[derive(Clone)]
struct Life {
    env: Env,
    core: Rc<Core>,
    vault: Vault,
    /// Ranges in regions marked at the opening.
    marked: Rc<Vec<ByteRange>>,
    known: Rc<Vec<RefCell<Known>>>,
    trouble: Trouble,
    requests: Rc<Cell<u64>>,
    refused: Rc<Cell<u64>>,
    stops: Rc<Cell<bool>>,
    running: Rc<Cell<u64>>,
}

impl Life {
    /// Judges each block after an opening, and takes its bytes as the only possible ones.
    async fn judge(&self, power: bool, crash: Crash, what: &str) {
        for block in 0..BLOCKS {
            let is_marked = self.marked.iter().any(|part| part.overlaps(run(block, 1)));
            let shown = crate::scene::read(&self.env, &self.core, run(block, 1), false).await;
            let mut known = self.known[block as usize].borrow_mut();
            let from = if power { 0 } else { known.acked };
            let bytes = match shown {
                Ok(bytes) => bytes,
                Err(error) => {
                    assert!(self.trouble != Trouble::None, "{what}: block {block}: {error}");
                    continue;
                }
            };
            let may_tear = crash == Crash::Regions || known.is_torn;
            let is_free = known.is_free || is_marked && self.trouble == Trouble::Silent;
            let fits = is_free || known.may_be(&bytes, from, may_tear);
            assert!(fits, "{what}: block {block} has none of its possible bytes");
            known.only(bytes.into());
            known.is_free = is_free;
        }
    }

    async fn pause(&self, random: &Stream) {
        self.env.sleep(Duration::from_micros(random.below(2000))).await;
    }

    /// Writes or zeroes blocks of a client.
    async fn change(&self, client: u64, version: u64, random: &Stream) {
        let first = client * OWN + random.below(OWN);
        let count = random.within(1, ((client + 1) * OWN - first).min(6));
        let is_zero = random.below(5) == 0;
        let version = if is_zero { 0 } else { version };
        let all: Vec<u8> = (first..first + count).flat_map(|at| content(at, version)).collect();
        for (block, bytes) in (first..).zip(all.chunks(BLOCK_BYTES as usize)) {
            self.known[block as usize].borrow_mut().states.push(bytes.into());
        }
        let (range, fua) = (run(first, count), random.below(8) == 0);
        let mut op = match is_zero {
            true if random.below(2) == 0 => Op::Discard { range, fua },
            true => Op::WriteZeroes { range, unmap: true, fua },
            false => {
                let data = self.env.buf(all.len()).unwrap();
                data.write().copy_from_slice(&all);
                Op::Write { range, data, fua, restores: Copies::NONE }
            }
        };
        let done = self.core.submit(&mut op).await;
        for block in first..first + count {
            let mut known = self.known[block as usize].borrow_mut();
            if done.is_ok() {
                let last = known.states.len() - 1;
                (known.acked, known.is_torn, known.is_free) = (last, false, false);
                if fua {
                    known.states.drain(..last);
                    known.base += last as u64;
                    known.acked = 0;
                }
            } else {
                known.is_torn = true;
            }
        }
        self.note(done.is_ok());
    }

    fn note(&self, is_ok: bool) {
        let count = if is_ok { &self.requests } else { &self.refused };
        count.set(count.get() + 1);
        assert!(is_ok || self.trouble != Trouble::None, "a request fails on good disks");
    }

    async fn flush(&self) {
        let acked = |known: &RefCell<Known>| {
            let known = known.borrow();
            (known.base + known.acked as u64, known.is_torn)
        };
        let before: Vec<_> = self.known.iter().map(acked).collect();
        let done = self.core.submit(&mut Op::Flush).await;
        self.note(done.is_ok());
        if done.is_err() {
            return;
        }
        for (known, (number, was_torn)) in self.known.iter().zip(before) {
            let mut known = known.borrow_mut();
            if !was_torn && number > known.base {
                let count = (number - known.base) as usize;
                known.states.drain(..count);
                known.base = number;
                known.acked -= count;
            }
        }
    }

    /// Reads blocks of a client.
    async fn look(&self, client: u64, random: &Stream, what: &str) {
        let first = client * OWN + random.below(OWN);
        let count = random.within(1, ((client + 1) * OWN - first).min(6));
        let shown = crate::scene::read(&self.env, &self.core, run(first, count), false).await;
        self.note(shown.is_ok());
        let Ok(shown) = shown else { return };
        for (block, bytes) in (first..).zip(shown.chunks(BLOCK_BYTES as usize)) {
            let known = self.known[block as usize].borrow();
            let fits = known.is_free || known.may_be(bytes, known.acked, known.is_torn);
            assert!(fits, "{what}: a read of block {block} returns wrong bytes");
        }
    }

    /// Reads blocks of all clients, for the order of requests alone.
    async fn sweep(&self, random: &Stream) {
        let first = random.below(BLOCKS - 30);
        let range = ByteRange::new(first * BLOCK_BYTES, 15 * BLOCK_BYTES).unwrap();
        let done = crate::scene::read(&self.env, &self.core, range, false).await;
        self.note(done.is_ok());
    }

    async fn talk(self, client: u64, random: Stream, what: String) {
        self.running.set(self.running.get() + 1);
        let mut version = random.next() % 60_000 + 1;
        while !self.stops.get() {
            version += 1;
            match random.below(10) {
                0 => self.flush().await,
                1..4 => self.look(client, &random, &what).await,
                4 => self.sweep(&random).await,
                5 => self.pause(&random).await,
                _ => self.change(client, version, &random).await,
            }
        }
        self.running.set(self.running.get() - 1);
    }
}

#[test]
fn blocks_have_possible_bytes_after_random_crashes() {
    let seeds = std::env::var("N").map_or(24, |n| n.parse().expect("N is a number"));
    let start = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("SEED is a number"));
    let (mut requests, mut refused) = (0, 0);
    for seed in start..start + seeds {
        let run = Run::new(seed);
        let is_old = run.random.below(3) == 0;
        if is_old {
            let whole = ByteRange::new(0, BLOCKS * BLOCK_BYTES).unwrap();
            run.disks[2].overwrite(whole, 5);
            let old: Bytes = vec![5; BLOCK_BYTES as usize].into();
            run.known.iter().for_each(|known| known.borrow_mut().only(old.clone()));
        }
        block_on(&run.world, run.format(!is_old));
        run.crash(false);
        let mut power = true;
        for number in 0..LIVES {
            let what = format!("SEED={seed} N=1, life {number}");
            live(&run, &mut power, &what);
        }
        requests += run.requests.get();
        refused += run.refused.get();
        assert_eq!(run.seed, seed);
    }
    println!("{requests} requests, {refused} refused");
    assert!(requests > 100 * seeds, "{requests} requests");
}

/// Opens the device, judges it, and runs clients up to the next crash or stop.
fn live(run: &Run, power: &mut bool, what: &str) {
    let life = block_on(&run.world, async {
        let life = run.open().await;
        life.judge(*power, run.crash, what).await;
        life
    });
    let env = run.world.env();
    if run.trouble == Trouble::Silent {
        // Nothing verifies bytes before they have checksums, or before the scan has been through a marked region.
        let unverified = || {
            let numbers = life.core.numbers();
            numbers.unsummed_bytes + numbers.unverified_bytes
        };
        block_on(&run.world, async {
            while unverified() > 0 {
                env.sleep(Duration::from_millis(10)).await;
            }
        });
    }
    run.begin_trouble();
    for client in 0..CLIENTS {
        let random = Stream::new(run.random.next(), "client", client);
        env.spawn("client", life.clone().talk(client, random, what.to_owned()));
    }
    let length = Duration::from_micros(run.random.within(100, 120_000));
    run.world.run(env.now().after(length)).unwrap();
    if run.random.below(4) == 0 {
        block_on(&run.world, async {
            life.stops.set(true);
            while life.running.get() > 0 {
                env.sleep(Duration::from_millis(1)).await;
            }
            let closed = life.core.close().await;
            let ended = life.vault.clone().close().await;
            assert!(run.trouble != Trouble::None || closed.is_ok() && ended.is_ok(), "{what}");
        });
    }
    drop(life);
    *power = run.random.chance(600_000);
    run.crash(*power);
}
