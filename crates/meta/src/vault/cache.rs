//! Page cache of a vault, with a limited number of pages.
//!
//! A changed page stays in the cache until a checkpoint has written it. Eviction prefers pages that were not used
//! recently.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::number::PageNumber;
use super::page::{PAGE_BYTES, Page};

/// Smallest size in bytes of the page cache of a vault.
pub const CACHE_BYTES_MIN: usize = 40 * PAGE_BYTES;

/// Share of the vault's page cache for second versions of pages, which change while a checkpoint writes them to the
/// disks: one page in this many.
const COPIES_PART: usize = 5;

/// Share of the cached pages that may be dirty (changed since the last checkpoint): one page in this many.
const DIRTY_PART: usize = 3;

struct Frame {
    number: PageNumber,
    page: Rc<Page>,
    /// Number of transactions in progress that will change the page.
    pins: u32,
    dirty: bool,
    /// Whether a checkpoint is writing the version of the page that was current when the checkpoint began.
    frozen: bool,
    /// Whether the page was used since the last search for a page to evict passed the page.
    seen: bool,
}

impl Frame {
    fn may_go(&self) -> bool {
        self.pins == 0 && !self.dirty && !self.frozen
    }
}

pub(super) struct Cache {
    frames: Vec<Frame>,
    places: BTreeMap<PageNumber, usize>,
    dirty: BTreeSet<PageNumber>,
    hand: usize,
    frames_max: usize,
    /// Highest number of pages that the cache has held at one time.
    pub peak: usize,
}

impl Cache {
    pub fn new(bytes: usize) -> Self {
        let pages = bytes.max(CACHE_BYTES_MIN) / PAGE_BYTES;
        Self {
            frames: Vec::new(),
            places: BTreeMap::new(),
            dirty: BTreeSet::new(),
            hand: 0,
            frames_max: pages - pages / COPIES_PART,
            peak: 0,
        }
    }

    /// Returns the maximum number of dirty pages in the cache.
    pub fn dirty_max(&self) -> usize {
        self.frames_max / DIRTY_PART
    }

    /// Returns the number of clean pages for which the cache always has room.
    pub fn clean_max(&self) -> usize {
        self.frames_max - 2 * self.dirty_max()
    }

    /// Returns the number of dirty pages: those changed since the last checkpoint began.
    pub fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the page `number` if the page is in the cache, and marks the page as used.
    pub fn get(&mut self, number: PageNumber) -> Option<&Rc<Page>> {
        let frame = &mut self.frames[*self.places.get(&number)?];
        frame.seen = true;
        Some(&frame.page)
    }

    /// Returns the page `number` as [`Cache::get`] does, if it belongs to the object `owner`.
    pub fn get_of(&mut self, number: PageNumber, owner: u64) -> Option<&Rc<Page>> {
        self.get(number).filter(|page| page.owner() == owner)
    }

    /// Returns the page `number` if the page is in the cache, without marking the page as used.
    pub fn peek(&self, number: PageNumber) -> Option<&Rc<Page>> {
        Some(&self.frames[*self.places.get(&number)?].page)
    }

    fn frame(&mut self, number: PageNumber) -> &mut Frame {
        let place = self.places.get(&number).expect("a pinned page is in the cache");
        &mut self.frames[*place]
    }

    /// Inserts the clean page `number`, which equals the version on the disks. Evicts another page if the cache is
    /// full.
    pub fn insert(&mut self, number: PageNumber, page: Page) {
        assert!(!self.places.contains_key(&number), "page {number} is in the cache already");
        while self.frames.len() >= self.frames_max {
            if !self.evict_one() {
                // All pages are in use: the cache exceeds its limit for a moment.
                break;
            }
        }
        let page = Rc::new(page);
        self.places.insert(number, self.frames.len());
        self.frames.push(Frame { number, page, pins: 0, dirty: false, frozen: false, seen: false });
        self.peak = self.peak.max(self.frames.len());
    }

    /// Evicts the next page that is evictable and was not used since the last search for a page to evict passed the
    /// page. Returns whether a page was evicted.
    fn evict_one(&mut self) -> bool {
        for _ in 0..2 * self.frames.len() {
            self.hand = (self.hand + 1) % self.frames.len();
            let frame = &mut self.frames[self.hand];
            if frame.may_go() && !std::mem::replace(&mut frame.seen, false) {
                self.remove(self.hand);
                return true;
            }
        }
        false
    }

    fn remove(&mut self, place: usize) {
        let gone = self.frames.swap_remove(place);
        self.places.remove(&gone.number);
        if let Some(moved) = self.frames.get(place) {
            self.places.insert(moved.number, place);
        }
        if self.hand >= self.frames.len() {
            self.hand = 0;
        }
    }

    /// Evicts the page `number`, unless it is pinned, dirty or being written.
    pub fn forget(&mut self, number: PageNumber) {
        if let Some(place) = self.places.get(&number).copied()
            && self.frames[place].may_go()
        {
            self.remove(place);
        }
    }

    /// Pins the page `number`: the cache does not evict it until [`Cache::unpin`].
    pub fn pin(&mut self, number: PageNumber) {
        self.frame(number).pins += 1;
    }

    pub fn unpin(&mut self, number: PageNumber) {
        self.frame(number).pins -= 1;
    }

    /// Returns the page `number` for a change, and marks it as dirty. The cache keeps the page until a checkpoint has
    /// written it.
    pub fn change(&mut self, number: PageNumber) -> &mut Page {
        self.dirty.insert(number);
        let frame = self.frame(number);
        frame.dirty = true;
        Rc::make_mut(&mut frame.page)
    }

    /// Whether the page `number` is in the cache and belongs to the object `owner`.
    pub fn is_of(&self, number: PageNumber, owner: u64) -> bool {
        self.peek(number).is_some_and(|page| page.owner() == owner)
    }

    /// Assigns the page `number` to the object `owner`. A page of another object becomes blank.
    pub fn own(&mut self, number: PageNumber, owner: u64) {
        let frame = self.frame(number);
        if frame.page.owner() != owner {
            frame.page = Rc::new(Page::blank(owner, number));
        }
    }

    /// Puts a new version of a page of the vault's map of pages into the cache, when a checkpoint writes it. The cache
    /// holds the page until the checkpoint has ended.
    pub fn renew(&mut self, number: PageNumber, page: &Page) {
        if !self.places.contains_key(&number) {
            self.insert(number, page.clone());
        }
        let frame = self.frame(number);
        (frame.page, frame.frozen) = (Rc::new(page.clone()), true);
    }

    /// Returns the present version of every dirty page, for a checkpoint. The cache holds these pages until the
    /// checkpoint has ended.
    pub fn freeze(&mut self) -> Vec<(PageNumber, Rc<Page>)> {
        let dirty = std::mem::take(&mut self.dirty);
        let freeze = |number| {
            let frame = self.frame(number);
            (frame.dirty, frame.frozen) = (false, true);
            (number, frame.page.clone())
        };
        dirty.into_iter().map(freeze).collect()
    }

    /// Permits the eviction of the pages `frozen`, which a checkpoint has written.
    pub fn thaw(&mut self, frozen: impl IntoIterator<Item = PageNumber>) {
        for number in frozen {
            self.frame(number).frozen = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vault_cache_eviction_keeps_dirty_and_recently_used_pages() {
        let mut cache = Cache::new(CACHE_BYTES_MIN);
        let most = cache.frames_max as u64;
        cache.insert(1, Page::blank(1, 1));
        cache.pin(1);
        cache.change(1).content_mut()[0] = 7;
        cache.unpin(1);
        for number in 2..4 * most {
            cache.insert(number, Page::blank(1, number));
            assert!(cache.get(2).is_some(), "page 2 was used last");
        }
        assert_eq!(cache.frames.len() as u64, most);
        assert_eq!(cache.peek(1).unwrap().content()[0], 7);
        let frozen = cache.freeze();
        cache.pin(1);
        cache.change(1).content_mut()[0] = 8;
        cache.unpin(1);
        assert_eq!((frozen[0].1.content()[0], cache.dirty()), (7, 1));
        cache.thaw(frozen.iter().map(|(number, _)| *number));
        cache.forget(1);
        assert!(cache.peek(1).is_some(), "page 1 was changed after the freeze");
    }
}
