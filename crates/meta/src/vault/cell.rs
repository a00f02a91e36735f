//! A small state, read and written as a whole.

use std::marker::PhantomData;

use block::{Error, ErrorKind, Result};

use super::entry::ObjectKind;
use super::{ObjectId, Spec, Transaction, Vault};

/// Bytes before the state: its length.
pub(super) const CELL_HEADER_BYTES: u64 = 4;

/// The bytes of a state.
pub trait Codec: Sized {
    /// Its bytes.
    fn encode(&self) -> Vec<u8>;

    /// What the bytes say; none at all if nothing was ever put there.
    ///
    /// # Errors
    /// `Corrupt`, or whatever is true of bytes that were not written by this code.
    fn decode(bytes: &[u8]) -> Result<Self>;
}

/// A small state of type `T`.
pub struct Cell<T> {
    vault: Vault,
    id: ObjectId,
    of: PhantomData<T>,
}

impl Spec {
    /// A cell of at most `bytes`.
    pub fn cell(owner: &str, role: u32, bytes: u64) -> Self {
        let (kind, owner) = (ObjectKind::Cell, owner.to_owned());
        Self { owner, role, kind, advisory: false, record_bytes: 0, length: bytes }
    }

    /// The same, for changes that may be lost for a while.
    #[must_use]
    pub fn advisory(self) -> Self {
        Self { advisory: true, ..self }
    }
}

impl<T: Codec> Cell<T> {
    /// The cell of that number.
    pub fn new(vault: &Vault, id: ObjectId) -> Self {
        Self { vault: vault.clone(), id, of: PhantomData }
    }

    /// What it holds.
    ///
    /// # Errors
    /// `NotFound`, what reading says, and what the codec says.
    pub async fn get(&self) -> Result<T> {
        let entry = super::transaction::of_kind(self.vault.object(self.id)?, ObjectKind::Cell)?;
        let mut length = [0; CELL_HEADER_BYTES as usize];
        self.vault.0.read(&entry, 0, &mut length).await?;
        let length = u32::from_le_bytes(length);
        if u64::from(length) > entry.length {
            let words = format!("{entry} claims to hold {length} bytes of {}", entry.length);
            return Err(Error::new(ErrorKind::Corrupt, words));
        }
        let mut bytes = vec![0; length as usize];
        self.vault.0.read(&entry, CELL_HEADER_BYTES, &mut bytes).await?;
        T::decode(&bytes)
    }

    /// Puts a state there.
    ///
    /// # Errors
    /// `Limit` if it is longer than the cell.
    pub fn set(&self, transaction: &mut Transaction, state: &T) -> Result<()> {
        let entry = transaction.expect(self.id, ObjectKind::Cell)?;
        let bytes = state.encode();
        if bytes.len() as u64 > entry.length {
            let words = format!("{} bytes for {entry}, which takes {}", bytes.len(), entry.length);
            return Err(Error::new(ErrorKind::Limit, words));
        }
        let mut whole = (bytes.len() as u32).to_le_bytes().to_vec();
        whole.extend_from_slice(&bytes);
        transaction.write(self.id.0, 0, &whole);
        Ok(())
    }
}
