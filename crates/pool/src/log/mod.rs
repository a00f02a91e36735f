//! Items of the records in the log of an allocator. The records are those of [`meta::ring`].
//!
//! | file | holds |
//! | --- | --- |
//! | `changes.rs` | changes of blocks of a vdisk |
//! | `item.rs` | all other items, and the choice by type |

mod changes;
mod item;

pub use changes::{CHANGES_HEADER_BYTES, Changes, HOLE, RUN_HEADER_BYTES, Run, has_addresses};
pub use item::{ForeignFree, LogItem, RowKey, SnapshotItem, log_items};
