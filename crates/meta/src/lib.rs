//! What survives: labels on disks, and what devices keep in them.
//!
//! | file | holds |
//! | --- | --- |
//! | `uuid.rs` | numbers that name disks and graphs |
//! | `label.rs` | what a label says |
//! | `codec.rs` | its bytes, as `docs/formats/label.md` has them |
//! | `place.rs` | where copies lie on a disk, and which one counts |
//! | `signature.rs` | what else may be on a disk |
//! | `store.rs` | one disk's label: reading, writing, one update at a time |

#![forbid(unsafe_code)]

mod codec;
mod label;
mod place;
mod signature;
mod store;
mod uuid;

pub use codec::{
    CELLS_MAX, COPY_BYTES_MAX, COUNT_MAX, HEADER_BYTES, MAGIC, SPEC_BYTES_MAX, VERSION, Wrong,
    checksum,
};
pub use label::{Cell, Holder, Label, Machine, NAME_BYTES_MAX};
pub use place::{AREA_BYTES, Area, DATA_START, DISK_BYTES_MIN, data_bytes, newest};
pub use signature::{Signature, Sought, find};
pub use store::{Seen, Store, wipe};
pub use uuid::Uuid;
