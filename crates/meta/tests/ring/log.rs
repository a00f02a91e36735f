//! Records with payload, and a tail that records move, on a disk.

use std::rc::Rc;

use block::{Buf, Env, Patience};
use meta::ring::{Log, Owner, Position, RingDevice, Root, SECTOR_BYTES};
use sim::SimWorld;
use testkit::recorded::{Disk, Trace};

use crate::scene::{RING_BYTES, ring};

/// First byte of the ring on its disk.
const BASE: u64 = 4096;

fn run(test: impl AsyncFnOnce(&Env, &Rc<Disk>, Log)) {
    let world = SimWorld::new(1);
    let env = world.env();
    let disk = Disk::new(0, vec![0; (BASE + RING_BYTES) as usize], &Trace::default());
    let log = open(&env, &disk);
    world.block_on(test(&env, &disk, log)).unwrap_or_else(|stuck| panic!("{stuck}"));
}

fn root() -> Root {
    let tail = Position { offset: 0, number: 1, previous: 0, opening: 1 };
    Root { tail, flushed: 0 }
}

fn open(env: &Env, disk: &Rc<Disk>) -> Log {
    let lower = disk.lower();
    let patience = Patience::new(env, &lower);
    Log::new(env, &lower, BASE, ring(Owner::Journal), root(), patience)
}

fn payload(env: &Env, len: usize, fill: u8) -> Buf {
    let buf = env.buf(len).unwrap();
    buf.write().fill(fill);
    buf
}

/// Writes a record with one sector of payload. Returns the position behind it.
async fn append(env: &Env, log: &Log, fill: u8) -> Position {
    let payload = [payload(env, SECTOR_BYTES, fill)];
    let appended = log.append_payload(&[], 0, &payload).unwrap();
    log.acknowledged(appended).await.unwrap()
}

#[test]
fn log_payload_is_padded_and_read_again_over_end_of_ring() {
    run(async |env, disk, log| {
        let device = RingDevice { lower: disk.lower(), base: BASE, ring: ring(Owner::Journal) };
        let mut tail = root().tail;
        // Records of four sectors in a ring of 16, with one of one sector between, so that some cross its end.
        for lap in 0..12_u8 {
            let parts = [payload(env, 5000, lap), payload(env, 100, !lap)];
            let appended = log.append_payload(&[], 0, &parts).unwrap();
            let at = appended.head().at.offset + SECTOR_BYTES as u64;
            assert_eq!((appended.head().payload, appended.bytes().len()), (0x3000, 0x4000));
            log.acknowledged(appended).await.unwrap();
            let into = env.buf(0x3000).unwrap();
            assert!(device.read(at, &into, |_| true).await);
            let mut expected = vec![0; 0x3000];
            expected[..5000].fill(lap);
            expected[0x2000..0x2000 + 100].fill(!lap);
            assert!(*into.read() == expected, "lap {lap}");
            log.advance(tail);
            let empty = log.append(&[], 0, Vec::new()).unwrap();
            tail = log.acknowledged(empty).await.unwrap();
            log.flush().await.unwrap();
        }
    });
}

#[test]
fn log_space_is_free_only_when_record_with_tail_is_flushed() {
    run(async |env, disk, log| {
        let first = append(env, &log, 1).await;
        for fill in 2..=7 {
            append(env, &log, fill).await;
        }
        // Two of 16 sectors are free.
        let is_full = || !log.fits(3 * SECTOR_BYTES as u64);
        log.flush().await.unwrap();
        assert!(is_full() && log.numbers().tail == 1);
        log.advance(first);
        assert!(is_full(), "no record states the tail");
        let empty = log.append(&[], 0, Vec::new()).unwrap();
        assert_eq!(empty.head().tail, first.number);
        log.acknowledged(empty).await.unwrap();
        assert!(is_full() && log.numbers().tail == 1, "the record is not flushed");
        log.flush().await.unwrap();
        assert!(!is_full() && log.numbers().tail == first.number);
        // The recovery begins at the tail in the record.
        let device = RingDevice { lower: disk.lower(), base: BASE, ring: ring(Owner::Journal) };
        let found = device.recover(env, root(), false).await.unwrap();
        let numbers: Vec<_> = found.verdict.records.iter().map(|head| head.at.number).collect();
        assert_eq!((numbers, found.verdict.damage), ((2..=8).collect(), None));
    });
}
