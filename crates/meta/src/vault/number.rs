//! Numbers of the pages of a vault, and their places on a copy. Neither depends on the count of pages, so a vault can grow.

use super::geometry::LEVELS_MAX;
use super::page::POINTERS_PER_PAGE;

/// Number of a page of a vault: the level of the page in the map of pages, times 2^56, plus its index in the level.
/// Level 0 are the pages of objects.
pub type PageNumber = u64;

/// Number of bits of a page number that hold the index of the page in its level.
const INDEX_BITS: u32 = 56;

/// Returns the number of the page with index `index` in level `level` of the map of pages.
pub fn number(level: usize, index: u64) -> PageNumber {
    (level as u64) << INDEX_BITS | index
}

/// Returns the level of page `number` in the map of pages; 0 for a page of an object.
pub fn level(number: PageNumber) -> usize {
    (number >> INDEX_BITS) as usize
}

/// Returns the index of page `number` in its level.
pub fn index(number: PageNumber) -> u64 {
    number & ((1 << INDEX_BITS) - 1)
}

/// Returns the number of pages of objects below a complete page of level `level`.
pub fn covered(level: usize) -> u64 {
    POINTERS_PER_PAGE.pow(level as u32)
}

/// Returns the index of the first page of an object for which the map needs page `number`. The first page of a level is
/// needed from the second page of the level below on: before that, the level below has the root.
fn needed_from(number: PageNumber) -> u64 {
    match (level(number), index(number)) {
        (0, index) => index,
        (level, 0) => covered(level - 1),
        (level, index) => index * covered(level),
    }
}

/// Returns the place of page `number` among the pages on a copy of the vault, from 0. A page of the map lies in front of
/// the first page of an object that needs it, behind the pages of the map with higher levels there.
pub fn place(number: PageNumber) -> u64 {
    let page = needed_from(number);
    let of_level = |level| page / covered(level) + u64::from(page >= covered(level - 1));
    page + (1..=LEVELS_MAX).map(of_level).sum::<u64>() - level(number) as u64
}

/// Returns a description of page `number` for messages.
pub fn describe(number: PageNumber) -> String {
    match level(number) {
        0 => format!("page {number}"),
        level => format!("page {} in level {level} of the map", index(number)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::geometry::{Geometry, PAGES_MAX};
    use super::*;

    fn geometry(pages: u64) -> Geometry {
        Geometry { bytes: 0, log_bytes: 0, pages, directory_pages: 1 }
    }

    /// Returns the numbers of all pages of a vault with `pages` pages for objects.
    fn all(pages: u64) -> impl Iterator<Item = PageNumber> {
        let geometry = geometry(pages);
        std::iter::successors(Some(0), move |number| geometry.after(*number))
    }

    /// Checks that each place in a vault with this number of pages is the place of one page.
    fn check_dense(pages: u64) {
        let mut seen = vec![false; geometry(pages).all_pages() as usize];
        for number in all(pages) {
            let before = std::mem::replace(&mut seen[place(number) as usize], true);
            assert!(!before, "{pages} pages: {} has a place of another page", describe(number));
        }
        assert!(seen.iter().all(|seen| *seen), "{pages} pages leave a gap");
    }

    #[test]
    fn vault_page_places_are_unique_and_dense_for_any_page_count() {
        (2..2000).for_each(check_dense);
        let squares = [254 * 254, 2 * 254 * 254];
        for pages in squares.into_iter().flat_map(|square| square - 300..square + 300).step_by(7) {
            check_dense(pages);
        }
        (254 * 254 - 2..=254 * 254 + 2).for_each(check_dense);
    }

    #[test]
    fn vault_page_places_are_dense_around_first_page_of_each_level() {
        // These vaults have too many pages to visit each; so only the last pages are.
        for last in (1..LEVELS_MAX).flat_map(|level| [1, 2, 253].map(|n| n * covered(level))) {
            for pages in last - 2..=last + 2 {
                check_end(pages);
            }
        }
        check_end(PAGES_MAX);
    }

    /// Checks that a vault with one page more has the same pages, and the new ones at the next places.
    fn check_end(pages: u64) {
        let (small, large) = (geometry(pages), geometry(pages + 1));
        let levels = 0..=large.root_level();
        let has = |geometry: Geometry, level, index| {
            level <= geometry.root_level() && index < geometry.level_pages(level)
        };
        let last = |level| (level, large.level_pages(level) - 1);
        let new = levels.map(last).filter(|(level, index)| !has(small, *level, *index));
        let mut places: Vec<_> = new.map(|(level, index)| place(number(level, index))).collect();
        places.sort_unstable();
        let expected: Vec<_> = (small.all_pages()..large.all_pages()).collect();
        assert_eq!(places, expected, "from {pages} pages on");
    }

    #[test]
    fn vault_with_pages_max_has_dense_places_up_to_highest_level() {
        let all = geometry(PAGES_MAX);
        assert_eq!(all.root_level(), LEVELS_MAX);
        assert_eq!(place(PAGES_MAX - 1) + 1, all.all_pages());
        assert_eq!(place(number(LEVELS_MAX, 0)) + 3, place(number(1, covered(2))));
    }

    #[test]
    fn vault_page_places_of_format() {
        let places = [
            (number(0, 0), 0),
            (number(1, 0), 1),
            (number(0, 1), 2),
            (number(0, 253), 254),
            (number(2, 0), 255),
            (number(1, 1), 256),
            (number(0, 254), 257),
            (number(1, 2), 511),
            (number(0, 508), 512),
        ];
        assert_eq!(number(2, 3), 0x0200_0000_0000_0003);
        for (number, expected) in places {
            assert_eq!(place(number), expected, "{}", describe(number));
        }
    }

    proptest! {
        #[test]
        fn vault_growth_by_one_page_adds_next_places_only(pages in 2..PAGES_MAX) {
            check_end(pages);
        }

        #[test]
        fn vault_page_lies_behind_pages_before_it_and_above_it(page in 1..PAGES_MAX) {
            prop_assert!(place(page) > place(page - 1));
            for level in (1..=LEVELS_MAX).filter(|level| page >= covered(level - 1)) {
                let above = number(level, page / covered(level));
                prop_assert!(place(above) < place(page));
            }
        }
    }
}
