//! Columns of numbers in a node: each number is a base and some bits. The bits of one item are adjacent, so a lookup
//! finds them in one or two cache lines.

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
    /// Bit in the node at which the number of the first item begins.
    start: u16,
    /// Bits from the number of one item to that of the next.
    stride: u16,
    width: u8,
}

/// Widest column whose numbers never cross eight bytes from their first byte on.
const NARROW_BITS: u32 = 57;

/// Widest column in which a search guesses.
const GUESSED_BITS: u32 = 48;

/// Steps of a search that guess the position from the numbers, before it halves the range.
const GUESSES_MAX: usize = 4;

fn load(bytes: &Buffer, at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Column {
    pub fn new(base: u64, start: usize, stride: usize, width: u32) -> Self {
        Self { base, start: start as u16, stride: stride as u16, width: width as u8 }
    }

    /// Returns the bits of item `n`, without the base. The width must not be 0.
    #[inline]
    fn bits(&self, bytes: &Buffer, n: usize) -> u64 {
        let bit = usize::from(self.start) + n * usize::from(self.stride);
        let width = u32::from(self.width);
        // The mask of the position changes nothing, and spares a check of the range.
        let (at, shift) = ((bit / 8) & (NODE_BYTES - 1), bit as u32 % 8);
        let mut bits = load(bytes, at) >> shift;
        if width > NARROW_BITS && shift + width > 64 {
            bits |= u64::from(bytes[at + 8]) << (64 - shift);
        }
        bits & u64::MAX >> (64 - width)
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
        self.width == 0
            || self.base.checked_add(u64::MAX >> (64 - u32::from(self.width))).is_some()
            || (0..items).all(|n| self.base.checked_add(self.bits(bytes, n)).is_some())
    }

    /// Returns the number of items, of the first `items`, that are not above `wanted`. The numbers must be sorted, and not
    /// above `highest`: with it, the last one need not be loaded.
    #[inline]
    pub fn count_up_to(
        &self,
        bytes: &Buffer,
        items: usize,
        wanted: u64,
        highest: Option<u64>,
    ) -> usize {
        let Some(wanted) = wanted.checked_sub(self.base) else { return 0 };
        if self.width == 0 {
            return items;
        }
        // The answer is in low..=high. The number before low is `below`, the one at high is `above`.
        let (mut low, mut high) = (0, items);
        let highest = highest.and_then(|highest| highest.checked_sub(self.base));
        // A bound far away, as keys of tables have it, is no help for a guess.
        let highest = highest.filter(|highest| *highest < 1 << GUESSED_BITS);
        let highest = highest.unwrap_or_else(|| self.bits(bytes, items - 1));
        let (mut below, mut above) = (0, highest.saturating_add(1));
        if wanted >= above {
            return items;
        }
        // Keys are often spread evenly. Products of wider ones would not fit into 64 bits.
        let guesses = if u32::from(self.width) <= GUESSED_BITS { GUESSES_MAX } else { 0 };
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

/// Smallest number and range of each column over some items, and so the bytes that they take.
#[derive(Clone, Copy)]
pub(super) struct Shape<const N: usize> {
    pub items: usize,
    pub tail_bytes: usize,
    min: [u64; N],
    /// Largest number less the smallest one.
    range: [u64; N],
    /// Bits of the ranges.
    widths: [u8; N],
    /// Columns with a number so far, and those with one above 0, as bits.
    used: u16,
    above_zero: u16,
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
        min: [0; N],
        range: [0; N],
        widths: [0; N],
        used: 0,
        above_zero: 0,
        is_indexed_by_position: true,
        item_bits: 0,
        present: 0,
    };

    /// Adds an item, whether or not it fits.
    #[inline]
    pub fn add(&mut self, values: &Values<N>, tail_bytes: usize) {
        // Most numbers are inside of all ranges, which is found without a branch for each column.
        let mut outside = !self.used;
        for column in 0..N {
            let is_outside =
                values.numbers[column].wrapping_sub(self.min[column]) > self.range[column];
            outside |= u16::from(is_outside) << column;
        }
        outside &= !values.unused & ((1 << N) - 1);
        let mut is_wider = false;
        while outside != 0 {
            let column = outside.trailing_zeros() as usize;
            outside &= outside - 1;
            is_wider |= self.widen(column, values.numbers[column]);
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
            self.measure(values.index.map(|(column, _)| column));
        }
    }

    /// Widens the range of a column to a number outside of it. Returns whether the column takes more bits.
    #[inline]
    fn widen(&mut self, column: usize, number: u64) -> bool {
        let bit = 1 << column;
        let (min, range) = match (self.used & bit, number.checked_sub(self.min[column])) {
            (0, _) => (number, 0),
            (_, Some(range)) => (self.min[column], range),
            (_, None) => (number, self.range[column] + (self.min[column] - number)),
        };
        (self.min[column], self.range[column]) = (min, range);
        self.used |= bit;
        let before = (self.widths[column], self.above_zero);
        self.widths[column] = (64 - range.leading_zeros()) as u8;
        self.above_zero |= u16::from(number > 0) << column;
        before != (self.widths[column], self.above_zero)
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

    /// Returns the bytes of a node with these items.
    #[inline]
    pub fn bytes(&self) -> usize {
        let columns = (self.items * self.item_bits).div_ceil(8);
        HEADER_BYTES + DESCRIPTOR_BYTES * self.present + columns + self.tail_bytes
    }

    pub fn is_present(&self, column: usize, index: Option<usize>) -> bool {
        if index == Some(column) {
            return !self.is_indexed_by_position;
        }
        self.above_zero >> column & 1 == 1
    }

    pub fn base(&self, column: usize) -> u64 {
        self.min[column]
    }

    pub fn width(&self, column: usize) -> u32 {
        self.widths[column].into()
    }
}

/// Writes numbers one behind the other into a node.
pub(super) struct BitWriter {
    /// Byte of the node at which `bits` begin.
    at: usize,
    bits: u64,
    /// Number of bits that fill no byte yet.
    count: u32,
}

/// Widest number that fits into eight bytes behind the bits of a byte that is not full.
pub(super) const PUT_BITS_MAX: u32 = 56;

impl BitWriter {
    /// Begins at a byte of a node.
    pub fn new(at: usize) -> Self {
        Self { at, bits: 0, count: 0 }
    }

    /// Writes the lowest `width` bits of a number that has no others.
    #[inline]
    pub fn put(&mut self, bytes: &mut Buffer, number: u64, width: u32) {
        if width > PUT_BITS_MAX {
            self.put_narrow(bytes, number & u64::from(u32::MAX), 32);
            return self.put_narrow(bytes, number >> 32, width - 32);
        }
        self.put_narrow(bytes, number, width);
    }

    #[inline]
    fn put_narrow(&mut self, bytes: &mut Buffer, number: u64, width: u32) {
        self.bits |= number << self.count;
        // The mask changes nothing, and spares a check of the range.
        let at = self.at & (NODE_BYTES - 1);
        bytes[at..at + 8].copy_from_slice(&self.bits.to_le_bytes());
        self.count += width;
        self.bits >>= self.count & !7;
        self.at += self.count as usize / 8;
        self.count %= 8;
    }

    /// Returns the byte behind the last bits.
    pub fn end(&self) -> usize {
        self.at + self.count.div_ceil(8) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_counts_items_with_near_far_and_no_bound() {
        let mut bytes = [0; NODE_BYTES + SLACK_BYTES];
        let numbers = [0, 3, 3, 9, 200, 255];
        let mut writer = BitWriter::new(HEADER_BYTES);
        numbers.iter().for_each(|number| writer.put(&mut bytes, *number, 8));
        let column = Column::new(1 << 50, HEADER_BYTES * 8, 8, 8);
        let bounds =
            [None, Some(255), Some(256), Some(1 << 47), Some(1 << 62), Some(u64::MAX >> 1)];
        for bound in bounds.map(|bound| bound.map(|bound| (1 << 50) + bound)) {
            for wanted in [0, 1, 3, 8, 9, 10, 254, 255, 256, 1 << 46, 1 << 62] {
                let is = column.count_up_to(&bytes, numbers.len(), (1 << 50) + wanted, bound);
                let should = numbers.iter().filter(|number| **number <= wanted).count();
                assert_eq!(is, should, "{wanted}, at most {bound:?}");
            }
        }
    }
}
