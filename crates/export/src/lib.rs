//! Exports: devices offered to clients. This crate sees devices, not graphs.
#![forbid(unsafe_code)]

mod catalog;
pub mod fuse;
pub mod nbd;
mod pieces;
mod tokens;

pub use catalog::{Catalog, ExportList, Listed};
