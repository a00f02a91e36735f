//! Shows a part of a device as a device, beside other partitions of the same device.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use block::units::{format_exact, format_size, write_size};
use block::{Port, Table};
use kind::{
    Capabilities, DeviceConfig, Effect, Fault, Kind, Lowers, Maker, OptionSpec, Plan, Scope,
    TablePlan, ValueType,
};

use crate::tables;

/// The kind `partition`: a device that shows a part of its lower, beside other partitions of that lower.
pub const KIND: Kind = Kind {
    name: "partition",
    summary: "a part of a device, next to other partitions of that device",
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
    help: "first byte on the lower device; the end of the previous partition if not set",
};

const SIZE: OptionSpec = OptionSpec {
    name: "size",
    value: ValueType::SizeOrRest,
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "bytes, or \"rest\" for all remaining bytes",
};

fn plan(given: &DeviceConfig) -> Plan<TablePlan> {
    let lower = &given.lowers[0];
    let start = given.size(&START).unwrap_or(lower.next_free);
    let rest = lower.info.size.saturating_sub(start);
    let rest = rest - rest % u64::from(lower.info.block_size);
    if rest == 0 {
        let fault = format!(
            "{:?} has {}, and no bytes remain from {} on",
            lower.name,
            format_exact(lower.info.size),
            format_size(start)
        );
        let option = if given.size(&START).is_some() { "start" } else { "size" };
        return Err(vec![Fault::new(option, fault)]);
    }
    let size = given.size(&SIZE).unwrap_or(rest);
    if size > rest {
        let fault = format!(
            "size {}, but {:?} has only {} from {} on; at most size = \"{}\"",
            format_size(size),
            lower.name,
            format_size(rest),
            format_size(start),
            write_size(rest)
        );
        return Err(vec![Fault::new("size", fault)]);
    }
    tables::plan(given, "size", Table::linear(Port(0), lower.info.size, start, size))
}
