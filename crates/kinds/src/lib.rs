//! The kinds of devices: one folder each, with code, manual and tests, and one line in [`REGISTRY`].

mod concat;
pub mod crypt;
mod delay;
mod error;
mod file;
mod limit;
mod linear;
mod memory;
pub mod migrate;
pub mod mirror;
mod nowhere;
mod null;
mod partition;
mod pass;
pub mod remap;
mod stripe;
mod tables;
#[cfg(test)]
mod tests;
pub mod trace;

use kind::Registry;

/// The commands for key slots, for their typed client.
pub use crypt::verbs as keys;

/// All kinds of this crate.
pub const REGISTRY: Registry = Registry(&[
    file::FILE,
    file::PATH,
    memory::KIND,
    null::KIND,
    linear::KIND,
    partition::KIND,
    concat::KIND,
    stripe::KIND,
    pass::KIND,
    error::KIND,
    delay::KIND,
    limit::KIND,
    trace::KIND,
    mirror::KIND,
    crypt::KIND,
    migrate::KIND,
    remap::KIND,
]);
