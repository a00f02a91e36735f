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
//! `graph.rs` has a graph in a directory, `window.rs` its clients, `report.rs` the rows.
#![allow(clippy::disallowed_methods, reason = "it starts servers and reads the real clock")]

mod beside;
mod graph;
mod import;
mod kills;
mod known;
mod marks;
mod report;
mod stall;
mod starts;
mod window;

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Instant;

use bench::arguments::{Arguments, saved};
use bench::awake::Awake;
use bench::places::Places;
use clap::Parser;

use report::Row;
use window::{Ground, Medium};

/// Number of rounds of each measurement without the argument `--rounds`.
const ROUNDS: usize = 5;

/// Lines before and after the table in the document into which it is written.
const BEGIN: &str = "<!-- jobs: begin -->";
const END: &str = "<!-- jobs: end -->";

/// Measures what is promised of changes under load.
#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    match run(&Command::parse().arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A function that runs one measurement, and returns its rows for the results.
type Measure = Box<dyn Fn(&Ground) -> Result<Vec<Row>, String>>;

/// A measurement: its name and its function.
type Part = (String, Measure);

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

fn run(arguments: &Arguments) -> Result<(), String> {
    if let Some(path) = &arguments.table {
        print!("{}", report::table(&saved(path)?));
        return Ok(());
    }
    let parts: Vec<_> =
        parts().into_iter().filter(|(name, _)| name.contains(&arguments.only)).collect();
    if parts.is_empty() {
        return Err(format!("nothing has {:?} in its name; see main.rs", arguments.only));
    }
    // The client sleeps while it waits, as ordinary clients do.
    let config = runtime::Config { spin_us: 0, ..runtime::Config::default() };
    let core = runtime::Core::new(config).map_err(|error| error.to_string())?;
    let places = Places::new(&arguments.out)?;
    let rounds = arguments.rounds.map_or(ROUNDS, NonZeroUsize::get);
    let ground = Ground { core, places, rounds };
    let _awake = Awake::begin()?;
    let (begun, mut rows) = (Instant::now(), Vec::new());
    for (name, measure) in &parts {
        eprintln!("[{} s] {name}", begun.elapsed().as_secs());
        // An error in one measurement does not affect the others.
        for row in measure(&ground).unwrap_or_else(|error| vec![Row::failed(name, error)]) {
            eprintln!("  {}", row.line());
            rows.push(row);
        }
    }
    let results = report::results(&rows, begun.elapsed().as_secs());
    report::write(&arguments.out, &results)?;
    let table = report::table(&results);
    eprintln!("\n{table}");
    arguments.quote((BEGIN, END), &table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_in_bench_page_is_that_of_saved_rounds() {
        let file = |path| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        let table = report::table(&saved(&file("docs/bench/jobs.json")).unwrap());
        let quoted = bench::quote::between(&file("docs/bench/README.md"), (BEGIN, END)).unwrap();
        assert!(table == quoted, "Next: make bench\n{table}");
    }
}
