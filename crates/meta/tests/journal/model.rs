//! Random changes of concurrent clients through a journal, over restarts, kills and power cuts. The test records the
//! acknowledged states of each client, and compares them with the blocks after each opening.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Env, Lower, Result};
use kind::Value;
use meta::journal::{Journal, NewPart, Options};
use sim::draw::Stream;
use sim::{Assembly, CutPolicy, DiskConfig, Faults, Profile, SimDisk, SimWorld};

use crate::scene::{DATA_START, RING_BYTES, Target, UUID, block_on, read_through, zeros};

/// Number of runs of the journal in a test, each from an opening to a crash.
const LIVES: u64 = 6;

/// Most clients of a run. With many of them the ring is often full.
const CLIENTS_MAX: u64 = 10;

/// Blocks of one client. No other client changes them.
const OWN: u64 = 6;

/// The fill of each block of a client; 0 for zeros.
type State = [u64; OWN as usize];

/// A client of the journal: the states that an opening after a crash may find.
#[derive(Default)]
struct Client {
    /// The last durable state, then that after each later change. Never empty.
    states: Vec<State>,
    /// Index in `states` of the last change that was acknowledged; the one behind it is in progress.
    acked: usize,
    changes: u64,
}

impl Client {
    fn present(&self) -> State {
        *self.states.last().expect("there is always a state")
    }

    /// Notes that the states before `index` cannot come back.
    fn forget_before(&mut self, index: usize) {
        self.states.drain(..index);
        self.acked -= index;
    }

    fn note_acked(&mut self) {
        self.acked = self.states.len() - 1;
        self.changes += 1;
    }

    fn note_durable(&mut self) {
        let last = self.acked;
        self.forget_before(last);
    }
}

/// An open journal, and the device with the blocks.
struct Opened {
    env: Env,
    journal: Journal,
    lower: Lower,
    start: u64,
    block: u64,
    /// Whether a power cut tears no block, so that a write beside the ring needs no protection.
    is_atomic: bool,
}

impl Opened {
    /// Reads the blocks of a client through the journal.
    async fn shown(&self, client: u64) -> Result<State> {
        let range = ByteRange::new(client * OWN * self.block, OWN * self.block).expect("blocks");
        let (env, start) = (&self.env, self.start);
        let bytes = read_through(env, &self.journal, &self.lower, start, range).await?;
        let mut state = State::default();
        for (fill, block) in state.iter_mut().zip(bytes.chunks(self.block as usize)) {
            *fill = u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
            assert!(block == filled(*fill, self.block), "a block of mixed bytes");
        }
        Ok(state)
    }

    fn part(&self, client: u64, block: u64, fills: &[u64]) -> Result<NewPart> {
        let bytes: Vec<u8> = fills.iter().flat_map(|fill| filled(*fill, self.block)).collect();
        let buf = self.env.buf(bytes.len())?;
        buf.write().copy_from_slice(&bytes);
        Ok(NewPart::data(0, (client * OWN + block) * self.block, buf, &[1; 8]))
    }

    fn range(&self, client: u64, block: u64) -> ByteRange {
        ByteRange::new((client * OWN + block) * self.block, self.block).expect("a block has bytes")
    }
}

fn filled(fill: u64, block: u64) -> Vec<u8> {
    fill.to_le_bytes().repeat(block as usize / 8)
}

/// A journal on simulated disks, and its clients, over many crashes.
struct Run {
    world: SimWorld,
    /// The disk with the ring, and the one with the blocks if that is another one.
    disks: Vec<Rc<SimDisk>>,
    profile: Profile,
    block: u64,
    clients: Vec<Rc<RefCell<Client>>>,
    random: Stream,
    graph: RefCell<Option<Assembly>>,
    crashes: Cell<u64>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let world = SimWorld::new(seed);
        let random = Stream::new(seed, "journal model", 0);
        let profile = random.pick(&[Profile::Native512, Profile::Native4k, Profile::Emulated512]);
        let disk = |n: u64| {
            let disk = SimDisk::new(&world, n, DiskConfig::new(1 << 20, profile));
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks = (0..random.within(1, 2)).map(disk).collect();
        let client = |_| {
            Rc::new(RefCell::new(Client { states: vec![State::default()], ..Client::default() }))
        };
        let clients = (0..random.within(1, CLIENTS_MAX)).map(client).collect();
        // A power cut may tear the physical sectors of a disk, but no longer block.
        let block = if profile == Profile::Native512 { 512 } else { 4096 };
        let (graph, crashes) = Default::default();
        Self { world, disks, profile, block, clients, random, graph, crashes }
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

    fn format(&self) {
        let env = self.world.env();
        let lower = self.lowers().remove(0);
        block_on(&self.world, Journal::format(&env, &lower, 0, UUID, RING_BYTES, 1)).unwrap();
    }

    async fn open(&self, what: &str) -> Opened {
        let (env, lowers) = (self.world.env(), self.lowers());
        let start = if lowers.len() == 1 { DATA_START } else { 0 };
        let lower = lowers.last().expect("there is a disk").clone();
        let target = Target::new(&env, &lower, start);
        let options = Options { uuid: Some(UUID), ..Options::default() };
        let opened = Journal::open(&env, &lowers[0], 0, &options, target).await;
        let (journal, _) = opened.unwrap_or_else(|why| panic!("{what}: {why}"));
        let is_atomic = self.profile != Profile::Emulated512;
        Opened { env, journal, lower, start, block: self.block, is_atomic }
    }

    /// Opens the journal, checks the blocks, and runs clients up to the next crash.
    fn live(&self, what: &str) {
        let env = self.world.env();
        let opened = block_on(&self.world, async {
            let opened = Rc::new(self.open(what).await);
            for (number, client) in (0..).zip(&self.clients) {
                let shown = opened.shown(number).await.unwrap();
                let mut client = client.borrow_mut();
                let states = &client.states;
                assert!(states.contains(&shown), "{what}: {shown:?} is none of {states:?}");
                (client.states, client.acked) = (vec![shown], 0);
            }
            opened
        });
        for (number, client) in (0..).zip(&self.clients) {
            let (opened, client, key) = (opened.clone(), client.clone(), self.random.next());
            let what = what.to_owned();
            env.spawn("client", async move {
                // After an error the journal refuses everything, until the next life.
                let _ = talk(opened, number, client, key, what).await;
            });
        }
        if self.random.chance(200_000) {
            let faults = Faults { write_error: 20_000, ..Faults::default() };
            self.disks[0].set_faults(faults);
        }
        let length = Duration::from_micros(self.random.within(100, 60_000));
        self.world.run(env.now().after(length)).unwrap();
        if self.random.chance(200_000) {
            block_on(&self.world, opened.journal.close()).ok();
        }
        drop(opened);
        let has_power_cut = self.random.chance(600_000);
        self.crash(has_power_cut);
        if !has_power_cut {
            // The disks keep all that a killed process has written.
            self.clients.iter().for_each(|client| client.borrow_mut().note_durable());
        }
    }

    fn crash(&self, power: bool) {
        self.crashes.set(self.crashes.get() + 1);
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
        // Requests that the kernel still works on end before the disks are opened again.
        let later = self.world.env().now().after(Duration::from_secs(20));
        self.world.run(later).unwrap();
    }
}

/// Runs a client: random changes one after the other, until the simulated process is killed.
async fn talk(
    opened: Rc<Opened>,
    number: u64,
    client: Rc<RefCell<Client>>,
    key: u64,
    what: String,
) -> Result<()> {
    let random = Stream::new(key, "client", number);
    let journal = &opened.journal;
    loop {
        match random.below(20) {
            0..14 => {
                let (parts, next) = draw(&opened, number, client.borrow().present(), &random)?;
                client.borrow_mut().states.push(next);
                journal.append(parts).await?;
                client.borrow_mut().note_acked();
            }
            14..16 if opened.is_atomic => beside(&opened, number, &client, &random).await?,
            16..18 => {
                journal.sync().await?;
                client.borrow_mut().note_durable();
            }
            18 => {
                journal.settle().await?;
                client.borrow_mut().note_durable();
            }
            _ => opened.env.sleep(Duration::from_micros(random.below(3000))).await,
        }
        let shown = opened.shown(number).await?;
        let present = client.borrow().present();
        assert!(shown == present, "{what}: client {number} reads {shown:?}, not {present:?}");
    }
}

/// Draws the next change of a client through the ring. Returns the state after it.
fn draw(
    opened: &Opened,
    number: u64,
    state: State,
    random: &Stream,
) -> Result<(Vec<NewPart>, State)> {
    let (mut parts, mut next) = (Vec::new(), state);
    for _ in 0..random.within(1, 3) {
        let first = random.below(OWN);
        if random.below(5) == 0 {
            parts.push(NewPart::zeroes(0, opened.range(number, first), &[]));
            next[first as usize] = 0;
            continue;
        }
        // At most one sector of the ring for each part, so that a change fits in a record.
        let most = (4096 / opened.block).min(OWN - first);
        let fills: Vec<u64> = (0..random.within(1, most)).map(|_| random.next()).collect();
        next[first as usize..][..fills.len()].copy_from_slice(&fills);
        parts.push(opened.part(number, first, &fills)?);
    }
    Ok((parts, next))
}

/// Zeroes a block of a client beside the ring.
async fn beside(
    opened: &Opened,
    number: u64,
    client: &RefCell<Client>,
    random: &Stream,
) -> Result<()> {
    // Earlier changes must not be lost behind this one.
    opened.journal.sync().await?;
    client.borrow_mut().note_durable();
    let block = random.below(OWN);
    let range = opened.range(number, block);
    opened.journal.until_in_place(0, range).await?;
    let mut next = client.borrow().present();
    next[block as usize] = 0;
    client.borrow_mut().states.push(next);
    let data = zeros(&opened.env, opened.block)?;
    opened.lower.write(range.at(opened.start + range.start()), data).await?;
    opened.lower.flush().await?;
    let mut client = client.borrow_mut();
    client.note_acked();
    client.note_durable();
    Ok(())
}

#[test]
fn journal_changes_are_durable_and_atomic_after_random_crashes() {
    let seeds = std::env::var("N").map_or(60, |n| n.parse().expect("N is a number"));
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("SEED is a number"));
    let (mut changes, mut crashes) = (0, 0);
    for seed in first..first + seeds {
        let run = Run::new(seed);
        run.format();
        run.crash(run.random.chance(600_000));
        for life in 0..LIVES {
            run.live(&format!("SEED={seed} N=1, life {life}"));
        }
        changes += run.clients.iter().map(|client| client.borrow().changes).sum::<u64>();
        crashes += run.crashes.get();
    }
    println!("{changes} changes, {crashes} crashes");
    assert!(changes > 20 * seeds, "{changes} changes");
}
