//! Enumerates the crashes of a ring: every loss of unflushed sectors.

use meta::ring::{Owner, SECTOR_BYTES};

use crate::scene::{Log, numbers, recover};

/// Sectors that may be unflushed at once: their subsets are enumerated.
const UNFLUSHED_MAX: usize = 9;

/// Recovers every image that a power cut may leave, and compares the records with those that were written completely.
/// Returns the number of images.
fn check_all_crashes(log: &Log) -> usize {
    let writes = &log.unflushed;
    assert!(writes.len() <= UNFLUSHED_MAX, "{} unflushed sectors", writes.len());
    for kept in 0..1_u32 << writes.len() {
        let is_kept = |n: usize| kept >> n & 1 == 1;
        let mut image = log.image.clone();
        for (_, (place, sector)) in writes.iter().enumerate().filter(|(n, _)| is_kept(*n)) {
            image[*place..place + SECTOR_BYTES].copy_from_slice(sector);
        }
        let mut expected = Vec::new();
        let mut first = 0;
        for head in &log.heads {
            let sectors = match head.at.number <= log.flushed {
                true => 0,
                false => head.bytes() as usize / SECTOR_BYTES,
            };
            if !(first..first + sectors).all(is_kept) {
                break;
            }
            first += sectors;
            expected.push(head.at.number);
        }
        let verdict = recover(log.ring, log.root, &image);
        assert_eq!(verdict.damage, None, "{kept:b}");
        assert_eq!(numbers(&verdict.records), expected, "{kept:b}");
        assert_eq!(verdict.records, log.heads[..expected.len()], "{kept:b}");
        assert!(verdict.flushed <= log.flushed && verdict.end.number > log.flushed, "{kept:b}");
    }
    1 << writes.len()
}

#[test]
fn log_recovery_keeps_flushed_records_after_any_loss_of_unflushed_sectors() {
    let mut images = 0;
    // Three laps of the ring, so that sectors of earlier laps lie behind the end.
    let mut log = Log::new(Owner::PoolLog);
    for step in 0..40_u64 {
        let sectors = [1, 3, 2, 1, 4][step as usize % 5];
        if log.room.fits((sectors * SECTOR_BYTES) as u64).is_err() {
            log.checkpoint(log.room.next().number - 1);
        }
        log.append(sectors).expect("a checkpoint has made room");
        images += check_all_crashes(&log);
        if step % 3 == 2 || log.unflushed.len() > UNFLUSHED_MAX - 4 {
            log.flush();
            images += check_all_crashes(&log);
        }
    }
    assert!(images > 500, "only {images} images");
}

#[test]
fn log_recovery_applies_no_record_of_earlier_opening_after_any_crash() {
    // In each life two records are lost or kept, in every combination; then the next life writes at their place.
    for kept in 0..1_u32 << 3 {
        let mut log = Log::new(Owner::PoolLog);
        log.append(1).unwrap();
        log.flush();
        for _ in 0..3 {
            log.append(1).unwrap();
        }
        let writes = std::mem::take(&mut log.unflushed);
        let survives = |n: usize| kept >> n & 1 == 1;
        for (_, (place, sector)) in writes.iter().enumerate().filter(|(n, _)| survives(*n)) {
            log.image[*place..place + SECTOR_BYTES].copy_from_slice(sector);
        }
        let verdict = log.recover();
        assert_eq!(verdict.records.len() as u32, 1 + kept.trailing_ones(), "{kept:b}");
        log.reopen(&verdict);
        assert!(log.recover().records.is_empty(), "{kept:b}: all is in the checkpoint");
        log.append(1).unwrap();
        check_all_crashes(&log);
        log.flush();
        let verdict = log.recover();
        assert_eq!((verdict.records, verdict.damage), (log.heads.clone(), None), "{kept:b}");
    }
}
