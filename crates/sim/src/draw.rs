//! Random numbers of the simulator, in named streams.
//!
//! Every number is a pure function of the seed, the name of its stream, the number of the object that uses the stream,
//! and a counter. So the removal of an operation from a run does not change the random numbers of other operations, and
//! a fault with rate zero draws no number.

use std::cell::Cell;

/// Maps 64 bits to 64 pseudo-random bits (the finisher of splitmix64).
pub const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Returns a hash of the name of a stream of random numbers.
pub const fn domain(name: &str) -> u64 {
    let (bytes, mut hash, mut at) = (name.as_bytes(), 0xcbf2_9ce4_8422_2325_u64, 0);
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// Returns random number `counter` of the stream with the hashed name `domain`, for the object number `entity`.
pub const fn splitmix(seed: u64, domain: u64, entity: u64, counter: u64) -> u64 {
    mix(mix(mix(seed ^ domain) ^ entity) ^ counter)
}

/// A rate as a number of events in a million.
pub type Ppm = u32;

/// A stream of random numbers for one object, such as a disk or a client.
#[derive(Clone, Debug)]
pub struct Stream {
    key: u64,
    counter: Cell<u64>,
}

impl Stream {
    /// Creates the stream of random numbers with the name `name`, for the object number `entity`.
    pub const fn new(seed: u64, name: &str, entity: u64) -> Self {
        Self { key: mix(mix(seed ^ domain(name)) ^ entity), counter: Cell::new(0) }
    }

    /// Returns random number `counter` of the stream. Does not change which number [`Stream::next`] returns.
    pub fn at(&self, counter: u64) -> u64 {
        mix(self.key ^ counter)
    }

    /// Returns the next random number of the stream.
    pub fn next(&self) -> u64 {
        let counter = self.counter.get();
        self.counter.set(counter + 1);
        self.at(counter)
    }

    /// Returns a random number from 0 to `bound - 1`, the next of the stream.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a random number from `least` to `most` (both included), the next of the stream.
    pub fn within(&self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Draws whether an event with a chance of `rate` in a million happens. Draws no number for a rate of zero.
    pub fn chance(&self, rate: Ppm) -> bool {
        rate > 0 && self.below(1_000_000) < u64::from(rate)
    }

    /// Returns a random element of `from`, selected by the next number of the stream.
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Whether the random number `drawn` means that an event with a chance of `rate` in a million happens.
pub const fn hits(drawn: u64, rate: Ppm) -> bool {
    drawn % 1_000_000 < rate as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_streams_are_independent_of_each_other() {
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
    fn random_chance_of_zero_draws_no_number() {
        let stream = Stream::new(7, "fault", 0);
        assert!(!stream.chance(0));
        assert_eq!(stream.next(), stream.at(0));
        assert!(stream.chance(1_000_000));
    }
}
