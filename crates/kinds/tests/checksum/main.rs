//! Tests of the core of checksum devices.

mod basics;
mod crashes;
mod scene;
