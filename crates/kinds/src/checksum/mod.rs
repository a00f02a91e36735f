//! A device that verifies the bytes of its lower: a checksum for each block, in the vault of the device.
//!
//! The format is `docs/formats/checksum.md`. Requests are carried out by [`Core`], which knows neither labels nor options: its
//! maker hands over an open vault with the objects of [`Objects`], and the regions or the journal.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `front.rs` | the device of the kind: its report and its commands |
//! | `opening.rs` | the opening of a device from its vault |
//! | `sums.rs` | checksums of blocks, and their array |
//! | `objects.rs` | the objects in the vault |
//! | `device.rs` | the core: requests, numbers, close |
//! | `read.rs` | reads, which verify |
//! | `write.rs` | writes and zeroes in marked regions |
//! | `doubts.rs` | blocks behind failed writes |
//! | `journaled.rs` | changes through a journal |
//! | `settle.rs` | repair, or acceptance, of a block that differs from its checksum |
//! | `scan.rs` | the scan of regions marked at the opening, and of ranges in which copies may differ |
//! | `making.rs` | the first checksums of a lower with unknown bytes |
//!
//! **Invariants**
//! - A read returns only bytes that fit their checksums, except blocks behind the progress of the first checksums, and
//!   *accepted* ones.
//! - An unverified block is accepted only in a region marked at the opening, before the scan has been there and before a
//!   write to the block, or after a failed write. With a journal no block is accepted.
//! - With copies below, all copies are asked before a block is accepted, and a stale copy is never accepted. The accepted
//!   bytes are on all copies, and their checksum is posted, before the answer.
//! - With redundancy above, only a last resort returns an unverified block, and the block stays unverified until it is
//!   written.
//! - A block is repaired and accepted under its exclusive lock.

mod device;
mod doubts;
mod front;
mod journaled;
mod making;
mod objects;
mod opening;
mod read;
mod scan;
mod settle;
#[cfg(test)]
pub(crate) mod subjects;
mod sums;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
mod write;

use std::rc::Rc;

use block::control::copies::{Changed, Pending};
use block::control::state::Check;
use block::control::{Verb as _, VerbInfo};
use block::env::LocalFuture;
use block::job::Job;
use block::{Emulate, Info, Needs, Result, bail};
use kind::home::{self, HomeParts};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, META,
    Maker, MakerArgs, OptionSpec, Plan, Scope, Stored, Surroundings, ValueType,
};
use meta::journal::Journal;

pub use device::{Core, Mode, NEEDS, Numbers, Parts, Redundancy};
pub use doubts::DOUBTS_MAX;
pub use journaled::Target;
pub use objects::{Crash, Objects};
pub use scan::SCAN_BYTES;
pub use sums::{BLOCK_BYTES, PIECE_BYTES, Seed, Sum, Sums};
pub use write::ZERO_BYTES;

use device::facts;
use front::Checksum;
use opening::Opening;

/// Commands of a checksum device.
const VERBS: &[&VerbInfo] =
    &[Check::INFO, Pending::INFO, Changed::INFO, Job::VERBS[0], Job::VERBS[1]];

/// The kind `checksum`: verifies the bytes of its lower.
pub const KIND: Kind = Kind {
    name: "checksum",
    summary: "verifies each block with a checksum, and repairs it from another copy",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(1, 2),
    options: &[CRASH, META, CACHE, SPEED],
    capabilities: Capabilities { verifies: true, ..Capabilities::NONE },
    verbs: VERBS,
    maker: Maker::Stored(Stored { bytes: Bytes::Passthrough, objects, plan, make }),
};

const CRASH: OptionSpec = OptionSpec {
    name: "crash",
    value: ValueType::Choice(&Crash::WORDS),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "how data and checksums stay together over a crash, fixed when the device is made: through a journal, or in \
           marked regions; if not set, regions with redundancy above or below, else journal",
};

const CACHE: OptionSpec = OptionSpec {
    name: "cache",
    value: ValueType::Size(CACHE_BYTES_MIN, CACHE_BYTES_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "memory that caches the checksums; 32MiB if not set",
};

const SPEED: OptionSpec = OptionSpec {
    name: "speed",
    value: ValueType::Size(64 << 10, 1 << 40),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "most bytes per second that the scan after an unclean stop and the job of the first checksums read; as fast as \
           clients leave room if not set",
};

/// Limits and default of the option `cache`, in bytes. The cache of the least size holds the checksums of 1 GiB.
const CACHE_BYTES_MIN: u64 = 2 << 20;
const CACHE_BYTES_DEFAULT: u64 = 32 << 20;
const CACHE_BYTES_MAX: u64 = 16 << 30;

/// Most blocks of a device: those of 64 TiB.
const BLOCKS_MAX: u64 = 1 << 34;

fn crash(given: &DeviceConfig) -> Option<Crash> {
    given.text(&CRASH).and_then(Crash::of)
}

/// Whether a device may have a journal. The plan sets `crash` to the value with which a device was made, if it knows its state.
/// Otherwise the default depends on redundancy: that below is a fact of the lower, and that above is planned later.
fn may_have_journal(given: &DeviceConfig) -> bool {
    match crash(given) {
        Some(crash) => crash == Crash::Journal,
        None => given.lowers[0].info.copies == 1,
    }
}

fn objects(given: &DeviceConfig, lower_bytes: u64) -> Plan<home::Objects> {
    if lower_bytes / BLOCK_BYTES > BLOCKS_MAX {
        let words = "a checksum device has 64TiB at most; use several for parts of it";
        return Err(vec![Fault::new("on", words)]);
    }
    let cache = given.size(&CACHE).unwrap_or(CACHE_BYTES_DEFAULT);
    let objects = Objects::declare(lower_bytes).cached(cache);
    let objects = match crash(given) {
        Some(crash) => objects.fixed(CRASH.name, crash.word()),
        None => objects,
    };
    Ok(match may_have_journal(given) {
        true => objects.held(Journal::standing_bytes(Objects::ring_bytes(lower_bytes))),
        false => objects,
    })
}

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let data = &given.lowers[0];
    let block_size = data.info.block_size;
    if u64::from(block_size) > BLOCK_BYTES {
        let words = format!(
            "{:?} has blocks of {block_size} bytes; checksums need blocks of at most {BLOCK_BYTES}",
            data.name
        );
        return Err(vec![Fault::new("on", words)]);
    }
    let info = info(&data.info).map_err(|error| vec![Fault::new("on", error.to_string())])?;
    let mut needs = NEEDS;
    if may_have_journal(given) {
        // A part of the journal may be read again for a request.
        needs.scratch_bytes += PIECE_BYTES as u32;
    }
    if u64::from(block_size) < BLOCK_BYTES {
        let Needs { scratch_copies, scratch_bytes, .. } = Emulate::needs_over(BLOCK_BYTES as u32);
        needs.scratch_copies += scratch_copies;
        needs.scratch_bytes += scratch_bytes;
    }
    Ok(DevicePlan { info, needs })
}

/// Returns the facts about a device over `data`: it has the blocks of its lower.
fn info(data: &Info) -> Result<Info> {
    Emulate::facts(&facts(data), data.block_size)
}

fn make(args: MakerArgs<'_>, mut home: HomeParts) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { config, env, mut lowers, around, .. } = args;
    let (data, name, speed) = (lowers.remove(0), config.name.clone(), config.size(&SPEED));
    let redundancy = Redundancy::of(&around);
    let wanted = crash(config).unwrap_or_else(|| redundancy.usual_crash());
    let made = home.fix(CRASH.name, wanted.word());
    let crash = Crash::of(&made);
    let env = env.clone();
    Box::pin(async move {
        let Some(crash) = crash else {
            bail!(Corrupt, "the state of the checksum in the label has crash = {made:?}");
        };
        let opening =
            Opening { name: name.clone(), env, data: data.clone(), redundancy, crash, speed };
        let build = move |opened| {
            let opening = opening.clone();
            Box::pin(opening.open(opened)) as LocalFuture<Result<Rc<opening::Opened>>>
        };
        let home = home.open_until(build, opening::Opened::finish).await?;
        let device = Checksum { name, info: info(data.info())?, home: home.clone() };
        Ok(home.device(device) as Rc<dyn AnyDevice>)
    })
}

impl Redundancy {
    fn of(around: &Surroundings) -> Self {
        match around {
            Surroundings { redundancy_below: true, .. } => Self::Below,
            Surroundings { redundancy_above: true, .. } => Self::Above,
            _ => Self::None,
        }
    }
}
