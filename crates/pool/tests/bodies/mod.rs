//! Bodies of the fuzz targets of pools. `fuzz/` includes this file, and `fuzz_smoke.rs` runs the bodies over a few
//! thousand inputs in each `cargo test`.

use meta::Uuid;
use pool::extent::ExtentHeader;
use pool::log::{LogItem, log_items};
use pool::name::ExportName;
use pool::root::{self, Header, Superblock};
use pool::rows::Table;

const POOL: Uuid = Uuid([0x11; 16]);
const ALLOCATOR: u32 = 2;
const EXTENT: u64 = 0x0201;
const SLOT_BYTES: usize = 4096;

/// Returns the bytes in the length of a slot, with this magic number, and the checksum that they need at byte 16.
fn sealed(data: &[u8], magic: [u8; 8], checksum: fn(&[u8]) -> u64) -> Vec<u8> {
    let mut sealed = data.to_vec();
    sealed.resize(SLOT_BYTES, 0);
    sealed[..8].copy_from_slice(&magic);
    let sum = checksum(&sealed);
    sealed[16..24].copy_from_slice(&sum.to_le_bytes());
    sealed
}

/// Decodes fuzzed bytes as the header of a pool, as a superblock, and as an extent header: unchanged, and with a correct
/// magic number and checksum.
pub fn slot(data: &[u8]) {
    let header = |data: &[u8]| {
        for pool in [None, Some(POOL)] {
            if let Ok(header) = Header::decode(data, pool) {
                assert_eq!(Header::decode(&header.encode(), pool), Ok(header));
            }
        }
    };
    let superblock = |data: &[u8]| {
        if let Ok(superblock) = Superblock::decode(data, POOL, ALLOCATOR) {
            let again = superblock.encode();
            assert_eq!(Superblock::decode(&again, POOL, ALLOCATOR), Ok(superblock));
        }
    };
    let extent = |data: &[u8]| {
        if let Ok(header) = ExtentHeader::decode(data, POOL, EXTENT) {
            assert_eq!(ExtentHeader::decode(&header.encode(), POOL, EXTENT), Ok(header));
        }
    };
    header(data);
    superblock(data);
    extent(data);
    header(&sealed(data, root::HEADER_MAGIC, root::root_checksum));
    superblock(&sealed(data, root::SUPERBLOCK_MAGIC, root::root_checksum));
    extent(&sealed(data, pool::extent::EXTENT_MAGIC, pool::extent::extent_checksum));
}

/// Decodes fuzzed bytes as the items of a record, and as a row of each table. Decoded ones must have the same bytes when
/// they are encoded again.
pub fn items(data: &[u8]) {
    for count in 0..16 {
        let Ok(items) = log_items(data, count) else { continue };
        if items.iter().any(|item| matches!(item, LogItem::Unknown(..))) {
            continue;
        }
        let mut again = Vec::new();
        items.iter().for_each(|item| item.encode(&mut again));
        assert_eq!(again, data);
    }
}

/// Decodes fuzzed bytes as a row of each table. A decoded one must have the same bytes when it is encoded again.
pub fn row(data: &[u8]) {
    for table in Table::ALL {
        let mut row = data.to_vec();
        row.resize(table.row_bytes(), 0);
        if let Ok(again) = table.reencode(&row) {
            assert_eq!(again, row, "{table:?}");
        }
        assert!(table.reencode(data).is_err() || data.len() == table.row_bytes());
    }
}

/// Parses fuzzed text as the name of an export. A parsed name must be the same when it is shown and parsed.
pub fn name(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ExportName::parse(text) {
        Ok(name) => {
            assert_eq!(name.to_string(), text);
            let vdisk = &name.version.vdisk;
            assert!(vdisk.as_str().len() <= pool::name::NAME_BYTES_MAX);
            assert_eq!(vdisk.origin().is_some(), vdisk.as_str().contains('+'));
        }
        Err(error) => assert!(error.next_step().is_some(), "{error}"),
    }
}
