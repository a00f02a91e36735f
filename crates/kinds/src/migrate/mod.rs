//! Moves the bytes of one device to another, or changes them in place, while clients use them.
//!
//! This is Violin's migration (section 2.2), at a speed that the user sets. Every byte is on exactly one lower at any
//! time: before the boundary on the target, behind the boundary on the source.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `device.rs` | carrying out requests, before and behind the boundary |
//! | `mover.rs` | moving bytes and the boundary |
//! | `record.rs` | the codec of the state in labels |

mod device;
mod mover;
pub mod record;
#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use block::env::LocalFuture;
use block::job::Job;
use block::units::format_exact;
use block::{Env, Info, Lower, Needs, Result, StateStore, error};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, Moving, OptionSpec, Plan, Scope, ValueType,
};

use device::{Migrate, Parts};
use record::Record;

/// The kind `migrate`: a device that moves bytes from one lower to another while clients use them.
pub const KIND: Kind = Kind {
    name: "migrate",
    summary: "moves bytes from one device to another while clients use them",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(2, 2),
    options: &[SPEED, LEAVE],
    capabilities: Capabilities {
        moves: Some(Moving { leave: LEAVE, speed: SPEED }),
        ..Capabilities::NONE
    },
    verbs: &Job::VERBS,
    maker: Maker::Stateful {
        bytes: Bytes::FirstLower,
        plan,
        make,
        prepare: None,
        preflight: None,
        describe: record::describe,
    },
};

const SPEED: OptionSpec = OptionSpec {
    name: "speed",
    value: ValueType::Size(1 << 16, 1 << 40),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "most bytes moved per second; as fast as clients leave room if not set",
};

const LEAVE: OptionSpec = OptionSpec {
    name: "leave",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "removes the migration from the graph when all bytes are moved; off if not set",
};

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let [from, to] = &given.lowers[..] else {
        unreachable!("the plan checked the number of lowers")
    };
    let mut faults = Vec::new();
    let mut fault = |words: String| faults.push(Fault::new("on", words));
    if to.info.size < from.info.size {
        let (has, needs) = (format_exact(to.info.size), format_exact(from.info.size));
        fault(format!(
            "target {:?} has {has}, but source {:?} needs {needs}. Next: a larger target; a new \
             mirror with store = false has all bytes of its members",
            to.name, from.name
        ));
    }
    if !to.labelled {
        fault(format!(
            "target {:?} is on a raw disk, but a migration keeps its boundary in labels; set label \
             = true on the disks below",
            to.name
        ));
    }
    for lower in [from, to].into_iter().filter(|lower| lower.info.read_only) {
        fault(format!("a migration cannot use {:?}: the device is read-only", lower.name));
    }
    if given.overlap() && given.in_place().is_none() {
        fault(format!(
            "{:?} and {:?} are on the same disks, with their bytes at different addresses; move to \
             another disk, or in place, as to a crypt on {0:?}",
            from.name, to.name
        ));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(DevicePlan { info: info(&from.info, &to.info), needs: Needs::children(2) })
}

fn info(from: &Info, to: &Info) -> Info {
    let both = from.and(to);
    Info {
        size: from.size - from.size % u64::from(both.block_size),
        max_transfer: both.max_transfer - both.max_transfer % both.block_size,
        ..both
    }
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { config: given, env, lowers, state, .. } = making;
    let made = open(given, env, lowers, state);
    Box::pin(std::future::ready(made.map(|device| Rc::new(device) as Rc<dyn AnyDevice>)))
}

fn open(
    given: &DeviceConfig,
    env: &Env,
    lowers: Vec<Lower>,
    kept: Rc<dyn StateStore>,
) -> Result<Migrate> {
    let [from, to] = <[Lower; 2]>::try_from(lowers)
        .unwrap_or_else(|_| unreachable!("the plan checked the number of lowers"));
    let info = info(from.info(), to.info());
    let record = match newest(&*kept)? {
        Some(record) if record.size == info.size => record,
        Some(record) => {
            let (was, is) = (format_exact(record.size), format_exact(info.size));
            return Err(error!(Invalid, "the migration began with {was}; its devices have {is}")
                .next(format!("make both devices {was} large again")));
        }
        None => {
            let size = info.size;
            Record { back: false, paused: false, size, boundary: 0, window: None }
        }
    };
    let ports = [0, 1].into_iter().filter(|port| kept.found(*port).labelled).collect();
    let name = given.name.clone();
    let (in_place, speed) = (given.in_place().is_some(), given.size(&SPEED));
    let env = env.clone();
    Ok(Migrate::new(info, Parts { name, env, from, to, in_place, speed, kept, ports }, record))
}

/// Returns the newest record of the migration in the labels of the disks beneath.
fn newest(kept: &dyn StateStore) -> Result<Option<Record>> {
    let states = [0, 1].into_iter().filter_map(|port| kept.found(port).state.as_ref());
    let Some(state) = states.max_by_key(|state| state.sequence) else { return Ok(None) };
    let record = Record::decode(&state.bytes);
    let wrong = |why| error!(Corrupt, "the state of the migration in the label is damaged: {why}");
    record.map(Some).map_err(wrong)
}
