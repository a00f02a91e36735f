//! Answers that consist of byte ranges, with a limit on their number.

use serde::{Deserialize, Serialize};

use super::Part;
use crate::ByteRange;

/// Most ranges in one answer.
pub const RANGES_MAX: usize = 1024;

/// Byte ranges in order, without overlaps and with gaps between them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ranges {
    /// First byte and length of each range.
    pub ranges: Vec<(u64, u64)>,
    /// Address up to which the answer is complete, if it is not complete: the caller asks again from there on.
    #[serde(default)]
    pub upto_bytes: Option<u64>,
}

impl Ranges {
    /// Joins ranges that overlap or touch, and returns the first [`RANGES_MAX`] of them; only those before `upto`, if the
    /// ranges behind it are not known.
    pub fn of(mut ranges: Vec<ByteRange>, mut upto: Option<u64>) -> Self {
        ranges.sort_unstable_by_key(|range| range.start());
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for range in ranges {
            let Some(range) =
                ByteRange::between(range.start(), upto.unwrap_or(u64::MAX).min(range.end()))
            else {
                break;
            };
            let is_full = joined.len() == RANGES_MAX;
            match joined.last_mut() {
                Some((start, len)) if *start + *len >= range.start() => {
                    *len = (*len).max(range.end() - *start);
                }
                _ if is_full => {
                    upto = Some(range.start());
                    break;
                }
                _ => joined.push((range.start(), range.len())),
            }
        }
        Self { ranges: joined, upto_bytes: upto }
    }

    /// Returns the ranges. Ranges that exceed an address space are left out.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.ranges.iter().filter_map(|(start, len)| ByteRange::new(*start, *len))
    }

    /// Merges the answers of several devices, each for its part of the range that was asked for.
    pub fn merge(parts: &[Part<Self>]) -> Self {
        let (mut all, mut upto) = (Vec::new(), None::<u64>);
        for Part { above, below, answer, .. } in parts {
            let inside = answer.iter().filter_map(|range| range.intersect(*below));
            let moved = |at: u64| above.start() + (at - below.start());
            all.extend(inside.map(|range| range.at(moved(range.start()))));
            if let Some(at) = answer.upto_bytes {
                let at = moved(at.clamp(below.start(), below.end()));
                upto = Some(upto.map_or(at, |other| other.min(at)));
            }
        }
        Self::of(all, upto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, len: u64) -> ByteRange {
        ByteRange::new(start, len).unwrap()
    }

    fn part(above: u64, below: u64, len: u64, answer: Ranges) -> Part<Ranges> {
        Part { above: range(above, len), below: range(below, len), place: "m".into(), answer }
    }

    #[test]
    fn ranges_are_joined_and_cut_where_answer_is_incomplete() {
        let all = vec![range(40, 10), range(0, 10), range(10, 5), range(12, 2), range(60, 5)];
        assert_eq!(Ranges::of(all.clone(), None).ranges, [(0, 15), (40, 10), (60, 5)]);
        assert_eq!(Ranges::of(all, Some(45)).ranges, [(0, 15), (40, 5)]);
        let many: Vec<_> = (0..RANGES_MAX as u64 + 3).map(|n| range(n * 10, 5)).collect();
        let cut = Ranges::of(many, None);
        assert_eq!((cut.ranges.len(), cut.upto_bytes), (RANGES_MAX, Some(10_240)));
    }

    #[test]
    fn ranges_of_parts_are_moved_to_addresses_above() {
        let one = Ranges::of(vec![range(100, 20), range(190, 50)], None);
        let other = Ranges::of(vec![range(0, 10)], Some(30));
        let merged = Ranges::merge(&[part(1000, 100, 100, one), part(1100, 0, 100, other)]);
        assert_eq!(merged.ranges, [(1000, 20), (1090, 20)]);
        assert_eq!(merged.upto_bytes, Some(1130));
        // A wrong answer of another process moves no range out of its part.
        let wrong = Ranges { ranges: vec![(u64::MAX, 9), (5, 9), (0, 0)], upto_bytes: Some(7) };
        let merged = Ranges::merge(&[part(0, 10, 10, wrong)]);
        assert_eq!((merged.ranges, merged.upto_bytes), (vec![], Some(0)));
    }
}
