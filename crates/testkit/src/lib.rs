//! Tests for kinds: a lower device that uses every freedom of the contract, and a battery that every kind must pass
//! over it.
//!
//! The battery is tested too: [`wrong`] has devices that each break one rule, and the battery must refuse each device
//! by that rule.
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
