//! The rule for flags and kinds that a later version has added: the range of a bit or kind decides.

use meta::ring::MustKnow;

/// Flags of 32 bits that forbid writing to a reader that does not know them.
const FORBID_WRITING: u32 = 0x0000_ff00;

/// Flags of 32 bits that forbid opening to a reader that does not know them.
const FORBID_OPENING: u32 = 0xffff_0000;

/// Returns the strictest rule of the set bits of `flags` that are not `known`.
pub const fn of_flags(flags: u32, known: u32) -> MustKnow {
    let unknown = flags & !known;
    if unknown & FORBID_OPENING != 0 {
        return MustKnow::ToOpen;
    }
    match unknown & FORBID_WRITING {
        0 => MustKnow::No,
        _ => MustKnow::ToWrite,
    }
}

/// Returns the rule for an unknown kind or state of one byte.
pub const fn of_kind(kind: u8) -> MustKnow {
    match kind {
        0..128 => MustKnow::ToOpen,
        128..192 => MustKnow::ToWrite,
        192.. => MustKnow::No,
    }
}

/// Declares a kind or state of one byte with its known values. A value of a later version stays as it is.
macro_rules! kinds {
    ($(#[$words:meta])* $name:ident { $($(#[$value_words:meta])* $value:ident = $number:literal,)* }) => {
        $(#[$words])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub struct $name(pub u8);

        impl From<u8> for $name {
            fn from(kind: u8) -> Self {
                Self(kind)
            }
        }

        impl From<$name> for u8 {
            fn from(kind: $name) -> Self {
                kind.0
            }
        }

        impl $name {
            $($(#[$value_words])* pub const $value: Self = Self($number);)*

            /// Returns the rule for a reader of this version: `No` for a known value.
            pub const fn unknown(self) -> meta::ring::MustKnow {
                match self.0 {
                    $($number => meta::ring::MustKnow::No,)*
                    other => $crate::unknown::of_kind(other),
                }
            }
        }
    };
}

/// Declares flags of 32 bits with the known ones. Bits of a later version stay as they are.
macro_rules! flags {
    ($(#[$words:meta])* $name:ident { $($(#[$value_words:meta])* $value:ident = $bit:literal,)* }) => {
        $(#[$words])*
        #[derive(Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name(pub u32);

        impl From<u32> for $name {
            fn from(flags: u32) -> Self {
                Self(flags)
            }
        }

        impl From<$name> for u32 {
            fn from(flags: $name) -> Self {
                flags.0
            }
        }

        impl $name {
            $($(#[$value_words])* pub const $value: Self = Self(1 << $bit);)*

            /// All known flags.
            pub const KNOWN: u32 = 0 $(| 1 << $bit)*;

            /// Returns the flags with those of `other` set or cleared.
            pub const fn with(self, other: Self, is_set: bool) -> Self {
                match is_set {
                    true => Self(self.0 | other.0),
                    false => Self(self.0 & !other.0),
                }
            }

            /// Returns whether all flags of `other` are set.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns the strictest rule of the unknown flags for a reader of this version.
            pub const fn unknown(self) -> meta::ring::MustKnow {
                $crate::unknown::of_flags(self.0, Self::KNOWN)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

pub(crate) use {flags, kinds};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flag_or_kind_states_its_rule_by_range() {
        let rules = [0, 7, 8, 15, 16, 31].map(|bit| of_flags(1 << bit, 0));
        let [no, write, open] = [MustKnow::No, MustKnow::ToWrite, MustKnow::ToOpen];
        assert_eq!(rules, [no, no, write, write, open, open]);
        assert_eq!(of_flags(0xffff_ffff, 0xffff_0000), write);
        assert_eq!(of_flags(1 << 20, 1 << 20), no);
        assert_eq!([1, 127, 128, 191, 192, 255].map(of_kind), [open, open, write, write, no, no]);
    }
}
