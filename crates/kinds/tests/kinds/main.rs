//! Kinds in operation: specs become graphs in a world with virtual time.

mod delay;
mod error;
mod file;
mod labels;
mod limit;
mod manuals;
mod migrate;
mod mirror;
mod remap;
mod reserves;
mod trace;
mod world;
