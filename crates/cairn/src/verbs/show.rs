//! `cairn show`: prints a spec with all variables replaced and all defaults included.

use std::path::PathBuf;

use api::routes;
use clap::Args;

use super::plan;
use crate::complete;
use crate::exit::Result;
use crate::out::Form;
use crate::running::At;
use crate::source::is_spec;
use crate::view;

/// Arguments of `show`.
#[derive(Args)]
pub struct ShowArgs {
    /// A running graph, or the spec (.toml) to show as planned; by default the graph that runs
    #[arg(value_name = "GRAPH|SPEC", conflicts_with = "at", add = complete::graph_or_spec())]
    graph: Option<PathBuf>,
    #[command(flatten)]
    at: At,
}

impl ShowArgs {
    /// Prints the spec of a file, or of a running graph.
    pub fn run(self, form: Form) -> Result {
        let spec = match self.graph {
            Some(path) if is_spec(&path) => view::spec(&plan(&path)?),
            Some(name) => At::of(name).one()?.get(&routes::SPEC)?,
            None => self.at.one()?.get(&routes::SPEC)?,
        };
        form.print(&spec, || spec.text.clone())
    }
}
