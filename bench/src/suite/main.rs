//! Measures Cairn beside its peers, interleaved, and writes down every round.
//!
//! `suite [--quick] [--out DIR] [--only PART-OF-ID]`
#![allow(clippy::disallowed_methods, reason = "it starts servers and reads the real clock")]

mod cell;
mod direct;
mod measure;
mod report;
mod server;
mod stats;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use measure::{Measured, measure};

/// Rounds of a second: the most, if time allows, and the fewest.
const ROUNDS: usize = 15;
const ROUNDS_QUICK: usize = 3;

struct Arguments {
    quick: bool,
    out: PathBuf,
    only: String,
}

fn arguments() -> Result<Arguments, String> {
    let mut found =
        Arguments { quick: false, out: PathBuf::from("out/bench"), only: String::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => found.quick = true,
            "--out" => found.out = words.next().ok_or("--out needs a directory")?.into(),
            "--only" => found.only = words.next().ok_or("--only needs part of a cell's name")?,
            other => return Err(format!("{other}: not known; see the head of main.rs")),
        }
    }
    Ok(found)
}

fn main() -> ExitCode {
    match arguments().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    std::fs::create_dir_all(&arguments.out).map_err(|error| error.to_string())?;
    let work = arguments.out.join("work");
    std::fs::create_dir_all(&work).map_err(|error| error.to_string())?;
    let rounds = if arguments.quick { ROUNDS_QUICK } else { ROUNDS };
    let begun = Instant::now();
    let mut all: Vec<Measured> = Vec::new();
    let cells: Vec<_> =
        cell::all().into_iter().filter(|cell| cell.id.contains(&arguments.only)).collect();
    for (n, cell) in cells.iter().enumerate() {
        eprintln!("[{}/{}, {:?}] {}", n + 1, cells.len(), whole(begun.elapsed()), cell.title);
        let measured = measure(cell, &work, rounds)?;
        eprintln!("{}", report::line(&measured));
        all.push(measured);
    }
    let _ = std::fs::remove_dir_all(&work);
    report::write(&arguments.out, &all, rounds, begun.elapsed())
}

fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}
