//! Tests of regions: the rules of marks and clears, their costs, and their marks after every power cut.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use block::env::LocalFuture;
use block::{ByteRange, Env, ErrorKind, Op, Result, all};
use meta::regions::{Division, Marks, Regions, Report};
use meta::vault::{SEALED_AFTER, Vault};
use sim::SimWorld;

use crate::crashes::{Played, moments, some_cuts};
use crate::scene::{self, SMALL, block_on, some};
use testkit::recorded::{Disk, Event, Fails, Trace};

/// Size of a region in bytes.
const REGION: u64 = 4096;

/// Number of regions of the device: their bits need two pages.
const COUNT: u64 = 40_000;

const CLEAR_DELAY: Duration = Duration::from_millis(100);

/// A device with regions, and its vault on a disk in memory.
struct Scene {
    env: Env,
    disk: Rc<Disk>,
    vault: Vault,
    regions: Regions,
}

fn division() -> Division {
    // The last region is shorter.
    Division::new(COUNT * REGION - 512, REGION).unwrap()
}

fn region(first: u64) -> ByteRange {
    division().range(first)
}

fn run_of(first: u64, count: u64) -> ByteRange {
    ByteRange::between(region(first).start(), region(first + count - 1).end()).unwrap()
}

async fn open_regions(env: &Env, vault: &Vault) -> Result<Regions> {
    Regions::open(env, vault, ("dev", 7), division(), CLEAR_DELAY).await
}

/// Formats a vault with the bitmap of regions, and closes it.
async fn format(env: &Env, disk: &Rc<Disk>) {
    let disks = std::slice::from_ref(disk);
    Vault::format(env, &scene::lowers(disks), scene::SHAPE).await.unwrap();
    let vault = Vault::open(env, some(disks), &SMALL).await.unwrap();
    let mut transaction = vault.begin();
    Regions::create(&mut transaction, "dev", 7, division()).unwrap();
    vault.commit(transaction).await.unwrap();
    vault.close().await.unwrap();
}

impl Scene {
    async fn new(env: &Env) -> Self {
        let disk = Disk::new(0, vec![0; scene::DISK_BYTES], &Trace::default());
        format(env, &disk).await;
        Self::open(env, disk).await
    }

    async fn open(env: &Env, disk: Rc<Disk>) -> Self {
        let vault = Vault::open(env, vec![Some(disk.lower())], &SMALL).await.unwrap();
        let regions = open_regions(env, &vault).await.unwrap();
        Self { env: env.clone(), disk, vault, regions }
    }

    /// Opens the vault and the regions again, as after a kill.
    async fn reopen(self) -> Self {
        let Self { env, disk, .. } = self;
        Self::open(&env, disk).await
    }

    /// Writes to a range, and ends the write.
    async fn write(&self, range: ByteRange) {
        drop(self.regions.begin(range).await.unwrap());
    }

    fn flush(&self) {
        let token = self.regions.before_flush();
        self.regions.flushed(token);
    }

    fn marked(&self) -> u64 {
        self.regions.report().marked
    }

    async fn quiet(&self) {
        self.env.sleep(3 * CLEAR_DELAY).await;
    }

    /// Returns the records and the flushes of the vault so far.
    fn costs(&self) -> (u64, u64) {
        (self.vault.counters().records, self.disk.flushes.get())
    }
}

fn in_world(test: impl AsyncFnOnce(&Env)) {
    let world = SimWorld::new(1);
    let env = world.env();
    block_on(&world, test(&env));
}

#[test]
fn first_writes_to_regions_share_one_record_and_one_flush() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        let (records, flushes) = scene.costs();
        let begins = (0..32).map(|n| Box::pin(scene.regions.begin(region(n * 1000))));
        let both = scene.regions.begin(run_of(5000, 2));
        let (writes, twice) = (all(begins.collect()).await, both.await);
        assert!(writes.iter().all(Result::is_ok) && twice.is_ok());
        assert_eq!(scene.marked(), 33);
        // The region 5001 needs a second record.
        assert_eq!(scene.costs(), (records + 2, flushes + 2));
        drop(writes);
        let same = (0..32).map(|n| Box::pin(scene.regions.begin(region(39_900 + n % 4))));
        let writes = all(same.collect()).await;
        assert!(writes.iter().all(Result::is_ok));
        assert_eq!(scene.costs(), (records + 3, flushes + 3));
    });
}

#[test]
fn write_to_marked_region_costs_nothing() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        scene.write(run_of(3, 4)).await;
        let (costs, writes) = (scene.costs(), scene.disk.writes.get());
        for n in 0..100 {
            scene.write(run_of(3 + n % 3, 2)).await;
        }
        assert_eq!((scene.costs(), scene.disk.writes.get()), (costs, writes));
    });
}

#[test]
fn region_is_cleared_only_after_flush_that_began_after_its_last_write() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        let early = scene.regions.before_flush();
        scene.write(region(1)).await;
        scene.regions.flushed(early);
        scene.quiet().await;
        assert_eq!(scene.marked(), 1, "the flush began before the end of the write");
        scene.flush();
        assert_eq!(scene.marked(), 1, "the region was not quiet yet");
        let first = scene.regions.begin(region(1)).await.unwrap();
        let second = scene.regions.begin(region(1)).await.unwrap();
        drop(first);
        scene.flush();
        scene.quiet().await;
        assert_eq!(scene.marked(), 1, "a write is in flight");
        drop(second);
        scene.write(region(9)).await;
        scene.quiet().await;
        assert_eq!(scene.marked(), 2, "nothing was flushed");
        scene.flush();
        scene.quiet().await;
        assert_eq!(scene.marked(), 0);
        let scene = scene.reopen().await;
        assert_eq!(scene.regions.report(), Report::default());
    });
}

#[test]
fn clears_share_records_and_cost_no_flush() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        scene.write(run_of(100, 200)).await;
        for n in 0..20 {
            scene.write(region(1999 * n)).await;
        }
        // The vault has proven its last record.
        env.sleep(3 * SEALED_AFTER).await;
        let (records, flushes) = scene.costs();
        scene.flush();
        scene.quiet().await;
        assert_eq!(scene.marked(), 0);
        assert_eq!(scene.costs(), (records + 1, flushes));
    });
}

#[test]
fn region_written_at_intervals_below_clear_delay_stays_marked() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        scene.write(region(5)).await;
        let costs = scene.costs();
        // The vault proves the mark's record in this time.
        for _ in 0..15 {
            scene.write(region(5)).await;
            scene.flush();
            env.sleep(CLEAR_DELAY / 2).await;
        }
        assert_eq!((scene.marked(), scene.costs()), (1, costs));
    });
}

#[test]
fn region_marked_at_opening_is_cleared_only_after_verification_and_flush() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        scene.write(run_of(10, 2)).await;
        scene.write(region(COUNT - 1)).await;
        let scene = scene.reopen().await;
        let regions = &scene.regions;
        let opened = regions.report();
        let bytes = 3 * REGION - 512;
        let all = Report { marked: 3, marked_bytes: bytes, opened: 3, unverified_bytes: bytes };
        assert_eq!(opened, all);
        assert!(regions.unverified().eq([region(10), region(11), region(COUNT - 1)]));
        scene.write(region(10)).await;
        scene.flush();
        scene.quiet().await;
        assert_eq!(regions.report(), opened, "nothing was verified");
        let part = |from, len| ByteRange::new(10 * REGION + from, len).unwrap();
        regions.verified(part(1024, 512));
        assert!(regions.is_unverified(part(0, 2048)) && !regions.is_unverified(part(1024, 512)));
        assert!(regions.unverified().take(2).eq([part(0, 1024), part(1536, REGION - 1536)]));
        regions.verified(part(0, 1024));
        scene.flush();
        scene.quiet().await;
        assert_eq!(scene.marked(), 3, "a part is not verified");
        regions.verified(part(1536, 2 * REGION - 1536));
        scene.quiet().await;
        assert_eq!(scene.marked(), 3, "no flush has followed");
        scene.flush();
        scene.quiet().await;
        assert!(regions.unverified().eq([region(COUNT - 1)]));
        assert_eq!(scene.marked(), 1);
    });
}

#[test]
fn close_clears_flushed_regions_without_delay() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        scene.write(run_of(0, 200)).await;
        scene.flush();
        scene.write(region(COUNT - 1)).await;
        let now = env.now();
        scene.regions.close().await.unwrap();
        assert_eq!(env.now(), now, "a close does not wait for the delay");
        let refused = scene.regions.begin(region(1)).await.err().expect("it is closed");
        assert_eq!(refused.kind(), ErrorKind::Stopped);
        let Scene { disk, vault, .. } = scene;
        vault.close().await.unwrap();
        let scene = Scene::open(env, disk).await;
        assert!(scene.regions.unverified().eq([region(COUNT - 1)]), "its write was not flushed");
    });
}

#[test]
fn failed_vault_refuses_first_write_to_region_only() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        scene.write(region(1)).await;
        scene.disk.fails.set(Fails { flushes: true, ..Fails::default() });
        let refused = scene.regions.begin(run_of(1, 2)).await.err().expect("no mark is durable");
        assert!(refused.to_string().contains("fails"), "{refused}");
        assert!(scene.regions.begin(region(3)).await.is_err());
        assert_eq!(scene.marked(), 1);
        scene.write(region(1)).await;
        scene.flush();
        scene.quiet().await;
        scene.write(region(1)).await;
        assert!(scene.regions.close().await.is_err());
    });
}

#[test]
fn dropped_first_write_leaves_mark_that_is_cleared_later() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        {
            let mut begin = std::pin::pin!(scene.regions.begin(region(1)));
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(begin.as_mut().poll(cx).is_ready())
            });
            assert!(!polled.await);
        }
        env.sleep(CLEAR_DELAY).await;
        assert_eq!(scene.marked(), 1);
        scene.flush();
        scene.quiet().await;
        assert_eq!(scene.marked(), 0);
    });
}

/// A bitmap may be longer than the device, as that of a device with its room on the same lower is. A mark there is damage.
#[test]
fn regions_reject_shorter_bitmap_and_mark_behind_device() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        let open =
            |role, division| Regions::open(env, &scene.vault, ("dev", role), division, CLEAR_DELAY);
        let of = |count| Division::new(count * REGION, REGION).unwrap();
        let count = division().count();
        assert_eq!(open(7, of(count + 1)).await.err().unwrap().kind(), ErrorKind::Invalid);
        assert_eq!(open(8, division()).await.err().unwrap().kind(), ErrorKind::NotFound);
        assert!(open(7, of(count - 1)).await.is_ok());
        drop(scene.regions.begin(ByteRange::new((count - 1) * REGION, 1).unwrap()).await.unwrap());
        assert_eq!(open(7, of(count - 1)).await.err().unwrap().kind(), ErrorKind::Corrupt);
        assert!(Division::new(1, 3 << 20).is_err() && Division::new(0, 4096).is_err());
    });
}

#[test]
fn regions_on_many_pages_stay_marked_after_failed_clear() {
    in_world(async |env| {
        let scene = Scene::new(env).await;
        let count = 200_000;
        let division = Division::new(count * REGION, REGION).unwrap();
        let mut transaction = scene.vault.begin();
        let id = Regions::create(&mut transaction, "dev", 8, division).unwrap();
        scene.vault.commit(transaction).await.unwrap();
        let open = || Regions::open(env, &scene.vault, ("dev", 8), division, CLEAR_DELAY);
        let regions = open().await.unwrap();
        let numbers = (0..100).map(|n| n * 7).chain((1..7).map(|n| n * 33_000));
        let begins = numbers.map(|n| Box::pin(regions.begin(division.range(n))));
        all(begins.collect()).await.into_iter().for_each(|writing| drop(writing.unwrap()));
        assert_eq!(open().await.unwrap().report().marked, 106);
        let flush = || regions.flushed(regions.before_flush());
        env.sleep(3 * SEALED_AFTER).await;
        scene.vault.unload(id).await.unwrap();
        scene.disk.fails.set(Fails { reads: true, ..Fails::default() });
        flush();
        scene.quiet().await;
        assert_eq!(regions.report().marked, 106, "no page of the bitmap could be read");
        drop(regions.begin(division.range(7)).await.unwrap());
        scene.disk.fails.set(Fails::default());
        flush();
        scene.quiet().await;
        assert_eq!(regions.report().marked, 0);
        assert_eq!(open().await.unwrap().report().marked, 0);
    });
}

/// Writes to regions, flushes, and waits for clears, with the data on a second disk. Some regions are written again
/// while their clear is on its way or after it.
fn play() -> Played {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disk = Disk::new(0, vec![0; scene::DISK_BYTES], &trace);
    let data = Disk::new(1, vec![0; 16 * REGION as usize], &trace);
    block_on(&world, format(&env, &disk));
    trace.take();
    let before = [&disk, &data].iter().map(|disk| disk.bytes.borrow().clone()).collect();
    block_on(&world, async {
        let scene = Scene::open(&env, disk.clone()).await;
        let write = async |number: u64| {
            let _writing = scene.regions.begin(region(number)).await.unwrap();
            let buf = env.buf(512).unwrap();
            let at = ByteRange::new(number * REGION, 512).unwrap();
            data.lower().start(Op::write(at, buf)).await.result.unwrap();
        };
        let flush = async || {
            let token = scene.regions.before_flush();
            data.lower().flush().await.unwrap();
            scene.regions.flushed(token);
        };
        for number in 0..3 {
            write(number).await;
        }
        flush().await;
        write(2).await;
        env.sleep(2 * CLEAR_DELAY).await;
        write(1).await;
        write(0).await;
        flush().await;
        env.sleep(2 * CLEAR_DELAY).await;
        write(2).await;
        write(3).await;
        trace.note(Event::Answered(1));
    });
    Played { before, events: trace.take() }
}

/// Returns the regions that are marked after an opening of the vault in `image`.
fn marked_in(image: Vec<u8>, what: &str) -> BTreeSet<u64> {
    let world = SimWorld::new(2);
    let env = world.env();
    let disk = Disk::new(0, image, &Trace::default());
    block_on(&world, async {
        let vault = Vault::open(&env, vec![Some(disk.lower())], &SMALL).await;
        let vault = vault.unwrap_or_else(|error| panic!("{what}: {error}"));
        let regions = open_regions(&env, &vault).await.unwrap();
        regions.unverified().map(|range| range.start() / REGION).collect()
    })
}

#[test]
fn regions_with_unflushed_writes_are_marked_after_every_power_cut() {
    let (mut states, mut unflushed) = (0, 0);
    moments(&play(), |event, disks, _, _| {
        let written: BTreeSet<u64> =
            disks[1].pending.iter().map(|write| write.at as u64 / REGION).collect();
        unflushed += written.len();
        let mut judge = |image| {
            states += 1;
            let marked = marked_in(image, &format!("at event {event}"));
            assert!(
                written.is_subset(&marked),
                "at event {event}: {written:?} have unflushed writes, {marked:?} are marked"
            );
        };
        some_cuts(&disks[0]).into_iter().for_each(&mut judge);
        disks[0].cuts(&mut judge);
    });
    assert!(states > 100 && unflushed > 10, "{states} states, {unflushed} unflushed writes");
}

/// Marks in memory, of an owner that has the regions of the next four writes in sequence marked, and flushes itself.
#[derive(Default)]
struct OwnMarks {
    /// Number of calls that marked regions.
    calls: std::cell::Cell<u64>,
    marked: std::cell::RefCell<BTreeSet<u64>>,
    regions: std::cell::OnceCell<Regions>,
}

impl Marks for OwnMarks {
    fn mark(&self, regions: Vec<u64>) -> LocalFuture<Result<()>> {
        self.calls.set(self.calls.get() + 1);
        self.marked.borrow_mut().extend(regions);
        Box::pin(std::future::ready(Ok(())))
    }

    fn clear(&self, regions: Vec<u64>) -> LocalFuture<Result<()>> {
        self.marked.borrow_mut().retain(|region| !regions.contains(region));
        Box::pin(std::future::ready(Ok(())))
    }

    fn failure(&self) -> Option<block::Error> {
        None
    }

    fn ahead(&self) -> u64 {
        4
    }

    fn flushes(&self) -> bool {
        true
    }

    fn flush(&self) -> LocalFuture<Result<()>> {
        let regions = self.regions.get().unwrap();
        regions.flushed(regions.before_flush());
        Box::pin(std::future::ready(Ok(())))
    }
}

#[test]
fn regions_of_sequential_writes_are_marked_together_and_cleared_after_flush_of_owner() {
    let world = SimWorld::new(1);
    let env = world.env();
    let marks = Rc::new(OwnMarks::default());
    let regions = Regions::over(&env, marks.clone(), division(), CLEAR_DELAY);
    assert!(marks.regions.set(regions.clone()).is_ok());
    let own = regions.clone();
    block_on(&world, async move {
        for n in 0..20 {
            drop(own.begin(region(100 + n)).await.unwrap());
        }
        // The last region of the device has none behind it.
        drop(own.begin(region(COUNT - 1)).await.unwrap());
    });
    assert_eq!(marks.calls.get(), 5);
    assert_eq!(regions.used().len() as u64, 20 + 1);
    world.run(env.now().after(4 * CLEAR_DELAY)).unwrap();
    assert!(marks.marked.borrow().is_empty() && regions.used().is_empty());
}
