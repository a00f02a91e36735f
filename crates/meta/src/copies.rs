//! Reads of bytes that the reader can verify, from any copy of a redundant device below.

use std::ops::Range;

use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Copies, Lower, Op, Result};

use crate::io::step;

/// Bytes of a device that a reader can verify.
pub(crate) struct Source<'s> {
    /// The device.
    pub lower: &'s Lower,
    /// First byte and length of each part on the device; parts of length 0 are left out.
    pub parts: [(u64, u64); 2],
}

impl<'s> Source<'s> {
    /// Creates the source of `len` bytes at byte `at` of a device.
    pub fn new(lower: &'s Lower, at: u64, len: usize) -> Self {
        Self { lower, parts: [(at, len as u64), (0, 0)] }
    }

    /// Returns the numbers of the copies of a device; none without redundancy.
    pub fn numbers(lower: &Lower) -> Range<usize> {
        match lower.info().copies {
            0..=1 => 0..0,
            copies => 0..copies.min(block::COPIES_MAX) as usize,
        }
    }

    /// Reads into `into`, which has the length of all parts: first as the device chooses, then from each of its copies, until
    /// `look` returns true. `look` gets the bytes, and the copies that were read. Returns whether `look` has returned true.
    ///
    /// A copy that is out, or that cannot be read, is left out. The first bytes are those of a copy in sync; others may be
    /// older.
    ///
    /// # Errors
    /// The error of the first read, if `look` got no bytes.
    pub async fn until(
        &self,
        into: &Buf,
        mut look: impl FnMut(&[u8], Copies) -> bool,
    ) -> Result<bool> {
        let first = self.read(into, None).await;
        if let Ok(copies) = &first
            && look(&into.read(), *copies)
        {
            return Ok(true);
        }
        let mut failed = first.map(drop);
        for n in Self::numbers(self.lower) {
            let own = Copies::NONE.with(n);
            if self.read(into, Some(n)).await.is_ok_and(|copies| copies == own) {
                failed = Ok(());
                if look(&into.read(), own) {
                    return Ok(true);
                }
            }
        }
        failed.map(|()| false)
    }

    /// Reads into `into` as [`Source::until`] does, until `is_right` accepts the bytes. Returns the copies that differ, as far
    /// as they were read; `None` if no copy is right.
    ///
    /// # Errors
    /// As [`Source::until`].
    pub async fn right(
        &self,
        into: &Buf,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Copies>> {
        let mut wrong = Copies::NONE;
        let look = |bytes: &[u8], copies: Copies| {
            let right = is_right(bytes);
            wrong = if right { Copies(wrong.0 & !copies.0) } else { wrong.or(copies) };
            right
        };
        Ok(self.until(into, look).await?.then_some(wrong))
    }

    /// Decodes the bytes of each copy. Returns the value of the highest age, and the copies that do not have it. Of two values of
    /// one age, that of a copy in sync counts. Without a value, returns the error for the copy in sync.
    ///
    /// # Errors
    /// As [`Source::until`].
    pub async fn newest<T, E, K: Ord>(
        &self,
        into: &Buf,
        decode: impl Fn(&[u8]) -> Result<T, E>,
        age: impl Fn(&T) -> K,
    ) -> Result<(Result<T, E>, Copies)> {
        let mut newest: Option<(Result<T, E>, Copies)> = None;
        let mut all = Copies::NONE;
        let age = |found: &Result<T, E>| found.as_ref().ok().map(&age);
        self.until(into, |bytes, copies| {
            all = all.or(copies);
            let own = decode(bytes);
            match &mut newest {
                Some((best, have)) if age(best) == age(&own) => *have = have.or(copies),
                Some((best, _)) if age(best) > age(&own) => {}
                _ => newest = Some((own, copies)),
            }
            seeded::on(Bug::NewestOfOneCopy)
        })
        .await?;
        let (value, have) = newest.expect("a read without an error has bytes");
        Ok((value, Copies(all.0 & !have.0)))
    }

    /// Reads into `into`: from copy `only`, or as the device chooses. Returns the copies that were read; none
    /// if a part of the bytes is of another copy than `only`, which the device does not have there now.
    ///
    /// # Errors
    /// The first error of a read.
    pub async fn read(&self, into: &Buf, only: Option<usize>) -> Result<Copies> {
        let avoid = only.map_or(Copies::NONE, Copies::all_but);
        let (mut all, mut each) = (Copies::NONE, Copies(u32::MAX));
        for (range, place) in self.pieces() {
            let part = into.slice(place);
            let read = Op::Read { range, into: part.clone(), avoid, last_resort: false };
            let done = self.lower.call(read).await;
            // A read that has failed may have lost its operation: a late one keeps its buffer.
            let copies = if done.result.is_ok() { done.copies() } else { Copies::NONE };
            let bytes = done.into_buf()?;
            if !bytes.same(&part) {
                part.write().copy_from_slice(&bytes.read());
            }
            (all, each) = (all.or(copies), each.and(copies));
        }
        Ok(match only {
            None => all,
            Some(n) if each.has(n) => Copies::NONE.with(n),
            Some(_) => Copies::NONE,
        })
    }

    /// Writes the right bytes over the copies `wrong`. A failure changes nothing: the next reader asks the other copies again.
    ///
    /// # Errors
    /// The first error of a write.
    pub async fn restore(&self, right: &Buf, wrong: Copies) -> Result<()> {
        if wrong == Copies::NONE || seeded::on(Bug::CopyNotRestored) {
            return Ok(());
        }
        for (range, place) in self.pieces() {
            self.lower.call(Op::restore(range, right.slice(place), wrong)).await.result?;
        }
        Ok(())
    }

    /// Returns the ranges of the requests on the device, each with its place in the buffer.
    fn pieces(&self) -> impl Iterator<Item = (ByteRange, Range<usize>)> {
        let (step, behind) = (step(self.lower), self.parts[0].1 as usize);
        let of_part = move |((at, len), begin): ((u64, u64), usize)| {
            (0..len as usize).step_by(step).map(move |from| {
                let to = (from + step).min(len as usize);
                let range = ByteRange::new(at + from as u64, (to - from) as u64);
                (range.expect("a part has bytes"), begin + from..begin + to)
            })
        };
        self.parts.into_iter().zip([0, behind]).flat_map(of_part)
    }
}
