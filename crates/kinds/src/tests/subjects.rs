//! Parts of the subjects of the battery that several kinds share.

use block::Result;
use kind::Value;
use sim::{Assembly, PartId};
use testkit::Subject;

use crate::REGISTRY;

/// Bytes of a device. It is small, so that requests collide and all of it is read often.
pub const SIZE: u64 = 48 << 10;

/// Returns a subject over so many lowers.
pub fn over(
    name: &str,
    lowers: usize,
    build: impl Fn(&mut Assembly, &[PartId]) -> Result<PartId> + 'static,
) -> Subject {
    Subject::new(name, REGISTRY, lowers, SIZE, build)
}

/// Puts a subject on labelled disks. It runs two more parts of the battery, so it gets fewer seeds.
pub fn labelled(subject: Subject) -> Subject {
    subject.with_seeds(6).on_labels()
}

/// Returns an option that is a number of bytes.
pub fn size(key: &'static str, bytes: u64) -> (&'static str, Value) {
    (key, Value::Size(bytes))
}

/// Returns the options of an encrypted device with a raw key: no key slots are kept.
pub fn plain() -> Vec<(&'static str, Value)> {
    vec![("key", Value::Text("file:/key".to_owned())), ("plain", Value::Switch(true))]
}

/// Returns the options of an encrypted device with key slots and a cheap derivation.
pub fn slots(source: &str) -> Vec<(&'static str, Value)> {
    let key = ("key", Value::Text(source.to_owned()));
    vec![key, size("kdf_memory", 64 << 10), ("kdf_passes", Value::Integer(1))]
}
