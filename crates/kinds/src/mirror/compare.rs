//! Comparison of the copies of one byte range: which blocks differ, and which bytes are right there.

use std::ops::Range;

use block::seeded::{self, Bug};
use block::{Buf, Copies};

/// A run of blocks for which the comparison has the same result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Position of the run in the compared range, in bytes.
    pub bytes: Range<usize>,
    /// The copy with the right bytes, as an index into the compared copies; `None` if no copy counts as right.
    pub right: Option<usize>,
    /// Members whose bytes are not those of the copy `right`; without one, all compared members.
    pub differing: Copies,
}

impl Run {
    /// Whether all compared copies have the same bytes in the run.
    pub fn is_alike(&self) -> bool {
        self.differing == Copies::NONE
    }
}

/// Compares the bytes of the members that could read a range, block by block. The runs that it returns cover the whole
/// range, in order.
///
/// Where bytes differ, those of the member `trusted` are right; without it, those that more than half of the copies
/// have.
pub fn compare(read: &[(usize, Buf)], block: usize, trusted: Option<usize>) -> Vec<Run> {
    let copies: Vec<_> = read.iter().map(|(member, bytes)| (*member, bytes.read())).collect();
    let Some((_, first)) = copies.first() else { return Vec::new() };
    let len = first.len();
    if copies.iter().all(|(_, bytes)| **bytes == **first) {
        return vec![Run { bytes: 0..len, right: Some(0), differing: Copies::NONE }];
    }
    let mut runs: Vec<Run> = Vec::new();
    for start in (0..len).step_by(block) {
        let end = len.min(start + block);
        let (right, differing) = judge(&copies, start..end, trusted);
        match runs.last_mut() {
            Some(run) if (run.right, run.differing) == (right, differing) => run.bytes.end = end,
            _ => runs.push(Run { bytes: start..end, right, differing }),
        }
    }
    runs
}

/// Returns the right copy in one block, and the members that differ from it.
fn judge<B: std::ops::Deref<Target = [u8]>>(
    copies: &[(usize, B)],
    block: Range<usize>,
    trusted: Option<usize>,
) -> (Option<usize>, Copies) {
    let of = |copy: usize| &copies[copy].1[block.clone()];
    let unlike = |copy: usize| {
        let others = (0..copies.len()).filter(move |other| of(*other) != of(copy));
        others.fold(Copies::NONE, |all, other| all.with(copies[other].0))
    };
    let votes = |copy: &usize| (0..copies.len()).filter(|other| of(*other) == of(*copy)).count();
    let all = || copies.iter().fold(Copies::NONE, |all, (member, _)| all.with(*member));
    if unlike(0) == Copies::NONE {
        return (Some(0), Copies::NONE);
    }
    let right = match trusted {
        Some(member) => copies.iter().position(|(one, _)| *one == member),
        None if seeded::on(Bug::RepairGuesses) => Some(0),
        None => (0..copies.len()).find(|copy| 2 * votes(copy) > copies.len()),
    };
    (right, right.map_or_else(all, unlike))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buf(bytes: &[u8]) -> Buf {
        let buf = block::BufPool::new(1 << 20, 1 << 20).take(bytes.len()).unwrap();
        buf.write().copy_from_slice(bytes);
        buf
    }

    fn set(members: &[usize]) -> Copies {
        members.iter().fold(Copies::NONE, |all, member| all.with(*member))
    }

    fn run(bytes: Range<usize>, right: Option<usize>, differing: &[usize]) -> Run {
        Run { bytes, right, differing: set(differing) }
    }

    #[test]
    fn majority_of_copies_is_right_and_ties_stay_undecided() {
        let three = [(0, buf(b"aaXdef")), (2, buf(b"abcdeg")), (5, buf(b"abcdeh"))];
        let found = compare(&three, 1, None);
        let expected = [
            run(0..1, Some(0), &[]),
            run(1..3, Some(1), &[0]),
            run(3..5, Some(0), &[]),
            run(5..6, None, &[0, 2, 5]),
        ];
        assert_eq!(found, expected);
        // Each block of two bytes differs, and two copies have no majority.
        assert_eq!(compare(&three[..2], 2, None), [run(0..6, None, &[0, 2])]);
        assert_eq!(compare(&three[..1], 1, None), [run(0..6, Some(0), &[])]);
        assert_eq!(compare(&[], 1, None), []);
    }

    #[test]
    fn trusted_copy_is_right_against_majority() {
        let three = [(0, buf(b"aX")), (1, buf(b"ab")), (2, buf(b"ab"))];
        assert_eq!(
            compare(&three, 1, Some(0)),
            [run(0..1, Some(0), &[]), run(1..2, Some(0), &[1, 2])]
        );
        // The trusted member could not be read, so nothing is known to be right.
        assert_eq!(compare(&three, 1, Some(7))[1], run(1..2, None, &[0, 1, 2]));
    }
}
