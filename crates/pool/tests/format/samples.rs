//! Valid structures of each format, with a different value in each field.

use meta::Uuid;
use meta::ring::{Position, Root};
use pool::extent::{Content, ExtentFlags, ExtentHeader};
use pool::geometry::Geometry;
use pool::log::{Changes, ForeignFree, HOLE, LogItem, RowKey, Run, SnapshotItem};
use pool::name::{Label, VdiskName};
use pool::root::{Header, Superblock, SuperblockFlags, TABLES};
use pool::rows::*;
use pool::{Address, DESCRIPTOR_BYTES};

pub const POOL: Uuid = Uuid([0x11; 16]);

/// Number of the extent of [`extent_header`].
pub const EXTENT: u64 = 0x0201;

pub fn header() -> Header {
    Header {
        pool: POOL,
        sequence: 0x0102,
        geometry: Geometry::new(64 << 30).unwrap(),
        slab_extents: 16,
        allocators: 3,
        keeper: 2,
        epoch: 5,
        made_unix_s: 0x6700_0000,
        unknown_read_only: 0,
    }
}

/// A superblock with other bytes in each part of its slot for each sequence.
pub fn superblock(sequence: u64) -> Superblock {
    let mut tables = [[0; DESCRIPTOR_BYTES]; TABLES];
    for (n, table) in tables.iter_mut().enumerate() {
        table.fill(sequence as u8 ^ n as u8);
    }
    let tail = Position { offset: 0x3000, number: 7, previous: 0x77, opening: 4 };
    Superblock {
        allocator: 2,
        pool: POOL,
        sequence,
        opening: 5,
        draw: 0x66,
        checkpoint: 9,
        log: Uuid([0x22; 16]),
        log_extent: 0x0304,
        log_bytes: 1 << 30,
        log_root: Root { tail, flushed: 8 },
        numbers_end: 1000,
        data_blocks: 0x1122,
        node_blocks: 0x33,
        free_blocks: 0x4455,
        written_unix_s: 0x6700_0001,
        flags: SuperblockFlags::CLOSED,
        tables,
        unknown_read_only: 0,
    }
}

pub fn extent_header() -> ExtentHeader {
    ExtentHeader {
        content: Content::NODES,
        flags: ExtentFlags(0),
        owner: 2,
        pool: POOL,
        extent: EXTENT,
        generation: 6,
        epoch: 5,
        opening: 4,
        claimed_unix_s: 0x6700_0002,
    }
}

pub fn vdisk_row() -> VdiskRow {
    VdiskRow {
        vdisk: 0x0102,
        line: Uuid([0x33; 16]),
        name: "gold@v1+job17".to_owned(),
        flags: VdiskFlags::SNAPSHOT_WITH_FLUSH | VdiskFlags::HOLES_HIDE_ORIGIN,
        state: VdiskState::LIVE,
        sum_kind: SumKind::CRC32C,
        sum_bytes: 4,
        fill: Fill::KEEP,
        block_bytes: 4096,
        owner: 2,
        epoch: 3,
        holder: [0x44; 16],
        key_id: [0x55; 16],
        size: 40 << 30,
        origin: 0x0101,
        origin_number: 20,
        origin_device: [0x66; 16],
        reservation: 0x0a00,
        quota: 0x0b00,
        next_number: 22,
        numbers_end: 1022,
        newest_kept: 21,
        snapshots: 9,
        own_blocks: 0x0c00,
        shared_blocks: 0x0d00,
        node_blocks: 0x0e00,
        unfound_blocks: 0x0f00,
        dead_blocks: 0x1000,
        made_unix_s: 0x6700_0003,
        removed_unix_s: 0x6700_0004,
        cadence_us: 10_000,
        keep_last: 7,
        keep_interval_s: 3600,
        mark: [0x77; 32],
        composition: [0x88; 32],
        family: 0x0101,
        trees: 2,
        cipher: Cipher::AES_XTS_HMAC,
    }
}

fn encode(row: &impl Row) -> Vec<u8> {
    let mut bytes = Vec::new();
    row.encode(&mut bytes);
    bytes
}

/// Returns a valid encoded row of each table.
pub fn rows() -> Vec<(Table, Vec<u8>)> {
    let address = Address::new(5, 6).unwrap();
    let name = VdiskName::parse("gold@v1+job17").unwrap();
    let label = Label::parse("monday").unwrap();
    let extent = ExtentRow {
        extent: EXTENT,
        state: ExtentState::SEALED,
        content: Content::DATA,
        place_kind: PlaceKind::DEVICE,
        owner: 2,
        generation: 6,
        free_blocks: 0x0102,
        frontier: 0x0304,
        place: EXTENT,
        object: [0x99; 16],
    };
    let mut bitmap = [0; 64];
    bitmap[0] = 0xfe;
    let free = FreeRow { extent: EXTENT, part: 0, bitmap };
    let tree = TreeRow {
        vdisk: 0x0102,
        last: 21,
        index: 1,
        newest_birth: 20,
        descriptor: [0xaa; DESCRIPTOR_BYTES],
    };
    let snapshot = SnapshotRow {
        vdisk: 0x0102,
        number: 21,
        flags: SnapshotFlags::DETAILS,
        holds: 2,
        size: 40 << 30,
        taken_unix_us: 0x0006_0000_0000_0005,
        group: 8,
        own_blocks: 0x0a,
        shared_blocks: 0x0b,
    };
    let detail = DetailRow {
        vdisk: 0x0102,
        number: 21,
        label: "monday".to_owned(),
        received_line: Uuid([0xbb; 16]),
        received_number: 19,
        layer: [0xcc; 32],
    };
    let label_text = label.as_str().to_owned();
    let label = LabelRow { vdisk: 0x0102, key: label.key(), label: label_text, number: 21 };
    let hold = HoldRow {
        vdisk: 0x0102,
        number: 21,
        hold: 4,
        kind: HoldKind::BORROWED,
        holder: 0x0103,
        identity: Uuid([0xdd; 16]),
        epoch: 3,
        expires_unix_s: 0x6700_0006,
        borrowed: 12,
        made_unix_s: 0x6700_0007,
    };
    let origin = OriginRow {
        vdisk: 0x0103,
        index: 1,
        origin: 0x0102,
        number: 21,
        hold: 4,
        line: Uuid([0x33; 16]),
    };
    let pass = PassRow {
        kind: PassKind::REMOVE.0.into(),
        vdisk: 0x0102,
        pass: 13,
        first: 3,
        last: 17,
        flags: 0,
        position: [0xee; 32],
        result: [0xef; DESCRIPTOR_BYTES],
        nodes: 0x20,
    };
    let peer = PeerRow { peer: 3, sent: 9, confirmed: 8, applied: 7 };
    let foreign = ForeignFreeRow { peer: 3, number: 9, address, blocks: 5 };
    let removed = RemovedRow {
        kept_until_unix_s: 0x6700_0009,
        vdisk: 0x0102,
        number: 0,
        name: "web".to_owned(),
        removed_unix_s: 0x6700_0008,
        hold: 4,
    };
    let name = NameRow {
        key: name.key(),
        name: name.as_str().to_owned(),
        vdisk: 0x0102,
        state: NameState::GONE,
        highest_number: 21,
        changed_unix_s: 0x6700_000a,
    };
    let owner = OwnerRow { vdisk: 0x0102, owner: 2, epoch: 3, line: Uuid([0x33; 16]) };
    let slab = SlabRow { slab: 0x20, owner: 2, epoch: 5, generation: 6 };
    let allocator = AllocatorRow {
        allocator: 2,
        state: AllocatorState::IN_USE,
        host: [0x12; 16],
        incarnation: 14,
        changed_unix_s: 0x6700_000b,
    };
    let line = LineRow { family: 0x0101, vdisk: 0x0102, replaced_unix_s: 0x6700_000c };
    let settled = SettledRow {
        vdisk: 0x0102,
        number: 21,
        index: 1,
        newest_birth: 20,
        descriptor: [0xaa; DESCRIPTOR_BYTES],
    };
    vec![
        (Table::Extents, encode(&extent)),
        (Table::Free, encode(&free)),
        (Table::Vdisks, encode(&vdisk_row())),
        (Table::Trees, encode(&tree)),
        (Table::Snapshots, encode(&snapshot)),
        (Table::Details, encode(&detail)),
        (Table::Labels, encode(&label)),
        (Table::Holds, encode(&hold)),
        (Table::Origins, encode(&origin)),
        (Table::Passes, encode(&pass)),
        (Table::Peers, encode(&peer)),
        (Table::ForeignFrees, encode(&foreign)),
        (Table::Removed, encode(&removed)),
        (Table::Names, encode(&name)),
        (Table::Owners, encode(&owner)),
        (Table::Slabs, encode(&slab)),
        (Table::Allocators, encode(&allocator)),
        (Table::Lines, encode(&line)),
        (Table::Settled, encode(&settled)),
    ]
}

pub fn row(table: Table) -> Vec<u8> {
    rows().into_iter().find(|(of, _)| *of == table).expect("each table has a sample").1
}

/// Returns one item of each type, in the order of the types. `rows` are from [`rows`].
pub fn log_items(rows: &[(Table, Vec<u8>)]) -> Vec<LogItem<'_>> {
    let run = Run {
        block: 0x0305,
        kind: 0,
        address: Address::new(5, 6).unwrap(),
        blocks: 3,
        origin: 1,
        stored: 0,
        sums: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    };
    let none = Address::from_bits(0);
    let hole =
        Run { block: 9, kind: HOLE, address: none, blocks: 1 << 20, origin: 0, sums: &[], ..run };
    let packed = Run { block: 20, blocks: 8, stored: 3, sums: &[0xaa; 4], ..run };
    let free = ForeignFree { peer: 3, number: 9, address: Address::new(5, 6).unwrap(), blocks: 5 };
    vec![
        LogItem::Changes(Changes {
            vdisk: 0x0102,
            birth: 22,
            sum_kind: SumKind::CRC32C,
            sum_bytes: 4,
            runs: vec![run, hole, packed],
        }),
        LogItem::Snapshot(SnapshotItem {
            vdisk: 0x0102,
            number: 22,
            taken_unix_us: 0x0006_0000_0000_0005,
            group: 8,
            size: 40 << 30,
            flags: SnapshotFlags::DETAILS,
            label: Some(Label::parse("monday").unwrap()),
        }),
        LogItem::PutRow(rows[15].0, &rows[15].1),
        LogItem::RemoveRow(RowKey { table: rows[10].0, key: &rows[10].1[..8] }),
        LogItem::Numbers { vdisk: 0x0102, end: 2000 },
        LogItem::Mark { vdisk: 0x0102, mark: [0x5a; 32] },
        LogItem::ForeignFree(free),
        LogItem::ForeignApplied(ForeignFree { number: 10, ..free }),
    ]
}
