//! Exports: devices that clients use over NBD or as a FUSE mount. This crate sees devices behind portals, not graphs.
#![forbid(unsafe_code)]

mod catalog;
pub mod fuse;
pub mod nbd;
mod pieces;
mod tokens;

pub use catalog::{Catalog, ExportList, GraphCatalog, Listed, Looked};
