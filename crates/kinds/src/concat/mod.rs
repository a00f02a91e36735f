//! Joins devices, one after the other, into one device.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use block::Table;
use kind::{Capabilities, DeviceConfig, Kind, Lowers, Maker, Plan, TablePlan};

use crate::tables;

/// The kind `concat`: a device that shows its lowers one after the other.
pub const KIND: Kind = Kind {
    name: "concat",
    summary: "joins devices one after the other into one device",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(1, 1024),
    options: &[],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Table(plan),
};

fn plan(given: &DeviceConfig) -> Plan<TablePlan> {
    tables::plan(given, "on", Table::concat(&tables::ports(given)))
}
