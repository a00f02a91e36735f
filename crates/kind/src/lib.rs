//! The interface for authors of kinds: options, plans, makers, and the registry that the binary passes to the crate
//! `graph`. An author of a kind needs only this crate and [`block`], the contract of a device.
//!
//! The crate `graph` depends on no kind.

use std::rc::Rc;
use std::time::Duration;

use block::control::VerbInfo;
use block::env::LocalFuture;
use block::{
    Env, Found, Handover, Hooks, Info, Lower, Needs, NoStateStore, Result, StateStore, StoredState,
    Table,
};
use fixedbitset::FixedBitSet;

mod capability;
mod stored;
mod surroundings;
#[cfg(feature = "testing")]
pub mod testing;

pub use block;
pub use capability::{Capabilities, Moving};
pub use engine::AnyDevice;
pub use meta::home;
pub use stored::{Declare, META, MakeStored, Stored, parts};
pub use surroundings::{Surroundings, Upper, Verified};

/// A kind of device: its options, its manual, and the functions that make a device.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The name of the kind, as in a spec: `mirror`.
    pub name: &'static str,
    /// The purpose of devices of the kind, in one line.
    pub summary: &'static str,
    /// The manual page of the kind, in Markdown.
    pub manual: &'static str,
    /// The number of lowers of a device of the kind.
    pub lowers: Lowers,
    /// The options of the kind that a spec may set.
    pub options: &'static [OptionSpec],
    /// Facts about the kind that a graph or a tool must know, besides its options.
    pub capabilities: Capabilities,
    /// The verbs of the commands that devices of the kind may know. One device may know fewer verbs:
    /// [`block::Device::verbs`].
    pub verbs: &'static [&'static VerbInfo],
    /// The functions that plan and make a device of the kind.
    pub maker: Maker,
}

/// The number of lowers of a device of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lowers {
    /// No lower: the kind is a disk. The name of the kind is also the key in the spec for the path, address or size of
    /// the disk (`file`, `memory`).
    None,
    /// One lower: `on = "name"` in the spec.
    One,
    /// Several lowers, `on = ["a", "b"]` in the spec, with the least and the largest number of lowers.
    Many(usize, usize),
}

/// An option that a spec may set on devices of a kind.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The key of the option in the spec.
    pub name: &'static str,
    /// The type of the option's value.
    pub value: ValueType,
    /// Whether a spec must set the option.
    pub required: bool,
    /// The effect that a change of the option's value has on an existing device.
    pub effect: Effect,
    /// The place where the value of the option is kept: in labels, or on one machine only.
    pub scope: Scope,
    /// The purpose of the option, its unit and its default, in a sentence.
    pub help: &'static str,
}

/// The effect that a change of an option's value has on an existing device. A live change considers no other property
/// of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Clients would read other bytes, so a device that an export shows cannot take another value of the option.
    Bytes,
    /// Clients read the same bytes with another value of the option, but the device behaves differently.
    Behaviour,
    /// The value of the option counts at one start only, and a running device ignores it.
    Start,
    /// The value of the option counts when a disk is created, and never again.
    Making,
}

impl Effect {
    /// Whether a change of the option's value changes an existing device.
    pub fn is_lasting(self) -> bool {
        matches!(self, Self::Bytes | Self::Behaviour)
    }
}

/// The place where the value of an option is kept. Any program with access to the disk can read and write its label, so
/// an option that names a path, a program, an address or a secret is never [`Scope::Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The value is kept in the labels of the graph's disks.
    Graph,
    /// The value is kept on one machine only, for example a path, or a value for one start.
    Local,
    /// The value is kept on one machine: it names the source of a secret, as [`block::KeySource`] reads it.
    Secret,
}

/// The type of an option's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ValueType {
    /// A number of bytes, or text such as `"64KiB"`; with the least and the largest permitted number.
    Size(u64, u64),
    /// A number of bytes, or the word `rest`: all bytes of the lower from the start of the device on.
    SizeOrRest,
    /// A time such as `"5ms"` or `"2s"`, with the largest permitted time.
    Duration(Duration),
    /// An integer, with the least and the largest permitted number.
    Integer(u64, u64),
    /// A share from 0 to 1, as a number or as `"1%"`.
    Share,
    /// The value `true` or `false`.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Several of these words, given as one word or as a list.
    Choices(&'static [&'static str]),
    /// A text without rules for its content.
    Text,
    /// A path of a file or directory.
    Path,
    /// The name of one of the device's lowers, as listed in `on`.
    Member,
    /// A table of texts, with the permitted keys.
    Table(&'static [&'static str]),
}

/// The value of an option in a spec, checked against the option's type.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A number of bytes, for an option of type [`ValueType::Size`] or [`ValueType::SizeOrRest`].
    Size(u64),
    /// The word `rest`, for an option of type [`ValueType::SizeOrRest`].
    Rest,
    /// A time, for an option of type [`ValueType::Duration`].
    Duration(Duration),
    /// An integer, for an option of type [`ValueType::Integer`].
    Integer(u64),
    /// A share from 0 to 1, for an option of type [`ValueType::Share`].
    Share(f64),
    /// `true` or `false`, for an option of type [`ValueType::Switch`].
    Switch(bool),
    /// Text, for an option of type [`ValueType::Choice`], [`ValueType::Text`], [`ValueType::Path`] or
    /// [`ValueType::Member`].
    Text(String),
    /// Words, for an option of type [`ValueType::Choices`].
    List(Vec<String>),
    /// The keys that were set and their texts, for an option of type [`ValueType::Table`].
    Table(Vec<(&'static str, String)>),
}

/// The configuration of a device that is planned or made: its name, its options, its lowers. The options have been
/// checked against the kind's [`OptionSpec`]s.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The name of the device's graph.
    pub graph: String,
    /// The name of the device.
    pub name: String,
    /// The options that were set on the device, by name.
    pub options: Vec<(&'static str, Value)>,
    /// The facts about the lowers of the device, in the order of their ports.
    pub lowers: Vec<LowerConfig>,
    /// Whether the trusted member ([`Kind::trust`]) is from a command at this start, not from the spec: the operator
    /// has seen the labels that the command overrules.
    pub trusted_now: bool,
}

/// The facts about a lower of a planned device, before any device of the graph runs.
#[derive(Clone, Debug)]
pub struct LowerConfig {
    /// The name of the lower.
    pub name: String,
    /// Size, block size and abilities of the lower.
    pub info: Info,
    /// Whether this start creates every disk beneath the lower.
    pub created: bool,
    /// Whether every disk beneath the lower has a label. Otherwise the device above cannot keep state in labels beneath
    /// this lower.
    pub labelled: bool,
    /// Whether every disk beneath the lower gets its first label from this start or change, or got it from one that did
    /// not complete: no device has data there.
    pub fresh: bool,
    /// The newest state of the device in the labels beneath the lower, as they were read before the plan; `None` if no
    /// label was read, or none has a state.
    pub state: Option<Rc<StoredState>>,
    /// First byte of the lower behind all partitions of it that were planned before this device; the start of a
    /// partition without `start`.
    pub next_free: u64,
    /// The disks and devices beneath the lower, the lower included.
    pub beneath: Rc<Beneath>,
}

/// The disks and devices beneath a device.
#[derive(Clone, Debug, Default)]
pub struct Beneath {
    /// The disks beneath the device: one bit for each device of the graph, by its number. The bitmap stays small in a
    /// dense graph, where every device is above all disks.
    pub disks: FixedBitSet,
    /// Names of the device itself and of the devices beneath it, downwards, that have each of its bytes at the same
    /// offset.
    pub in_place: Vec<String>,
}

impl Beneath {
    /// Returns the disks and devices beneath the device `given`, which has `number` in the graph.
    pub fn of(given: &DeviceConfig, number: usize, maker: Maker) -> Self {
        let (mut in_place, lowers) = (vec![given.name.clone()], &given.lowers);
        let stays = matches!(maker.bytes(given), Bytes::Passthrough | Bytes::Transformed);
        let below = lowers.first().filter(|_| stays);
        in_place.extend(below.into_iter().flat_map(|lower| lower.beneath.in_place.clone()));
        let mut disks = FixedBitSet::new();
        lowers.iter().for_each(|lower| disks.union_with(&lower.beneath.disks));
        if matches!(maker, Maker::Disk { .. }) {
            disks.grow_and_insert(number);
        }
        Self { disks, in_place }
    }
}

impl DeviceConfig {
    fn find(&self, option: &OptionSpec) -> Option<&Value> {
        self.options.iter().find(|(key, _)| *key == option.name).map(|(_, value)| value)
    }

    /// Returns the newest state of the device in the labels beneath it; `None` if no label was read, or none has a state.
    pub fn newest_state(&self) -> Option<&StoredState> {
        let states = self.lowers.iter().filter_map(|lower| lower.state.as_deref());
        states.max_by_key(|state| state.sequence)
    }

    /// Whether this device and `other`, of the same kind, have the same values of all options whose effect `counts`
    /// selects. An option that the kind does not have counts as [`Effect::Bytes`].
    pub fn has_options_of(
        &self,
        other: &Self,
        kind: &Kind,
        counts: impl Fn(Effect) -> bool,
    ) -> bool {
        let effect = |name| kind.option(name).map_or(Effect::Bytes, |option| option.effect);
        let options = |given: &'_ Self| {
            let options = given.options.iter().filter(|(name, _)| counts(effect(name)));
            options.cloned().collect::<Vec<_>>()
        };
        options(self) == options(other)
    }

    /// Removes the options of the device that count at one start only.
    pub fn forget_start_option(&mut self, kind: &Kind) {
        let is_first = |name| kind.start_option().is_some_and(|option| option.name == name);
        self.options.retain(|(name, _)| !is_first(*name));
    }

    /// Sets the option `read_only` of the disk, if its kind has that option.
    pub fn refuse_writes(&mut self, kind: &Kind) {
        let option = kind.option("read_only");
        self.options.extend(option.map(|option| (option.name, Value::Switch(true))));
    }

    /// Whether the option was set on the device.
    pub fn is_set(&self, option: &OptionSpec) -> bool {
        self.find(option).is_some()
    }

    /// Returns the value of an option with a size in bytes, if it was set.
    pub fn size(&self, option: &OptionSpec) -> Option<u64> {
        let Value::Size(bytes) = self.find(option)? else { return None };
        Some(*bytes)
    }

    /// Returns the value of an option with a time, if it was set.
    pub fn duration(&self, option: &OptionSpec) -> Option<Duration> {
        let Value::Duration(time) = self.find(option)? else { return None };
        Some(*time)
    }

    /// Returns the value of an option with an integer, if it was set.
    pub fn integer(&self, option: &OptionSpec) -> Option<u64> {
        let Value::Integer(number) = self.find(option)? else { return None };
        Some(*number)
    }

    /// Returns the value of an option with a share, from 0 to 1, if it was set.
    pub fn share(&self, option: &OptionSpec) -> Option<f64> {
        let Value::Share(share) = self.find(option)? else { return None };
        Some(*share)
    }

    /// Returns the value of an option that is a switch; off if it was not set.
    pub fn switch(&self, option: &OptionSpec) -> bool {
        self.switch_or(option, false)
    }

    /// Returns the value of an option that is a switch, or `default` if it was not set.
    pub fn switch_or(&self, option: &OptionSpec, default: bool) -> bool {
        let Some(Value::Switch(value)) = self.find(option) else { return default };
        *value
    }

    /// Returns the text of an option with a word, a path, a member's name or any text, if it was set.
    pub fn text(&self, option: &OptionSpec) -> Option<&str> {
        let Value::Text(text) = self.find(option)? else { return None };
        Some(text)
    }

    /// Returns the text for `key` in an option that is a table, if it was set.
    pub fn text_in(&self, table: &OptionSpec, key: &str) -> Option<&str> {
        let Value::Table(texts) = self.find(table)? else { return None };
        texts.iter().find(|(known, _)| *known == key).map(|(_, text)| text.as_str())
    }

    /// Checks that all lowers of the device may be members of a redundant device. The `plan` of such a device calls
    /// this function.
    ///
    /// # Errors
    /// A fault of `on` for each lower on which a late write could make the copies differ for ever.
    pub fn replicas(&self) -> Plan<()> {
        let unfenced = self.lowers.iter().filter(|lower| !lower.info.fenced);
        let words = |lower: &LowerConfig| {
            format!(
                "{:?} is on a server over TCP: after a lost connection an old write may overwrite \
                 a newer one there, so that the copies differ; use a unix socket, or set \
                 unsafe_replica = true on the disk",
                lower.name
            )
        };
        let faults: Vec<_> = unfenced.map(|lower| Fault::new("on", words(lower))).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Whether two lowers of the device share a disk.
    pub fn overlap(&self) -> bool {
        let disks: Vec<_> = self.lowers.iter().map(|lower| &lower.beneath.disks).collect();
        let later = |n: usize| disks[n + 1..].iter();
        disks.iter().enumerate().any(|(n, one)| later(n).any(|other| !one.is_disjoint(other)))
    }

    /// Returns the highest device that has each byte of both lowers of this device at the same offset: one of the
    /// lowers, or a device beneath both.
    pub fn in_place(&self) -> Option<&str> {
        let [one, two] = &self.lowers[..] else { return None };
        let (one, two) = (&one.beneath.in_place, &two.beneath.in_place);
        one.iter().find(|name| two.contains(name)).map(String::as_str)
    }

    /// Returns the words of an option with a list; empty if it was not set.
    pub fn list(&self, option: &OptionSpec) -> &[String] {
        match self.find(option) {
            Some(Value::List(words)) => words,
            _ => &[],
        }
    }
}

/// A fault in the configuration of a device: the option (or `on`), and a sentence with value, limit and next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The name of the option with the fault; `on` for the lowers, or `kind` for the device itself.
    pub option: &'static str,
    /// The description of the fault, and the next step for a person.
    pub message: String,
}

impl Fault {
    /// Creates a fault of the option named `option`.
    pub fn new(option: &'static str, message: impl Into<String>) -> Self {
        Self { option, message: message.into() }
    }
}

/// The plan of a device that is a table: its mapping, with one port for each lower, and the bytes of the lowers that
/// the mapping leaves unused.
pub struct TablePlan {
    /// The mapping of the device, with one port for each lower.
    pub table: Table,
    /// Number of bytes of the lowers that stay unused: the table occupies its lowers completely, but maps no byte of
    /// the device to these bytes.
    pub unused_bytes: u64,
}

/// The plan of a device that issues requests to its lowers.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// Size, block size and abilities that the device will have.
    pub info: Info,
    /// The most child requests and buffers that the device needs at once for one request, and the buffers that it holds
    /// permanently.
    pub needs: Needs,
}

/// The result of planning a device, before any device is opened or made: its plan, or the faults of its configuration.
pub type Plan<T> = std::result::Result<T, Vec<Fault>>;

/// The inputs for the maker of a device. A new service becomes a field, and no kind has to change.
pub struct MakerArgs<'m> {
    /// The name and options of the device, and the facts about its lowers.
    pub config: &'m DeviceConfig,
    /// The environment of the process: disks, network, clock and random numbers.
    pub env: &'m Env,
    /// Handles to the lowers of the device; none for a disk.
    pub lowers: Vec<Lower>,
    /// The store for the state of the device in the labels of the disks below; empty for a raw disk, and for a maker
    /// without state.
    pub state: Rc<dyn StateStore>,
    /// The hand-over of the device that the new device replaces, if both have the same name and kind.
    pub before: Handover,
    /// The devices around the device: whether its uppers verify its bytes, and where redundancy is.
    pub around: Surroundings,
}

impl<'m> MakerArgs<'m> {
    /// Returns the inputs for a device without lowers, state and predecessor.
    pub fn new(config: &'m DeviceConfig, env: &'m Env) -> Self {
        let state = Rc::new(NoStateStore::new(false));
        let around = Surroundings::default();
        Self { config, env, lowers: Vec::new(), state, before: None, around }
    }
}

/// Function that makes a device over its lowers.
pub type MakeDevice = fn(MakerArgs<'_>) -> Result<Rc<dyn AnyDevice>>;

/// Function that makes a device with a state on the labelled disks beneath it. It may wait, for example for a write of
/// the state or for the derivation of a key.
pub type MakeStateful = fn(MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>>;

/// Function that checks whether a device with this configuration and these facts would open, judging from the state
/// found beneath each of its ports, without reading its data. `degraded`: whether the device may open with fewer lowers
/// than it should have.
pub type Preflight = fn(&DeviceConfig, &Info, &[Found], degraded: bool) -> Result<()>;

/// Function that does the slow part of making a device, before clients have to wait for the live change. The function
/// changes nothing on any disk. The device gets the result as a hand-over ([`StateStore::handed_over`]). A device can
/// also be made without the result of this function.
pub type Prepare = fn(&DeviceConfig, &Env, Rc<dyn StateStore>) -> LocalFuture<Result<Handover>>;

/// Function that describes the encoded state of a device in words, or returns the reason why the state cannot be used.
pub type Describe = fn(&[u8]) -> std::result::Result<Summary, String>;

/// Function that opens a disk, or takes over the open files of the disk that the new one replaces, of the same name and
/// kind.
pub type MakeDisk = fn(MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>>;

/// The functions that plan and make a device of a kind. A device is planned first, from facts alone, so that validation
/// finds every fault in one pass. The device is made later, when all devices below it run.
#[derive(Clone, Copy)]
pub enum Maker {
    /// The device is a table: the function plans its mapping, which is data.
    Table(fn(&DeviceConfig) -> Plan<TablePlan>),
    /// The device is a hook. Its size and abilities are those of its lower.
    Hooks {
        /// Finds faults in the configuration of the hook.
        plan: fn(&DeviceConfig) -> Plan<()>,
        /// Makes the hook from its configuration.
        make: fn(MakerArgs<'_>) -> Result<Rc<dyn Hooks>>,
    },
    /// The device issues requests to its lowers, and keeps no state in labels.
    Device {
        /// The relation of the device's bytes to those of its lowers.
        bytes: Bytes,
        /// Plans the device, or finds faults in its configuration.
        plan: fn(&DeviceConfig) -> Plan<DevicePlan>,
        /// Makes the device over its lowers.
        make: MakeDevice,
    },
    /// The device issues requests to its lowers, and has a state on the labelled disks beneath it.
    Stateful {
        /// The relation of the device's bytes to those of its lowers.
        bytes: Bytes,
        /// Plans the device, or finds faults in its configuration.
        plan: fn(&DeviceConfig) -> Plan<DevicePlan>,
        /// Makes the device from its state, or as a new device.
        make: MakeStateful,
        /// Does the slow part of making the device before a live change; `None` if no part is slow.
        prepare: Option<Prepare>,
        /// Checks before any device is made whether the device would open, judging from its state in labels; `None` if
        /// the kind has no such check.
        preflight: Option<Preflight>,
        /// Describes the device's encoded state in words.
        describe: Describe,
    },
    /// The device issues requests to its lower, and has persistent objects, which the framework places on its lowers.
    Stored(Stored),
    /// The device is a disk, at the bottom of the graph.
    Disk {
        /// Plans the disk, or finds faults in its configuration. The function reads the system, and changes nothing.
        plan: fn(&DeviceConfig, &Env) -> LocalFuture<Plan<DiskPlan>>,
        /// Opens the disk, and creates it if the options ask for that.
        make: MakeDisk,
    },
    /// The device is a volume of its lower, which opens it by name.
    Volume,
}

/// A description of the persistent state of a device, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The description of the state.
    pub words: String,
    /// Description of missing or outdated parts without which the device can work; empty if no part is missing.
    pub lacks: String,
}

impl Summary {
    /// Returns the description of a state without missing parts.
    pub fn whole(words: String) -> Self {
        Self { words, lacks: String::new() }
    }
}

/// Describes the state of a device with objects.
fn describe_objects(bytes: &[u8]) -> std::result::Result<Summary, String> {
    home::record::Record::decode(bytes).map(|record| Summary::whole(record.words()))
}

impl Maker {
    /// Returns the relation of the bytes of a device, made by these functions from `given`, to the bytes of its lowers.
    pub fn bytes(&self, given: &DeviceConfig) -> Bytes {
        match self {
            Self::Hooks { .. } => Bytes::Passthrough,
            Self::Device { bytes, .. } | Self::Stateful { bytes, .. } => *bytes,
            Self::Stored(stored) => stored.bytes(given),
            Self::Table(_) | Self::Disk { .. } | Self::Volume => Bytes::Private,
        }
    }

    /// Whether a device that these functions make has a state in labels.
    pub fn keeps_state(&self) -> bool {
        matches!(self, Self::Stateful { .. } | Self::Stored(_))
    }

    /// Returns the function that describes the state of a device in labels, if the device has one.
    pub fn describe(&self) -> Option<Describe> {
        match self {
            Self::Stateful { describe, .. } => Some(*describe),
            Self::Stored(_) => Some(describe_objects),
            _ => None,
        }
    }
}

/// The relation of a device's bytes to those of its lowers. A change of the graph uses this relation to make sure that
/// clients find their bytes after the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// The device has the bytes of its lower, at the same offsets.
    Passthrough,
    /// The device has other bytes than its lower, but each of its blocks depends only on the bytes of the lower at the
    /// same offsets.
    Transformed,
    /// The device has the bytes of one lower, at the same offsets: of its first lower if the device is new, and later
    /// of the lowers that it reports as [`block::Device::holders`].
    FirstLower,
    /// The device has the bytes of each of its lowers, at the same offsets.
    Replicated,
    /// The device has bytes of its own, which no lower has at the same offsets.
    Private,
}

/// Returns a future that is ready with `answer`, for a disk that does not have to wait.
pub fn at_once<T: 'static>(answer: T) -> LocalFuture<T> {
    Box::pin(std::future::ready(answer))
}

/// The plan of a disk: facts about the disk before it is opened.
pub struct DiskPlan {
    /// Size, block size and abilities that the disk will have.
    pub info: Info,
    /// Whether opening the disk will create it.
    pub creates: bool,
    /// Identity of the disk's storage, by which the graph finds two disks on the same storage: an absolute path, or
    /// empty.
    pub identity: String,
    /// Bytes of the buffer pool that the disk holds or reserves while it is open.
    pub standing_bytes: usize,
    /// Properties of the disk, for people: `O_DIRECT`, `in memory`.
    pub words: String,
}

/// The registry of all kinds of devices.
#[derive(Clone, Copy)]
pub struct Registry(pub &'static [Kind]);

impl Registry {
    /// Returns the kind called `name`, if the registry has it.
    pub fn find(&self, name: &str) -> Option<&'static Kind> {
        self.0.iter().find(|kind| kind.name == name)
    }

    /// Returns the names of all kinds with lowers, which a spec may give as `kind = "…"`.
    pub fn device_names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter(|kind| kind.lowers != Lowers::None).map(|kind| kind.name)
    }

    /// Returns the verbs of all kinds. A verb that several kinds have is listed once.
    pub fn verbs(&self) -> Vec<&'static VerbInfo> {
        let mut verbs: Vec<&'static VerbInfo> = Vec::new();
        for verb in self.0.iter().flat_map(|kind| kind.verbs) {
            if !verbs.iter().any(|known| known.name == verb.name) {
                verbs.push(verb);
            }
        }
        verbs
    }

    /// Returns the kind that moves bytes from one lower to another, and its options for the move.
    pub fn mover(&self) -> Option<(&'static Kind, Moving)> {
        self.0.iter().find_map(|kind| Some((kind, kind.capabilities.moves?)))
    }

    /// Returns all kinds of disks.
    pub fn disks(&self) -> impl Iterator<Item = &'static Kind> {
        self.0.iter().filter(|kind| kind.lowers == Lowers::None)
    }

    /// Returns the kind of disk that opens a block device, or the kind that opens a file and can create it.
    pub fn path_disk(&self, is_block_device: bool) -> Option<&'static Kind> {
        self.disks().find(|kind| kind.opens_path() && kind.made_size().is_none() == is_block_device)
    }

    /// Returns the names of all kinds of disks, which are also the keys for a disk's path or address in a spec.
    pub fn disk_names(&self) -> impl Iterator<Item = &'static str> {
        self.disks().map(|kind| kind.name)
    }
}
