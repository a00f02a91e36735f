//! Kinds at work: specs that become graphs in a world whose time is virtual.

mod delay;
mod error;
mod file;
mod labels;
mod limit;
mod manuals;
mod migrate;
mod mirror;
mod remap;
mod trace;
mod world;
