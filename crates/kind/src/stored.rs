//! Kinds with persistent objects: the framework places the objects on the lowers, and gives the device the rest of its
//! first lower as its only lower.

use std::rc::Rc;

use block::env::LocalFuture;
use block::units::write_size;
use block::{Found, Info, Result, StateStore, Table};
use engine::AnyDevice;
use meta::home::{self, HomeParts, Made, Objects, Room};
use meta::vault::page::PAGE_BYTES;

use crate::{
    Bytes, DeviceConfig, DevicePlan, Effect, Fault, Kind, LowerConfig, MakerArgs, OptionSpec, Plan,
    Scope, ValueType,
};

/// The option of kinds with objects that names the second lower, which has the objects.
pub const META: OptionSpec = OptionSpec {
    name: "meta",
    value: ValueType::Member,
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "the second lower device, which holds the metadata; before the data if not set",
};

/// Function that declares the objects of a device whose first lower has this number of bytes.
pub type Declare = fn(&DeviceConfig, u64) -> Plan<Objects>;

/// Function that makes a device with objects. [`MakerArgs::lowers`] has one lower, the data. The function opens the home
/// with [`HomeParts::open`], and returns the device as [`meta::home::Home::device`] does.
pub type MakeStored = fn(MakerArgs<'_>, HomeParts) -> LocalFuture<Result<Rc<dyn AnyDevice>>>;

/// The functions that plan and make a device with objects.
#[derive(Clone, Copy)]
pub struct Stored {
    /// The relation of the device's bytes to the data, which are the bytes of its lower outside of the objects' room.
    pub bytes: Bytes,
    /// Declares the objects of the device.
    pub objects: Declare,
    /// Plans the device over one lower, the data, or finds faults in its configuration. The needs of the vault are added.
    pub plan: fn(&DeviceConfig) -> Plan<DevicePlan>,
    /// Makes the device.
    pub make: MakeStored,
}

impl Stored {
    /// Returns the relation of the device's bytes to those of its first lower.
    pub fn bytes(&self, given: &DeviceConfig) -> Bytes {
        if self.has_offsets_of_lower(given) { self.bytes } else { Bytes::Private }
    }

    /// Whether the room of the objects leaves the data at the offsets that they have on the first lower.
    fn has_offsets_of_lower(&self, given: &DeviceConfig) -> bool {
        let declared = (self.objects)(given, given.lowers[0].info.size);
        given.lowers.len() > 1 || declared.is_ok_and(|objects| objects.is_behind())
    }

    /// Plans the device of the kind `kind`: places its objects, and asks the kind for the rest.
    ///
    /// # Errors
    /// The faults of the lowers and of the option [`META`], and those that the kind finds.
    pub fn plan(&self, kind: &Kind, given: &DeviceConfig) -> Plan<DevicePlan> {
        let mut faults = faults_of_lowers(kind, given);
        let lower_bytes = given.lowers[0].info.size;
        let objects = match (self.objects)(given, lower_bytes) {
            Ok(objects) if faults.is_empty() => objects,
            Ok(_) => return Err(faults),
            Err(more) => {
                faults.extend(more);
                return Err(faults);
            }
        };
        let room = objects.room_bytes(lower_bytes);
        let (data, store) = (&given.lowers[0], &given.lowers[given.lowers.len() - 1]);
        let is_apart = given.lowers.len() > 1;
        let left = if is_apart { lower_bytes } else { lower_bytes.saturating_sub(room) };
        if room > store.info.size || left < u64::from(data.info.block_size).max(PAGE_BYTES as u64) {
            let words = format!(
                "the metadata of {:?} take {} of {:?}, which has {}; use a larger disk",
                given.name,
                write_size(room),
                store.name,
                write_size(store.info.size)
            );
            return Err(vec![Fault::new("on", words)]);
        }
        let size = if is_apart { left } else { left - left % PAGE_BYTES as u64 };
        let mut planned = (self.plan)(&over_data(given, data_info(&data.info, &store.info, size)))?;
        planned.needs.standing_bytes += objects.standing_bytes(lower_bytes) as u32;
        Ok(planned)
    }

    /// Finds the room of a device over `lowers`, the facts about its lowers as they are now. `state` has its state in
    /// labels.
    ///
    /// # Errors
    /// As [`Room::find`].
    pub fn room(
        &self,
        kind: &Kind,
        given: &DeviceConfig,
        lowers: &[Info],
        state: Rc<dyn StateStore>,
    ) -> Result<Room> {
        let objects = self.objects_of(given, lowers)?;
        let keeps_data = self.bytes != Bytes::Private;
        Room::find(kind.name, objects, lowers, state, keeps_data)
    }

    /// Checks that the state found in labels, if any, fits the device and the facts about its lowers.
    ///
    /// # Errors
    /// As [`home::check_found`].
    pub fn check_found(
        &self,
        kind: &Kind,
        given: &DeviceConfig,
        lowers: &[Info],
        found: &[Found],
    ) -> Result<()> {
        home::check_found(kind.name, &self.objects_of(given, lowers)?, lowers, found)
    }

    /// Returns the parts and the fixed options of the device of the kind `kind` by `found`, its newest state in labels; `None` if
    /// the state does not fit.
    pub fn made(&self, kind: &Kind, given: &DeviceConfig, found: &[u8]) -> Option<Made> {
        let lowers: Vec<_> = given.lowers.iter().map(|lower| lower.info.clone()).collect();
        Made::of(kind.name, &self.objects_of(given, &lowers).ok()?, &lowers, found)
    }

    fn objects_of(&self, given: &DeviceConfig, lowers: &[Info]) -> Result<Objects> {
        (self.objects)(given, lowers[0].size).map_err(|faults| {
            let words = faults.first().map_or("", |fault| &fault.message).to_owned();
            block::Error::new(block::ErrorKind::Invalid, words)
        })
    }

    /// Makes a device of the kind `kind` with the room `room`. The lowers of `args` are those of [`parts`].
    ///
    /// # Errors
    /// Errors of the kind, of the vault, and of writing to labels.
    ///
    /// # Panics
    /// If `args` has other lowers.
    pub fn make(
        &self,
        kind: &Kind,
        args: MakerArgs<'_>,
        room: Room,
    ) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
        let mut parts = args.lowers.into_iter();
        let mut part = || parts.next().expect("a device with objects has data and a vault");
        let (env, data, store) = (args.env.clone(), part(), part());
        let journal = parts.next();
        assert_eq!(journal.is_some(), room.journal.is_some(), "the journal has a lower");
        let home = HomeParts { env, kind: kind.name, room, store, journal, data: data.clone() };
        let config = over_data(args.config, data.info().clone());
        (self.make)(MakerArgs { config: &config, lowers: vec![data], ..args }, home)
    }
}

/// Returns the parts of the lowers of a device with objects: its data, its vault, and its journal if it has one. For each the
/// port of its lower, its mapping to this lower, and the facts about it. `lowers` are the facts about the lowers.
pub fn parts<'r>(room: &'r Room, lowers: &[Info]) -> Vec<(usize, &'r Table, Info)> {
    let store = &lowers[room.port];
    let data = data_info(&lowers[0], store, room.data.size());
    let mut parts = vec![(0, &room.data, data)];
    for own in [Some(&room.store), room.journal.as_ref()].into_iter().flatten() {
        parts.push((room.port, own, Info { size: own.size(), ..store.clone() }));
    }
    parts
}

/// Returns the facts about the data of a device with objects: `size` bytes of the lower `data`, whose changes also need the
/// lower `store`.
fn data_info(data: &Info, store: &Info, size: u64) -> Info {
    let Info { read_only, volatile_cache, survives_process, fenced, .. } = data.and(store);
    Info { size, read_only, volatile_cache, survives_process, fenced, ..data.clone() }
}

/// Returns the configuration of a device with the data as its only lower.
fn over_data(given: &DeviceConfig, data: Info) -> DeviceConfig {
    let lower = LowerConfig { info: data, ..given.lowers[0].clone() };
    DeviceConfig { lowers: vec![lower], ..given.clone() }
}

/// Finds faults of the lowers of a device with objects.
fn faults_of_lowers(kind: &Kind, given: &DeviceConfig) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |option, words: String| faults.push(Fault::new(option, words));
    let kind = kind.name;
    let names: Vec<&str> = given.lowers.iter().map(|lower| lower.name.as_str()).collect();
    match (&names[..], given.text(&META)) {
        ([_], None) => {}
        ([_, second], Some(meta)) if *second == meta => {}
        ([first, second], Some(_)) => fault(
            "meta",
            format!(
                "{first:?} is the first device in \"on\", which holds the data; put it last, or \
                 set meta = {second:?}"
            ),
        ),
        ([_, second, ..], None) => {
            fault("on", format!("meta must name the device of the metadata: add meta = {second:?}"))
        }
        (_, Some(meta)) => fault(
            "meta",
            format!("{meta:?} is the only device in \"on\"; add a second one, or remove meta"),
        ),
        ([], None) => unreachable!("the plan checked the number of lowers"),
    }
    for lower in &given.lowers {
        if !lower.labelled {
            let words = format!(
                "{:?} is on a raw disk, but a {kind} keeps its state in labels; set label = true \
                 on the disks",
                lower.name
            );
            fault("on", words);
        }
    }
    if let Some(lower) = given.lowers.last().filter(|lower| lower.info.block_size > 4096) {
        let words = format!(
            "{:?} has blocks of {} bytes; metadata need blocks of at most {PAGE_BYTES}",
            lower.name, lower.info.block_size
        );
        fault("on", words);
    }
    faults
}
