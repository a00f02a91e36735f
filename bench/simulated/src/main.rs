//! The benchmark in simulated time: speed, bytes and flushes of devices on simulated disks. Its figures are the same in
//! each run and on each machine.
//!
//! | file | holds |
//! | --- | --- |
//! | `checksum.rs` | the rows of `checksum`: writes, their bytes and flushes, and reads |
//! | `mirror.rs` | the row of `mirror`: first writes to a region |
//! | `remap.rs` | the rows of `remap`: first writes, and starts |
//! | `scene.rs` | a device on a simulated disk, and its load |

mod checksum;
mod mirror;
mod remap;
mod scene;

use std::process::ExitCode;

use bench::ground::Ground;
use bench::rows::{self, Part, Row, Table};

/// Name of the files of the results, and the lines before and after the table in the document.
const TABLE: Table =
    Table { name: "simulated", begin: "<!-- simulated: begin -->", end: "<!-- simulated: end -->" };

fn main() -> ExitCode {
    rows::main(&TABLE, parts())
}

fn parts() -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |name: &str, measure: fn() -> Vec<Row>| {
        parts.push((name.to_owned(), Box::new(move |_: &Ground| Ok(measure()))));
    };
    add("remap-first-writes", remap::first_writes);
    add("remap-bytes", remap::bytes);
    add("remap-flushes", remap::flushes);
    add("remap-start", remap::starts);
    add("checksum-writes", checksum::writes);
    add("checksum-flushes", checksum::flushes);
    add("checksum-first-writes", checksum::first_writes);
    add("checksum-bytes", checksum::bytes);
    add("checksum-reads", checksum::reads);
    add("mirror-first-writes", mirror::first_writes);
    parts
}

/// Returns a row with a verdict.
fn row(
    id: String,
    title: String,
    aim: String,
    figure: String,
    holds: bool,
    rounds: serde_json::Value,
) -> Row {
    Row { id, title, aim, figure, holds: Some(holds), rounds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_simulated_time_hold() {
        let rows = [
            remap::first_writes(),
            remap::flushes(),
            remap::starts(),
            checksum::writes(),
            checksum::flushes(),
            checksum::first_writes(),
            checksum::reads(),
            mirror::first_writes(),
        ];
        for row in rows.iter().flatten() {
            assert_eq!(row.holds, Some(true), "{}", row.line());
        }
    }

    #[test]
    fn table_in_bench_page_is_that_of_saved_rows() {
        rows::assert_quoted(&TABLE);
    }
}
