//! From a spec to a running graph: validate, build, fuse, run. Knows kinds only through the registry that its caller
//! passes.

mod fusion;
pub mod labels;
pub mod live;
mod locate;
mod running;
pub mod spec;

pub use live::RunningGraph;
pub use running::{Export, Graph, Member};
