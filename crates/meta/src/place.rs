//! Positions of the copies of a label on a disk, and the choice of the newest label.

use block::seeded::{self, Bug};
use block::{ByteRange, Error, bail};

use crate::Label;
use crate::codec::{COPY_BYTES_MAX, Wrong};

/// Size in bytes of the label area that Cairn reserves at each end of a labelled disk.
pub const AREA_BYTES: u64 = 1 << 20;

/// Offset of the first data byte on a labelled disk.
pub const DATA_START: u64 = AREA_BYTES;

/// Size in bytes of the smallest disk that can have a label.
pub const DISK_BYTES_MIN: u64 = 2 * AREA_BYTES + END_ALIGN;

/// A labelled disk ends for Cairn at a multiple of this many bytes, so that its end does not depend on the block size.
const END_ALIGN: u64 = 64 << 10;

/// Offsets of the two copies of a label in a label area.
const COPIES: [u64; 2] = [64 << 10, 320 << 10];

const _: () = assert!(COPIES[0] + COPY_BYTES_MAX as u64 == COPIES[1]);
const _: () = assert!(COPIES[1] + COPY_BYTES_MAX as u64 <= AREA_BYTES);

/// A label area at the front or the back of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Area {
    /// The area at the front of a disk, from byte 0 on.
    Front,
    /// The area at the back of a disk, after this many data bytes.
    Back(u64),
    /// The area in the last bytes of a disk that has this many bytes.
    Last(u64),
}

impl Area {
    /// Returns the byte range of this label area on the disk.
    pub fn range(self) -> ByteRange {
        let start = match self {
            Self::Front => 0,
            Self::Back(data_bytes) => DATA_START + data_bytes,
            Self::Last(disk_bytes) => disk_bytes - AREA_BYTES,
        };
        ByteRange::new(start, AREA_BYTES).expect("a label area ends within the disk")
    }

    /// Returns the offset on the disk of copy `number` of the label in this area.
    pub(crate) fn copy(self, number: usize) -> u64 {
        self.range().start() + COPIES[number]
    }
}

/// Returns the number of data bytes that a disk of `disk_bytes` has once it is labelled.
///
/// # Errors
/// `NoSpace` if the disk is too small for a label.
pub fn data_bytes(disk_bytes: u64) -> Result<u64, Error> {
    if disk_bytes < DISK_BYTES_MIN {
        bail!(NoSpace, "the disk has {disk_bytes} bytes; a labelled disk needs {DISK_BYTES_MIN}");
    }
    Ok(disk_bytes - disk_bytes % END_ALIGN - 2 * AREA_BYTES)
}

/// Decodes both copies of a label in the bytes of one label area.
pub(crate) fn copies(area: &[u8]) -> [Result<Label, Wrong>; 2] {
    COPIES.map(|start| {
        let bytes = &area[start as usize..start as usize + COPY_BYTES_MAX];
        Label::decode(bytes)
    })
}

/// Returns the back label area of a disk of `size` bytes. The label in `front` determines the position of the area, so
/// that a disk that has been enlarged still has the area at its old end. Without a usable label in `front`, `data` is
/// the number of data bytes.
pub(crate) fn back_of(front: &[u8], data: u64, size: u64) -> Area {
    let newest = copies(front).into_iter().flatten().max_by_key(|label| label.sequence);
    let said = newest.map(|label| label.data_bytes);
    let fits = |data: &u64| Area::Back(*data).range().end() <= size;
    Area::Back(said.filter(fits).unwrap_or(data))
}

/// Returns the newest label among the copies on a disk, with the number of its copy; `None` if no copy holds a label.
///
/// # Errors
/// The damage of a copy, if no copy is usable; or the version or features of any copy that needs a newer Cairn.
pub(crate) fn choose(
    found: impl IntoIterator<Item = (usize, Result<Label, Wrong>)>,
) -> Result<Option<(usize, Label)>, Wrong> {
    let mut best: Option<(usize, Label)> = None;
    let mut damage = None;
    for (number, copy) in found {
        match copy {
            Ok(label) => {
                if best.as_ref().is_none_or(|(_, best)| best.sequence < label.sequence) {
                    best = Some((number, label));
                }
            }
            Err(Wrong::NoMagic) => {}
            Err(Wrong::Damaged(why)) => damage = Some(Wrong::Damaged(why)),
            Err(newer) => return Err(newer),
        }
    }
    match (best, damage) {
        (None, Some(damage)) => Err(damage),
        (best, _) => Ok(best),
    }
}

/// Returns the newest label in the label areas of a disk, with the number of its copy; `None` if no copy holds a label.
///
/// # Errors
/// The damage of a copy, if no copy is usable; or the version or features of any copy that needs a newer Cairn.
///
/// # Panics
/// If an area has another length than [`AREA_BYTES`].
pub fn newest<'a>(
    areas: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Option<(usize, Label)>, Wrong> {
    choose(areas.into_iter().flat_map(|area| copies(area).into_iter().enumerate()))
}

/// Whether the damage of all copies shows only that a power cut tore the first write of a label: copy 1 is zeros in
/// both areas. The second update goes to copy 1, and precedes any request of a client.
///
/// # Panics
/// If an area has another length than [`AREA_BYTES`].
pub(crate) fn is_first_torn(areas: [&[u8]; 2]) -> bool {
    let second = COPIES[1] as usize..COPIES[1] as usize + COPY_BYTES_MAX;
    areas.iter().all(|area| block::is_zero(&area[second.clone()]))
}

/// Returns the number of the copies that the next update of a label writes, if the last update wrote the copies `last`.
pub(crate) fn next_copy(last: usize) -> usize {
    if seeded::on(Bug::LabelOverActive) { last } else { 1 - last }
}

#[cfg(test)]
mod tests;
