//! The store of a mirror's maps: a vault with a copy in the room of each member, with the dirty regions and the regions that
//! each member misses.

use std::cell::RefCell;
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Env, Lower, Result, error};
use meta::Uuid;
use meta::regions::parts;
use meta::vault::{self, CopyOwner, CopyState, Findings, Options, Shape, Spec, Vault};

use super::MEMBERS_MAX;
use super::regions::{Bitmap, Regions};
use super::room::{StoreSizes, cache_bytes};

/// Owner of the objects of the store.
const OWNER: &str = "mirror";

/// Role of the bitmap of dirty regions.
pub const DIRTY: u32 = 0;

/// Role of the bitmap with the regions that each member misses, in the order of the members.
pub const MISSING: u32 = 1;

/// Number of objects for which the store has room.
const OBJECTS: u32 = 2;

/// The open store of a running mirror.
pub struct Store {
    vault: Vault,
    dirty: vault::Bitmap,
    missing: vault::Bitmap,
    capacity: u64,
    /// The regions that each member misses, as the store has them.
    recorded: RefCell<Vec<Bitmap>>,
}

/// The maps that a store had at the opening of the mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredMaps {
    /// Division of the mirror into regions.
    pub regions: Regions,
    /// Bitmap of the dirty regions of the mirror.
    pub active: Bitmap,
    /// By name of the member, the regions that it misses.
    pub missing: Vec<(String, Bitmap)>,
    /// By name of each member that took writes, the newest record of its copy; `None` if the copy lacks flushed records.
    pub newest: Vec<(String, Option<u64>)>,
}

/// Returns the options with which a store is opened.
pub fn options(vault: Uuid, read_only: bool) -> Options {
    let vault = Some(vault);
    Options { cache_bytes: cache_bytes(), read_only, may_degrade: true, vault, bytes: None }
}

/// Returns the object with the role `role` of a store.
///
/// # Errors
/// `Corrupt` if the store has no such object.
pub fn find(vault: &Vault, role: u32) -> Result<vault::Bitmap> {
    let id = vault.find(OWNER, role);
    let id = id.ok_or_else(|| error!(Corrupt, "the mirror's store has no object {role}"))?;
    Ok(vault::Bitmap::new(vault, id))
}

impl Store {
    /// Makes a store with empty maps and with a copy on each lower in `made`. `lowers` are the lowers of all present members;
    /// [`Store::rejoin`] makes the other copies later.
    ///
    /// # Errors
    /// Errors of the members.
    pub async fn make(
        env: &Env,
        made: Vec<Option<Lower>>,
        lowers: Vec<Option<Lower>>,
        owner: Rc<dyn CopyOwner>,
        sizes: StoreSizes,
        regions: &Regions,
    ) -> Result<Self> {
        let shape = Shape {
            log_bytes: Some(sizes.log_bytes()),
            objects: OBJECTS,
            bytes: Some(sizes.bytes()),
        };
        let uuid = Vault::format_some(env, &made, shape).await?;
        let recorded = vec![Bitmap::none(regions.count()); lowers.len()];
        let vault = Vault::open_owned(env, lowers, owner, &options(uuid, false)).await?;
        let (capacity, mut transaction) = (sizes.capacity(), vault.begin());
        let members = MEMBERS_MAX as u64;
        transaction.create(&Spec::bitmap(OWNER, DIRTY, capacity))?;
        transaction.create(&Spec::bitmap(OWNER, MISSING, capacity * members))?;
        vault.commit(transaction).await?;
        let (dirty, missing) = (find(&vault, DIRTY)?, find(&vault, MISSING)?);
        Ok(Self { vault, dirty, missing, capacity, recorded: RefCell::new(recorded) })
    }

    /// Returns the UUID of the store.
    pub fn uuid(&self) -> Uuid {
        self.vault.uuid()
    }

    /// Records durably that `regions`, which are in order, are dirty.
    ///
    /// # Errors
    /// Errors of the vault.
    pub async fn mark(&self, regions: &[u64]) -> Result<()> {
        self.put(&self.dirty, regions, true).await?;
        self.vault.sync().await
    }

    /// Records that `regions`, which are in order, are not dirty; before that, the regions that members miss. A power cut may
    /// undo it, or the first part of it.
    ///
    /// # Errors
    /// Errors of the vault.
    pub async fn clear(&self, regions: &[u64], missing: &[Bitmap]) -> Result<()> {
        if !seeded::on(Bug::ClearedUnmissed) {
            self.miss(missing).await?;
        }
        self.put(&self.dirty, regions, false).await
    }

    /// Records the regions that each member misses. A power cut may undo it.
    ///
    /// # Errors
    /// Errors of the vault.
    pub async fn miss(&self, missing: &[Bitmap]) -> Result<()> {
        for (n, map) in missing.iter().enumerate() {
            let first = n as u64 * self.capacity;
            let had = self.recorded.borrow()[n].clone();
            if had == *map {
                continue;
            }
            for (one, other, value) in [(map, &had, true), (&had, map, false)] {
                let mut changed = one.clone();
                changed.subtract(other);
                let changed: Vec<_> = changed.iter().map(|at| first + at as u64).collect();
                self.put(&self.missing, &changed, value).await?;
            }
            self.recorded.borrow_mut()[n] = map.clone();
        }
        Ok(())
    }

    /// Posts that the bits `bits`, which are in order, get `value`.
    async fn put(&self, bitmap: &vault::Bitmap, bits: &[u64], value: bool) -> Result<()> {
        for part in parts(bits) {
            let mut transaction = self.vault.begin();
            for run in part.chunk_by(|one, next| one + 1 == *next) {
                bitmap.put(&mut transaction, run[0], run.len() as u64, value)?;
            }
            self.vault.post(transaction).await?;
        }
        Ok(())
    }

    /// Makes all changes durable that were recorded before.
    ///
    /// # Errors
    /// Errors of the vault.
    pub async fn sync(&self) -> Result<()> {
        self.vault.sync().await
    }

    /// Whether the copy of member `port` has every durable change.
    pub fn is_current(&self, port: usize) -> bool {
        self.vault.copy_state(port).0 == CopyState::Current
    }

    /// Leaves the copy of member `port` behind, with the error `Stopped`. The labels record already that the member is not in
    /// sync.
    pub fn leave(&self, port: usize) {
        self.vault.leave(port, &error!(Stopped, "the member is not in sync"));
    }

    /// Makes the copy of member `port` current.
    ///
    /// # Errors
    /// As [`Vault::rejoin`].
    pub async fn rejoin(&self, port: usize) -> Result<()> {
        self.vault.rejoin(port).await
    }

    /// Checks all pages of the store, on each current copy.
    ///
    /// # Errors
    /// As [`Vault::check`].
    pub async fn check(&self) -> Result<Findings> {
        self.vault.check().await
    }

    /// Whether the store takes no changes any more.
    pub fn is_closed(&self) -> bool {
        self.vault.failure().is_some()
    }

    /// Ends all writes of the store. Afterwards it takes no changes.
    pub async fn close(&self) {
        // Pages that could not be written are in the log.
        let _ = self.vault.clone().close().await;
    }
}
