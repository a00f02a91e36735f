//! `cairn show`: prints a spec with all variables replaced and all defaults included.

use std::path::PathBuf;

use api::routes;
use clap::Args;

use super::plan;
use crate::complete;
use crate::exit::Result;
use crate::out::Form;
use crate::running::At;
use crate::view;

/// Arguments of `show`.
#[derive(Args)]
pub struct ShowArgs {
    /// The spec to show as planned; by default the running graphs
    #[arg(conflicts_with = "at", add = complete::spec())]
    spec: Option<PathBuf>,
    #[command(flatten)]
    at: At,
}

impl ShowArgs {
    /// Prints the spec of a file, or of a running graph.
    pub fn run(self, form: Form) -> Result {
        let spec = match &self.spec {
            Some(path) => view::spec(&plan(path)?),
            None => self.at.one()?.get(&routes::SPEC)?,
        };
        form.print(&spec, || spec.text.clone())
    }
}
