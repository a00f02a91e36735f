//! Tests over all kinds, and the simulated world in which the tests of single kinds run specs.

mod battery;
mod flush;
mod labels;
mod manuals;
mod records;
mod reserves;
pub mod subjects;
pub mod world;
