//! A device that holds virtual disks, with snapshots and clones, in the space of its lower.
//!
//! This is Parallax's virtual disk image. The pool itself is the crate `pool`.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `home.rs` | opening the pool, or making it; versions that clients have open |
//! | `record.rs` | the state in labels |
//! | `device.rs` | the device of the pool: its commands and volumes |
//! | `volume.rs` | the device of an open version |
//! | `verbs.rs` | the commands |

mod device;
pub(crate) mod home;
mod record;
#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
pub mod verbs;
pub(crate) mod volume;

use std::rc::Rc;

use ::pool::BLOCK_BYTES;
use ::pool::geometry::{Geometry, POOL_BYTES_MIN};
use ::pool::live::{BUFFER_BYTES, FOLD_LEAVES, Options};
use block::control::state::Check;
use block::control::{Verb as _, VerbInfo, volume as volumes};
use block::env::LocalFuture;
use block::units::write_size;
use block::{Info, Needs, Result, StateStore};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, ValueType,
};

pub(crate) use device::{PoolDevice, report};
use home::PoolHome;
pub(crate) use record::describe;
use verbs::{
    CloneOf, CountData, Keep, ListSnapshots, ListVdisks, RollBack, SetLabel, SetQuota, SetTaking,
    Snapshot,
};

/// Commands of a pool.
const VERBS: &[&VerbInfo] = &[
    Check::INFO,
    volumes::Create::INFO,
    volumes::Remove::INFO,
    volumes::Resize::INFO,
    Snapshot::INFO,
    CloneOf::INFO,
    ListVdisks::INFO,
    ListSnapshots::INFO,
    CountData::INFO,
    SetTaking::INFO,
    Keep::INFO,
    SetLabel::INFO,
    RollBack::INFO,
    SetQuota::INFO,
];

/// The kind `pool`: a device that holds virtual disks.
pub const KIND: Kind = Kind {
    name: "pool",
    summary: "holds virtual disks with snapshots and clones",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[CACHE, DISCARD],
    capabilities: Capabilities { keeps_objects: true, holds_volumes: true, ..Capabilities::NONE },
    verbs: VERBS,
    maker: Maker::Stateful {
        bytes: Bytes::Private,
        plan,
        make,
        prepare: None,
        preflight: None,
        describe,
    },
};

/// The option with the memory for nodes of trees.
pub(crate) const CACHE: OptionSpec = OptionSpec {
    name: "cache",
    value: ValueType::Size(CACHE_BYTES_MIN, CACHE_BYTES_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "memory that caches nodes of the maps; 64MiB if not set",
};

/// The option with which freed blocks are discarded below.
pub(crate) const DISCARD: OptionSpec = OptionSpec {
    name: "discard",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "whether blocks that become free are discarded on the device below; true if not set",
};

const CACHE_BYTES_MIN: u64 = 1 << 20;
const CACHE_BYTES_DEFAULT: u64 = 64 << 20;
const CACHE_BYTES_MAX: u64 = 64 << 30;

/// Returns how to open the pool of a device, by its spec and by the device below.
fn options(given: &DeviceConfig, below: &Info, store: &dyn StateStore) -> Options {
    Options {
        cache_bytes: given.size(&CACHE).unwrap_or(CACHE_BYTES_DEFAULT),
        read_only: below.read_only,
        accept_loss: store.accepts_loss(),
        discard: given.switch_or(&DISCARD, true),
        fold_leaves: FOLD_LEAVES,
    }
}

/// Checks that a pool can be on the lower of a device.
pub(crate) fn faults_below(given: &DeviceConfig) -> Vec<Fault> {
    let lower = &given.lowers[0];
    let mut faults = Vec::new();
    let mut fault = |words: String| faults.push(Fault::new("on", words));
    if !lower.labelled {
        fault(format!(
            "{:?} is on a raw disk, but a pool keeps its state in labels; set label = true on the \
             disks",
            lower.name
        ));
    }
    let Info { block_size, size, max_transfer, .. } = lower.info;
    if block_size > BLOCK_BYTES || max_transfer < BLOCK_BYTES {
        fault(format!(
            "{:?} has blocks of {block_size} bytes; a pool needs blocks of at most {BLOCK_BYTES}",
            lower.name
        ));
    }
    if Geometry::new(size).is_err() {
        fault(format!(
            "{:?} has {}; a pool needs at least {}",
            lower.name,
            write_size(size),
            write_size(POOL_BYTES_MIN)
        ));
    }
    faults
}

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let faults = faults_below(given);
    if !faults.is_empty() {
        return Err(faults);
    }
    let below = &given.lowers[0].info;
    let info = Info { size: 0, ..volume::info(below, 0, below.read_only) };
    let needs = Needs { standing_bytes: BUFFER_BYTES as u32, ..Needs::children(1) };
    Ok(DevicePlan { info, needs })
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let home = PoolHome::open(KIND.name, making, None);
    Box::pin(async move { Ok(Rc::new(PoolDevice::new(home.await?)) as Rc<dyn AnyDevice>) })
}
