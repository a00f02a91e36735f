//! Pools: space that virtual disks share, as in `docs/formats/pool.md`.
//!
//! | file | holds |
//! | --- | --- |
//! | `address.rs` | physical addresses |
//! | `map/` | trees: maps of versions, dead entries, tables |

#![forbid(unsafe_code)]

mod address;
pub mod map;

pub use address::{Address, BLOCK_BYTES};
