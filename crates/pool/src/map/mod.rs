//! Maps of pools: trees of runs, of dead entries and of rows, as in `docs/formats/pool-map.md`.
//!
//! | file | holds |
//! | --- | --- |
//! | `run.rs`, `root.rs` | runs and their checksums; descriptors of trees |
//! | `node.rs`, `columns.rs` | nodes, the checks of each, and their packed columns |
//! | `leaf.rs`, `inner.rs`, `dead.rs`, `rows.rs` | the kinds of nodes |
//! | `pack.rs` | sorted items into nodes |
//! | `store.rs` | the interface to disks, cache and free space |
//! | `cache.rs` | decoded nodes by physical address |
//! | `merge.rs`, `runs.rs`, `keyed.rs` | merges: of any tree, of runs, of dead entries and rows |
//! | `lookup.rs`, `scan.rs` | reads of a version; walks over a tree |
//! | `changes.rs` | changes in memory |
//! | `settle.rs` | the part of an interval tree that one snapshot sees |
//! | `space.rs` | kept snapshots; passes that free overwritten blocks |

mod cache;
mod changes;
mod columns;
mod dead;
mod inner;
mod keyed;
mod leaf;
mod lookup;
mod merge;
mod node;
mod pack;
mod root;
mod rows;
mod run;
mod runs;
mod scan;
mod settle;
mod space;
mod store;

pub use cache::{CACHE_NODES_MAX, NodeCache};
pub use changes::{Changed, Changes, INTERVAL_SNAPSHOTS_MAX};
pub use dead::DeadEntry;
pub use keyed::{DeadChange, RowChange, merge_dead, merge_rows};
pub use lookup::{Content, Layer, LeafSums, Piece, Reader, TREES_MAX};
pub use merge::{FromIter, MergeOptions, Merged, Source};
pub use node::{Key, LEVELS_MAX, NODE_BYTES, Node, Place, Pointer, node_checksum};
pub use root::{Filter, Form, KEY_BYTES_MAX, Root, SumKind, TreeKind, VALUE_BYTES_MAX};
pub use rows::row_key;
pub use run::{BLOCKS_MAX, Number, Run, RunChange, RunKind, Sums};
pub use runs::{merge_runs, write_interval};
pub use scan::{DamagedPart, FoldSource, Scan, damaged_parts, nodes_after};
pub use settle::settle;
pub use space::{Kept, Released, Window, drop_after, release, sweep};
pub use store::{Finds, Found, Overwritten, Reads, Replaced, Store};
