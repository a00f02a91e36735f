//! Leaves of tables: rows of fixed width.

use super::columns::Values;
use super::dead::check_order;
use super::node::{Key, Node, Place};
use super::pack::Packed;
use super::root::Form;
use super::run::Number;

/// Returns the words of the key of a row.
///
/// # Panics
/// If the key is longer than 32 bytes.
pub fn row_key(bytes: &[u8]) -> Key {
    let mut all = [0; 32];
    all[..bytes.len()].copy_from_slice(bytes);
    let word = |n: usize| {
        u64::from_be_bytes(all[n * 8..n * 8 + 8].try_into().expect("eight bytes of a key"))
    };
    [0, 1, 2, 3].map(word)
}

/// The key of a row. Key and value are the tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RowKey(pub Key);

impl Packed<0> for RowKey {
    fn values(&self, _: u64) -> Values<0> {
        Values { numbers: [], unused: 0, index: None }
    }

    fn key(&self, _: &Form) -> Key {
        self.0
    }

    fn newest(&self) -> Number {
        0
    }

    fn blocks(&self) -> u64 {
        0
    }

    fn tail_bytes(&self, form: &Form) -> usize {
        usize::from(form.key_bytes) + usize::from(form.value_bytes)
    }

    fn tail_count(&self) -> u64 {
        1
    }
}

impl Node {
    /// Returns key and value of row `n` of a leaf of a table.
    pub fn row(&self, n: usize, form: &Form) -> (&[u8], &[u8]) {
        let (key, value) = (usize::from(form.key_bytes), usize::from(form.value_bytes));
        self.bytes[self.tail + n * (key + value)..][..key + value].split_at(key)
    }

    /// Checks all rows of a leaf of a table.
    pub(super) fn check_rows(&self, place: &Place) -> Result<(), String> {
        let mut before = None;
        (0..self.items)
            .try_for_each(|n| check_order(place, &mut before, row_key(self.row(n, &place.form).0)))
    }
}
