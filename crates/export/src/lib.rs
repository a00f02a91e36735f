//! Exports: devices offered to clients. This crate sees devices, not graphs.
#![forbid(unsafe_code)]

pub mod fuse;
pub mod nbd;
mod pieces;
