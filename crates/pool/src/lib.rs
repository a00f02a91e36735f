//! Pools: space that virtual disks share, as in `docs/formats/pool.md`.
//!
//! | file | holds |
//! | --- | --- |
//! | `address.rs` | physical addresses |
//! | `geometry.rs` | places of areas and extents on the device |
//! | `root/` | header and superblocks, and the order in which they are written |
//! | `extent.rs` | the header in an extent |
//! | `log/` | items of the log's records |
//! | `rows/` | rows of the tables |
//! | `name.rs` | names of vdisks and snapshots |
//! | `unknown.rs` | the rule for unknown flags and kinds |
//! | `space/` | blocks in use, and free ones |
//! | `live/` | an open pool: commits, checkpoints, reads, the catalogue |
//! | `map/` | trees: maps of versions, dead entries, tables |

#![forbid(unsafe_code)]

mod address;
pub mod extent;
pub mod geometry;
pub mod live;
pub mod log;
pub mod map;
pub mod name;
pub mod root;
pub mod rows;
pub mod space;
pub mod unknown;

pub use address::{Address, BLOCK_BYTES};

/// Highest valid sequence, epoch, and number of an opening, checkpoint or snapshot.
pub const NUMBER_MAX: u64 = (1 << 48) - 1;

/// Highest valid counter and offset: beyond any use, and far from overflow.
pub const COUNT_MAX: u64 = 1 << 56;

/// The largest number of an allocator.
pub const ALLOCATORS_MAX: u32 = 126;

/// Maximum number of blocks of an extent.
pub const EXTENT_BLOCKS_MAX: u32 = (geometry::EXTENT_BYTES_MAX / BLOCK_BYTES as u64) as u32;

/// Bytes of the descriptor of a tree in rows and superblocks (`docs/formats/pool-map.md`).
pub const DESCRIPTOR_BYTES: usize = map::Root::BYTES;

/// The encoded descriptor of a tree; all zeros for an empty one.
pub type Descriptor = [u8; DESCRIPTOR_BYTES];
