//! The data of simulated writes: each sector contains the number of its volume, its own number and the number of its
//! write.

use std::fmt;

use crate::disk::{DAMAGE, SECTOR};
use crate::draw::mix;

const WORDS: usize = SECTOR as usize / 8;
const HEAD: usize = 4;
const MAGIC: u64 = u64::from_be_bytes(*b"cairnsim");

/// The numbers in the data of one sector, by which the model recognizes the write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Number of the volume, chosen by the test that creates the model.
    pub volume: u64,
    /// Number of the sector in the volume.
    pub sector: u64,
    /// Number of the write, unique in the volume.
    pub write: u64,
}

/// The content of a sector, recognized from its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The sector holds only zeros.
    Zero,
    /// The sector holds the complete data of one write.
    Stamp(Stamp),
    /// The sector holds the bytes that it had before the first write.
    First,
    /// The sector holds a part of the data of one write, mixed with other bytes.
    Mixture(Stamp),
    /// The sector holds the damage that a torn write leaves on a simulated disk.
    Damage,
    /// The sector holds bytes that no client wrote.
    Junk,
}

impl Stamp {
    fn word(self, n: usize) -> u64 {
        let key = mix(mix(mix(self.volume) ^ self.sector) ^ self.write);
        match n {
            0 => MAGIC,
            1 => self.volume,
            2 => self.sector,
            3 => self.write,
            n => key.wrapping_add((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1,
        }
    }

    /// Fills the buffer of one sector with the data of this write.
    pub fn put(self, into: &mut [u8]) {
        for (n, bytes) in into.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.word(n).to_le_bytes());
        }
    }
}

impl Content {
    /// Recognizes the content of a sector from its bytes.
    pub fn of(bytes: &[u8]) -> Self {
        if block::is_zero(bytes) {
            return Self::Zero;
        }
        let word = |n: usize| u64::from_le_bytes(bytes[n * 8..][..8].try_into().expect("8 bytes"));
        if (0..WORDS).any(|n| word(n) == u64::from_ne_bytes([DAMAGE; 8])) {
            return Self::Damage;
        }
        if word(0) != MAGIC {
            return Self::Junk;
        }
        let stamp = Stamp { volume: word(1), sector: word(2), write: word(3) };
        match (HEAD..WORDS).all(|n| word(n) == stamp.word(n)) {
            true => Self::Stamp(stamp),
            false => Self::Mixture(stamp),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zeros"),
            Self::Stamp(stamp) => write!(f, "{stamp}"),
            Self::First => f.write_str("its first content"),
            Self::Mixture(stamp) => write!(f, "a mixture that begins with {stamp}"),
            Self::Damage => f.write_str("the rest of a torn write"),
            Self::Junk => f.write_str("bytes that no write wrote"),
        }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write {} to sector {} of volume {}", self.write, self.sector, self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_recognizes_zeros_stamps_mixtures_and_damage() {
        let stamp = Stamp { volume: 3, sector: 9, write: 27 };
        let mut bytes = [0; SECTOR as usize];
        assert_eq!(Content::of(&bytes), Content::Zero);
        stamp.put(&mut bytes);
        assert_eq!(Content::of(&bytes), Content::Stamp(stamp));
        bytes[511] ^= 1;
        assert_eq!(Content::of(&bytes), Content::Mixture(stamp));
        bytes[256..].fill(DAMAGE);
        assert_eq!(Content::of(&bytes), Content::Damage);
        bytes.fill(1);
        assert_eq!(Content::of(&bytes), Content::Junk);
    }
}
