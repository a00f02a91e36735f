//! Concurrent clients of a pool on a simulated disk, over kills and power cuts: writes in flight on several vdisks, with
//! snapshots, clones, removals and checkpoints meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::{Env, Result, all};
use pool::live::{Pool, Version};
use pool::map::Number;
use sim::draw::Stream;

use crate::history::{BLOCKS, Batch, Content, History, Write};
use crate::machine::Machine;
use crate::scene::{self, DISK_BYTES, OPTIONS, assert_whole, block_on, bytes, name, version};

const SIZE: u64 = BLOCKS * 4096;

/// Openings of a pool in a run, each up to a crash.
const LIVES: u64 = 5;

/// Most vdisks at one time, most snapshots of one, and the number of clients.
const VDISKS_MAX: usize = 4;
const SNAPSHOTS_MAX: usize = 5;
const CLIENTS: u64 = 3;

/// A vdisk or a snapshot, from the begin of the request that makes it.
#[derive(Clone, Debug)]
struct Life {
    /// Instant at which it was made, if that was acknowledged.
    made: Option<u64>,
    /// Whether its removal was begun, and the instant at which that was acknowledged.
    removal: Option<Option<u64>>,
}

impl Life {
    const BEGUN: Self = Self { made: None, removal: None };
    const MADE: Self = Self { made: Some(0), removal: None };

    /// Checks that the version is there if it must be, and not if it must not. `durable`: the instant before which
    /// everything acknowledged counts.
    fn check(&self, is_there: bool, durable: u64, what: &str) {
        let must = self.made.is_some_and(|at| at < durable) && self.removal.is_none();
        let must_not = self.removal.flatten().is_some_and(|at| at < durable);
        assert!(is_there || !must, "{what} is lost: {self:?}");
        assert!(!is_there || !must_not, "{what} is back: {self:?}");
    }
}

#[derive(Clone)]
struct Snapshot {
    life: Life,
    /// The content, once it was read.
    content: Option<Content>,
}

struct Vdisk {
    life: Life,
    history: History,
    snapshots: BTreeMap<Number, Snapshot>,
    /// Whether a client or a command uses it.
    is_busy: bool,
}

/// The versions that the pool must have, and the clock of events.
#[derive(Default)]
struct Model {
    vdisks: BTreeMap<String, Vdisk>,
    made: u64,
    stamp: u64,
    now: u64,
    /// Begin of the latest flush or checkpoint that succeeded.
    durable: u64,
    counts: Counts,
}

/// Numbers of events in all runs.
#[derive(Default, Debug, Clone, Copy)]
struct Counts {
    batches: u64,
    snapshots: u64,
    during_writes: u64,
    clones: u64,
    rollbacks: u64,
    removals: u64,
    checkpoints: u64,
    cuts: u64,
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn idle(&self, draw: &Stream) -> Option<String> {
        let idle: Vec<&String> =
            self.vdisks.iter().filter(|(_, it)| !it.is_busy).map(|(name, _)| name).collect();
        (!idle.is_empty()).then(|| idle[draw.below(idle.len() as u64) as usize].clone())
    }

    fn vdisk(&mut self, name: &str) -> &mut Vdisk {
        self.vdisks.get_mut(name).expect("a vdisk in use stays in the model")
    }
}

struct Run {
    machine: Machine,
    model: Rc<RefCell<Model>>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let machine = Machine::new(seed, DISK_BYTES as u64);
        Self { machine, model: Rc::default() }
    }

    /// Crashes. Returns the instant before which all that was acknowledged must be there.
    fn crash(&self) -> u64 {
        let is_cut = self.machine.crash();
        let mut model = self.model.borrow_mut();
        model.counts.cuts += u64::from(is_cut);
        if is_cut { model.durable } else { u64::MAX }
    }

    /// Compares the pool with the model after an opening, and continues with the found content.
    async fn compare(&self, pool: &Pool, durable: u64, what: &str) {
        let env = self.machine.env();
        let mut found: BTreeMap<String, Content> = BTreeMap::new();
        for text in scene::names(pool).await.unwrap() {
            let is = content(&env, pool, &text).await;
            found.insert(text, is);
        }
        self.compare_with(&found, durable, what);
        assert_whole(&pool.check().await.unwrap(), what);
    }

    fn compare_with(&self, found: &BTreeMap<String, Content>, durable: u64, what: &str) {
        let mut model = self.model.borrow_mut();
        let mut expected = Vec::new();
        for (vdisk, it) in &mut model.vdisks {
            let is_there = found.contains_key(vdisk);
            it.life.check(is_there, durable, &format!("{what}: {vdisk}"));
            for (number, snapshot) in &mut it.snapshots {
                let text = format!("{vdisk}@{number}");
                let is = found.get(&text);
                if is_there {
                    snapshot.life.check(is.is_some(), durable, &format!("{what}: {text}"));
                }
                let Some(is) = is else { continue };
                let known = snapshot.content.get_or_insert_with(|| is.clone());
                assert_eq!(known, is, "{what}: {text}");
                expected.push(text);
            }
            if let Some(is) = found.get(vdisk) {
                let least = it.history.acknowledged_before(durable);
                let fits = it.history.fits(is, least);
                assert!(fits, "{what}: {vdisk} has {is:?}, not {least} of {:?}", it.history);
                it.history = History::new(is.clone());
                expected.push(vdisk.clone());
            }
        }
        // A snapshot without a received answer is there or not.
        for (text, is) in found.iter().filter(|(name, _)| !expected.contains(name)) {
            let (vdisk, number) = text.split_once('@').unwrap_or_else(|| panic!("{what}: {text}"));
            let number: Number = number.parse().unwrap();
            let vdisk = model.vdisk(vdisk);
            let last = vdisk.snapshots.last_key_value().map_or(0, |(last, _)| *last);
            assert!(number > last, "{what}: the number of {text} is used again, or it is back");
            let content = Some(is.clone());
            vdisk.snapshots.insert(number, Snapshot { life: Life::MADE, content });
        }
        for (vdisk, it) in &mut model.vdisks {
            it.snapshots.retain(|number, _| found.contains_key(&format!("{vdisk}@{number}")));
            it.snapshots.values_mut().for_each(|snapshot| snapshot.life = Life::MADE);
            (it.life, it.is_busy) = (Life::MADE, false);
        }
        model.vdisks.retain(|vdisk, _| found.contains_key(vdisk));
        (model.durable, model.now) = (0, 0);
    }

    fn live(&self, what: &str, durable: u64) {
        let (env, machine) = (self.machine.env(), &self.machine);
        let pool = machine.open(OPTIONS);
        block_on(&machine.world, self.compare(&pool, durable, what));
        for number in 0..CLIENTS {
            let draw = Stream::new(machine.draw.next(), "client", number);
            let client =
                Client { env: env.clone(), pool: pool.clone(), model: self.model.clone(), draw };
            env.spawn("client", async move { client.talk().await });
        }
        let draw = Stream::new(machine.draw.next(), "commands", 0);
        let commands = Client { env: env.clone(), pool, model: self.model.clone(), draw };
        env.spawn("commands", async move { commands.command().await });
        machine.run(Duration::from_micros(machine.draw.within(1_000, 60_000)));
    }
}

async fn content(env: &Env, pool: &Pool, text: &str) -> Content {
    let found = scene::find(pool, text).await;
    scene::stamps(env, pool, &found, BLOCKS).await.unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A client: one of several that write, or a single one for commands.
struct Client {
    env: Env,
    pool: Pool,
    model: Rc<RefCell<Model>>,
    draw: Stream,
}

impl Client {
    async fn pause(&self, most_us: u64) {
        self.env.sleep(Duration::from_micros(self.draw.within(1, most_us))).await;
    }

    async fn open(&self, text: &str) -> Rc<Version> {
        scene::find(&self.pool, text).await
    }

    /// Writes to vdisks that are not in use, and reads them.
    async fn talk(self) {
        loop {
            self.pause(200).await;
            let Some(vdisk) = self.model.borrow().idle(&self.draw) else { continue };
            self.model.borrow_mut().vdisk(&vdisk).is_busy = true;
            for _ in 0..self.draw.within(1, 6) {
                self.write(&vdisk).await;
            }
            match self.draw.below(3) {
                0 => self.flush().await,
                1 => {
                    let is = content(&self.env, &self.pool, &vdisk).await;
                    let model = self.model.borrow();
                    let history = &model.vdisks[&vdisk].history;
                    assert_eq!(
                        is,
                        history.after(history.batches.len()),
                        "{vdisk} while it is used"
                    );
                }
                _ => {}
            }
            self.model.borrow_mut().vdisk(&vdisk).is_busy = false;
        }
    }

    /// Carries out a batch of writes.
    async fn write(&self, vdisk: &str) {
        let mut writes = Vec::new();
        let mut block = self.draw.below(BLOCKS / 2);
        while block < BLOCKS && writes.len() < 4 {
            let count = self.draw.within(1, 7).min(BLOCKS - block);
            let is_hole = self.draw.below(5) == 0;
            let mut model = self.model.borrow_mut();
            let first = model.stamp + 1;
            model.stamp += count;
            let stamps = (first..first + count).map(|stamp| if is_hole { 0 } else { stamp });
            writes.push(Write { block, stamps: stamps.collect() });
            block += count + self.draw.below(9);
        }
        let version = self.open(vdisk).await;
        self.model
            .borrow_mut()
            .vdisk(vdisk)
            .history
            .batches
            .push(Batch { writes: writes.clone(), acknowledged: None });
        let requests = writes.iter().map(|write| {
            let (env, pool, version) = (self.env.clone(), self.pool.clone(), version.clone());
            let (block, count, first) = (write.block, write.stamps.len() as u64, write.stamps[0]);
            Box::pin(async move {
                match first {
                    0 => pool.zero(&version, block, count).await,
                    _ => pool.write(&version, block, bytes(&env, first, count)).await,
                }
            })
        });
        let answers: Result<Vec<()>> = all(requests.collect()).await.into_iter().collect();
        answers.unwrap();
        let mut model = self.model.borrow_mut();
        let at = model.tick();
        model.counts.batches += 1;
        let batch = model.vdisk(vdisk).history.batches.last_mut().expect("it was begun");
        batch.acknowledged = Some(at);
    }

    async fn flush(&self) {
        let begun = self.model.borrow_mut().tick();
        self.pool.flush().await.unwrap();
        self.made_durable(begun);
    }

    fn made_durable(&self, begun: u64) {
        let mut model = self.model.borrow_mut();
        model.durable = model.durable.max(begun);
    }

    /// Gives commands while clients write.
    async fn command(self) {
        loop {
            self.pause(400).await;
            match self.draw.below(12) {
                0..=1 => self.create().await,
                2..=4 => self.snapshot().await,
                5 => self.clone_snapshot().await,
                6 => self.remove_snapshot().await,
                7 if self.draw.below(3) == 0 => self.remove_vdisk().await,
                8 => {
                    let begun = self.model.borrow_mut().tick();
                    self.pool.checkpoint().await.unwrap();
                    self.made_durable(begun);
                    self.model.borrow_mut().counts.checkpoints += 1;
                }
                9 | 10 => self.roll_back().await,
                _ => self.read_snapshot().await,
            }
        }
    }

    fn new_vdisk(&self, content: Content) -> Option<String> {
        let mut model = self.model.borrow_mut();
        if model.vdisks.len() >= VDISKS_MAX {
            return None;
        }
        model.made += 1;
        let (name, history) = (format!("v{}", model.made), History::new(content));
        let vdisk = Vdisk { life: Life::BEGUN, history, snapshots: BTreeMap::new(), is_busy: true };
        model.vdisks.insert(name.clone(), vdisk);
        Some(name)
    }

    fn is_made(&self, name: &str) {
        let mut model = self.model.borrow_mut();
        let at = model.tick();
        let vdisk = model.vdisk(name);
        (vdisk.life.made, vdisk.is_busy) = (Some(at), false);
    }

    async fn create(&self) {
        let Some(new) = self.new_vdisk(vec![0; BLOCKS as usize]) else { return };
        self.pool.create(&name(&new), SIZE).await.unwrap();
        self.is_made(&new);
    }

    /// Takes a snapshot of several vdisks, also of those with writes in flight.
    async fn snapshot(&self) {
        let made: Vec<(String, usize, bool)> = {
            let model = self.model.borrow();
            let fits = |it: &&Vdisk| it.life.made.is_some() && it.snapshots.len() < SNAPSHOTS_MAX;
            let vdisks =
                model.vdisks.iter().filter(|(_, it)| fits(it) && it.life.removal.is_none());
            let least = |it: &Vdisk| it.history.acknowledged_before(u64::MAX);
            vdisks.map(|(name, it)| (name.clone(), least(it), it.is_busy)).collect()
        };
        let few = self.draw.within(1, 2) as usize;
        let chosen: Vec<_> = made.into_iter().take(few).collect();
        if chosen.is_empty() {
            return;
        }
        let names: Vec<_> = chosen.iter().map(|(vdisk, ..)| name(vdisk)).collect();
        let numbers = self.pool.snapshot(&names, None).await.unwrap();
        let at = self.model.borrow_mut().tick();
        let begun: Vec<History> = chosen
            .iter()
            .map(|(vdisk, ..)| self.model.borrow().vdisks[vdisk].history.clone())
            .collect();
        for ((vdisk, least, is_busy), (number, history)) in
            chosen.into_iter().zip(numbers.into_iter().zip(begun))
        {
            let is = content(&self.env, &self.pool, &format!("{vdisk}@{number}")).await;
            assert!(history.fits(&is, least), "{vdisk}@{number} is no cut: {is:?}");
            let mut model = self.model.borrow_mut();
            model.counts.snapshots += 1;
            model.counts.during_writes += u64::from(is_busy);
            let life = Life { made: Some(at), removal: None };
            let snapshot = Snapshot { life, content: Some(is) };
            model.vdisk(&vdisk).snapshots.insert(number, snapshot);
        }
    }

    fn any_snapshot(&self) -> Option<(String, Number, Content)> {
        let model = self.model.borrow();
        let all = model.vdisks.iter().flat_map(|(name, it)| {
            let kept = it.snapshots.iter().filter(|(_, snapshot)| snapshot.life.removal.is_none());
            kept.filter_map(|(number, snapshot)| {
                Some((name.clone(), *number, snapshot.content.clone()?))
            })
        });
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| all[self.draw.below(all.len() as u64) as usize].clone())
    }

    async fn clone_snapshot(&self) {
        let Some((vdisk, number, content)) = self.any_snapshot() else { return };
        let Some(new) = self.new_vdisk(content) else { return };
        let origin = version(&format!("{vdisk}@{number}"));
        self.pool.clone_of(&origin, &name(&new)).await.unwrap();
        self.is_made(&new);
        self.model.borrow_mut().counts.clones += 1;
    }

    /// Rolls back a vdisk that no client uses. For its history, this is one write of all blocks.
    async fn roll_back(&self) {
        let Some((vdisk, number, stamps)) = self.any_snapshot() else { return };
        let before = {
            let mut model = self.model.borrow_mut();
            let it = model.vdisk(&vdisk);
            if it.is_busy || it.snapshots.len() >= SNAPSHOTS_MAX {
                return;
            }
            it.is_busy = true;
            let before = it.history.after(it.history.batches.len());
            let writes = vec![Write { block: 0, stamps }];
            it.history.batches.push(Batch { writes, acknowledged: None });
            before
        };
        let taken = self.pool.roll_back(&version(&format!("{vdisk}@{number}"))).await.unwrap();
        let mut model = self.model.borrow_mut();
        let at = model.tick();
        model.counts.rollbacks += 1;
        let it = model.vdisk(&vdisk);
        if let Some(number) = taken {
            let life = Life { made: Some(at), removal: None };
            it.snapshots.insert(number, Snapshot { life, content: Some(before) });
        }
        it.history.batches.last_mut().expect("it was begun").acknowledged = Some(at);
        it.is_busy = false;
    }

    async fn read_snapshot(&self) {
        let Some((vdisk, number, expected)) = self.any_snapshot() else { return };
        let is = content(&self.env, &self.pool, &format!("{vdisk}@{number}")).await;
        assert_eq!(is, expected, "{vdisk}@{number}");
    }

    async fn remove_snapshot(&self) {
        let Some((vdisk, number, _)) = self.any_snapshot() else { return };
        self.snapshot_of(&vdisk, number, |life| life.removal = Some(None));
        self.pool.remove(&version(&format!("{vdisk}@{number}"))).await.unwrap();
        let at = self.model.borrow_mut().tick();
        self.snapshot_of(&vdisk, number, |life| life.removal = Some(Some(at)));
        self.model.borrow_mut().counts.removals += 1;
    }

    fn snapshot_of(&self, vdisk: &str, number: Number, change: impl FnOnce(&mut Life)) {
        let mut model = self.model.borrow_mut();
        let snapshot = model.vdisk(vdisk).snapshots.get_mut(&number);
        change(&mut snapshot.expect("a snapshot stays in the model").life);
    }

    async fn remove_vdisk(&self) {
        let Some(vdisk) = self.model.borrow().idle(&self.draw) else { return };
        {
            let mut model = self.model.borrow_mut();
            let it = model.vdisk(&vdisk);
            (it.is_busy, it.life.removal) = (true, Some(None));
            it.snapshots.values_mut().for_each(|snapshot| snapshot.life.removal = Some(None));
        }
        self.pool.remove(&version(&vdisk)).await.unwrap();
        let mut model = self.model.borrow_mut();
        let at = model.tick();
        model.counts.removals += 1;
        model.vdisk(&vdisk).life.removal = Some(Some(at));
    }
}

#[test]
fn concurrent_clients_find_all_versions_after_crashes() {
    let (first, seeds) = (scene::number("SEED", 0), scene::number("N", 5));
    let mut sum = Counts::default();
    for seed in first..first + seeds {
        let run = Run::new(seed);
        run.crash();
        let mut durable = 0;
        for life in 0..LIVES {
            run.live(&format!("seed {seed}, life {life}"), durable);
            durable = run.crash();
        }
        let pool = run.machine.open(OPTIONS);
        block_on(
            &run.machine.world,
            run.compare(&pool, durable, &format!("seed {seed}, at the end")),
        );
        drop(pool);
        run.crash();
        let counts = run.model.borrow().counts;
        sum.batches += counts.batches;
        sum.snapshots += counts.snapshots;
        sum.during_writes += counts.during_writes;
        sum.clones += counts.clones;
        sum.rollbacks += counts.rollbacks;
        sum.removals += counts.removals;
        sum.checkpoints += counts.checkpoints;
        sum.cuts += counts.cuts;
    }
    let Counts {
        batches,
        snapshots,
        during_writes,
        clones,
        rollbacks,
        removals,
        checkpoints,
        cuts,
    } = sum;
    let all = [batches, snapshots, during_writes, clones, rollbacks, removals, checkpoints, cuts];
    assert!(all.iter().all(|count| *count >= seeds.div_ceil(2)), "{sum:?} in {seeds} seeds");
}
