//! Loads pages of a vault on demand: finds them through the map of pages, verifies them, and puts them into the cache.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use block::{Notify, Result, ScopeGuard, bail};

use super::cache::Cache;
use super::number::{self, PageNumber};
use super::page::{MAP_OWNER, Page, Pointer};
use super::replicas::Replicas;

/// Maximum number of pages of a vault that are read at one time.
pub(super) const READS_MAX: usize = 32;

/// Maximum number of pages that can be scheduled for repair at one time.
const MEND_MAX: usize = 1024;

pub(super) struct Tree {
    pub cache: RefCell<Cache>,
    /// Pointer to the root of the map of pages, as the newest checkpoint wrote it.
    root: Cell<Option<Pointer>>,
    /// Number of times that a checkpoint replaced the root of the map.
    switches: Cell<u64>,
    loading: RefCell<BTreeSet<PageNumber>>,
    reads: Cell<usize>,
    waiting: Notify,
    /// Pages of objects that were damaged on a copy of the vault. The next checkpoint writes these pages even if
    /// unchanged.
    mend: RefCell<BTreeSet<PageNumber>>,
}

impl Tree {
    pub fn new(root: Option<Pointer>, cache_bytes: usize) -> Self {
        Self {
            cache: RefCell::new(Cache::new(cache_bytes)),
            root: Cell::new(root),
            switches: Cell::new(0),
            loading: RefCell::default(),
            reads: Cell::new(0),
            waiting: Notify::default(),
            mend: RefCell::default(),
        }
    }

    /// Loads page `number` of the vault into the cache, unless the cache has it. The page stays in the cache at least
    /// until the caller awaits again.
    ///
    /// # Errors
    /// `Corrupt` if no copy has the version of the page to which the map points; errors of the disks.
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
            // If a checkpoint replaced the root meanwhile, the page that was read may be an overwritten one. A
            // checkpoint may also have put the page into the cache.
            let is_here = self.cache.borrow().peek(number).is_some();
            if !is_here && self.switches.get() == before {
                self.cache.borrow_mut().insert(number, fetched?);
                return Ok(());
            }
        }
    }

    async fn fetch(&self, from: &Replicas, number: PageNumber) -> Result<Page> {
        let Some(pointer) = self.pointer(from, number).await? else {
            let owner = if is_map(number) { MAP_OWNER } else { super::entry::DIRECTORY };
            return Ok(Page::blank(owner, number));
        };
        self.waiting.until(|| self.reads.get() < READS_MAX).await;
        self.reads.set(self.reads.get() + 1);
        let _reading = ScopeGuard::new(|| {
            self.reads.set(self.reads.get() - 1);
            self.waiting.wake();
        });
        let (page, mend) = from.read_page(number, &pointer).await?;
        if is_map(number) && page.owner() != MAP_OWNER {
            bail!(Corrupt, "{} of the vault belongs to an object", number::describe(number));
        }
        if mend {
            self.note_mend(number);
        }
        Ok(page)
    }

    /// Returns the pointer to page `number` in the map of pages; `None` if the page was never written.
    ///
    /// # Errors
    /// As [`Tree::ensure`].
    pub async fn pointer(&self, from: &Replicas, number: PageNumber) -> Result<Option<Pointer>> {
        let Some((parent, place)) = from.geometry().parent(number) else {
            return Ok(self.root.get());
        };
        Box::pin(self.ensure(from, parent)).await?;
        Ok(self.cache.borrow().peek(parent).expect("the page was just loaded").pointer(place))
    }

    /// Schedules the repair of page `number`, which was damaged on a copy of the vault. For a page of the map of pages,
    /// schedules a page of an object below it, whose rewrite also rewrites the map page.
    pub fn note_mend(&self, number: PageNumber) {
        // The leftmost pointers below a map page lead to this page of an object.
        let page = number::index(number) * number::covered(number::level(number));
        let mut mend = self.mend.borrow_mut();
        if mend.len() < MEND_MAX {
            mend.insert(page);
        }
    }

    /// Whether pages are scheduled for repair.
    pub fn has_to_mend(&self) -> bool {
        !self.mend.borrow().is_empty()
    }

    /// Marks at most `most` of the pages scheduled for repair as dirty, so that the next checkpoint rewrites these
    /// pages on all copies of the vault.
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

    /// Makes `root` the root of the map of pages. `written` are the numbers of the new map pages, which are durable on
    /// the copies of the vault.
    pub fn switch(&self, root: Pointer, written: Vec<PageNumber>) {
        self.root.set(Some(root));
        self.switches.set(self.switches.get() + 1);
        self.cache.borrow_mut().thaw(written);
    }
}

/// Whether page `number` is a page of the map of pages.
pub(super) fn is_map(number: PageNumber) -> bool {
    number::level(number) > 0
}
