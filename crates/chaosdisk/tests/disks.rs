//! Tests of chaosdisk without `cairn`: clients send requests directly to the simulated disks.
#![allow(clippy::disallowed_methods, reason = "a test drives real programs, by real time")]

mod common;

use std::time::{Duration, Instant};

use common::{Rig, Volume, bytes_of};

const PIECE: u64 = 8 << 10;

fn one(profile: &str) -> (Rig, Volume) {
    let rig = Rig::new(1, &[format!("a=64KiB,{profile}")]);
    let disk = rig.disk("a");
    (rig, disk)
}

/// Writes old bytes to a disk and flushes, overwrites them with new bytes without a flush, and cuts the power. Returns
/// the bytes on the disk after the power cut, the old bytes, and the new bytes.
fn cut(profile: &str, policy: &str) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (rig, disk) = one(profile);
    let (old, new) = (bytes_of(1, PIECE), bytes_of(2, PIECE));
    disk.write(&rig.core, 0, &old);
    disk.flush(&rig.core);
    disk.write(&rig.core, 0, &new);
    rig.ctl(&format!("powercut {policy}"));
    assert!(disk.try_flush(&rig.core).is_err(), "its connection went with the power");
    (rig.disk("a").read(&rig.core, 0, PIECE), old, new)
}

#[test]
fn simulated_power_cut_follows_policy() {
    let (left, old, _) = cut("512n", "drop-all");
    assert!(left == old);
    let (left, _, new) = cut("512n", "keep-all");
    assert!(left == new);
    let (left, _, new) = cut("protected", "drop-all");
    assert!(left == new, "its cache has a battery");
    let (left, old, new) = cut("4kn", "torn");
    for ((left, old), new) in left.chunks(4096).zip(old.chunks(4096)).zip(new.chunks(4096)) {
        assert!(left == old || left == new, "a sector of 4 KiB is whole");
    }
}

#[test]
fn simulated_power_cut_with_stay_keeps_connections() {
    let (rig, disk) = one("512n");
    disk.write(&rig.core, 0, &bytes_of(1, PIECE));
    rig.ctl("powercut drop-all stay");
    assert!(disk.read(&rig.core, 0, PIECE).iter().all(|byte| *byte == 0));
}

#[test]
fn eio_command_fails_requested_number_of_requests() {
    let (rig, disk) = one("512n");
    let bytes = bytes_of(1, PIECE);
    rig.ctl("eio a write 2");
    let failed: Vec<_> =
        (0..3).map(|_| disk.try_write(&rig.core, 0, &bytes, false).is_err()).collect();
    assert_eq!(failed, [true, true, false]);
    assert_eq!(rig.count("a", "write"), 3);
}

#[test]
fn simulated_disk_stalls_hangs_and_resumes_by_command() {
    let (rig, disk) = one("512n");
    let begun = Instant::now();
    rig.ctl("stall a 200ms");
    disk.write(&rig.core, 0, &bytes_of(1, PIECE));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    rig.ctl("hang a");
    let late = {
        let env = rig.core.env();
        let reading = async { env.within(Duration::from_millis(100), disk.flush_later()).await };
        rig.core.block_on(reading)
    };
    assert!(late.is_none(), "it hangs");
    assert_eq!(rig.count("a", "in_flight"), 1);
    rig.ctl("release a");
    disk.flush(&rig.core);
    assert_eq!(rig.count("a", "in_flight"), 0);
}

#[test]
fn rot_command_flips_one_bit_of_medium() {
    let (rig, disk) = one("512n");
    let bytes = bytes_of(1, PIECE);
    disk.write_fua(&rig.core, 0, &bytes);
    rig.ctl("rot a 1000");
    let read = disk.read(&rig.core, 0, PIECE);
    let wrong: Vec<_> = (0..bytes.len()).filter(|n| read[*n] != bytes[*n]).collect();
    assert_eq!(wrong, [1000]);
    assert_eq!((read[1000] ^ bytes[1000]).count_ones(), 1);
}
