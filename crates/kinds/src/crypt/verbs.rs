//! The commands of an encrypted device.

use block::Result;
use block::control::{Reach, Verb, VerbInfo};
use serde::{Deserialize, Serialize};

/// The command that lists or changes the key slots.
pub struct Keys;

impl Verb for Keys {
    const INFO: &'static VerbInfo =
        &VerbInfo::new::<Self>("crypt.keys", "list or change key slots", "key slots", Reach::Here);
    type Args = KeyRequest;
    type Answer = KeySlots;
}

/// A request about key slots. It names keys by their sources, `file:PATH` or `credential:NAME`, which the server reads:
/// no key is part of a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyRequest {
    /// The change.
    #[serde(flatten)]
    pub change: KeyChange,
    /// Whether to report the result without a change.
    #[serde(default)]
    pub dry_run: bool,
}

/// A change of one key slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum KeyChange {
    /// No change; the slots are listed.
    List,
    /// One more slot with the volume key.
    Add {
        /// The source of a passphrase that opens a slot.
        key: String,
        /// The source of the passphrase for the new slot.
        new_key: String,
        /// A label for operators.
        #[serde(default)]
        label: String,
    },
    /// Removal of the key from a slot.
    Remove {
        /// Number of the slot.
        slot: usize,
    },
    /// A new passphrase for a slot.
    Change {
        /// The source of the passphrase that opens it now.
        key: String,
        /// The source of the new passphrase.
        new_key: String,
    },
}

/// The key slots of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeySlots {
    /// The change that was made, or would be made; empty for a list.
    pub done: String,
    /// The slots in use.
    pub slots: Vec<KeySlot>,
}

/// A key slot in use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeySlot {
    /// Number of the slot.
    pub slot: usize,
    /// A label for operators; may be empty.
    pub label: String,
    /// Time when it was made, in seconds since 1970.
    pub made_unix_s: u64,
    /// Key derivation function: `argon2id`.
    pub derivation: String,
    /// Memory of a derivation.
    pub memory_bytes: u64,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes of the memory.
    pub lanes: u32,
}

/// Parses the source of a key.
///
/// # Errors
/// `Invalid` if `text` names no source.
pub fn source(text: &str) -> Result<block::KeySource> {
    text.parse().map_err(|why: String| block::Error::new(block::ErrorKind::Invalid, why))
}
