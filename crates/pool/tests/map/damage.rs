//! Damaged nodes and wrong pointers are refused.

use block::ErrorKind;
use pool::map::{
    DeadChange, DeadEntry, Form, Found, FromIter, Layer, NODE_BYTES, Node, Place, Pointer, Reader,
    Reads, Root, Scan, SumKind, TreeKind, merge_dead, merge_rows, merge_runs, node_checksum,
};
use pool::{Address, NUMBER_MAX};

use crate::golden::{data, options, scattered, small_change_tree};
use crate::store::{TestStore, block_on};

/// Returns one node of each kind: bytes, pointer, and place.
fn one_of_each() -> Vec<(Vec<u8>, Pointer, Place)> {
    let store = TestStore::default();
    let mut found = Found::default();
    let entries = (1..200).map(|n| DeadEntry {
        death: n + 5,
        address: Address::from_bits(n),
        blocks: 1,
        birth: n,
        is_node: n % 2 == 0,
    });
    let tree = Root::empty(Form::dead(3));
    let dead =
        merge_dead(&store, &tree, FromIter(entries.map(DeadChange::Add)), options(1), &mut found);
    let dead = block_on(dead).unwrap().root;
    let rows = (0..50_u8).map(|n| (vec![n, n], Some(vec![n; 9])));
    let tree = Root::empty(Form::table(0, 2, 9));
    let rows =
        block_on(merge_rows(&store, &tree, FromIter(rows), options(1), &mut found)).unwrap().root;
    let roots =
        [small_change_tree(&store), scattered(&store, 1000), scattered(&store, 200), dead, rows];
    let of = |root: Root| {
        let (pointer, place) = root.root().unwrap();
        (store.nodes.borrow()[&pointer.address.bits()].clone(), pointer, place)
    };
    roots.into_iter().map(of).collect()
}

fn kind_of(bytes: &[u8], pointer: &Pointer, place: &Place) -> Option<ErrorKind> {
    Node::open(bytes, pointer, place).err().map(|error| error.kind())
}

#[test]
fn node_with_any_changed_byte_is_refused() {
    for (bytes, pointer, place) in one_of_each() {
        assert_eq!(kind_of(&bytes, &pointer, &place), None);
        for at in 0..NODE_BYTES {
            for change in [1, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                let is = kind_of(&bytes, &pointer, &place);
                assert_eq!(is, Some(ErrorKind::Corrupt), "byte {at} of {place:?}");
            }
        }
    }
}

/// Checksums protect against accidents. A node with a right checksum and wrong content must do no harm either.
#[test]
fn sealed_node_with_changed_byte_is_refused_or_read_without_panic() {
    let (mut refused, mut all) = (0, 0);
    for (bytes, pointer, place) in one_of_each() {
        let used = usize::from(u16::from_le_bytes([bytes[26], bytes[27]]));
        for at in 0..NODE_BYTES {
            for change in [1, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                let pointer = Pointer { checksum: node_checksum(&bytes), ..pointer };
                let opened = Node::open(&bytes, &pointer, &place);
                all += 1;
                refused += u64::from(opened.is_err());
                let is_fixed = (4..24).contains(&at) && at != 22 || at >= used;
                assert!(!is_fixed || opened.is_err(), "byte {at} of {place:?} is accepted");
            }
        }
    }
    assert!(refused > all / 3, "only {refused} of {all} were refused");
}

#[test]
fn node_of_newer_version_or_with_reserved_columns_is_unsupported() {
    let (bytes, pointer, place) = one_of_each().remove(0);
    let mut newer = bytes.clone();
    newer[4] = 2;
    let mut reserved = bytes;
    reserved[25] |= 1;
    for bytes in [newer, reserved] {
        let pointer = Pointer { checksum: node_checksum(&bytes), ..pointer };
        assert_eq!(kind_of(&bytes, &pointer, &place), Some(ErrorKind::Unsupported));
    }
}

#[test]
fn node_at_wrong_place_is_refused() {
    let (bytes, pointer, place) = one_of_each().remove(2);
    let form = place.form;
    let last = Node::open(&bytes, &pointer, &place).unwrap();
    let end = last.items() as u64 * 2 - 1;
    let wrong = [
        Place { level: 1, ..place },
        Place { form: Form { line: form.line + 1, ..form }, ..place },
        Place { form: Form { kind: TreeKind::Change, ..form }, ..place },
        Place { form: Form { sums: SumKind::Crc64, ..form }, ..place },
        Place { form: Form::table(form.line, 8, 8), ..place },
        Place { low: [1, 0, 0, 0], ..place },
        Place { high: Some([end - 1, 0, 0, 0]), ..place },
    ];
    for wrong in wrong {
        assert_eq!(kind_of(&bytes, &pointer, &wrong), Some(ErrorKind::Corrupt), "{wrong:?}");
    }
    let right = Place { high: Some([end, 0, 0, 0]), ..place };
    assert_eq!(kind_of(&bytes, &pointer, &right), None);
    let wrong = Pointer { birth: pointer.birth + 1, ..pointer };
    assert_eq!(kind_of(&bytes, &wrong, &place), Some(ErrorKind::Corrupt));
}

/// Replaces the first child of the root of a tree of two levels, and seals the root.
fn with_child(store: &TestStore, root: &Root, child: Pointer, level: u8) -> Root {
    let (top, _) = root.top.unwrap();
    let mut bytes = store.nodes.borrow()[&top.address.bits()].clone();
    // Built as a tree of one pointer would be: all columns have width 0.
    let second = 0_u64;
    let address = [child.address.extent(), u64::from(child.address.offset()), second, second];
    let numbers = [&child.key[..], &address, &[child.checksum, child.birth, child.newest]].concat();
    bytes[32..].fill(0);
    bytes[22..24].copy_from_slice(&[1, 0]);
    let present: u16 = (0..11).filter(|n| numbers[*n as usize] != 0).map(|n| 1 << n).sum();
    bytes[24..26].copy_from_slice(&present.to_le_bytes());
    let mut at = 32;
    for number in numbers.iter().filter(|number| **number != 0) {
        bytes[at + 1..at + 9].copy_from_slice(&number.to_le_bytes());
        at += 9;
    }
    bytes[26..28].copy_from_slice(&(at as u16).to_le_bytes());
    bytes[6] = level;
    let top = Pointer { checksum: node_checksum(&bytes), ..top };
    store.nodes.borrow_mut().insert(top.address.bits(), bytes);
    Root { top: Some((top, level + 1)), ..*root }
}

fn read_all(store: &TestStore, root: &Root) -> Result<(), ErrorKind> {
    block_on(async {
        let mut scan = Scan::new(store, root, [0; 4]);
        while scan.next_leaf().await?.is_some() {}
        let layers = [Layer { tree: *root, limit: NUMBER_MAX }];
        let mut reader = Reader::new(store, &layers)?;
        let (mut block, end) = (0, 4000);
        while block < end {
            block += reader.piece(block, end).await?.blocks;
        }
        Ok(())
    })
    .map_err(|error: block::Error| error.kind())
}

#[test]
fn node_that_points_to_itself_ends_in_error() {
    let store = TestStore::default();
    let root = scattered(&store, 1000);
    let (top, _) = root.top.unwrap();
    // The checksum of a node that contains its own checksum is not known. The store is asked as if it were right.
    for level in [1, 5, 11] {
        let own = Pointer { key: [0; 4], ..top };
        let looped = with_child(&store, &root, own, level);
        assert_eq!(read_all(&store, &looped), Err(ErrorKind::Corrupt));
    }
}

#[test]
fn pointer_to_node_of_other_line_kind_or_level_ends_in_error() {
    let store = TestStore::default();
    let root = scattered(&store, 1000);
    let (top, place) = root.root().unwrap();
    let node = block_on(store.read(&top, &place)).unwrap();
    let right = with_child(&store, &root, node.child(0), 1);
    assert_eq!(read_all(&store, &right), Ok(()));
    let other_line = Root::empty(Form::runs(TreeKind::Base, 8, SumKind::Crc32c));
    let change = Root::empty(Form::runs(TreeKind::Change, 7, SumKind::Crc32c));
    let mut found = Found::default();
    for tree in [other_line, change] {
        let runs = FromIter([data(0, 1, 70, 1, 1)].into_iter());
        let merged = merge_runs(&store, &tree, runs, false, options(1), &mut found);
        let (pointer, _) = block_on(merged).unwrap().root.top.unwrap();
        let wrong = with_child(&store, &root, pointer, 1);
        assert_eq!(read_all(&store, &wrong), Err(ErrorKind::Corrupt));
    }
    let deeper = with_child(&store, &root, node.child(0), 2);
    assert_eq!(read_all(&store, &deeper), Err(ErrorKind::Corrupt));
    let nowhere = Pointer { address: Address::from_bits(1 << 50), ..node.child(0) };
    let nowhere = with_child(&store, &root, nowhere, 1);
    assert_eq!(read_all(&store, &nowhere), Err(ErrorKind::Corrupt));
}

#[test]
fn descriptor_with_damaged_field_is_refused() {
    let store = TestStore::default();
    let good = scattered(&store, 1000).encode();
    let unused = [48..72, 40..46, 0..38, 76..78, 96..120];
    for at in 0..Root::BYTES {
        let mut bytes = good;
        bytes[at] ^= 0x55;
        let is_free = unused.iter().any(|range| range.contains(&at));
        assert!(is_free || Root::decode(&bytes).is_err(), "byte {at} is accepted");
    }
    for empty_field in [0..8, 48..56, 64..72] {
        let mut bytes = good;
        bytes[empty_field].fill(0);
        assert!(Root::decode(&bytes).is_err());
    }
    let mut flagged = good;
    flagged[78] = 1;
    assert_eq!(Root::decode(&flagged).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn tree_with_unknown_read_only_flag_is_read_and_not_changed() {
    let store = TestStore::default();
    let mut bytes = scattered(&store, 1000).encode();
    bytes[76] = 1;
    let root = Root::decode(&bytes).unwrap();
    assert_eq!(read_all(&store, &root), Ok(()));
    let mut found = Found::default();
    let runs = FromIter([data(0, 1, 70, 1, 1)].into_iter());
    let merged = block_on(merge_runs(&store, &root, runs, false, options(1), &mut found));
    assert_eq!(merged.unwrap_err().kind(), ErrorKind::ReadOnly);
}
