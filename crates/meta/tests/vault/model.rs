//! Random transactions of concurrent clients on a vault, over restarts, growths, kills, power cuts, failing and lost copies,
//! crashes of openings, and failed writes of data. The test records the acknowledged state of each client, and compares it
//! with the vault after each opening.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use block::{Env, ErrorKind, Lower, Result};
use kind::Value;
use meta::vault::{Array, Bitmap, CopyState, Log, ObjectId, Options, Shape, Spec, Vault};
use sim::draw::Stream;
use sim::{Assembly, CutPolicy, DiskConfig, Faults, Profile, SimDisk, SimWorld};
use zerocopy::little_endian::U64;

use crate::blocks::{self, Blocks, DATA_BYTES, Exchange, SLOTS};
use crate::scene::block_on;

/// Bytes of a disk: more than 254 pages, so that the map of pages may get a second level.
const DISK_BYTES: u64 = 3 << 20;
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
    /// Map of data blocks outside of the vault.
    map: Option<(ObjectId, Vec<u64>)>,
}

/// A client of the vault: the states that an opening after a crash may find.
struct Client {
    /// The state after the last durable transaction, then that after each later one. Never empty.
    states: Vec<State>,
    /// Index in `states` of the last transaction that was answered; the one behind it is in progress.
    posted: usize,
    commits: u64,
    /// Number of transactions with data that could not be written.
    failed: u64,
    /// Records of data blocks that were changed in place.
    changed: BTreeSet<u64>,
}

impl Default for Client {
    fn default() -> Self {
        let (posted, commits, failed, changed) = Default::default();
        Self { states: vec![State::default()], posted, commits, failed, changed }
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
    blocks: &Blocks,
    random: &Stream,
) -> Result<(meta::vault::Transaction, Option<Exchange>)> {
    let mut transaction = vault.begin();
    let name = owner(client);
    for _ in 0..=random.below(3) {
        match random.below(10) {
            0..4 => array(vault, &name, state, &mut transaction, random)?,
            4..7 => bits(vault, &name, state, &mut transaction, random)?,
            _ => entries(state, log, &mut transaction, random).await?,
        }
    }
    let (id, map) = state.map.as_mut().expect("it was made");
    // This comes last: a transaction with writes in flight must be posted.
    let exchange = match random.below(3) {
        0 => blocks.put(vault, *id, &mut transaction, map, random)?,
        _ => None,
    };
    Ok((transaction, exchange))
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
    if let Some(id) = vault.find(&name, 3) {
        let mut records = vec![U64::ZERO; SLOTS as usize];
        Array::<U64>::new(vault, id).get_many(0, &mut records).await?;
        state.map = Some((id, records.iter().map(|record| record.get()).collect()));
    }
    Ok(state)
}

/// A vault on simulated disks, and its clients, over many crashes.
pub struct Run {
    pub world: SimWorld,
    pub disks: Vec<Rc<SimDisk>>,
    /// The disk with the data outside of the vault.
    pub data_disk: Rc<SimDisk>,
    /// The disk with the data in the present graph.
    pub data: RefCell<Option<Lower>>,
    /// Bytes that each copy of the vault has after the next opening.
    bytes: std::cell::Cell<u64>,
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
    growths: std::cell::Cell<u64>,
}

impl Run {
    pub fn new(seed: u64) -> Self {
        let world = SimWorld::new(seed);
        let random = Stream::new(seed, "vault model", 0);
        let copies = random.within(1, 3);
        let profiles = [Profile::Native512, Profile::Native4k, Profile::Emulated512];
        let disk = |n: u64, name: String, bytes: u64| {
            let config = DiskConfig::new(bytes, random.pick(&profiles));
            let disk = SimDisk::new(&world, n, config);
            world.plug(format!("/{name}"), &disk);
            disk
        };
        let disks = (0..copies).map(|n| disk(n, format!("disk{n}"), DISK_BYTES)).collect();
        let data_disk = disk(copies, "data".to_owned(), DATA_BYTES);
        let bytes = std::cell::Cell::new(random.within(1 << 20, 2 << 20));
        let bad = random.below(copies) as usize;
        let clients = (0..CLIENTS).map(|_| Rc::default()).collect();
        let (data, graph, rejoins, crashes, forks, growths) = Default::default();
        Self {
            world,
            disks,
            data_disk,
            data,
            bytes,
            clients,
            random,
            graph,
            bad,
            rejoins,
            crashes,
            forks,
            growths,
        }
    }

    pub fn lowers(&self) -> Vec<Lower> {
        let order = Stream::new(self.random.next(), "order", 0);
        let mut graph = Assembly::new(&self.world.env(), kinds::REGISTRY, false, order);
        let mut disk = |name: String| {
            let path = [("path", Value::Text(format!("/{name}")))];
            let part = graph.add("path", &path, &[]).unwrap();
            graph.engine.lower(graph.node(part))
        };
        let lowers = (0..self.disks.len()).map(|n| disk(format!("disk{n}"))).collect();
        *self.data.borrow_mut() = Some(disk("data".to_owned()));
        *self.graph.borrow_mut() = Some(graph);
        lowers
    }

    /// Formats the disks as the copies of a new vault, and opens the vault.
    pub async fn create(&self) -> Vault {
        let shape = Shape { bytes: Some(self.bytes.get()), ..SHAPE };
        let lowers = self.lowers();
        Vault::format(&self.world.env(), &lowers, shape).await.unwrap();
        self.open_with(lowers.into_iter().map(Some).collect(), &OPTIONS).await.unwrap()
    }

    pub async fn open(&self) -> Vault {
        let lowers: Vec<_> = self.lowers().into_iter().map(Some).collect();
        match self.open_with(lowers.clone(), &OPTIONS).await {
            Err(error) if error.kind() == ErrorKind::Degraded => {
                self.open_with(lowers, &DEGRADED).await.unwrap()
            }
            opened => opened.unwrap(),
        }
    }

    /// Opens the vault on these disks of the present graph, and makes it grow if it has fewer bytes than it should.
    fn open_with(
        &self,
        lowers: Vec<Option<Lower>>,
        options: &Options,
    ) -> impl Future<Output = Result<Vault>> + use<> {
        let options = Options { bytes: Some(self.bytes.get()), ..*options };
        let (env, data) = (self.world.env(), self.data.borrow().clone().expect("it has lowers"));
        async move { Vault::open_with_data(&env, lowers, data, &options).await }
    }

    /// Crashes an opening of the vault at a random moment, in which the vault may grow. Returns whether the power was cut.
    fn crash_opening(&self) -> bool {
        let lowers = self.lowers().into_iter().map(Some).collect();
        let opening = self.open_with(lowers, &DEGRADED);
        self.world.env().spawn("an opening", async move { drop(opening.await) });
        let length = Duration::from_micros(self.random.within(50, 15_000));
        self.world.run(self.world.env().now().after(length)).unwrap();
        let is_cut = self.random.chance(500_000);
        self.crash(is_cut);
        is_cut
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
            let opened = block_on(&self.world, self.open_with(lowers, &DEGRADED));
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
        let vault = self.open_with(lowers, &looks).await.ok()?;
        (0..vault.copies()).find(|copy| vault.copy_state(*copy).0 == CopyState::Behind)
    }

    async fn continue_alone(&self, copy: usize) -> Result<()> {
        let lowers = self.lowers().into_iter().enumerate();
        let alone = lowers.map(|(n, lower)| (n == copy).then_some(lower)).collect();
        let vault = self.open_with(alone, &DEGRADED).await?;
        let mut transaction = vault.begin();
        transaction.create(&Spec::cell("alone", 0, 100))?;
        vault.commit(transaction).await
    }

    /// Opens the vault, checks its content, and runs clients up to the next crash.
    fn live(&self, what: &str) {
        let env = self.world.env();
        let vault = block_on(&self.world, async {
            let vault = self.open().await;
            let bytes = self.bytes.get();
            assert_eq!(vault.geometry().bytes, bytes - bytes % 4096, "{what}");
            self.check(&vault, what).await;
            for copy in 0..vault.copies() {
                if vault.copy_state(copy).0 == CopyState::Behind {
                    vault.rejoin(copy).await.unwrap();
                    self.rejoins.set(self.rejoins.get() + 1);
                }
            }
            self.make_fixed(&vault).await;
            vault
        });
        for (number, client) in self.clients.iter().enumerate() {
            let (vault, client, key) = (vault.clone(), client.clone(), self.random.next());
            let blocks = {
                let client = client.borrow();
                let (_, map) = client.present().map.as_ref().expect("it was made");
                let data = self.data.borrow().clone().expect("the vault is open");
                Blocks::new(&env, &data, number as u64, map)
            };
            env.spawn("client", talk(env.clone(), vault, number as u64, client, blocks, key));
        }
        self.spoil();
        let length = Duration::from_micros(self.random.within(100, 60_000));
        self.world.run(env.now().after(length)).unwrap();
        if self.random.chance(200_000) {
            block_on(&self.world, vault.close()).ok();
        } else {
            drop(vault);
        }
        let mut has_power_cut = self.random.chance(600_000);
        self.crash(has_power_cut);
        if self.random.chance(300_000) {
            let larger = self.random.within(self.bytes.get(), DISK_BYTES);
            self.bytes.set(larger);
            self.growths.set(self.growths.get() + 1);
        }
        while self.random.chance(400_000) {
            has_power_cut |= self.crash_opening();
        }
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
        if self.random.chance(500_000) {
            self.data_disk.set_faults(Faults { write_error: 150_000, ..Faults::default() });
        }
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
        self.data.take();
        if let Some(graph) = self.graph.take() {
            graph.engine.abandon();
        }
        for disk in self.disks.iter().chain([&self.data_disk]) {
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
            let changed = {
                let mut client = client.borrow_mut();
                assert!(
                    client.states.contains(&shown),
                    "{what}: client {number} has none of its {} possible states",
                    client.states.len()
                );
                (client.states, client.posted) = (vec![shown.clone()], 0);
                client.changed.clone()
            };
            let (Some((_, map)), data) = (&shown.map, self.data.borrow().clone()) else { continue };
            let (env, data) = (self.world.env(), data.expect("the vault is open"));
            blocks::check(&data, &env, number as u64, map, &changed).await;
        }
    }

    /// Creates the objects that each client always has: its log, and its map of data blocks.
    async fn make_fixed(&self, vault: &Vault) {
        for (number, client) in self.clients.iter().enumerate() {
            if client.borrow().present().log.is_some() {
                continue;
            }
            let mut transaction = vault.begin();
            let name = owner(number as u64);
            let id = transaction.create(&Spec::log(&name, 2, 5000)).unwrap();
            let map = transaction.create(&Spec::array::<U64>(&name, 3, SLOTS)).unwrap();
            vault.commit(transaction).await.unwrap();
            let state = &mut client.borrow_mut().states[0];
            state.log = Some((id, Vec::new()));
            state.map = Some((map, vec![0; SLOTS as usize]));
        }
    }
}

/// Runs a client: commits or posts random transactions one after the other until the simulated process is killed.
async fn talk(
    env: Env,
    vault: Vault,
    number: u64,
    client: Rc<RefCell<Client>>,
    blocks: Blocks,
    key: u64,
) {
    let random = Stream::new(key, "client", number);
    let id = client.borrow().present().log.as_ref().map(|(id, _)| *id).expect("it was made");
    let log = Log::open(&vault, id).await.unwrap();
    loop {
        let mut next = client.borrow().present().clone();
        let drawn = draw(&vault, number, &mut next, Some(&log), &blocks, &random).await;
        // A transaction that does not fit is not committed.
        let Ok((transaction, exchange)) = drawn else { continue };
        if exchange.is_none() && random.chance(50_000) {
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
        if let (Err(error), Some(exchange)) = (&done, &exchange)
            && error.kind() == ErrorKind::Io
        {
            let mut client = client.borrow_mut();
            client.states.pop();
            client.failed += 1;
            blocks.undo(exchange);
            continue;
        }
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
            2 => {
                change(&vault, &client, &blocks, &random).await;
                continue;
            }
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

/// Changes a random data block of a client in place.
async fn change(vault: &Vault, client: &RefCell<Client>, blocks: &Blocks, random: &Stream) {
    let record = {
        let mut client = client.borrow_mut();
        let (_, map) = client.present().map.as_ref().expect("it was made");
        let record = map[random.below(SLOTS) as usize];
        client.changed.insert(record);
        record
    };
    // After an error the vault has failed, and so does the next transaction.
    let _ = blocks.change(vault, record).await;
}

#[test]
fn vault_commits_are_durable_and_atomic_after_random_crashes() {
    let (mut commits, mut rejoins, mut crashes, mut forks) = (0, 0, 0, 0);
    let (mut failed, mut growths) = (0, 0);
    let seeds = std::env::var("N").map_or(30, |n| n.parse().expect("N is a number"));
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("SEED is a number"));
    for seed in first..first + seeds {
        let run = Run::new(seed);
        drop(block_on(&run.world, run.create()));
        run.crash(run.random.chance(600_000));
        for life in 0..LIVES {
            run.live(&format!("SEED={seed} N=1, life {life}"));
        }
        commits += run.clients.iter().map(|client| client.borrow().commits).sum::<u64>();
        rejoins += run.rejoins.get();
        crashes += run.crashes.get();
        forks += run.forks.get();
        growths += run.growths.get();
        failed += run.clients.iter().map(|client| client.borrow().failed).sum::<u64>();
    }
    println!(
        "{commits} commits, {failed} with failed data, {crashes} crashes, {rejoins} copies came back, \
         {forks} forks, {growths} growths"
    );
    assert!(commits > 20 * seeds, "{commits} commits");
    assert!(seeds < 30 || rejoins > 0, "no copy came back");
    assert!(seeds < 30 || failed > 100 && growths > 10, "{failed} failed, {growths} growths");
    assert!(seeds < 30 || forks > 0, "no copy that was left behind was opened alone");
}
