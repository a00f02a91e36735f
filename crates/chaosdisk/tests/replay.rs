//! Power cuts of NBD disks while `cairn` runs on: the volume keeps acknowledged writes, because `cairn` replays the
//! unflushed writes to the disks.

mod common;

use std::rc::Rc;
use std::time::Duration;

use common::{Rig, Shape, bytes_of, seed, until};
use sim::Model;
use sim::draw::Stream;
use sim::workload::{Mix, Tally};

const PIECE: u64 = 24 << 10;
static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

/// Number of power cuts of the disks during one batch of requests.
const CUTS: u64 = 6;

/// Largest number of batches that the test runs until a power cut has lost a write, which `cairn` then replays.
const BATCHES_MAX: u64 = 20;

const CLIENTS: u64 = 8;
const REQUESTS: u64 = 300;

/// Returns the counter `what` of a disk from `cairn status`.
fn counter(rig: &Rig, disk: &str, what: &str) -> u64 {
    let status = rig.ask(&["status"]);
    let devices = status[0]["devices"].as_array().unwrap();
    let found = devices.iter().find(|device| device["name"] == disk).unwrap();
    found["counters"][what].as_u64().unwrap_or_else(|| panic!("no {what} in {found}"))
}

#[test]
fn nbd_disk_replays_acknowledged_writes_after_power_cut() {
    for shape in [Shape::ONE, Shape::STRIPE, Shape::CONCAT] {
        let mut rig = Rig::of(&shape, 1);
        rig.serve(&shape.spec(0));
        let volume = rig.volume();
        let core = &rig.core;
        let (old, new) = (bytes_of(0x10, PIECE), bytes_of(0x20, PIECE));
        volume.write(core, 0, &old);
        volume.zero(core, PIECE, PIECE, false);
        volume.write(core, 2 * PIECE, &old);
        // Overlapping writes, in an order that matters. The second one is durable at once, the first one is
        // not.
        volume.write(core, 4096, &new[..8192]);
        volume.write_fua(core, 8192, &new[..4096]);
        let expected = volume.read(core, 0, 3 * PIECE);
        rig.ctl("powercut drop-all");
        assert!(volume.read(core, 0, 3 * PIECE) == expected, "{}: nothing is lost", shape.name);
        volume.flush(core);
        assert!(counter(&rig, "a", "replayed") > 0, "{}", shape.name);
        // From here on the data are on the disks, whatever happens to cairn.
        rig.power_cut("drop-all");
        rig.serve(&shape.spec(0));
        let left = rig.volume().read(&rig.core, 0, 3 * PIECE);
        assert!(left == expected, "{}: what was flushed after a replay is durable", shape.name);
    }
}

/// The spec of an NBD disk that replays unflushed writes. The test serves it under a daemon.
const KEPT: &str = "[disk]\na = { nbd = \"@a\" }\n[export]\nvol = { on = \"a\" }\n";

#[test]
fn nbd_replay_survives_worker_kill_and_power_cut() {
    let mut rig = Rig::of(&Shape::ONE, 1);
    rig.keep(KEPT);
    let core = &rig.core;
    let kill = || {
        rig.kill_worker(|rig| {
            rig.ctl("powercut drop-all");
        });
        rig.is_up_again();
    };
    for round in 0..6 {
        let volume = rig.volume();
        let (old, new) = (bytes_of(round, PIECE), bytes_of(0x40 | round, PIECE));
        volume.write(core, 0, &old);
        if round % 2 == 0 {
            volume.flush(core);
        }
        volume.zero(core, PIECE, PIECE, false);
        volume.write(core, 2 * PIECE, &old);
        // Overlapping writes, in an order that matters. The second one is durable at once, the first one is
        // not.
        volume.write(core, 4096, &new[..8192]);
        volume.write_fua(core, 8192, &new[..4096]);
        let expected = volume.read(core, 0, 3 * PIECE);
        // A second kill before any flush loses nothing either.
        for kills in 1..=1 + round % 2 {
            kill();
            let left = rig.volume().read(core, 0, 3 * PIECE);
            assert!(left == expected, "round {round}, {kills} kills: nothing is lost");
        }
    }
    let volume = rig.volume();
    volume.flush(core);
    let expected = volume.read(core, 0, 3 * PIECE);
    rig.ctl("powercut drop-all");
    assert!(volume.read(core, 0, 3 * PIECE) == expected, "what was flushed is on the disks");
}

#[test]
fn nbd_replay_keeps_writes_in_power_cuts_under_load() {
    let seed = seed();
    for shape in [Shape::ONE, Shape::STRIPE] {
        let mut rig = Rig::of(&shape, seed);
        rig.serve(&shape.spec(0));
        let volume = rig.volume();
        let model = Rc::new(Model::new(seed, volume.size()));
        let tally = Rc::new(Tally::default());
        let mix = Mix { abandon: 0, ..Mix::ALL };
        let replayed = |rig: &Rig| -> u64 {
            shape.disks.iter().map(|disk| counter(rig, disk, "replayed")).sum()
        };
        let draw = Stream::new(seed, "cuts", 0);
        for batch in 0..BATCHES_MAX {
            for n in 0..CLIENTS {
                let draw = Stream::new(seed, "client", batch * CLIENTS + n);
                volume.worker(&model, &tally, draw, mix).start(REQUESTS);
            }
            for cut in 1..=CUTS {
                let time = Duration::from_micros(draw.within(500, 40_000));
                rig.core.block_on(rig.core.env().sleep(time));
                let policy = draw.pick(&["drop-all", "random", "torn", "reverse"]);
                rig.ctl(&format!("powercut {policy}"));
                let reconnects = batch * CUTS + cut;
                until("the disk is there again", || counter(&rig, "a", "reconnects") >= reconnects);
            }
            rig.core.block_on(tally.idle());
            // On a slow machine a batch may end before its first power cut.
            if replayed(&rig) > 0 {
                break;
            }
        }
        let wrong = tally.wrong.borrow().as_ref().map(ToString::to_string);
        assert_eq!(wrong, None, "{}: SEED={seed}", shape.name);
        assert!(tally.error.borrow().is_none(), "{:?}. SEED={seed}", tally.error.borrow());
        assert!(replayed(&rig) > 0, "{}: no change was sent again. SEED={seed}", shape.name);
        let draw = Stream::new(seed, "verify", 0);
        rig.core.block_on(volume.worker(&model, &tally, draw, mix).verify());
        assert!(tally.wrong.borrow().is_none(), "{:?}. SEED={seed}", tally.wrong.borrow());
    }
}

#[test]
fn live_change_flushes_nbd_disk_before_reopening() {
    let spec = |timeout| {
        format!("[disk]\na = {{ nbd = \"@a\"{timeout} }}\n[export]\nvol = {{ on = \"a\" }}\n")
    };
    let mut rig = Rig::of(&Shape::ONE, 1);
    rig.serve(&spec(""));
    let volume = rig.volume();
    let core = &rig.core;
    let expected = bytes_of(1, PIECE);
    volume.write(core, 0, &expected);
    // The new disk device does not know the writes that the previous one would have replayed.
    rig.apply(&spec(", timeout = \"7s\""));
    rig.ctl("powercut drop-all");
    volume.flush(core);
    assert!(volume.read(core, 0, PIECE) == expected, "what was answered before a change is there");
}

#[test]
fn nbd_disk_fails_flush_after_power_cut_without_replay() {
    let mut rig = Rig::of(&Shape::ONE, 1);
    rig.serve("[disk]\na = { nbd = \"@a\", replay = 0 }\n[export]\nvol = { on = \"a\" }\n");
    let volume = rig.volume();
    let core = &rig.core;
    volume.write(core, 0, &bytes_of(1, PIECE));
    volume.flush(core);
    rig.ctl("powercut drop-all");
    assert!(volume.read(core, 0, PIECE) == bytes_of(1, PIECE));
    volume.flush(core);
    volume.write(core, 0, &bytes_of(2, PIECE));
    volume.write(core, PIECE, &bytes_of(3, PIECE));
    rig.ctl("powercut drop-all");
    assert!(volume.read(core, PIECE, PIECE) == ZEROS, "it was lost");
    assert!(volume.try_flush(core).is_err(), "and that is told");
    assert!(volume.try_flush(core).is_err(), "for good");
}

#[test]
fn nbd_disk_fails_permanently_after_disconnect_without_reconnect() {
    let mut rig = Rig::of(&Shape::ONE, 1);
    rig.serve("[disk]\na = { nbd = \"@a\", reconnect = \"0s\" }\n[export]\nvol = { on = \"a\" }\n");
    let volume = rig.volume();
    volume.write(&rig.core, 0, &bytes_of(1, PIECE));
    rig.ctl("powercut drop-all");
    assert!(volume.try_write(&rig.core, 0, &bytes_of(2, PIECE), false).is_err());
    assert!(volume.try_flush(&rig.core).is_err());
}
