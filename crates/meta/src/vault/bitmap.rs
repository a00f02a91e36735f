//! Bitmap objects of a vault: the number of set bits, and behind it the bits.

use block::{Error, ErrorKind, Result, error};

use super::entry::ObjectKind;
use super::page::CONTENT_BYTES;
use super::record::Verb;
use super::{ObjectId, Spec, Transaction, Vault};

/// Length in bytes of the header of a bitmap object, before its bits: the number of set bits.
pub(super) const BITMAP_HEADER_BYTES: u64 = 8;

/// Position in the object of the first bit, in bits.
const FIRST: u64 = 8 * BITMAP_HEADER_BYTES;

/// Number of bits in one page.
const PER_PAGE: u64 = 8 * CONTENT_BYTES as u64;

/// Adds `added` to the number of set bits in the first page of a bitmap.
pub(super) fn add_to_count(page: &mut [u8], added: i64) {
    let (count, _) = page.split_first_chunk_mut().expect("a page has room for the header");
    *count = u64::from_le_bytes(*count).wrapping_add_signed(added).to_le_bytes();
}

/// A bitmap object of a vault: bits, addressed by number. All bits of a new bitmap are clear.
pub struct Bitmap {
    vault: Vault,
    id: ObjectId,
}

impl Spec {
    /// Returns the properties of a bitmap object with `length` bits.
    pub fn bitmap(owner: &str, role: u32, length: u64) -> Self {
        let (kind, owner) = (ObjectKind::Bitmap, owner.to_owned());
        Self { owner, role, kind, advisory: false, record_bytes: 0, length }
    }
}

/// State of a search for a run of clear bits, or of set bits.
struct Search {
    /// Value of the bits in the run.
    value: bool,
    /// Number of such bits in a row at which the search ends.
    wanted: u64,
    /// Whether the search accepts the first run of such bits, even if it is shorter than `wanted`.
    any: bool,
    start: u64,
    found: u64,
}

impl Search {
    /// Adds `count` equal bits from bit `at` on to the search. Returns whether the search has ended.
    fn note(&mut self, at: u64, count: u64, set: bool) -> bool {
        if set != self.value {
            if self.any && self.found > 0 {
                return true;
            }
            self.found = 0;
            return false;
        }
        if self.found == 0 {
            self.start = at;
        }
        self.found += count;
        self.found >= self.wanted
    }

    /// Adds the bits at positions `from` to `end` to the search. They are in `page`, which begins at position `base`.
    /// Returns whether the search has ended.
    fn look(&mut self, page: &[u8], base: u64, from: u64, end: u64) -> bool {
        let mut at = from;
        while at < end {
            let byte = page[((at - base) / 8) as usize];
            let whole = at.is_multiple_of(8) && end - at >= 8;
            let (count, set) = match byte {
                0 if whole => (8, false),
                0xff if whole => (8, true),
                _ => (1, byte >> (at % 8) & 1 == 1),
            };
            if self.note(at, count, set) {
                return true;
            }
            at += count;
        }
        false
    }
}

impl Bitmap {
    /// Returns a handle to the bitmap object with this id.
    pub fn new(vault: &Vault, id: ObjectId) -> Self {
        Self { vault: vault.clone(), id }
    }

    fn length(&self, end: u64) -> Result<std::rc::Rc<super::Entry>> {
        let entry = super::transaction::of_kind(self.vault.object(self.id)?, ObjectKind::Bitmap)?;
        check(&entry, end)?;
        Ok(entry)
    }

    /// Whether bit `bit` of the bitmap is set.
    ///
    /// # Errors
    /// `OutOfRange`, `NotFound`, and errors of reads.
    pub async fn test(&self, bit: u64) -> Result<bool> {
        let entry = self.length(bit.saturating_add(1))?;
        let within = (FIRST + bit) % PER_PAGE;
        let read = |page: &[u8]| page[(within / 8) as usize] >> (within % 8) & 1 == 1;
        self.vault.0.look(&entry, (FIRST + bit) / PER_PAGE, read).await
    }

    /// Adds to the transaction that `count` bits from bit `first` on are set (`value`) or cleared.
    ///
    /// # Errors
    /// `OutOfRange`, `NotFound`; `Limit` for more bits than fit into one change.
    pub fn put(
        &self,
        transaction: &mut Transaction,
        first: u64,
        count: u64,
        value: bool,
    ) -> Result<()> {
        let entry = transaction.expect(self.id, ObjectKind::Bitmap)?;
        check(&entry, first.saturating_add(count))?;
        let count = u32::try_from(count).map_err(|_| {
            error!(Limit, "a change sets {count} bits; {} are possible: split the change", u32::MAX)
        })?;
        transaction.change(self.id.0, first, Verb::Bits(count, value));
        Ok(())
    }

    /// Returns the number of set bits. Reads one page.
    ///
    /// # Errors
    /// `NotFound`, and errors of reads.
    pub async fn count(&self) -> Result<u64> {
        let mut count = [0; BITMAP_HEADER_BYTES as usize];
        self.vault.0.read(&*self.length(0)?, 0, &mut count).await?;
        Ok(u64::from_le_bytes(count))
    }

    /// Returns the first bit, at or after bit `from`, of a run of `wanted` clear bits; `None` if there is no such run.
    ///
    /// # Errors
    /// As [`Bitmap::test`].
    pub async fn find_clear(&self, from: u64, wanted: u64) -> Result<Option<u64>> {
        let found = self.search(from, wanted, false, false).await?;
        Ok(found.filter(|(_, count)| *count >= wanted).map(|(start, _)| start))
    }

    /// Returns the first clear bit at or after bit `from`, and the number of clear bits in a row from that bit on, at
    /// most `most`; `None` if no bit at or after `from` is clear.
    ///
    /// # Errors
    /// As [`Bitmap::test`].
    pub async fn find_run(&self, from: u64, most: u64) -> Result<Option<(u64, u64)>> {
        self.search(from, most, true, false).await
    }

    /// Returns the first set bit at or after bit `from`, and the number of set bits in a row from that bit on; `None` if
    /// no bit at or after `from` is set.
    ///
    /// # Errors
    /// As [`Bitmap::test`].
    pub async fn find_set(&self, from: u64) -> Result<Option<(u64, u64)>> {
        self.search(from, u64::MAX, true, true).await
    }

    /// Returns the index of the page with bit `bit` among the pages of a bitmap.
    pub(crate) fn page_of(bit: u64) -> u64 {
        (FIRST + bit) / PER_PAGE
    }

    /// Returns the number of bits of the bitmap.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the object is no bitmap.
    pub fn bits(&self) -> Result<u64> {
        Ok(self.length(0)?.length)
    }

    async fn search(
        &self,
        from: u64,
        wanted: u64,
        any: bool,
        value: bool,
    ) -> Result<Option<(u64, u64)>> {
        let entry = self.length(from)?;
        let (mut at, end) = (FIRST + from, FIRST + entry.length);
        let mut search = Search { value, wanted: wanted.max(1), any, start: at, found: 0 };
        while at < end {
            let base = at / PER_PAGE * PER_PAGE;
            let stop = end.min(base + PER_PAGE);
            let look = |page: &[u8]| search.look(page, base, at, stop);
            if self.vault.0.look(&entry, at / PER_PAGE, look).await? {
                break;
            }
            at = stop;
        }
        let Search { start, found, wanted, .. } = search;
        Ok((found > 0).then_some((start - FIRST, found.min(wanted))))
    }

    /// Returns the last clear bit before bit `end`; `None` if all of these bits are set.
    ///
    /// # Errors
    /// As [`Bitmap::test`].
    pub async fn find_back(&self, end: u64) -> Result<Option<u64>> {
        let entry = self.length(end)?;
        let mut end = FIRST + end;
        while end > FIRST {
            let base = (end - 1) / PER_PAGE * PER_PAGE;
            let from = FIRST.saturating_sub(base);
            let look = |page: &[u8]| last_clear(page, from, end - base);
            if let Some(position) = self.vault.0.look(&entry, base / PER_PAGE, look).await? {
                return Ok(Some(base + position - FIRST));
            }
            end = base;
        }
        Ok(None)
    }

    /// Compares the number of set bits with the bits. Returns a description of the difference.
    ///
    /// # Errors
    /// As [`Bitmap::test`].
    pub(super) async fn miscount(&self) -> Result<Option<String>> {
        let entry = self.length(0)?;
        let mut counted = 0;
        for page in 0..entry.pages() {
            let header = if page == 0 { BITMAP_HEADER_BYTES as usize } else { 0 };
            let ones =
                |page: &[u8]| page[header..].iter().map(|byte| byte.count_ones()).sum::<u32>();
            counted += u64::from(self.vault.0.look(&entry, page, ones).await?);
        }
        let stored = self.count().await?;
        let words = || format!("{entry} states {stored} set bits, and has {counted}");
        Ok((stored != counted).then(words))
    }
}

/// Returns the last clear bit of `page` at positions `from` to `end`; `None` if all these bits are set. `from` is a
/// multiple of 8.
fn last_clear(page: &[u8], from: u64, end: u64) -> Option<u64> {
    let last = (end - 1) / 8;
    (from / 8..=last).rev().find_map(|byte| {
        let mut clear = !page[byte as usize];
        if byte == last {
            clear &= 0xff >> (7 - (end - 1) % 8);
        }
        (clear != 0).then(|| byte * 8 + u64::from(clear.ilog2()))
    })
}

fn check(entry: &super::Entry, end: u64) -> Result<()> {
    if end > entry.length {
        let words = format!("a change ends at bit {end}; {entry} has {} bits", entry.length);
        return Err(Error::new(ErrorKind::OutOfRange, words));
    }
    Ok(())
}
