//! A device that holds virtual disks: space that they share, with snapshots and clones.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `opening.rs` | opening the pool, or making it, by the state in labels |
//! | `device.rs` | the device: its volumes and commands |
//! | `volume.rs` | the device of an open vdisk or snapshot |
//! | `verbs.rs` | the verbs of its commands |

mod device;
mod opening;
pub mod verbs;
mod volume;

use std::rc::Rc;

use block::control::{Verb as _, VerbInfo, volume as volumes};
use block::env::LocalFuture;
use block::units::write_size;
use block::{Info, Needs, Result};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, Summary, ValueType,
};
use pool::cell::PoolCell;
use pool::geometry::Geometry;

use device::PoolDevice;

const VERBS: &[&VerbInfo] = &[
    volumes::Create::INFO,
    volumes::Remove::INFO,
    volumes::Resize::INFO,
    verbs::Snapshot::INFO,
    verbs::CloneVersion::INFO,
];

/// The kind `pool`: a device that holds virtual disks.
pub const KIND: Kind = Kind {
    name: "pool",
    summary: "holds virtual disks with snapshots and clones",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[CACHE],
    capabilities: Capabilities {
        holds_volumes: true,
        keeps_objects: true,
        ..Capabilities::NONE
    },
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

const CACHE: OptionSpec = OptionSpec {
    name: "cache",
    value: ValueType::Size(CACHE_BYTES_MIN, CACHE_BYTES_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "memory that caches the maps of the vdisks; 64MiB if not set",
};

/// Limits and default of the option `cache`, in bytes.
const CACHE_BYTES_MIN: u64 = 1 << 20;
const CACHE_BYTES_DEFAULT: u64 = 64 << 20;
const CACHE_BYTES_MAX: u64 = 16 << 30;

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
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
    if lower.info.block_size > pool::BLOCK_BYTES {
        fault(format!(
            "{:?} has blocks of {} bytes; a pool needs blocks of at most {}",
            lower.name,
            lower.info.block_size,
            pool::BLOCK_BYTES
        ));
    }
    if let Err(error) = Geometry::new(lower.info.size) {
        fault(format!("{:?} has {}: {error}", lower.name, write_size(lower.info.size)));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(DevicePlan { info: info(&lower.info), needs: Needs::children(1) })
}

/// Returns the facts about the pool's own device. It has no bytes of its own.
fn info(lower: &Info) -> Info {
    Info { size: 0, ..lower.clone() }
}

fn describe(bytes: &[u8]) -> Result<Summary, String> {
    let cell = PoolCell::decode(bytes)?;
    let words = match cell.pool {
        Some(uuid) => format!("pool {uuid} of {}", write_size(cell.geometry.bytes)),
        None => "a pool that is being made".to_owned(),
    };
    Ok(Summary::whole(words))
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { config: given, env, mut lowers, state, .. } = making;
    let (env, name) = (env.clone(), given.name.clone());
    let cache = given.size(&CACHE).unwrap_or(CACHE_BYTES_DEFAULT);
    Box::pin(async move {
        let lower = lowers.remove(0);
        let device = PoolDevice::open(name, env, lower, state, cache).await?;
        Ok(device as Rc<dyn AnyDevice>)
    })
}
