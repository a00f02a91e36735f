//! The interface for authors of kinds: options, plans, makers, and the registry that the binary passes to `graph`.
//! Together with [`block`], the contract of a device, it is complete.
//!
//! `graph` does not know any kind.

use std::rc::Rc;
use std::time::Duration;

use block::control::VerbInfo;
use block::env::LocalFuture;
use block::{
    Env, Found, Handover, Hooks, Info, Lower, Needs, NoStateStore, Result, StateStore, Table,
};
use fixedbitset::FixedBitSet;

mod capability;
#[cfg(feature = "testing")]
pub mod testing;

pub use block;
pub use capability::{Capabilities, Moving};
pub use engine::AnyDevice;

/// A type of device.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The word in the spec: `mirror`.
    pub name: &'static str,
    /// Its purpose, in one line.
    pub summary: &'static str,
    /// The manual page, Markdown.
    pub manual: &'static str,
    /// Its number of lowers.
    pub lowers: Lowers,
    /// The options that may be set.
    pub options: &'static [OptionSpec],
    /// Facts that other code asks for.
    pub capabilities: Capabilities,
    /// The commands that its devices may know. One device may know fewer: [`block::Device::verbs`].
    pub verbs: &'static [&'static VerbInfo],
    /// The functions that plan and make a device.
    pub maker: Maker,
}

/// The number of lowers of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lowers {
    /// None: it is a disk. Its word in the spec is the key for its place (`file`, `memory`).
    None,
    /// One: `on = "name"`.
    One,
    /// A list: `on = ["a", "b"]`, with the least and the most.
    Many(usize, usize),
}

/// An option of a kind.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The key.
    pub name: &'static str,
    /// The type of its value.
    pub value: ValueType,
    /// Whether it must be set.
    pub required: bool,
    /// The effect of another value.
    pub effect: Effect,
    /// The place where its value is kept.
    pub scope: Scope,
    /// Its purpose, its unit and its default, in a sentence.
    pub help: &'static str,
}

/// The effect of another value of an option on an existing device. A live change considers nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Clients would read other bytes, so a device that an export shows cannot take another value.
    Bytes,
    /// Clients read the same bytes.
    Behaviour,
    /// The value counts at one start only, and a running device ignores it.
    Start,
    /// The value counts when a disk is made, and never again.
    Making,
}

impl Effect {
    /// Whether an existing device differs if the value does.
    pub fn is_lasting(self) -> bool {
        matches!(self, Self::Bytes | Self::Behaviour)
    }
}

/// The place where the value of an option is kept. Any program with access to the disk can read and write its label, so
/// an option that names a path, a program, an address or a secret is never [`Scope::Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// In the labels of the graph's disks.
    Graph,
    /// On one machine, such as a path, or the choice of one start.
    Local,
    /// On one machine: it names the source of a secret, as [`block::KeySource`] reads it.
    Secret,
}

/// The type of an option's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ValueType {
    /// Bytes: a number, or text such as `"64KiB"`; from the least to the most.
    Size(u64, u64),
    /// Bytes, or the word `rest`.
    SizeOrRest,
    /// A time such as `"5ms"`, `"2s"`, up to a maximum.
    Duration(Duration),
    /// A whole number, from the least to the most.
    Integer(u64, u64),
    /// A share from 0 to 1, as a number or as `"1%"`.
    Share,
    /// `true` or `false`.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Some of these words, as one or as a list.
    Choices(&'static [&'static str]),
    /// Any text.
    Text,
    /// A path.
    Path,
    /// The name of one of the devices in `on`.
    Member,
    /// A table of texts, with these keys.
    Table(&'static [&'static str]),
}

/// The value of an option, checked against its type.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Of [`ValueType::Size`].
    Size(u64),
    /// The word `rest`.
    Rest,
    /// Of [`ValueType::Duration`].
    Duration(Duration),
    /// Of [`ValueType::Integer`].
    Integer(u64),
    /// Of [`ValueType::Share`].
    Share(f64),
    /// Of [`ValueType::Switch`].
    Switch(bool),
    /// Of [`ValueType::Choice`], [`ValueType::Text`], [`ValueType::Path`] or [`ValueType::Member`].
    Text(String),
    /// Of [`ValueType::Choices`].
    List(Vec<String>),
    /// Of [`ValueType::Table`]: the keys that were set.
    Table(Vec<(&'static str, String)>),
}

/// The inputs for making a device: its name, its options, its lowers. Everything has been checked against the kind's
/// [`OptionSpec`]s.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The graph's name.
    pub graph: String,
    /// The device's name.
    pub name: String,
    /// The options that were set.
    pub options: Vec<(&'static str, Value)>,
    /// The facts about the lowers, in order.
    pub lowers: Vec<LowerConfig>,
    /// Whether the trusted member ([`Kind::trust`]) is from a command at this start, not from the spec: an operator has seen
    /// the labels that it overrules.
    pub trusted_now: bool,
}

/// The facts about a lower before anything runs.
#[derive(Clone, Debug)]
pub struct LowerConfig {
    /// Its name.
    pub name: String,
    /// Its facts.
    pub info: Info,
    /// Whether this start creates every disk beneath it.
    pub created: bool,
    /// Whether every disk beneath it has a label. Only then a device can keep state there.
    pub labelled: bool,
    /// For partitions without `start`: the first byte of this lower behind all partitions before this one.
    pub next_free: u64,
    /// The disks and devices beneath it.
    pub beneath: Rc<Beneath>,
}

/// The disks and devices beneath a device.
#[derive(Clone, Debug, Default)]
pub struct Beneath {
    /// The disks, by the numbers of the graph's devices. One bit for each: in a dense graph every device is above all
    /// disks.
    pub disks: FixedBitSet,
    /// The device itself, and the devices beneath it, downwards, that have each of its bytes at the same offset.
    pub in_place: Vec<String>,
}

impl Beneath {
    /// Returns the disks and devices beneath the device `name`. `number` is its number in the graph.
    pub fn of(name: &str, number: usize, maker: Maker, lowers: &[LowerConfig]) -> Self {
        let mut in_place = vec![name.to_owned()];
        let stays = matches!(maker.bytes(), Bytes::Passthrough | Bytes::Transformed);
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

    /// Whether two devices of one kind have the same values of all options that `counts` selects. An option that the
    /// kind does not know counts as one that changes bytes.
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

    /// Removes the options that count at one start only.
    pub fn forget_first_word(&mut self, kind: &Kind) {
        let is_first = |name| kind.first_word().is_some_and(|option| option.name == name);
        self.options.retain(|(name, _)| !is_first(*name));
    }

    /// Opens a disk of that kind read-only, if the kind has an option for that.
    pub fn refuse_writes(&mut self, kind: &Kind) {
        let option = kind.option("read_only");
        self.options.extend(option.map(|option| (option.name, Value::Switch(true))));
    }

    /// Whether an option was set.
    pub fn is_set(&self, option: &OptionSpec) -> bool {
        self.find(option).is_some()
    }

    /// Returns a size in bytes.
    pub fn size(&self, option: &OptionSpec) -> Option<u64> {
        let Value::Size(bytes) = self.find(option)? else { return None };
        Some(*bytes)
    }

    /// Returns a time.
    pub fn duration(&self, option: &OptionSpec) -> Option<Duration> {
        let Value::Duration(time) = self.find(option)? else { return None };
        Some(*time)
    }

    /// Returns a whole number.
    pub fn integer(&self, option: &OptionSpec) -> Option<u64> {
        let Value::Integer(number) = self.find(option)? else { return None };
        Some(*number)
    }

    /// Returns a share from 0 to 1.
    pub fn share(&self, option: &OptionSpec) -> Option<f64> {
        let Value::Share(share) = self.find(option)? else { return None };
        Some(*share)
    }

    /// Returns a switch; off if it was not set.
    pub fn switch(&self, option: &OptionSpec) -> bool {
        matches!(self.find(option), Some(Value::Switch(true)))
    }

    /// Returns a word, a path, a member's name or any text.
    pub fn text(&self, option: &OptionSpec) -> Option<&str> {
        let Value::Text(text) = self.find(option)? else { return None };
        Some(text)
    }

    /// Returns a text in a table.
    pub fn text_in(&self, table: &OptionSpec, key: &str) -> Option<&str> {
        let Value::Table(texts) = self.find(table)? else { return None };
        texts.iter().find(|(known, _)| *known == key).map(|(_, text)| text.as_str())
    }

    /// Checks that all lowers may be members of a redundant device. The `plan` of such a device calls it.
    ///
    /// # Errors
    /// A fault of `on` for each lower on which a late write could make the copies differ for ever.
    pub fn replicas(&self) -> Plan<()> {
        let unfenced = self.lowers.iter().filter(|lower| !lower.info.fenced);
        let words = |lower: &LowerConfig| {
            format!(
                "{:?} stands on a server over TCP: after a lost connection an old write may land there on \
                 top of a newer one, and the copies differ for ever; use a unix socket, or set \
                 unsafe_replica = true on that disk",
                lower.name
            )
        };
        let faults: Vec<_> = unfenced.map(|lower| Fault::new("on", words(lower))).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Whether two of its lowers share a disk.
    pub fn overlap(&self) -> bool {
        let disks: Vec<_> = self.lowers.iter().map(|lower| &lower.beneath.disks).collect();
        let later = |n: usize| disks[n + 1..].iter();
        disks.iter().enumerate().any(|(n, one)| later(n).any(|other| !one.is_disjoint(other)))
    }

    /// Returns the highest device beneath both of its lowers, or one of the two, that has each byte of both at the same
    /// offset.
    pub fn in_place(&self) -> Option<&str> {
        let [one, two] = &self.lowers[..] else { return None };
        let (one, two) = (&one.beneath.in_place, &two.beneath.in_place);
        one.iter().find(|name| two.contains(name)).map(String::as_str)
    }

    /// Returns a list of words; empty if it was not set.
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
    /// The option's name, `on`, or `kind` for the device as a whole.
    pub option: &'static str,
    /// The description of the fault, and the next step.
    pub message: String,
}

impl Fault {
    /// Makes a fault of `option`.
    pub fn new(option: &'static str, message: impl Into<String>) -> Self {
        Self { option, message: message.into() }
    }
}

/// The plan of a table: its mapping, with one port for each lower, and the bytes of the lowers that it leaves unused.
pub struct TablePlan {
    /// The mapping.
    pub table: Table,
    /// Bytes of the lowers that it does not use although it has all of them.
    pub unused_bytes: u64,
}

/// The plan of a device that issues requests.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// The facts that the device will have.
    pub info: Info,
    /// The most that one request needs in it.
    pub needs: Needs,
}

/// The result of planning, before anything is opened or made.
pub type Plan<T> = std::result::Result<T, Vec<Fault>>;

/// Everything that a maker may use. A new service becomes a field, and no kind has to change.
pub struct Making<'m> {
    /// The name, the options and the facts of the lowers.
    pub config: &'m DeviceConfig,
    /// The interface to the operating system.
    pub env: &'m Env,
    /// Handles to the lowers; none for a disk.
    pub lowers: Vec<Lower>,
    /// The store for the state of the device in the labels of the disks below; empty for a raw disk, and for a maker
    /// without state.
    pub state: Rc<dyn StateStore>,
    /// The hand-over of the disk that it replaces, of the same name and kind.
    pub before: Handover,
}

impl<'m> Making<'m> {
    /// Returns the inputs for a device without lowers, state and predecessor.
    pub fn new(config: &'m DeviceConfig, env: &'m Env) -> Self {
        let state = Rc::new(NoStateStore::new(false));
        Self { config, env, lowers: Vec::new(), state, before: None }
    }
}

/// Makes a device over its lowers.
pub type MakeDevice = fn(Making<'_>) -> Result<Rc<dyn AnyDevice>>;

/// Makes a device with a state on the labelled disks beneath it. It may wait, for example for a write of the state or
/// for the derivation of a key.
pub type MakeStateful = fn(Making<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>>;

/// Checks whether a device of that size would open, judging from the state found beneath each of its ports, without
/// reading its data. `degraded`: whether it may open with fewer lowers than it should have.
pub type Preflight = fn(&DeviceConfig, &Info, &[Found], degraded: bool) -> Result<()>;

/// Does slow work for a new device that changes nothing on any disk, before the clients have to wait for the live
/// change. The device gets the result as a hand-over ([`StateStore::handed_over`]). A device can be made without it as
/// well.
pub type Prepare = fn(&DeviceConfig, &Env, Rc<dyn StateStore>) -> LocalFuture<Result<Handover>>;

/// Opens a disk, or takes over the open files of the disk that it replaces, of the same name and kind.
pub type MakeDisk = fn(Making<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>>;

/// The functions that make a device of a kind. It is planned first, from facts alone, so that validation finds every
/// fault in one pass. It is made later, once everything below it runs.
#[derive(Clone, Copy)]
pub enum Maker {
    /// The device is a mapping, which is data.
    Table(fn(&DeviceConfig) -> Plan<TablePlan>),
    /// The device is a hook. Its facts are those of its lower.
    Hooks {
        /// Finds faults.
        plan: fn(&DeviceConfig) -> Plan<()>,
        /// Makes the hook.
        make: fn(Making<'_>) -> Result<Rc<dyn Hooks>>,
    },
    /// The device issues requests.
    Device {
        /// The relation of its bytes to those of its lowers.
        bytes: Bytes,
        /// Finds faults, or plans the device.
        plan: fn(&DeviceConfig) -> Plan<DevicePlan>,
        /// Makes it.
        make: MakeDevice,
    },
    /// The device issues requests, and has a state on the labelled disks beneath it.
    Stateful {
        /// The relation of its bytes to those of its lowers.
        bytes: Bytes,
        /// Finds faults, or plans the device.
        plan: fn(&DeviceConfig) -> Plan<DevicePlan>,
        /// Makes it from its state, or as a new device.
        make: MakeStateful,
        /// Does the part of the work that is possible beforehand.
        prepare: Option<Prepare>,
        /// Finds objections to opening it; `None` if its state can give rise to none.
        preflight: Option<Preflight>,
        /// Describes its state in words, or returns the reason why the state cannot be used.
        describe: fn(&[u8]) -> std::result::Result<Summary, String>,
    },
    /// The device is a disk.
    Disk {
        /// Finds faults, or returns the plan of the disk. It reads the system, and changes nothing.
        plan: fn(&DeviceConfig, &Env) -> LocalFuture<Plan<DiskPlan>>,
        /// Opens it, and creates it if the options ask for that.
        make: MakeDisk,
    },
}

/// A description of the state of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The whole state.
    pub words: String,
    /// Missing parts that the device can do without; empty if there are none.
    pub lacks: String,
}

impl Summary {
    /// Returns the description of a complete state.
    pub fn whole(words: String) -> Self {
        Self { words, lacks: String::new() }
    }
}

impl Maker {
    /// Returns the relation of a device's bytes to those of its lowers.
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Hooks { .. } => Bytes::Passthrough,
            Self::Device { bytes, .. } | Self::Stateful { bytes, .. } => *bytes,
            Self::Table(_) | Self::Disk { .. } => Bytes::Private,
        }
    }
}

/// The relation of a device's bytes to those of its lowers. A change of the graph must know it, so that clients find
/// their bytes afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// The bytes of its lower, at the same offsets.
    Passthrough,
    /// Other bytes than those of its lower, but each is made from the byte at the same offset there, and from nothing
    /// else.
    Transformed,
    /// Bytes of one lower, at the same offsets: the first lower if the device is new, and later the lowers that it
    /// reports as [`block::Device::holders`].
    FirstLower,
    /// The bytes of each of its lowers, at the same offsets.
    Replicated,
    /// Its own bytes, which no lower shows.
    Private,
}

/// Returns a future that is ready with `answer`, for a disk that does not have to wait.
pub fn at_once<T: 'static>(answer: T) -> LocalFuture<T> {
    Box::pin(std::future::ready(answer))
}

/// The facts about a disk before it is opened.
pub struct DiskPlan {
    /// The facts that it will have.
    pub info: Info,
    /// Whether opening it will create it.
    pub creates: bool,
    /// Identity of its storage, so that two disks on the same storage are found: an absolute path, or empty.
    pub identity: String,
    /// Its properties, for people: `O_DIRECT`, `in memory`.
    pub words: String,
}

/// All kinds.
#[derive(Clone, Copy)]
pub struct Registry(pub &'static [Kind]);

impl Registry {
    /// Returns the kind called `name`.
    pub fn find(&self, name: &str) -> Option<&'static Kind> {
        self.0.iter().find(|kind| kind.name == name)
    }

    /// Returns the names of all kinds with lowers, for `kind = "…"`.
    pub fn device_names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter(|kind| kind.lowers != Lowers::None).map(|kind| kind.name)
    }

    /// Returns the commands of all kinds. A command that several kinds know is listed once.
    pub fn verbs(&self) -> Vec<&'static VerbInfo> {
        let mut verbs: Vec<&'static VerbInfo> = Vec::new();
        for verb in self.0.iter().flat_map(|kind| kind.verbs) {
            if !verbs.iter().any(|known| known.name == verb.name) {
                verbs.push(verb);
            }
        }
        verbs
    }

    /// Returns the kind that moves bytes, and its options for that.
    pub fn mover(&self) -> Option<(&'static Kind, Moving)> {
        self.0.iter().find_map(|kind| Some((kind, kind.capabilities.moves?)))
    }

    /// Returns all disks.
    pub fn disks(&self) -> impl Iterator<Item = &'static Kind> {
        self.0.iter().filter(|kind| kind.lowers == Lowers::None)
    }

    /// Returns the kind of disk that opens a block device, or a file, which it can make.
    pub fn path_disk(&self, is_block_device: bool) -> Option<&'static Kind> {
        self.disks().find(|kind| kind.opens_path() && kind.made_size().is_none() == is_block_device)
    }

    /// Returns the names of all kinds of disks: the keys for the place of a disk.
    pub fn disk_names(&self) -> impl Iterator<Item = &'static str> {
        self.disks().map(|kind| kind.name)
    }
}
