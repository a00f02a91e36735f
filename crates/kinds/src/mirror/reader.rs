//! The store that the labels of a mirror name, for reading: its maps at the opening, and the check of its copies.

use std::rc::Rc;

use block::control::state::Checked;
use block::env::LocalFuture;
use block::{Env, Error, Health, Lower, Result, bail};
use meta::Uuid;
use meta::vault::{self, CopyOwner, CopyState, Findings, Vault};

use super::device::Inner;
use super::regions::{Bitmap, Regions};
use super::store::{DIRTY, MISSING, StoredMaps, find, options};

/// The copies of a store that count at the opening of a mirror. Nothing is written to them.
pub struct Reader {
    pub env: Env,
    /// UUID of the store.
    pub vault: Uuid,
    /// Division of the mirror into the regions of the maps.
    pub regions: Regions,
    /// Names of the members, in the order of the copies.
    pub names: Vec<String>,
    /// For each copy, the room on its member, if the copy counts.
    pub lowers: Vec<Option<Lower>>,
    /// The copies that do not count, of members that took writes all the same.
    pub others: Vec<(usize, Lower)>,
}

/// The copies that count, as a bitmap.
struct Counting(u32);

impl CopyOwner for Counting {
    fn counts(&self, copy: usize) -> bool {
        self.0 >> copy & 1 == 1
    }

    fn leave(&self, _: usize, _: Option<Error>) -> LocalFuture<Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Reader {
    /// Opens the store on the copies `copies`, each of which counts.
    async fn open(&self, copies: impl Iterator<Item = usize>) -> Result<Vault> {
        let counting = Counting(copies.fold(0, |all, copy| all | 1 << copy));
        let options = options(self.vault, true);
        Vault::open_owned(&self.env, self.lowers.clone(), Rc::new(counting), &options).await
    }

    /// Returns the copies that count.
    fn counting(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.lowers.len()).filter(|copy| self.lowers[*copy].is_some())
    }

    /// Returns the maps in the store.
    ///
    /// # Errors
    /// Errors of the vault; `Corrupt` if it has no maps for the regions.
    pub async fn maps(&self) -> Result<StoredMaps> {
        let (vault, regions) = (self.open(self.counting()).await?, self.regions);
        let dirty = find(&vault, DIRTY)?;
        let (missing, count) = (find(&vault, MISSING)?, regions.count() as u64);
        let capacity = dirty.bits()?;
        if capacity < count || missing.bits()? < capacity * self.names.len() as u64 {
            bail!(Corrupt, "the store has bits for {capacity} regions; the mirror has {count}");
        }
        let mut maps = Vec::new();
        for (n, name) in self.names.iter().enumerate() {
            let map = bits(&missing, n as u64 * capacity, regions.count()).await?;
            maps.push((name.clone(), map));
        }
        let (active, newest) = (bits(&dirty, 0, regions.count()).await?, self.newest(&vault).await);
        Ok(StoredMaps { regions, active, missing: maps, newest })
    }

    /// Returns [`StoredMaps::newest`]. A copy that cannot be read proves nothing.
    async fn newest(&self, vault: &Vault) -> Vec<(String, Option<u64>)> {
        let is_read = |copy: &usize| vault.copy_state(*copy).0 == CopyState::Current;
        let read = self.counting().filter(is_read);
        let mut newest: Vec<_> = read.map(|copy| (copy, vault.newest_record(copy))).collect();
        for (copy, lower) in &self.others {
            let found = vault::newest_record(&self.env, lower, self.vault).await;
            newest.extend(found.unwrap_or_default().map(|record| (*copy, record)));
        }
        let is_whole = |record: &u64| *record >= vault.found_flushed();
        let named = |(copy, record): (usize, u64)| {
            (self.names[copy].clone(), Some(record).filter(is_whole))
        };
        newest.into_iter().map(named).collect()
    }

    /// Checks all pages of the copies that count. No damage loses data: the next start makes a new store, and copies the
    /// members if the maps cannot be read.
    async fn check(&self) -> Checked {
        let vault = match self.open(self.counting()).await {
            Ok(vault) => vault,
            Err(error) => return checked(0, vec![lost(&error)]),
        };
        let findings = match vault.check().await {
            Ok(findings) => findings,
            Err(error) => return checked(0, vec![lost(&error)]),
        };
        let mut wrong = findings.wrong;
        for copy in self.counting() {
            if vault.copy_state(copy).0 != CopyState::Current {
                let why = self.open([copy].into_iter()).await.err();
                let why = why.map_or("it is older".to_owned(), |error| error.to_string());
                wrong.push(format!(
                    "the store of the bitmaps on {} is lost: {why}",
                    self.names[copy]
                ));
            }
        }
        wrong.iter_mut().for_each(|words| *words += "; the next start makes a new store");
        if let Err(error) = self.maps().await {
            wrong.push(lost(&error));
        }
        checked(findings.pages, wrong)
    }
}

/// Describes the loss of all copies of a store.
fn lost(error: &Error) -> String {
    format!("the store of the bitmaps cannot be read, so the next start copies members: {error}")
}

/// Returns the answer to a check that found the damage `wrong`, which the next start repairs.
fn checked(pages: u64, wrong: Vec<String>) -> Checked {
    let health = if wrong.is_empty() { Health::Ok } else { Health::Degraded };
    Checked { health, summary: format!("{pages} pages of the store"), wrong }
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

impl Inner {
    /// Checks the store with the maps of the mirror, without changing it.
    ///
    /// # Errors
    /// Errors of the members, if the mirror has the store open for writing.
    pub async fn check(&self) -> Result<Checked> {
        let open = self.writer.as_ref().and_then(|writer| writer.maps.store());
        match (open, &self.stored) {
            (Some(store), _) => {
                let Findings { pages, wrong, .. } = store.check().await?;
                Ok(checked(pages, wrong))
            }
            (None, Some(stored)) => Ok(stored.check().await),
            (None, None) => Ok(checked(0, Vec::new())),
        }
    }
}
