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
//! | `vault/` | persistent objects: what is too much for a label |
//! | `alloc.rs` | which block is where, and which places are free: a service over a vault |
//! | `inspect.rs` | all copies of a label, one by one |
//! | `io.rs` | requests of our own to the disks below |

#![forbid(unsafe_code)]

pub mod alloc;
mod codec;
mod inspect;
mod io;
mod label;
mod place;
mod signature;
mod store;
mod uuid;
pub mod vault;

pub use codec::{
    CELLS_MAX, COPY_BYTES_MAX, COUNT_MAX, HEADER_BYTES, MAGIC, PAST_BYTES_MAX, PAST_MAX,
    SPEC_BYTES_MAX, VERSION, Wrong, checksum,
};
pub use inspect::{CopyFound, Inspection, inspect};
pub use label::{Cell, Holder, Label, Machine, NAME_BYTES_MAX, Past};
pub use place::{AREA_BYTES, Area, DATA_START, DISK_BYTES_MIN, data_bytes, newest};
pub use signature::{Signature, Sought, find};
pub use store::{Seen, Store, wipe, wipe_back};
pub use uuid::Uuid;
