//! An open pool: its vdisks and snapshots, the commits of clients, and the checkpoints.
//!
//! | file | holds |
//! | --- | --- |
//! | `pool.rs` | the open pool, and its public operations |
//! | `opening.rs` | making and opening a pool, and the replay of its log |
//! | `catalogue.rs` | vdisks and snapshots by name |
//! | `listing.rs` | lists of vdisks and snapshots |
//! | `rules.rs` | snapshots without a command, and rules that remove them; labels |
//! | `removal.rs` | removals of vdisks and snapshots |
//! | `rollback.rs` | rollbacks, and the lines of a name |
//! | `vdisk.rs`, `version.rs` | a vdisk in memory; where the blocks of a version are |
//! | `origin.rs` | where a clone finds the blocks that it inherits |
//! | `commit.rs`, `step.rs` | records of changes, and their effect in memory |
//! | `read.rs`, `copies.rs` | reads and block status; other copies of damaged bytes |
//! | `account.rs` | how many blocks a line holds, and its quota |
//! | `checkpoint.rs` | checkpoints |
//! | `fold.rs` | the parts of checkpoints that fold change trees into base trees |
//! | `damage.rs` | checkpoints with damaged maps |
//! | `check.rs` | the comparison of reachable with used blocks |
//! | `keeper.rs` | when checkpoints and flushes happen by themselves |
//! | `discards.rs` | discards of freed blocks on the device below |
//! | `tables.rs`, `nodes.rs`, `room.rs` | tables, nodes and space, as the rest uses them |

mod account;
mod catalogue;
mod check;
mod checkpoint;
mod commit;
mod copies;
mod damage;
mod discards;
mod fold;
mod keeper;
mod listing;
mod nodes;
mod opening;
mod origin;
mod pool;
mod read;
mod removal;
mod rollback;
mod room;
mod rules;
mod step;
mod tables;
mod vdisk;
mod version;

pub use account::Account;
pub use catalogue::VersionId;
pub use check::{Blocks, Checked};
pub use commit::ROOM_WITHIN;
pub use fold::FOLD_LEAVES;
pub use listing::{Listed, ListedSnapshot, ListedVdisk};
pub use opening::{BUFFER_BYTES, Lost, Options};
pub use pool::{CHANGES_MAX, OnDamage, Pool, UNFLUSHED_BYTES_MAX, Usage};
pub use read::{DataBlocks, READS_MAX};
pub use rollback::LINES_MAX;
pub use rules::{Keep, Taking};
pub use version::Version;
