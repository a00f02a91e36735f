//! Distributes chunks of bytes over several devices in turn.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use block::{StripeTable, Table, TableError};
use kind::{
    Capabilities, DeviceConfig, Effect, Fault, Kind, Lowers, Maker, OptionSpec, Plan, Scope,
    TablePlan, ValueType,
};

use crate::tables;

const CHUNK_DEFAULT: u64 = 64 << 10;
const CHUNK_MAX: u64 = 1 << 30;

/// The kind `stripe`: a device that distributes chunks of bytes over its lowers in turn.
pub const KIND: Kind = Kind {
    name: "stripe",
    summary: "distributes chunks over several devices in turn",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(2, 64),
    options: &[CHUNK],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Table(plan),
};

const CHUNK: OptionSpec = OptionSpec {
    name: "chunk",
    value: ValueType::Size(512, CHUNK_MAX),
    required: false,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "bytes on one device before the next device follows; 64KiB if not set",
};

fn plan(given: &DeviceConfig) -> Plan<TablePlan> {
    let chunk = given.size(&CHUNK).unwrap_or(CHUNK_DEFAULT);
    let error = match Table::stripe(&tables::ports(given), chunk as u32) {
        Ok(StripeTable { table, unused_bytes }) => return Ok(TablePlan { table, unused_bytes }),
        Err(error) => error,
    };
    let chunk = matches!(error, TableError::Chunk { .. } | TableError::SmallerThanChunk { .. });
    let option = if chunk { "chunk" } else { "on" };
    Err(vec![Fault::new(option, tables::words(&error, given))])
}
