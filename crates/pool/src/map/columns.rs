//! Columns of numbers in a node: each number is a base and some bits.

use super::node::{DESCRIPTOR_BYTES, HEADER_BYTES, NODE_BYTES};

/// Bytes behind a node in memory, so that any bit of the node can be read with the eight bytes from its byte on and one
/// more.
pub(super) const SLACK_BYTES: usize = 9;

/// The bytes of a node in memory. The bytes behind the node are zero.
pub(super) type Buffer = [u8; NODE_BYTES + SLACK_BYTES];

/// One column of a node. A column that is absent has base and width 0.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Column {
    base: u64,
    /// The lowest bits, as many as the width.
    mask: u64,
    /// First bit in the node.
    start: u32,
    width: u32,
}

/// Widest column whose numbers never cross eight bytes from their first byte on.
const NARROW_BITS: u32 = 57;

/// Widest column in which a search guesses.
const GUESSED_BITS: u32 = 48;

/// Steps of a search that guess the position from the numbers, before it halves the range.
const GUESSES_MAX: usize = 4;

/// Returns a number with the lowest `width` bits set.
fn mask(width: u32) -> u64 {
    u64::MAX.checked_shr(64 - width).unwrap_or(0)
}

fn load(bytes: &Buffer, at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Column {
    pub fn new(base: u64, start_bytes: usize, width: u32) -> Self {
        Self { base, mask: mask(width), start: start_bytes as u32 * 8, width }
    }

    /// Returns the bits of item `n`, without the base.
    #[inline]
    fn bits(&self, bytes: &Buffer, n: usize) -> u64 {
        let bit = self.start as usize + n * self.width as usize;
        // The mask changes nothing, and spares a check of the range.
        let (at, shift) = ((bit / 8) & (NODE_BYTES - 1), bit as u32 % 8);
        let mut bits = load(bytes, at) >> shift;
        if self.width > NARROW_BITS && shift + self.width > 64 {
            bits |= u64::from(bytes[at + 8]) << (64 - shift);
        }
        bits & self.mask
    }

    /// Returns the number of item `n`.
    #[inline]
    pub fn get(&self, bytes: &Buffer, n: usize) -> u64 {
        if self.width == 0 {
            return self.base;
        }
        self.base.wrapping_add(self.bits(bytes, n))
    }

    /// Whether the numbers of the first `items` items have at most 64 bits.
    pub fn is_sound(&self, bytes: &Buffer, items: usize) -> bool {
        self.base.checked_add(self.mask).is_some()
            || (0..items).all(|n| self.base.checked_add(self.bits(bytes, n)).is_some())
    }

    /// Returns the number of items, of the first `items`, that are not above `wanted`. The numbers must be sorted.
    #[inline]
    pub fn count_up_to(&self, bytes: &Buffer, items: usize, wanted: u64) -> usize {
        let Some(wanted) = wanted.checked_sub(self.base) else { return 0 };
        if self.width == 0 {
            return items;
        }
        // The answer is in low..=high. The number before low is `below`, the one at high is `above`.
        let (mut low, mut high) = (0, items);
        let (mut below, mut above) = (0, self.bits(bytes, items - 1).saturating_add(1));
        if wanted >= above {
            return items;
        }
        // Keys are often spread evenly. Products of wider ones would not fit into 64 bits.
        let guesses = if self.width <= GUESSED_BITS { GUESSES_MAX } else { 0 };
        for _ in 0..guesses {
            if low == high {
                return low;
            }
            let share = (wanted - below) * (high - low) as u64;
            let guess = low + (share / (above - below)) as usize;
            let guess = guess.min(high - 1);
            let found = self.bits(bytes, guess);
            if found <= wanted {
                (low, below) = (guess + 1, found);
            } else {
                (high, above) = (guess, found);
            }
        }
        while low < high {
            let middle = (low + high) / 2;
            match self.bits(bytes, middle) <= wanted {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

/// Smallest and largest number of each column over some items, and so the bytes that they take.
#[derive(Clone, Copy)]
pub(super) struct Shape<const N: usize> {
    pub items: usize,
    pub tail_bytes: usize,
    min: [u64; N],
    max: [u64; N],
    /// Whether the column of tail indexes equals the item's position, and is left out.
    is_indexed_by_position: bool,
    /// Sum of the widths of all columns, and number of present columns.
    item_bits: usize,
    present: usize,
}

/// The numbers of one item for each column.
pub(super) struct Values<const N: usize> {
    pub numbers: [u64; N],
    /// Columns that have no meaning for the item, as bits.
    pub unused: u16,
    /// The column of tail indexes, if there is one, and whether the item has a tail.
    pub index: Option<(usize, bool)>,
}

impl<const N: usize> Shape<N> {
    pub const EMPTY: Self = Self {
        items: 0,
        tail_bytes: 0,
        min: [u64::MAX; N],
        max: [0; N],
        is_indexed_by_position: true,
        item_bits: 0,
        present: 0,
    };

    /// Adds an item, whether or not it fits.
    #[inline]
    pub fn add(&mut self, values: &Values<N>, tail_bytes: usize) {
        let index = values.index.map(|(column, _)| column);
        let mut is_wider = false;
        for column in 0..N {
            let number = values.numbers[column];
            let is_outside = number < self.min[column] || number > self.max[column];
            if is_outside && values.unused >> column & 1 == 0 {
                let before = (self.is_present(column, index), self.width(column));
                self.min[column] = self.min[column].min(number);
                self.max[column] = self.max[column].max(number);
                is_wider |= before != (self.is_present(column, index), self.width(column));
            }
        }
        if let Some((column, true)) = values.index
            && values.numbers[column] != self.items as u64
        {
            is_wider |= self.is_indexed_by_position;
            self.is_indexed_by_position = false;
        }
        self.items += 1;
        self.tail_bytes += tail_bytes;
        if is_wider {
            self.measure(index);
        }
    }

    fn measure(&mut self, index: Option<usize>) {
        (self.item_bits, self.present) = (0, 0);
        for column in 0..N {
            if self.is_present(column, index) {
                self.item_bits += self.width(column) as usize;
                self.present += 1;
            }
        }
    }

    /// Upper bound of the bytes of a node with these items.
    #[inline]
    pub fn bytes(&self) -> usize {
        let columns = self.items * self.item_bits / 8 + self.present;
        HEADER_BYTES + DESCRIPTOR_BYTES * self.present + columns + self.tail_bytes
    }

    pub fn is_present(&self, column: usize, index: Option<usize>) -> bool {
        if index == Some(column) {
            return !self.is_indexed_by_position;
        }
        self.max[column] > 0
    }

    pub fn base(&self, column: usize) -> u64 {
        self.min[column].min(self.max[column])
    }

    pub fn width(&self, column: usize) -> u32 {
        64 - self.max[column].saturating_sub(self.min[column]).leading_zeros()
    }
}

/// Writes one column's numbers, one after the other, into a node that is zero there.
#[derive(Default)]
pub(super) struct ColumnWriter {
    base: u64,
    width: u32,
    bit: usize,
}

impl ColumnWriter {
    pub fn new(base: u64, start_bytes: usize, width: u32) -> Self {
        Self { base, width, bit: start_bytes * 8 }
    }

    /// Writes the next number; `None` for an item without a number in this column.
    #[inline]
    pub fn put(&mut self, bytes: &mut Buffer, number: Option<u64>) {
        let bits = number.map_or(0, |number| number - self.base);
        let (at, shift) = ((self.bit / 8) & (NODE_BYTES - 1), self.bit as u32 % 8);
        let word = load(bytes, at) | bits << shift;
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        if shift + self.width > 64 {
            bytes[at + 8] |= (bits >> (64 - shift)) as u8;
        }
        self.bit += self.width as usize;
    }
}
