//! Tests over all kinds, and the simulated world in which the tests of single kinds run specs.

mod battery;
mod flush;
mod labels;
mod manuals;
mod reserves;
pub mod world;
