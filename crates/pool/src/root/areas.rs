//! The two areas: the choice among the four slots of a root structure, and the order in which they are written.

use std::fmt;

use block::{Error, ErrorKind};

use super::prelude::{SLOT_BYTES, Wrong};
use crate::geometry::Geometry;

/// One of the two areas with the slots of all root structures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Area {
    /// The area at the beginning of the pool, which is written first.
    Near,
    /// The area at the former end of the pool.
    Far,
}

impl Area {
    /// Both areas, in the order in which they are written.
    pub const ALL: [Self; 2] = [Self::Near, Self::Far];

    fn index(self) -> usize {
        match self {
            Self::Near => 0,
            Self::Far => 1,
        }
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near",
            Self::Far => "far",
        })
    }
}

/// A structure in two slots of both areas: the header of a pool, or a superblock.
pub trait RootStructure: PartialEq {
    /// Returns the number of the structure, 1 or more. The structure is in the slot with this number modulo 2.
    fn sequence(&self) -> u64;

    /// Returns whether two writers, unaware of each other, must have written this structure and `other`.
    fn conflicts_with(&self, _other: &Self) -> bool {
        false
    }
}

/// The results of reading the four slots of a structure, by area and slot.
pub type Slots<T> = [[Result<T, Wrong>; 2]; 2];

/// The structure that counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice<T> {
    /// The structure that counts.
    pub root: T,
    /// The area that does not have it. It must be written there and flushed before the next structure is written.
    pub missing: Option<Area>,
}

/// The reason why none of the four slots counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// No slot has the magic number of the structure.
    Absent,
    /// A slot is of a later version, or has unknown features.
    Newer(Wrong),
    /// All slots with the magic number are of another pool.
    Foreign(Wrong),
    /// Both areas have a structure with this sequence, and the two differ: two writers had the pool open.
    TwoWriters(u64),
    /// No slot is valid; the text describes each of them.
    Damaged(String),
}

/// One step of writing a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Writes the structure to this slot of this area.
    Write(Area, usize),
    /// Flushes the device.
    Flush,
}

/// Returns the first byte on the device of a slot of the structure with number `pair`: 0 for the header, else the
/// number of the allocator.
pub fn place(geometry: &Geometry, area: Area, pair: u32, slot: usize) -> u64 {
    let start = match area {
        Area::Near => 0,
        Area::Far => geometry.far,
    };
    start + (2 * u64::from(pair) + slot as u64) * SLOT_BYTES as u64
}

fn slot_of(sequence: u64) -> usize {
    (sequence % 2) as usize
}

/// Returns the steps that write the structure with this sequence. It counts after the last one.
///
/// [`Choice::repair`] comes before, or the far area may lose the structure that the new one replaces.
pub fn steps(sequence: u64) -> [Step; 4] {
    let slot = slot_of(sequence);
    [Step::Write(Area::Near, slot), Step::Flush, Step::Write(Area::Far, slot), Step::Flush]
}

impl<T: RootStructure> Choice<T> {
    /// Returns the steps that bring the structure to the area that lacks it. Empty if both have it.
    pub fn repair(&self) -> Vec<Step> {
        let write = |area| vec![Step::Write(area, slot_of(self.root.sequence())), Step::Flush];
        self.missing.map_or(Vec::new(), write)
    }
}

/// Chooses the structure that counts among the four slots.
///
/// # Errors
/// The reason why none counts.
pub fn choose<T: RootStructure>(mut slots: Slots<T>) -> Result<Choice<T>, Unusable> {
    for (slot, found) in slots.iter_mut().flat_map(|area| area.iter_mut().enumerate()) {
        if let Ok(root) = found
            && slot_of(root.sequence()) != slot
        {
            let words = format!("sequence {} in slot {slot}", root.sequence());
            *found = Err(Wrong::Damaged(words));
        }
    }
    let newer = |wrong: &&Wrong| matches!(wrong, Wrong::Version(_) | Wrong::Features(_));
    if let Some(wrong) = slots.iter().flatten().filter_map(|found| found.as_ref().err()).find(newer)
    {
        return Err(Unusable::Newer(wrong.clone()));
    }
    let valid = slots.iter().flatten().filter_map(|found| found.as_ref().ok());
    let Some(sequence) = valid.map(T::sequence).max() else {
        return Err(unusable(&slots));
    };
    let valid = || slots.iter().flatten().filter_map(|found| found.as_ref().ok());
    if valid().any(|one| valid().any(|other| one.conflicts_with(other))) {
        return Err(Unusable::TwoWriters(sequence));
    }
    let slot = slot_of(sequence);
    let [near, far] = slots.map(|area| {
        let found = area.into_iter().nth(slot).and_then(Result::ok);
        found.filter(|root| root.sequence() == sequence)
    });
    match (near, far) {
        (Some(near), Some(far)) if near != far => Err(Unusable::TwoWriters(sequence)),
        (Some(root), Some(_)) => Ok(Choice { root, missing: None }),
        (Some(root), None) => Ok(Choice { root, missing: Some(Area::Far) }),
        (None, Some(root)) => Ok(Choice { root, missing: Some(Area::Near) }),
        (None, None) => unreachable!("one of the slots has the highest sequence"),
    }
}

fn unusable<T>(slots: &Slots<T>) -> Unusable {
    let mut wrongs = slots.iter().flatten().filter_map(|found| found.as_ref().err());
    if wrongs.clone().all(|wrong| *wrong == Wrong::NoMagic) {
        return Unusable::Absent;
    }
    if let Some(foreign) = wrongs.find(|wrong| matches!(wrong, Wrong::Foreign(_))) {
        return Unusable::Foreign(foreign.clone());
    }
    let words = Area::ALL.map(|area| {
        let [even, odd] = slots[area.index()].each_ref().map(|found| match found {
            Ok(_) => "valid".to_owned(),
            Err(wrong) => wrong.to_string(),
        });
        format!("{area} area, slot 0: {even}, slot 1: {odd}")
    });
    Unusable::Damaged(words.join("; "))
}

impl From<Unusable> for Error {
    fn from(unusable: Unusable) -> Self {
        let error = |kind, words: String, next: &str| Error::new(kind, words).next(next);
        match unusable {
            Unusable::Absent => error(
                ErrorKind::NotFound,
                "there is no pool on the device, although its label says so".to_owned(),
                "check that the devices below are complete and in the right order",
            ),
            Unusable::Newer(wrong) => error(
                ErrorKind::Unsupported,
                wrong.to_string(),
                "open the pool with the version of Cairn that wrote it, or a later one",
            ),
            Unusable::Foreign(wrong) => error(
                ErrorKind::Invalid,
                format!("the device has {wrong}"),
                "check that the devices below are those of this pool",
            ),
            Unusable::TwoWriters(sequence) => error(
                ErrorKind::Corrupt,
                format!("two writers wrote superblock {sequence} of the pool"),
                "find out which machines had the pool open, and restore it from a copy",
            ),
            Unusable::Damaged(words) => error(
                ErrorKind::Corrupt,
                format!("all superblocks of the pool are damaged: {words}"),
                "restore the devices below from a copy",
            ),
        }
    }
}
