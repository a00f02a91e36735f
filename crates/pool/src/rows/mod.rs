//! Rows of the tables of a pool: their keys and values as bytes of fixed width.
//!
//! | file | holds |
//! | --- | --- |
//! | `stored.rs` | the forms of fields on disk, and the macro that declares rows |
//! | `extent.rs` | extents and their free blocks |
//! | `vdisk.rs` | vdisks, their trees, their origins |
//! | `snapshot.rs` | snapshots, their details and labels |
//! | `hold.rs` | holds, removed items |
//! | `pass.rs` | passes, foreign frees |
//! | `catalogue.rs` | names, owners, slabs, allocators |

mod catalogue;
mod extent;
mod hold;
mod pass;
mod snapshot;
mod stored;
mod vdisk;

pub use catalogue::{AllocatorRow, AllocatorState, NameRow, NameState, OwnerRow, SlabRow};
pub use extent::{ExtentRow, ExtentState, FREE_ROW_BLOCKS, FreeRow, PlaceKind};
pub use hold::{HoldKind, HoldRow, RemovedRow};
pub use pass::{ForeignFreeRow, PassKind, PassRow, PeerRow};
pub use snapshot::{DetailRow, LabelRow, SnapshotFlags, SnapshotRow};
pub use vdisk::{
    Cipher, DEAD_ENTRIES_INDEX, Fill, HEAD, LineRow, OriginRow, SettledRow, SumKind, TREES_MAX,
    TreeRow, VdiskFlags, VdiskRow, VdiskState,
};

pub(crate) use pass::is_run;
pub use vdisk::VDISK_BYTES_MAX;

use meta::ring::MustKnow;

use crate::root::TABLES;

/// Maximum length in bytes of a key.
pub const KEY_BYTES_MAX: usize = 32;

/// A row of a table.
pub trait Row: Sized {
    /// The table of the row.
    const TABLE: Table;

    /// Appends the encoded row to `to`.
    ///
    /// # Panics
    /// If a value exceeds its limit. Code that makes rows checks the limits.
    fn encode(&self, to: &mut Vec<u8>);

    /// Decodes a row, which has the width of its table.
    ///
    /// # Errors
    /// A description of the fault in the row.
    fn decode(bytes: &[u8]) -> Result<Self, String>;
}

/// Declares the tables with their numbers and the types of their rows.
macro_rules! tables {
    ($($(#[$words:meta])* $table:ident = $number:literal, $row:ty;)*) => {
        /// A table of a pool.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Table {
            $($(#[$words])* $table = $number,)*
        }

        impl Table {
            /// All tables of this version, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$table,)*];

            /// Returns the length in bytes of a key.
            pub const fn key_bytes(self) -> usize {
                match self {
                    $(Self::$table => <$row>::KEY_BYTES,)*
                }
            }

            /// Returns the length in bytes of a row: key and value.
            pub const fn row_bytes(self) -> usize {
                match self {
                    $(Self::$table => <$row>::ROW_BYTES,)*
                }
            }

            /// Decodes a row of the table, encodes it, and returns the bytes, for checks of rows of any table.
            ///
            /// # Errors
            /// A description of the fault in the row.
            pub fn reencode(self, bytes: &[u8]) -> Result<Vec<u8>, String> {
                let mut again = Vec::new();
                match self {
                    $(Self::$table => <$row>::decode(bytes)?.encode(&mut again),)*
                }
                Ok(again)
            }
        }
    };
}

tables! {
    /// Extents of the allocator.
    Extents = 0, ExtentRow;
    /// Bitmaps of free blocks.
    Free = 1, FreeRow;
    /// Vdisks of the allocator.
    Vdisks = 2, VdiskRow;
    /// Trees of versions, and of dead entries.
    Trees = 3, TreeRow;
    /// Snapshots.
    Snapshots = 4, SnapshotRow;
    /// Rare properties of snapshots.
    Details = 5, DetailRow;
    /// Labels of snapshots.
    Labels = 6, LabelRow;
    /// Holds on snapshots.
    Holds = 7, HoldRow;
    /// Further origins of vdisks.
    Origins = 8, OriginRow;
    /// Positions of passes.
    Passes = 9, PassRow;
    /// Counters of foreign frees.
    Peers = 10, PeerRow;
    /// Foreign frees that are not confirmed.
    ForeignFrees = 11, ForeignFreeRow;
    /// Removed items that are kept for a time.
    Removed = 12, RemovedRow;
    /// Names of vdisks.
    Names = 13, NameRow;
    /// Owners of vdisks.
    Owners = 14, OwnerRow;
    /// Owners of slabs.
    Slabs = 15, SlabRow;
    /// Allocators.
    Allocators = 16, AllocatorRow;
    /// Lines that had a name before a rollback.
    Lines = 17, LineRow;
    /// Trees of settled snapshots.
    Settled = 18, SettledRow;
}

impl Table {
    /// Returns the table with this number.
    ///
    /// # Errors
    /// The rule for a reader that does not know the table.
    pub fn of_number(number: u32) -> Result<Self, MustKnow> {
        let known = Self::ALL.get(number as usize).filter(|table| **table as u32 == number);
        known.copied().ok_or(match number as usize {
            21 | 22 => MustKnow::ToWrite,
            23..TABLES => MustKnow::No,
            _ => MustKnow::ToOpen,
        })
    }

    /// Returns whether the table is part of the catalogue.
    pub const fn is_catalogue(self) -> bool {
        matches!(self, Self::Names | Self::Owners | Self::Slabs | Self::Allocators)
    }
}
