//! The objects of a checksum device in its vault.

use block::Result;
use meta::regions::{Division, Regions};
use meta::vault::{Array, ObjectId, Spec, Transaction, Vault};
use zerocopy::little_endian::U64;

use super::sums::Sum;

/// Roles of the objects.
const SUMS: u32 = 0;
const PROGRESS: u32 = 1;
const REGIONS: u32 = 2;

/// The objects of a checksum device, except its regions.
pub struct Objects {
    /// The checksum of each block.
    pub sums: Array<Sum>,
    /// The progress of the first checksums: one number of a block.
    pub progress: Array<U64>,
}

impl Objects {
    /// Role of the regions among the objects of the owner.
    pub const REGIONS: u32 = REGIONS;

    /// Adds to a transaction the creation of the objects of a device with so many blocks. `has_zeros`: the lower is known to
    /// have zeros. `division`: the regions of the device, if it has regions.
    ///
    /// # Errors
    /// As [`Transaction::create`].
    pub fn create(
        transaction: &mut Transaction,
        vault: &Vault,
        owner: &str,
        blocks: u64,
        has_zeros: bool,
        division: Option<Division>,
    ) -> Result<()> {
        transaction.create(&Spec::array::<Sum>(owner, SUMS, blocks))?;
        let progress = transaction.create(&Spec::array::<U64>(owner, PROGRESS, 1))?;
        if has_zeros {
            Array::<U64>::new(vault, progress).set(transaction, 0, &U64::new(blocks))?;
        }
        if let Some(division) = division {
            Regions::create(transaction, owner, REGIONS, division)?;
        }
        Ok(())
    }

    /// Opens the objects of an owner.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn open(vault: &Vault, owner: &str) -> Result<Self> {
        let find = |role| -> Result<ObjectId> {
            vault.find(owner, role).ok_or_else(|| {
                block::error!(NotFound, "the vault has no object of `{owner}` with role {role}")
            })
        };
        let (sums, progress) = (find(SUMS)?, find(PROGRESS)?);
        Ok(Self { sums: Array::new(vault, sums), progress: Array::new(vault, progress) })
    }
}
