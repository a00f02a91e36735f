//! The kind `nbd`: a disk that is an export of another server.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind `nbd`: its options, plan and maker |
//! | `target.rs` | the address of an export, and the files for TLS with its server |
//! | `client.rs` | one connection to a server |
//! | `pending.rs` | requests in flight on one connection, and their replies |
//! | `covered.rs` | received parts of one read |
//! | `link.rs` | the connections of a disk, which are made again when they are lost |
//! | `unflushed.rs` | log of the changes that the server has completed and not flushed |
//! | `ring.rs` | a copy of this log for the next process |
//! | `remote.rs` | the device of the disk |
//! | `any_bytes_tests.rs` | the bodies of fuzz targets |

#[cfg(any(test, feature = "fuzzing"))]
mod any_bytes_tests;
mod client;
mod covered;
mod link;
mod pending;
mod remote;
mod ring;
mod target;
mod unflushed;

use std::rc::Rc;
use std::time::Duration;

use block::env::Address;
use block::{Env, Error, ErrorKind, Info, Result, bail, error};
use kind::{
    AnyDevice, Capabilities, DeviceConfig, DiskPlan, Effect, Fault, Kind, Lowers, Maker,
    OptionSpec, Plan, Scope, ValueType,
};
use wire::nbd::{ClientConfig, ExportFacts, TransmissionFlags};

use link::{Link, Reach};
use remote::Remote;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use any_bytes_tests::{try_any_replies, try_any_ring};
pub use client::{Client, HANDSHAKE};
pub use target::{PEM_MAX_BYTES, Target, TlsFiles, secure};

/// The kind `nbd`: a disk that is an export of another server.
pub const KIND: Kind = Kind {
    name: "nbd",
    summary: "an export of another server, over NBD",
    manual: include_str!("manual.md"),
    lowers: Lowers::None,
    options: &[URI, TLS, TIMEOUT, RECONNECT, REPLAY, CONNECTIONS, UNSAFE_REPLICA],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Disk {
        plan: |given, env| Box::pin(plan(given.clone(), env.clone())),
        make: |making| Box::pin(make(making.config.clone(), making.env.clone())),
    },
};

const URI: OptionSpec = OptionSpec {
    name: "nbd",
    value: ValueType::Text,
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Local,
    help: "the export: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH; nbds for TLS",
};

const TLS: OptionSpec = OptionSpec {
    name: "tls",
    value: ValueType::Table(&["ca", "cert", "key", "hostname"]),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "for nbds: the trusted CA, the disk's own certificate and key, the server's name",
};

const TIMEOUT: OptionSpec = OptionSpec {
    name: "timeout",
    value: ValueType::Duration(Duration::from_secs(600)),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "a request unanswered for this time takes the disk out of service; 30s if not set",
};

const RECONNECT: OptionSpec = OptionSpec {
    name: "reconnect",
    value: ValueType::Duration(Duration::from_secs(24 * 60 * 60)),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "the time that requests wait for an unreachable server before the disk is out of service \
           (0s: at once); 30s if not set",
};

const REPLAY: OptionSpec = OptionSpec {
    name: "replay",
    value: ValueType::Size(0, 1 << 40),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "the bytes of acknowledged, unflushed writes that are kept for a replay after a lost \
           connection; 64MiB if not set",
};

const CONNECTIONS: OptionSpec = OptionSpec {
    name: "connections",
    value: ValueType::Integer(1, CONNECTIONS_MAX),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "the number of connections that share the disk's requests; 1 if not set",
};

const UNSAFE_REPLICA: OptionSpec = OptionSpec {
    name: "unsafe_replica",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Local,
    help: "allow the disk as a member of a mirror although its server is reached over TCP",
};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Default of `reconnect`: a server that is restarted is reachable again within this time. A device that must not wait
/// so long has its own limit.
const RECONNECT_DEFAULT: Duration = Duration::from_secs(30);

/// Default of `replay` in bytes: a quarter of the buffers of a core.
const REPLAY_DEFAULT: u64 = 64 << 20;

/// Maximum size of an export in bytes, the same as for a file: so no sum of an offset and a length overflows.
const SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// Maximum number of connections of one disk.
const CONNECTIONS_MAX: u64 = 16;

/// Returns the address of the export of the disk, with the files for TLS from its options.
fn target(given: &DeviceConfig) -> Result<Target> {
    let mut target = Target::of(given.text(&URI).unwrap_or_default())?;
    let text = |key| given.text_in(&TLS, key);
    match &mut target.tls {
        Some(files) => {
            let paths = [("ca", &mut files.ca), ("cert", &mut files.cert), ("key", &mut files.key)];
            for (key, path) in paths {
                *path = text(key).map(Into::into).or(path.take());
            }
            files.anonymous &= text("cert").is_none();
            files.hostname = text("hostname").map_or(files.hostname.clone(), str::to_owned);
        }
        None if given.is_set(&TLS) => {
            let words = "tls is set, but the URI is for a connection without TLS; use nbds:// or \
                         nbds+unix://";
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        None => {}
    }
    Ok(target)
}

fn reach(given: &DeviceConfig, env: &Env) -> Result<Reach> {
    let target = target(given)?;
    let tls = target.client(env).map_err(|error| error.at(&target.address))?;
    Ok(Reach {
        name: given.name.clone(),
        uri: given.text(&URI).unwrap_or_default().to_owned(),
        tls,
        address: target.address,
        export: target.export,
        connections: given.integer(&CONNECTIONS).unwrap_or(1) as usize,
        timeout: given.duration(&TIMEOUT).unwrap_or(TIMEOUT_DEFAULT),
        hold: given.duration(&RECONNECT).unwrap_or(RECONNECT_DEFAULT),
    })
}

/// Returns the size in bytes of the log of unflushed changes: 0 if no change is ever sent again.
fn log_bytes(given: &DeviceConfig, facts: &ExportFacts) -> u64 {
    let reconnects = given.duration(&RECONNECT) != Some(Duration::ZERO);
    match reconnects && !facts.flags.has(TransmissionFlags::READ_ONLY) {
        true => given.size(&REPLAY).unwrap_or(REPLAY_DEFAULT),
        false => 0,
    }
}

fn info_of(given: &DeviceConfig, env: &Env, facts: &ExportFacts) -> Result<Info> {
    let keeps = log_bytes(given, facts) > 0;
    if facts.size_bytes > SIZE_MAX_BYTES {
        bail!(Invalid, "an export of {} bytes; the limit is {SIZE_MAX_BYTES}", facts.size_bytes);
    }
    let has = |flag| facts.flags.has(flag);
    let block_size = facts.blocks.min().max(512);
    let size = facts.size_bytes - facts.size_bytes % u64::from(block_size);
    let over_tcp = matches!(target(given)?.address, Address::Tcp(..));
    let max_transfer = facts.blocks.max_payload() - facts.blocks.max_payload() % block_size;
    if size == 0 || max_transfer == 0 {
        bail!(
            Invalid,
            "the export has {} bytes and takes {} bytes per request; a disk has at least one block \
             of {block_size} bytes",
            facts.size_bytes,
            facts.blocks.max_payload()
        );
    }
    Ok(Info {
        read_only: has(TransmissionFlags::READ_ONLY),
        volatile_cache: has(TransmissionFlags::FLUSH),
        native_fua: has(TransmissionFlags::FUA),
        native_zeroes: has(TransmissionFlags::WRITE_ZEROES),
        // If changes may be sent again, a discard is sent as a write of zeroes.
        discard: has(TransmissionFlags::TRIM) && (!keeps || has(TransmissionFlags::WRITE_ZEROES)),
        preferred_io: facts.blocks.preferred().max(4096),
        max_transfer,
        // A payload in the log of unflushed changes has a buffer of its own. Any other payload may stay in the buffer
        // in which it arrived.
        buf_align: if keeps { 512 } else { 1 },
        // If this process and the server die, unflushed changes survive in the memory that the supervisor keeps.
        survives_process: env.has_supervisor() && (keeps || has(TransmissionFlags::READ_ONLY)),
        fenced: !over_tcp || given.switch(&UNSAFE_REPLICA),
        ..Info::disk(size, block_size)
    })
}

/// Checks that the server of the disk supports the number of connections in the options.
fn check_connections(given: &DeviceConfig, facts: &ExportFacts) -> Result<()> {
    let wanted = given.integer(&CONNECTIONS).unwrap_or(1);
    if wanted == 1 || facts.flags.has(TransmissionFlags::MULTI_CONN) {
        return Ok(());
    }
    Err(error!(
        Unsupported,
        "connections = {wanted} needs a server whose flush covers all connections (MULTI_CONN); \
         leave out the option connections"
    ))
}

async fn plan(given: DeviceConfig, env: Env) -> Plan<DiskPlan> {
    let fault = |option, error: Error| vec![Fault::new(option, error.to_string())];
    let target = target(&given).map_err(|error| fault("nbd", error))?;
    let config = ClientConfig::connect(target.export.clone());
    let client = target.connect(&env, config).await.map_err(|error| fault("nbd", error))?;
    client.close();
    let facts = &client.session().facts;
    check_connections(&given, facts).map_err(|error| fault("connections", error))?;
    let info = info_of(&given, &env, facts).map_err(|error| fault("nbd", error))?;
    let uri = given.text(&URI).unwrap_or_default().to_owned();
    let reach = reach(&given, &env).map_err(|error| fault("nbd", error))?;
    let (standing_bytes, words) = (reach.standing_bytes(), "over NBD".to_owned());
    Ok(DiskPlan { info, creates: false, identity: uri, standing_bytes, words })
}

async fn make(given: DeviceConfig, env: Env) -> Result<Rc<dyn AnyDevice>> {
    let link = Link::connect(&env, reach(&given, &env)?, |facts| {
        check_connections(&given, facts)?;
        Ok(log_bytes(&given, facts))
    });
    let link = link.await?;
    let info = info_of(&given, &env, link.facts())?;
    Ok(Rc::new(Remote::new(&env, info, link)))
}
