//! One disk of a graph hangs, fails or loses writes: a mirror serves clients from its other member, and reports it.
#![allow(clippy::disallowed_methods, reason = "a test drives real programs, by real time")]

mod common;

use std::rc::Rc;
use std::time::{Duration, Instant};

use common::{Rig, Shape, Volume, bytes_of, seed};
use sim::Model;
use sim::draw::Stream;
use sim::workload::{Mix, Tally};

const PIECE: u64 = 16 << 10;

/// The time after which the mirror fails a member that does not reply, and an allowance for a busy machine.
const DEADLINE: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(10);

fn mirror() -> (Rig, Volume) {
    let mut rig = Rig::of(&Shape::MIRROR, 1);
    rig.serve(&Shape::MIRROR.spec(0));
    rig.in_sync();
    let volume = rig.volume();
    (rig, volume)
}

/// Returns the state of a mirror member and the health of the graph, from `cairn status`.
fn told(rig: &Rig, member: &str) -> (String, String) {
    let status = rig.ask(&["status"]);
    let devices = status[0]["devices"].as_array().unwrap();
    let top = devices.iter().find(|device| device["name"] == "top").unwrap();
    let members = top["members"].as_array().unwrap();
    let found = members.iter().find(|one| one["name"] == member).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    (text(&found["state"]), text(&status[0]["health"]))
}

fn out() -> (String, String) {
    ("failed".to_owned(), "degraded".to_owned())
}

#[test]
fn mirror_completes_degraded_write_when_disk_hangs() {
    let (mut rig, volume) = mirror();
    rig.ctl("hang b");
    let begun = Instant::now();
    volume.write(&rig.core, 0, &bytes_of(1, PIECE));
    let took = begun.elapsed();
    assert!(took >= DEADLINE && took < DEADLINE + SLACK, "the first one waited {took:?}");
    assert_eq!(told(&rig, "b"), out());
    let begun = Instant::now();
    volume.write(&rig.core, PIECE, &bytes_of(2, PIECE));
    volume.flush(&rig.core);
    assert!(begun.elapsed() < DEADLINE, "nobody waits for it twice");
    rig.ctl("release b");
    rig.power_cut("drop-all");
    let left = rig.disk("a").read(&rig.core, 0, 2 * PIECE);
    assert!(left == [bytes_of(1, PIECE), bytes_of(2, PIECE)].concat());
}

#[test]
fn mirror_reads_other_member_when_disk_hangs() {
    for hung in ["a", "b"] {
        let (rig, volume) = mirror();
        volume.write(&rig.core, 0, &bytes_of(3, PIECE));
        rig.ctl(&format!("hang {hung}"));
        let begun = Instant::now();
        for _ in 0..8 {
            assert!(volume.read(&rig.core, 0, PIECE) == bytes_of(3, PIECE));
        }
        assert!(begun.elapsed() < DEADLINE + SLACK, "{:?}", begun.elapsed());
        rig.ctl(&format!("release {hung}"));
    }
}

#[test]
fn mirror_fails_member_after_failed_flush() {
    for (fails, keeps) in [("a", "b"), ("b", "a")] {
        let (mut rig, volume) = mirror();
        volume.flush(&rig.core);
        volume.write(&rig.core, 0, &bytes_of(4, PIECE));
        rig.ctl(&format!("eio {fails} flush"));
        volume.flush(&rig.core);
        assert_eq!(told(&rig, fails), out());
        assert_eq!(told(&rig, keeps).0, "in sync");
        rig.power_cut("drop-all");
        assert!(rig.disk(keeps).read(&rig.core, 0, PIECE) == bytes_of(4, PIECE), "{keeps}");
        assert!(rig.disk(fails).read(&rig.core, 0, PIECE) != bytes_of(4, PIECE), "{fails}");
    }
}

#[test]
fn mirror_fails_member_after_failed_write() {
    let (rig, volume) = mirror();
    rig.ctl("eio a write");
    volume.write(&rig.core, 0, &bytes_of(5, PIECE));
    assert_eq!(told(&rig, "a"), out());
    assert!(volume.read(&rig.core, 0, PIECE) == bytes_of(5, PIECE));
    assert!(rig.disk("a").read(&rig.core, 0, PIECE) != bytes_of(5, PIECE), "it did fail");
}

#[test]
fn volume_without_copies_fails_permanently_after_failed_flush() {
    for shape in [Shape::ONE, Shape::STRIPE, Shape::CONCAT] {
        let mut rig = Rig::of(&shape, 1);
        rig.serve(&shape.spec(0));
        let (volume, other) = (rig.volume(), rig.volume());
        volume.write(&rig.core, 0, &bytes_of(6, PIECE));
        let last = shape.disks.last().unwrap();
        rig.ctl(&format!("eio {last} flush"));
        assert!(volume.try_flush(&rig.core).is_err(), "{}", shape.name);
        // The disk itself would succeed from now on, although it has lost data.
        rig.disk(last).flush(&rig.core);
        for one in [&volume, &other, &rig.volume()] {
            assert!(one.try_flush(&rig.core).is_err(), "{}: it stays so", shape.name);
        }
    }
}

#[test]
fn mirror_members_are_equal_after_overlapping_writes() {
    let seed = seed();
    let (rig, volume) = mirror();
    let other = rig.volume();
    let model = Rc::new(Model::new(seed, volume.size()));
    let tally = Rc::new(Tally::default());
    let mix = Mix { read: 5, write: 80, abandon: 0, pause: 0, ..Mix::ALL };
    for n in 0..16 {
        let through = if n % 2 == 0 { &volume } else { &other };
        through.worker(&model, &tally, Stream::new(seed, "storm", n), mix).start(60);
    }
    rig.core.block_on(tally.idle());
    assert_eq!(*tally.wrong.borrow(), None, "SEED={seed}");
    assert!(tally.error.borrow().is_none(), "{:?}", tally.error.borrow());
    assert_eq!(told(&rig, "b").1, "ok");
    let all = |disk| rig.disk(disk).read(&rig.core, 0, volume.size());
    assert!(all("a") == all("b"), "SEED={seed}");
}
