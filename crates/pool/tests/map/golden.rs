//! Fixed bytes of version 1 of each kind of node, and round trips.

use std::rc::Rc;

use pool::Address;
use pool::map::{
    DeadChange, DeadEntry, Form, Found, FromIter, MergeOptions, NODE_BYTES, Node, Pointer, Reads,
    Root, Run, RunChange, RunKind, Scan, SumKind, Sums, TreeKind, merge_dead, merge_rows,
    merge_runs,
};

use crate::store::{TestStore, block_on};

/// Returns bytes with some parts set, and zeros elsewhere.
pub fn parts(parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; NODE_BYTES];
    for (at, part) in parts {
        bytes[*at..*at + part.len()].copy_from_slice(part);
    }
    bytes
}

#[track_caller]
fn same(is: &[u8], should: &[u8]) {
    assert_eq!(is.len(), should.len());
    if let Some(at) = is.iter().zip(should).position(|(is, should)| is != should) {
        let from = at / 8 * 8;
        panic!(
            "from byte {from}: {:02x?}, not {:02x?}",
            &is[from..from + 24],
            &should[from..from + 24]
        );
    }
}

pub fn options(birth: u64) -> MergeOptions {
    MergeOptions { birth, leaves_max: None }
}

pub fn data(block: u64, blocks: u64, bits: u64, birth: u64, first: u64) -> RunChange {
    let run =
        Run { block, blocks, kind: RunKind::DATA, address: Address::from_bits(bits), birth, first };
    let sums: Vec<u8> = (0..blocks * 4).map(|n| (bits + n) as u8).collect();
    RunChange { run, sums: Sums::new(&sums) }
}

pub fn hole(block: u64, blocks: u64, birth: u64, first: u64) -> RunChange {
    let address = Address::from_bits(0);
    let run = Run { block, blocks, kind: RunKind::HOLE, address, birth, first };
    RunChange { run, sums: Sums::NONE }
}

/// Returns a change tree with two runs of data and a hole between them.
pub fn small_change_tree(store: &TestStore) -> Root {
    let form = Form::runs(TreeKind::Change, 0x0102, SumKind::Crc32c);
    let runs = [data(0x100, 3, 5 << 20 | 7, 0x31, 0x30), hole(0x200, 1 << 30, 0x33, 0x33)];
    let runs = runs.into_iter().chain([data(1 << 35, 1, 6 << 20 | 1, 0x30, 0x30)]);
    let tree = Root::empty(form);
    let mut found = Found::default();
    let merged = merge_runs(store, &tree, FromIter(runs), false, options(0x34), &mut found);
    block_on(merged).unwrap().root
}

fn bytes_at(store: &TestStore, pointer: &Pointer) -> Vec<u8> {
    store.nodes.borrow()[&pointer.address.bits()].clone()
}

#[test]
fn leaf_of_runs_encodes_to_golden_bytes() {
    let store = TestStore::default();
    let root = small_change_tree(&store);
    let (pointer, levels) = root.top.unwrap();
    assert_eq!((levels, root.items, root.nodes), (1, 3, 1));
    assert_eq!(root.blocks, 4 + (1 << 30));
    same(&bytes_at(&store, &pointer), &golden_leaf());
}

/// The bytes of the leaf of [`small_change_tree`].
fn golden_leaf() -> Vec<u8> {
    let width_and_base = |width: u8, base: u64| {
        let mut all = vec![width];
        all.extend(base.to_le_bytes());
        all
    };
    let descriptors = [
        width_and_base(35, 0x100),
        width_and_base(30, 0),
        width_and_base(6, 0),
        width_and_base(1, 5),
        width_and_base(3, 1),
        width_and_base(2, 0x30),
        width_and_base(1, 0),
        width_and_base(2, 0),
    ]
    .concat();
    // 80 bits an item: 35 bits a block, 30 bits a length, and so on. The length of the hole is 2^30 - 1 more than 1.
    let items: [[u128; 8]; 3] = [
        [0, 2, 0, 0, 6, 1, 1, 0],
        [0x100, (1 << 30) - 1, 0x21, 0, 0, 3, 0, 3],
        [(1 << 35) - 0x100, 0, 0, 1, 0, 0, 0, 3],
    ];
    let starts = [0, 35, 65, 71, 72, 75, 77, 78];
    let item = |numbers: [u128; 8]| {
        let bits: u128 = numbers.iter().zip(starts).map(|(number, start)| number << start).sum();
        bits.to_le_bytes()[..10].to_vec()
    };
    let mut columns = items.map(item).concat();
    columns.extend((7..19).chain(1..5));
    let used = (32 + descriptors.len() + columns.len()) as u16;
    let mut golden = parts(&[
        (0, b"CNOD\x01\x02\x00\x04\x02\x01"),
        (16, &[0x34, 0, 0, 0, 0, 0, 3, 0, 0xff, 0]),
        (28, &[4, 0]),
        (32, &descriptors),
        (32 + descriptors.len(), &columns),
    ]);
    golden[26..28].copy_from_slice(&used.to_le_bytes());
    golden
}

#[test]
fn descriptor_of_tree_encodes_to_golden_bytes() {
    let store = TestStore::default();
    let root = small_change_tree(&store);
    let mut golden = [0; Root::BYTES];
    // The first address of the store of these tests is block 2 of extent 0.
    golden[0] = 2;
    let sum = pool::map::node_checksum(&golden_leaf());
    golden[16..24].copy_from_slice(&sum.to_le_bytes());
    golden[24..26].copy_from_slice(&[2, 1]);
    golden[32] = 0x34;
    golden[38..41].copy_from_slice(&[2, 1, 0x33]);
    golden[46..49].copy_from_slice(&[1, 4, 3]);
    golden[56..64].copy_from_slice(&(4_u64 + (1 << 30)).to_le_bytes());
    golden[64] = 1;
    assert_eq!(root.encode(), golden);
    assert_eq!(Root::decode(&golden).unwrap(), root);
    let empty = Root::empty(Form::dead(9));
    assert_eq!(Root::decode(&empty.encode()).unwrap(), empty);
}

#[test]
fn leaf_of_dead_entries_encodes_to_golden_bytes() {
    let store = TestStore::default();
    let entry = |death, bits, blocks, is_node| DeadEntry {
        death,
        address: Address::from_bits(bits),
        blocks,
        birth: 5,
        is_node,
    };
    let entries = [entry(8, 1 << 20 | 4, 3, false), entry(9, 1, 1, true)];
    let tree = Root::empty(Form::dead(3));
    let changes = FromIter(entries.into_iter().map(DeadChange::Add));
    let mut found = Found::default();
    let root = block_on(merge_dead(&store, &tree, changes, options(7), &mut found)).unwrap().root;
    let golden = parts(&[
        (0, &[b'C', b'N', b'O', b'D', 1, 4, 0, 0, 3]),
        (16, &[7, 0, 0, 0, 0, 0, 2, 0, 0x3f, 0, 88, 0]),
        (32, &[1, 8]),
        (41, &[1, 0]),
        (50, &[2, 1]),
        (59, &[2, 0]),
        (68, &[0, 5]),
        (77, &[1, 0]),
        // Seven bits an entry: 0, 1, 3, 2, 0 in 1, 1, 2, 2, 1 bits; then 1, 0, 0, 0, 1.
        (86, &[0xae, 0x20]),
    ]);
    same(&bytes_at(&store, &root.top.unwrap().0), &golden);
    // Blocks of nodes do not count.
    assert_eq!(root.blocks, 3);
}

#[test]
fn leaf_of_rows_encodes_to_golden_bytes() {
    let store = TestStore::default();
    let tree = Root::empty(Form::table(0, 2, 3));
    let rows = [(vec![1, 2], Some(vec![3, 4, 5])), (vec![2, 0], Some(vec![6, 7, 8]))];
    let mut found = Found::default();
    let merged = merge_rows(&store, &tree, FromIter(rows.into_iter()), options(1), &mut found);
    let root = block_on(merged).unwrap().root;
    let golden = parts(&[
        (0, &[b'C', b'N', b'O', b'D', 1, 5]),
        (16, &[1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 42, 0, 2, 0, 3, 0]),
        (32, &[1, 2, 3, 4, 5, 2, 0, 6, 7, 8]),
    ]);
    same(&bytes_at(&store, &root.top.unwrap().0), &golden);
}

/// Returns a tree of so many runs of one block, at every other block.
pub fn scattered(store: &TestStore, runs: u64) -> Root {
    let tree = Root::empty(Form::runs(TreeKind::Base, 7, SumKind::Crc32c));
    let runs = FromIter(
        (0..runs).map(|n| data(n * 2, 1, (n % 50 + 1) << 20 | (n * 7 % 60 + 1), n + 1, 1)),
    );
    let mut found = Found::default();
    block_on(merge_runs(store, &tree, runs, false, options(1 << 20), &mut found)).unwrap().root
}

#[test]
fn inner_node_encodes_to_golden_head_and_pointers() {
    let store = TestStore::default();
    let root = scattered(&store, 1000);
    let (pointer, place) = root.root().unwrap();
    assert_eq!(place.level, 1);
    let node = block_on(store.read(&pointer, &place)).unwrap();
    let is = bytes_at(&store, &pointer);
    let golden = parts(&[
        (0, &[b'C', b'N', b'O', b'D', 1, 1, 1, 0, 7]),
        // Keys of one word, an address, a checksum, a birth and a newest birth.
        (16, &[0, 0, 0x10, 0, 0, 0, node.items() as u8, 0, 0b0111_0001, 0b111]),
    ]);
    let present = u16::from_le_bytes([is[24], is[25]]);
    assert_eq!(present & !0b1_0000, 0b111_0010_0001, "{present:#b}");
    same(&is[..24], &golden[..24]);
    assert_eq!(node.child(0).key, [0; 4]);
    assert_eq!(node.child(node.items() - 1).newest, 1000);
}

/// Returns all leaves of a tree.
pub fn leaves(store: &TestStore, root: &Root) -> Vec<Rc<Node>> {
    block_on(async {
        let mut scan = Scan::new(store, root, [0; 4]);
        let mut leaves = Vec::new();
        while let Some(leaf) = scan.next_leaf().await.unwrap() {
            leaves.push(leaf);
        }
        leaves
    })
}

#[test]
fn leaves_of_dense_merge_are_full() {
    let store = TestStore::default();
    let root = scattered(&store, 10_000);
    let leaves = leaves(&store, &root);
    let used = |node: &Node| u16::from_le_bytes([node.bytes()[26], node.bytes()[27]]);
    let full = leaves.iter().filter(|leaf| used(leaf) > 4000).count();
    assert!(full + 2 >= leaves.len(), "{full} of {} leaves are full", leaves.len());
}
