//! Records which parts of one read have been received. A server may send the parts in any order, but none twice.

use std::ops::Range;

/// Maximum number of received parts of a read, besides its prefix, that do not touch each other.
const APART_MAX: usize = 1024;

/// The received parts of one read: its prefix up to `to`, and further parts that came out of order.
#[derive(Default)]
pub(super) struct Covered {
    to: usize,
    /// Received parts beyond the prefix, in ascending order; none touches the prefix or another part.
    apart: Vec<Range<usize>>,
}

impl Covered {
    /// Returns the length of the received prefix of the read in bytes.
    pub fn len(&self) -> usize {
        self.to
    }

    /// Adds a received part of the read. Offsets count from the first byte of the read.
    ///
    /// # Errors
    /// A message, if some bytes of the part were received before, or if too many parts do not touch.
    pub fn add(&mut self, part: Range<usize>) -> Result<(), &'static str> {
        const TWICE: &str = "some of these bytes arrived before";
        if part.start < self.to {
            return Err(TWICE);
        }
        let at = self.apart.partition_point(|known| known.start < part.start);
        let before = at.checked_sub(1).map(|at| &self.apart[at]);
        let next = self.apart.get(at);
        if before.is_some_and(|before| before.end > part.start)
            || next.is_some_and(|next| next.start < part.end)
        {
            return Err(TWICE);
        }
        let joins_next = next.is_some_and(|next| next.start == part.end);
        let end = if joins_next { self.apart.remove(at).end } else { part.end };
        if part.start == self.to {
            self.to = end;
        } else if before_ends(&self.apart, at, part.start) {
            self.apart[at - 1].end = end;
        } else if self.apart.len() < APART_MAX {
            self.apart.insert(at, part.start..end);
        } else {
            return Err("the chunks of the reply leave too many gaps");
        }
        Ok(())
    }
}

fn before_ends(apart: &[Range<usize>], at: usize, start: usize) -> bool {
    at.checked_sub(1).is_some_and(|at| apart[at].end == start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_reply_accepts_each_part_once_in_any_order() {
        let orders: [&[Range<usize>]; 4] = [
            &[0..4, 4..6, 6..9],
            &[6..9, 4..6, 0..4],
            &[4..6, 0..4, 6..9],
            &[0..1, 8..9, 2..3, 4..8, 3..4, 1..2],
        ];
        for order in orders {
            let mut covered = Covered::default();
            for (n, part) in order.iter().enumerate() {
                assert!(covered.len() < 9, "{order:?}");
                covered.add(part.clone()).unwrap();
                for known in &order[..=n] {
                    for wrong in [known.clone(), known.start..known.start + 1, known.end - 1..9] {
                        assert!(covered.add(wrong.clone()).is_err(), "{wrong:?} of {order:?}");
                    }
                }
            }
            assert_eq!((covered.len(), covered.apart.len()), (9, 0));
        }
    }

    #[test]
    fn read_reply_limits_number_of_separate_parts() {
        let mut covered = Covered::default();
        (0..APART_MAX).for_each(|n| covered.add(2 * n + 1..2 * n + 2).unwrap());
        let more = 2 * APART_MAX + 1;
        assert!(covered.add(more..more + 1).unwrap_err().contains("too many"));
        (0..APART_MAX).for_each(|n| covered.add(2 * n..2 * n + 1).unwrap());
        assert_eq!((covered.len(), covered.apart.len()), (2 * APART_MAX, 0));
    }
}
