//! Keeps the same bytes on several devices.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `member.rs` | one member: its state, its errors, its latency |
//! | `device.rs` | carrying out reads, writes and flushes |
//! | `record.rs` | the codec of the state in labels |
//! | `opening.rs` | the decision from the labels which members are in sync when the mirror opens |
//! | `regions.rs` | the regions of a mirror, and bitmaps of them |
//! | `superblock_writer.rs` | writing the state to the labels while the mirror runs |
//! | `maps.rs` | the maps of a running mirror, in labels or in its store |
//! | `credit.rs` | the limit of label writes that clear dirty regions |
//! | `store.rs`, `reader.rs` | the store; its maps at the opening, and its check |
//! | `room.rs`, `replica.rs` | the room of the store on the members; its access to them |
//! | `holes.rs` | the parts of a resync that read as zeros |
//! | `resync.rs` | resync of stale members, and rewriting unreadable ranges |
//! | `scrub.rs` | reading all copies, and reporting or repairing differences |
//! | `verifier.rs` | the commands of a device above that verifies bytes, and the ranges that wait for it |
//! | `divided.rs` | members with all acknowledged writes that differ from the source |
//! | `parts.rs` | writes of parts of blocks that a member cannot read |
//! | `unverified.rs` | rewriting blocks that members below cannot verify |
//! | `spans.rs` | sets of byte ranges |
//! | `compare.rs` | the comparison of the copies of one range |

mod compare;
mod credit;
mod device;
mod divided;
#[cfg(test)]
mod divided_tests;
mod holes;
mod maps;
mod member;
pub mod opening;
mod parts;
mod reader;
pub mod record;
pub mod regions;
mod replica;
mod resync;
pub mod room;
mod scrub;
#[cfg(test)]
mod scrub_tests;
mod spans;
pub mod store;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
pub(crate) mod subjects;
mod superblock_writer;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod torn_tests;
mod unverified;
mod verifier;

use std::rc::Rc;
use std::time::Duration;

use block::control::copies::{Changed, Pending, Scrub, Verified, Wrong};
use block::control::member::{Fail, Resync};
use block::control::state::Check;
use block::control::{Verb as _, VerbInfo};
use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{
    CopyNumbers, Deadline, Env, Error, ErrorKind, Event, Found, Info, Lower, MemberState as State,
    Needs, Result, StateStore, What,
};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, LowerConfig,
    Lowers, Maker, MakerArgs, OptionSpec, Plan, Scope, Surroundings, ValueType,
};

use device::{Mirror, Parts};
use maps::Maps;
use meta::vault::page::PAGE_BYTES;
use opening::{Members, Replicas};
use reader::Reader;
use record::{Content, MemberState, Record};
use regions::{Bitmap, REGION_BYTES_MAX, REGION_BYTES_MIN, REGION_BYTES_USUAL, Regions};
use room::{MEMBER_BYTES_MIN, REGION_BYTES_MOST, StoreSizes};
use scrub::Scrubbing;
pub use scrub::{Repair, Scrubbed};
use store::StoredMaps;
use superblock_writer::SuperblockWriter;
use verifier::Verification;

/// Commands of a mirror.
const VERBS: &[&VerbInfo] = &[
    Fail::INFO,
    Resync::INFO,
    Scrub::INFO,
    Wrong::INFO,
    Pending::INFO,
    Changed::INFO,
    Verified::INFO,
    Check::INFO,
];

/// The kind `mirror`: a device that keeps the same bytes on several members.
pub const KIND: Kind = Kind {
    name: "mirror",
    summary: "keeps the same bytes on several devices",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(2, MEMBERS_MAX),
    options: &[TRUST, TIMEOUT, SPEED, SPARES, SCRUB, REGION, CLEAR_DELAY, STORE],
    capabilities: Capabilities {
        can_lack: |lowers| lowers.saturating_sub(1),
        names_members: true,
        ..Capabilities::NONE
    },
    verbs: VERBS,
    maker: Maker::Stateful {
        bytes: Bytes::Replicated,
        plan,
        make,
        prepare: None,
        preflight: Some(preflight),
        describe: record::describe,
    },
};

const TRUST: OptionSpec = OptionSpec {
    name: "trust",
    value: ValueType::Member,
    required: false,
    effect: Effect::Start,
    scope: Scope::Local,
    help: "the authoritative member when the members may differ; the others are copied from it",
};

const TIMEOUT: OptionSpec = OptionSpec {
    name: "timeout",
    value: ValueType::Duration(Duration::from_secs(600)),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "time after which the mirror fails a member that does not answer; 20s if not set",
};

const SPEED: OptionSpec = OptionSpec {
    name: "speed",
    value: ValueType::Size(SPEED_MIN, SPEED_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "most bytes per second of a resync or scrub; no limit if not set",
};

const SPARES: OptionSpec = OptionSpec {
    name: "spares",
    value: ValueType::Integer(0, MEMBERS_MAX as u64 - 2),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "number of members that hold no copy and wait until another member fails; 0 if not set",
};

const SCRUB: OptionSpec = OptionSpec {
    name: "scrub",
    value: ValueType::Duration(SCRUB_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "time from the end of a scrub to the next scrub; no scrub begins by itself if not set",
};

const REGION: OptionSpec = OptionSpec {
    name: "region",
    value: ValueType::Size(REGION_BYTES_MIN, REGION_BYTES_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "unit of a resync, copied as a whole if members may differ there: a power of two; 1MiB \
           if not set, or more for a large mirror",
};

const CLEAR_DELAY: OptionSpec = OptionSpec {
    name: "clear_delay",
    value: ValueType::Duration(CLEAR_DELAY_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "time without writes after which a region counts as clean after a crash; 5s if not set",
};

const STORE: OptionSpec = OptionSpec {
    name: "store",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "whether new members get room behind the data for a store of the bitmaps; true if not set",
};

/// Most members of one mirror.
pub const MEMBERS_MAX: usize = 8;

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);

/// Default of the option `clear_delay`, and its limits.
const CLEAR_DELAY_DEFAULT: Duration = Duration::from_secs(5);
const CLEAR_DELAY_MIN: Duration = Duration::from_millis(1);
const CLEAR_DELAY_MAX: Duration = Duration::from_secs(600);

/// Limits of the option `scrub`: an hour to a year.
const SCRUB_MAX: Duration = Duration::from_secs(365 * 86_400);
const SCRUB_MIN: Duration = Duration::from_secs(3600);

/// Limits of the option `speed`, in bytes per second.
const SPEED_MIN: u64 = 64 << 10;
const SPEED_MAX: u64 = 1 << 40;

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    given.replicas()?;
    let (info, has_room) = (info(given), has_room(given));
    regions(given, &info).map_err(|why| vec![Fault::new("region", why)])?;
    let too_small = given.lowers.iter().find(|lower| lower.info.size < MEMBER_BYTES_MIN);
    if let Some(lower) = too_small.filter(|_| has_room) {
        let why = format!(
            "{:?} has {} bytes; a member with room for the maps of the mirror has at least \
             {MEMBER_BYTES_MIN}",
            lower.name, lower.info.size
        );
        return Err(vec![Fault::new("on", why)]);
    }
    if given.lowers.len() < 2 + spares(given) {
        let why = format!(
            "{} spares of {} members; at least two members must not be spares",
            spares(given),
            given.lowers.len()
        );
        return Err(vec![Fault::new("spares", why)]);
    }
    if let Some(every) = given.duration(&SCRUB).filter(|every| *every < SCRUB_MIN) {
        let why = format!("a scrub every {every:?} is too frequent; at least 1h is needed");
        return Err(vec![Fault::new("scrub", why)]);
    }
    let newly_made = given.lowers.iter().all(|lower| lower.created);
    let labelled = given.lowers.iter().all(|lower| lower.labelled);
    if !newly_made && !labelled && given.text(&TRUST).is_none() {
        let names: Vec<_> = given.lowers.iter().map(|lower| format!("{:?}", lower.name)).collect();
        let fault = format!(
            "cannot tell whether these members are identical: they were used before without \
             labels; choose the member whose bytes count: trust = {}",
            names.join(" or ")
        );
        return Err(vec![Fault::new("on", fault)]);
    }
    let standing_bytes = if has_room { sizes(given).standing_bytes() as u32 } else { 0 };
    let children = given.lowers.len() as u32;
    let needs = Needs { children, scratch_copies: 1, standing_bytes, ..Needs::LEAF };
    Ok(DevicePlan { info, needs })
}

/// Whether the members of the mirror have room for its store. A mirror keeps the answer for ever: its state in labels has it.
/// Only new members without data get room.
fn has_room(given: &DeviceConfig) -> bool {
    if let Some(newest) = given.newest_state() {
        return Record::decode(&newest.bytes).is_ok_and(|record| record.room.is_some());
    }
    let is_new = |lower: &LowerConfig| {
        let is_large = lower.info.size >= MEMBER_BYTES_MIN;
        lower.labelled && lower.fresh && is_large && lower.info.block_size as usize <= PAGE_BYTES
    };
    given.switch_or(&STORE, true) && given.lowers.iter().all(is_new)
}

/// Returns the sizes of the parts of the mirror's store.
fn sizes(given: &DeviceConfig) -> StoreSizes {
    StoreSizes::of(given.lowers.iter().map(|lower| lower.info.size))
}

/// Returns the division of the mirror into regions: of the size in the spec, or of the default size.
fn regions(given: &DeviceConfig, info: &Info) -> Result<Regions, String> {
    let members = given.lowers.len();
    let size = info.size.max(1);
    let has_room = has_room(given);
    let Some(bytes) = given.size(&REGION) else {
        return match has_room {
            true => sizes(given).division(size, REGION_BYTES_USUAL),
            false => Ok(Regions::usual(size, members)),
        };
    };
    let smallest = match has_room {
        true => sizes(given).smallest_region(size),
        false => Regions::smallest(size, members),
    };
    let least = smallest.max(u64::from(info.block_size));
    if bytes < least {
        return Err(format!(
            "a region of {bytes} bytes is too small; a mirror of {size} bytes with {members} \
             members needs at least {least}"
        ));
    }
    if has_room && bytes > REGION_BYTES_MOST {
        return Err(format!(
            "a region of {bytes} bytes is too large; a mirror with a store of its bitmaps has regions \
             of at most {REGION_BYTES_MOST}. Next: a smaller region; or store = false for a new mirror"
        ));
    }
    if has_room { sizes(given).division(size, bytes) } else { Regions::new(size, bytes) }
}

/// Returns the facts about the mirror, from those about its members.
fn info(given: &DeviceConfig) -> Info {
    let lowers = given.lowers.iter().map(|lower| &lower.info);
    let has_room = has_room(given);
    let data = |info: &Info| if has_room { room::range(info.size).start() } else { info.size };
    let size = lowers.clone().map(data).min().unwrap_or(0);
    let all = Info::over(lowers.clone()).expect("a mirror has members");
    Info {
        size: size - size % u64::from(all.block_size),
        // A discard goes down as zeroes if a member might keep the discarded bytes, so discards always work.
        discard: true,
        discard_zeroes: true,
        copies: CopyNumbers::count(lowers),
        // The bytes survive the process only if those of every member do.
        ..all
    }
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { config: given, env, lowers, state, around, .. } = making;
    let (given, env) = (given.clone(), env.clone());
    Box::pin(async move { open(&given, &env, lowers, state, &around).await })
}

fn preflight(given: &DeviceConfig, info: &Info, found: &[Found], degraded: bool) -> Result<()> {
    if !found.iter().all(|found| found.labelled) {
        return Ok(());
    }
    let regions = regions(given, info).map_err(|why| Error::new(ErrorKind::Invalid, why))?;
    members(given, found.iter().collect(), degraded, regions).decide().map(drop)
}

/// The states of the members at the opening, and the writer of the mirror's state.
struct Opened {
    states: Vec<State>,
    missing: Vec<Bitmap>,
    content: Vec<Content>,
    scrubbed: Scrubbed,
    stored: Option<Reader>,
    writer: Option<SuperblockWriter>,
}

async fn open(
    given: &DeviceConfig,
    env: &Env,
    lowers: Vec<Lower>,
    kept: Rc<dyn StateStore>,
    around: &Surroundings,
) -> Result<Rc<dyn AnyDevice>> {
    let given = &with_sizes(given, &lowers);
    let info = info(given);
    let labelled = (0..lowers.len()).all(|port| kept.found(port).labelled);
    let regions = regions(given, &info).map_err(|why| Error::new(ErrorKind::Invalid, why))?;
    let opened = match labelled {
        true => from_labels(given, env, &lowers, &kept, regions).await?,
        false => of_raw(given, regions),
    };
    let Opened { mut states, missing, content, scrubbed, stored, writer } = opened;
    // A mirror that cannot write keeps no state and copies no member. Any other makes a new store over this one.
    let writer = writer.filter(|_| !info.read_only);
    let stored = stored.filter(|_| info.read_only);
    let present = |port: usize| !labelled || kept.found(port).present;
    let closed = |port: usize| kept.found(port).closed.as_ref();
    if !info.read_only {
        let wanted = lowers.len() - spares(given);
        // Before a resync copies to a member, the label of that member also records that the member is stale.
        take_in(&mut states, &missing, wanted, present);
    }
    let timeout = given.duration(&TIMEOUT).unwrap_or(TIMEOUT_DEFAULT);
    let (name, env) = (given.name.clone(), env.clone());
    let kept = states.into_iter().zip(missing).zip(content);
    let kept = kept.map(|((state, missing), content)| (state, missing, content));
    let members = lowers.into_iter().zip(kept).collect();
    let speed = given.size(&SPEED);
    let scrubbing = Scrubbing::new(given.duration(&SCRUB), scrubbed);
    let verification = Verification::new(around);
    let making = Parts {
        name,
        env,
        timeout,
        regions,
        speed,
        scrubbing,
        verification,
        members,
        stored,
        writer,
    };
    let mirror = Mirror::new(info, making);
    let inner = &mirror.inner;
    inner.hear_of_failures();
    inner.complete_torn().await;
    inner.remember().await?;
    inner.remember_when_sure();
    for (port, member) in inner.members.iter().enumerate() {
        match member.state() {
            State::Copying => inner.begin_resync(port),
            _ if !present(port) => member.leave(closed(port)),
            _ => {}
        }
    }
    inner.make_store_later();
    inner.scrub_when_due();
    inner.watch_members();
    Ok(Rc::new(mirror))
}

/// Returns the configuration with the facts about the lowers as they are now.
fn with_sizes(given: &DeviceConfig, lowers: &[Lower]) -> DeviceConfig {
    let mut given = given.clone();
    for (config, lower) in given.lowers.iter_mut().zip(lowers) {
        config.info = lower.info().clone();
    }
    given
}

/// Decides from the labels of the members, and from the mirror's store that they name, how the mirror opens.
async fn from_labels(
    given: &DeviceConfig,
    env: &Env,
    lowers: &[Lower],
    kept: &Rc<dyn StateStore>,
    regions: Regions,
) -> Result<Opened> {
    let found = (0..lowers.len()).map(|port| kept.found(port)).collect();
    let mut members = members(given, found, kept.may_degrade(), regions);
    let replicas = members.replicas()?.filter(|_| !seeded::on(Bug::StoreUnread));
    let is_named = replicas.as_ref().is_some_and(|replicas| replicas.is_named);
    let stored = replicas.map(|replicas| reader(given, env, lowers, replicas));
    if let Some(stored) = &stored {
        members.stored = Some(maps_of(given, stored, is_named).await);
    }
    let decision = members.decide()?;
    let state = |state: &MemberState| match state {
        MemberState::InSync => State::InSync,
        MemberState::Stale => State::Stale,
        MemberState::Failed => State::Failed,
    };
    let opening = env.random("a mirror's opening");
    let clear_delay =
        given.duration(&CLEAR_DELAY).unwrap_or(CLEAR_DELAY_DEFAULT).max(CLEAR_DELAY_MIN);
    let names: Vec<_> = lowers.iter().map(Lower::name).collect();
    let sizes: Vec<_> = lowers.iter().map(|lower| lower.info().size).collect();
    let rooms = sizes.iter().zip(members.rooms()?).map(|(size, room)| room.unwrap_or(*size));
    let rooms = rooms.collect();
    let maps = Maps::new(regions, clear_delay, has_room(given).then_some(sizes), rooms);
    let writer = SuperblockWriter::new(kept.clone(), opening, &decision, &names, maps);
    Ok(Opened {
        states: decision.states.iter().map(state).collect(),
        missing: decision.missing.clone(),
        content: decision.content.clone(),
        scrubbed: decision.scrubbed,
        stored: stored.filter(|_| is_named),
        writer: Some(writer),
    })
}

/// Returns the reader of the store that the labels name.
fn reader(given: &DeviceConfig, env: &Env, lowers: &[Lower], replicas: Replicas) -> Reader {
    let Replicas { store, names, lowers: sizes, counting, others, .. } = replicas;
    let timeout = given.duration(&TIMEOUT).unwrap_or(TIMEOUT_DEFAULT);
    let deadline = Deadline::new(env, timeout);
    let part = |copy: usize, port: usize| {
        let room = room::range(sizes[copy]);
        replica::lower(&lowers[port], copy, room, &deadline, Rc::new(replica::Reader))
    };
    let lowers = counting.iter().enumerate();
    let lowers = lowers.map(|(copy, port)| port.map(|port| part(copy, port))).collect();
    let others = others.iter().map(|(copy, port)| (*copy, part(*copy, *port))).collect();
    Reader { env: env.clone(), vault: store.vault, regions: store.regions, names, lowers, others }
}

/// Reads the maps of a mirror from its store. If they cannot be read, returns maps with all regions, and reports the loss if the
/// store `is_named` by the newest state.
async fn maps_of(given: &DeviceConfig, stored: &Reader, is_named: bool) -> StoredMaps {
    stored.maps().await.unwrap_or_else(|error| {
        if is_named {
            stored.env.emit(Event {
                what: What::DeviceError,
                device: given.name.clone(),
                member: None,
                words: format!("the maps in the store are lost, so members are copied: {error}"),
            });
        }
        let (regions, all) = (stored.regions, Bitmap::all(stored.regions.count()));
        let missing = stored.names.iter().map(|name| (name.clone(), all.clone())).collect();
        StoredMaps { regions, active: all, missing, newest: Vec::new() }
    })
}

/// Returns the number of spares that the spec sets.
fn spares(given: &DeviceConfig) -> usize {
    given.integer(&SPARES).unwrap_or(0) as usize
}

/// Chooses at the opening which members not in sync get a resync, so that `wanted` members come in sync: first members
/// that have not failed, and of these the members that miss the fewest regions. The other present members become
/// spares.
fn take_in(
    states: &mut [State],
    missing: &[Bitmap],
    wanted: usize,
    present: impl Fn(usize) -> bool,
) {
    let in_sync = states.iter().filter(|state| **state == State::InSync).count();
    let stale = |port: &usize| states[*port] != State::InSync && present(*port);
    let mut stale: Vec<usize> = (0..states.len()).filter(stale).collect();
    stale.sort_by_key(|port| (states[*port] == State::Failed, missing[*port].len()));
    for (n, port) in stale.into_iter().enumerate() {
        states[port] = if in_sync + n < wanted { State::Copying } else { State::Spare };
    }
}

fn members<'m>(
    given: &'m DeviceConfig,
    found: Vec<&'m Found>,
    may_degrade: bool,
    regions: Regions,
) -> Members<'m> {
    let names: Vec<&str> = given.lowers.iter().map(|lower| lower.name.as_str()).collect();
    let trust = given.text(&TRUST).and_then(|name| names.iter().position(|one| *one == name));
    Members {
        names,
        found,
        regions,
        stored: None,
        created: given.lowers.iter().all(|lower| lower.created),
        spares: spares(given),
        trust,
        trusted_now: given.trusted_now,
        may_degrade,
    }
}

/// Returns the states at the opening of members without labels, which depend on the spec alone.
fn of_raw(given: &DeviceConfig, regions: Regions) -> Opened {
    let equal = given.lowers.len() - spares(given);
    let state = |(port, lower): (usize, &LowerConfig)| match given.text(&TRUST) {
        Some(name) if name == lower.name => State::InSync,
        None if port < equal => State::InSync,
        _ => State::Stale,
    };
    let states: Vec<_> = given.lowers.iter().enumerate().map(state).collect();
    let missing = states.iter().map(|state| match *state == State::InSync {
        true => Bitmap::none(regions.count()),
        false => Bitmap::all(regions.count()),
    });
    let missing = missing.collect();
    let content = vec![Content::Stale; states.len()];
    let scrubbed = Scrubbed::default();
    Opened { states, missing, content, scrubbed, stored: None, writer: None }
}
