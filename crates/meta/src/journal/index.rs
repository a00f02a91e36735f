//! The newest part of each byte range in a journal.

use std::collections::BTreeMap;

use block::ByteRange;

/// A part of a record in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartId {
    /// Number of the record.
    pub record: u64,
    /// Number of the part in the record.
    pub part: u32,
}

/// The newest part of each byte range that a record in the ring changes. An insertion splits older ranges, so the index has
/// at most two entries for each part in the ring.
#[derive(Default)]
pub struct Index(BTreeMap<(u16, u64), Entry>);

#[derive(Clone, Copy)]
struct Entry {
    end: u64,
    newest: PartId,
}

impl Index {
    /// Makes `newest` the newest part of a range.
    pub fn insert(&mut self, lower: u16, range: ByteRange, newest: PartId) {
        self.cut(lower, range, |_| true);
        self.0.insert((lower, range.start()), Entry { end: range.end(), newest });
    }

    /// Removes the parts of record `record` from a range, where no later record has changed it.
    pub fn remove(&mut self, lower: u16, range: ByteRange, record: u64) {
        self.cut(lower, range, |newest| newest.record == record);
    }

    /// Removes the entries that `which` accepts from a range. Splits those that reach beyond it.
    fn cut(&mut self, lower: u16, range: ByteRange, which: impl Fn(PartId) -> bool) {
        let found: Vec<_> = self.overlapping(lower, range).filter(|it| which(it.1)).collect();
        for (old, newest) in found {
            self.0.remove(&(lower, old.start()));
            let before = ByteRange::between(old.start(), range.start());
            let behind = ByteRange::between(range.end(), old.end());
            for rest in [before, behind].into_iter().flatten() {
                self.0.insert((lower, rest.start()), Entry { end: rest.end(), newest });
            }
        }
    }

    /// Returns the entries that share a byte with a range, in order, with their whole ranges.
    pub fn overlapping(
        &self,
        lower: u16,
        range: ByteRange,
    ) -> impl Iterator<Item = (ByteRange, PartId)> {
        let before = self.0.range((lower, 0)..(lower, range.start())).next_back();
        let others = self.0.range((lower, range.start())..(lower, range.end()));
        before.into_iter().chain(others).filter_map(move |((_, start), entry)| {
            let own = ByteRange::between(*start, entry.end)?;
            own.overlaps(range).then_some((own, entry.newest))
        })
    }

    /// Returns the highest number of a record that is the newest one of a byte in a range.
    pub fn newest(&self, lower: u16, range: ByteRange) -> Option<u64> {
        self.overlapping(lower, range).map(|(_, newest)| newest.record).max()
    }

    /// Returns the number of entries.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = 64;

    proptest! {
        #[test]
        fn journal_index_equals_model_of_each_byte(
            steps in proptest::collection::vec((0_u16..2, 0..BYTES, 1..20_u64, 0..4_u64), 1..40),
        ) {
            let mut index = Index::default();
            let mut model = vec![vec![None; 2 * BYTES as usize]; 2];
            let mut inserted = 0;
            for (record, (lower, start, len, removed)) in (1..).zip(steps) {
                let range = ByteRange::new(start, len).unwrap();
                let bytes = &mut model[usize::from(lower)][start as usize..(start + len) as usize];
                if removed == 0 {
                    let old = record / 2;
                    index.remove(lower, range, old);
                    bytes.iter_mut().filter(|byte| **byte == Some(old)).for_each(|byte| *byte = None);
                } else {
                    inserted += 1;
                    index.insert(lower, range, PartId { record, part: 0 });
                    bytes.fill(Some(record));
                }
                prop_assert!(index.len() <= 2 * inserted + record as usize);
            }
            for (lower, bytes) in (0..).zip(&model) {
                let mut shown = vec![None; bytes.len()];
                let all = ByteRange::new(0, 2 * BYTES).unwrap();
                for (range, newest) in index.overlapping(lower, all) {
                    shown[range.start() as usize..range.end() as usize].fill(Some(newest.record));
                }
                prop_assert_eq!(&shown, bytes);
                let part = ByteRange::new(7, 30).unwrap();
                let newest = bytes[7..37].iter().filter_map(|byte| *byte).max();
                prop_assert_eq!(index.newest(lower, part), newest);
            }
        }
    }
}
