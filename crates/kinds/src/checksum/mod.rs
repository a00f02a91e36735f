//! The core of a device that verifies the bytes of its lower: a checksum for each block, in the vault of the device.
//!
//! The format is `docs/formats/checksum.md`. Labels, options and the first start are not part of the core: its maker hands
//! over an open vault with the objects of [`Objects`], and the regions or the journal.
//!
//! | file | holds |
//! | --- | --- |
//! | `sums.rs` | checksums of blocks, and their array |
//! | `objects.rs` | the objects in the vault |
//! | `device.rs` | the open device: requests, reports, close |
//! | `read.rs` | reads, which verify |
//! | `write.rs` | writes and zeroes in marked regions |
//! | `doubts.rs` | blocks behind failed writes |
//! | `journaled.rs` | changes through a journal |
//! | `settle.rs` | repair, or acceptance, of a block that differs from its checksum |
//! | `scan.rs` | the scan of regions marked at the opening, and of ranges in which copies may differ |
//! | `making.rs` | the first checksums of a lower with unknown bytes |
//!
//! **Invariants**
//! - A read returns only bytes that fit their checksums, except blocks behind the progress of the first checksums, and
//!   *accepted* ones.
//! - An unverified block is accepted only in a region marked at the opening that the scan has not been through, or after a
//!   failed write. With a journal no block is accepted.
//! - With copies below, all copies are asked before a block is accepted, and a stale copy is never accepted. The accepted
//!   bytes are on all copies, and their checksum is posted, before the answer.
//! - With redundancy above, only a last resort returns an unverified block, and the block stays unverified until it is
//!   written.
//! - A block is repaired and accepted under its exclusive lock.

mod device;
mod doubts;
mod journaled;
mod making;
mod objects;
mod read;
mod scan;
mod settle;
mod sums;
mod write;

pub use device::{Core, Mode, NEEDS, Numbers, Parts, Redundancy};
pub use doubts::DOUBTS_MAX;
pub use journaled::Target;
pub use objects::Objects;
pub use scan::SCAN_BYTES;
pub use sums::{BLOCK_BYTES, PIECE_BYTES, Seed, Sum, Sums};
pub use write::ZERO_BYTES;
