//! The benchmark of jobs: measures what Cairn promises for clients during changes, such as latency beside a resync and
//! the time of a start after a kill.
//!
//! | file | measures |
//! | --- | --- |
//! | `beside.rs` | clients beside a job, and the job beside clients |
//! | `stall.rs` | the longest wait while a volume is encrypted |
//! | `kills.rs` | the content of a volume whose server is killed during a job; `known.rs` has the expected content |
//! | `marks.rs` | the writes of a mirror for its bitmap |
//! | `import.rs` | graphs that are found on disks |
//! | `starts.rs` | starts after kills |
//!
//! `window.rs` has the clients of a served graph.
#![allow(clippy::disallowed_methods, reason = "it starts servers and reads the real clock")]

mod beside;
mod import;
mod kills;
mod known;
mod marks;
mod stall;
mod starts;
mod window;

use std::process::ExitCode;

use bench::ground::Medium;
use bench::rows::{self, Measure, Part, Table};

/// Name of the files of the results, and the lines before and after the table in the document.
const TABLE: Table =
    Table { name: "jobs", begin: "<!-- jobs: begin -->", end: "<!-- jobs: end -->" };

fn main() -> ExitCode {
    rows::main(&TABLE, parts())
}

fn parts() -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |name: String, measure: Measure| parts.push((name, measure));
    for job in beside::Job::ALL {
        for medium in Medium::ALL {
            let name = format!("{}-{}", job.word(), medium.name());
            add(name, Box::new(move |ground| beside::measure(ground, job, medium)));
        }
    }
    for medium in Medium::ALL {
        let name = format!("stall-{}", medium.name());
        add(name, Box::new(move |ground| stall::measure(ground, medium)));
    }
    add("kills-memory".to_owned(), Box::new(kills::measure));
    add("marks".to_owned(), Box::new(marks::measure));
    add("import".to_owned(), Box::new(import::measure));
    for graph in starts::Graph::ALL {
        let name = format!("start-{}", graph.name());
        add(name, Box::new(move |ground| starts::measure(ground, graph)));
    }
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
