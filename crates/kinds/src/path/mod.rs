//! A disk on a block device. The kind is that of `file`, with the path in another option and without options to create
//! a file.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use kind::{Effect, Kind, OptionSpec, Scope, ValueType};

use crate::file::{self, CACHE, READ_ONLY, TIMEOUT};

/// The kind `path`: a disk on a block device.
pub const KIND: Kind = Kind {
    name: "path",
    summary: "a disk on a block device",
    options: &[PLACE, CACHE, READ_ONLY, TIMEOUT],
    ..file::KIND
};

pub(crate) const PLACE: OptionSpec = OptionSpec {
    name: "path",
    value: ValueType::Path,
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Local,
    help: "the block device, best by a stable name: /dev/disk/by-id/...",
};
