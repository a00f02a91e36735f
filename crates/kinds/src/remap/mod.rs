//! A device that maps a block to a data block of its lower when clients first write the block, and can move blocks to
//! other data blocks.
//!
//! This is Violin's remapping module (section 2.2): a translation table, kept in a vault.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `layout.rs` | the sizes, and the objects |
//! | `device.rs` | carrying out requests and commands |
//! | `blocks.rs` | looking up blocks, mapping them to data blocks, freeing data blocks |
//! | `releases.rs` | freed data blocks that wait for the proof of their record |
//! | `packer.rs` | moving blocks to the front of the lower |

mod blocks;
mod device;
pub mod layout;
mod packer;
mod releases;
#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::time::Duration;

use block::control::state::Check;
use block::control::{Verb as _, VerbInfo};
use block::env::LocalFuture;
use block::job::Job;
use block::units::write_size;
use block::{Info, Needs, Result, bail};
use kind::home::{HomeParts, Objects};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, META,
    Maker, MakerArgs, OptionSpec, Plan, Scope, Stored, ValueType,
};
use meta::alloc::Policy;

use blocks::{BATCH_BLOCKS, WINDOW};
use device::{Map, Parts, Remap};
use layout::{BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCKS_MAX, Layout};

/// Commands of a remap device. Only a device with the option `pack` has the commands of a job.
const VERBS: &[&VerbInfo] = &[Check::INFO, Job::VERBS[0], Job::VERBS[1]];

/// The kind `remap`: a device that maps a block to a data block of its lower when the block is first written.
pub const KIND: Kind = Kind {
    name: "remap",
    summary: "maps a block to a physical block at the first write",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(1, 2),
    options: &[SIZE, BLOCK, POLICY, META, CACHE, PACK, SPEED],
    capabilities: Capabilities::NONE,
    verbs: VERBS,
    maker: Maker::Stored(Stored { bytes: Bytes::Private, objects, plan, make }),
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

/// Declares the objects, or finds faults of the sizes, without which there are none.
fn objects(given: &DeviceConfig, lower_bytes: u64) -> Plan<Objects> {
    let fault = |option, words: String| Err(vec![Fault::new(option, words)]);
    let (block, size) = (block_bytes(given), given.size(&SIZE).unwrap_or_default());
    if !block.is_power_of_two() {
        let near = block.next_power_of_two() / 2;
        return fault("block", format!("block {block} is not a power of two; {near} is"));
    }
    if size % block != 0 || size / block > BLOCKS_MAX {
        let (below, most) = (size - size % block, BLOCKS_MAX * block);
        let near = write_size(below.clamp(block, most));
        return fault(
            "size",
            format!("size {size} does not fit blocks of {block}; \"{near}\" does"),
        );
    }
    let apart = given.lowers.len() > 1;
    let objects = layout::objects(block, size / block, lower_bytes, apart);
    let cache = given.size(&CACHE).unwrap_or(CACHE_BYTES_DEFAULT);
    let objects = objects.fixed("block", write_size(block)).fixed("size", write_size(size));
    Ok(objects.cached(cache))
}

fn layout_of(given: &DeviceConfig, data: &Info) -> Layout {
    let block_bytes = block_bytes(given);
    let blocks = given.size(&SIZE).unwrap_or_default() / block_bytes;
    Layout { block_bytes, blocks, places: data.size / block_bytes }
}

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let data = &given.lowers[0];
    let layout = layout_of(given, &data.info);
    let (block, below) = (layout.block_bytes, u64::from(data.info.block_size));
    if block < below || block > u64::from(data.info.max_transfer) {
        let words = format!(
            "{:?} accepts {below} to {} bytes in one request; block {block} is outside these limits",
            data.name, data.info.max_transfer
        );
        return Err(vec![Fault::new("block", words)]);
    }
    if layout.places == 0 {
        let words = format!("no block of {} has space behind the map", write_size(block));
        return Err(vec![Fault::new("size", words)]);
    }
    // The buffer is a block of zeros.
    let needs = Needs { standing_bytes: block as u32, ..Needs::children(WINDOW as u32) };
    Ok(DevicePlan { info: info(&layout, &data.info), needs })
}

fn info(layout: &Layout, data: &Info) -> Info {
    let most = BATCH_BLOCKS * layout.block_bytes;
    Info {
        size: layout.size(),
        padding: 0,
        max_transfer: data.max_transfer.min(most.min(u64::from(u32::MAX)) as u32),
        native_zeroes: true,
        discard: true,
        // A discard keeps the bytes of partly covered blocks.
        discard_zeroes: false,
        ..data.clone()
    }
}

fn make(args: MakerArgs<'_>, home: HomeParts) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { config: given, env, mut lowers, .. } = args;
    let (given, env, data) = (given.clone(), env.clone(), lowers.remove(0));
    Box::pin(async move {
        let layout = layout_of(&given, data.info());
        if layout.block_bytes > u64::from(data.info().max_transfer) {
            let (block, most) = (layout.block_bytes, data.info().max_transfer);
            bail!(
                Limit,
                "block {block} is too large: {:?} accepts at most {most} bytes at once",
                data.name()
            );
        }
        let policy = policy(&given);
        let open = move |opened| Box::pin(Map::open(opened, policy)) as LocalFuture<Result<Map>>;
        let home = home.open(open).await?;
        let info = info(&layout, data.info());
        let pack = given.switch(&PACK) && !info.read_only;
        let (speed, name) = (given.size(&SPEED), given.name);
        let device = Remap::new(Parts { name, env, info, layout, data, home, pack, speed })?;
        let home = device.inner.home.clone();
        Ok(home.device(device) as Rc<dyn AnyDevice>)
    })
}
