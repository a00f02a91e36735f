//! Inner nodes: pointers to children.

use super::columns::Values;
use super::node::{Key, Node, Place, Pointer};
use super::pack::Packed;
use super::root::Form;
use super::run::Number;
use crate::{Address, NUMBER_MAX};

const EXTENT: usize = 4;
const SECOND: usize = 6;
const CHECKSUM: usize = 8;
const BIRTH: usize = 9;
const NEWEST: usize = 10;

/// Number of columns of an inner node.
pub(super) const POINTER_COLUMNS: usize = 11;

impl Packed<POINTER_COLUMNS> for Pointer {
    fn values(&self, _: u64) -> Values<POINTER_COLUMNS> {
        let [a, b, c, d] = self.key;
        let second = self.second.unwrap_or(Address::from_bits(0));
        let (address, offset) = (self.address, u64::from(self.address.offset()));
        let numbers = [
            a,
            b,
            c,
            d,
            address.extent(),
            offset,
            second.extent(),
            u64::from(second.offset()),
            self.checksum,
            self.birth,
            self.newest,
        ];
        Values { numbers, unused: 0, index: None }
    }

    fn key(&self, _: &Form) -> Key {
        self.key
    }

    fn newest(&self) -> Number {
        self.newest
    }

    fn blocks(&self) -> u64 {
        0
    }

    fn tail_bytes(&self, _: &Form) -> usize {
        0
    }

    fn tail_count(&self) -> u64 {
        0
    }
}

impl Node {
    fn child_key(&self, n: usize) -> Key {
        // Most keys have one word.
        match self.present & 0b1110 {
            0 => [self.number(0, n), 0, 0, 0],
            _ => [0, 1, 2, 3].map(|word| self.number(word, n)),
        }
    }

    /// Returns pointer `n` of an inner node.
    pub fn child(&self, n: usize) -> Pointer {
        let none = Address::from_bits(0);
        Pointer {
            key: self.child_key(n),
            address: self.address(EXTENT, n).unwrap_or(none),
            second: self.address(SECOND, n).filter(|second| *second != none),
            checksum: self.number(CHECKSUM, n),
            birth: self.number(BIRTH, n),
            newest: self.number(NEWEST, n),
        }
    }

    /// Returns the place of child `n` of an inner node, which has itself `place`.
    pub(super) fn child_place(&self, n: usize, place: &Place) -> Place {
        let high = if n + 1 < self.items { Some(self.child_key(n + 1)) } else { place.high };
        Place { form: place.form, level: place.level - 1, low: self.child_key(n), high }
    }

    /// Returns the number of the child of an inner node at `place` that can have items with `key`: the last one that
    /// does not begin behind it.
    #[inline]
    pub(super) fn child_with(&self, key: &Key, place: &Place) -> usize {
        let highest = place.high.map(|high| high[0]);
        let mut up_to = self.columns[0].count_up_to(&self.bytes, self.items, key[0], highest);
        while up_to > 1 && self.child_key(up_to - 1) > *key {
            // The same first word, and a larger one behind it.
            up_to = self.partition(key, up_to);
        }
        up_to.saturating_sub(1)
    }

    /// Returns the number of the first `items` children that do not begin behind `key`.
    fn partition(&self, key: &Key, items: usize) -> usize {
        let (mut low, mut high) = (0, items);
        while low < high {
            let middle = (low + high) / 2;
            match self.child_key(middle) <= *key {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Checks all pointers of an inner node.
    pub(super) fn check_pointers(&self, place: &Place) -> Result<(), String> {
        let own = self.birth();
        for n in 0..self.items {
            let (key, birth) = (self.child_key(n), self.number(BIRTH, n));
            let is_after = n == 0 || self.child_key(n - 1) < key;
            let is_inside = key >= place.low && place.high.is_none_or(|high| key < high);
            if !is_after || !is_inside {
                return Err(format!("has the key {key:?} out of order"));
            }
            let address = self.address(EXTENT, n).filter(|address| address.bits() != 0);
            if address.is_none() || self.address(SECOND, n).is_none() {
                return Err(format!("has child {n} at no physical address"));
            }
            if birth > own || self.number(NEWEST, n) > NUMBER_MAX {
                return Err(format!("has a child of birth {birth}, younger than itself"));
            }
        }
        Ok(())
    }
}
