//! The kinds of devices. Each kind is one folder with code, manual and tests, and one line in `for_each_kind!`.

/// Passes the names of all kinds, which are also their modules, to the macro `with`, in the order of all lists of
/// kinds.
macro_rules! for_each_kind {
    ($with:ident) => {
        $with! {
            file
            path
            memory
            null
            linear
            partition
            concat
            stripe
            mirror
            pass
            delay
            limit
            trace
            error
            crypt
            migrate
            remap
            checksum
            wear
            pool
            versioned
        }
    };
}

mod ephemeral;
mod tables;
#[cfg(test)]
mod tests;

use kind::Registry;

/// Types of the commands for key slots of encrypted devices, for clients of the control API.
pub use crypt::verbs as keys;

/// Types of the commands of pools, for clients of the control API.
pub use self::pool::verbs as vdisks;

macro_rules! kinds {
    ($($kind:ident)*) => {
        $(pub mod $kind;)*

        /// All kinds of devices in this crate.
        pub const REGISTRY: Registry = Registry(&[$($kind::KIND),*]);

        /// For each kind of this crate, how the simulator draws its devices and which of its records the fuzzer
        /// damages.
        #[cfg(any(test, feature = "testing"))]
        pub const TESTING: &[kind::testing::Testing] = &[$($kind::testing::TESTING),*];
    };
}

for_each_kind!(kinds);
