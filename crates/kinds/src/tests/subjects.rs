//! Functions that several kinds share to make their subjects of the battery.

use block::Result;
use kind::Value;
use sim::{Assembly, PartId};
use testkit::Subject;

use crate::REGISTRY;

/// Bytes of each lower of a subject: few, so that requests overlap often and clients read every byte often.
pub const SIZE: u64 = 48 << 10;

/// Returns a subject called `name` over `lowers` lowers, which `build` builds.
pub fn over(
    name: &str,
    lowers: usize,
    build: impl Fn(&mut Assembly, &[PartId]) -> Result<PartId> + 'static,
) -> Subject {
    Subject::new(name, REGISTRY, lowers, SIZE, build)
}

/// Puts a subject on labelled disks. For such a subject the battery has two more parts, so it gets fewer seeds.
pub fn labelled(subject: Subject) -> Subject {
    subject.with_seeds(6).on_labels()
}

/// Returns the option `key` of a device with a number of bytes as its value.
pub fn size(key: &'static str, bytes: u64) -> (&'static str, Value) {
    (key, Value::Size(bytes))
}

/// Returns the options of a crypt device with a raw key and without key slots.
pub fn plain() -> Vec<(&'static str, Value)> {
    vec![("key", Value::Text("file:/key".to_owned())), ("plain", Value::Switch(true))]
}

/// Returns the options of a crypt device with key slots, whose key from `source` is derived at low cost.
pub fn slots(source: &str) -> Vec<(&'static str, Value)> {
    let key = ("key", Value::Text(source.to_owned()));
    vec![key, size("kdf_memory", 64 << 10), ("kdf_passes", Value::Integer(1))]
}
