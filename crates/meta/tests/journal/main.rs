//! Tests of journals: codecs, writing and reading, crashes, damage, and a random model.

mod basics;
mod codec;
mod crashes;
mod damage;
mod model;
mod scene;
