//! Tests of label updates that a power cut has torn, in every subset of sectors, in both label areas of a disk.

use std::collections::BTreeMap;

use super::*;
use crate::inspect::{CopyFound, Inspection};
use crate::signature::ForeignContent;
use crate::{Cell, Machine, Uuid};

const SECTOR: usize = 512;
const DATA_BYTES: u64 = 1 << 20;

fn label(sequence: u64, spec_bytes: usize) -> Label {
    let cell = |n: u64| (format!("device{n}"), Cell { sequence, bytes: vec![sequence as u8; 300] });
    Label {
        sequence,
        epoch: 3,
        broadcast: 0,
        acked_broadcast: 0,
        disk: Uuid([1; 16]),
        disk_name: "a".to_owned(),
        graph: Uuid([2; 16]),
        graph_name: "home".to_owned(),
        data_bytes: DATA_BYTES,
        block_size: 512,
        written_unix_s: 1_700_000_000 + sequence,
        holder: sequence.is_multiple_of(2).then(|| Machine::new("here", [7; 16])),
        provisioning: false,
        // All of it changes with each generation, so that every mixed-in sector would show.
        spec: char::from(b'a' + (sequence % 26) as u8).to_string().repeat(spec_bytes),
        cells: BTreeMap::from([cell(1), cell(2)]),
        past: Default::default(),
        unknown_read_only: 0,
    }
}

/// The bytes of the two label areas of a disk.
#[derive(Clone)]
struct Disk([Vec<u8>; 2]);

impl Disk {
    /// Returns a disk after the label updates 1 to `last`, and the number of the newest copy in each area.
    fn after(last: u64, spec_bytes: usize) -> (Self, usize) {
        let mut disk = Self([vec![0; AREA_BYTES as usize], vec![0; AREA_BYTES as usize]]);
        let mut active = 0;
        for sequence in 1..=last {
            if sequence > 1 {
                active = next_copy(active);
            }
            let copy = label(sequence, spec_bytes).encode().unwrap();
            (0..2).for_each(|area| disk.write(area, active, &copy, |_| true));
        }
        (disk, active)
    }

    /// Writes a copy of a label to an area, but only the sectors for which `kept` returns true.
    fn write(&mut self, area: usize, number: usize, copy: &[u8], kept: impl Fn(usize) -> bool) {
        for (n, sector) in copy.chunks(SECTOR).enumerate().filter(|(n, _)| kept(*n)) {
            let at = COPIES[number] as usize + n * SECTOR;
            self.0[area][at..at + sector.len()].copy_from_slice(sector);
        }
    }

    fn read(&self) -> Result<Option<(usize, Label)>, Wrong> {
        let all = self.0.iter().flat_map(|area| copies(area).into_iter().enumerate());
        choose(all)
    }

    /// Whether an inspection finds that the label at the end of the disk is lost, with `back` as that area's bytes.
    fn has_lost_its_end(&self, back: &[u8]) -> bool {
        seen(&self.0[0], back).has_lost_its_end()
    }

    /// Whether an inspection finds that the label at the front of the disk is lost, with `front` as that area's bytes.
    fn has_lost_its_front(&self, front: &[u8]) -> bool {
        seen(front, &self.0[1]).has_lost_its_front()
    }
}

/// Returns the inspection of a disk whose label areas have these bytes.
fn seen(front: &[u8], back: &[u8]) -> Inspection {
    let areas = [(Area::Front, front), (Area::Back(DATA_BYTES), back)];
    let all = areas.into_iter().flat_map(|(area, bytes)| {
        let copies = copies(bytes).into_iter().enumerate();
        copies.map(move |(number, found)| CopyFound { area, number, found })
    });
    let (size, other) = (DATA_BYTES + 2 * AREA_BYTES, ForeignContent::Unknown);
    Inspection { size, copies: all.collect(), label: Ok(None), other }
}

/// Checks that after a torn label update, of which each area has only the sectors `kept`, the disk has the old label or
/// the new label. Returns whether the disk has the new label.
fn torn(before: &Disk, active: usize, new: &Label, kept: [&dyn Fn(usize) -> bool; 2]) -> bool {
    let copy = new.encode().unwrap();
    let number = next_copy(active);
    let mut disk = before.clone();
    (0..2).for_each(|area| disk.write(area, number, &copy, kept[area]));
    let (_, found) = disk.read().expect("one generation is whole").expect("there is a label");
    assert_eq!(seen(&disk.0[0], &disk.0[1]).lost_end(), None);
    let old = label(new.sequence - 1, new.spec.len());
    assert!(found == *new || found == old, "neither the old label nor the new: {found:?}");
    found == *new
}

#[test]
fn label_update_torn_at_any_sectors_shows_old_or_new() {
    let spec_bytes = 100;
    for last in 1..=3 {
        let (disk, active) = Disk::after(last, spec_bytes);
        let new = label(last + 1, spec_bytes);
        let sectors = new.encode().unwrap().len().div_ceil(SECTOR);
        assert!((3..=4).contains(&sectors), "{sectors} sectors: all subsets are too many, or few");
        let mut found_new = 0;
        for front in 0..1_u32 << sectors {
            for back in 0..1_u32 << sectors {
                let kept: [&dyn Fn(usize) -> bool; 2] =
                    [&|n| front >> n & 1 == 1, &|n| back >> n & 1 == 1];
                found_new += usize::from(torn(&disk, active, &new, kept));
            }
        }
        // All sectors in one area are enough, whatever the other area has.
        assert_eq!(found_new, 2 * (1 << sectors) - 1);
    }
}

#[test]
fn torn_first_label_write_reads_as_blank_or_complete_label() {
    let new = label(1, 100);
    let copy = new.encode().unwrap();
    let sectors = copy.len().div_ceil(SECTOR);
    let blank = Disk([vec![0; AREA_BYTES as usize], vec![0; AREA_BYTES as usize]]);
    let mut heads = blank.clone();
    // The sector with the magic is durable before the rest is written.
    (0..2).for_each(|area| heads.write(area, 0, &copy, |n| n == 0));
    for set in 0..1_u32 << (2 * sectors) {
        let mut disk = heads.clone();
        (0..2)
            .for_each(|area| disk.write(area, 0, &copy, |n| set >> (area * sectors + n) & 1 == 1));
        match disk.read() {
            Ok(found) => assert_eq!(found, Some((0, new.clone()))),
            Err(Wrong::Damaged(_)) => assert!(is_first_torn([&disk.0[0], &disk.0[1]])),
            Err(wrong) => panic!("{wrong}"),
        }
    }
    let (mut served, _) = Disk::after(2, 100);
    (0..2).for_each(|area| served.0[area][COPIES[0] as usize + 600] ^= 1);
    (0..2).for_each(|area| served.0[area][COPIES[1] as usize + 600] ^= 1);
    assert!(matches!(served.read(), Err(Wrong::Damaged(_))));
    assert!(!is_first_torn([&served.0[0], &served.0[1]]), "what has served is not");
}

#[test]
fn inspection_distinguishes_lost_back_label_from_unwritten_one() {
    let blank = vec![0; AREA_BYTES as usize];
    for last in 1..=5 {
        let (disk, active) = Disk::after(last, 100);
        assert!(!disk.has_lost_its_end(&disk.0[1]));
        // Nothing in the first generation shows that it was ever written at the back.
        assert_eq!(disk.has_lost_its_end(&blank), last > 1, "{last}");
        // The state of the other generation at the front does not matter.
        let mut cut = disk.clone();
        cut.0[0][COPIES[1 - active] as usize..].iter_mut().take(8).for_each(|byte| *byte = 0);
        assert_eq!(cut.has_lost_its_end(&blank), last > 1, "{last}");
        let mut torn = disk.clone();
        torn.0[0][COPIES[1 - active] as usize + 100] ^= 1;
        assert_eq!(torn.has_lost_its_end(&blank), last > 1, "{last}");
        // While a disk grows, its first copy behind the new end is in flight.
        let mut grows = disk.clone();
        let new = Label { data_bytes: 2 * DATA_BYTES, ..label(last + 1, 100) };
        grows.write(0, next_copy(active), &new.encode().unwrap(), |_| true);
        assert!(!grows.has_lost_its_end(&blank));
    }
}

#[test]
fn inspection_reports_lost_front_label_after_foreign_overwrite() {
    let blank = vec![0; AREA_BYTES as usize];
    for last in 1..=5 {
        let (disk, active) = Disk::after(last, 100);
        // A power cut during the write of the first generation may leave it at the back alone.
        assert_eq!(disk.has_lost_its_front(&blank), last > 1, "{last}");
        // A torn update at the back leaves the other generation there.
        let mut torn = disk.clone();
        let new = label(last + 1, 100).encode().unwrap();
        torn.write(1, next_copy(active), &new, |sector| sector == 0);
        assert!(torn.has_lost_its_front(&blank));
        // A damaged copy still counts as a copy.
        let mut damaged = disk.0[0].clone();
        damaged[COPIES[active] as usize + 600] ^= 1;
        assert!(!disk.has_lost_its_front(&damaged));
        // So do two damaged copies, as a flipped bit and a torn update leave them.
        let number = next_copy(active);
        damaged[COPIES[number] as usize + 600] ^= 1;
        assert!(!disk.has_lost_its_front(&damaged));
        // The first update of an overwritten front may be torn.
        damaged[COPIES[active] as usize..][..SECTOR].fill(0);
        assert_eq!(disk.has_lost_its_front(&damaged), last > 1, "{last}");
    }
}

#[test]
fn torn_update_of_large_label_shows_old_or_new() {
    let spec_bytes = 20_000;
    let (disk, active) = Disk::after(4, spec_bytes);
    let new = label(5, spec_bytes);
    let sectors = new.encode().unwrap().len().div_ceil(SECTOR);
    let nothing = |_| false;
    for cut in 0..=sectors {
        torn(&disk, active, &new, [&|n| n < cut, &nothing]);
        torn(&disk, active, &new, [&|n| n >= cut, &nothing]);
        torn(&disk, active, &new, [&|n| n == cut, &|n| n < cut]);
        torn(&disk, active, &new, [&|n| n != cut, &|n| n != cut]);
    }
}

#[test]
fn label_read_uses_newest_intact_copy_until_all_are_damaged() {
    let (mut disk, active) = Disk::after(5, 100);
    let at = |number: usize| COPIES[number] as usize;
    disk.0[0][at(active)..at(active) + 8].fill(0xff);
    assert_eq!(disk.read().unwrap().unwrap().1.sequence, 5);
    disk.0[1][at(active) + 600] ^= 1;
    assert_eq!(disk.read().unwrap().unwrap().1.sequence, 4, "the generation before");
    disk.0[0][at(1 - active) + 600] ^= 1;
    assert_eq!(disk.read().unwrap().unwrap().1.sequence, 4);
    disk.0[1][at(1 - active) + 60] ^= 1;
    assert!(matches!(disk.read(), Err(Wrong::Damaged(_))));
    let blank = Disk([vec![0; AREA_BYTES as usize], vec![0; AREA_BYTES as usize]]);
    assert_eq!(blank.read(), Ok(None));
}

#[test]
fn label_read_rejects_newer_format_version_beside_older_label() {
    let (mut disk, active) = Disk::after(2, 100);
    let mut copy = label(3, 100).encode().unwrap();
    copy[8] = 2;
    crate::codec::seal(&mut copy);
    disk.write(0, next_copy(active), &copy, |_| true);
    assert_eq!(disk.read(), Err(Wrong::Version(2)));
    // A damaged copy has no version at all.
    disk.0[0][COPIES[next_copy(active)] as usize + 100] ^= 1;
    assert_eq!(disk.read().unwrap().unwrap().1.sequence, 2);
}
