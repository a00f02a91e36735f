//! What the author of a kind uses: options, plans, makers, and the registry that the binary hands to `graph`. Together
//! with [`block`], the contract of a device, that is all.
//!
//! `graph` does not know any kind.

use std::rc::Rc;
use std::time::Duration;

use block::control::VerbInfo;
use block::env::LocalFuture;
use block::{Env, Found, Handover, Hooks, Info, Lower, NoStateStore, Result, StateStore, Table};
use fixedbitset::FixedBitSet;

mod capability;

pub use block;
pub use capability::{Capabilities, Moving};
pub use engine::AnyDevice;

/// A sort of device.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The word in the spec: `mirror`.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// The manual page, Markdown.
    pub manual: &'static str,
    /// How many devices it stands on.
    pub lowers: Lowers,
    /// What may be set.
    pub options: &'static [OptionSpec],
    /// Facts that code outside of the kind asks for.
    pub capabilities: Capabilities,
    /// The commands that its devices may know. One device may know fewer: [`block::Device::verbs`].
    pub verbs: &'static [&'static VerbInfo],
    /// How one is made.
    pub maker: Maker,
}

/// How many devices a kind stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lowers {
    /// None: it is a disk. Its word in the spec is the key that says what it is (`file`, `memory`).
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
    /// What its value is.
    pub value: ValueType,
    /// Whether it must be there.
    pub required: bool,
    /// Difference that another value makes.
    pub effect: Effect,
    /// Where its value is kept.
    pub scope: Scope,
    /// Its purpose, its unit and its default, in a sentence.
    pub help: &'static str,
}

/// The difference that another value of an option makes to a device that exists. A live change looks at nothing else.
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
    /// Returns whether a device that exists differs by such an option.
    pub fn is_lasting(self) -> bool {
        matches!(self, Self::Bytes | Self::Behaviour)
    }
}

/// Where the value of an option is kept. Anyone with the disk can read and write its label, so an option that names a path, a
/// program, an address or a secret is never [`Scope::Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// In the labels of the graph's disks.
    Graph,
    /// On one machine, such as a path, or the choice of one start.
    Local,
    /// On one machine: it names the source of a secret, as [`block::KeySource`] reads it.
    Secret,
}

/// What the value of an option is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ValueType {
    /// Bytes: a number, or text such as `"64KiB"`; from the least to the most.
    Size(u64, u64),
    /// Bytes, or the word `rest`.
    SizeOrRest,
    /// A time such as `"5ms"`, `"2s"`; at most so long.
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
    /// Of [`ValueType::Table`]: what was set.
    Table(Vec<(&'static str, String)>),
}

/// What a device is made from: its name, its options, its lowers. Everything in it has been checked
/// against the kind's [`OptionSpec`]s.
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

/// What is known of a lower before anything runs.
#[derive(Clone, Debug)]
pub struct LowerConfig {
    /// Its name.
    pub name: String,
    /// Its facts.
    pub info: Info,
    /// Whether this start creates every disk beneath it.
    pub created: bool,
    /// Whether every disk beneath it has a label: only then is anything kept there.
    pub labelled: bool,
    /// For partitions without `start`: the first byte of this lower that no partition before this
    /// one takes.
    pub next_free: u64,
    /// What its bytes are on.
    pub beneath: Rc<Beneath>,
}

/// What the bytes of a device are on.
#[derive(Clone, Debug, Default)]
pub struct Beneath {
    /// The disks, by the numbers of the devices of the graph. One bit for each: in a dense graph each device stands on all
    /// disks.
    pub disks: FixedBitSet,
    /// The device itself, and those beneath it, downwards, on which each of its bytes stands at the place
    /// that it has here.
    pub in_place: Vec<String>,
}

impl Beneath {
    /// What the device `name`, the graph's device number `number`, is on, made so, over these lowers.
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

    /// Returns whether two devices of one kind have the same values of all options that `counts` names. An option that the
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

    /// Whether an option was set.
    pub fn is_set(&self, option: &OptionSpec) -> bool {
        self.find(option).is_some()
    }

    /// A size in bytes.
    pub fn size(&self, option: &OptionSpec) -> Option<u64> {
        match self.find(option) {
            Some(Value::Size(bytes)) => Some(*bytes),
            _ => None,
        }
    }

    /// Whether the value is the word `rest`.
    pub fn is_rest(&self, option: &OptionSpec) -> bool {
        matches!(self.find(option), Some(Value::Rest))
    }

    /// A time.
    pub fn duration(&self, option: &OptionSpec) -> Option<Duration> {
        match self.find(option) {
            Some(Value::Duration(time)) => Some(*time),
            _ => None,
        }
    }

    /// A whole number.
    pub fn integer(&self, option: &OptionSpec) -> Option<u64> {
        match self.find(option) {
            Some(Value::Integer(number)) => Some(*number),
            _ => None,
        }
    }

    /// A share from 0 to 1.
    pub fn share(&self, option: &OptionSpec) -> Option<f64> {
        match self.find(option) {
            Some(Value::Share(share)) => Some(*share),
            _ => None,
        }
    }

    /// A switch; off if it was not set.
    pub fn switch(&self, option: &OptionSpec) -> bool {
        matches!(self.find(option), Some(Value::Switch(true)))
    }

    /// A word, a path, a member's name or any text.
    pub fn text(&self, option: &OptionSpec) -> Option<&str> {
        match self.find(option) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A text in a table.
    pub fn text_in(&self, table: &OptionSpec, key: &str) -> Option<&str> {
        match self.find(table) {
            Some(Value::Table(texts)) => {
                texts.iter().find(|(known, _)| *known == key).map(|(_, text)| text.as_str())
            }
            _ => None,
        }
    }

    /// Whether all lowers may be members of a redundant device; its `plan` asks this.
    ///
    /// # Errors
    /// A fault of `on` for each one of which a late write could make the copies differ for ever.
    pub fn replicas(&self) -> Plan<()> {
        let unfenced = self.lowers.iter().filter(|lower| !lower.info.fenced);
        let faults: Vec<_> =
            unfenced.map(|lower| Fault::new("on", unfenced_words(lower))).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Whether two of its lowers are on one disk.
    pub fn overlap(&self) -> bool {
        let disks: Vec<_> = self.lowers.iter().map(|lower| &lower.beneath.disks).collect();
        let later = |n: usize| disks[n + 1..].iter();
        disks.iter().enumerate().any(|(n, one)| later(n).any(|other| !one.is_disjoint(other)))
    }

    /// The highest device beneath both of its lowers, or one of them, on which each byte of both stands at
    /// the place that it has in them.
    pub fn in_place(&self) -> Option<&str> {
        let [one, two] = &self.lowers[..] else { return None };
        let (one, two) = (&one.beneath.in_place, &two.beneath.in_place);
        one.iter().find(|name| two.contains(name)).map(String::as_str)
    }

    /// A list of words; empty if it was not set.
    pub fn list(&self, option: &OptionSpec) -> &[String] {
        match self.find(option) {
            Some(Value::List(words)) => words,
            _ => &[],
        }
    }
}

fn unfenced_words(lower: &LowerConfig) -> String {
    format!(
        "{:?} stands on a server over TCP: after a lost connection an old write may land there on \
         top of a newer one, and the copies differ for ever; use a unix socket, or set \
         unsafe_replica = true on that disk",
        lower.name
    )
}

/// A fault in what a device was given: which option (or `on`), and a sentence with value, limit and
/// next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The option's name, `on`, or `kind` for the device as a whole.
    pub option: &'static str,
    /// What is wrong.
    pub message: String,
}

impl Fault {
    /// A fault of that option.
    pub fn new(option: &'static str, message: impl Into<String>) -> Self {
        Self { option, message: message.into() }
    }
}

/// What a table kind makes of its options: the table over one port per lower, and what it leaves
/// unused of the lowers, in bytes.
pub struct TablePlan {
    /// The mapping.
    pub table: Table,
    /// Bytes of the lowers that it does not reach although it was given all of them.
    pub unused_bytes: u64,
}

/// What comes of planning, before anything is opened or made.
pub type Plan<T> = std::result::Result<T, Vec<Fault>>;

/// Everything that a maker may use. A service that is added is a field, and no change of any kind.
pub struct Making<'m> {
    /// The name, the options and the facts of the lowers.
    pub config: &'m DeviceConfig,
    /// The way to the world.
    pub env: &'m Env,
    /// Handles to the lowers; none for a disk.
    pub lowers: Vec<Lower>,
    /// The state of the device in the labels of the disks below; of a raw disk, and for a maker without state, none.
    pub state: Rc<dyn StateStore>,
    /// Left by the disk of that name and kind that it replaces.
    pub before: Handover,
}

impl<'m> Making<'m> {
    /// A device without lowers, state and predecessor.
    pub fn new(config: &'m DeviceConfig, env: &'m Env) -> Self {
        let state = Rc::new(NoStateStore::new(false));
        Self { config, env, lowers: Vec::new(), state, before: None }
    }
}

/// Makes a device over its lowers.
pub type MakeDevice = fn(Making<'_>) -> Result<Rc<dyn AnyDevice>>;

/// Makes a device that keeps a state on the labelled disks beneath it. It may wait: for its state to
/// be written, for a key to be derived.
pub type MakeStateful = fn(Making<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>>;

/// Whether a device of that size would open, by what was found beneath each of its ports; all that can be told without
/// a look at its data. `degraded`: whether it may open without all of what it needs.
pub type Preflight = fn(&DeviceConfig, &Info, &[Found], degraded: bool) -> Result<()>;

/// Does what takes long and changes nothing on any disk, before clients have to wait for a device that a change puts in:
/// the answer is handed over to it ([`StateStore::handed_over`]). A device is made without it as well.
pub type Prepare = fn(&DeviceConfig, &Env, Rc<dyn StateStore>) -> LocalFuture<Result<Handover>>;

/// Opens a disk, or takes over what the disk of that name and kind has open whose place it takes.
pub type MakeDisk = fn(Making<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>>;

/// How a device of a kind is made. First planned, from facts alone, so that validation finds every
/// fault in one pass; then made, once everything below it runs.
#[derive(Clone, Copy)]
pub enum Maker {
    /// The device is a mapping, which is data.
    Table(fn(&DeviceConfig) -> Plan<TablePlan>),
    /// The device looks on; its facts are its lower's.
    Hooks {
        /// Finds faults.
        plan: fn(&DeviceConfig) -> Plan<()>,
        /// Makes the hook.
        make: fn(Making<'_>) -> Result<Rc<dyn Hooks>>,
    },
    /// The device issues requests.
    Device {
        /// Whose bytes it shows.
        bytes: Bytes,
        /// Finds faults, or says what the device will be.
        plan: fn(&DeviceConfig) -> Plan<Info>,
        /// Makes it.
        make: MakeDevice,
    },
    /// The device issues requests, and keeps a state on the labelled disks beneath it.
    Stateful {
        /// Whose bytes it shows.
        bytes: Bytes,
        /// Finds faults, or says what the device will be.
        plan: fn(&DeviceConfig) -> Plan<Info>,
        /// Makes it from what it kept, or newly.
        make: MakeStateful,
        /// What can be done of that beforehand.
        prepare: Option<Prepare>,
        /// What may stand against it; `None` if nothing does that what it kept tells.
        preflight: Option<Preflight>,
        /// What it kept, in words; or why that cannot be used.
        describe: fn(&[u8]) -> std::result::Result<Summary, String>,
    },
    /// The device is a disk.
    Disk {
        /// Finds faults, or says what the disk will be; looks at the world, changes nothing.
        plan: fn(&DeviceConfig, &Env) -> LocalFuture<Plan<DiskPlan>>,
        /// Opens it, and makes it where that was asked for.
        make: MakeDisk,
    },
}

/// What a device keeps, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// All of it.
    pub words: String,
    /// What it lacks, and the device can do without; empty if that is nothing.
    pub lacks: String,
}

impl Summary {
    /// It lacks nothing.
    pub fn whole(words: String) -> Self {
        Self { words, lacks: String::new() }
    }
}

impl Maker {
    /// Whose bytes such a device shows.
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Hooks { .. } => Bytes::Passthrough,
            Self::Device { bytes, .. } | Self::Stateful { bytes, .. } => *bytes,
            Self::Table(_) | Self::Disk { .. } => Bytes::Private,
        }
    }
}

/// Whose bytes a device shows: what a change of the graph must know, so that clients find theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// Those of its lower, each where it is there.
    Passthrough,
    /// Other ones than its lower's, but each is made of the byte at its place there, and of nothing
    /// else.
    Transformed,
    /// When it is new, those of the first of its lowers, each where it is there; later on of those that
    /// it reports as [`block::Device::holders`].
    FirstLower,
    /// Those of each of its lowers, each where it is there.
    Replicated,
    /// Its own: nobody finds them below.
    Private,
}

/// The answer of a disk that need not wait for anybody.
pub fn at_once<T: 'static>(answer: T) -> LocalFuture<T> {
    Box::pin(std::future::ready(answer))
}

/// What is known of a disk before it is opened.
pub struct DiskPlan {
    /// The facts that it will have.
    pub info: Info,
    /// Whether opening it will create it.
    pub creates: bool,
    /// What it is on, so that two disks on one thing are found: a path made absolute, or empty.
    pub identity: String,
    /// In words, for people: `O_DIRECT`, `in memory`.
    pub words: String,
}

/// All kinds.
#[derive(Clone, Copy)]
pub struct Registry(pub &'static [Kind]);

impl Registry {
    /// The kind of that name.
    pub fn find(&self, name: &str) -> Option<&'static Kind> {
        self.0.iter().find(|kind| kind.name == name)
    }

    /// The names of all kinds that stand on something, for `kind = "…"`.
    pub fn device_names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter(|kind| kind.lowers != Lowers::None).map(|kind| kind.name)
    }

    /// Returns the commands of all kinds. A command that several kinds know is there once.
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

    /// The names of all disks: the keys that say what a disk is.
    pub fn disk_names(&self) -> impl Iterator<Item = &'static str> {
        self.disks().map(|kind| kind.name)
    }
}
