//! Functions shared by the kinds whose devices are tables.

use block::units::{format_exact, format_size, write_size};
use block::{Port, Table, TableError};
use kind::{DeviceConfig, Fault, LowerConfig, Plan, TablePlan};

/// Returns the port of each lower of a device, with the size of the lower in bytes.
pub fn ports(given: &DeviceConfig) -> Vec<(Port, u64)> {
    given.lowers.iter().zip(0..).map(|(lower, n)| (Port(n), lower.info.size)).collect()
}

/// Returns the plan of a device with the table `table`, or a fault of the option `option` if `table` is an error.
pub fn plan(
    given: &DeviceConfig,
    option: &'static str,
    table: Result<Table, TableError>,
) -> Plan<TablePlan> {
    match table {
        Ok(table) => Ok(TablePlan { table, unused_bytes: 0 }),
        Err(error) => Err(vec![Fault::new(option, words(&error, given))]),
    }
}

/// Describes in the terms of the spec why the table of a device was refused: device names instead of ports, sizes with
/// units.
pub fn words(error: &TableError, given: &DeviceConfig) -> String {
    let lower = |port: Port| -> &LowerConfig { &given.lowers[usize::from(port.0)] };
    match *error {
        TableError::BeyondLower { port, end, size } => format!(
            "byte {end} is past the end of {:?}, which has {}",
            lower(port).name,
            format_exact(size)
        ),
        TableError::SmallerThanChunk { port, size, chunk } => format!(
            "{:?} has {}, but one chunk has {}; at most chunk = \"{}\"",
            lower(port).name,
            format_exact(size),
            format_size(u64::from(chunk)),
            write_size(size - size % 512)
        ),
        TableError::Overlap { port, first, second } => {
            format!("bytes {first} and {second} of {:?} overlap", lower(port).name)
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Info;
    use std::rc::Rc;

    use kind::{Kind, Maker, Value};

    fn given(options: &[(&'static str, Value)], sizes: &[u64]) -> DeviceConfig {
        let lower = |(size, name): (&u64, &str)| LowerConfig {
            name: name.to_owned(),
            info: Info::disk(*size, 512),
            created: true,
            labelled: false,
            fresh: false,
            state: None,
            next_free: 0,
            beneath: Rc::default(),
        };
        let lowers = sizes.iter().zip(["left", "right"]).map(lower).collect();
        let (graph, name) = ("test".to_owned(), "joined".to_owned());
        DeviceConfig { graph, name, options: options.to_vec(), lowers, trusted_now: false }
    }

    fn fault(kind: Kind, given: &DeviceConfig) -> Fault {
        let Maker::Table(plan) = kind.maker else { panic!("{} is a table", kind.name) };
        let mut faults = plan(given).err().expect("there is a fault");
        assert_eq!(faults.len(), 1);
        faults.remove(0)
    }

    #[test]
    fn linear_range_past_end_names_device_and_size() {
        let options = [("start", Value::Size(4096)), ("size", Value::Size(1 << 20))];
        let fault = fault(crate::linear::KIND, &given(&options, &[1 << 20]));
        let words = "byte 1052672 is past the end of \"left\", which has 1 MiB (1048576 B)";
        assert_eq!((fault.option, fault.message.as_str()), ("size", words));
    }

    #[test]
    fn stripe_chunk_larger_than_lower_names_lower_and_limit() {
        let options = [("chunk", Value::Size(1 << 20))];
        let fault = fault(crate::stripe::KIND, &given(&options, &[1 << 30, 100 << 10]));
        let words =
            "\"right\" has 100 KiB (102400 B), but one chunk has 1 MiB; at most chunk = \"100KiB\"";
        assert_eq!((fault.option, fault.message.as_str()), ("chunk", words));
    }

    #[test]
    fn partition_too_large_reports_remaining_bytes() {
        let options = [("start", Value::Size(1 << 20)), ("size", Value::Size(3 << 30))];
        let fault = fault(crate::partition::KIND, &given(&options, &[2 << 30]));
        let words =
            "size 3 GiB, but \"left\" has only 2.00 GiB from 1 MiB on; at most size = \"2047MiB\"";
        assert_eq!((fault.option, fault.message.as_str()), ("size", words));
    }

    #[test]
    fn partition_past_end_reports_no_space() {
        let options = [("start", Value::Size(4 << 20)), ("size", Value::Rest)];
        let fault = fault(crate::partition::KIND, &given(&options, &[2 << 20]));
        let words = "\"left\" has 2 MiB (2097152 B), and no bytes remain from 4 MiB on";
        assert_eq!((fault.option, fault.message.as_str()), ("start", words));
    }
}
