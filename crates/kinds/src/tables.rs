//! What the table kinds share.

use block::{Port, Table, TableError};
use graph::kind::{Fault, Given, Plan, TablePlan};

/// The ports of a table over all of a device's lowers, with their sizes.
pub fn ports(given: &Given) -> Vec<(Port, u64)> {
    given.lowers.iter().zip(0..).map(|(lower, n)| (Port(n), lower.info.size)).collect()
}

/// A fault of `option` where the table could not be made.
pub fn plan(option: &'static str, table: Result<Table, TableError>) -> Plan<TablePlan> {
    match table {
        Ok(table) => Ok(TablePlan { table, unused_bytes: 0 }),
        Err(error) => Err(vec![Fault::new(option, error.to_string())]),
    }
}
