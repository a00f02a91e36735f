//! The rows of a benchmark program: promises with their measured figures, as JSON with every round, and as a table.
#![allow(clippy::disallowed_methods, reason = "it reads the real clock and writes results")]

use std::cell::RefCell;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};

use crate::arguments::{Arguments, saved};
use crate::awake::Awake;
use crate::ground::Ground;
use crate::places::Places;
use crate::quote;

/// Number of rounds of each measurement without the argument `--rounds`.
const ROUNDS: usize = 5;

/// The document that has the tables of the benchmark programs.
const DOCUMENTS: &str = "docs/bench";

/// The table of a benchmark program.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Name of the files with the results, without suffix.
    pub name: &'static str,
    /// The line before the table in the document into which it is written.
    pub begin: &'static str,
    /// The line after the table.
    pub end: &'static str,
}

/// A function that runs one measurement, and returns its rows for the results.
pub type Measure = Box<dyn Fn(&Ground) -> Result<Vec<Row>, String>>;

/// A measurement: its name and its function.
pub type Part = (String, Measure);

/// A row of the results: a promise and its measured figure.
pub struct Row {
    /// Short name of the row, by which `--only` selects it.
    pub id: String,
    /// Title of the row: what was measured.
    pub title: String,
    /// The promise, in words.
    pub aim: String,
    /// The measured figure, in words.
    pub figure: String,
    /// Whether the figure meets the promise; `None` for a row without a promise.
    pub holds: Option<bool>,
    /// The measured data of all rounds, as JSON.
    pub rounds: Value,
}

impl Row {
    /// Makes the row of a measurement that failed with `error`.
    pub fn failed(name: &str, error: String) -> Self {
        let (id, title, aim) =
            (name.to_owned(), name.to_owned(), "that it can be measured".to_owned());
        // A row of a table is one line.
        let figure = error.lines().collect::<Vec<_>>().join("; ");
        Self { id, title, aim, figure, holds: Some(false), rounds: Value::Null }
    }

    /// Formats the row as one line for the terminal.
    pub fn line(&self) -> String {
        format!("{}: {} (aim: {}) {}", self.title, self.figure, self.aim, said(self.holds))
    }
}

fn said(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "",
    }
}

/// Returns all rows as JSON, with the facts about the machine and the duration of the benchmark in seconds.
fn results(rows: &[Row], took_s: u64) -> Value {
    let row = |row: &Row| {
        json!({
            "id": row.id, "title": row.title, "aim": row.aim, "figure": row.figure,
            "holds": row.holds, "rounds": row.rounds,
        })
    };
    json!({
        "machine": crate::machine::machine(),
        "took_seconds": took_s,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// Formats the JSON results as a Markdown table.
fn table(results: &Value) -> String {
    let mut text = "| what | aim | found | holds |\n|---|---|---|---|\n".to_owned();
    for row in results["rows"].as_array().into_iter().flatten() {
        let cell = |name: &str| row[name].as_str().unwrap_or("");
        let (title, aim, figure) = (cell("title"), cell("aim"), cell("figure"));
        let _ = writeln!(text, "| {title} | {aim} | {figure} | {} |", said(row["holds"].as_bool()));
    }
    text
}

/// Writes the results to the files `NAME.json` and `NAME.md` in the directory `out`.
fn write(out: &Path, name: &str, results: &Value) -> Result<(), String> {
    let save = |name: &str, text: &str| {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    save(&format!("{name}.json"), &format!("{results:#}\n"))?;
    save(&format!("{name}.md"), &table(results))
}

/// Measures promises of Cairn, and writes a table of them.
#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

/// Runs the measurements `parts` of a benchmark program as its command line demands, and writes their table.
pub fn main(written: &Table, parts: Vec<Part>) -> ExitCode {
    match run(&Command::parse().arguments, written, parts) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the parts that the arguments select. The error of a measurement is a row.
fn run(arguments: &Arguments, written: &Table, parts: Vec<Part>) -> Result<(), String> {
    if let Some(path) = &arguments.table {
        print!("{}", table(&saved(path)?));
        return Ok(());
    }
    let parts: Vec<_> =
        parts.into_iter().filter(|(name, _)| name.contains(&arguments.only)).collect();
    if parts.is_empty() {
        return Err(format!("nothing has {:?} in its name; see main.rs", arguments.only));
    }
    // The client sleeps while it waits, as ordinary clients do.
    let config = runtime::Config { spin_us: 0, ..runtime::Config::default() };
    let core = runtime::Core::new(config).map_err(|error| error.to_string())?;
    let places = Places::new(&arguments.out)?;
    let rounds = arguments.rounds.map_or(ROUNDS, NonZeroUsize::get);
    let awake = RefCell::new(Some(Awake::begin()?));
    let ground = Ground { core, places, rounds, awake };
    let (begun, mut rows) = (Instant::now(), Vec::new());
    for (name, measure) in &parts {
        eprintln!("[{} s] {name}", begun.elapsed().as_secs());
        // An error in one measurement does not affect the others.
        for row in measure(&ground).unwrap_or_else(|error| vec![Row::failed(name, error)]) {
            eprintln!("  {}", row.line());
            rows.push(row);
        }
    }
    let results = results(&rows, begun.elapsed().as_secs());
    write(&arguments.out, written.name, &results)?;
    let table = table(&results);
    eprintln!("\n{table}");
    arguments.quote((written.begin, written.end), &table)
}

/// Fails unless the document of the benchmarks has the table of the saved results.
///
/// # Panics
/// If the tables differ, or a file cannot be read.
pub fn assert_quoted(written: &Table) {
    let documents = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(DOCUMENTS);
    let saved = saved(&documents.join(written.name).with_extension("json")).unwrap();
    let marks = (written.begin, written.end);
    let quoted = quote::between(&documents.join("README.md"), marks).unwrap();
    let table = table(&saved);
    assert!(table == quoted, "Next: make bench\n{table}");
}
