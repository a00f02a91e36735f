//! `cairn vdisk`: makes, lists, snapshots, clones, resizes and removes the virtual disks of pools in running graphs.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the arguments of each verb |
//! | `name.rs` | finding the pool of a name, and the parts of the name |
//! | `change.rs` | the verbs that change a pool |
//! | `list.rs` | lists of virtual disks and snapshots |
//! | `tree.rs` | the picture of snapshots and clones |

mod change;
mod list;
mod name;
mod tree;

use std::time::Duration;

use block::units::{parse_duration, parse_size};
use clap::{Args, Subcommand};
use kinds::vdisks::Taking;

use crate::complete;
use crate::exit::Result;
use crate::out::Form;
use crate::running::At;

/// Arguments of `vdisk`.
#[derive(Args)]
pub struct VdiskArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Create an empty virtual disk, which takes space only for written blocks
    Create {
        /// Its name, with that of its pool
        #[arg(value_name = "POOL/VDISK", add = complete::in_pool())]
        name: String,
        /// Its size, such as 40G
        #[arg(value_parser = parse_size)]
        size: u64,
        /// Let it hold at most this, with its snapshots and maps
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        quota: Option<u64>,
        #[command(flatten)]
        how: How,
    },
    /// List virtual disks, or the snapshots of one
    Ls {
        /// A pool, a virtual disk, or a versioned device; all pools without it
        #[arg(value_name = "POOL|POOL/VDISK|VERSIONED", add = complete::pool_or_volume())]
        of: Option<String>,
        /// Also show what each shares with others; reads the maps of all that are listed
        #[arg(long)]
        shared: bool,
        #[command(flatten)]
        at: At,
    },
    /// Take a snapshot of virtual disks or of a versioned device, of all at one instant
    Snap {
        /// The virtual disks, each with the label of its snapshot if it gets one
        #[arg(value_name = "POOL/VDISK[@LABEL]", required = true, add = complete::pool_or_volume())]
        names: Vec<String>,
        /// Do not wait until the snapshots are durable; the next flush makes them durable
        #[arg(long = "async", conflicts_with = "every")]
        is_async: bool,
        /// Take snapshots from now on: after each such time (10ms), with each flush, with each write, or never
        #[arg(long, value_name = "TIME|flush|write|never", value_parser = change::parse_taking)]
        every: Option<Taking>,
        #[command(flatten)]
        how: How,
    },
    /// Make virtual disks with the bytes of a snapshot, without a copy
    Clone {
        /// The snapshot, or a virtual disk: then a snapshot of it is taken first
        #[arg(value_name = "POOL/VDISK[@SNAPSHOT]", add = complete::volume())]
        origin: String,
        /// The clone; with --count, {n} in it stands for a number
        #[arg(value_name = "POOL/CLONE", add = complete::in_pool())]
        name: String,
        /// Number of clones
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=change::CLONES_MAX))]
        count: Option<u64>,
        #[command(flatten)]
        how: How,
    },
    /// Give a virtual disk that no client has open the bytes of one of its snapshots
    ///
    /// All snapshots stay. If the bytes before are in no snapshot, one is taken first, so a rollback to that one goes
    /// forward again.
    Rollback {
        /// The snapshot
        #[arg(value_name = "POOL/VDISK@SNAPSHOT", add = complete::volume())]
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Keep only some snapshots of a virtual disk, now and from now on
    ///
    /// Snapshots with a label, with clones or with clients are always kept.
    Keep {
        /// The virtual disk
        #[arg(value_name = "POOL/VDISK", add = complete::volume())]
        name: String,
        /// Keep the last N
        #[arg(long, value_name = "N", default_value_t = 0)]
        last: u64,
        /// Keep the first of each such time, such as 1h
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        each: Option<Duration>,
        /// Keep all from now on
        #[arg(long, conflicts_with_all = ["last", "each", "once"])]
        all: bool,
        /// Remove the others now, and keep all later ones
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        how: How,
    },
    /// Give a snapshot a label, or take its label away
    Label {
        /// The snapshot
        #[arg(value_name = "POOL/VDISK@SNAPSHOT", add = complete::volume())]
        name: String,
        /// The label
        #[arg(required_unless_present = "none")]
        label: Option<String>,
        /// Take the label away
        #[arg(long, conflicts_with = "label")]
        none: bool,
        #[command(flatten)]
        how: How,
    },
    /// Draw virtual disks, their snapshots, and the clones of these
    Tree {
        /// A pool; all pools without it
        #[arg(value_name = "POOL", add = complete::pool_or_volume())]
        pool: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// Change the size of a virtual disk that no client has open, or the quota of any
    Resize {
        /// The virtual disk
        #[arg(value_name = "POOL/VDISK", add = complete::volume())]
        name: String,
        /// Its new size
        #[arg(value_parser = parse_size, required_unless_present = "quota")]
        size: Option<u64>,
        /// Let it hold at most this, with its snapshots and maps
        #[arg(long, value_name = "SIZE|none", value_parser = change::parse_quota)]
        quota: Option<u64>,
        #[command(flatten)]
        how: How,
    },
    /// Remove snapshots, or virtual disks with their snapshots
    Rm {
        /// The virtual disks and snapshots
        #[arg(value_name = "POOL/VDISK[@SNAPSHOT]", required = true, add = complete::volume())]
        names: Vec<String>,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        how: How,
    },
}

/// Arguments of all verbs that change a pool.
#[derive(Args)]
struct How {
    /// Show the steps without doing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

impl VdiskArgs {
    /// Lists or changes virtual disks.
    pub fn run(self, form: Form) -> Result {
        match self.verb {
            Verb::Create { name, size, quota, how } => {
                change::create(form, &name, size, quota, &how)
            }
            Verb::Ls { of, shared, at } => list::run(form, of.as_deref(), shared, &at),
            Verb::Snap { names, every: Some(taking), how, .. } => {
                change::take(form, &names, taking, &how)
            }
            Verb::Snap { names, is_async, how, .. } => change::snap(form, &names, is_async, &how),
            Verb::Keep { name, last, each, all, once, how } => {
                change::keep(form, &name, &change::Rule { last, each, all, once }, &how)
            }
            Verb::Rollback { name, how } => change::roll_back(form, &name, &how),
            Verb::Label { name, label, how, .. } => change::label(form, &name, label, &how),
            Verb::Tree { pool, at } => tree::run(form, pool.as_deref(), &at),
            Verb::Clone { origin, name, count, how } => {
                change::clone(form, &origin, &name, count, &how)
            }
            Verb::Resize { name, size, quota, how } => {
                change::resize(form, &name, size, quota, &how)
            }
            Verb::Rm { names, yes, how } => change::rm(form, &names, yes, &how),
        }
    }
}
