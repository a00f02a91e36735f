//! The kinds of devices. Each is one folder with code, manual and tests, and one line in [`for_each_kind`].

/// Passes the folders of all kinds to the macro `with`, in the order in which they are listed for people.
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
        }
    };
}

mod ephemeral;
mod tables;
#[cfg(test)]
mod tests;

use kind::Registry;

/// The commands for key slots, for their typed client.
pub use crypt::verbs as keys;

macro_rules! kinds {
    ($($kind:ident)*) => {
        $(pub mod $kind;)*

        /// All kinds of this crate.
        pub const REGISTRY: Registry = Registry(&[$($kind::KIND),*]);

        /// The parts of all kinds in the tests.
        #[cfg(any(test, feature = "testing"))]
        pub const TESTING: &[kind::testing::Testing] = &[$($kind::testing::TESTING),*];
    };
}

for_each_kind!(kinds);
