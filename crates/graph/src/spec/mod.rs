//! A graph as text: from a spec to a plan in which everything is known but nothing is open.
//!
//! [`Spec::parse`] reads the text, [`Spec::plan`] checks it against the kinds there are and the disks
//! there are. Faults do not stop either of them: all are told together, each with its line and column.
//!
//! | file | holds |
//! | --- | --- |
//! | `tree.rs`, `vars.rs` | TOML with the place of everything, variables replaced |
//! | `parse.rs`, `listen.rs` | the sections of a spec |
//! | `draft.rs`, `value.rs` | one disk or device: its kind, its options, what it stands on |
//! | `order.rs` | what stands on what: cycles, depth, the lowest first |
//! | `owner.rs` | which bytes belong to whom |
//! | `plan.rs` | the plan of every device, from the bottom up |
//! | `disks.rs`, `import.rs` | the spec that labels keep: its disks, and all of it on another machine |
//! | `label.rs` | what a label may say |
//! | `edit.rs` | small changes of a spec: a disk that moves, comes or goes |
//! | `moving.rs` | the spec while bytes move |
//! | `past.rs` | the spec as it was before |
//! | `summary.rs` | what the user gets |
//! | `fault.rs`, `near.rs` | faults, and the word that was meant |
//! | `write.rs` | values as a spec takes them |

#![forbid(unsafe_code)]

mod disks;
mod draft;
mod edit;
mod fault;
mod import;
mod label;
mod listen;
mod moving;
mod near;
mod order;
mod owner;
mod parse;
mod past;
mod plan;
mod summary;
#[cfg(test)]
pub(crate) mod test_kinds;
mod tree;
mod value;
mod vars;
pub mod write;

pub(crate) use disks::plain_disks;
pub(crate) use draft::options_of;
pub use fault::{Fault, Faults, Position, Severity};
pub use import::{Local, NOWHERE};
pub use listen::{
    LISTENS_MAX, Listen, SOCKET_PATH_MAX_BYTES, TlsPaths, is_loopback, parse_address,
};
pub use moving::Move;
pub use order::DEPTH_MAX;
pub use parse::{DEVICES_MAX, EXPORTS_MAX, NAME_MAX_BYTES, Spec, TEXT_MAX_BYTES};
pub use past::{Forgotten, Known};
pub use plan::{LabelledDisk, Planned, PlannedExport, PlannedNode, Role, Surveyed};
pub use summary::Redundancy;
