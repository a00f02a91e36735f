//! The vault with the objects of a device, as a store of [`super::Opening`].

use std::cell::Cell;

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{Env, Error, ErrorKind, Lower, Reason, Result, error};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::objects::{OBJECTS_MAX, Objects};
use super::opening::{Access, Store};
use super::record::Record;
use crate::Uuid;
use crate::alloc::{Allocator, Policy};
use crate::journal::Journal;
use crate::vault::{Array, ObjectId, Options, Shape, Spec, Vault};

/// A function that returns a kind's handles to its objects.
pub type Build<T> = Box<dyn Fn(Opened) -> LocalFuture<Result<T>>>;

/// A function that ends the work of a kind on its objects.
pub type Finish<T> = Box<dyn Fn(&T) -> LocalFuture<()>>;

/// The vault of a device, and the function that returns the kind's handles to its objects.
pub struct VaultStore<T> {
    pub env: Env,
    pub kind: &'static str,
    pub objects: Objects,
    /// Handle to the bytes of the vault.
    pub store: Lower,
    /// Handle to the bytes of the journal, if the kind has one.
    pub journal: Option<Lower>,
    /// Handle to the data of the device, which transactions may name.
    pub data: Lower,
    pub read_only: bool,
    /// Whether the device keeps its bytes if its vault is made anew.
    pub keeps_data: bool,
    /// Whether the operator permits the loss of durable data.
    pub accepts_loss: bool,
    pub build: Build<T>,
    /// Whether the last opening found the vault missing or damaged. Errors of the kind do not count: they may be about other
    /// objects, such as its journal.
    pub is_lost: Cell<bool>,
    /// Ends the work of the kind on its objects, before the vault is closed.
    pub finish: Finish<T>,
}

/// An open vault with the objects of a kind, by the numbers of their declarations.
pub struct Opened {
    /// The vault.
    pub vault: Vault,
    /// Handle to the bytes of the journal, if the kind has one. The journal begins at byte 0 and has the UUID of the vault;
    /// the kind opens it.
    pub journal: Option<Lower>,
    /// Whether the vault is only open for reading until a live change is committed. The kind only reads then; it is
    /// called again afterwards.
    pub is_preview: bool,
    /// Whether the operator permits the loss of durable data ([`block::StateStore::accepts_loss`]).
    pub accepts_loss: bool,
    kind: &'static str,
}

impl Opened {
    /// Returns the owner of the objects: the name of the kind.
    pub fn owner(&self) -> &'static str {
        self.kind
    }

    /// Returns the array with this number.
    ///
    /// # Errors
    /// `Corrupt` if the vault does not have the object.
    pub fn array<T: FromBytes + IntoBytes + Immutable>(&self, role: u32) -> Result<Array<T>> {
        Ok(Array::new(&self.vault, find(&self.vault, self.kind, role)?))
    }

    /// Returns the allocator with the array of this number as its map, and with the object behind it as its bitmap.
    pub fn allocator(&self, role: u32, policy: Policy) -> Result<Allocator> {
        Allocator::open(&self.vault, self.kind, role, policy)
    }
}

/// Returns the object of the kind `kind` with the number `role`.
fn find(vault: &Vault, kind: &str, role: u32) -> Result<ObjectId> {
    let found = vault.find(kind, role);
    found.ok_or_else(|| error!(Corrupt, "the vault has no object {role} of a {kind}"))
}

impl<T: 'static> VaultStore<T> {
    async fn vault(&self, record: &Record, access: Access) -> Result<Vault> {
        let options = Options {
            cache_bytes: self.objects.cache_bytes,
            read_only: self.read_only || access == Access::ReadOnly,
            may_degrade: false,
            vault: record.vault.filter(|_| !seeded::on(Bug::StoreOfOther)),
            bytes: Some(record.room_bytes() - record.journal_bytes),
        };
        let copies = vec![Some(self.store.clone())];
        Vault::open_with_data(&self.env, copies, self.data.clone(), &options).await
    }

    fn specs(&self) -> impl Iterator<Item = Spec> {
        let owned = |object: &Spec| Spec { owner: self.kind.to_owned(), ..object.clone() };
        self.objects.list.iter().map(owned)
    }

    /// Makes objects as long as the kind declares them, which is longer after the lower has grown.
    async fn grow(&self, vault: &Vault) -> Result<()> {
        let mut transaction = vault.begin();
        for spec in self.specs() {
            let id = find(vault, self.kind, spec.role)?;
            if vault.object(id)?.length < spec.length {
                transaction.grow(id, spec.length)?;
            }
        }
        if transaction.is_empty() { Ok(()) } else { vault.commit(transaction).await }
    }
}

impl<T: 'static> Store for VaultStore<T> {
    type Open = (Vault, T);

    async fn make(&self, record: &Record) -> Result<Uuid> {
        let shape = Shape {
            log_bytes: Some(self.objects.log_bytes(record.lower_bytes)),
            objects: OBJECTS_MAX,
            bytes: Some(record.room_bytes() - record.journal_bytes),
        };
        let made = Vault::format(&self.env, std::slice::from_ref(&self.store), shape).await?;
        if let (Some(journal), Some(bytes)) = (&self.journal, self.objects.ring_bytes) {
            Journal::format(&self.env, journal, 0, made, bytes, 1).await?;
            journal.flush().await?;
        }
        let record = Record { vault: Some(made), ..record.clone() };
        let vault = self.vault(&record, Access::Full).await?;
        let mut transaction = vault.begin();
        for spec in self.specs() {
            transaction.create(&spec)?;
        }
        vault.commit(transaction).await?;
        vault.close().await?;
        Ok(made)
    }

    async fn open(&self, record: &Record, access: Access) -> Result<Self::Open> {
        let opened = self.vault(record, access).await;
        let kind = opened.as_ref().err().map(Error::kind);
        let is_lost = [ErrorKind::NotFound, ErrorKind::Invalid, ErrorKind::Corrupt];
        self.is_lost.set(kind.is_some_and(|kind| is_lost.contains(&kind)));
        let opened = opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::Invalid => {
                let words = format!(
                    "the vault of the {} is missing on {}, although the labels record it ({})",
                    self.kind,
                    self.store.name(),
                    error.message()
                );
                let lost = match error.kind() {
                    ErrorKind::Invalid => Error::because(Reason::StateForeign, words),
                    _ => Error::new(ErrorKind::Corrupt, words),
                };
                lost.next(match self.keeps_data {
                    false => "bring back the disk with the vault",
                    true => {
                        "bring back the disk with the vault; or start with --accept-loss, which \
                         makes a new vault and keeps the data"
                    }
                })
            }
            _ => error,
        })?;
        if access == Access::Full && !self.read_only {
            self.grow(&opened).await?;
        }
        let (vault, journal) = (opened.clone(), self.journal.clone());
        let is_preview = access == Access::ReadOnly;
        let (accepts_loss, kind) = (self.accepts_loss, self.kind);
        let parts = Opened { vault, journal, is_preview, accepts_loss, kind };
        match (self.build)(parts).await {
            Ok(objects) => Ok((opened, objects)),
            Err(error) => {
                if error.kind() == ErrorKind::Corrupt && accepts_loss {
                    let found = opened.check().await;
                    self.is_lost.set(found.is_ok_and(|found| !found.repairable));
                }
                // The graph may go on without the device, and the vault may be opened again.
                if !is_preview && !self.read_only {
                    let _ = opened.close().await;
                }
                Err(error)
            }
        }
    }

    fn may_replace(&self, error: &Error) -> bool {
        let is_lost = self.is_lost.get() || seeded::on(Bug::StoreReplacedForKind);
        is_lost && error.kind() == ErrorKind::Corrupt && self.keeps_data && self.accepts_loss
    }

    async fn close(&self, (vault, objects): &Self::Open) {
        (self.finish)(objects).await;
        // Pages that could not be written are in the log.
        let _ = vault.clone().close().await;
    }

    fn failure(&self, (vault, _): &Self::Open) -> Option<Error> {
        vault.failure()
    }
}
