//! Pools: space that virtual disks share, as in `docs/formats/pool.md`.
//!
//! | file | holds |
//! | --- | --- |
//! | `address.rs` | physical addresses |

#![forbid(unsafe_code)]

mod address;

pub use address::{Address, BLOCK_BYTES};
