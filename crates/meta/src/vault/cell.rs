//! Cell objects of a vault: a small state, which is read and written as one value.

use std::marker::PhantomData;

use block::{Result, bail};

use super::entry::ObjectKind;
use super::record::Verb;
use super::{ObjectId, Spec, Transaction, Vault};

/// Length in bytes of the header of a cell object, before the state. The header is the length of the state.
pub(super) const CELL_HEADER_BYTES: u64 = 4;

/// Encoding of the state in a cell object.
pub trait Codec: Sized {
    /// Returns the encoded state.
    fn encode(&self) -> Vec<u8>;

    /// Decodes a state. `bytes` is empty if no state was ever set.
    ///
    /// # Errors
    /// `Corrupt` for bytes that [`Codec::encode`] cannot have returned, or another error of the implementation.
    fn decode(bytes: &[u8]) -> Result<Self>;
}

/// A cell object of a vault: a small state of type `T`, which is read and written as one value.
pub struct Cell<T> {
    vault: Vault,
    id: ObjectId,
    of: PhantomData<T>,
}

impl Spec {
    /// Returns the properties of a cell object for a state of at most `bytes` encoded bytes.
    pub fn cell(owner: &str, role: u32, bytes: u64) -> Self {
        let (kind, owner) = (ObjectKind::Cell, owner.to_owned());
        Self { owner, role, kind, advisory: false, record_bytes: 0, length: bytes }
    }

    /// Marks the new object as advisory: a crash may undo the latest changes of the object.
    #[must_use]
    pub fn advisory(self) -> Self {
        Self { advisory: true, ..self }
    }
}

impl<T: Codec> Cell<T> {
    /// Returns a handle to the cell object with this id.
    pub fn new(vault: &Vault, id: ObjectId) -> Self {
        Self { vault: vault.clone(), id, of: PhantomData }
    }

    /// Reads the state from the cell.
    ///
    /// # Errors
    /// `NotFound`, errors of reads, and errors of [`Codec::decode`].
    pub async fn get(&self) -> Result<T> {
        let entry = super::transaction::of_kind(self.vault.object(self.id)?, ObjectKind::Cell)?;
        let mut length = [0; CELL_HEADER_BYTES as usize];
        self.vault.0.read(&entry, 0, &mut length).await?;
        let length = u32::from_le_bytes(length);
        if u64::from(length) > entry.length {
            bail!(Corrupt, "{entry} has a state of {length} bytes; {} fit", entry.length);
        }
        let mut bytes = vec![0; length as usize];
        self.vault.0.read(&entry, CELL_HEADER_BYTES, &mut bytes).await?;
        T::decode(&bytes)
    }

    /// Adds to the transaction that the cell gets the state `state`.
    ///
    /// # Errors
    /// `Limit` if the encoded state is longer than the cell.
    pub fn set(&self, transaction: &mut Transaction, state: &T) -> Result<()> {
        let entry = transaction.expect(self.id, ObjectKind::Cell)?;
        let bytes = state.encode();
        if bytes.len() as u64 > entry.length {
            bail!(Limit, "a state of {} bytes for {entry}; {} fit", bytes.len(), entry.length);
        }
        let mut whole = (bytes.len() as u32).to_le_bytes().to_vec();
        whole.extend_from_slice(&bytes);
        transaction.change(self.id.0, 0, Verb::Write(&whole));
        Ok(())
    }
}
