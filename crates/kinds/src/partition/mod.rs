//! Part of a device, beside other parts of it.

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
    summary: "part of a device, beside other parts of it",
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
    help: "first byte of the lower device; after the partition before if not set",
};

const SIZE: OptionSpec = OptionSpec {
    name: "size",
    value: ValueType::SizeOrRest,
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "bytes, or \"rest\"",
};

fn plan(given: &DeviceConfig) -> Plan<TablePlan> {
    let lower = &given.lowers[0];
    let start = given.size(&START).unwrap_or(lower.next_free);
    let rest = lower.info.size.saturating_sub(start);
    let rest = rest - rest % u64::from(lower.info.block_size);
    if rest == 0 {
        let fault = format!(
            "{:?} has {}, and nothing is left from {} on",
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
            "size {}, but {:?} leaves {} from {} on; at most size = \"{}\"",
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
