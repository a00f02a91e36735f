//! The load generator for benchmarks: one client for all servers, so that a comparison measures the servers and not
//! their clients.
//!
//! `cairn bench URI`, the benchmark suite (for the README's table) and the benchmarks of jobs all use [`load::run`].
#![forbid(unsafe_code)]

pub mod arguments;
pub mod awake;
pub mod ground;
pub mod histogram;
pub mod load;
pub mod machine;
pub mod pattern;
pub mod places;
pub mod quote;
pub mod rows;
pub mod served;
pub mod stats;
