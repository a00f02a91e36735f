//! The structures that lead to everything else: the header of a pool and the superblocks of its allocators.
//!
//! | file | holds |
//! | --- | --- |
//! | `prelude.rs` | the fields that all root structures have |
//! | `header.rs` | the header of a pool |
//! | `superblock.rs` | the superblock of an allocator |
//! | `areas.rs` | the choice among four slots, and the order of writes |
//! | `store.rs` | the I/O of both |

mod areas;
mod header;
mod prelude;
mod store;
mod superblock;

pub use areas::{Area, Choice, RootStructure, Slots, Step, Unusable, choose, place, steps};
pub use header::{HEADER_MAGIC, Header};
pub use prelude::{SLOT_BYTES, Wrong, root_checksum};
pub use store::{Encoded, RootStore};
pub use superblock::{SUPERBLOCK_MAGIC, Superblock, SuperblockFlags, TABLES};
