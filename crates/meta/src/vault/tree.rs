//! Pages on demand: found through the map, verified, kept in the cache.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use block::{Error, ErrorKind, Notify, Result, ScopeGuard};

use super::cache::Cache;
use super::geometry::{Geometry, PageNumber};
use super::page::{MAP_OWNER, POINTERS_PER_PAGE, Page, Pointer};
use super::replicas::Replicas;

/// Most pages of a vault that are read at once.
pub(super) const READS_MAX: usize = 32;

/// Most pages that wait for a repair because a copy had them wrong.
const MEND_MAX: usize = 1024;

pub(super) struct Tree {
    geometry: Geometry,
    pub cache: RefCell<Cache>,
    /// Pointer to the root of the newest checkpoint, written or being written.
    root: Cell<Option<Pointer>>,
    /// Number of changes of the root.
    switches: Cell<u64>,
    loading: RefCell<BTreeSet<PageNumber>>,
    reads: Cell<usize>,
    waiting: Notify,
    /// Pages of objects that the next checkpoint writes even if they have not changed.
    mend: RefCell<BTreeSet<PageNumber>>,
}

impl Tree {
    pub fn new(geometry: Geometry, root: Option<Pointer>, cache_bytes: usize) -> Self {
        Self {
            geometry,
            cache: RefCell::new(Cache::new(cache_bytes)),
            root: Cell::new(root),
            switches: Cell::new(0),
            loading: RefCell::default(),
            reads: Cell::new(0),
            waiting: Notify::default(),
            mend: RefCell::default(),
        }
    }

    /// Loads page `number` of the vault into the cache. The page stays cached at least until the next await of the
    /// caller.
    ///
    /// # Errors
    /// `Corrupt` if no copy has the page that the map names; errors of the disks.
    pub async fn ensure(&self, from: &Replicas, number: PageNumber) -> Result<()> {
        loop {
            if self.cache.borrow_mut().get(number).is_some() {
                return Ok(());
            }
            if !self.loading.borrow_mut().insert(number) {
                self.waiting.until(|| !self.loading.borrow().contains(&number)).await;
                continue;
            }
            let _loading = ScopeGuard::new(|| {
                self.loading.borrow_mut().remove(&number);
                self.waiting.wake();
            });
            let before = self.switches.get();
            let fetched = self.fetch(from, number).await;
            // A page found through an older root may have been overwritten meanwhile, or a checkpoint may have cached
            // it.
            let is_here = self.cache.borrow().peek(number).is_some();
            if !is_here && self.switches.get() == before {
                self.cache.borrow_mut().insert(number, fetched?);
                return Ok(());
            }
        }
    }

    async fn fetch(&self, from: &Replicas, number: PageNumber) -> Result<Page> {
        let Some(pointer) = self.pointer(from, number).await? else {
            let owner = if self.is_map(number) { MAP_OWNER } else { super::entry::DIRECTORY };
            return Ok(Page::blank(owner, number));
        };
        self.waiting.until(|| self.reads.get() < READS_MAX).await;
        self.reads.set(self.reads.get() + 1);
        let _reading = ScopeGuard::new(|| {
            self.reads.set(self.reads.get() - 1);
            self.waiting.wake();
        });
        let (page, mend) = from.read_page(number, &pointer).await?;
        if self.is_map(number) && page.owner() != MAP_OWNER {
            let words = format!("page {number} of the vault is not a page of the map");
            return Err(Error::new(ErrorKind::Corrupt, words));
        }
        if mend {
            self.note_mend(number);
        }
        Ok(page)
    }

    fn is_map(&self, number: PageNumber) -> bool {
        number >= self.geometry.pages
    }

    /// Returns the pointer to page `number` in the vault's map of pages; `None` if the page was never written.
    ///
    /// # Errors
    /// As [`Tree::ensure`].
    pub async fn pointer(&self, from: &Replicas, number: PageNumber) -> Result<Option<Pointer>> {
        let Some((parent, place)) = self.geometry.parent(number) else {
            return Ok(self.root.get());
        };
        Box::pin(self.ensure(from, parent)).await?;
        Ok(self.cache.borrow().peek(parent).expect("the page was just loaded").pointer(place))
    }

    /// Schedules the repair of page `number`, which was damaged on a copy. Instead of a page of the vault's map,
    /// schedules a page of an object below it.
    pub fn note_mend(&self, number: PageNumber) {
        let mut page = number;
        let (mut first, mut level) = (self.geometry.pages, 1);
        if self.is_map(number) {
            // Finds the leftmost page of the lowest level below this map page.
            while number >= first + self.geometry.level_pages(level) {
                first += self.geometry.level_pages(level);
                level += 1;
            }
            page = (number - first) * POINTERS_PER_PAGE.pow(level as u32);
        }
        let mut mend = self.mend.borrow_mut();
        if mend.len() < MEND_MAX {
            mend.insert(page);
        }
    }

    /// Whether pages are scheduled for repair, because a copy had them damaged.
    pub fn has_to_mend(&self) -> bool {
        !self.mend.borrow().is_empty()
    }

    /// Marks scheduled pages as dirty, at most `most`, so that the next checkpoint rewrites them on all copies.
    ///
    /// # Errors
    /// As [`Tree::ensure`].
    pub async fn rewrite_damaged(&self, from: &Replicas, most: usize) -> Result<()> {
        for _ in 0..most {
            let Some(number) = self.mend.borrow_mut().pop_first() else { break };
            self.ensure(from, number).await?;
            self.cache.borrow_mut().change(number);
        }
        Ok(())
    }

    /// Makes `root` the root of the vault's map of pages. `written` are the new pages of the map, which are durable on
    /// the disks.
    pub fn switch(&self, root: Pointer, written: Vec<PageNumber>) {
        self.root.set(Some(root));
        self.switches.set(self.switches.get() + 1);
        self.cache.borrow_mut().thaw(written);
    }
}
