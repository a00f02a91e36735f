//! Inspection of every copy of a disk's label: which copies are intact, and which ones a repair would rewrite.

use block::{Env, Lower};

use crate::codec::Wrong;
use crate::place::{self, Area};
use crate::signature::{self, ForeignContent};
use crate::store::read_area;
use crate::{Label, data_bytes};

/// One copy of a label on a disk, as an inspection found it.
#[derive(Debug)]
pub struct CopyFound {
    /// Label area of the copy, at the front or at the back of the disk.
    pub area: Area,
    /// Number of the copy in its label area: 0 or 1.
    pub number: usize,
    /// The label in this copy, or the reason why the copy holds no valid label.
    pub found: Found,
}

/// The label in a copy, or the reason why the copy holds none.
type Found = Result<Label, Wrong>;

/// The content of the label areas of a disk.
#[derive(Debug)]
pub struct Inspection {
    /// Size in bytes of the disk, including the label areas.
    pub size: u64,
    /// All copies of the label, two for each label area; empty if the disk is too small for a label.
    pub copies: Vec<CopyFound>,
    /// The newest label and the number of the copies that hold it; `None` without a label; else the reason why no copy
    /// is usable.
    pub label: Result<Option<(Label, usize)>, Wrong>,
    /// Content of the label areas that is no label, if the disk has no label.
    pub other: ForeignContent,
}

/// Reads every copy of the label of the disk `lower`. Writes nothing.
///
/// # Errors
/// Errors of the disk.
pub async fn inspect(env: &Env, lower: &Lower) -> block::Result<Inspection> {
    let size = lower.info().size;
    let Ok(data) = data_bytes(size) else {
        let (copies, label, other) = (Vec::new(), Ok(None), ForeignContent::TooSmall(size));
        return Ok(Inspection { size, copies, label, other });
    };
    let front = read_area(env, lower, Area::Front).await?;
    let at = place::back_of(&front, data, size);
    let back = read_area(env, lower, at).await?;
    let found = [(Area::Front, &front), (at, &back)].into_iter().flat_map(|(area, bytes)| {
        let copies = place::copies(bytes).into_iter().enumerate();
        copies.map(move |(number, found)| CopyFound { area, number, found })
    });
    let copies: Vec<CopyFound> = found.collect();
    let chosen = place::choose(copies.iter().map(|copy| (copy.number, copy.found.clone())));
    let (label, other) = match chosen {
        Ok(Some((number, label))) => (Ok(Some((label, number))), ForeignContent::Unknown),
        Err(Wrong::Damaged(_)) if place::is_first_torn([&front[..], &back[..]]) => {
            (Ok(None), ForeignContent::Blank)
        }
        Err(wrong) => (Err(wrong), ForeignContent::Unknown),
        Ok(None) => {
            let last = read_area(env, lower, Area::Last(size)).await?;
            (Ok(None), signature::find(&front, &last))
        }
    };
    Ok(Inspection { size, copies, label, other })
}

impl Inspection {
    /// Whether the label at the end of the disk is lost: the disk was truncated and extended again, or another program
    /// has written to its end. Data before the end may be lost too.
    pub fn has_lost_its_end(&self) -> bool {
        let is_gone = |found: &Found| *found == Err(Wrong::NoMagic);
        self.has_lost(
            |area| area != Area::Front,
            |copies| copies.iter().all(|found| is_gone(found)),
        )
    }

    /// Whether the label at the front of the disk is lost and the label at the back is not: another program has written
    /// to the front, and maybe to the data after the label area.
    ///
    /// Two damaged copies at the front that begin with the magic number are not a lost label: a flipped bit in one copy
    /// and a power cut during an update of the other can leave this state.
    pub fn has_lost_its_front(&self) -> bool {
        let is_overwritten = |copies: &[&Found]| {
            copies.iter().all(|found| found.is_err())
                && copies.iter().any(|found| **found == Err(Wrong::NoMagic))
        };
        self.has_lost(|area| area == Area::Front, is_overwritten)
    }

    /// Returns the end of the disk at which the label is lost, `front` or `end`; `None` if both ends have it.
    pub fn lost_end(&self) -> Option<&'static str> {
        match (self.has_lost_its_front(), self.has_lost_its_end()) {
            (true, _) => Some("front"),
            (false, true) => Some("end"),
            (false, false) => None,
        }
    }

    /// Whether a label area has lost its label. `is_it` selects the area. The copies in the other area must show that a
    /// label was there, and `is_lost` decides from the copies in the selected area.
    fn has_lost(&self, is_it: impl Fn(Area) -> bool, is_lost: impl Fn(&[&Found]) -> bool) -> bool {
        let of = |lost: bool| {
            let copies = self.copies.iter().filter(|copy| is_it(copy.area) == lost);
            copies.map(|copy| &copy.found).collect::<Vec<_>>()
        };
        // An update is durable in both areas before the next one begins. So if the other area has two labels, the
        // selected area has had the older one; and if it has a single label with a sequence above 1, its predecessor
        // was in both areas. A disk that is being enlarged is an exception: the first update at its new end may have
        // been interrupted.
        let was_there = match of(false)[..] {
            [Ok(one), Ok(other)] => one.data_bytes == other.data_bytes,
            [Ok(only), Err(other)] | [Err(other), Ok(only)] => {
                *other != Wrong::NoMagic || only.sequence > 1
            }
            _ => false,
        };
        was_there && is_lost(&of(true))
    }

    /// Describes the faults of the copies of the newest label. For each faulty copy, the other label area has an intact
    /// copy of the same label.
    pub fn faults_of_copies(&self) -> Vec<String> {
        let Ok(Some((label, number))) = &self.label else { return Vec::new() };
        let copies = self.copies.iter().filter(|copy| copy.number == *number);
        let ill = copies.filter_map(|copy| {
            let why = match &copy.found {
                Ok(found) if found.sequence == label.sequence => return None,
                Ok(found) => format!("has sequence {}, not {}", found.sequence, label.sequence),
                Err(Wrong::NoMagic) => "is gone".to_owned(),
                Err(Wrong::Damaged(why)) => format!("is damaged: {why}"),
                Err(wrong) => format!("is {wrong}"),
            };
            let (place, other) =
                if copy.area == Area::Front { ("front", "back") } else { ("back", "front") };
            Some(format!(
                "the label at the disk's {place} {why}; the copy at the {other} is intact"
            ))
        });
        ill.collect()
    }
}
