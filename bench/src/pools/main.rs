//! The benchmark of pools: measures what Cairn promises for virtual disks, their snapshots and clones.
//!
//! | file | measures |
//! | --- | --- |
//! | `snapshots.rs` | the work and the bytes of snapshots and clones, in this process |
//! | `removal.rs` | the removal of snapshots, and the return of space, in this process |
//! | `maps.rs` | metadata of writes, and reads of deep versions, in this process |
//! | `openings.rs` | closed virtual disks, and a start with a long log, in this process |
//! | `service.rs` | the real binary: clones, names opened on demand, memory, starts after kills |
//! | `beside.rs` | a pool beside the raw file, qcow2 images and reflinks on XFS |
//!
//! `peers.rs` has the peers, `inside.rs` a pool in this process, `disk.rs` its disk.
#![allow(clippy::disallowed_methods, reason = "it starts servers and reads the real clock")]

mod beside;
mod disk;
mod inside;
mod maps;
mod openings;
mod peers;
mod removal;
mod service;
mod snapshots;

use std::process::ExitCode;

use bench::ground::Ground;
use bench::rows::{self, Part, Row, Table};

/// Name of the files of the results, and the lines before and after the table in the document.
const TABLE: Table =
    Table { name: "pools", begin: "<!-- pools: begin -->", end: "<!-- pools: end -->" };

fn main() -> ExitCode {
    rows::main(&TABLE, parts())
}

fn parts() -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |name: &str, measure: fn(&Ground) -> Result<Vec<Row>, String>| {
        parts.push((name.to_owned(), Box::new(measure)));
    };
    // The first one: memory that an earlier part has freed would leave this process later.
    add("closed", openings::closed);
    add("snapshot", snapshots::own_work);
    add("snapshot-load", snapshots::under_load);
    add("snapshot-kept", snapshots::kept);
    add("clone", snapshots::clones);
    add("clone-bytes", snapshots::clone_bytes);
    add("clones-10000", snapshots::many_clones);
    add("remove", removal::snapshots);
    add("space", removal::space);
    add("metadata", maps::writes);
    add("metadata-flushed", maps::flushed_writes);
    add("depth", maps::depths);
    add("node-reads", maps::node_reads);
    add("master", maps::master);
    add("growth", maps::growth);
    add("start-log", openings::start_with_log);
    add("command-clones", service::clones);
    add("first-use", service::first_use);
    add("memory", service::memory);
    add("start-pool", service::starts);
    add("writes", beside::writes);
    add("cadence", beside::cadence);
    add("beside-clone", beside::clones);
    add("chains", beside::chains);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_in_bench_page_is_that_of_saved_rounds() {
        rows::assert_quoted(&TABLE);
    }
}
