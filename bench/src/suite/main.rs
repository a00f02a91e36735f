//! The benchmark suite: measures Cairn and other servers (its peers) in alternation, and writes down every round.
#![allow(clippy::disallowed_methods, reason = "it starts servers and reads the real clock")]

mod device;
mod fio;
mod group;
mod measure;
mod report;
mod server;
mod stream;

use std::num::{NonZeroU64, NonZeroUsize};
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};

use bench::arguments::{Arguments, saved};
use bench::awake::Awake;
use bench::places::Places;
use clap::Parser;
use group::Group;
use measure::{Measured, measure};

/// Number of rounds of each row without the argument `--rounds`.
const ROUNDS: usize = 15;

/// Lines before and after the table in the README into which it is written.
const BEGIN: &str = "<!-- bench: begin -->";
const END: &str = "<!-- bench: end -->";

/// Measures Cairn beside its peers.
#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
    /// Length of a round in milliseconds
    #[arg(long)]
    millis: Option<NonZeroU64>,
}

fn main() -> ExitCode {
    match run(&Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(Command { arguments, millis }: &Command) -> Result<(), String> {
    if let Some(path) = &arguments.table {
        print!("{}", report::table(&saved(path)?));
        return Ok(());
    }
    let time = millis.map_or(group::ROUND, |millis| Duration::from_millis(millis.get()));
    let groups: Vec<_> =
        group::all().into_iter().map(|group| group.only(&arguments.only, time)).collect();
    let groups: Vec<_> = groups.into_iter().filter(|group| !group.rows.is_empty()).collect();
    if groups.is_empty() {
        return Err(format!("no row has {:?} in its name; see group.rs", arguments.only));
    }
    check(&groups)?;
    let places = Places::new(&arguments.out)?;
    let rounds = arguments.rounds.map_or(ROUNDS, NonZeroUsize::get);
    let _awake = Awake::begin()?;
    let begun = Instant::now();
    let mut all: Vec<Measured> = Vec::new();
    for (n, group) in groups.iter().enumerate() {
        let names: Vec<_> = group.recipes.iter().map(|recipe| recipe.name).collect();
        let names = names.join(", ");
        eprintln!("[{}/{}, {} s] {names}", n + 1, groups.len(), begun.elapsed().as_secs());
        for measured in measure(group, &places, rounds)? {
            eprintln!("{}\n{}", measured.title, report::line(&measured));
            all.push(measured);
        }
    }
    drop(places);
    eprintln!("[{} s] in process", begun.elapsed().as_secs());
    let hops = if arguments.only.is_empty() { hops()? } else { serde_json::json!([]) };
    let results = report::results(&all, hops, (rounds, time), begun.elapsed());
    report::write(&arguments.out, &results)?;
    let table = report::table(&results);
    eprintln!("\n{table}\n{}", arguments.out.join("index.html").display());
    arguments.quote((BEGIN, END), &table)
}

/// Checks, before anything is measured, that all needed programs are installed, and that the suite runs as root if it
/// must.
fn check(groups: &[Group]) -> Result<(), String> {
    let recipes = || groups.iter().flat_map(|group| &group.recipes);
    let programs = recipes().flat_map(|recipe| recipe.serves.tools().iter().copied());
    for program in recipes().map(|recipe| recipe.command[0].as_str()).chain(programs) {
        server::absolute(program)?;
    }
    if recipes().any(|recipe| recipe.serves.needs_root()) && !rustix::process::geteuid().is_root() {
        return Err("attached devices need root. Next: sudo, or --only another row".to_owned());
    }
    Ok(())
}

/// Returns the results of the program `hops` as JSON: the cost of tables, hooks and devices within one process.
fn hops() -> Result<serde_json::Value, String> {
    let program =
        std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("hops");
    let output = process::Command::new(&program).arg("--json").output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("hops: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("hops: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_in_readme_is_that_of_saved_rounds() {
        let file = |path| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        let table = report::table(&saved(&file("docs/bench/results.json")).unwrap());
        let quoted = bench::quote::between(&file("README.md"), (BEGIN, END)).unwrap();
        assert!(table == quoted, "Next: make bench\n{table}");
    }
}
