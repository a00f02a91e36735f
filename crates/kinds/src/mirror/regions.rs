//! The division of a mirror into regions, and bitmaps with one bit for each region.

use block::{ByteRange, STATE_BYTES_MAX};

use super::MEMBERS_MAX;
use super::record::Record;

/// Least size in bytes of a mirror's regions that a spec may set.
pub const REGION_BYTES_MIN: u64 = 4096;

/// Greatest size of a mirror's regions, in bytes, which is also the greatest size of a mirror.
pub const REGION_BYTES_MAX: u64 = 1 << 62;

/// Least size in bytes of a mirror's regions if the spec does not set the option `region`.
pub const REGION_BYTES_USUAL: u64 = 1 << 20;

/// The division of a mirror into regions of the same size, except that the last region may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Regions {
    size: u64,
    region_bytes: u64,
}

impl Regions {
    /// Divides a mirror of `size` bytes into regions of `region_bytes` bytes.
    ///
    /// # Errors
    /// The number that is outside its limits, and the limits.
    pub fn new(size: u64, region_bytes: u64) -> Result<Self, String> {
        if !(1..=REGION_BYTES_MAX).contains(&size) {
            return Err(format!("a mirror of {size} bytes; 1 to {REGION_BYTES_MAX} are possible"));
        }
        let sizes = REGION_BYTES_MIN..=REGION_BYTES_MAX;
        if !region_bytes.is_power_of_two() || !sizes.contains(&region_bytes) {
            return Err(format!(
                "regions of {region_bytes} bytes; a power of two of at least {REGION_BYTES_MIN} is needed"
            ));
        }
        Ok(Self { size, region_bytes })
    }

    /// Returns the smallest region size in bytes for which the state of a mirror of `size` bytes with `members` members
    /// has room for all bitmaps.
    pub fn smallest(size: u64, members: usize) -> u64 {
        let most = Self::most(members) as u64;
        size.div_ceil(most).next_power_of_two().max(REGION_BYTES_MIN)
    }

    /// Returns the default division of a mirror of `size` bytes with `members` members into regions.
    ///
    /// # Panics
    /// If no mirror can have this size. The plan of the mirror has checked the size.
    pub fn usual(size: u64, members: usize) -> Self {
        let region_bytes = Self::smallest(size, members).max(REGION_BYTES_USUAL);
        Self::new(size, region_bytes).expect("a mirror that was planned has a size")
    }

    /// Returns the most regions for which the state of a mirror has room for `members` bitmaps: the bitmap of dirty
    /// regions, and the bitmap of missed regions of each member but one. Counts the entries of [`MEMBERS_MAX`] members,
    /// because members may be added later.
    pub const fn most(members: usize) -> usize {
        (STATE_BYTES_MAX - Record::bytes_of(MEMBERS_MAX)) / members / 8 * 64
    }

    /// Returns the division of the mirror into the regions of the maps in labels, if other maps of the mirror are in a store:
    /// regions of this size, or larger ones that fit beside the facts about the store.
    pub fn in_labels(&self, members: usize) -> Self {
        let most = (STATE_BYTES_MAX - Record::bytes_of(MEMBERS_MAX) - Record::ROOM_BYTES_MAX)
            / members
            / 8
            * 64;
        let smallest = self.size.div_ceil(most as u64).next_power_of_two();
        Self { region_bytes: self.region_bytes.max(smallest), ..*self }
    }

    /// Returns the number of regions of the mirror.
    pub fn count(&self) -> usize {
        self.size.div_ceil(self.region_bytes) as usize
    }

    /// Returns the size of the mirror in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the size of a region in bytes.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the byte range of the region with this number.
    ///
    /// # Panics
    /// If the mirror has no region with this number.
    pub fn range(&self, region: usize) -> ByteRange {
        let start = region as u64 * self.region_bytes;
        let end = self.size.min(start.saturating_add(self.region_bytes));
        ByteRange::between(start, end).expect("a region has bytes")
    }

    /// Returns the numbers of the first and the last region that a byte range touches. For bytes behind the end of the
    /// mirror, the numbers are greater than that of the last region.
    #[inline]
    pub fn of(&self, range: ByteRange) -> (usize, usize) {
        let shift = self.region_bytes.trailing_zeros();
        ((range.start() >> shift) as usize, ((range.end() - 1) >> shift) as usize)
    }
}

/// A set of regions of a mirror.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bitmap {
    words: Vec<u64>,
    /// Number of all regions of the mirror, in the set or not.
    count: usize,
    set: usize,
}

impl Bitmap {
    /// Returns an empty set, for a mirror of `count` regions.
    pub fn none(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(64)], count, set: 0 }
    }

    /// Returns the set of all regions of a mirror of `count` regions.
    pub fn all(count: usize) -> Self {
        let mut map = Self::none(count);
        (0..count).for_each(|region| map.insert(region));
        map
    }

    /// Whether the set has no regions.
    pub fn is_empty(&self) -> bool {
        self.set == 0
    }

    /// Returns the number of regions of the mirror, in the set or not.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of regions in the set.
    pub fn len(&self) -> usize {
        self.set
    }

    /// Whether the set contains `region`.
    #[inline]
    pub fn has(&self, region: usize) -> bool {
        self.words[region / 64] >> (region % 64) & 1 != 0
    }

    /// Adds a region to the set.
    #[inline]
    pub fn insert(&mut self, region: usize) {
        let bit = 1 << (region % 64);
        let word = &mut self.words[region / 64];
        self.set += usize::from(*word & bit == 0);
        *word |= bit;
    }

    /// Removes a region from the set.
    pub fn remove(&mut self, region: usize) {
        let bit = 1 << (region % 64);
        let word = &mut self.words[region / 64];
        self.set -= usize::from(*word & bit != 0);
        *word &= !bit;
    }

    /// Removes all regions from the set.
    pub fn clear(&mut self) {
        self.words.fill(0);
        self.set = 0;
    }

    /// Adds the regions from `first` to `last` to the set.
    pub fn insert_all(&mut self, first: usize, last: usize) {
        (first..=last).for_each(|region| self.insert(region));
    }

    /// Adds the regions of `other` to this set. Both sets are for the same number of regions.
    pub fn unite(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
        self.count_again();
    }

    /// Removes the regions of `other` from this set. Both sets are for the same number of regions.
    pub fn subtract(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
        self.count_again();
    }

    fn count_again(&mut self) {
        self.set = self.words.iter().map(|word| word.count_ones() as usize).sum();
    }

    /// Returns the numbers of the regions in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(n, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(64 * n + bit)
            })
        })
    }

    /// Returns the first region in the set with the number `from` or a higher one.
    pub fn next(&self, from: usize) -> Option<usize> {
        let rest = self.words.get(from / 64..)?;
        let mut mask = !0 << (from % 64);
        for (n, word) in rest.iter().enumerate() {
            if word & mask != 0 {
                return Some(64 * (from / 64 + n) + (word & mask).trailing_zeros() as usize);
            }
            mask = !0;
        }
        None
    }

    /// Returns the number of bytes in the regions of the set.
    pub fn bytes(&self, regions: &Regions) -> u64 {
        let last = regions.count() - 1;
        let whole = self.set as u64 - u64::from(self.has(last));
        let rest = if self.has(last) { regions.range(last).len() } else { 0 };
        whole * regions.region_bytes + rest
    }

    /// Converts the set from the division `from` of the mirror to the division `to`: returns every new region that
    /// shares a byte with a region of this set.
    pub fn over(&self, from: &Regions, to: &Regions) -> Self {
        if from == to {
            return self.clone();
        }
        let mut map = Self::none(to.count());
        for range in self.iter().map(|region| from.range(region)) {
            if range.start() < to.size {
                let (first, last) = to.of(range);
                (first..=last.min(to.count() - 1)).for_each(|region| map.insert(region));
            }
        }
        map
    }

    /// Encodes the set as a bitmap for the state of a mirror in labels.
    pub fn encode(&self) -> impl Iterator<Item = u8> + '_ {
        self.words.iter().flat_map(|word| word.to_le_bytes())
    }

    /// Returns the encoded length in bytes of a set for a mirror of `count` regions.
    pub const fn encoded_bytes(count: usize) -> usize {
        count.div_ceil(64) * 8
    }

    /// Decodes a set for a mirror of `count` regions.
    ///
    /// # Errors
    /// If `bytes` have the wrong length, a bit beyond the last region, or no bit that is set.
    pub fn decode(bytes: &[u8], count: usize) -> Result<Self, String> {
        if bytes.len() != Self::encoded_bytes(count) {
            return Err(format!("a bitmap of {} bytes does not fit {count} regions", bytes.len()));
        }
        let (words, _) = bytes.as_chunks();
        let words = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut map = Self { words, count, set: 0 };
        map.count_again();
        if map.is_empty() || map.next(count).is_some() {
            return Err(format!("invalid bitmap: {} of {count} regions are set", map.set));
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(count: usize, set: &[usize]) -> Bitmap {
        let mut map = Bitmap::none(count);
        set.iter().for_each(|region| map.insert(*region));
        map
    }

    #[test]
    fn region_bitmaps_fit_label_cell() {
        assert_eq!(Regions::most(2), 12800);
        assert_eq!(Regions::usual(1 << 40, 2).region_bytes(), 128 << 20);
        assert_eq!(Regions::usual(1 << 30, 2).region_bytes(), 1 << 20);
        assert_eq!(Regions::usual(REGION_BYTES_MAX, 8).count(), 2048);
        for members in 1..=8 {
            let maps = Bitmap::encoded_bytes(Regions::most(members)) * members;
            assert!(Record::bytes_of(MEMBERS_MAX) + maps <= STATE_BYTES_MAX);
        }
        assert!(Regions::new(1, 4095).is_err() && Regions::new(1, 3 << 20).is_err());
        assert!(
            Regions::new(0, 4096).is_err() && Regions::new(REGION_BYTES_MAX + 1, 4096).is_err()
        );
    }

    #[test]
    fn region_bitmap_inserts_removes_and_lists_regions() {
        let mut one = map(200, &[0, 63, 64, 199]);
        assert_eq!(one.iter().collect::<Vec<_>>(), [0, 63, 64, 199]);
        assert_eq!((one.next(1), one.next(64), one.next(65)), (Some(63), Some(64), Some(199)));
        assert_eq!((one.next(200), one.next(1000)), (None, None));
        one.insert(63);
        assert_eq!(one.len(), 4);
        one.unite(&map(200, &[5, 63]));
        one.subtract(&map(200, &[0, 199]));
        one.remove(64);
        one.remove(64);
        assert_eq!(one, map(200, &[5, 63]));
        one.clear();
        assert!(one.is_empty() && one == Bitmap::none(200));
        assert_eq!(Bitmap::all(200).len(), 200);
    }

    #[test]
    fn last_region_is_shorter_if_mirror_ends_within_region() {
        let regions = Regions::new(10_000, 4096).unwrap();
        assert_eq!(regions.count(), 3);
        assert_eq!(regions.range(2), ByteRange::between(8192, 10_000).unwrap());
        assert_eq!(regions.of(ByteRange::between(4095, 8193).unwrap()), (0, 2));
        assert_eq!(map(3, &[0, 2]).bytes(&regions), 4096 + 1808);
    }

    #[test]
    fn bitmap_covers_same_bytes_after_change_of_region_size() {
        let small = Regions::new(100 << 10, 4 << 10).unwrap();
        let large = Regions::new(100 << 10, 16 << 10).unwrap();
        assert_eq!(map(25, &[3, 4, 24]).over(&small, &large), map(7, &[0, 1, 6]));
        assert_eq!(map(7, &[1, 6]).over(&large, &small), map(25, &[4, 5, 6, 7, 24]));
        let whole = Regions::new(REGION_BYTES_MAX, REGION_BYTES_MAX).unwrap();
        assert_eq!(Bitmap::all(1).over(&whole, &small), Bitmap::all(25));
        let shrunk = Regions::new(20 << 10, 4 << 10).unwrap();
        assert_eq!(map(25, &[3, 5, 24]).over(&small, &shrunk), map(5, &[3]));
    }

    #[test]
    fn bitmap_decode_rejects_wrong_length_empty_and_excess_bits() {
        for count in [1, 64, 65, 200] {
            let one = map(count, &[0, count - 1]);
            let bytes: Vec<u8> = one.encode().collect();
            assert_eq!(Bitmap::decode(&bytes, count), Ok(one));
            assert!(Bitmap::decode(&bytes[1..], count).is_err());
            assert!(
                Bitmap::decode(&vec![0; bytes.len()], count).is_err(),
                "a map of none is not there"
            );
        }
        assert!(Bitmap::decode(&[0, 2, 0, 0, 0, 0, 0, 0], 9).is_err(), "there is no tenth of nine");
    }
}
