//! The objects that a kind declares, and the room that they need.

use crate::journal::Journal;
use crate::vault::geometry::{Geometry, LOG_BYTES_MAX, LOG_BYTES_MIN};
use crate::vault::page::PAGE_BYTES;
use crate::vault::{ObjectKind, Spec, standing_bytes};

/// Most objects of one device: one page of a vault's directory has their entries.
pub const OBJECTS_MAX: u32 = 8;

/// Bytes of the log of a vault for each byte in pages of its objects. A checkpoint writes each page at most once, and
/// comes when 5/8 of the log are in use: with records of one page, it adds at most a tenth to their bytes.
const LOG_PER_PAGES: u64 = 16;

/// Largest share of the log of a vault in the lower with the data: one byte in this many.
const LOG_PART: u64 = 32;

/// Memory in bytes that caches pages of the objects, if a kind sets no other number.
const CACHE_BYTES: usize = 4 << 20;

/// The persistent objects of a device, as its kind declares them for a lower of a given size. With a larger lower, no
/// object is shorter, and none has another kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Objects {
    pub(super) list: Vec<Spec>,
    pub(super) fixed: Vec<(String, String)>,
    pub(super) is_behind: bool,
    /// Bytes of the ring of a journal.
    pub(super) ring_bytes: Option<u64>,
    pub(super) cache_bytes: usize,
    /// Bytes of the buffer pool that the kind holds for its objects.
    held_bytes: usize,
    align: u64,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            fixed: Vec::new(),
            is_behind: false,
            ring_bytes: None,
            cache_bytes: CACHE_BYTES,
            held_bytes: 0,
            align: PAGE_BYTES as u64,
        }
    }
}

impl Objects {
    /// Returns an empty declaration.
    pub fn new() -> Self {
        Self::default()
    }

    fn object(mut self, kind: ObjectKind, record_bytes: u32, length: u64) -> Self {
        let role = self.list.len() as u32;
        let owner = String::new();
        self.list.push(Spec { owner, role, kind, advisory: false, record_bytes, length });
        assert!(self.list.len() <= OBJECTS_MAX as usize, "a device has {OBJECTS_MAX} objects");
        self
    }

    /// Adds an array of `length` records of type `T`. Its role is the number of objects that were added before, as
    /// for each object.
    ///
    /// # Panics
    /// If there are [`OBJECTS_MAX`] objects already; so for the other kinds of objects.
    pub fn array<T>(self, length: u64) -> Self {
        self.object(ObjectKind::Array, size_of::<T>() as u32, length)
    }

    /// Adds a bitmap of `length` bits.
    pub fn bitmap(self, length: u64) -> Self {
        self.object(ObjectKind::Bitmap, 0, length)
    }

    /// Records the value of an option at the making of the device: later starts refuse another value. A start without a value
    /// accepts that of the device.
    pub fn fixed(mut self, option: &str, value: impl ToString) -> Self {
        self.fixed.push((option.to_owned(), value.to_string()));
        self.fixed.sort_unstable();
        self
    }

    /// Adds a journal with a ring of `bytes` bytes. It does not grow.
    pub fn journal(self, bytes: u64) -> Self {
        Self { ring_bytes: Some(bytes), ..self }
    }

    /// Returns the bytes of the journal; 0 without one.
    pub(super) fn journal_bytes(&self) -> u64 {
        self.ring_bytes.map_or(0, Journal::bytes)
    }

    /// Places the objects behind the data, unless they are on a second lower. Then the data have the same offsets as on
    /// the lower.
    pub fn behind(self) -> Self {
        Self { is_behind: true, ..self }
    }

    /// Whether the objects are behind the data, unless they are on a second lower.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Makes the room a multiple of `bytes`, a power of two: the data begin at a multiple of it.
    pub fn aligned(self, bytes: u64) -> Self {
        Self { align: bytes.max(PAGE_BYTES as u64), ..self }
    }

    /// Sets the memory in bytes that caches pages of the objects.
    pub fn cached(self, bytes: u64) -> Self {
        Self { cache_bytes: bytes as usize, ..self }
    }

    /// Sets the bytes of the buffer pool that the kind itself holds for its objects, such as those of an open journal.
    pub fn held(self, bytes: usize) -> Self {
        Self { held_bytes: bytes, ..self }
    }

    fn pages(&self) -> u64 {
        self.list.iter().map(|object| object.kind.pages(object.record_bytes, object.length)).sum()
    }

    /// Returns the bytes of the log of a new vault with these objects, for a lower of `lower_bytes` bytes.
    pub fn log_bytes(&self, lower_bytes: u64) -> u64 {
        let share = lower_bytes / LOG_PART;
        let most = (share - share % PAGE_BYTES as u64).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
        (LOG_PER_PAGES * self.pages() * PAGE_BYTES as u64).clamp(LOG_BYTES_MIN, most)
    }

    /// Returns the bytes of the room of these objects, for a lower of `lower_bytes` bytes.
    pub fn room_bytes(&self, lower_bytes: u64) -> u64 {
        // One page is the directory.
        let vault = Geometry::bytes_for(1 + self.pages(), self.log_bytes(lower_bytes));
        (self.journal_bytes() + vault).next_multiple_of(self.align)
    }

    /// Returns the bytes of the buffer pool that the vault of these objects reserves, and those that the kind holds.
    pub fn standing_bytes(&self, lower_bytes: u64) -> usize {
        standing_bytes(self.log_bytes(lower_bytes)) + self.held_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that grows gets the difference of two rooms, so a larger lower must not need a smaller one.
    #[test]
    fn room_of_objects_never_shrinks_with_larger_lower() {
        let room = |bytes: u64| {
            Objects::new().array::<u64>(bytes >> 20).bitmap(bytes >> 16).room_bytes(bytes)
        };
        let mut last = 0;
        for bytes in (20..44).flat_map(|shift| [1 << shift, (1 << shift) + (77 << 12)]) {
            assert!(room(bytes) >= last, "{bytes}");
            last = room(bytes);
        }
        assert_eq!(Objects::new().array::<u64>(1).aligned(1 << 20).room_bytes(1 << 30), 1 << 20);
    }

    #[test]
    fn log_of_objects_is_sixteen_times_their_pages_and_at_most_part_of_lower() {
        let objects = Objects::new().array::<u64>(508 * 10);
        assert_eq!(objects.log_bytes(1 << 40), 160 << 12);
        assert_eq!(objects.log_bytes(4 << 20), 128 << 10);
        assert_eq!(Objects::new().bitmap(1).log_bytes(1 << 40), LOG_BYTES_MIN);
        assert_eq!(Objects::new().array::<u64>(1 << 40).log_bytes(1 << 50), LOG_BYTES_MAX);
    }
}
