//! Tests of vaults: their objects must survive power cuts, damage and lost copies.

mod alloc;
mod blocks;
mod copies;
mod crashes;
mod damage;
mod data;
mod figures;
mod golden;
mod growth;
mod model;
mod objects;
mod redundant;
mod regions;
mod regions_model;
mod room;
mod scene;
mod second_crash;
mod timing;
