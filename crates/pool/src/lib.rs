//! Pools: space that virtual disks share, as in `docs/formats/pool.md`.

#![forbid(unsafe_code)]
