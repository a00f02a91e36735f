//! Encrypts all data that clients write, with AES-256-XTS. The key slots are kept in the labels of the disks beneath.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `device.rs` | carrying out requests |
//! | `xts.rs` | the cipher: calls into AWS-LC, in locked memory |
//! | `slots.rs` | the key slots as bytes |
//! | `wrap.rs` | wrapping a volume key with a passphrase |
//! | `open.rs` | opening or creating a volume with a key source |
//! | `keys.rs` | the key slots of an open volume: add, remove, change |

mod device;
mod keys;
mod open;
pub mod slots;
#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod verbs;
mod wrap;
mod xts;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::control::Verb as _;
use block::env::LocalFuture;
use block::{Env, Handover, Info, KeySource, Lower, Mutex, Needs, Result, StateStore, error};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, ValueType,
};

use device::{Crypt, Parts};
use keys::Keys;
use open::KeyOpener;
use slots::{Cost, MEMORY_KIB_MAX, MEMORY_KIB_MIN, PASSES_MAX};
use xts::Cipher;

/// The kind `crypt`: a device that encrypts all bytes that are written to its lower.
pub const KIND: Kind = Kind {
    name: "crypt",
    summary: "encrypts all bytes that are written",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[KEY, PLAIN, UNIT, DISCARDS, KDF_MEMORY, KDF_PASSES],
    capabilities: Capabilities::NONE,
    verbs: &[verbs::Keys::INFO],
    maker: Maker::Stateful {
        bytes: Bytes::Transformed,
        plan,
        make,
        prepare: Some(prepare),
        preflight: None,
        describe: slots::describe,
    },
};

const KEY: OptionSpec = OptionSpec {
    name: "key",
    value: ValueType::Text,
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Secret,
    help: "source of the passphrase: file:PATH, fd:N, credential:NAME or ask",
};

const PLAIN: OptionSpec = OptionSpec {
    name: "plain",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "no key slots: the source holds the 64 bytes of the key itself; off if not set",
};

const UNIT: OptionSpec = OptionSpec {
    name: "unit",
    value: ValueType::Size(512, 65536),
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "bytes of one encrypted data unit, a power of two; the block size of the lower device if not set",
};

const DISCARDS: OptionSpec = OptionSpec {
    name: "discards",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "pass discards to the lower device, so that the disk shows which blocks are in use; off if not set",
};

const KDF_MEMORY: OptionSpec = OptionSpec {
    name: "kdf_memory",
    value: ValueType::Size((MEMORY_KIB_MIN as u64) << 10, (MEMORY_KIB_MAX as u64) << 10),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "memory for the key derivation of new key slots; 256MiB if not set",
};

const KDF_PASSES: OptionSpec = OptionSpec {
    name: "kdf_passes",
    value: ValueType::Integer(1, PASSES_MAX as u64),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "passes of the key derivation over `kdf_memory`, for new key slots; 4 if not set",
};

/// Default cost of a key derivation: about a second on a machine of 2026, with 256 MiB.
const COST_DEFAULT: Cost = Cost { memory_kib: 256 << 10, passes: 4, lanes: 1 };

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let mut faults = Vec::new();
    let mut fault = |option, words: String| faults.push(Fault::new(option, words));
    let lower = &given.lowers[0];
    let source = given.text(&KEY).unwrap_or_default().parse::<KeySource>();
    if let Err(words) = &source {
        fault("key", words.clone());
    }
    let plain = given.switch(&PLAIN);
    if plain && source == Ok(KeySource::Ask) {
        let words = "a plain key of 64 bytes cannot be typed; with plain = true the key comes from \
                     file:PATH, fd:NUMBER or credential:NAME";
        fault("key", words.to_owned());
    }
    if !plain && !lower.labelled {
        let words = format!(
            "{:?} is on a raw disk, but key slots need labelled disks; set label = true on the \
             disks, or plain = true on this device, with a key of 64 bytes",
            lower.name
        );
        fault("on", words);
    }
    let derives = ["kdf_memory", "kdf_passes"].into_iter();
    for option in derives.filter(|name| given.options.iter().any(|(one, _)| one == name)) {
        match cost(given).check() {
            _ if plain => {
                fault(option, "plain = true derives no key; remove this option".to_owned())
            }
            Err(error) => fault(option, error.to_string()),
            Ok(()) => {}
        }
    }
    if let Some(unit) = given.size(&UNIT).filter(|unit| !unit.is_power_of_two()) {
        let near = unit.next_power_of_two() / 2;
        fault("unit", format!("unit {unit} is not a power of two; {near} is"));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let needs = Needs { children: 1, scratch_copies: 1, ..Needs::LEAF };
    Ok(DevicePlan { info: info(given, &lower.info), needs })
}

fn unit(given: &DeviceConfig, lower: &Info) -> u32 {
    given.size(&UNIT).map_or(lower.block_size, |unit| unit as u32)
}

fn cost(given: &DeviceConfig) -> Cost {
    let memory = given.size(&KDF_MEMORY).map(|bytes| (bytes >> 10) as u32);
    let passes = given.integer(&KDF_PASSES).map(|passes| passes as u32);
    Cost {
        memory_kib: memory.unwrap_or(COST_DEFAULT.memory_kib),
        passes: passes.unwrap_or(COST_DEFAULT.passes),
        ..COST_DEFAULT
    }
}

fn info(given: &DeviceConfig, lower: &Info) -> Info {
    let block_size = lower.block_size.max(unit(given, lower));
    let discards = given.switch(&DISCARDS);
    Info {
        size: lower.size - lower.size % u64::from(block_size),
        block_size,
        preferred_io: lower.preferred_io.max(block_size),
        max_transfer: lower.max_transfer - lower.max_transfer % block_size,
        native_zeroes: false,
        discard: discards && lower.discard,
        discard_zeroes: discards && lower.discard_zeroes,
        ..lower.clone()
    }
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { config: given, env, lowers, state, .. } = making;
    let (given, env) = (given.clone(), env.clone());
    Box::pin(async move {
        let device = open(&given, &env, lowers, state).await?;
        Ok(Rc::new(device) as Rc<dyn AnyDevice>)
    })
}

/// Reads or derives the volume key before the device is opened, because a derivation takes about a second.
fn prepare(
    given: &DeviceConfig,
    env: &Env,
    kept: Rc<dyn StateStore>,
) -> LocalFuture<Result<Handover>> {
    let (given, lock) = (given.clone(), lock(given, env));
    Box::pin(async move {
        if given.switch(&PLAIN) {
            let key: Rc<dyn Any> = Rc::new(lock.raw().await?);
            return Ok(Some(key));
        }
        lock.prepare(&*kept, unit(&given, &given.lowers[0].info)).await
    })
}

fn lock(given: &DeviceConfig, env: &Env) -> KeyOpener {
    let source = given.text(&KEY).unwrap_or_default().parse();
    KeyOpener {
        env: env.clone(),
        full_name: format!("{}/{}", given.graph, given.name),
        source: source.expect("the plan parsed the key source"),
        cost: cost(given),
    }
}

async fn open(
    given: &DeviceConfig,
    env: &Env,
    lowers: Vec<Lower>,
    kept: Rc<dyn StateStore>,
) -> Result<Crypt> {
    let lower = lowers.into_iter().next().expect("the plan checked that the device has one lower");
    let lock = lock(given, env);
    let info = info(given, lower.info());
    let mut unit = unit(given, lower.info());
    let (key, keys) = if given.switch(&PLAIN) {
        let key = match open::handed_over(&*kept) {
            Some(key) => key,
            None => Rc::new(lock.raw().await?),
        };
        (key, None)
    } else {
        let (volume, key) = lock.open(&*kept, unit, !info.read_only).await?;
        unit = made_with(volume.unit, &info)?;
        let KeyOpener { env, full_name, cost, .. } = lock;
        let (volume, turn, closed) = (RefCell::new(volume), Mutex::new(), Cell::new(None));
        (key, Some(Rc::new(Keys { env, full_name, kept, volume, cost, turn, closed })))
    };
    let discards = given.switch(&DISCARDS);
    let cipher = {
        let key = key.clone();
        move || Cipher::new(key.bytes(), unit, discards)
    };
    let (name, env) = (given.name.clone(), env.clone());
    Crypt::new(Parts { name, info, env, lower, discards, keys, key }, cipher)
}

/// Returns `unit`, the data unit in bytes with which the volume was created, if the data unit fits the blocks of the
/// device. A block, and so a request, must contain complete data units.
fn made_with(unit: u32, info: &Info) -> Result<u32> {
    if unit <= info.block_size {
        return Ok(unit);
    }
    Err(error!(
        Reason::CryptOtherUnits,
        "the encrypted volume was made with data units of {unit} bytes, but the lower device has \
         blocks of {} bytes now",
        info.block_size
    )
    .next(format!("set unit = {unit} in the spec")))
}

/// Returns the cipher of encrypted devices without a device, for a benchmark: a function that decrypts one data unit of
/// `unit` bytes at the given offset of a device.
///
/// # Errors
/// `Limit` if no memory can be locked.
pub fn kernel(unit: u32) -> Result<impl FnMut(u64)> {
    let key: Vec<u8> = (0..64).collect();
    let mut cipher = Cipher::new(&key, unit, false)?;
    let mut bytes = vec![0; unit as usize];
    Ok(move |offset| cipher.apply_in_place(xts::Way::Decrypt, offset, &mut bytes))
}
