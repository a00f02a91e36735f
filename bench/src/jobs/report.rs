//! The results of the benchmark of jobs: as JSON with every round, and as a table.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

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
        Self { id, title, aim, figure: error, holds: Some(false), rounds: Value::Null }
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
pub fn results(rows: &[Row], took_s: u64) -> Value {
    let row = |row: &Row| {
        json!({
            "id": row.id, "title": row.title, "aim": row.aim, "figure": row.figure,
            "holds": row.holds, "rounds": row.rounds,
        })
    };
    json!({
        "machine": bench::machine::machine(),
        "took_seconds": took_s,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// Formats the JSON results as a Markdown table.
pub fn table(results: &Value) -> String {
    let mut text = "| what | aim | found | holds |\n|---|---|---|---|\n".to_owned();
    for row in results["rows"].as_array().into_iter().flatten() {
        let cell = |name: &str| row[name].as_str().unwrap_or("");
        let (title, aim, figure) = (cell("title"), cell("aim"), cell("figure"));
        let _ = writeln!(text, "| {title} | {aim} | {figure} | {} |", said(row["holds"].as_bool()));
    }
    text
}

/// Writes the results to the files `jobs.json` and `jobs.md` in the directory `out`.
pub fn write(out: &Path, results: &Value) -> Result<(), String> {
    let save = |name: &str, text: &str| {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    save("jobs.json", &format!("{results:#}\n"))?;
    save("jobs.md", &table(results))
}
