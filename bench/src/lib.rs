//! The load generator: one client for every server, so that servers are compared and not clients.
//!
//! `cairn bench URI` and the suite that writes the README's table both use [`load::run`].
#![forbid(unsafe_code)]

pub mod histogram;
pub mod load;
pub mod pattern;
