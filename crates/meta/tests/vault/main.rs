//! Vaults: persistent objects, through power cuts, damage and lost copies.

mod alloc;
mod copies;
mod crashes;
mod damage;
mod data;
mod disk;
mod figures;
mod golden;
mod model;
mod objects;
mod room;
mod scene;
