//! The commands of an encrypted device.

use block::Result;
use block::control::{Reach, Verb, VerbInfo};
use serde::{Deserialize, Serialize};

/// Lists or changes the key slots.
pub struct Keys;

impl Verb for Keys {
    const INFO: &'static VerbInfo =
        &VerbInfo::new::<Self>("crypt.keys", "list or change key slots", "key slots", Reach::Here);
    type Args = KeyRequest;
    type Answer = KeySlots;
}

/// A change of key slots. Keys are named by their sources, `file:PATH` or `credential:NAME`, which the server reads: no key
/// is part of a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyRequest {
    /// The change.
    #[serde(flatten)]
    pub change: KeyChange,
    /// Only state the result.
    #[serde(default)]
    pub dry_run: bool,
}

/// A change of one key slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum KeyChange {
    /// No change: list them.
    List,
    /// Put the volume key into one more slot.
    Add {
        /// The source of a passphrase that opens a slot.
        key: String,
        /// The source of the passphrase for the new slot.
        new_key: String,
        /// A word for people.
        #[serde(default)]
        label: String,
    },
    /// Empty a slot.
    Remove {
        /// Its number.
        slot: usize,
    },
    /// Let another passphrase open a slot.
    Change {
        /// The source of the passphrase that opens it now.
        key: String,
        /// The source of the next one.
        new_key: String,
    },
}

/// The key slots of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeySlots {
    /// The change that was made, or would be; empty if they are only listed.
    pub done: String,
    /// The slots that are in use.
    pub slots: Vec<KeySlot>,
}

/// A key slot that is in use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeySlot {
    /// Its number.
    pub slot: usize,
    /// A word for people; may be empty.
    pub label: String,
    /// The time when it was made, in seconds since 1970.
    pub made_unix_s: u64,
    /// How a passphrase becomes a key: `argon2id`.
    pub derivation: String,
    /// The memory that this takes.
    pub memory_bytes: u64,
    /// Passes over it.
    pub passes: u32,
    /// Lanes of it.
    pub lanes: u32,
}

/// Parses the source of a key.
///
/// # Errors
/// `Invalid` if it is none.
pub fn source(text: &str) -> Result<block::KeySource> {
    text.parse().map_err(|why: String| block::Error::new(block::ErrorKind::Invalid, why))
}
