//! Test data for blocks: bytes that depend on their address, so that a client can check a read while it measures.

/// Length in bytes of a sector of the pattern: as long as the smallest block of any export.
const SECTOR_BYTES: usize = 512;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn seed_of(sector: u64) -> u64 {
    let mut x = sector.wrapping_add(1).wrapping_mul(GOLDEN);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the 8-byte word number `n` of a sector's pattern. The words form an arithmetic progression: the compiler
/// makes vector code for it, and no two sectors have the same word at the same place.
fn word(seed: u64, n: usize) -> u64 {
    seed.wrapping_add((n as u64).wrapping_mul(GOLDEN))
}

/// Fills `bytes` with the pattern for the address `offset`. Length and address are multiples of 512 bytes.
pub fn fill(bytes: &mut [u8], offset: u64) {
    for (n, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        let seed = seed_of(offset / SECTOR_BYTES as u64 + n as u64);
        for (n, place) in sector.chunks_exact_mut(8).enumerate() {
            place.copy_from_slice(&word(seed, n).to_le_bytes());
        }
    }
}

/// Whether `bytes` hold the pattern for the address `offset`.
pub fn is_right(bytes: &[u8], offset: u64) -> bool {
    let mut wrong = 0;
    for (n, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
        let seed = seed_of(offset / SECTOR_BYTES as u64 + n as u64);
        for (n, place) in sector.chunks_exact(8).enumerate() {
            let found = u64::from_le_bytes(place.try_into().expect("eight bytes"));
            wrong |= found ^ word(seed, n);
        }
    }
    wrong == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_detects_flipped_bit_and_shifted_block() {
        let mut bytes = vec![0; 4096];
        fill(&mut bytes, 8192);
        assert!(is_right(&bytes, 8192));
        assert!(is_right(&bytes[512..1024], 8704));
        assert!(!is_right(&bytes, 8192 + 512));
        bytes[4095] ^= 1;
        assert!(!is_right(&bytes, 8192));
    }
}
