//! Random writes and flushes of concurrent clients in regions, over kills, power cuts and stops in order. The test knows
//! which regions have unflushed writes, and compares them with the marks after each opening.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Env};
use meta::regions::{Division, Regions};
use meta::vault::Vault;
use sim::draw::Stream;

use crate::model::{Run, SHAPE};
use crate::scene::block_on;

const REGION: u64 = 4096;

/// Number of regions of the device: their bits need three pages.
const COUNT: u64 = 70_000;

/// Number of places to which clients write most often.
const OFTEN: u64 = 12;

const CLEAR_DELAY: Duration = Duration::from_millis(4);

const CLIENTS: u64 = 4;

/// Number of runs of the regions in a test, each from an opening to a crash or a stop.
const LIVES: u64 = 8;

/// The writes and verifications that the regions must take into account.
#[derive(Default)]
struct Expected {
    /// Writes that are in flight or not flushed, by number: their regions, and whether they have ended.
    writes: BTreeMap<u64, (BTreeSet<u64>, bool)>,
    /// Regions marked at the opening that are not verified.
    opened: BTreeSet<u64>,
    /// Verified regions without a flush since, and the number of the verification.
    verified: BTreeMap<u64, u64>,
    last: u64,
}

impl Expected {
    /// Returns the regions that must be marked.
    fn marked(&self) -> BTreeSet<u64> {
        let written = self.writes.values().flat_map(|(regions, _)| regions.iter());
        written.chain(&self.opened).chain(self.verified.keys()).copied().collect()
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// A running device with its clients.
struct Life {
    env: Env,
    regions: Regions,
    expected: RefCell<Expected>,
    /// Whether clients end.
    stops: Cell<bool>,
    running: Cell<u64>,
    writes: Cell<u64>,
    cleared: Cell<u64>,
}

fn division() -> Division {
    Division::new(COUNT * REGION, REGION).unwrap()
}

async fn open(env: &Env, vault: &Vault) -> Regions {
    Regions::open(env, vault, ("dev", 7), division(), CLEAR_DELAY).await.unwrap()
}

/// Returns the numbers of the regions marked at the opening that are not verified.
fn opened(regions: &Regions) -> BTreeSet<u64> {
    regions.unverified().map(|range| range.start() / REGION).collect()
}

impl Life {
    async fn pause(&self, most: Duration, random: &Stream) {
        self.env.sleep(Duration::from_micros(random.below(most.as_micros() as u64))).await;
    }

    /// Writes to a few random regions. Some clients give up while they wait for the marks.
    async fn write(&self, random: &Stream) {
        let first = match random.below(4) {
            0 => random.below(COUNT - 3),
            _ => random.below(OFTEN) * 5000,
        };
        let regions: BTreeSet<u64> = (first..=first + random.below(3)).collect();
        let range = ByteRange::new(first * REGION, regions.len() as u64 * REGION).unwrap();
        let begin = self.regions.begin(range);
        let begun = match random.below(8) {
            0 => self.env.within(Duration::from_micros(100), begin).await,
            _ => Some(begin.await),
        };
        let Some(begun) = begun else { return };
        let writing = begun.unwrap();
        let number = self.expected.borrow_mut().number();
        self.expected.borrow_mut().writes.insert(number, (regions, false));
        self.pause(Duration::from_millis(if random.below(8) == 0 { 30 } else { 1 }), random).await;
        self.expected.borrow_mut().writes.get_mut(&number).expect("it is in flight").1 = true;
        drop(writing);
        self.writes.set(self.writes.get() + 1);
    }

    /// Flushes the data. Some flushes fail.
    async fn flush(&self, random: &Stream, may_fail: bool) {
        let token = self.regions.before_flush();
        let last = self.expected.borrow().last;
        let ended = |(number, (_, has_ended)): (&u64, &(_, bool))| has_ended.then_some(*number);
        let ended: Vec<u64> = self.expected.borrow().writes.iter().filter_map(ended).collect();
        self.pause(Duration::from_millis(2), random).await;
        if may_fail && random.below(5) == 0 {
            return;
        }
        let mut expected = self.expected.borrow_mut();
        ended.iter().for_each(|number| drop(expected.writes.remove(number)));
        expected.verified.retain(|_, number| *number > last);
        drop(expected);
        self.regions.flushed(token);
    }

    /// Verifies a region that was marked at the opening, in two parts.
    async fn verify(&self, random: &Stream) {
        let Some(region) = self.expected.borrow().opened.iter().next().copied() else { return };
        let half = |n| ByteRange::new(region * REGION + n * REGION / 2, REGION / 2).unwrap();
        let second = random.below(2);
        self.regions.verified(half(1 - second));
        self.pause(Duration::from_millis(1), random).await;
        let mut expected = self.expected.borrow_mut();
        let number = expected.number();
        self.regions.verified(half(second));
        if expected.opened.remove(&region) {
            expected.verified.insert(region, number);
        }
    }

    /// Runs a client until the end of the life.
    async fn talk(self: Rc<Self>, random: Stream, verifies: bool) {
        self.running.set(self.running.get() + 1);
        while !self.stops.get() {
            match random.below(12) {
                0 | 1 => self.flush(&random, true).await,
                2 if verifies => self.verify(&random).await,
                3 => self.pause(4 * CLEAR_DELAY, &random).await,
                _ => self.write(&random).await,
            }
            let (must, marked) = (self.expected.borrow().marked(), self.regions.report().marked);
            assert!(must.len() as u64 <= marked, "{} must be marked, {marked} are", must.len());
            self.cleared.set(self.cleared.get() + u64::from(must.is_empty()));
        }
        self.running.set(self.running.get() - 1);
    }

    /// Waits for the clients' ends, verifies and flushes everything. If `waits`, all regions must then be cleared by and
    /// by, else by the close.
    async fn stop(&self, vault: &Vault, waits: bool, random: &Stream, what: &str) {
        self.stops.set(true);
        while self.running.get() > 0 {
            self.env.sleep(CLEAR_DELAY).await;
        }
        while !self.expected.borrow().opened.is_empty() {
            self.verify(random).await;
        }
        self.flush(random, false).await;
        if waits {
            self.env.sleep(4 * CLEAR_DELAY + Duration::from_millis(500)).await;
            assert_eq!(self.regions.report().marked, 0, "{what}: after a quiet time");
        }
        self.regions.close().await.unwrap();
        vault.clone().close().await.unwrap();
        assert!(self.expected.borrow().marked().is_empty());
    }
}

/// Opens the regions, compares their marks with `must`, and runs clients up to the next crash or stop. Returns the
/// expected state afterwards, and the number of writes.
fn live(run: &Run, must: &BTreeSet<u64>, has_stopped: bool, what: &str) -> (Rc<Life>, Vault) {
    let env = run.world.env();
    let (vault, regions) = block_on(&run.world, async {
        let vault = run.open().await;
        let regions = open(&env, &vault).await;
        (vault, regions)
    });
    let marked = opened(&regions);
    assert!(must.is_subset(&marked), "{what}: {must:?} must be marked, {marked:?} are");
    assert!(!has_stopped || marked.is_empty(), "{what}: {marked:?} are marked after a stop");
    let expected = RefCell::new(Expected { opened: marked, ..Expected::default() });
    let life = Rc::new(Life {
        env: env.clone(),
        regions,
        expected,
        stops: Cell::default(),
        running: Cell::default(),
        writes: Cell::default(),
        cleared: Cell::default(),
    });
    for client in 0..CLIENTS {
        let random = Stream::new(run.random.next(), "region client", client);
        env.spawn("client", life.clone().talk(random, client == 0));
    }
    let length = Duration::from_micros(run.random.within(100, 150_000));
    run.world.run(env.now().after(length)).unwrap();
    (life, vault)
}

#[test]
fn regions_with_unflushed_writes_are_marked_after_random_crashes() {
    let seeds = std::env::var("N").map_or(40, |n| n.parse().expect("N is a number"));
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("SEED is a number"));
    let (mut writes, mut clean, mut stops) = (0, 0, 0);
    for seed in first..first + seeds {
        let run = Run::new(seed);
        let env = run.world.env();
        block_on(&run.world, async {
            Vault::format(&env, &run.lowers(), SHAPE).await.unwrap();
        });
        run.crash(false);
        block_on(&run.world, async {
            let vault = run.open().await;
            let mut transaction = vault.begin();
            Regions::create(&mut transaction, "dev", 7, division()).unwrap();
            vault.commit(transaction).await.unwrap();
        });
        run.crash(true);
        let (mut must, mut has_stopped) = (BTreeSet::new(), true);
        for number in 0..LIVES {
            let what = format!("SEED={seed} N=1, life {number}");
            let (life, vault) = live(&run, &must, has_stopped, &what);
            has_stopped = run.random.below(4) == 0;
            if has_stopped {
                let (waits, random) = (run.random.below(2) == 0, &run.random);
                block_on(&run.world, life.stop(&vault, waits, random, &what));
                stops += 1;
            }
            must = life.expected.borrow().marked();
            (writes, clean) = (writes + life.writes.get(), clean + life.cleared.get());
            drop(vault);
            run.crash(run.random.chance(600_000));
        }
    }
    println!("{writes} writes, {stops} stops, {clean} times without unflushed writes");
    assert!(writes > 50 * seeds, "{writes} writes");
}
