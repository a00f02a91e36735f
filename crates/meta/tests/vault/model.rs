//! Random transactions of concurrent clients on a vault, over restarts, kills, power cuts, failing and lost copies. The
//! test records the acknowledged state of each client, and compares it with the vault after each opening.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block::{Env, Lower, Result};
use kind::Value;
use meta::vault::{
    Array, Bitmap, Cell, Codec, CopyState, Log, ObjectId, Options, SEALED_AFTER, Shape, Spec, Vault,
};
use sim::draw::Stream;
use sim::{Assembly, CutPolicy, DiskConfig, Faults, Profile, SimDisk, SimWorld};
use zerocopy::little_endian::U64;

use crate::scene::block_on;

const DISK_BYTES: u64 = 2 << 20;
pub const SHAPE: Shape = Shape { log_bytes: Some(64 << 10), objects: 64, bytes: None };
const OPTIONS: Options = Options {
    cache_bytes: 60 * 4096,
    read_only: false,
    may_degrade: false,
    vault: None,
    bytes: None,
};

const DEGRADED: Options = Options { may_degrade: true, ..OPTIONS };

/// Number of runs of the vault in a test, each from an opening to a crash.
const LIVES: u64 = 6;

const CLIENTS: u64 = 3;
const BITS: u64 = 70_000;

/// The content of a client's objects in the vault.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct State {
    array: Option<(ObjectId, Vec<u64>)>,
    bits: Option<(ObjectId, Vec<bool>)>,
    log: Option<(ObjectId, Vec<Vec<u8>>)>,
}

/// A client of the vault: the states that an opening after a crash may find.
struct Client {
    /// The state after the last durable transaction, then that after each later one. Never empty.
    states: Vec<State>,
    /// Index in `states` of the last transaction that was answered; the one behind it is in progress.
    posted: usize,
    commits: u64,
}

impl Default for Client {
    fn default() -> Self {
        Self { states: vec![State::default()], posted: 0, commits: 0 }
    }
}

impl Client {
    fn present(&self) -> &State {
        self.states.last().expect("there is always a state")
    }

    /// Notes that the states before `index` cannot come back.
    fn forget_before(&mut self, index: usize) {
        self.states.drain(..index);
        self.posted -= index;
    }
}

fn owner(client: u64) -> String {
    format!("client{client}")
}

/// Makes the next random transaction of a client, and applies the same changes to `state`, the expected content.
async fn draw(
    vault: &Vault,
    client: u64,
    state: &mut State,
    log: Option<&Log>,
    random: &Stream,
) -> Result<meta::vault::Transaction> {
    let mut transaction = vault.begin();
    let name = owner(client);
    for _ in 0..=random.below(3) {
        match random.below(10) {
            0..4 => array(vault, &name, state, &mut transaction, random)?,
            4..7 => bits(vault, &name, state, &mut transaction, random)?,
            _ => entries(state, log, &mut transaction, random).await?,
        }
    }
    Ok(transaction)
}

fn array(
    vault: &Vault,
    name: &str,
    state: &mut State,
    transaction: &mut meta::vault::Transaction,
    random: &Stream,
) -> Result<()> {
    let Some((id, model)) = &mut state.array else {
        let length = random.within(1, 3000);
        let id = transaction.create(&Spec::array::<U64>(name, 0, length))?;
        state.array = Some((id, vec![0; length as usize]));
        return Ok(());
    };
    let array = Array::<U64>::new(vault, *id);
    match random.below(20) {
        0 => {
            transaction.delete(*id)?;
            state.array = None;
        }
        1 if model.len() < 4000 => {
            let length = model.len() as u64 + random.within(1, 1000);
            transaction.grow(*id, length)?;
            model.resize(length as usize, 0);
        }
        2 => {
            let first = random.below(model.len() as u64);
            let count = random.within(1, model.len() as u64 - first);
            array.clear(transaction, first, count)?;
            model[first as usize..(first + count) as usize].fill(0);
        }
        _ => {
            let (index, value) = (random.below(model.len() as u64), random.next());
            array.set(transaction, index, &U64::new(value))?;
            model[index as usize] = value;
        }
    }
    Ok(())
}

fn bits(
    vault: &Vault,
    name: &str,
    state: &mut State,
    transaction: &mut meta::vault::Transaction,
    random: &Stream,
) -> Result<()> {
    let Some((id, model)) = &mut state.bits else {
        let id = transaction.create(&Spec::bitmap(name, 1, BITS))?;
        state.bits = Some((id, vec![false; BITS as usize]));
        return Ok(());
    };
    let first = random.below(BITS);
    let count = random.within(1, (BITS - first).min(9000));
    let value = random.below(2) == 1;
    Bitmap::new(vault, *id).put(transaction, first, count, value)?;
    model[first as usize..(first + count) as usize].fill(value);
    Ok(())
}

async fn entries(
    state: &mut State,
    log: Option<&Log>,
    transaction: &mut meta::vault::Transaction,
    random: &Stream,
) -> Result<()> {
    let (Some((_, model)), Some(log)) = (&mut state.log, log) else { return Ok(()) };
    if random.below(8) == 0 && transaction.is_empty() {
        // This is the end of the entries before this transaction, which has none of its own yet.
        log.trim(transaction, log.next()).await?;
        model.clear();
    }
    let bytes = vec![random.next() as u8; random.below(400) as usize];
    if log.append(transaction, &bytes).await.is_ok() {
        model.push(bytes);
    }
    Ok(())
}

/// Reads the content of a client's objects from the vault.
async fn shown(vault: &Vault, client: u64) -> Result<State> {
    let mut state = State::default();
    let name = owner(client);
    if let Some(id) = vault.find(&name, 0) {
        let array = Array::<U64>::new(vault, id);
        let mut records = vec![U64::ZERO; array.records()? as usize];
        array.get_many(0, &mut records).await?;
        state.array = Some((id, records.iter().map(|record| record.get()).collect()));
    }
    if let Some(id) = vault.find(&name, 1) {
        let bitmap = Bitmap::new(vault, id);
        let mut bits = vec![true; BITS as usize];
        let mut at = 0;
        // A run of clear bits ends before the first set bit.
        while let Some(start) = bitmap.find_clear(at, 1).await? {
            let mut end = start;
            while end < BITS && !bitmap.test(end).await? {
                bits[end as usize] = false;
                end += 1;
            }
            at = end;
        }
        assert_eq!(bitmap.count().await?, bits.iter().filter(|bit| **bit).count() as u64);
        state.bits = Some((id, bits));
    }
    if let Some(id) = vault.find(&name, 2) {
        let log = Log::open(vault, id).await?;
        let (mut at, mut entries) = (log.first(), Vec::new());
        while let Some(entry) = log.get(at).await? {
            at = entry.next;
            entries.push(entry.bytes);
        }
        state.log = Some((id, entries));
    }
    Ok(state)
}

/// A vault on simulated disks, and its clients, over many crashes.
pub struct Run {
    pub world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    clients: Vec<Rc<RefCell<Client>>>,
    pub random: Stream,
    /// The graph with the vault's disks from an opening to the next crash; `None` after a crash.
    graph: RefCell<Option<Assembly>>,
    /// The number of the only copy that gets faults.
    bad: usize,
    rejoins: std::cell::Cell<u64>,
    crashes: std::cell::Cell<u64>,
    /// Number of times that a stale copy was opened alone and written.
    forks: std::cell::Cell<u64>,
}

impl Run {
    pub fn new(seed: u64) -> Self {
        let world = SimWorld::new(seed);
        let random = Stream::new(seed, "vault model", 0);
        let copies = random.within(1, 3);
        let profiles = [Profile::Native512, Profile::Native4k, Profile::Emulated512];
        let disk = |n: u64| {
            let config = DiskConfig::new(DISK_BYTES, random.pick(&profiles));
            let disk = SimDisk::new(&world, n, config);
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks = (0..copies).map(disk).collect();
        let bad = random.below(copies) as usize;
        let clients = (0..CLIENTS).map(|_| Rc::default()).collect();
        let (graph, rejoins, crashes, forks) = Default::default();
        Self { world, disks, clients, random, graph, bad, rejoins, crashes, forks }
    }

    pub fn lowers(&self) -> Vec<Lower> {
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

    /// Formats the disks as the copies of a new vault, and opens the vault.
    async fn create(&self) -> Vault {
        let (env, lowers) = (self.world.env(), self.lowers());
        Vault::format(&env, &lowers, SHAPE).await.unwrap();
        let lowers = lowers.into_iter().map(Some).collect();
        Vault::open(&env, lowers, &OPTIONS).await.unwrap()
    }

    pub async fn open(&self) -> Vault {
        let lowers: Vec<_> = self.lowers().into_iter().map(Some).collect();
        match Vault::open(&self.world.env(), lowers.clone(), &OPTIONS).await {
            Err(error) if error.kind() == block::ErrorKind::Degraded => {
                Vault::open(&self.world.env(), lowers, &DEGRADED).await.unwrap()
            }
            opened => opened.unwrap(),
        }
    }

    /// Opens a stale copy without the other copies, and commits to it. An opening of all copies must then be rejected
    /// as a split brain. Afterwards restores the bytes of the stale copy's disk.
    fn fork(&self, what: &str) {
        let left = block_on(&self.world, self.left_behind());
        self.crash(false);
        let Some(copy) = left else { return };
        let before = self.disks[copy].image();
        let continued = block_on(&self.world, self.continue_alone(copy));
        self.crash(false);
        if continued.is_ok() {
            self.forks.set(self.forks.get() + 1);
            let lowers = self.lowers().into_iter().map(Some).collect();
            let opened = block_on(&self.world, Vault::open(&self.world.env(), lowers, &DEGRADED));
            let error = opened.err().unwrap_or_else(|| panic!("{what}: opened with copy {copy}"));
            assert!(error.to_string().contains("split brain"), "{what}: {error}");
            self.crash(false);
        }
        self.disks[copy].put_back(&before);
    }

    /// Returns the number of a stale copy; `None` if there is none. Opens the vault read-only, because an opening for
    /// writing raises the epoch.
    async fn left_behind(&self) -> Option<usize> {
        let lowers = self.lowers().into_iter().map(Some).collect();
        let looks = Options { read_only: true, ..DEGRADED };
        let vault = Vault::open(&self.world.env(), lowers, &looks).await.ok()?;
        (0..vault.copies()).find(|copy| vault.copy_state(*copy).0 == CopyState::Behind)
    }

    async fn continue_alone(&self, copy: usize) -> Result<()> {
        let lowers = self.lowers().into_iter().enumerate();
        let alone = lowers.map(|(n, lower)| (n == copy).then_some(lower)).collect();
        let vault = Vault::open(&self.world.env(), alone, &DEGRADED).await?;
        let mut transaction = vault.begin();
        transaction.create(&Spec::cell("alone", 0, 100))?;
        vault.commit(transaction).await
    }

    /// Opens the vault, checks its content, and runs clients up to the next crash.
    fn live(&self, what: &str) {
        let env = self.world.env();
        let vault = block_on(&self.world, async {
            let vault = self.open().await;
            self.check(&vault, what).await;
            for copy in 0..vault.copies() {
                if vault.copy_state(copy).0 == CopyState::Behind {
                    vault.rejoin(copy).await.unwrap();
                    self.rejoins.set(self.rejoins.get() + 1);
                }
            }
            self.make_logs(&vault).await;
            vault
        });
        for (number, client) in self.clients.iter().enumerate() {
            let (vault, client, key) = (vault.clone(), client.clone(), self.random.next());
            env.spawn("client", talk(env.clone(), vault, number as u64, client, key));
        }
        self.spoil();
        let length = Duration::from_micros(self.random.within(100, 60_000));
        self.world.run(env.now().after(length)).unwrap();
        if self.random.chance(200_000) {
            block_on(&self.world, vault.close()).ok();
        } else {
            drop(vault);
        }
        let has_power_cut = self.random.chance(600_000);
        self.crash(has_power_cut);
        if !has_power_cut {
            // The disks keep all that a killed process has written.
            for client in &self.clients {
                let mut client = client.borrow_mut();
                let last = client.posted;
                client.forget_before(last);
            }
        }
        self.fork(what);
    }

    /// If there are several copies, sets a random fault on the disk of the faulty copy, in most calls.
    fn spoil(&self) {
        if self.disks.len() > 1 && self.random.chance(600_000) {
            let faults = [
                Faults { write_error: 300_000, ..Faults::default() },
                Faults { flush_error: 300_000, ..Faults::default() },
                Faults { read_error: 100_000, ..Faults::default() },
                Faults { rot: 200_000, ..Faults::default() },
                Faults { lost_write: 200_000, ..Faults::default() },
                Faults { misdirected: 200_000, ..Faults::default() },
            ];
            self.disks[self.bad].set_faults(self.random.pick(&faults));
        }
    }

    pub fn crash(&self, power: bool) {
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

    /// Checks that each client's objects in the vault have one of the states that the crash may have left.
    async fn check(&self, vault: &Vault, what: &str) {
        for (number, client) in self.clients.iter().enumerate() {
            let shown = shown(vault, number as u64).await.unwrap();
            let mut client = client.borrow_mut();
            assert!(
                client.states.contains(&shown),
                "{what}: client {number} has none of its {} possible states",
                client.states.len()
            );
            (client.states, client.posted) = (vec![shown], 0);
        }
    }

    async fn make_logs(&self, vault: &Vault) {
        for (number, client) in self.clients.iter().enumerate() {
            if client.borrow().present().log.is_some() {
                continue;
            }
            let mut transaction = vault.begin();
            let id = transaction.create(&Spec::log(&owner(number as u64), 2, 5000)).unwrap();
            vault.commit(transaction).await.unwrap();
            client.borrow_mut().states[0].log = Some((id, Vec::new()));
        }
    }
}

/// Runs a client: commits or posts random transactions one after the other until the simulated process is killed.
async fn talk(env: Env, vault: Vault, number: u64, client: Rc<RefCell<Client>>, key: u64) {
    let random = Stream::new(key, "client", number);
    let id = client.borrow().present().log.as_ref().map(|(id, _)| *id).expect("it was made");
    let log = Log::open(&vault, id).await.unwrap();
    loop {
        let mut next = client.borrow().present().clone();
        let drawn = draw(&vault, number, &mut next, Some(&log), &random).await;
        // A transaction that does not fit is not committed.
        let Ok(transaction) = drawn else { continue };
        if random.chance(50_000) {
            drop(transaction);
            env.give_way().await;
            continue;
        }
        client.borrow_mut().states.push(next);
        let is_posted = random.chance(700_000);
        let done = match is_posted {
            true => vault.post(transaction).await.map(drop),
            false => vault.commit(transaction).await,
        };
        if done.is_err() {
            return;
        }
        {
            let mut client = client.borrow_mut();
            client.posted = client.states.len() - 1;
            client.commits += 1;
        }
        let done = match random.below(10) {
            0 => vault.sync().await,
            1 => vault.prove().await,
            _ if is_posted => continue,
            _ => Ok(()),
        };
        if done.is_err() {
            return;
        }
        let mut client = client.borrow_mut();
        let last = client.posted;
        client.forget_before(last);
    }
}

#[test]
fn vault_commits_are_durable_and_atomic_after_random_crashes() {
    let (mut commits, mut rejoins, mut crashes, mut forks) = (0, 0, 0, 0);
    let seeds = std::env::var("N").map_or(30, |n| n.parse().expect("N is a number"));
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("SEED is a number"));
    for seed in first..first + seeds {
        let run = Run::new(seed);
        block_on(&run.world, async {
            Vault::format(&run.world.env(), &run.lowers(), SHAPE).await.unwrap();
        });
        run.crash(run.random.chance(600_000));
        for life in 0..LIVES {
            run.live(&format!("SEED={seed} N=1, life {life}"));
        }
        commits += run.clients.iter().map(|client| client.borrow().commits).sum::<u64>();
        rejoins += run.rejoins.get();
        crashes += run.crashes.get();
        forks += run.forks.get();
    }
    println!("{commits} commits, {crashes} crashes, {rejoins} copies came back, {forks} forks");
    assert!(commits > 20 * seeds, "{commits} commits");
    assert!(seeds < 30 || rejoins > 0, "no copy came back");
    assert!(seeds < 30 || forks > 0, "no copy that was left behind was opened alone");
}

#[test]
fn closed_vault_has_no_write_in_flight() {
    for seed in 0..60 {
        let run = Run::new(seed);
        let env = run.world.env();
        block_on(&run.world, async {
            let vault = run.create().await;
            let mut transaction = vault.begin();
            transaction.create(&Spec::cell("closed", 0, 100)).unwrap();
            vault.commit(transaction).await.unwrap();
            // The proof of the commit becomes due during the close, or soon after.
            let early = Duration::from_micros(run.random.below(3_000));
            env.sleep(SEALED_AFTER.saturating_sub(early)).await;
            vault.close().await.unwrap();
        });
        let left: Vec<_> = run.disks.iter().flat_map(|disk| disk.in_flight()).collect();
        assert!(left.is_empty(), "seed {seed}: after the close: {left:?}");
    }
}

#[test]
fn vault_shows_changes_only_when_their_post_returns() {
    for seed in 0..20 {
        let run = Run::new(seed);
        let env = run.world.env();
        block_on(&run.world, async {
            let vault = run.create().await;
            let mut transaction = vault.begin();
            let id = transaction.create(&Spec::array::<U64>("a", 0, 10)).unwrap();
            vault.commit(transaction).await.unwrap();
            let is_posted = Rc::new(std::cell::Cell::new(false));
            let (poster, done) = (vault.clone(), is_posted.clone());
            env.spawn("a post", async move {
                let mut transaction = poster.begin();
                Array::new(&poster, id).set(&mut transaction, 3, &U64::new(7)).unwrap();
                poster.post(transaction).await.unwrap();
                done.set(true);
            });
            let array = Array::<U64>::new(&vault, id);
            while array.get(3).await.unwrap() == U64::ZERO {
                env.sleep(Duration::from_micros(1)).await;
            }
            // The writes of the record take longer than the wake-up of the caller.
            env.give_way().await;
            assert!(is_posted.get(), "seed {seed}: the array changed before the post returned");
        });
    }
}

/// The state of a cell for a test: bytes that fill several pages.
struct Bytes(Vec<u8>);

impl Codec for Bytes {
    fn encode(&self) -> Vec<u8> {
        self.0.clone()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self(bytes.to_vec()))
    }
}

#[test]
fn vault_read_of_deleted_object_leaves_next_object_intact() {
    for seed in 0..20 {
        let run = Run::new(seed);
        let env = run.world.env();
        block_on(&run.world, async {
            let vault = run.create().await;
            for round in 0..10_u8 {
                let mut transaction = vault.begin();
                let id = transaction.create(&Spec::cell("a", 0, 12_000)).unwrap();
                let cell = Cell::<Bytes>::new(&vault, id);
                cell.set(&mut transaction, &Bytes(vec![round; 7000])).unwrap();
                vault.commit(transaction).await.unwrap();
                vault.flush().await.unwrap();
                for _ in 0..4 {
                    vault.unload(id).await.unwrap();
                    let (reader, other, key) = (vault.clone(), env.clone(), run.random.next());
                    env.spawn("reads what goes", async move {
                        let cell = Cell::<Bytes>::new(&reader, id);
                        while let Ok(Bytes(bytes)) = cell.get().await {
                            assert!(bytes.is_empty() || bytes == vec![round; 7000]);
                            if key % 3 == 0 {
                                let _ = reader.unload(id).await;
                            }
                            other.sleep(Duration::from_micros(1 + key % 50)).await;
                        }
                    });
                }
                let mut transaction = vault.begin();
                transaction.delete(id).unwrap();
                vault.commit(transaction).await.unwrap();
                let mut transaction = vault.begin();
                let next = transaction.create(&Spec::cell("b", round.into(), 12_000)).unwrap();
                let cell = Cell::<Bytes>::new(&vault, next);
                cell.set(&mut transaction, &Bytes(vec![!round; 6000])).unwrap();
                vault.commit(transaction).await.unwrap();
                env.sleep(Duration::from_millis(2)).await;
                assert!(cell.get().await.unwrap().0 == vec![!round; 6000], "seed {seed}");
                let mut transaction = vault.begin();
                transaction.delete(next).unwrap();
                vault.commit(transaction).await.unwrap();
            }
        });
        run.crash(false);
    }
}
