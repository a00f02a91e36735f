//! The commands of an encrypted device.

use block::Result;
use block::control::{Reach, Verb, VerbInfo};
use serde::{Deserialize, Serialize};

/// The command that lists or changes the key slots of an encrypted device.
pub struct Keys;

impl Verb for Keys {
    const INFO: &'static VerbInfo =
        &VerbInfo::new::<Self>("crypt.keys", "list or change key slots", "key slots", Reach::Here);
    type Args = KeyRequest;
    type Answer = KeySlots;
}

/// A request to list or change key slots. The request names keys by their sources, `file:PATH` or `credential:NAME`,
/// which the server reads: no key is part of a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyRequest {
    /// The change of a key slot that the encrypted device must make.
    #[serde(flatten)]
    pub change: KeyChange,
    /// Whether to report the result of the change without making it.
    #[serde(default)]
    pub dry_run: bool,
}

/// A change of one key slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum KeyChange {
    /// No change: only list the key slots.
    List,
    /// Add a key slot that wraps the volume key with a new passphrase.
    Add {
        /// Source of a passphrase that opens an existing key slot.
        key: String,
        /// Source of the passphrase for the new key slot.
        new_key: String,
        /// A label of the new key slot, for operators.
        #[serde(default)]
        label: String,
    },
    /// Remove a key slot.
    Remove {
        /// Number of the key slot to remove.
        slot: usize,
    },
    /// Replace the passphrase of a key slot.
    Change {
        /// Source of the passphrase that opens the key slot now.
        key: String,
        /// Source of the new passphrase.
        new_key: String,
    },
}

/// The reply of an encrypted device to the command that lists or changes its key slots.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeySlots {
    /// The change that the command made, or would make without the dry run; empty if the command only lists key slots.
    pub done: String,
    /// The key slots in use when the command has ended.
    pub slots: Vec<KeySlot>,
}

/// A key slot in use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeySlot {
    /// Number of the key slot.
    pub slot: usize,
    /// A label of the key slot, for operators; may be empty.
    pub label: String,
    /// Time when the key slot was made, in seconds since 1970.
    pub made_unix_s: u64,
    /// Name of the key derivation function: `argon2id`.
    pub derivation: String,
    /// Memory that the key derivation needs, in bytes.
    pub memory_bytes: u64,
    /// Passes of the key derivation over the memory.
    pub passes: u32,
    /// Lanes into which the memory of the key derivation is divided.
    pub lanes: u32,
}

/// Parses the name of a key source, such as `file:PATH`.
///
/// # Errors
/// `Invalid` if `text` names no key source.
pub fn source(text: &str) -> Result<block::KeySource> {
    text.parse().map_err(|why: String| block::Error::new(block::ErrorKind::Invalid, why))
}
