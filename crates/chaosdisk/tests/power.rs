//! Flushed writes survive a power cut, in every graph and over every connection. The disks of these tests lose all
//! unflushed writes, so that a flush without effect is found.

mod common;

use common::{Rig, Shape, bytes_of};

const PIECE: u64 = 24 << 10;
static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

/// Returns every graph under test, with the number of the mirror member that the start after the power cut trusts. A
/// graph with a mirror is returned once for each member, because a resync hides lost writes of the other member.
fn every() -> impl Iterator<Item = (&'static Shape, usize)> {
    static ALL: [Shape; 5] = Shape::ALL;
    ALL.iter().flat_map(|shape| (0..shape.members.len().max(1)).map(move |turn| (shape, turn)))
}

/// Starts the graph again after a power cut, and checks the volume with `look`.
fn after(rig: &mut Rig, shape: &Shape, turn: usize, look: impl Fn(&Rig, &common::Volume)) {
    rig.serve(&shape.spec(turn));
    let volume = rig.volume();
    look(rig, &volume);
}

#[test]
fn power_cut_loses_only_unflushed_writes() {
    for (shape, turn) in every() {
        println!("{}, {turn}", shape.name);
        let mut rig = Rig::of(shape, 1);
        rig.serve(&shape.spec(0));
        rig.in_sync();
        let volume = rig.volume();
        let (flushed, lost) = (bytes_of(0x10, PIECE), bytes_of(0x20, PIECE));
        volume.write(&rig.core, 4096, &flushed);
        volume.flush(&rig.core);
        volume.write(&rig.core, 64 << 10, &lost);
        assert!(volume.read(&rig.core, 64 << 10, PIECE) == lost, "it is answered, and can be read");
        rig.power_cut("drop-all");
        after(&mut rig, shape, turn, |rig, volume| {
            assert!(volume.read(&rig.core, 4096, PIECE) == flushed, "{}: flushed", shape.name);
            assert!(
                volume.read(&rig.core, 64 << 10, PIECE) == ZEROS,
                "{}: not flushed",
                shape.name
            );
        });
    }
}

#[test]
fn server_flush_covers_writes_of_other_connections() {
    for (shape, turn) in every() {
        println!("{}, {turn}", shape.name);
        let mut rig = Rig::of(shape, 2);
        rig.serve(&shape.spec(0));
        rig.in_sync();
        let (one, other) = (rig.volume(), rig.volume());
        let bytes = bytes_of(0x30, PIECE);
        one.write(&rig.core, 8192, &bytes);
        other.flush(&rig.core);
        rig.power_cut("drop-all");
        after(&mut rig, shape, turn, |rig, volume| {
            assert!(volume.read(&rig.core, 8192, PIECE) == bytes, "{}", shape.name);
        });
    }
}

#[test]
fn fua_write_makes_only_own_bytes_durable() {
    for (shape, turn) in every() {
        println!("{}, {turn}", shape.name);
        let mut rig = Rig::of(shape, 3);
        rig.serve(&shape.spec(0));
        rig.in_sync();
        let volume = rig.volume();
        let core = &rig.core;
        let (old, new) = (bytes_of(0x40, PIECE), bytes_of(0x50, PIECE));
        let places: Vec<u64> = (0..6).map(|n| n * (PIECE + 4096)).collect();
        places.iter().for_each(|at| volume.write(core, *at, &old));
        volume.flush(core);
        for (n, fua) in [(0, true), (3, false)] {
            volume.try_write(core, places[n], &new, fua).unwrap();
            volume.zero(core, places[n + 1], PIECE, fua);
            volume.trim(core, places[n + 2], PIECE, fua);
        }
        let trimmed = volume.read(core, places[2], PIECE);
        assert!(trimmed == ZEROS, "these disks make zeros of what is trimmed");
        rig.power_cut("drop-all");
        after(&mut rig, shape, turn, |rig, volume| {
            let read = |n: usize| volume.read(&rig.core, places[n], PIECE);
            assert!(read(0) == new, "{}: a write with FUA", shape.name);
            assert!(read(1) == ZEROS, "{}: zeroes with FUA", shape.name);
            assert!(read(2) == ZEROS, "{}: a trim with FUA", shape.name);
            for (n, what) in [(3, "write"), (4, "zeroes"), (5, "trim")] {
                assert!(read(n) == old, "{}: {what} without FUA is lost here", shape.name);
            }
        });
    }
}

#[test]
fn power_cut_loses_data_of_disk_that_ignores_flushes() {
    let mut rig = Rig::new(4, &["a=256KiB,liar".to_owned()]);
    rig.serve(&Shape::ONE.spec(0));
    let volume = rig.volume();
    volume.write(&rig.core, 0, &bytes_of(0x60, PIECE));
    volume.flush(&rig.core);
    rig.power_cut("drop-all");
    assert!(
        rig.disk("a").read(&rig.core, 0, PIECE) == ZEROS,
        "a test that cannot fail says nothing"
    );
}
