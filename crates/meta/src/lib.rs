//! Persistent metadata: labels on disks, and the state of devices in them.
//!
//! | file | holds |
//! | --- | --- |
//! | `uuid.rs` | UUIDs of disks and graphs |
//! | `label.rs` | the content of a label |
//! | `codec.rs` | encoding of a label, as in `docs/formats/label.md` |
//! | `place.rs` | positions of the copies on a disk, and the choice of the newest |
//! | `signature.rs` | signatures of other formats on a disk |
//! | `store.rs` | one disk's label: reads, and updates one at a time |
//! | `vault/` | persistent objects that are too large for a label |
//! | `alloc.rs` | block map and free-space allocator, a service over a vault |
//! | `inspect.rs` | all copies of a label, one by one |
//! | `io.rs` | requests of this crate to the disks below |

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
pub use signature::{ForeignContent, Signature, find};
pub use store::{AreaContent, Store, wipe, wipe_back};
pub use uuid::Uuid;
