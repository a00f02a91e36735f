//! All copies of a disk's label, one by one: what is sound, and what a repair would write anew.

use block::{Env, Lower};

use crate::codec::Wrong;
use crate::place::{self, Area};
use crate::signature::{self, Sought};
use crate::store::read_area;
use crate::{Label, data_bytes};

/// One copy, as it was found.
#[derive(Debug)]
pub struct CopyFound {
    /// Whether it is at the front or at the back.
    pub area: Area,
    /// Which of the two there.
    pub number: usize,
    /// What it says.
    pub found: Found,
}

/// A label, or why there is none.
type Found = Result<Label, Wrong>;

/// What a disk holds where a label would be.
#[derive(Debug)]
pub struct Inspection {
    /// Bytes of the whole disk.
    pub size: u64,
    /// All copies; none if the disk is too small for a label.
    pub copies: Vec<CopyFound>,
    /// The label that counts, and in which copies it is; or why none does.
    pub label: Result<Option<(Label, usize)>, Wrong>,
    /// What there is if none counts.
    pub other: Sought,
}

/// Looks at every copy, changing nothing.
///
/// # Errors
/// What the disk says.
pub async fn inspect(env: &Env, lower: &Lower) -> block::Result<Inspection> {
    let size = lower.info().size;
    let Ok(data) = data_bytes(size) else {
        let (copies, label, other) = (Vec::new(), Ok(None), Sought::TooSmall(size));
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
        Ok(Some((number, label))) => (Ok(Some((label, number))), Sought::Unknown),
        Err(Wrong::Damaged(_)) if place::is_first_torn([&front[..], &back[..]]) => {
            (Ok(None), Sought::Blank)
        }
        Err(wrong) => (Err(wrong), Sought::Unknown),
        Ok(None) => {
            let last = read_area(env, lower, Area::Last(size)).await?;
            (Ok(None), signature::find(&front, &last))
        }
    };
    Ok(Inspection { size, copies, label, other })
}

impl Inspection {
    /// Whether the disk has lost what was at its end: it was cut short and made long again, or somebody has written
    /// there. What was before the end may be lost with it.
    pub fn has_lost_its_end(&self) -> bool {
        let is_gone = |found: &Found| *found == Err(Wrong::NoMagic);
        self.has_lost(
            |area| area != Area::Front,
            |copies| copies.iter().all(|found| is_gone(found)),
        )
    }

    /// Whether the label at the front is gone and one at the back is not: another program has written there, and may
    /// have written to the data behind it.
    ///
    /// Two copies there that are damaged and can still be recognized do not count: a bit that flips in one and a power
    /// cut during an update of the other leave that.
    pub fn has_lost_its_front(&self) -> bool {
        let is_overwritten = |copies: &[&Found]| {
            copies.iter().all(|found| found.is_err())
                && copies.iter().any(|found| **found == Err(Wrong::NoMagic))
        };
        self.has_lost(|area| area == Area::Front, is_overwritten)
    }

    /// The end of the disk that has lost its label, in a word, if one has: `front` or `end`.
    pub fn lost_end(&self) -> Option<&'static str> {
        match (self.has_lost_its_front(), self.has_lost_its_end()) {
            (true, _) => Some("front"),
            (false, true) => Some("end"),
            (false, false) => None,
        }
    }

    /// Whether an area that had a label has lost it: by the copies in the other area it was there, and by its own copies
    /// it is lost.
    fn has_lost(&self, is_it: impl Fn(Area) -> bool, is_lost: impl Fn(&[&Found]) -> bool) -> bool {
        let of = |lost: bool| {
            let copies = self.copies.iter().filter(|copy| is_it(copy.area) == lost);
            copies.map(|copy| &copy.found).collect::<Vec<_>>()
        };
        // An update is durable in both areas before the next one begins, so the older of two has been in the other
        // area, and the second one is preceded by a first. Not where a disk is growing: the first one behind its new
        // end may be in flight.
        let was_there = match of(false)[..] {
            [Ok(one), Ok(other)] => one.data_bytes == other.data_bytes,
            [Ok(only), Err(other)] | [Err(other), Ok(only)] => {
                *other != Wrong::NoMagic || only.sequence > 1
            }
            _ => false,
        };
        was_there && is_lost(&of(true))
    }

    /// What is wrong with copies of the label that counts, in words: each of them is in another place too.
    pub fn ills(&self) -> Vec<String> {
        let Ok(Some((label, number))) = &self.label else { return Vec::new() };
        let copies = self.copies.iter().filter(|copy| copy.number == *number);
        let ill = copies.filter_map(|copy| {
            let why = match &copy.found {
                Ok(found) if found.sequence == label.sequence => return None,
                Ok(found) => format!("is of generation {}, not {}", found.sequence, label.sequence),
                Err(Wrong::NoMagic) => "is gone".to_owned(),
                Err(wrong) => format!("is {wrong}"),
            };
            let place = if copy.area == Area::Front { "front" } else { "back" };
            Some(format!("the copy of its label at the {place} {why}; the other one is whole"))
        });
        ill.collect()
    }
}
