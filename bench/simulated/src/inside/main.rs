//! The benchmark in process: real time that devices take on a disk in memory, without a socket. The simulator provides
//! the labels and the clock of the devices, and takes no part in a request.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

mod checksum;
mod scene;

use std::process::ExitCode;

use bench::ground::Ground;
use bench::rows::{self, Part, Table};

/// Name of the files of the results, and the lines before and after the table in the document.
const TABLE: Table =
    Table { name: "inside", begin: "<!-- inside: begin -->", end: "<!-- inside: end -->" };

fn main() -> ExitCode {
    let reads = |ground: &Ground| Ok(checksum::reads(ground.rounds));
    let parts: Vec<Part> = vec![("checksum-reads".to_owned(), Box::new(reads))];
    rows::main(&TABLE, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_in_bench_page_is_that_of_saved_rows() {
        rows::assert_quoted(&TABLE);
    }

    /// The rounds of a test are few, so the figures mean nothing.
    #[test]
    fn rows_in_process_are_measured() {
        let rows = checksum::reads(1);
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.holds.is_some() && !row.figure.is_empty()));
    }
}
