//! Facts about a kind that other code uses instead of the name of the kind, which is only for people.

use block::control::Verb as _;
use block::control::state::Check;

use crate::{
    DeviceConfig, DevicePlan, Effect, Kind, Lowers, Maker, OptionSpec, Plan, Scope, ValueType,
};

/// Facts about a kind of device that its options and its maker do not contain.
#[derive(Clone, Copy)]
pub struct Capabilities {
    /// Returns how many of a device's `lowers` can be missing without a loss of data.
    pub can_lack: fn(lowers: usize) -> usize,
    /// Whether a device of the kind has members: it records a state for each of its lowers, by the name of the lower.
    pub names_members: bool,
    /// The options of a kind that moves the bytes of its first lower to its second; `None` for any other kind.
    pub moves: Option<Moving>,
    /// Whether a device of the kind keeps objects on the disks beneath it that [`crate::Maker::Stored`] does not declare.
    pub keeps_objects: bool,
    /// Whether a device of the kind holds volumes ([`block::Device::volumes`]). Such a device may have no bytes of its
    /// own. Clients open its volumes by name, so it needs no export.
    pub holds_volumes: bool,
    /// Whether a device of the kind verifies the bytes of its lowers: it never returns wrong bytes, and reads other copies
    /// of bytes that are wrong.
    pub verifies: bool,
}

impl Capabilities {
    /// The facts of a kind that can lack no lower, names no members, moves no bytes, keeps no objects, holds no
    /// volumes, and verifies nothing.
    pub const NONE: Self = Self {
        can_lack: |_| 0,
        names_members: false,
        moves: None,
        keeps_objects: false,
        holds_volumes: false,
        verifies: false,
    };
}

/// The options of a kind of device that moves bytes from one lower to another.
#[derive(Clone, Copy)]
pub struct Moving {
    /// The option that decides whether the device is removed from the graph when it has moved all bytes.
    pub leave: OptionSpec,
    /// The option with the highest speed of the move, in bytes per second.
    pub speed: OptionSpec,
}

impl Kind {
    /// Plans a device of the kind that issues requests to its lowers; `None` if devices of the kind do not.
    pub fn plan_device(&self, given: &DeviceConfig) -> Option<Plan<DevicePlan>> {
        match &self.maker {
            Maker::Device { plan, .. } | Maker::Stateful { plan, .. } => Some(plan(given)),
            Maker::Stored(stored) => Some(stored.plan(self, given)),
            _ => None,
        }
    }

    /// Whether devices of the kind have objects on the disks beneath them, which [`Check`] checks.
    pub fn keeps_objects(&self) -> bool {
        self.capabilities.keeps_objects || matches!(self.maker, Maker::Stored(_))
    }

    /// Whether devices of the kind answer [`Check`]: they have state on the disks beneath them besides that in labels.
    pub fn answers_check(&self) -> bool {
        self.keeps_objects() || self.verbs.iter().any(|verb| verb.name == Check::INFO.name)
    }

    /// Returns the option of the kind that names the source of a device's secret, if it has one.
    pub fn secret(&self) -> Option<&'static OptionSpec> {
        self.options.iter().find(|option| option.scope == Scope::Secret)
    }

    /// Returns the option of the kind called `name`, if it has one.
    pub fn option(&self, name: &str) -> Option<&'static OptionSpec> {
        self.options.iter().find(|option| option.name == name)
    }

    /// Returns the option of the kind that counts at one start only, if it has one: `create` of a disk, `trust` of a
    /// device with members.
    pub fn start_option(&self) -> Option<&'static OptionSpec> {
        self.options.iter().find(|option| option.effect == Effect::Start)
    }

    /// Returns the option of the kind that names the member to trust at a start, if the kind has members.
    pub fn trust(&self) -> Option<&'static OptionSpec> {
        self.start_option().filter(|option| option.value == ValueType::Member)
    }

    /// Returns the option with the path or address of a disk of this kind; `None` if the kind is no kind of disk, or of
    /// a disk in memory. The option has the name of the kind.
    pub fn place(&self) -> Option<&'static OptionSpec> {
        let is_place =
            |option: &&OptionSpec| matches!(option.value, ValueType::Path | ValueType::Text);
        self.option(self.name).filter(is_place).filter(|_| self.lowers == Lowers::None)
    }

    /// Whether a disk of this kind is a file or block device at a path of this machine.
    pub fn opens_path(&self) -> bool {
        self.place().is_some_and(|place| place.value == ValueType::Path)
    }

    /// Returns the option with the size of a new disk of this kind, if it has one.
    pub fn made_size(&self) -> Option<&'static OptionSpec> {
        let is_size = |option: &&OptionSpec| matches!(option.value, ValueType::Size(..));
        self.options.iter().filter(|option| option.effect == Effect::Making).find(is_size)
    }

    /// Whether a device of this kind with so many `lowers` is redundant: it can lack a lower without a loss of data.
    pub fn is_redundant(&self, lowers: usize) -> bool {
        self.can_lack(lowers) > 0
    }

    /// Returns how many of its `lowers` a device of this kind can lack without a loss of data.
    pub fn can_lack(&self, lowers: usize) -> usize {
        (self.capabilities.can_lack)(lowers)
    }
}
