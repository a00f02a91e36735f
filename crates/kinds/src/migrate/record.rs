//! The state of a migration in the labels beneath it: `docs/formats/migrate.md`.

use block::seeded::{self, Bug};
use block::{ByteRange, STATE_BYTES_MAX};
use crc_fast::CrcAlgorithm;
use kind::Summary;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the record that this code writes, and the only version that it reads.
const VERSION: u32 = 1;

const BACK: u16 = 1;
const PAUSED: u16 = 2;

/// Bytes covered by one checksum of a window: the unit that a disk writes atomically.
pub const SECTOR_BYTES: u64 = 512;

/// Most bytes of the window of a migration. The checksums of such a window fit into a state in a label beside the
/// header. The number is a multiple of the largest block size.
pub const WINDOW_MAX_BYTES: u64 = 192 << 10;

const SUMS_MAX: usize = (WINDOW_MAX_BYTES / SECTOR_BYTES) as usize;

/// Largest size in bytes of a migration device.
const SIZE_MAX: u64 = 1 << 62;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    version: U32,
    flags: U16,
    sums: U16,
    size: U64,
    boundary: U64,
    window_start: U64,
    window_bytes: U32,
    zero: U32,
}

const _: () = assert!(size_of::<Header>() == 40 && 40 + SUMS_MAX * 8 <= STATE_BYTES_MAX);

/// The progress of a migration, as its state in labels records it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Whether the boundary of the migration moves backward.
    pub back: bool,
    /// Whether a command has paused the migration.
    pub paused: bool,
    /// Size of the migration device in bytes.
    pub size: u64,
    /// Boundary of the migration: the number of bytes at the start of the device that are on the target.
    pub boundary: u64,
    /// The window that the mover changes in place next, if there is one.
    pub window: Option<Window>,
}

/// A window of a migration that the mover changes in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// Byte range of the window in the migration device.
    pub range: ByteRange,
    /// Checksum of each sector of the window, as clients see the sector.
    pub sums: Vec<u64>,
}

impl Window {
    /// Returns the window `range` of a migration, with the checksums of its content `bytes`.
    pub fn of(range: ByteRange, bytes: &[u8]) -> Self {
        Self { range, sums: sums(bytes).collect() }
    }

    /// Whether a sector proves that this window began to move: the sector matches its checksum as the target reads it
    /// (`is_new`), and not as the source reads it (`is_old`). Zeros prove nothing: a disk may read as zeros where a
    /// power cut lost a write.
    pub fn is_proved_moved(&self, is_new: &[bool], is_old: &[bool]) -> bool {
        let zeros = sums(&[0; SECTOR_BYTES as usize]).next();
        let zeros = zeros.filter(|_| !seeded::on(Bug::MoveProvedByZeros));
        let mut sectors = self.sums.iter().zip(is_new).zip(is_old);
        sectors.any(|((sum, new), old)| *new && !*old && Some(*sum) != zeros)
    }
}

/// Describes the encoded progress of a migration for people.
///
/// # Errors
/// The reason why `bytes` are no valid record of a migration.
pub fn describe(bytes: &[u8]) -> Result<Summary, String> {
    let Record { size, boundary, back, paused, .. } = Record::decode(bytes)?;
    let way = if back { "left to move back" } else { "moved" };
    let rests = if paused { ", paused" } else { "" };
    Ok(Summary::whole(format!("{boundary} of {size} bytes {way}{rests}")))
}

/// Returns the checksum of each sector of `bytes`.
pub fn sums(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let sectors = bytes.chunks_exact(SECTOR_BYTES as usize);
    sectors.map(|sector| crc_fast::checksum(CrcAlgorithm::Crc64Nvme, sector))
}

impl Record {
    /// Encodes the progress of the migration as a state for labels.
    ///
    /// # Panics
    /// If the window is larger than [`WINDOW_MAX_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let sums = self.window.as_ref().map_or(&[][..], |window| &window.sums);
        assert!(sums.len() <= SUMS_MAX, "a window of {} sectors is too large", sums.len());
        let range = self.window.as_ref().map(|window| window.range);
        let flag = |set, bit| if set { bit } else { 0 };
        let header = Header {
            version: VERSION.into(),
            flags: (flag(self.back, BACK) | flag(self.paused, PAUSED)).into(),
            sums: (sums.len() as u16).into(),
            size: self.size.into(),
            boundary: self.boundary.into(),
            window_start: range.map_or(0, ByteRange::start).into(),
            window_bytes: (range.map_or(0, ByteRange::len) as u32).into(),
            zero: 0.into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
        bytes
    }

    /// Decodes the progress of a migration from a state in labels.
    ///
    /// # Errors
    /// The reason why `bytes` are no valid record of a migration.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (header, rest) = Header::ref_from_prefix(bytes)
            .map_err(|_| format!("{} bytes are too short for a migration record", bytes.len()))?;
        if header.version.get() != VERSION {
            return Err(format!("record version {}; {VERSION} is supported", header.version));
        }
        let (flags, count) = (header.flags.get(), usize::from(header.sums.get()));
        if flags & !(BACK | PAUSED) != 0 || count > SUMS_MAX || header.zero.get() != 0 {
            return Err(format!("invalid flags {flags:#x} or checksum count {count}"));
        }
        let sums = <[U64]>::ref_from_bytes_with_elems(rest, count)
            .map_err(|_| format!("{} bytes do not hold exactly {count} checksums", rest.len()))?;
        let (size, boundary) = (header.size.get(), header.boundary.get());
        if size == 0 || size > SIZE_MAX || boundary > size {
            return Err(format!("invalid boundary {boundary} of {size} bytes"));
        }
        let back = flags & BACK != 0;
        let (start, len) = (header.window_start.get(), u64::from(header.window_bytes.get()));
        if len != count as u64 * SECTOR_BYTES {
            return Err(format!("{count} checksums do not fit a window of {len} bytes"));
        }
        let window = match ByteRange::new(start, len) {
            _ if len == 0 && start != 0 => return Err(format!("an empty window at byte {start}")),
            None if len == 0 => None,
            Some(range) if is_next(range, back, boundary, size) => {
                Some(Window { range, sums: sums.iter().map(|sum| sum.get()).collect() })
            }
            _ => {
                return Err(format!(
                    "the window of {len} bytes at {start} does not begin at boundary {boundary}"
                ));
            }
        };
        Ok(Self { back, paused: flags & PAUSED != 0, size, boundary, window })
    }
}

/// Whether `range` can be the window that the mover moves next: it begins or ends at the boundary.
fn is_next(range: ByteRange, back: bool, boundary: u64, size: u64) -> bool {
    let edge = if back { range.end() } else { range.start() };
    edge == boundary && range.end() <= size
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let range = ByteRange::new(0x3_0000, 1024).unwrap();
        let window = Some(Window { range, sums: vec![0x0102, 3] });
        Record { back: false, paused: true, size: 0x10_0000, boundary: 0x3_0000, window }
    }

    #[test]
    fn migrate_record_encodes_to_golden_bytes() {
        let mut golden = vec![0; 56];
        for (at, byte) in [(0, 1), (4, 2), (6, 2), (10, 0x10), (18, 3), (26, 3), (33, 4)] {
            golden[at] = byte;
        }
        (golden[40], golden[41], golden[48]) = (2, 1, 3);
        assert_eq!(sample().encode(), golden);
        assert_eq!(Record::decode(&golden), Ok(sample()));
        let bare = Record { window: None, back: true, ..sample() };
        assert_eq!(Record::decode(&bare.encode()), Ok(bare));
    }

    #[test]
    fn decode_rejects_malformed_migrate_record() {
        let good = sample().encode();
        // Version, flags, sums, size, boundary, window.
        for (at, value) in [
            (0, 2),
            (4, 4),
            (6, 1),
            (7, 4),
            (10, 0),
            (15, 0x7f),
            (18, 4),
            (26, 4),
            (33, 2),
            (36, 1),
        ] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(Record::decode(&bytes).is_err(), "{value} at {at}");
        }
        for len in 0..good.len() {
            assert!(Record::decode(&good[..len]).is_err(), "{len} bytes");
        }
        let mut bare = Record { window: None, ..sample() }.encode();
        bare[24] = 1;
        assert!(Record::decode(&bare).is_err());
    }

    /// Checks the check value of the standard.
    #[test]
    fn window_checksum_matches_check_value_of_crc64_nvme() {
        assert_eq!(
            crc_fast::checksum(CrcAlgorithm::Crc64Nvme, b"123456789"),
            0xae8b_1486_0a79_9888
        );
        assert_eq!(sums(&[7; 1024]).count(), 2);
    }
}
