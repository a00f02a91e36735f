//! From a spec to a running graph: validates the spec, plans and builds the devices, fuses tables, and changes a graph
//! that runs. Knows kinds only through the registry that the caller passes.

mod fusion;
pub mod labels;
pub mod live;
mod locate;
mod running;
pub mod spec;

pub use live::RunningGraph;
pub use running::{Export, Graph, Member};
