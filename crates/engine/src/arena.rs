//! A store of elements that never move. It makes elements on demand, up to a limit.

use std::cell::{Cell, OnceCell};

const CHUNK: usize = 64;

/// A bounded store of elements that never move.
pub(super) struct Arena<T> {
    chunks: Box<[OnceCell<Box<[T]>>]>,
    make: fn() -> T,
    made: Cell<usize>,
}

impl<T> Arena<T> {
    /// Creates an arena for at most `max` elements, without any element. `make` creates one element.
    pub fn new(max: usize, make: fn() -> T) -> Self {
        let chunks = (0..max.div_ceil(CHUNK)).map(|_| OnceCell::new()).collect();
        Self { chunks, make, made: Cell::new(0) }
    }

    /// Returns the element with the index `index`, which [`Arena::grow`] has made before.
    #[inline]
    pub fn get(&self, index: usize) -> &T {
        &self.chunks[index / CHUNK].get().expect("the element was made before")[index % CHUNK]
    }

    /// Returns the number of elements that the arena has made.
    pub fn made(&self) -> usize {
        self.made.get()
    }

    /// Makes 64 more elements of the arena, and returns their indices; `None` if the arena is at its limit.
    pub fn grow(&self) -> Option<std::ops::Range<usize>> {
        let from = self.made.get();
        let chunk = self.chunks.get(from / CHUNK)?;
        chunk.get_or_init(|| (0..CHUNK).map(|_| (self.make)()).collect());
        self.made.set(from + CHUNK);
        Some(from..from + CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_grows_up_to_element_limit() {
        let arena = Arena::new(2 * CHUNK, || 5);
        assert_eq!(arena.grow(), Some(0..CHUNK));
        assert_eq!(arena.grow(), Some(CHUNK..2 * CHUNK));
        assert_eq!(arena.grow(), None);
        assert_eq!(*arena.get(2 * CHUNK - 1), 5);
    }
}
