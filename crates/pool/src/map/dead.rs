//! Leaves of dead entries.

use super::columns::Values;
use super::node::{Key, Node, Place};
use super::pack::Packed;
use super::root::Form;
use super::run::Number;
use crate::{Address, EXTENT_BLOCKS_MAX, NUMBER_MAX};

const EXTENT: usize = 1;

/// Number of columns of a leaf of dead entries.
pub(super) const DEAD_COLUMNS: usize = 6;

/// Blocks or a node that a head has replaced, and that a kept snapshot still sees.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeadEntry {
    /// Number of the next snapshot at the time of the overwrite.
    pub death: Number,
    /// Physical address of the first block.
    pub address: Address,
    /// Number of blocks, 1 or more.
    pub blocks: u64,
    /// Number of the first snapshot that can see the blocks.
    pub birth: Number,
    /// Whether the block is a node and not data.
    pub is_node: bool,
}

impl Packed<DEAD_COLUMNS> for DeadEntry {
    fn values(&self, _: u64) -> Values<DEAD_COLUMNS> {
        let numbers = [
            self.death,
            self.address.extent(),
            u64::from(self.address.offset()),
            self.blocks - 1,
            self.birth,
            u64::from(self.is_node),
        ];
        Values { numbers, unused: 0, index: None }
    }

    fn key(&self, _: &Form) -> Key {
        [self.death, self.address.bits(), 0, 0]
    }

    fn newest(&self) -> Number {
        0
    }

    fn blocks(&self) -> u64 {
        if self.is_node { 0 } else { self.blocks }
    }

    fn tail_bytes(&self, _: &Form) -> usize {
        0
    }

    fn tail_count(&self) -> u64 {
        0
    }
}

impl Node {
    /// Returns dead entry `n` of a leaf of dead entries.
    pub fn dead(&self, n: usize) -> DeadEntry {
        DeadEntry {
            death: self.number(0, n),
            address: self.address(EXTENT, n).unwrap_or(Address::from_bits(0)),
            blocks: self.number(3, n) + 1,
            birth: self.number(4, n),
            is_node: self.number(5, n) == 1,
        }
    }

    /// Checks all entries of a leaf of dead entries.
    pub(super) fn check_dead(&self, place: &Place) -> Result<(), String> {
        let mut before = None;
        for n in 0..self.items {
            let more = self.number(3, n);
            let address = self.address(EXTENT, n).filter(|address| address.bits() != 0);
            let end = address.map(|address| u64::from(address.offset()).saturating_add(more));
            if end.is_none_or(|end| end >= EXTENT_BLOCKS_MAX.into()) || self.number(5, n) > 1 {
                return Err(format!("has a dead entry of {more} + 1 blocks at {address:?}"));
            }
            let entry = self.dead(n);
            if entry.birth >= entry.death || entry.death > NUMBER_MAX {
                let DeadEntry { birth, death, .. } = entry;
                return Err(format!("has a dead entry with birth {birth} and death {death}"));
            }
            let key = entry.key(&place.form);
            check_order(place, &mut before, key)?;
        }
        Ok(())
    }
}

/// Checks that a key is behind the key before it, and inside the keys of the parent.
pub(super) fn check_order(place: &Place, before: &mut Option<Key>, key: Key) -> Result<(), String> {
    let is_after = before.is_none_or(|before| before < key);
    if !is_after || key < place.low || place.high.is_some_and(|high| key >= high) {
        return Err(format!("has the key {key:?} out of order"));
    }
    *before = Some(key);
    Ok(())
}
