//! Random numbers from keyed streams.
//!
//! Every number is a pure function of the seed, the name of its stream, the thing it is about and a
//! counter. So an operation that is taken out of a run does not shift the numbers of the others, and
//! a fault that is switched off draws nothing.

use std::cell::Cell;

/// Mixes 64 bits into 64 others (the finisher of splitmix64).
pub const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A stream's name as a number.
pub const fn domain(name: &str) -> u64 {
    let (bytes, mut hash, mut at) = (name.as_bytes(), 0xcbf2_9ce4_8422_2325_u64, 0);
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// The number that `counter` names in the stream of `domain` and `entity`.
pub const fn splitmix(seed: u64, domain: u64, entity: u64, counter: u64) -> u64 {
    mix(mix(mix(seed ^ domain) ^ entity) ^ counter)
}

/// Parts of a million.
pub type Ppm = u32;

/// A stream of numbers about one thing.
#[derive(Clone, Debug)]
pub struct Stream {
    key: u64,
    counter: Cell<u64>,
}

impl Stream {
    /// The stream `name` about `entity`.
    pub const fn new(seed: u64, name: &str, entity: u64) -> Self {
        Self { key: mix(mix(seed ^ domain(name)) ^ entity), counter: Cell::new(0) }
    }

    /// The number that `counter` names, whatever was drawn before.
    pub fn at(&self, counter: u64) -> u64 {
        mix(self.key ^ counter)
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        let counter = self.counter.get();
        self.counter.set(counter + 1);
        self.at(counter)
    }

    /// The next number below `bound`.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// The next number from `least` to `most`.
    pub fn within(&self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Whether something happens that does so in `rate` of a million cases. Draws nothing for a rate
    /// of zero.
    pub fn chance(&self, rate: Ppm) -> bool {
        rate > 0 && self.below(1_000_000) < u64::from(rate)
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Whether the number `drawn` hits a chance of `rate` in a million.
pub const fn hits(drawn: u64, rate: Ppm) -> bool {
    drawn % 1_000_000 < rate as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_do_not_know_of_each_other() {
        let (one, two) = (Stream::new(7, "disk", 0), Stream::new(7, "disk", 1));
        let alone: Vec<_> = (0..4).map(|_| two.next()).collect();
        two.counter.set(0);
        let beside: Vec<_> = (0..4)
            .map(|_| {
                one.next();
                two.next()
            })
            .collect();
        assert_eq!(alone, beside);
        assert_ne!(one.at(0), two.at(0));
        assert_eq!(one.at(0), splitmix(7, domain("disk"), 0, 0));
    }

    #[test]
    fn a_fault_that_is_off_draws_nothing() {
        let stream = Stream::new(7, "fault", 0);
        assert!(!stream.chance(0));
        assert_eq!(stream.next(), stream.at(0));
        assert!(stream.chance(1_000_000));
    }
}
