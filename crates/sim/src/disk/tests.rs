use super::*;
use block::BufPool;
use block::env::{CacheMode, Open, Storage};

struct Bench {
    world: SimWorld,
    disk: Rc<SimDisk>,
    storage: Rc<dyn Storage>,
    pool: BufPool,
}

fn open() -> Open {
    Open {
        path: "/disk".into(),
        device: true,
        read_only: false,
        create: None,
        odd_size: false,
        cache: CacheMode::Direct,
    }
}

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).unwrap()
}

impl Bench {
    fn new(seed: u64, config: DiskConfig) -> Self {
        let world = SimWorld::new(seed);
        let disk = SimDisk::new(&world, 0, config);
        world.plug("/disk", &disk);
        let storage = world.env().open(&open()).unwrap();
        let pool = world.env().pool().clone();
        Self { world, disk, storage, pool }
    }

    fn plain(seed: u64) -> Self {
        let config = DiskConfig { destage: 0, ..DiskConfig::new(1 << 20, Profile::Native512) };
        Self::new(seed, config)
    }

    fn write(&self, offset: u64, len: usize, fill: u8, fua: bool) -> Ticket {
        let data = self.pool.take(len).unwrap();
        data.write().fill(fill);
        self.storage.start(DiskIo::Write { offset, data, fua })
    }

    fn wait(&self, ticket: Ticket) -> Result<usize> {
        self.world.block_on(ticket).unwrap().result
    }

    fn read(&self, offset: u64) -> Result<u8> {
        let into = self.pool.take(512).unwrap();
        let outcome =
            self.world.block_on(self.storage.start(DiskIo::Read { offset, into })).unwrap();
        outcome.result.map(|_| outcome.buf.unwrap().read()[0])
    }

    fn byte(&self, offset: u64) -> u8 {
        self.disk.peek(range(offset, 512))[0]
    }

    fn count(&self, count: Count) -> u64 {
        self.world.counters().get(count)
    }
}

#[test]
fn power_cut_loses_acknowledged_write_without_flush() {
    let bench = Bench::plain(1);
    bench.wait(bench.write(0, 512, 1, false)).unwrap();
    assert_eq!(bench.read(0).unwrap(), 1);
    bench.disk.power_cut(CutPolicy::DropAll);
    assert_eq!(bench.byte(0), 0);
}

#[test]
fn disk_flush_covers_only_writes_completed_before_flush() {
    let bench = Bench::plain(1);
    bench.wait(bench.write(0, 512, 1, false)).unwrap();
    let late = bench.write(512, 512, 2, false);
    let flush = bench.storage.start(DiskIo::Flush);
    bench.wait(late).unwrap();
    bench.wait(flush).unwrap();
    bench.disk.power_cut(CutPolicy::DropAll);
    assert_eq!((bench.byte(0), bench.byte(512)), (1, 0));
}

#[test]
fn disk_fua_write_makes_no_other_write_durable() {
    let bench = Bench::plain(1);
    bench.wait(bench.write(0, 512, 1, false)).unwrap();
    bench.wait(bench.write(512, 512, 2, true)).unwrap();
    bench.disk.power_cut(CutPolicy::DropAll);
    assert_eq!((bench.byte(0), bench.byte(512)), (0, 2));
}

#[test]
fn power_cut_keeps_any_subset_of_unflushed_sectors() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..64 {
        let bench = Bench::plain(seed);
        bench.wait(bench.write(0, 1024, 1, false)).unwrap();
        bench.wait(bench.write(0, 1024, 2, false)).unwrap();
        let _in_flight = bench.write(0, 1024, 3, false);
        bench.disk.power_cut(CutPolicy::Torn);
        seen.insert((bench.byte(0), bench.byte(512)));
    }
    assert_eq!(seen.len(), 16, "each of two sectors has each of four contents: {seen:?}");
}

#[test]
fn power_cut_keeps_unflushed_writes_by_chosen_policy() {
    let after = |policy| {
        let bench = Bench::plain(3);
        for n in 0..4 {
            bench.wait(bench.write(n * 512, 512, 1, false)).unwrap();
        }
        bench.disk.power_cut(policy);
        (0..4).map(|n| bench.byte(n * 512)).collect::<Vec<_>>()
    };
    assert_eq!(after(CutPolicy::DropAll), [0; 4]);
    assert_eq!(after(CutPolicy::KeepAll), [1; 4]);
    let sum = |policy| after(policy).iter().sum::<u8>();
    assert_eq!((sum(CutPolicy::KeepOne), sum(CutPolicy::OmitOne)), (1, 3));
    assert!(after(CutPolicy::Prefix).is_sorted_by(|a, b| a >= b));
    assert!(after(CutPolicy::Reverse).is_sorted());
}

#[test]
fn torn_write_never_splits_sector_of_4k_disk() {
    for seed in 0..32 {
        let bench = Bench::new(seed, DiskConfig::new(1 << 20, Profile::Native4k));
        bench.wait(bench.write(0, 8192, 1, false)).unwrap();
        bench.disk.power_cut(CutPolicy::Torn);
        for page in [0, 4096] {
            let bytes = bench.disk.peek(range(page, 4096));
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        }
    }
}

#[test]
fn torn_write_on_512e_disk_damages_neighbouring_sectors() {
    let damaged = (0..32).any(|seed| {
        let bench = Bench::new(seed, DiskConfig::new(1 << 20, Profile::Emulated512));
        bench.wait(bench.write(0, 1024, 1, false)).unwrap();
        bench.disk.power_cut(CutPolicy::Torn);
        bench.byte(2048) == DAMAGE
    });
    assert!(damaged);
}

#[test]
fn torn_write_splits_sector_of_non_atomic_disk() {
    let half = (0..32).any(|seed| {
        let bench = Bench::new(seed, DiskConfig::new(1 << 20, Profile::NotAtomic));
        bench.wait(bench.write(0, 1024, 1, false)).unwrap();
        bench.disk.power_cut(CutPolicy::Torn);
        let bytes = bench.disk.peek(range(0, 512));
        (bytes[0], bytes[511]) == (1, DAMAGE)
    });
    assert!(half);
}

#[test]
fn power_cut_loses_flushed_write_of_lying_disk_only() {
    for (profile, left) in [(Profile::Protected, 1), (Profile::Liar, 0)] {
        let config = DiskConfig { destage: 0, ..DiskConfig::new(1 << 20, profile) };
        let bench = Bench::new(1, config);
        bench.wait(bench.write(0, 512, 1, false)).unwrap();
        bench.wait(bench.storage.start(DiskIo::Flush)).unwrap();
        bench.disk.power_cut(CutPolicy::DropAll);
        assert_eq!(bench.byte(0), left, "{profile:?}");
    }
}

#[test]
fn thin_disk_refuses_write_of_new_block_when_full() {
    let bench = Bench::new(1, DiskConfig::new(1 << 20, Profile::Thin(8192)));
    bench.wait(bench.write(0, 8192, 1, false)).unwrap();
    let full = bench.wait(bench.write(8192, 512, 1, false)).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    bench.wait(bench.write(4096, 512, 2, false)).unwrap();
}

fn with(faults: Faults) -> Bench {
    let bench = Bench::plain(5);
    bench.wait(bench.write(0, 4096, 1, true)).unwrap();
    bench.disk.set_faults(faults);
    bench
}

const ALWAYS: u32 = 1_000_000;

#[test]
fn read_error_lasts_until_sector_is_written() {
    let bench = with(Faults { read_error: ALWAYS, ..Faults::default() });
    assert_eq!(bench.read(0).unwrap_err().kind(), ErrorKind::Io);
    bench.disk.set_faults(Faults::default());
    assert!(bench.read(0).is_err());
    assert_eq!(bench.read(512).unwrap(), 1);
    bench.wait(bench.write(0, 512, 2, true)).unwrap();
    assert_eq!(bench.read(0).unwrap(), 2);
    assert_eq!(bench.count(Count::ReadRepaired), 1);
}

#[test]
fn disk_flush_failure_drops_cache_and_next_flush_succeeds() {
    let bench = with(Faults { flush_error: ALWAYS, ..Faults::default() });
    bench.wait(bench.write(0, 512, 2, false)).unwrap();
    assert!(bench.wait(bench.storage.start(DiskIo::Flush)).is_err());
    bench.disk.set_faults(Faults::default());
    assert!(bench.wait(bench.storage.start(DiskIo::Flush)).is_ok());
    assert_eq!(bench.read(0).unwrap(), 1);
    assert!(bench.disk.is_lossy());
}

#[test]
fn injected_write_faults_fail_lose_or_misdirect_writes() {
    let bench = with(Faults { write_error: ALWAYS, ..Faults::default() });
    assert!(bench.wait(bench.write(0, 512, 2, false)).is_err());
    let bench = with(Faults { lost_write: ALWAYS, ..Faults::default() });
    bench.wait(bench.write(0, 512, 2, false)).unwrap();
    assert_eq!(bench.read(0).unwrap(), 1);
    let bench = with(Faults { misdirected: ALWAYS, ..Faults::default() });
    bench.wait(bench.write(0, 512, 2, false)).unwrap();
    let strays = (0..2048).filter(|n| bench.byte(n * 512) == 2).count();
    assert_eq!((bench.byte(0), strays), (1, 1));
}

#[test]
fn injected_rot_flips_one_bit_of_sector() {
    let bench = with(Faults { rot: ALWAYS, ..Faults::default() });
    bench.read(0).unwrap();
    let flipped: u32 =
        bench.disk.peek(range(0, 512)).iter().map(|byte| (byte ^ 1).count_ones()).sum();
    assert_eq!(flipped, 1);
}

#[test]
fn disk_keeps_buffer_of_hung_write_until_release() {
    let bench = with(Faults { hang: ALWAYS, ..Faults::default() });
    drop(bench.write(0, 512, 2, false));
    bench.world.run(bench.world.env().now().after(Duration::from_secs(3600))).unwrap();
    assert!(bench.pool.used_bytes() > 0);
    bench.disk.release();
    assert_eq!(bench.pool.used_bytes(), 0);
}

#[test]
fn injected_stall_delays_reply_of_disk() {
    let bench = with(Faults { stall: ALWAYS, ..Faults::default() });
    let start = bench.world.env().now();
    bench.read(0).unwrap();
    assert!(bench.world.env().now().since(start) >= Duration::from_millis(100));
}

#[test]
fn disk_open_is_refused_while_opened_or_writing() {
    let bench = Bench::plain(2);
    let refused = |bench: &Bench| bench.world.env().open(&open()).err().map(|e| e.kind());
    assert_eq!(refused(&bench), Some(ErrorKind::InUse));
    let ticket = bench.write(0, 512, 1, false);
    let Bench { world, disk, storage, pool } = bench;
    drop((storage, ticket));
    assert_eq!(world.env().open(&open()).err().map(|e| e.kind()), Some(ErrorKind::InUse));
    world.run(world.env().now().after(Duration::from_secs(1))).unwrap();
    assert!(world.env().open(&open()).is_ok());
    assert_eq!((disk.peek(range(0, 512))[0], pool.used_bytes()), (1, 0));
}

#[test]
fn process_kill_keeps_acknowledged_writes() {
    let bench = Bench::plain(2);
    bench.wait(bench.write(0, 512, 1, false)).unwrap();
    let in_flight: Vec<_> = (1..9).map(|n| bench.write(n * 512, 512, 1, false)).collect();
    drop(in_flight);
    bench.world.kill();
    bench.world.run(bench.world.env().now().after(Duration::from_secs(1))).unwrap();
    assert_eq!(bench.byte(0), 1);
    let landed: u64 = (1..9).map(|n| u64::from(bench.byte(n * 512))).sum();
    assert_eq!(landed, bench.count(Count::KillLanded));
    assert!(landed > 0 && bench.count(Count::KillLost) > 0);
}

#[test]
fn injected_faults_do_not_depend_on_other_operations() {
    let fates = |with_first: bool| {
        let config = DiskConfig {
            faults: Faults { write_error: 500_000, ..Faults::default() },
            ..DiskConfig::new(1 << 20, Profile::Native512)
        };
        let bench = Bench::new(9, config);
        if with_first {
            let _ = bench.wait(bench.write(0, 512, 1, false));
        }
        (1..20).map(|n| bench.wait(bench.write(n * 512, 512, 1, false)).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(fates(true), fates(false));
}

#[test]
fn power_cut_never_overwrites_newer_write_with_half_done_write() {
    let mut seen = 0;
    for seed in 0..200 {
        let bench = Bench::plain(seed);
        let _slow = bench.write(0, 4096, 1, false);
        bench.world.run(bench.world.env().now().after(Duration::from_micros(120))).unwrap();
        let shown: Vec<_> = (0..8).filter(|n| bench.byte(n * 512) == 1).collect();
        if shown.is_empty() || shown.len() == 8 {
            continue;
        }
        seen += 1;
        for n in &shown {
            bench.wait(bench.write(n * 512, 512, 2, true)).unwrap();
        }
        bench.disk.power_cut(CutPolicy::KeepAll);
        assert!(shown.iter().all(|n| bench.byte(n * 512) == 2), "seed {seed}");
    }
    assert!(seen > 3);
}

#[test]
fn disk_flush_makes_visible_part_of_failed_write_durable() {
    let mut left = 0;
    for seed in 0..40 {
        let bench = Bench::plain(seed);
        bench.disk.set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
        bench.wait(bench.write(0, 512, 1, false)).unwrap_err();
        let seen = bench.read(0).unwrap();
        bench.wait(bench.storage.start(DiskIo::Flush)).unwrap();
        bench.disk.power_cut(CutPolicy::DropAll);
        assert_eq!(bench.byte(0), seen, "seed {seed}: what was read and flushed stays");
        left += u32::from(seen == 1);
    }
    assert!((1..40).contains(&left), "some have left it, and some have not: {left}");
}
