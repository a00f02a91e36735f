//! Makes tables from their text form for other tests, and tests the text form.

use super::{Origin, Place, Port, Row, Stripe, Table, TableError};

const TWO: &str = "\
0+1073741824 linear p0 4096
1073741824+8388608 striped 65536 skip 512 p1:0 p2:1048576";

/// Parses the text form of a table, with one line for each segment.
///
/// # Panics
/// If the text is not a valid table.
pub(super) fn table(text: &str) -> Table {
    try_table(text).unwrap()
}

fn try_table(text: &str) -> Result<Table, TableError> {
    Table::from_rows(text.lines().map(row))
}

/// Parses one line, which is a segment of the table. The start of its byte range follows from the lines before.
fn row(line: &str) -> Row {
    let words: Vec<_> = line.split_whitespace().collect();
    let (_, len) = words[0].split_once('+').unwrap();
    let place = match words[1..] {
        ["linear", port, start] => Place::Linear(origin(port, start)),
        ["striped", chunk, "skip", skip, ref columns @ ..] => {
            let halves = columns.iter().map(|column| column.split_once(':').unwrap());
            let columns = halves.map(|(port, start)| origin(port, start)).collect();
            let stripe = Stripe::new(chunk.parse().unwrap(), skip.parse().unwrap(), columns);
            Place::Striped(Box::new(stripe.unwrap()))
        }
        _ => panic!("no segment: {line:?}"),
    };
    Row { len: len.parse().unwrap(), place }
}

fn origin(port: &str, start: &str) -> Origin {
    let number = port.strip_prefix('p').unwrap().parse().unwrap();
    Origin { port: Port(number), start: start.parse().unwrap() }
}

#[test]
fn table_prints_one_line_per_segment() {
    assert_eq!(table(TWO).to_string(), TWO);
}

#[test]
fn table_rejects_empty_and_overlapping_segments() {
    let error = |text| try_table(text).unwrap_err().to_string();
    assert_eq!(error(""), "the length is 0 bytes; at least 1 byte is needed");
    assert_eq!(error("0+0 linear p0 0"), "the length is 0 bytes; at least 1 byte is needed");
    assert_eq!(error("0+5 linear p1024 0"), "the port number is p1024; the highest is p1023");
    let overlap = "0+5 linear p0 0\n5+5 linear p0 4";
    assert_eq!(error(overlap), "bytes 0+5 and 4+5 of p0 overlap");
}
