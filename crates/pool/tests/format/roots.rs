//! Crashes between the writes of a superblock to its two areas, with one area rotten at any time.

use std::collections::BTreeSet;

use block::ErrorKind;
use meta::Uuid;
use pool::geometry::{AREA_BYTES, Geometry};
use pool::root::{Area, Choice, Slots, Step, Superblock, Unusable, Wrong, choose, place, steps};

use crate::samples::{self, POOL};

const SLOT_BYTES: usize = 4096;

/// Bytes that a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// The four slots of a superblock, by area and slot.
type Disk = [[Vec<u8>; 2]; 2];

fn index(area: Area) -> usize {
    usize::from(area == Area::Far)
}

fn blank() -> Disk {
    [0, 1].map(|_| [0, 1].map(|_| vec![0; SLOT_BYTES]))
}

/// Reads all slots; those of a rotten area cannot be read.
fn read(disk: &Disk, rotten: Option<Area>) -> Slots<Superblock> {
    Area::ALL.map(|area| {
        [0, 1].map(|slot| match rotten == Some(area) {
            true => Err(Wrong::Damaged("an I/O error".to_owned())),
            false => Superblock::decode(&disk[index(area)][slot], POOL, 2),
        })
    })
}

/// The sequence that counts; 0 if none does.
fn newest(disk: &Disk, rotten: Option<Area>) -> u64 {
    choose(read(disk, rotten)).map_or(0, |choice| choice.root.sequence)
}

/// Applies the steps that write a superblock. Calls `crash` with each disk that a power cut on the way may leave: each
/// subset of the parts of the write that is not flushed. A part has `part_bytes`.
fn write(
    disk: &mut Disk,
    steps: &[Step],
    bytes: &[u8],
    part_bytes: usize,
    mut crash: impl FnMut(&Disk),
) {
    let parts = SLOT_BYTES / part_bytes;
    let mut unflushed: Option<(Area, usize)> = None;
    for step in steps {
        match *step {
            Step::Write(area, slot) => {
                assert_eq!(unflushed, None, "one write is in flight at a time");
                unflushed = Some((area, slot));
                let before = disk[index(area)][slot].clone();
                let mut torn = disk.clone();
                for kept in 0..1_u32 << parts {
                    let mut mixed = before.clone();
                    for part in (0..parts).filter(|part| kept >> part & 1 == 1) {
                        let range = part * part_bytes..(part + 1) * part_bytes;
                        mixed[range.clone()].copy_from_slice(&bytes[range]);
                    }
                    torn[index(area)][slot] = mixed;
                    crash(&torn);
                }
            }
            Step::Flush => {
                let (area, slot) = unflushed.take().expect("a flush follows a write");
                disk[index(area)][slot].copy_from_slice(bytes);
                crash(disk);
            }
        }
    }
    assert_eq!(unflushed, None, "the last write is flushed");
}

const ROT: [Option<Area>; 3] = [None, Some(Area::Near), Some(Area::Far)];

#[test]
fn superblock_survives_crash_at_any_sectors_with_one_rotten_area() {
    let mut disk = blank();
    let mut crashes = 0;
    for sequence in 1..=4 {
        let bytes = samples::superblock(sequence).encode();
        write(&mut disk, &steps(sequence), &bytes, SECTOR_BYTES, |disk| {
            crashes += 1;
            for rotten in ROT {
                let newest = newest(disk, rotten);
                let is_old_or_new = newest == sequence || newest == sequence - 1;
                assert!(is_old_or_new, "{newest} of {sequence}, {rotten:?}");
            }
        });
        for rotten in ROT {
            assert_eq!(newest(&disk, rotten), sequence, "{rotten:?}");
        }
    }
    assert_eq!(crashes, 4 * 2 * (256 + 1));
}

/// A state after a crash, and the newest superblock that counted before it.
type Crashed = BTreeSet<(Disk, u64)>;

/// Writes superblocks 1 to `last`, and returns every state after a crash.
fn first_life(last: u64) -> Crashed {
    let mut disk = blank();
    let mut states = Crashed::new();
    for sequence in 1..=last {
        let bytes = samples::superblock(sequence).encode();
        write(&mut disk, &steps(sequence), &bytes, SLOT_BYTES / 4, |disk| {
            states.insert((disk.clone(), sequence - 1));
        });
        states.insert((disk.clone(), sequence));
    }
    states
}

/// Opens the disk, with this area rotten at that time, and writes one more superblock. Returns every state after a
/// second crash, and whether the opening found a superblock that counts.
fn second_life(disk: &Disk, counted: u64, rotten: Option<Area>, repairs: bool) -> (Crashed, bool) {
    let mut states = Crashed::new();
    let Ok(Choice { root, missing }) = choose(read(disk, rotten)) else {
        return (states, counted == 0);
    };
    let found = root.sequence >= counted;
    let (mut disk, mut counted) = (disk.clone(), counted);
    if let Some(area) = rotten {
        // The area loses its content for good. Slots that are written again can be read again.
        disk[index(area)] = [0, 1].map(|_| vec![0; SLOT_BYTES]);
    }
    let sequence = root.sequence;
    let bytes = root.encode();
    let choice = Choice { root, missing };
    if repairs {
        write(&mut disk, &choice.repair(), &bytes, SLOT_BYTES / 4, |disk| {
            states.insert((disk.clone(), counted));
        });
    }
    counted = counted.max(if repairs { sequence } else { 0 });
    let next = samples::superblock(sequence + 1).encode();
    write(&mut disk, &steps(sequence + 1), &next, SLOT_BYTES / 4, |disk| {
        states.insert((disk.clone(), counted));
    });
    states.insert((disk, sequence + 1));
    (states, found)
}

/// Returns the number of states after two crashes, and of those that lose a superblock that counted.
fn after_two_crashes(repairs: bool) -> (usize, usize) {
    let (mut states, mut lost) = (0, 0);
    for (disk, counted) in first_life(3) {
        for rotten_then in ROT {
            let (after, found) = second_life(&disk, counted, rotten_then, repairs);
            assert!(found, "superblock {counted} after one crash");
            for (disk, counted) in after {
                // One area rots, at one time.
                let rotten = if rotten_then.is_none() { &ROT[..] } else { &ROT[..1] };
                for rotten in rotten {
                    states += 1;
                    lost += usize::from(newest(&disk, *rotten) < counted);
                }
            }
        }
    }
    (states, lost)
}

#[test]
fn superblock_survives_every_crash_with_one_rotten_area() {
    let (states, lost) = after_two_crashes(true);
    assert!(states > 5000, "only {states} states");
    assert_eq!(lost, 0, "of {states} states");
}

#[test]
fn superblock_is_lost_if_opening_does_not_repair_area_that_lags() {
    let (_, lost) = after_two_crashes(false);
    assert!(lost > 0, "the enumeration finds the missing repair");
}

#[test]
fn superblock_places_follow_from_number_of_allocator() {
    let geometry = Geometry::new(64 << 30).unwrap();
    let far = geometry.far;
    assert_eq!(place(&geometry, Area::Near, 0, 0), 0);
    assert_eq!(place(&geometry, Area::Near, 2, 1), 2 * 8192 + 4096);
    assert_eq!(place(&geometry, Area::Far, 126, 1), far + 126 * 8192 + 4096);
    assert!(place(&geometry, Area::Near, pool::ALLOCATORS_MAX, 1) + 4096 <= AREA_BYTES);
}

fn slots(of: [[Result<u64, Wrong>; 2]; 2]) -> Slots<Superblock> {
    of.map(|area| area.map(|slot| slot.map(samples::superblock)))
}

#[test]
fn superblock_choice_states_why_no_slot_counts() {
    let none = || Err(Wrong::NoMagic);
    let damaged = || Err(Wrong::Damaged("x".to_owned()));
    let foreign = || Err(Wrong::Foreign(Uuid([9; 16])));
    assert_eq!(choose(slots([[none(), none()], [none(), none()]])), Err(Unusable::Absent));
    let result = choose(slots([[none(), damaged()], [none(), none()]]));
    let Err(Unusable::Damaged(words)) = &result else { panic!("{result:?}") };
    assert!(words.contains("near area, slot 0: no pool, slot 1: damaged: x"), "{words}");
    let result = choose(slots([[Ok(2), Ok(3)], [Err(Wrong::Version(2)), none()]]));
    assert!(matches!(result, Err(Unusable::Newer(Wrong::Version(2)))), "{result:?}");
    let result = choose(slots([[foreign(), foreign()], [damaged(), none()]]));
    assert!(matches!(result, Err(Unusable::Foreign(_))), "{result:?}");
    let result = choose(slots([[Ok(4), foreign()], [damaged(), none()]])).unwrap();
    assert_eq!((result.root.sequence, result.missing), (4, Some(Area::Far)));
    let result = choose(slots([[Ok(3), Ok(2)], [none(), Ok(1)]])).unwrap();
    assert_eq!((result.root.sequence, result.missing), (1, Some(Area::Near)), "wrong slots");
    let mut twins = slots([[Ok(2), none()], [Ok(2), none()]]);
    twins[1][0].as_mut().unwrap().checkpoint += 1;
    assert_eq!(choose(twins), Err(Unusable::TwoWriters(2)));
    let mut twins = slots([[Ok(2), Ok(3)], [Ok(2), none()]]);
    twins[0][1].as_mut().unwrap().draw += 1;
    assert_eq!(choose(twins), Err(Unusable::TwoWriters(3)), "one opening with two draws");
}

#[test]
fn unusable_superblock_error_names_next_step() {
    let all = [
        (Unusable::Absent, ErrorKind::NotFound),
        (Unusable::Newer(Wrong::Features(4)), ErrorKind::Unsupported),
        (Unusable::Foreign(Wrong::Foreign(POOL)), ErrorKind::Invalid),
        (Unusable::TwoWriters(7), ErrorKind::Corrupt),
        (Unusable::Damaged("near area".to_owned()), ErrorKind::Corrupt),
    ];
    for (unusable, kind) in all {
        let error = block::Error::from(unusable);
        assert_eq!(error.kind(), kind);
        assert!(error.next_step().is_some(), "{error}");
    }
}
