//! Checks that version 2 of the vault format encodes to fixed bytes.

use meta::Uuid;
use meta::vault::entry::{Entry, ObjectKind, Run, Slot};
use meta::vault::geometry::Geometry;
use meta::vault::page::{PAGE_BYTES, Page, Pointer, checksum};
use meta::vault::record::{self, Change, Verb};
use meta::vault::superblock::{COPIES_MAX, Epoch, Position, Superblock};
use meta::vault::{Array, Options, Vault};
use sim::SimWorld;
use zerocopy::little_endian::U64;

use crate::scene::{self, SMALL, block_on, some};
use testkit::recorded::{Disk, Trace};

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

fn same(is: &[u8], should: &[u8]) {
    assert_eq!(is.len(), should.len());
    let differ = is.iter().zip(should).position(|(is, should)| is != should);
    let at = differ.unwrap_or(0);
    assert!(
        differ.is_none(),
        "from byte {at}: {:x?}, not {:x?}",
        &is[at..at + 8],
        &should[at..at + 8]
    );
}

#[test]
fn vault_superblock_encodes_to_golden_bytes() {
    let mut sent = [Epoch::default(); COPIES_MAX];
    sent[0] = Epoch { number: 5, draw: 0x66 };
    sent[1] = Epoch { number: 4, draw: 0x55 };
    let superblock = Superblock {
        vault: Uuid([0x11; 16]),
        sequence: 0x0102,
        epoch: Epoch { number: 5, draw: 0x66 },
        copy: 0,
        copies: 2,
        current: 1,
        geometry: Geometry { bytes: 1 << 20, log_bytes: 65536, pages: 100, directory_pages: 2 },
        checkpoint: 9,
        root: Some(Pointer { checkpoint: 9, home: 1, checksum: 0x0807_0605_0403_0201 }),
        tail: Position { offset: 8192, number: 3, previous: 0x77, epoch: 4 },
        sent,
        flushed: 0x0304,
        unknown_read_only: 0,
    };
    let mut golden = vec![0; 4096];
    put(&mut golden, 0, b"CAIRNVLT\x02");
    put(&mut golden, 16, &[0xc5, 0x87, 0x90, 0xf4, 0x83, 0x2f, 0x11, 0x39]);
    put(&mut golden, 48, &[0x11; 16]);
    put(&mut golden, 64, &[2, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0x66]);
    put(&mut golden, 88, &[0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
    put(&mut golden, 104, &[0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 100]);
    put(
        &mut golden,
        128,
        &[9, 0, 0, 0, 0, 0, 0, 0, 19, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
    );
    put(&mut golden, 152, &[0, 0x20, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x77]);
    put(&mut golden, 176, &[4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0x66]);
    put(&mut golden, 200, &[4, 0, 0, 0, 0, 0, 0, 0, 0x55]);
    put(&mut golden, 312, &[4, 3]);
    same(&superblock.encode(), &golden);
    assert_eq!(Superblock::decode(&golden), Ok(superblock));
}

#[test]
fn vault_log_record_encodes_to_golden_bytes() {
    let mut changes = Vec::new();
    for change in [
        Change { object: 1, from: 0x0100, verb: Verb::Write(&[0xaa, 0xbb]) },
        Change { object: 2, from: 8, verb: Verb::Fill(3, 0xcc) },
        Change { object: 3, from: 5, verb: Verb::Bits(9, true) },
    ] {
        change.encode(&mut changes);
    }
    let at = Position { offset: 0x3000, number: 7, previous: 0x99, epoch: 2 };
    let mut bytes = vec![0xee; PAGE_BYTES];
    let head = record::encode(Uuid([0x22; 16]), at, 5, 3, &[&changes], &mut bytes);
    let mut golden = vec![0; PAGE_BYTES];
    put(&mut golden, 0, b"CAIRNREC");
    put(&mut golden, 8, &[0xdc, 0x3e, 0x84, 0x4d, 0xe7, 0x03, 0x2f, 0xd6]);
    put(&mut golden, 16, &[0x22; 16]);
    put(&mut golden, 32, &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0x99]);
    put(&mut golden, 56, &[2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 154, 0, 0, 0, 3]);
    put(&mut golden, 80, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]);
    put(&mut golden, 104, &[0xaa, 0xbb]);
    put(&mut golden, 106, &[2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0xcc]);
    put(&mut golden, 130, &[3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3, 1]);
    same(&bytes, &golden);
    let (found, body) = record::decode(Uuid([0x22; 16]), &golden).expect("it is whole");
    assert_eq!((found, body), (head, &changes[..]));
    assert_eq!(record::decode(Uuid([0x23; 16]), &golden), None, "of another vault");
}

#[test]
fn vault_raise_encodes_to_golden_bytes() {
    let mut changes = Vec::new();
    Change { object: 2, from: 0x0110, verb: Verb::Raise(0x0300) }.encode(&mut changes);
    let mut golden = vec![0; 24 + 8];
    put(&mut golden, 0, &[2, 0, 0, 0, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 5]);
    put(&mut golden, 25, &[3]);
    same(&changes, &golden);
    let found = record::changes(&golden).unwrap();
    assert_eq!(found, [Change { object: 2, from: 0x0110, verb: Verb::Raise(0x0300) }]);
    golden[8] = 0x11;
    record::changes(&golden).unwrap_err();
}

#[test]
fn vault_data_changes_encode_to_golden_bytes() {
    let mut changes = Vec::new();
    let verb = Verb::Data(0x1000, 0x0807_0605_0403_0201);
    Change { object: 0, from: 0x0001_0000, verb }.encode(&mut changes);
    let mut golden = vec![0; 24 + 8];
    put(&mut golden, 10, &[1]);
    put(&mut golden, 17, &[0x10, 0, 0, 4, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    same(&changes, &golden);
    let found = record::changes(&golden).unwrap();
    assert_eq!(found[0].verb, verb);
    // The changed bytes: object, value.
    for at in [0, 21] {
        let mut wrong = golden.clone();
        wrong[at] ^= 2;
        assert!(record::changes(&wrong).is_err(), "byte {at}");
    }
    assert!(record::changes(&golden[..31]).is_err(), "the checksum is truncated");
}

#[test]
fn vault_page_and_pointer_encode_to_golden_bytes() {
    let mut page = Page::blank(3, 0x1234);
    page.content_mut()[..2].copy_from_slice(&[0xaa, 0xbb]);
    let pointer = page.seal(6, 1);
    let mut golden = vec![0; PAGE_BYTES];
    put(&mut golden, 8, &[6, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12]);
    put(&mut golden, 32, &[0xaa, 0xbb]);
    let sum = checksum(&golden[8..]);
    assert_eq!(sum.to_le_bytes(), [0xb9, 0x53, 0x2b, 0x45, 0xcf, 0xfb, 0xef, 0x24]);
    put(&mut golden, 0, &sum.to_le_bytes());
    same(page.bytes(), &golden);
    let mut bytes = vec![13, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(&sum.to_le_bytes());
    assert_eq!(Pointer::encode(Some(pointer))[..], bytes);
    assert!(Page::verify(&golden, 0x1234, &pointer).is_ok_and(|found| found == page));
    assert!(
        Page::verify(&golden, 0x1235, &pointer).is_err_and(|words| words.contains("page 4660"))
    );
    let older = Pointer { checkpoint: 5, ..pointer };
    assert!(
        Page::verify(&golden, 0x1234, &older)
            .is_err_and(|words| words.contains("has checkpoint 6"))
    );
}

#[test]
fn vault_directory_entry_encodes_to_golden_bytes() {
    let entry = Entry {
        number: 9,
        kind: ObjectKind::Array,
        advisory: true,
        owner: "map of a".to_owned(),
        role: 2,
        record_bytes: 8,
        length: 1000,
        epoch: 4,
        runs: vec![Run { first: 7, pages: 1 }, Run { first: 20, pages: 1 }],
    };
    let mut golden = vec![0; 508];
    put(&mut golden, 0, &[9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 1]);
    put(&mut golden, 16, b"map of a");
    put(&mut golden, 80, &[2, 0, 0, 0, 8, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0, 4]);
    put(&mut golden, 104, &[2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 20, 0, 0, 0, 1]);
    let slot = Slot::Entry(entry);
    same(&slot.encode(), &golden);
    assert_eq!(Slot::decode(&golden), Ok(slot));
    golden[8] = 0;
    assert_eq!(Slot::decode(&golden), Ok(Slot::Gone(9)));
    golden[8] = 9;
    assert!(Slot::decode(&golden).is_err(), "a kind that nobody knows");
}

/// Returns the disk bytes of the same vault as in [`IMAGE`], as the present code writes them.
fn image() -> Vec<u8> {
    let (world, trace) = (SimWorld::new(7), Trace::default());
    let env = world.env();
    let disks = scene::blank(1, &trace);
    block_on(&world, async {
        scene::format(&env, &disks).await;
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        scene::run(&vault, &trace, 1, 5).await.unwrap();
        env.sleep(2 * meta::vault::SEALED_AFTER).await;
    });
    disks[0].bytes.borrow().clone()
}

/// The disk bytes of a vault of format version 2, written by the first code of this version. The file has only the
/// runs of 64 bytes that are not zero, each behind its number.
const IMAGE: &[u8] = include_bytes!("version-2.image");

/// The disk bytes of a vault of format version 1, which this code refuses.
const OLD_IMAGE: &[u8] = include_bytes!("version-1.image");

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; scene::DISK_BYTES];
    for run in packed.chunks(68) {
        let number = u32::from_le_bytes(run[..4].try_into().expect("a run has a number"));
        bytes[number as usize * 64..][..64].copy_from_slice(&run[4..]);
    }
    bytes
}

#[test]
fn vault_open_refuses_image_of_format_version_1() {
    let world = SimWorld::new(8);
    let disks = [Disk::new(0, unpacked(OLD_IMAGE), &Trace::default())];
    let opened = block_on(&world, Vault::open(&world.env(), some(&disks), &SMALL));
    let error = opened.err().expect("the version is unknown");
    assert_eq!(error.kind(), block::ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 1; this Cairn reads only 2"), "{error}");
}

#[test]
fn vault_open_accepts_image_of_format_version_2() {
    let (world, trace) = (SimWorld::new(8), Trace::default());
    let env = world.env();
    let disks = [Disk::new(0, unpacked(IMAGE), &trace)];
    block_on(&world, async {
        let read_only = Options { read_only: true, ..SMALL };
        let vault = Vault::open(&env, some(&disks), &read_only).await.unwrap();
        assert_eq!(scene::shown(&vault).await.unwrap(), 5);
        assert_eq!(vault.uuid().to_string(), "37f6ef3d-2e3c-491f-b18c-1bffced07641");
        drop(vault);
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        scene::run(&vault, &trace, 6, 7).await.unwrap();
        assert_eq!(scene::shown(&vault).await.unwrap(), 7);
        let array = Array::<U64>::new(&vault, vault.find("scene", 1).unwrap());
        assert_eq!(array.get(577).await.unwrap(), U64::new(1));
    });
}

/// With `WRITE_IMAGE=FILE`, the test saves the packed image of the vault, for a new version of the format.
#[test]
fn packed_vault_image_unpacks_to_same_bytes() {
    let now = image();
    let runs = now.chunks(64).enumerate().filter(|(_, run)| run.iter().any(|byte| *byte != 0));
    let packed: Vec<u8> =
        runs.flat_map(|(n, run)| [&(n as u32).to_le_bytes()[..], run].concat()).collect();
    assert!(unpacked(&packed) == now);
    if let Ok(path) = std::env::var("WRITE_IMAGE") {
        #[allow(clippy::disallowed_methods, reason = "it keeps the golden image, when asked to")]
        std::fs::write(path, packed).unwrap();
    }
}

#[test]
fn vault_checksum_is_crc_64_nvme() {
    // This is the check value in the catalogue of CRCs.
    assert_eq!(checksum(b"123456789"), 0xae8b_1486_0a79_9888);
}
