//! Bitmaps of the blocks of an extent.

/// Bits of one word.
const WORD: u32 = u64::BITS;

/// A set of blocks of one extent. Words without a set bit at the end take no memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bits {
    words: Vec<u64>,
    blocks: u32,
    count: u32,
}

impl Bits {
    /// An empty set of blocks below `blocks`.
    pub fn new(blocks: u32) -> Self {
        Self { words: Vec::new(), blocks, count: 0 }
    }

    /// Returns the number of blocks in the set.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Adds or removes adjacent blocks.
    ///
    /// # Panics
    /// If a block is outside of the extent.
    pub fn set(&mut self, first: u32, count: u32, value: bool) {
        let end = first + count;
        assert!(end <= self.blocks, "block {end} of {}", self.blocks);
        let words = end.div_ceil(WORD) as usize;
        if value && self.words.len() < words {
            self.words.resize(words, 0);
        }
        let mut at = first;
        while at < end {
            let Some(word) = self.words.get_mut((at / WORD) as usize) else { return };
            let bits = (end - at).min(WORD - at % WORD);
            let mask = (u64::MAX >> (WORD - bits)) << (at % WORD);
            let before = word.count_ones();
            *word = if value { *word | mask } else { *word & !mask };
            self.count = self.count + word.count_ones() - before;
            at += bits;
        }
    }

    /// Whether the set has a block.
    pub fn is_set(&self, block: u32) -> bool {
        self.words.get((block / WORD) as usize).is_some_and(|word| word >> (block % WORD) & 1 == 1)
    }

    /// Whether the set has all of some adjacent blocks.
    pub fn is_all(&self, first: u32, count: u32) -> bool {
        (first..first + count).all(|block| self.is_set(block))
    }

    /// Returns the first run of blocks of the set from `from` on, with its length.
    pub fn next_run(&self, from: u32) -> Option<(u32, u32)> {
        let first = self.next(from, true)?;
        let end = self.next(first, false).unwrap_or(self.words.len() as u32 * WORD);
        Some((first, end.min(self.blocks) - first))
    }

    /// Returns the first block from `from` on that is in the set, or that is not.
    fn next(&self, from: u32, value: bool) -> Option<u32> {
        let mut index = (from / WORD) as usize;
        let mut mask = u64::MAX << (from % WORD);
        while let Some(word) = self.words.get(index) {
            let word = (if value { *word } else { !*word }) & mask;
            if word != 0 {
                return Some(index as u32 * WORD + word.trailing_zeros());
            }
            (index, mask) = (index + 1, u64::MAX);
        }
        None
    }

    /// Returns the bytes of the blocks from `first` on, as a row on disk has them.
    pub fn bytes(&self, first: u32) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (n, part) in bytes.chunks_exact_mut(8).enumerate() {
            let word = self.words.get((first / WORD) as usize + n).copied().unwrap_or_default();
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}
