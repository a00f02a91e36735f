//! `cairn graph`: draws the graph of a spec, or a running graph.

use std::path::PathBuf;

use api::routes;
use clap::Args;

use super::plan;
use crate::complete;
use crate::draw;
use crate::exit::Result;
use crate::out::Form;
use crate::running::At;
use crate::source::is_spec;
use crate::view;

/// Arguments of `graph`.
#[derive(Args)]
pub struct GraphArgs {
    /// A running graph, or a spec (.toml); by default the graph that runs
    #[arg(value_name = "GRAPH|SPEC", conflicts_with = "at", add = complete::graph_or_spec())]
    graph: Option<PathBuf>,
    /// Draw an SVG image
    #[arg(long, conflicts_with = "dot")]
    svg: bool,
    /// Print text for Graphviz
    #[arg(long)]
    dot: bool,
    #[command(flatten)]
    at: At,
}

impl GraphArgs {
    /// Prints the picture of the graph.
    pub fn run(self, form: Form) -> Result {
        let graph = match self.graph {
            Some(path) if is_spec(&path) => view::graph(&plan(&path)?, None, |_| Vec::new()),
            Some(name) => At::of(name).one()?.get(&routes::GRAPH)?,
            None => self.at.one()?.get(&routes::GRAPH)?,
        };
        form.print(&graph, || match (self.svg, self.dot) {
            (true, _) => draw::svg(&graph),
            (_, true) => draw::dot(&graph),
            _ => draw::term(&graph),
        })
    }
}
