//! Pages in memory, as many as there may be.
//!
//! A page that was changed stays until a checkpoint has it; one that is looked at often stays longer.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::geometry::PageNumber;
use super::page::{PAGE_BYTES, Page};

/// The smallest cache.
pub const CACHE_BYTES_MIN: usize = 40 * PAGE_BYTES;

/// One of so many pages in memory is a copy: a page that changes while a checkpoint writes it.
const COPIES_PART: usize = 5;

/// One of so many pages may be changed and not yet in a checkpoint.
const DIRTY_PART: usize = 4;

struct Frame {
    number: PageNumber,
    page: Rc<Page>,
    /// Transactions that are about to change it.
    pins: u32,
    dirty: bool,
    /// A checkpoint is writing it, as it was.
    frozen: bool,
    /// It was looked at since the hand came by.
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
    /// The most frames there ever were.
    peak: usize,
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

    /// The most pages that may be changed and not yet in a checkpoint.
    pub fn dirty_max(&self) -> usize {
        self.frames_max / DIRTY_PART
    }

    /// Pages that stay without being written.
    pub fn clean_max(&self) -> usize {
        self.frames_max - 2 * self.dirty_max()
    }

    /// Pages that were changed since the last checkpoint began.
    pub fn dirty(&self) -> usize {
        self.dirty.len()
    }

    pub fn peak(&self) -> usize {
        self.peak
    }

    /// A page, if it is here.
    pub fn get(&mut self, number: PageNumber) -> Option<&Rc<Page>> {
        let frame = &mut self.frames[*self.places.get(&number)?];
        frame.seen = true;
        Some(&frame.page)
    }

    /// The same, without a trace.
    pub fn peek(&self, number: PageNumber) -> Option<&Rc<Page>> {
        Some(&self.frames[*self.places.get(&number)?].page)
    }

    fn frame(&mut self, number: PageNumber) -> &mut Frame {
        let place = self.places.get(&number).expect("a pinned page is here");
        &mut self.frames[*place]
    }

    /// Puts a page here that is as it is on the disks.
    pub fn insert(&mut self, number: PageNumber, page: Page) {
        assert!(!self.places.contains_key(&number), "page {number} is loaded once");
        while self.frames.len() >= self.frames_max {
            if !self.evict_one() {
                // Everything is in use: what is being loaded goes beyond for a moment.
                break;
            }
        }
        let page = Rc::new(page);
        self.places.insert(number, self.frames.len());
        self.frames.push(Frame { number, page, pins: 0, dirty: false, frozen: false, seen: false });
        self.peak = self.peak.max(self.frames.len());
    }

    /// Takes out the first page that was not looked at since the hand came by last.
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

    /// Takes a page out if nobody needs it.
    pub fn forget(&mut self, number: PageNumber) {
        if let Some(place) = self.places.get(&number).copied()
            && self.frames[place].may_go()
        {
            self.remove(place);
        }
    }

    /// Keeps a page until it is let go.
    pub fn pin(&mut self, number: PageNumber) {
        self.frame(number).pins += 1;
    }

    pub fn unpin(&mut self, number: PageNumber) {
        self.frame(number).pins -= 1;
    }

    /// A page to change. It is kept until a checkpoint has it.
    pub fn change(&mut self, number: PageNumber) -> &mut Page {
        self.dirty.insert(number);
        let frame = self.frame(number);
        frame.dirty = true;
        Rc::make_mut(&mut frame.page)
    }

    /// Whether a page that is here is that object's.
    pub fn is_of(&self, number: PageNumber, owner: u64) -> bool {
        self.peek(number).is_some_and(|page| page.owner() == owner)
    }

    /// The page of an object: blank if it was another's before.
    pub fn own(&mut self, number: PageNumber, owner: u64) {
        let frame = self.frame(number);
        if frame.page.owner() != owner {
            frame.page = Rc::new(Page::blank(owner, number));
        }
    }

    /// Puts a page of the map here that a checkpoint is writing. It stays until that is over.
    pub fn renew(&mut self, number: PageNumber, page: &Page) {
        if !self.places.contains_key(&number) {
            self.insert(number, page.clone());
        }
        let frame = self.frame(number);
        (frame.page, frame.frozen) = (Rc::new(page.clone()), true);
    }

    /// Every changed page as it is now, for a checkpoint; those stay here until it is over.
    pub fn freeze(&mut self) -> Vec<(PageNumber, Rc<Page>)> {
        let dirty = std::mem::take(&mut self.dirty);
        let freeze = |number| {
            let frame = self.frame(number);
            (frame.dirty, frame.frozen) = (false, true);
            (number, frame.page.clone())
        };
        dirty.into_iter().map(freeze).collect()
    }

    /// The checkpoint is over.
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
    fn what_is_changed_stays_and_what_is_looked_at_stays_longer() {
        let mut cache = Cache::new(CACHE_BYTES_MIN);
        let most = cache.frames_max as u64;
        cache.insert(1, Page::blank(1, 1));
        cache.pin(1);
        cache.change(1).content_mut()[0] = 7;
        cache.unpin(1);
        for number in 2..4 * most {
            cache.insert(number, Page::blank(1, number));
            assert!(cache.get(2).is_some(), "it was looked at");
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
        assert!(cache.peek(1).is_some(), "it was changed since");
    }
}
