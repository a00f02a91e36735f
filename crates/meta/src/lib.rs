//! Persistent metadata: labels on disks, the cells of devices in labels, and vaults.
//!
//! | file | holds |
//! | --- | --- |
//! | `uuid.rs` | UUIDs of disks and graphs |
//! | `label.rs` | the content of a label |
//! | `codec.rs` | encoding of a label, as in `docs/formats/label.md` |
//! | `place.rs` | positions of the copies of a label on a disk, and the choice of the newest label |
//! | `signature.rs` | signatures of other formats on a disk |
//! | `store.rs` | reading and updating the label of one disk |
//! | `ring/` | rings of records for logs and journals |
//! | `journal/` | changes in a ring before they are written in place |
//! | `vault/` | persistent objects that are too large for a label |
//! | `regions/` | durable marks on the regions of a device that clients write, a service over a vault |
//! | `home/` | the objects of a device: their room, their state in labels, their life |
//! | `alloc.rs` | block map and free-space allocator, a service over a vault |
//! | `inspect.rs` | inspection of every copy of a disk's label |
//! | `copies.rs` | reads from any copy of a redundant device |
//! | `io.rs` | requests to the disks that hold labels and vaults |

#![forbid(unsafe_code)]

pub mod alloc;
mod codec;
mod copies;
pub mod home;
mod inspect;
pub mod io;
pub mod journal;
mod label;
mod place;
pub mod regions;
pub mod ring;
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
