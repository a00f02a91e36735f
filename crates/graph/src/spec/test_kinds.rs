//! Kinds for the tests of edits. Tests look them up, and plan or make nothing with them.

use kind::{
    Capabilities, Effect, Kind, Lowers, Maker, Moving, OptionSpec, Registry, Scope, ValueType,
};

pub const REGISTRY: Registry = Registry(&[FILE, DEVICE, MIRROR, MIGRATE]);

pub const FILE: Kind = kind(
    "file",
    Lowers::None,
    &[
        option("file", ValueType::Path, Effect::Bytes),
        option("create", ValueType::Switch, Effect::Start),
        option("size", ValueType::Size(0, 0), Effect::Making),
    ],
);

pub const DEVICE: Kind =
    kind("path", Lowers::None, &[option("path", ValueType::Path, Effect::Bytes)]);

pub const MIRROR: Kind = Kind {
    capabilities: Capabilities { names_members: true, ..Capabilities::NONE },
    ..kind("mirror", Lowers::Many(2, 8), &[option("trust", ValueType::Member, Effect::Start)])
};

const MIGRATE: Kind = Kind {
    capabilities: Capabilities {
        moves: Some(Moving { leave: LEAVE, speed: SPEED }),
        ..Capabilities::NONE
    },
    ..kind("migrate", Lowers::Many(2, 2), &[LEAVE, SPEED])
};

const LEAVE: OptionSpec = option("leave", ValueType::Switch, Effect::Behaviour);
const SPEED: OptionSpec = option("speed", ValueType::Size(0, u64::MAX), Effect::Behaviour);

const fn option(name: &'static str, value: ValueType, effect: Effect) -> OptionSpec {
    let (required, scope, help) = (false, Scope::Local, "");
    OptionSpec { name, value, required, effect, scope, help }
}

const fn kind(name: &'static str, lowers: Lowers, options: &'static [OptionSpec]) -> Kind {
    let (capabilities, maker) = (Capabilities::NONE, Maker::Table(|_| Err(Vec::new())));
    Kind { name, summary: "", manual: "", lowers, options, capabilities, verbs: &[], maker }
}
