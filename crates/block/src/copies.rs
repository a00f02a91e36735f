//! The copies of a device's bytes, and their numbers.
//!
//! A device numbers its copies depth first. The copies of its first member come first, in the member's own
//! order; then those of the second member, and so on. Behind the copies of all members come the ways to compute a block
//! from other blocks; no kind has any yet. A device without redundancy has copy 0 alone. The numbers of a device do not
//! change while it is part of a graph, and do not depend on the state of its members.
//!
//! A table has as many copies as the lower with the most. Copy `n` of a range is copy `n` of every part of the range. A
//! part that has no copy `n` gives one of its other copies to a read, and ignores a write that restores copy `n`.
//!
//! The numbers end below [`COPIES_MAX`]. Further copies are not offered: no request can name them, and a device reads them
//! only if it can read no other copy.

use crate::Info;
use crate::seeded::{self, Bug};

/// Most copies of a device that have a number.
pub const COPIES_MAX: u32 = 32;

/// A set of copies of a device, as bits: bit `n` for copy `n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copies(pub u32);

impl Copies {
    /// The empty set of copies.
    pub const NONE: Self = Self(0);

    /// Returns the set of the copies 0 to `count - 1`, as far as they have numbers.
    pub const fn first(count: u32) -> Self {
        Self(if count < COPIES_MAX { (1 << count) - 1 } else { u32::MAX })
    }

    /// Whether copy `n` is in the set.
    pub const fn has(self, n: usize) -> bool {
        n < COPIES_MAX as usize && self.0 & (1 << n) != 0
    }

    /// Whether all copies of the set are in `other` too.
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns the set of all copies but copy `n`.
    #[must_use]
    pub const fn all_but(n: usize) -> Self {
        Self(!Self::NONE.with(n).0)
    }

    /// Returns the set of copies with copy `n` added, if `n` is a number of a copy.
    #[must_use]
    pub const fn with(self, n: usize) -> Self {
        Self(if n < COPIES_MAX as usize { self.0 | 1 << n } else { self.0 })
    }

    /// Returns the copies that are in either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the copies that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The numbers that the copies of one member have in a redundant device: a run of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyNumbers {
    first: u32,
    count: u32,
}

impl CopyNumbers {
    /// Numbers the copies of the `members` of a redundant device, depth first.
    pub fn of<'i>(members: impl IntoIterator<Item = &'i Info>) -> impl Iterator<Item = Self> {
        members.into_iter().scan(0_u32, |next, info| {
            let first = *next;
            *next = first.saturating_add(info.copies);
            Some(Self { first, count: info.copies })
        })
    }

    /// Returns the number of copies that have a number in a redundant device over `members`.
    pub fn count<'i>(members: impl IntoIterator<Item = &'i Info>) -> u32 {
        let all = members.into_iter().fold(0_u32, |all, info| all.saturating_add(info.copies));
        all.min(COPIES_MAX)
    }

    /// Returns the set of the member's copies, as the redundant device numbers them; those without a number are left out.
    pub fn set(self) -> Copies {
        self.above(Copies::first(self.count))
    }

    /// Returns the copies of the member that a read must avoid, as the member numbers them: those in `avoid`, a set of the
    /// redundant device, and those that have no number there.
    #[must_use]
    pub fn avoid(self, avoid: Copies) -> Copies {
        if seeded::on(Bug::CopiesUntranslated) {
            return avoid;
        }
        let offered = Copies::first(COPIES_MAX.saturating_sub(self.first));
        let own = Copies::first(self.count);
        self.below(avoid).or(Copies(own.0 & !offered.0))
    }

    /// Returns the copies in `set`, a set of the redundant device, that the member has, as the member numbers them.
    #[must_use]
    pub fn below(self, set: Copies) -> Copies {
        Copies(set.0.checked_shr(self.first).unwrap_or(0)).and(Copies::first(self.count))
    }

    /// Returns the copies in `set`, a set of the member, as the redundant device numbers them; those without a number are
    /// left out.
    #[must_use]
    pub fn above(self, set: Copies) -> Copies {
        let own = set.and(Copies::first(self.count));
        Copies(own.0.checked_shl(self.first).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(counts: &[u32]) -> Vec<CopyNumbers> {
        let infos: Vec<_> =
            counts.iter().map(|copies| Info { copies: *copies, ..Info::disk(4096, 512) }).collect();
        let all = CopyNumbers::of(&infos).collect();
        let sum: u64 = counts.iter().map(|copies| u64::from(*copies)).sum();
        assert_eq!(u64::from(CopyNumbers::count(&infos)), sum.min(32));
        all
    }

    #[test]
    fn copies_of_members_are_numbered_one_after_the_other() {
        let all = numbers(&[2, 1, 3]);
        assert_eq!([all[0].set().0, all[1].set().0, all[2].set().0], [0b11, 0b100, 0b11_1000]);
        let avoid = Copies(0b01_0110);
        assert_eq!([all[0].avoid(avoid).0, all[1].avoid(avoid).0], [0b10, 0b1]);
        assert_eq!(all[2].avoid(avoid).0, 0b10);
        assert_eq!(all[2].above(Copies(0b1101)).0, 0b10_1000, "bit 3 is no copy of the member");
    }

    #[test]
    fn copies_beyond_32_have_no_number() {
        let all = numbers(&[20, 16, 8, u32::MAX, 1]);
        assert_eq!(all[1].set(), Copies(0xfff0_0000));
        for beyond in &all[2..] {
            assert_eq!(beyond.set(), Copies::NONE);
            assert_eq!(beyond.below(Copies(u32::MAX)), Copies::NONE);
            assert_eq!(beyond.above(Copies(u32::MAX)), Copies::NONE);
            assert_eq!(beyond.avoid(Copies::NONE), Copies::first(beyond.count));
        }
        assert_eq!(all[1].avoid(Copies::NONE), Copies(0xf000), "12 of 16 copies are offered");
        assert_eq!(all[1].above(Copies(0xffff)), Copies(0xfff0_0000), "nothing wraps");
        assert_eq!(Copies::NONE.with(32), Copies::NONE);
        assert_eq!(Copies::all_but(40), Copies(u32::MAX));
        assert!(!Copies(u32::MAX).has(32));
        assert_eq!(Copies::first(40), Copies(u32::MAX));
    }
}
