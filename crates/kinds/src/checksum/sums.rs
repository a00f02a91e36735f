//! The checksums of blocks: their computation, and the array that holds them.

use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Result};
use crc_fast::{CrcAlgorithm, Digest};
use meta::Uuid;
use meta::vault::{Array, Transaction, Vault};
use zerocopy::little_endian::U64;

/// Bytes of a block, which has one checksum.
pub const BLOCK_BYTES: u64 = 4096;

/// Most blocks of a read or write.
pub const PIECE_BLOCKS: usize = 64;

/// Most bytes of a read or write: those of [`PIECE_BLOCKS`] blocks.
pub const PIECE_BYTES: u64 = PIECE_BLOCKS as u64 * BLOCK_BYTES;

/// A checksum as the array holds it. 0 states that the block has zeros.
pub type Sum = U64;

/// The checksum of a block of zeros, whatever its address.
pub const ZEROS: Sum = U64::ZERO;

/// Blocks of a read or write, as bits: bit `n` for the block `n` of the range.
pub type Blocks = u64;

/// The function that computes the checksums of a device's blocks.
#[derive(Clone, Copy)]
pub struct Seed(Digest);

impl Seed {
    /// Returns the function for the device with this UUID.
    pub fn new(device: Uuid) -> Self {
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        digest.update(&device.0);
        Self(digest)
    }

    /// Computes the checksum of the block at byte `address` of the device.
    pub fn sum(&self, address: u64, block: &[u8]) -> Sum {
        let mut digest = self.0;
        if !seeded::on(Bug::AddressNotInSum) {
            digest.update(&address.to_le_bytes());
        }
        digest.update(block);
        let least = u64::from(!seeded::on(Bug::ComputedZeroStored));
        digest.finalize().max(least).into()
    }

    /// Whether the checksum `stored` permits these bytes for the block at byte `address`.
    pub fn fits(&self, address: u64, block: &[u8], stored: Sum) -> bool {
        if stored == ZEROS { block::is_zero(block) } else { self.sum(address, block) == stored }
    }
}

/// The checksums of a device's blocks, in an array of its vault. A clone is a second handle to the same array.
#[derive(Clone)]
pub struct Sums {
    seed: Seed,
    vault: Vault,
    array: std::rc::Rc<Array<U64>>,
}

/// Returns the numbers of the first block and of the blocks of a range.
pub fn blocks_of(range: ByteRange) -> (u64, usize) {
    (range.start() / BLOCK_BYTES, (range.len() / BLOCK_BYTES) as usize)
}

/// Returns the byte range of a block.
pub fn range_of(block: u64) -> ByteRange {
    ByteRange::new(block * BLOCK_BYTES, BLOCK_BYTES).expect("a block has bytes")
}

impl Sums {
    /// Returns the checksums that `array` holds, for the device with this UUID.
    pub fn new(device: Uuid, vault: &Vault, array: Array<U64>) -> Self {
        Self { seed: Seed::new(device), vault: vault.clone(), array: array.into() }
    }

    /// Reads the checksums of the blocks from `first` on.
    ///
    /// # Errors
    /// Errors of reading the vault.
    pub async fn get(&self, first: u64, into: &mut [Sum]) -> Result<()> {
        self.array.get_many(first, into).await
    }

    /// Computes the checksums of the blocks of `range` with the bytes of `data`.
    pub fn compute(&self, range: ByteRange, data: &Buf, into: &mut [Sum]) {
        let bytes = data.read();
        let blocks = bytes.chunks_exact(BLOCK_BYTES as usize);
        let addresses = (range.start()..).step_by(BLOCK_BYTES as usize);
        for ((block, address), sum) in blocks.zip(addresses).zip(into) {
            *sum = self.seed.sum(address, block);
        }
    }

    /// Compares the bytes of the blocks of `range` with their checksums. Returns the blocks that differ.
    pub fn compare(&self, range: ByteRange, data: &Buf, stored: &[Sum]) -> Blocks {
        let bytes = data.read();
        let blocks = bytes.chunks_exact(BLOCK_BYTES as usize);
        let addresses = (range.start()..).step_by(BLOCK_BYTES as usize);
        let mut wrong = 0;
        for (n, ((block, address), stored)) in blocks.zip(addresses).zip(stored).enumerate() {
            wrong |= Blocks::from(!self.seed.fits(address, block, *stored)) << n;
        }
        wrong
    }

    /// Compares as [`Sums::compare`] does, with the checksums in the array, if these are in the cache.
    pub fn compare_cached(&self, range: ByteRange, data: &Buf) -> Option<Blocks> {
        let (first, count) = blocks_of(range);
        self.array.look_at(first, count, |stored| self.compare(range, data, stored))
    }

    /// Compares as [`Sums::compare`] does, with the checksums in the array.
    ///
    /// # Errors
    /// Errors of reading the vault.
    pub async fn compare_stored(&self, range: ByteRange, data: &Buf) -> Result<Blocks> {
        let (first, count) = blocks_of(range);
        let mut stored = [ZEROS; PIECE_BLOCKS];
        let stored = &mut stored[..count];
        self.get(first, stored).await?;
        Ok(self.compare(range, data, stored))
    }

    /// Loads the checksums of the blocks of `range` into the cache.
    ///
    /// # Errors
    /// Errors of reading the vault.
    pub async fn load(&self, range: ByteRange) -> Result<()> {
        let (first, count) = blocks_of(range);
        self.array.load(first, count).await
    }

    /// Posts the checksums of the blocks from `first` on.
    ///
    /// # Errors
    /// As [`Vault::post`].
    pub async fn post(&self, first: u64, sums: &[Sum]) -> Result<()> {
        let mut transaction = self.vault.begin();
        self.set(&mut transaction, first, sums)?;
        self.vault.post(transaction).await.map(drop)
    }

    /// Adds to a transaction the checksums of the blocks from `first` on.
    ///
    /// # Errors
    /// As [`Array::set_many`].
    pub fn set(&self, transaction: &mut Transaction, first: u64, sums: &[Sum]) -> Result<()> {
        self.array.set_many(transaction, first, sums)
    }

    /// Posts that `count` blocks from `first` on have zeros.
    ///
    /// # Errors
    /// As [`Vault::post`].
    pub async fn clear(&self, first: u64, count: u64) -> Result<()> {
        let mut transaction = self.vault.begin();
        self.zero(&mut transaction, first, count)?;
        self.vault.post(transaction).await.map(drop)
    }

    /// Adds to a transaction that `count` blocks from `first` on have zeros.
    ///
    /// # Errors
    /// As [`Array::clear`].
    pub fn zero(&self, transaction: &mut Transaction, first: u64, count: u64) -> Result<()> {
        self.array.clear(transaction, first, count)
    }
}
