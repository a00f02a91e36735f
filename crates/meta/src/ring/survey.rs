//! The search for records in the sectors of a ring.

use super::{Head, Ring, Root, SECTOR_BYTES};

/// A search for the records of a ring that may count. It takes the sectors of the ring in any portions, and keeps the
/// headers of the records that it finds and at most one record's bytes.
#[derive(Clone, Debug)]
pub struct Survey {
    pub(super) ring: Ring,
    pub(super) root: Root,
    /// Headers of the candidates, in the order in which they were found.
    pub(super) heads: Vec<Head>,
    /// Bytes from the beginning of the search to the first byte of `pending`.
    begin: u64,
    pending: Vec<u8>,
    flushed: u64,
}

impl Survey {
    /// Begins the search at the place of the root's tail.
    pub fn new(ring: Ring, root: Root) -> Self {
        Self { ring, root, heads: Vec::new(), begin: 0, pending: Vec::new(), flushed: root.flushed }
    }

    /// Begins the search again in another copy of the ring. The records found so far remain candidates.
    pub fn again(&mut self) {
        self.begin = 0;
        self.pending.clear();
    }

    /// Returns the place in the ring and the number of the bytes that the search needs next: up to the end of the ring.
    /// `None` when it has all of them.
    ///
    /// The search ends as much behind its beginning as the longest record needs that begins in the last sector.
    pub fn wanted(&self) -> Option<(u64, u64)> {
        let fed = self.begin + self.pending.len() as u64;
        let rest = (self.ring.bytes + self.overlap()).checked_sub(fed).filter(|rest| *rest > 0)?;
        let place = self.ring.place(self.root.tail.offset + fed);
        Some((place, rest.min(self.ring.bytes - place)))
    }

    /// Takes the next bytes that [`Survey::wanted`] names, or the first part of them. Calls `found` for each candidate
    /// with its header and items, in the order of the ring.
    ///
    /// # Panics
    /// If the bytes are no complete sectors, or more than the search wants.
    pub fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(&Head, &[u8])) {
        let wanted = self.wanted().map_or(0, |(_, len)| len);
        assert!(bytes.len() as u64 <= wanted, "{} bytes, {wanted} were wanted", bytes.len());
        assert!(bytes.len().is_multiple_of(SECTOR_BYTES), "{} bytes are no sectors", bytes.len());
        self.pending.extend_from_slice(bytes);
        let mut at = 0;
        while at < self.pending.len() && self.begin + (at as u64) < self.ring.bytes {
            let rest = &self.pending[at..];
            at += match Head::claimed_length(&self.ring, rest) {
                Ok(length) if length > rest.len() => break,
                Ok(_) => self.candidate(at, &mut found).unwrap_or(SECTOR_BYTES),
                Err(_) => SECTOR_BYTES,
            };
        }
        self.pending.drain(..at);
        self.begin += at as u64;
    }

    /// Notes the record at index `at` of the pending bytes if it may count. Returns the bytes of its header and items.
    fn candidate(&mut self, at: usize, found: &mut impl FnMut(&Head, &[u8])) -> Option<usize> {
        let (head, items) = Head::decode(&self.ring, &self.pending[at..]).ok()?;
        let place = self.ring.place(self.root.tail.offset + self.begin + at as u64);
        let Root { tail, .. } = self.root;
        let counts = self.ring.place(head.at.offset) == place
            && head.at.opening >= tail.opening
            && head.at.number >= tail.number;
        if !counts {
            return None;
        }
        self.heads.push(head);
        self.flushed = self.flushed.max(head.flushed);
        found(&head, items);
        Some(head.padded_bytes() as usize)
    }

    /// Returns the highest flushed number in the root and in the candidates so far.
    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    fn overlap(&self) -> u64 {
        self.ring.record_bytes_max() - SECTOR_BYTES as u64
    }
}
