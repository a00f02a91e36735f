//! Tests of the trees of pools.

mod bodies;
mod cache;
mod damage;
mod golden;
mod kept;
mod line;
mod model;
mod smoke;
mod store;
mod tables;
mod trees;
mod wrong;
