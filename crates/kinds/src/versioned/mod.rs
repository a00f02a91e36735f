//! A device with a history: a pool of one virtual disk, whose snapshots are the volumes of the device.
//!
//! This is Violin's versioning module (section 4, Figure 11).
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `device.rs` | carrying out requests and commands |

mod device;
#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use ::pool::BLOCK_BYTES;
use ::pool::live::BUFFER_BYTES;
use ::pool::name::VdiskName;
use ::pool::rows::VDISK_BYTES_MAX;
use block::control::state::Check;
use block::control::{Verb as _, VerbInfo, volume as volumes};
use block::env::LocalFuture;
use block::units::write_size;
use block::{Needs, Result, error};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, ValueType,
};

use crate::pool::home::PoolHome;
use crate::pool::verbs::{CountData, Keep, ListSnapshots, SetLabel, SetQuota, SetTaking, Snapshot};
use crate::pool::{CACHE, DISCARD, describe, faults_below, volume};
use device::Versioned;

/// Commands of a versioned device.
const VERBS: &[&VerbInfo] = &[
    Check::INFO,
    volumes::Remove::INFO,
    Snapshot::INFO,
    ListSnapshots::INFO,
    CountData::INFO,
    SetTaking::INFO,
    Keep::INFO,
    SetLabel::INFO,
    SetQuota::INFO,
];

/// The kind `versioned`: a device with snapshots.
pub const KIND: Kind = Kind {
    name: "versioned",
    summary: "keeps snapshots of its bytes",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[SIZE, CACHE, DISCARD],
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

const SIZE: OptionSpec = OptionSpec {
    name: "size",
    value: ValueType::Size(BLOCK_BYTES as u64, VDISK_BYTES_MAX),
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "bytes that clients see; may exceed the space of the lower device",
};

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let mut faults = faults_below(given);
    let size = given.size(&SIZE).unwrap_or_default();
    if !size.is_multiple_of(u64::from(BLOCK_BYTES)) {
        let near = write_size(size.next_multiple_of(u64::from(BLOCK_BYTES)));
        let words = format!("size {size} is not a multiple of {BLOCK_BYTES}; \"{near}\" is");
        faults.push(Fault::new("size", words));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let below = &given.lowers[0].info;
    let info = volume::info(below, size, below.read_only);
    let needs = Needs { standing_bytes: BUFFER_BYTES as u32, ..volume::NEEDS };
    Ok(DevicePlan { info, needs })
}

/// The name of the only vdisk in the pool.
fn only_vdisk() -> VdiskName {
    VdiskName::parse("disk").expect("a valid name")
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let size = making.config.size(&SIZE).unwrap_or_default();
    let home = PoolHome::open(KIND.name, making, Some((only_vdisk(), size)));
    Box::pin(async move {
        let device = Versioned::open(home.await?, size).await?;
        Ok(Rc::new(device) as Rc<dyn AnyDevice>)
    })
}

/// Returns the error for a spec with another size than the device has.
fn other_size(is: u64) -> block::Error {
    let is = write_size(is);
    error!(Invalid, "the versioned device was made with size = \"{is}\"")
        .next(format!("set size = \"{is}\""))
}
