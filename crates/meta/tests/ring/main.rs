//! Tests of rings of records: their codec, and recovery after crashes and damage.

mod codec;
mod crashes;
mod log;
mod recovery;
mod scene;
