//! Shows a byte range of one device as a device.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use block::{Port, Table};
use kind::{
    Capabilities, DeviceConfig, Effect, Kind, Lowers, Maker, OptionSpec, Plan, Scope, TablePlan,
    ValueType,
};

use crate::tables;

/// The kind `linear`: a device that shows a byte range of its lower.
pub const KIND: Kind = Kind {
    name: "linear",
    summary: "a byte range of one device",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[START, SIZE],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Table(plan),
};

const START: OptionSpec = OptionSpec {
    name: "start",
    value: ValueType::Size(0, u64::MAX),
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "first byte of the lower device; 0 if not set",
};

const SIZE: OptionSpec = OptionSpec {
    name: "size",
    value: ValueType::Size(512, u64::MAX),
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "bytes; up to the end of the lower device if not set",
};

fn plan(given: &DeviceConfig) -> Plan<TablePlan> {
    let lower = given.lowers[0].info.size;
    let start = given.size(&START).unwrap_or(0);
    let size = given.size(&SIZE).unwrap_or_else(|| lower.saturating_sub(start));
    let option = if given.size(&SIZE).is_some() { "size" } else { "start" };
    tables::plan(given, option, Table::linear(Port(0), lower, start, size))
}
