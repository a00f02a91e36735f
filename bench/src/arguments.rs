//! Command line arguments that all benchmark programs share, and the table that they write.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Arguments that all benchmark programs share.
#[derive(clap::Args)]
pub struct Arguments {
    /// Rounds of each row
    #[arg(long, value_name = "N")]
    pub rounds: Option<NonZeroUsize>,
    /// Directory for the results
    #[arg(long, value_name = "DIRECTORY", default_value = "out/bench")]
    pub out: PathBuf,
    /// Run only rows with this in their name
    #[arg(long, value_name = "PART", default_value = "")]
    pub only: String,
    /// The document with the table
    #[arg(long, value_name = "FILE")]
    pub readme: Option<PathBuf>,
    /// Measure nothing: print the table of saved results
    #[arg(long, value_name = "FILE")]
    pub table: Option<PathBuf>,
}

impl Arguments {
    /// Writes the table of results into the document `--readme`, between two marks, if that argument is given.
    ///
    /// # Errors
    /// As [`crate::quote::put`].
    pub fn quote(&self, marks: (&str, &str), table: &str) -> Result<(), String> {
        let Some(readme) = &self.readme else { return Ok(()) };
        crate::quote::put(readme, marks, table)
    }
}

/// Reads the JSON results that an earlier benchmark has saved.
///
/// # Errors
/// The file cannot be read, or is not JSON.
pub fn saved(path: &Path) -> Result<Value, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    serde_json::from_str(&text).map_err(|error| named(&error))
}
