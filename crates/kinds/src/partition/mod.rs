//! Part of a device, beside other parts of it.

use block::{Port, Table};
use graph::kind::{Fault, Given, Kind, Lowers, Maker, OptionSpec, Plan, TablePlan, ValueType};

use crate::tables;

/// `partition`
pub const KIND: Kind = Kind {
    name: "partition",
    summary: "part of a device, beside other parts of it",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[
        OptionSpec {
            name: "start",
            value: ValueType::Size(0, u64::MAX),
            required: false,
            help: "first byte of the lower device; after the partition before if not set",
        },
        OptionSpec {
            name: "size",
            value: ValueType::SizeOrRest,
            required: true,
            help: "bytes, or \"rest\"",
        },
    ],
    maker: Maker::Table(plan),
};

fn plan(given: &Given) -> Plan<TablePlan> {
    let lower = &given.lowers[0];
    let start = given.size("start").unwrap_or(lower.next_free);
    let rest = lower.info.size.saturating_sub(start);
    let rest = rest - rest % u64::from(lower.info.block_size);
    let size = given.size("size").unwrap_or(rest);
    if size > rest {
        let fault = format!(
            "size {size}, but {} leaves {rest} bytes from {start} on; at most \"{rest}\"",
            lower.name
        );
        return Err(vec![Fault::new("size", fault)]);
    }
    tables::plan("size", Table::partition(Port(0), lower.info.size, start, size))
}
