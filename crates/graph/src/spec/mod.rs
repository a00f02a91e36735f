//! The spec of a graph as text, and the plan made from it. A plan contains every fact about the graph, and planning
//! opens no device.
//!
//! [`Spec::parse`] reads the text. [`Spec::plan`] checks the spec against the available kinds and disks. Neither stops
//! at a fault: all faults are reported together, each with its line and column.
//!
//! | file | holds |
//! | --- | --- |
//! | `tree.rs`, `vars.rs` | TOML with the position of each key and value; variables are replaced |
//! | `parse.rs`, `listen.rs` | the sections of a spec |
//! | `keys.rs` | the tables of sections and keys |
//! | `draft.rs`, `value.rs` | the kind, the options and the lowers of one disk or device |
//! | `order.rs` | order of devices, lowers first; cycles and depth |
//! | `owner.rs` | owners of the bytes of a device |
//! | `plan.rs`, `known.rs` | the plan of every device, lowers first; facts from labels |
//! | `volumes.rs` | volumes that the spec names |
//! | `disks.rs`, `import.rs` | the spec that labels keep: its disks, and its import on another machine |
//! | `label.rs` | contents that a label may have |
//! | `edit.rs` | small changes of a spec: moving, adding and removing a disk |
//! | `moving.rs` | the spec during a migration |
//! | `past.rs`, `unkept.rs` | earlier versions of the spec, and settings that labels do not contain |
//! | `relative.rs` | paths that depend on the working directory |
//! | `summary.rs` | size, redundancy and properties of each export |
//! | `fault.rs`, `near.rs` | faults, and guesses of misspelt words |
//! | `write.rs` | values in the syntax of a spec |

#![forbid(unsafe_code)]

mod around;
mod disks;
mod draft;
mod edit;
mod fault;
mod import;
mod keys;
mod known;
mod label;
mod listen;
mod moving;
mod near;
mod order;
mod owner;
mod parse;
mod past;
mod plan;
mod relative;
mod reserves;
mod summary;
#[cfg(test)]
pub(crate) mod test_kinds;
mod tree;
mod unkept;
mod value;
mod vars;
mod volumes;
pub mod write;

pub(crate) use disks::plain_disks;
pub(crate) use draft::{floats, options_of};
pub use fault::{Fault, Faults, Position, Severity};
pub use import::{Local, NOT_FOUND};
pub use keys::{KeySpec, KeyValue, SECTIONS, SectionSpec};
pub use known::KnownDisk;
pub use listen::{
    LISTENS_MAX, Listen, SOCKET_PATH_MAX_BYTES, TlsPaths, is_loopback, parse_address,
};
pub use moving::Move;
pub use order::DEPTH_MAX;
pub use parse::{DEVICES_MAX, EXPORTS_MAX, NAME_MAX_BYTES, Spec, TEXT_MAX_BYTES};
pub use past::{Forgotten, Known};
pub(crate) use plan::odd_size;
pub use plan::{LabelledDisk, Planned, PlannedExport, PlannedNode, Role};
pub use unkept::Unkept;
pub use volumes::{FoundVolume, FoundVolumes};
