//! The objects of a checksum device in its vault.

use block::{Result, error};
use kind::home;
use meta::ring::RING_BYTES_MIN;
use meta::vault::{Array, ObjectId, Vault};
use zerocopy::little_endian::U64;

use super::sums::{BLOCK_BYTES, Sum};

/// Roles of the objects.
const SUMS: u32 = 0;
const FACTS: u32 = 1;

/// Number of records of the facts: the progress of the first checksums, whether the making has ended, and whether the job of the
/// first checksums is paused.
const FACTS_COUNT: u64 = 3;
pub const PROGRESS: u64 = 0;
const MADE: u64 = 1;
pub const PAUSED: u64 = 2;

/// Bytes of a region of a device.
pub const REGION_BYTES: u64 = 1 << 20;

/// Divisor of the bytes of a lower for the bytes of the ring, and the largest ring.
const RING_PART: u64 = 128;
const RING_BYTES_MOST: u64 = 1 << 20;

/// The values of the option `crash`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// Changes go through a journal, so no crash leaves a block that differs from its checksum.
    Journal,
    /// Data and checksums are written in parallel, in marked regions.
    Regions,
}

impl Crash {
    /// The words for the values in a spec.
    pub const WORDS: [&'static str; 2] = ["journal", "regions"];

    const ALL: [Self; 2] = [Self::Journal, Self::Regions];

    /// Returns the value with this word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|crash| crash.word() == word)
    }

    /// Returns the word for the value.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

/// The objects of a checksum device, except its regions.
pub struct Objects {
    /// The checksum of each block.
    pub sums: Array<Sum>,
    /// The facts about the device, numbers.
    pub facts: Array<U64>,
}

impl Objects {
    /// Role of the regions among the objects of the owner.
    pub const REGIONS: u32 = 2;

    /// Declares the objects of a device over a lower of `lower_bytes` bytes. They do not depend on the option `crash`, so a
    /// device has the same size with each value.
    pub fn declare(lower_bytes: u64) -> home::Objects {
        home::Objects::new()
            .array::<Sum>(lower_bytes / BLOCK_BYTES)
            .array::<U64>(FACTS_COUNT)
            .bitmap(lower_bytes.div_ceil(REGION_BYTES))
            .journal(Self::ring_bytes(lower_bytes))
    }

    /// Returns the bytes of the ring of a new device over a lower of `lower_bytes` bytes.
    pub fn ring_bytes(lower_bytes: u64) -> u64 {
        let share = lower_bytes / RING_PART;
        (share - share % RING_BYTES_MIN).clamp(RING_BYTES_MIN, RING_BYTES_MOST)
    }

    /// Opens the objects of an owner.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn open(vault: &Vault, owner: &str) -> Result<Self> {
        let find = |role| -> Result<ObjectId> {
            vault.find(owner, role).ok_or_else(|| {
                error!(NotFound, "the vault has no object of `{owner}` with role {role}")
            })
        };
        let (sums, facts) = (find(SUMS)?, find(FACTS)?);
        Ok(Self { sums: Array::new(vault, sums), facts: Array::new(vault, facts) })
    }

    /// Whether the making of the device has ended.
    ///
    /// # Errors
    /// Errors of reading the vault.
    pub async fn is_made(&self) -> Result<bool> {
        Ok(self.facts.get(MADE).await?.get() != 0)
    }

    /// Ends the making of a device, durably: the first `done` blocks have checksums.
    ///
    /// # Errors
    /// Errors of the vault.
    pub async fn end_making(&self, vault: &Vault, done: u64) -> Result<()> {
        let mut transaction = vault.begin();
        self.facts.set(&mut transaction, PROGRESS, &U64::new(done))?;
        self.facts.set(&mut transaction, MADE, &U64::new(1))?;
        vault.commit(transaction).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_grows_with_lower_to_one_mib() {
        let sizes = [1 << 20, 16 << 20, 100 << 20, 1 << 30, 1 << 40];
        let rings = sizes.map(Objects::ring_bytes);
        assert_eq!(rings, [64 << 10, 128 << 10, 768 << 10, 1 << 20, 1 << 20]);
    }

    #[test]
    fn each_value_of_crash_has_its_word() {
        for crash in Crash::ALL {
            assert_eq!(Crash::of(crash.word()), Some(crash));
        }
        assert_eq!(Crash::of("parity"), None);
    }
}
