//! Signatures of formats of other programs on a disk: file systems, partition tables, containers. Without `--wipe`,
//! Cairn labels a disk only if no signature is found and both ends are zeros.

use std::fmt;

use block::is_zero;

/// The content of a disk without a label, judged from the first and the last MiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ForeignContent {
    /// Both ends of the disk are zeros.
    Blank,
    /// The disk holds a format of another program.
    Holds(Signature),
    /// The disk holds nonzero bytes of no known format.
    Unknown,
    /// The disk has this many bytes, too few for a label; its content is not examined.
    TooSmall(u64),
}

/// The format of another program that a disk holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Name of the format, such as `ext4` or `LUKS2`.
    pub what: &'static str,
    /// Volume name in the metadata of the format, if there is one.
    pub name: Option<String>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        match &self.name {
            Some(name) => write!(f, " {name:?}"),
            None => Ok(()),
        }
    }
}

/// The end of the disk from which an offset counts.
#[derive(Clone, Copy)]
enum From {
    Start,
    /// The end of the disk; the offset counts backwards.
    End,
}

/// Magic bytes by which a format is recognized, and their position on the disk.
struct Magic {
    what: &'static str,
    from: From,
    at: usize,
    bytes: &'static [u8],
    name: Name,
}

/// Position of the volume name of a format, from the start of the disk.
#[derive(Clone, Copy)]
enum Name {
    None,
    /// A volume name in UTF-8: its offset on the disk and its length, in bytes.
    Text(usize, usize),
    /// A volume name in UTF-16: its offset on the disk and its length, in bytes.
    Wide(usize, usize),
}

const fn start(what: &'static str, at: usize, bytes: &'static [u8], name: Name) -> Magic {
    Magic { what, from: From::Start, at, bytes, name }
}

const fn end(what: &'static str, at: usize, bytes: &'static [u8]) -> Magic {
    Magic { what, from: From::End, at, bytes, name: Name::None }
}

/// Formats that are recognized by magic bytes. A format that may lie inside another one follows the other one in the
/// list.
const MAGICS: &[Magic] = &[
    start("LUKS2", 0, b"LUKS\xba\xbe\x00\x02", Name::Text(24, 48)),
    start("LUKS1", 0, b"LUKS\xba\xbe\x00\x01", Name::None),
    start("xfs", 0, b"XFSB", Name::Text(108, 12)),
    start("btrfs", 65600, b"_BHRfS_M", Name::Text(65536 + 299, 256)),
    start("bcache", 4096 + 24, BCACHE, Name::Text(4096 + 72, 32)),
    start("bcachefs", 4096 + 24, BCACHEFS, Name::Text(4096 + 72, 32)),
    start("md 1.1", 0, MD, Name::Text(32, 32)),
    start("md 1.2", 4096, MD, Name::Text(4096 + 32, 32)),
    end("md 1.0", 8192, MD),
    end("md 0.90", 65536, MD),
    start("swap", 4096 - 10, b"SWAPSPACE2", Name::Text(1052, 16)),
    start("swap", 65536 - 10, b"SWAPSPACE2", Name::Text(1052, 16)),
    start("squashfs", 0, b"hsqs", Name::None),
    start("erofs", 1024, b"\xe2\xe1\xf5\xe0", Name::Text(1024 + 64, 16)),
    start("f2fs", 1024, b"\x10\x20\xf5\xf2", Name::Wide(1024 + 124, 512)),
    start("ntfs", 3, b"NTFS    ", Name::None),
    start("exfat", 3, b"EXFAT   ", Name::None),
    start("fat", 82, b"FAT32   ", Name::Text(71, 11)),
    start("fat", 54, b"FAT1", Name::Text(43, 11)),
    start("iso9660", 32769, b"CD001", Name::Text(32808, 32)),
    start("LVM2 physical volume", 0, b"LABELONE", Name::None),
    start("LVM2 physical volume", 512, b"LABELONE", Name::None),
    start("LVM2 physical volume", 1024, b"LABELONE", Name::None),
    start("LVM2 physical volume", 1536, b"LABELONE", Name::None),
    start("GPT partition table", 512, b"EFI PART", Name::None),
    start("GPT partition table", 4096, b"EFI PART", Name::None),
    end("GPT partition table", 512, b"EFI PART"),
    end("GPT partition table", 4096, b"EFI PART"),
    start("qcow2 image", 0, b"QFI\xfb", Name::None),
];

const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// Identifies the content of a disk from its first bytes `front` and its last bytes `back`.
pub fn find(front: &[u8], back: &[u8]) -> ForeignContent {
    let known = ext(front)
        .or_else(|| MAGICS.iter().find_map(|magic| magic.find(front, back)))
        .or_else(|| zfs(front, back))
        .or_else(|| mbr(front));
    match known {
        Some(signature) => ForeignContent::Holds(signature),
        None if is_zero(front) && is_zero(back) => ForeignContent::Blank,
        None => ForeignContent::Unknown,
    }
}

fn bare(what: &'static str) -> Signature {
    Signature { what, name: None }
}

impl Magic {
    fn find(&self, front: &[u8], back: &[u8]) -> Option<Signature> {
        let (area, at) = match self.from {
            From::Start => (front, Some(self.at)),
            From::End => (back, back.len().checked_sub(self.at)),
        };
        let found = area.get(at?..)?.starts_with(self.bytes);
        found.then(|| Signature { what: self.what, name: self.name.read(front) })
    }
}

impl Name {
    fn read(self, front: &[u8]) -> Option<String> {
        let text = match self {
            Self::None => return None,
            Self::Text(at, len) => String::from_utf8_lossy(front.get(at..at + len)?).into_owned(),
            Self::Wide(at, len) => {
                let units = front.get(at..at + len)?.chunks_exact(2);
                let units: Vec<u16> =
                    units.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
                String::from_utf16_lossy(&units)
            }
        };
        let text = text.split('\0').next().unwrap_or_default().trim_end();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

/// Offset of the superblock of an ext file system.
const EXT: usize = 1024;

/// Identifies ext2, ext3 and ext4: they have the same magic number, and differ in feature bits.
fn ext(front: &[u8]) -> Option<Signature> {
    const JOURNAL: u32 = 4;
    /// Incompatible features that ext3 has too: file types in directories, recovery, journal device, meta block groups.
    const EXT3: u32 = 0x2 | 0x4 | 0x8 | 0x10;
    let word = |at: usize| {
        let bytes = front.get(EXT + at..EXT + at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if front.get(EXT + 56..EXT + 58)? != [0x53, 0xef] {
        return None;
    }
    let (compatible, incompatible) = (word(92)?, word(96)?);
    let what = match (compatible & JOURNAL != 0, incompatible & !EXT3) {
        (_, 1..) => "ext4",
        (true, 0) => "ext3",
        (false, 0) => "ext2",
    };
    Some(Signature { what, name: Name::Text(EXT + 120, 16).read(front) })
}

/// Identifies ZFS by its uberblocks, in four labels of 256 KiB: two at each end of the disk.
fn zfs(front: &[u8], back: &[u8]) -> Option<Signature> {
    const LABEL: usize = 256 << 10;
    const RING: usize = 128 << 10;
    const STEP: usize = 1 << 10;
    const UBERBLOCK: u64 = 0x00ba_b10c;
    let has = |area: &[u8], label: usize| {
        let ring = area.get(label + RING..label + LABEL).unwrap_or_default();
        ring.chunks_exact(STEP).any(|block| {
            let magic = block[..8].try_into().expect("a block has eight bytes");
            u64::from_le_bytes(magic) == UBERBLOCK || u64::from_be_bytes(magic) == UBERBLOCK
        })
    };
    let ends = back.len().saturating_sub(2 * LABEL);
    let found = has(front, 0) || has(front, LABEL) || has(back, ends) || has(back, ends + LABEL);
    found.then(|| bare("zfs"))
}

/// Identifies a partition table or a boot loader in the first sector.
fn mbr(front: &[u8]) -> Option<Signature> {
    const TABLE: usize = 446;
    if front.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let table = front[TABLE..510].chunks_exact(16);
    let is_table =
        table.clone().all(|entry| entry[0] & 0x7f == 0) && table.clone().any(|entry| entry[4] != 0);
    Some(bare(if is_table { "MBR partition table" } else { "boot sector" }))
}
