//! From a spec to a running graph: validate, build, fuse, run. Knows kinds only through the registry
//! that it is given.

pub mod engine;
pub mod kind;
pub mod spec;
