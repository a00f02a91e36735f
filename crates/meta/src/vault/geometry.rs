//! Layout of a copy of a vault: superblocks, log, pages.

use block::{Error, ErrorKind, Result};

use super::number::{self, PageNumber};
use super::page::{PAGE_BYTES, POINTERS_PER_PAGE};

/// Offsets in bytes of the two slots for the superblock on a copy of a vault.
pub const SUPERBLOCKS: [u64; 2] = [0, PAGE_BYTES as u64];

/// Offset in bytes of the log on a copy of a vault.
pub const LOG_START: u64 = 2 * PAGE_BYTES as u64;

/// Minimum length in bytes of the log of a vault.
pub const LOG_BYTES_MIN: u64 = 64 << 10;

/// Maximum length in bytes of the log of a vault. Opening a vault reads the whole log into memory.
pub const LOG_BYTES_MAX: u64 = 64 << 20;

/// Divisor of the log length for the longest record, small enough that a checkpoint always makes room for the next
/// record.
const RECORD_PARTS: u64 = 4;

/// Maximum length in bytes of one record of the log, however long the log is.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of objects in one vault.
pub const OBJECTS_MAX: u32 = 4096;

/// Maximum number of pages for objects in one vault.
pub const PAGES_MAX: u64 = 1 << 31;

/// Minimum number of pages for objects in one vault.
pub const PAGES_MIN: u64 = 8;

/// Bytes of both homes of a page on a copy of a vault: the places for the page's old and new version.
const HOMES_BYTES: u64 = 2 * PAGE_BYTES as u64;

/// Maximum number of levels of the map of pages: 254 pointers per page, to the power of 4, are more than [`PAGES_MAX`].
pub const LEVELS_MAX: usize = 4;

/// Sizes of the parts of a vault. They are the same on each of its copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of bytes that a copy of the vault occupies on its disk.
    pub bytes: u64,
    /// Length of the log in bytes.
    pub log_bytes: u64,
    /// Number of pages for objects, including the pages of the directory.
    pub pages: u64,
    /// Number of pages of the directory, which begins with page 0.
    pub directory_pages: u32,
}

impl Geometry {
    /// Returns the sizes of the largest vault that fits into `bytes`, with a log of `log_bytes` and `directory_pages`
    /// pages for the directory.
    ///
    /// # Errors
    /// `Invalid` for a log outside its limits, `NoSpace` if there is no room for objects.
    pub fn fit(bytes: u64, log_bytes: u64, directory_pages: u32) -> Result<Self> {
        let homes = bytes.saturating_sub(LOG_START + log_bytes) / HOMES_BYTES;
        let mut all = Self { bytes, log_bytes, pages: homes.min(PAGES_MAX), directory_pages };
        // Each step removes the pages that do not fit. Fewer pages then need a smaller map.
        while all.pages > 0 && all.all_pages() > homes {
            all.pages -= (all.all_pages() - homes).min(all.pages);
        }
        // The last step may have removed too many pages.
        while all.pages < homes.min(PAGES_MAX)
            && (Self { pages: all.pages + 1, ..all }).all_pages() <= homes
        {
            all.pages += 1;
        }
        all.check().map_err(|words| {
            let kind = if all.pages < PAGES_MIN { ErrorKind::NoSpace } else { ErrorKind::Invalid };
            Error::new(kind, format!("a vault of {bytes} bytes is impossible: {words}"))
        })?;
        Ok(all)
    }

    /// Returns the number of bytes that a copy of a vault with `pages` pages for objects and a log of `log_bytes`
    /// needs.
    pub fn bytes_for(pages: u64, log_bytes: u64) -> u64 {
        let all = Self { bytes: 0, log_bytes, pages: pages.max(PAGES_MIN), directory_pages: 1 };
        all.end()
    }

    /// Returns the offset in bytes of the end of the last page on a copy of the vault.
    pub fn end(&self) -> u64 {
        self.place(self.all_pages())
    }

    /// Returns the sizes that this vault has once it has grown to copies of `bytes` bytes; `None` if its copies have as
    /// many already. The log and the directory stay the same.
    ///
    /// # Errors
    /// As [`Geometry::fit`].
    pub(super) fn grown(&self, bytes: u64) -> Result<Option<Self>> {
        let bytes = bytes - bytes % PAGE_BYTES as u64;
        if bytes <= self.bytes {
            return Ok(None);
        }
        Self::fit(bytes, self.log_bytes, self.directory_pages).map(Some)
    }

    /// Whether a vault with the sizes `older` may have grown to these sizes, or has the same ones.
    pub(super) fn extends(&self, older: &Self) -> bool {
        let Self { bytes, pages, .. } = *older;
        Self { bytes, pages, ..*self } == *older && bytes <= self.bytes && pages <= self.pages
    }

    /// Checks the sizes of the parts of a vault against their limits. The error is a description of the fault.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { bytes, log_bytes, pages, directory_pages } = *self;
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&log_bytes)
            || !log_bytes.is_multiple_of(PAGE_BYTES as u64)
        {
            return Err(format!(
                "the log has {log_bytes} bytes; {LOG_BYTES_MIN} to {LOG_BYTES_MAX} are possible, \
                 in steps of {PAGE_BYTES}"
            ));
        }
        let least = PAGES_MIN.max(u64::from(directory_pages) + 1);
        let most = OBJECTS_MAX.div_ceil(super::directory::SLOTS_PER_PAGE as u32);
        if !(1..=most).contains(&directory_pages) {
            return Err(format!(
                "a directory of {directory_pages} pages; 1 to {most} are possible"
            ));
        }
        if !(least..=PAGES_MAX).contains(&pages) {
            return Err(format!(
                "the vault has {pages} pages, {directory_pages} of them for the directory; {least} \
                 to {PAGES_MAX} are possible"
            ));
        }
        let end = self.end();
        if end > bytes {
            return Err(format!("the pages end at byte {end}, beyond the vault"));
        }
        Ok(())
    }

    /// Returns the number of pages in level `level` of the map of pages. Level 0 are the pages of objects.
    pub fn level_pages(&self, level: usize) -> u64 {
        (0..level).fold(self.pages, |pages, _| pages.div_ceil(POINTERS_PER_PAGE))
    }

    /// Returns the level of the root of the map of pages: the first level above 0 with a single page.
    pub fn root_level(&self) -> usize {
        (1..=LEVELS_MAX).find(|level| self.level_pages(*level) == 1).unwrap_or(LEVELS_MAX)
    }

    /// Returns the page number of the root of the map of pages.
    pub fn root(&self) -> PageNumber {
        number::number(self.root_level(), 0)
    }

    /// Returns the number of all pages of the vault: those of objects, and those of the map.
    pub fn all_pages(&self) -> u64 {
        (0..=self.root_level()).map(|level| self.level_pages(level)).sum()
    }

    /// Returns the number of the page behind page `page`, level by level; `None` behind the root of the map.
    pub fn after(&self, page: PageNumber) -> Option<PageNumber> {
        let (level, index) = (number::level(page), number::index(page));
        if index + 1 < self.level_pages(level) {
            return Some(page + 1);
        }
        (level < self.root_level()).then(|| number::number(level + 1, 0))
    }

    /// Returns the number of the map page that points to `page`, and the index of the pointer in that page; `None` for
    /// the root of the map.
    pub fn parent(&self, page: PageNumber) -> Option<(PageNumber, usize)> {
        let (level, index) = (number::level(page), number::index(page));
        let parent = || number::number(level + 1, index / POINTERS_PER_PAGE);
        (level < self.root_level()).then(|| (parent(), (index % POINTERS_PER_PAGE) as usize))
    }

    /// Returns the offset in bytes of home `home` (0 or 1) of page `page` on a copy of the vault. The two homes of a
    /// page hold its old and its new version.
    pub fn home(&self, page: PageNumber, home: usize) -> u64 {
        self.place(number::place(page)) + home as u64 * PAGE_BYTES as u64
    }

    /// Returns the offset in bytes of the homes at place `place` on a copy of the vault.
    fn place(&self, place: u64) -> u64 {
        LOG_START + self.log_bytes + place * HOMES_BYTES
    }

    /// Returns the length in bytes of the longest record that this vault writes to its log: a multiple of a page.
    pub fn record_bytes_max(&self) -> u64 {
        record_bytes_max(self.log_bytes)
    }
}

/// Returns the length in bytes of the longest record of a vault with a log of `log_bytes` bytes: a multiple of a page.
pub(super) fn record_bytes_max(log_bytes: u64) -> u64 {
    let most = (log_bytes / RECORD_PARTS).min(RECORD_BYTES_MAX);
    most - most % PAGE_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vault_geometry_on_large_disk_has_three_map_levels() {
        let all = Geometry::fit(6 << 30, 16 << 20, 37).unwrap();
        assert_eq!(all.root_level(), 3);
        assert!(all.end() <= all.bytes);
        let larger = Geometry { pages: all.pages + 2, ..all };
        assert!(larger.end() > all.bytes, "no room is wasted");
        assert_eq!(all.parent(253), Some((number::number(1, 0), 253)));
        assert_eq!(all.parent(254), Some((number::number(1, 1), 0)));
        assert_eq!(all.parent(number::number(1, 255)), Some((number::number(2, 1), 1)));
        assert_eq!(all.parent(all.root()), None);
    }

    #[test]
    fn vault_geometry_bytes_for_fit_requested_page_count() {
        for pages in [8, 9, 253, 254, 255, 64_516, 64_517, 1 << 20] {
            let bytes = Geometry::bytes_for(pages, 1 << 20);
            let all = Geometry::fit(bytes, 1 << 20, 1).unwrap();
            assert!((pages..pages + 2).contains(&all.pages), "{} for {pages}", all.pages);
        }
    }

    #[test]
    fn vault_geometry_with_pages_max_has_levels_max() {
        let all = Geometry { bytes: 0, log_bytes: 0, pages: PAGES_MAX, directory_pages: 1 };
        assert_eq!(all.root_level(), LEVELS_MAX);
        assert_eq!(all.level_pages(LEVELS_MAX), 1);
    }

    #[test]
    fn vault_geometry_fit_rejects_short_log_and_small_disk() {
        assert_eq!(Geometry::fit(1 << 20, 4096, 1).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Geometry::fit(80 << 10, 64 << 10, 1).unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(Geometry::fit(1 << 20, 64 << 10, 4).is_ok());
    }
}
