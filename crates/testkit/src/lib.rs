//! Tests for kinds of devices: a lower that uses every freedom of the contract, and a battery that every kind must
//! pass over such lowers.
//!
//! The battery is tested too: the module [`wrong`] has devices that break one rule each. The battery must refuse each
//! of these devices for the breach of its rule.
#![forbid(unsafe_code)]

mod battery;
mod bench;
mod commands;
mod kept;
pub mod nbd;
mod refusal;
mod smoke;
mod strict;
mod subject;
pub mod toys;
pub mod wrong;

pub use battery::{Passed, conformance};
pub use kept::Shelf;
pub use refusal::{Broken, Refusal};
pub use smoke::{INPUTS, smoke};
pub use strict::{Inject, Strict, Watch};
pub use subject::{LowerSpec, Subject, disk_path};
