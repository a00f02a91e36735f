//! Reasons: stable codes for failures that programs and tests distinguish. The texts may change, the codes do not.

use std::fmt;

use crate::ErrorKind;

/// Declares the registry: the variant, its kind, its code, and one sentence for people.
macro_rules! reasons {
    ($($name:ident, $kind:ident, $code:literal, $text:literal;)*) => {
        /// The reason of an error, where the kind of the error is too general.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Reason {
            $(#[doc = $text] $name,)*
        }

        impl Reason {
            /// Every reason of errors, in the order of the registry.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the code of the reason for programs: an area and a name.
            pub const fn code(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// Returns the kind of error to which the reason belongs.
            pub const fn kind(self) -> ErrorKind {
                match self {
                    $(Self::$name => ErrorKind::$kind,)*
                }
            }

            /// Returns the sentence that explains the reason to the operator.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    LabelUsage, Invalid, "label.usage",
        "An option or a path cannot be used with labelled disks.";
    LabelNotBlank, InUse, "label.not-blank",
        "A disk cannot be labelled because the disk holds data already.";
    LabelNewer, Unsupported, "label.newer",
        "A label was written by a newer version of Cairn.";
    LabelDamaged, Corrupt, "label.damaged",
        "A label is damaged, or its disk is truncated.";
    LabelForeign, InUse, "label.foreign",
        "A disk belongs to another graph, or is another disk of this graph.";
    LabelDuplicate, InUse, "label.duplicate",
        "Two disks have the same label: one is a copy of the other.";
    LabelHeldByOtherHost, InUse, "label.held-by-other-host",
        "The disk is open on another machine, or in this graph.";
    LabelStale, Corrupt, "label.stale",
        "A disk is older than the other disks of its graph.";
    LabelSplitBrain, Degraded, "label.split-brain",
        "Disks of one graph were changed independently of each other.";
    LabelForgotten, Invalid, "label.forgotten",
        "The spec lacks disks or devices that the labels name.";
    LabelMissing, NotFound, "label.missing",
        "A disk is missing, and the graph cannot be served without the disk.";
    LabelDegraded, Degraded, "label.degraded",
        "A disk is missing; the graph can be served without the disk only by an explicit decision.";
    MirrorNoCurrentMember, Degraded, "mirror.no-current-member",
        "All members of a mirror that were found are stale.";
    MirrorSplitBrain, Degraded, "mirror.split-brain",
        "Members of a mirror were written independently of each other.";
    MirrorMemberMissing, Degraded, "mirror.member-missing",
        "A member in sync is missing from a mirror.";
    MirrorUnknown, Degraded, "mirror.unknown",
        "Members of a mirror had content but no state, so the members may differ.";
    MirrorFlushFailed, Degraded, "mirror.flush-failed",
        "A flush failed on every member of a mirror before it was closed.";
    ChangeOtherBytes, Unsupported, "change.other-bytes",
        "An export would have other content after a live change.";
    ChangeRenamesMembers, Unsupported, "change.renames-members",
        "A live change would rename members of a device that identifies its members by name.";
    ChangeOtherBlocks, Unsupported, "change.other-blocks",
        "A live change would increase the block size of an export that clients use.";
    ChangeOnRawDisks, Unsupported, "change.on-raw-disks",
        "A live change needs labelled disks, and the disks of the graph have no labels.";
    CryptOtherUnits, Invalid, "crypt.other-units",
        "The blocks of an encrypted disk are larger than the data units of the encryption.";
    CryptNoSlots, NotFound, "crypt.no-slots",
        "An encrypted disk has no key slots, and the disk is not new.";
    StateForeign, Corrupt, "state.foreign",
        "The disks below a device hold the metadata of another device.";
    VolumeGone, NotFound, "volume.gone",
        "The volume of this name was removed, and opening the name does not create it again.";
}

impl Reason {
    /// Returns the reason with the given `code`; `None` if this version of Cairn has no such reason.
    pub fn find(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.code() == code)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn error_reason_is_found_by_unique_code() {
        let codes: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(codes.len(), Reason::ALL.len(), "two reasons have one code");
        for reason in Reason::ALL {
            assert_eq!(Reason::find(reason.code()), Some(*reason));
        }
        assert_eq!(Reason::find("label"), None);
    }

    #[test]
    fn error_reasons_equal_documented_list() {
        let rows = Reason::ALL.iter().map(|it| format!("| `{it}` | {} |\n", it.text()));
        let table: String = rows.collect();
        let document = include_str!("../../../docs/reasons.md");
        assert!(document.ends_with(&table), "docs/reasons.md has to end with:\n{table}");
    }
}
