//! Kinds at work: specs that become graphs in a world whose time is virtual.

mod delay;
mod error;
mod file;
mod limit;
mod manuals;
mod migrate;
mod mirror;
mod trace;
mod world;
