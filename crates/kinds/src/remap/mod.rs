//! A device that maps a block to a data block of its lower when clients first write the block, and can move blocks to
//! other data blocks.
//!
//! This is Violin's remapping module (section 2.2): a translation table, kept in a vault.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `layout.rs` | the positions of the vault and of the data blocks |
//! | `record.rs` | the codec of the state in labels |
//! | `opening.rs` | opening the vault, or creating it |
//! | `device.rs` | carrying out requests and commands |
//! | `blocks.rs` | looking up blocks, mapping them to data blocks, freeing data blocks |
//! | `releases.rs` | freed data blocks that wait for the proof of their record |
//! | `packer.rs` | moving blocks to the front of the lower |

mod blocks;
mod device;
pub mod layout;
mod opening;
mod packer;
pub mod record;
mod releases;
#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block::control::state::Check;
use block::control::{Verb as _, VerbInfo};
use block::env::LocalFuture;
use block::job::Job;
use block::units::write_size;
use block::{Env, Error, ErrorKind, Info, Lower, Needs, Result, StateStore, bail};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, ValueType,
};
use meta::alloc::Policy;
use meta::vault::standing_bytes;

use blocks::{BATCH_BLOCKS, WINDOW};
use device::{Parts, Remap};
use layout::{BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCKS_MAX, Layout};
use opening::Opening;
use record::Record;

use crate::kept::Kept;

/// Commands of a remap device. Only a device with the option `pack` has the commands of a job.
const VERBS: &[&VerbInfo] = &[Check::INFO, Job::VERBS[0], Job::VERBS[1]];

/// The kind `remap`: a device that maps a block to a data block of its lower when the block is first written.
pub const KIND: Kind = Kind {
    name: "remap",
    summary: "maps a block to a physical block at the first write",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(1, 2),
    options: &[SIZE, BLOCK, POLICY, META, CACHE, PACK, SPEED],
    capabilities: Capabilities { keeps_objects: true, ..Capabilities::NONE },
    verbs: VERBS,
    maker: Maker::Stateful {
        bytes: Bytes::Private,
        plan,
        make,
        prepare: None,
        preflight: None,
        describe: record::describe,
    },
};

const SIZE: OptionSpec = OptionSpec {
    name: "size",
    value: ValueType::Size(BLOCK_BYTES_MIN, 1 << 60),
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "bytes that clients see; may exceed the space of the lower device",
};

const BLOCK: OptionSpec = OptionSpec {
    name: "block",
    value: ValueType::Size(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX),
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "bytes of one block, a power of two; 64KiB if not set",
};

const POLICY: OptionSpec = OptionSpec {
    name: "policy",
    value: ValueType::Choice(&POLICIES),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "search for a free physical block: from the front, from the last one allocated, or near \
           that one; first-free if not set",
};

const META: OptionSpec = OptionSpec {
    name: "meta",
    value: ValueType::Member,
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "the lower device that holds the map; the beginning of the only lower device if not set",
};

const CACHE: OptionSpec = OptionSpec {
    name: "cache",
    value: ValueType::Size(CACHE_BYTES_MIN, CACHE_BYTES_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "memory that caches the map; 16MiB if not set",
};

const PACK: OptionSpec = OptionSpec {
    name: "pack",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "moves blocks to the front of the lower device in the background; off if not set",
};

const SPEED: OptionSpec = OptionSpec {
    name: "speed",
    value: ValueType::Size(64 << 10, 1 << 40),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "most bytes per second that packing moves; as fast as clients leave room if not set",
};

const POLICIES: [&str; 3] = ["first-free", "log", "near"];

/// Limits and default of the option `cache`, in bytes. One transaction changes at most one page of the bitmap for each
/// of its blocks, and a third of the cached pages may be dirty.
const CACHE_BYTES_MIN: u64 = 2 << 20;
const CACHE_BYTES_DEFAULT: u64 = 16 << 20;
const CACHE_BYTES_MAX: u64 = 16 << 30;

/// Longest time that the first write of a block waits for a free data block.
pub const ROOM_WITHIN: Duration = Duration::from_secs(10);

/// Most writes that may wait for a free data block at the same time. Further such writes fail at once, so that slots of
/// the engine remain for other requests.
const HELD_MAX: u32 = 16;

/// The ports of the lower with the data and of the lower with the vault.
struct Ports {
    data: usize,
    meta: usize,
}

impl Ports {
    fn of(given: &DeviceConfig) -> Result<Self, Fault> {
        let names: Vec<&str> = given.lowers.iter().map(|lower| lower.name.as_str()).collect();
        match (&names[..], given.text(&META)) {
            ([_], None) => Ok(Self { data: 0, meta: 0 }),
            ([first, _], Some(meta)) if *first == meta => Ok(Self { data: 1, meta: 0 }),
            ([_, _], Some(_)) => Ok(Self { data: 0, meta: 1 }),
            ([first, second, ..], None) => Err(Fault::new(
                "on",
                format!("meta must name the device of the map: add meta = {second:?} or {first:?}"),
            )),
            (_, Some(meta)) => Err(Fault::new(
                "meta",
                format!("{meta:?} is the only device in \"on\"; add a second one, or remove meta"),
            )),
            _ => unreachable!("the plan checked the number of lowers"),
        }
    }

    fn apart(&self) -> bool {
        self.data != self.meta
    }
}

fn policy(given: &DeviceConfig) -> Policy {
    match given.text(&POLICY) {
        Some("log") => Policy::LogStructured,
        Some("near") => Policy::NearLast,
        _ => Policy::FirstFree,
    }
}

fn block_bytes(given: &DeviceConfig) -> u64 {
    given.size(&BLOCK).unwrap_or(BLOCK_BYTES_DEFAULT)
}

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let ports = Ports::of(given).map_err(|fault| vec![fault])?;
    let mut faults = Vec::new();
    let mut fault = |option, words: String| faults.push(Fault::new(option, words));
    for lower in given.lowers.iter().filter(|lower| !lower.labelled) {
        let words = format!(
            "{:?} is on a raw disk, but a remap device keeps its state in labels; set label = true \
             on the disks",
            lower.name
        );
        fault("on", words);
    }
    let (block, size) = (block_bytes(given), given.size(&SIZE).unwrap_or_default());
    if !block.is_power_of_two() {
        let near = block.next_power_of_two() / 2;
        fault("block", format!("block {block} is not a power of two; {near} is"));
        return Err(faults);
    }
    if size % block != 0 || size / block > BLOCKS_MAX {
        let (below, most) = (size - size % block, BLOCKS_MAX * block);
        let near = write_size(below.clamp(block, most));
        fault("size", format!("size {size} does not fit blocks of {block}; \"{near}\" does"));
        return Err(faults);
    }
    let (data, meta) = (&given.lowers[ports.data], &given.lowers[ports.meta]);
    let below = u64::from(data.info.block_size);
    if block < below || block > u64::from(data.info.max_transfer) {
        let words = format!(
            "{:?} accepts {below} to {} bytes in one request; block {block} is outside these limits",
            data.name, data.info.max_transfer
        );
        fault("block", words);
    }
    if meta.info.block_size > 4096 {
        let words = format!(
            "{:?} has blocks of {} bytes; the map needs blocks of at most 4096",
            meta.name, meta.info.block_size
        );
        fault("on", words);
    }
    let (layout, vault) = Layout::new(block, size / block, &data.info, ports.apart());
    if layout.places == 0 || vault.bytes > meta.info.size {
        let words = format!(
            "the map takes {} of {:?}, which has {}; a larger block takes less",
            write_size(vault.bytes),
            meta.name,
            write_size(meta.info.size)
        );
        fault("size", words);
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let info = info(&layout, &data.info, &meta.info);
    // A block of zeros, and the vault.
    let standing = block as usize + standing_bytes(vault.log_bytes);
    let needs = Needs { standing_bytes: standing as u32, ..Needs::children(WINDOW as u32) };
    Ok(DevicePlan { info, needs })
}

fn info(layout: &Layout, data: &Info, meta: &Info) -> Info {
    let both = data.and(meta);
    let most = BATCH_BLOCKS * layout.block_bytes;
    Info {
        size: layout.size(),
        block_size: data.block_size,
        preferred_io: data.preferred_io,
        max_transfer: data.max_transfer.min(most.min(u64::from(u32::MAX)) as u32),
        buf_align: data.buf_align,
        volatile_cache: data.volatile_cache,
        native_fua: data.native_fua,
        native_zeroes: true,
        discard: true,
        // A discard keeps the bytes of partly covered blocks.
        discard_zeroes: false,
        copies: data.copies,
        ..both
    }
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { config: given, env, lowers, state, .. } = making;
    let (given, env) = (given.clone(), env.clone());
    Box::pin(async move {
        let device = open(&given, &env, &lowers, state).await?;
        Ok(Rc::new(device) as Rc<dyn AnyDevice>)
    })
}

async fn open(
    given: &DeviceConfig,
    env: &Env,
    lowers: &[Lower],
    kept: Rc<dyn StateStore>,
) -> Result<Remap> {
    let ports = Ports::of(given).map_err(|fault| Error::new(ErrorKind::Invalid, fault.message))?;
    let (data, meta) = (lowers[ports.data].clone(), lowers[ports.meta].clone());
    let block = block_bytes(given);
    let blocks = given.size(&SIZE).unwrap_or_default() / block;
    let (layout, vault_size) = Layout::new(block, blocks, data.info(), ports.apart());
    if block > u64::from(data.info().max_transfer) {
        let most = data.info().max_transfer;
        bail!(
            Limit,
            "block {block} is too large: {:?} accepts at most {most} bytes at once",
            data.name()
        );
    }
    let info = info(&layout, data.info(), meta.info());
    let opening = Opening {
        env: env.clone(),
        data,
        meta,
        vault_size,
        kept: Kept::new(kept.clone(), lowers.len(), info.read_only),
        kept_paused: Cell::new(false),
        policy: policy(given),
        cache_bytes: given.size(&CACHE).unwrap_or(CACHE_BYTES_DEFAULT) as usize,
        read_only: info.read_only,
    };
    let record = match opening.found(&layout)? {
        Some(record) => {
            opening.kept.keep_everywhere(record.encode()).await?;
            record
        }
        None => {
            let record = Record { vault: None, paused: false, layout };
            opening.kept.keep(record.encode()).await?;
            record
        }
    };
    opening.kept_paused.set(record.paused);
    let read_only = info.read_only;
    let making = Parts {
        name: given.name.clone(),
        info,
        layout: record.layout,
        data_port: ports.data,
        opening,
        pack: given.switch(&PACK) && !read_only,
        speed: given.size(&SPEED),
    };
    let device = Remap::new(making, record.paused)?;
    if kept.is_committed() {
        device.inner.open(record).await?;
    } else {
        device.inner.preview(&record).await?;
        device.inner.open_later(record);
    }
    Ok(device)
}
