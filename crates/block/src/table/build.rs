//! The constructors of tables: a function for each kind of device that only maps addresses.

use super::{ByteRange, Origin, Place, Port, Row, Stripe, Table, TableError, stripe};

/// A table that stripes over lower devices, and the number of bytes in these devices that the table does not use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeTable {
    /// The striped table.
    pub table: Table,
    /// Bytes of the lower devices that the table does not use: each device is used up to the last whole chunk of the
    /// smallest.
    pub unused_bytes: u64,
}

impl Table {
    /// Returns a table that maps to `len` bytes of the lower device `port`, from byte `start` of the device on. The
    /// device has `lower_size` bytes.
    pub fn linear(port: Port, lower_size: u64, start: u64, len: u64) -> Result<Self, TableError> {
        let end = start.checked_add(len).ok_or(TableError::TooLarge)?;
        if end > lower_size {
            return Err(TableError::BeyondLower { port, end, size: lower_size });
        }
        Self::from_rows([linear_row(port, start, len)])
    }

    /// Returns a table that maps to whole lower devices, one after the other. Each element of `lowers` is the port
    /// and the size of a device.
    pub fn concat(lowers: &[(Port, u64)]) -> Result<Self, TableError> {
        Self::from_rows(lowers.iter().map(|&(port, size)| linear_row(port, 0, size)))
    }

    /// Returns a table that maps to byte ranges of the lower device `port`, one after the other.
    pub fn ranges(port: Port, ranges: &[ByteRange]) -> Result<Self, TableError> {
        Self::from_rows(ranges.iter().map(|range| linear_row(port, range.start(), range.len())))
    }

    /// Returns a table that distributes chunks of `chunk` bytes over lower devices in turn. Each element of `lowers`
    /// is the port and the size of a device. Each device is used up to the last whole chunk of the smallest.
    pub fn stripe(lowers: &[(Port, u64)], chunk: u32) -> Result<StripeTable, TableError> {
        stripe::check_chunk(chunk)?;
        let smallest = lowers.iter().min_by_key(|(_, size)| *size);
        let Some(&(port, size)) = smallest.filter(|_| lowers.len() <= Stripe::MAX_COLUMNS) else {
            return Err(TableError::Columns(lowers.len()));
        };
        let column_bytes = size - size % u64::from(chunk);
        if column_bytes == 0 {
            return Err(TableError::SmallerThanChunk { port, size, chunk });
        }
        let len = column_bytes.checked_mul(lowers.len() as u64).ok_or(TableError::TooLarge)?;
        let unused = lowers.iter().map(|(_, size)| size - column_bytes);
        let unused_bytes = unused.reduce(u64::saturating_add).unwrap_or(0);
        let place = striped(lowers.iter().map(|(port, _)| *port), chunk)?;
        let table = Self::from_rows([Row { len, place }])?;
        Ok(StripeTable { table, unused_bytes })
    }
}

fn linear_row(port: Port, start: u64, len: u64) -> Row {
    Row { len, place: Place::Linear(Origin { port, start }) }
}

/// Returns a place with a column in the lower device of each port, from the first byte of the device on. A single
/// column becomes linear.
fn striped(ports: impl Iterator<Item = Port>, chunk: u32) -> Result<Place, TableError> {
    let columns: Vec<_> = ports.map(|port| Origin { port, start: 0 }).collect();
    if let [only] = columns[..] {
        return Ok(Place::Linear(only));
    }
    Ok(Place::Striped(Box::new(Stripe::new(chunk, 0, columns)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteRange;

    const P0: Port = Port(0);
    const P1: Port = Port(1);

    #[test]
    fn linear_table_rejects_bytes_past_end_of_lower() {
        assert_eq!(
            Table::linear(P0, 8192, 4096, 4096).unwrap().to_string(),
            "0+4096 linear p0 4096"
        );
        let error = Table::linear(P0, 8192, 4096, 4097).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a segment ends at byte 8193, past the end of p0 at byte 8192"
        );
        assert_eq!(Table::linear(P0, 8192, 0, 0), Err(TableError::Empty));
        assert_eq!(Table::linear(P0, 8192, u64::MAX, 1), Err(TableError::TooLarge));
    }

    #[test]
    fn concat_table_maps_lowers_one_after_another() {
        let table = Table::concat(&[(P1, 100), (P0, 50)]).unwrap();
        assert_eq!(table.to_string(), "0+100 linear p1 0\n100+50 linear p0 0");
        assert_eq!((table.size(), table.port_count()), (150, 2));
        assert_eq!(Table::concat(&[]), Err(TableError::Empty));
        assert_eq!(Table::concat(&[(P0, u64::MAX), (P1, 1)]), Err(TableError::TooLarge));
    }

    #[test]
    fn concat_table_rejects_same_lower_twice() {
        let error = Table::concat(&[(P0, 100), (P0, 50)]).unwrap_err();
        let [first, second] = [50, 100].map(|len| ByteRange::new(0, len).unwrap());
        assert_eq!(error, TableError::Overlap { port: P0, first, second });
    }

    #[test]
    fn stripe_table_reports_unused_bytes_of_unequal_lowers() {
        // The smallest one holds 2 chunks and 100 bytes; the other one 3 chunks.
        let striped = Table::stripe(&[(P0, 2 * 4096 + 100), (P1, 3 * 4096)], 4096).unwrap();
        assert_eq!(striped.table.to_string(), "0+16384 striped 4096 skip 0 p0:0 p1:0");
        assert_eq!(striped.unused_bytes, 100 + 4096);
    }

    #[test]
    fn stripe_table_of_one_lower_is_linear() {
        let striped = Table::stripe(&[(P0, 4096 + 1)], 4096).unwrap();
        assert_eq!(striped.table.to_string(), "0+4096 linear p0 0");
        assert_eq!(striped.unused_bytes, 1);
    }

    #[test]
    fn stripe_table_rejects_invalid_number_and_size_of_lowers() {
        let error = |lowers: &[(Port, u64)], chunk| Table::stripe(lowers, chunk).unwrap_err();
        assert_eq!(error(&[], 512).to_string(), "the stripe has 0 columns; 2 to 64 are allowed");
        let many: Vec<_> = (0..65).map(|port| (Port(port), 4096)).collect();
        assert_eq!(error(&many, 512).to_string(), "the stripe has 65 columns; 2 to 64 are allowed");
        let small = [(P0, 4096), (P1, 511)];
        assert_eq!(
            error(&small, 512).to_string(),
            "p1 has 511 bytes, less than one chunk of 512 bytes"
        );
        let huge = [(P0, u64::MAX), (P1, u64::MAX)];
        assert_eq!(error(&huge, 512), TableError::TooLarge);
    }

    #[test]
    fn table_rejects_too_many_ports_or_segments() {
        let error = Table::linear(Port(1024), 10, 0, 10).unwrap_err();
        assert_eq!(error.to_string(), "the port number is p1024; the highest is p1023");
        let row = |number: u64| linear_row(P0, (4096 - number) * 2, 1);
        assert!(Table::from_rows((0..4096).map(row)).is_ok());
        let error = Table::from_rows((0..4097).map(row)).unwrap_err();
        assert_eq!(error.to_string(), "the table has 4097 segments; at most 4096 are allowed");
    }
}
