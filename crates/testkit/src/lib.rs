//! Tests for kinds of devices: a strict lower that uses every freedom of the contract, and the battery of tests that
//! every kind must pass over strict lowers.
//!
//! The battery is tested too: the devices in [`wrong`] break one rule each, and the battery must refuse each of them
//! because of that rule.
#![forbid(unsafe_code)]

mod battery;
mod bench;
mod commands;
pub mod copied;
mod copies;
mod kept;
pub mod nbd;
pub mod recorded;
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
