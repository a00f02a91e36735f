//! Tests of an open pool: its model, crashes, and the space that comes back.

mod basics;
mod crashes;
mod model;
mod scene;
