//! The store of a mirror's maps: a vault with a copy in the room of each member, with the dirty regions and the regions that
//! each member misses.

use std::cell::RefCell;
use std::rc::Rc;

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{Env, Error, Lower, Result, bail, error};
use meta::Uuid;
use meta::regions::parts;
use meta::vault::{self, CopyOwner, CopyState, Options, Shape, Spec, Vault};

use super::MEMBERS_MAX;
use super::regions::{Bitmap, Regions};
use super::room::{StoreSizes, cache_bytes};

/// Owner of the objects of the store.
const OWNER: &str = "mirror";

/// Roles of the objects: the bitmap of dirty regions, and the bitmaps of the regions that each member misses, in order.
const DIRTY: u32 = 0;
const MISSING: u32 = 1;

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

/// The copies of a store that count at the opening of a mirror.
struct Counting(u32);

impl CopyOwner for Counting {
    fn counts(&self, copy: usize) -> bool {
        self.0 >> copy & 1 == 1
    }

    fn leave(&self, _: usize, _: Option<Error>) -> LocalFuture<Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Returns the options with which a store is opened.
fn options(vault: Uuid, read_only: bool) -> Options {
    let vault = Some(vault);
    Options { cache_bytes: cache_bytes(), read_only, may_degrade: true, vault, bytes: None }
}

/// Reads the maps of the store `vault`. Its copy n is in `lowers[n]` if it counts; `others` are copies that do not count, of
/// members that took writes. Writes nothing. The bitmaps are for a mirror with `regions`; `names` are the names of its members.
///
/// # Errors
/// Errors of the vault; `Corrupt` if it has no maps for these regions.
pub async fn read(
    env: &Env,
    vault: Uuid,
    lowers: Vec<Option<Lower>>,
    others: Vec<(usize, Lower)>,
    regions: Regions,
    names: &[String],
) -> Result<StoredMaps> {
    let counting = lowers.iter().enumerate().filter(|(_, lower)| lower.is_some());
    let counting: Vec<usize> = counting.map(|(copy, _)| copy).collect();
    let owner = Rc::new(Counting(counting.iter().fold(0, |all, copy| all | 1 << copy)));
    let vault = Vault::open_owned(env, lowers, owner, &options(vault, true)).await?;
    // A copy that cannot be read proves nothing.
    let is_read = |copy: &usize| vault.copy_state(*copy).0 == CopyState::Current;
    let read = counting.into_iter().filter(is_read);
    let mut newest: Vec<_> = read.map(|copy| (copy, vault.newest_record(copy))).collect();
    for (copy, lower) in others {
        let found = vault::newest_record(env, &lower, vault.uuid()).await.unwrap_or_default();
        newest.extend(found.map(|record| (copy, record)));
    }
    let is_whole = |record: &u64| *record >= vault.found_flushed();
    let newest = newest.into_iter();
    let newest = newest.map(|(copy, record)| (names[copy].clone(), Some(record).filter(is_whole)));
    let newest = newest.collect();
    let dirty = find(&vault, DIRTY)?;
    let (missing, count) = (find(&vault, MISSING)?, regions.count() as u64);
    let capacity = dirty.bits()?;
    if capacity < count || missing.bits()? < capacity * names.len() as u64 {
        bail!(Corrupt, "the store has bits for {capacity} regions; the mirror has {count}");
    }
    let mut maps = Vec::new();
    for (n, name) in names.iter().enumerate() {
        maps.push((name.clone(), bits(&missing, n as u64 * capacity, regions.count()).await?));
    }
    let active = bits(&dirty, 0, regions.count()).await?;
    Ok(StoredMaps { regions, active, missing: maps, newest })
}

fn find(vault: &Vault, role: u32) -> Result<vault::Bitmap> {
    let id = vault.find(OWNER, role);
    let id = id.ok_or_else(|| error!(Corrupt, "the mirror's store has no object {role}"))?;
    Ok(vault::Bitmap::new(vault, id))
}

/// Reads the bits of `count` regions from bit `first` on.
async fn bits(bitmap: &vault::Bitmap, first: u64, count: usize) -> Result<Bitmap> {
    let (mut map, end) = (Bitmap::none(count), first + count as u64);
    let mut from = first;
    while let Some((start, run)) = bitmap.find_set(from).await?.filter(|(start, _)| *start < end) {
        from = start + run;
        (start..from.min(end)).for_each(|bit| map.insert((bit - first) as usize));
    }
    Ok(map)
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

    /// Leaves the copy of member `port` behind. The labels record already that the member is not in sync.
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
