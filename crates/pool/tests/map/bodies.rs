//! Bodies of the fuzz target of nodes. `fuzz/` includes this file, and `smoke.rs` runs the bodies over a few thousand inputs
//! in each `cargo test`.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use block::{Result, error};
use pool::Address;
use pool::map::{
    Form, Found, FromIter, MergeOptions, NODE_BYTES, Node, Place, Pointer, Reads, Root, Run,
    RunChange, Scan, Store, SumKind, Sums, TreeKind, merge_runs, node_checksum,
};

/// Line of the trees of these inputs.
pub const LINE: u64 = 7;

/// Returns the places that a fuzzed node may have: one of each kind.
pub fn places() -> Vec<Place> {
    let runs = |kind| Form::runs(kind, LINE, SumKind::Crc32c);
    let forms = [
        runs(TreeKind::Base),
        runs(TreeKind::Change),
        runs(TreeKind::Interval),
        Form::dead(LINE),
        Form::table(LINE, 2, 9),
    ];
    let place = |form, level| Place { form, level, low: [0; 4], high: None };
    forms.into_iter().flat_map(|form| [0, 1].map(|level| place(form, level))).collect()
}

/// Nodes in memory.
#[derive(Default)]
struct Nodes(RefCell<Vec<Rc<Node>>>);

impl Reads for Nodes {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        let nodes = self.0.borrow();
        let node = nodes.get(pointer.address.bits() as usize - 1);
        let node = node.ok_or_else(|| error!(Corrupt, "no node is at {:?}", pointer.address))?;
        Node::open(node.bytes(), pointer, place)
    }

    async fn rest(&self) {}
}

impl Store for Nodes {
    fn allocate(&self) -> Result<Address> {
        Ok(Address::from_bits(self.0.borrow().len() as u64 + 1))
    }

    async fn write(&self, _: Address, _: Option<Address>, node: Rc<Node>) -> Result<()> {
        self.0.borrow_mut().push(node);
        Ok(())
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("memory does not wait"),
    }
}

/// Decodes fuzzed bytes as a node of each kind, with the checksum and the birth that they have. All items are read,
/// and a leaf of runs is encoded again. Returns whether the bytes are a node.
pub fn node(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    bytes.resize(NODE_BYTES, 0);
    let mut birth = [0; 8];
    birth[..6].copy_from_slice(&bytes[16..22]);
    let pointer = Pointer {
        key: [0; 4],
        address: Address::from_bits(1),
        second: None,
        checksum: node_checksum(&bytes),
        birth: u64::from_le_bytes(birth),
        newest: 0,
    };
    let opened = places().into_iter().map(|place| {
        let Ok(node) = Node::open(&bytes, &pointer, &place) else { return false };
        read(&node, &place);
        true
    });
    opened.fold(false, |any, one| any | one)
}

fn read(node: &Rc<Node>, place: &Place) {
    for n in 0..node.items() {
        match (place.level, place.form.kind) {
            (1.., _) => drop(node.child(n)),
            (0, TreeKind::Dead) => drop(node.dead(n)),
            (0, TreeKind::Table) => assert_eq!(node.row(n, &place.form).1.len(), 9),
            (0, _) => drop(node.run(n)),
        }
    }
    if place.level == 0 && place.form.kind == TreeKind::Change {
        encode_again(node, place.form);
    }
}

/// The runs of a leaf, with their checksums.
fn runs(node: &Node) -> Vec<(Run, Vec<u8>)> {
    (0..node.items()).map(|n| (node.run(n), node.run_sums(n, &node.run(n), 4).to_vec())).collect()
}

/// Encodes the runs of a leaf again. All blocks must have the same addresses, births and checksums.
fn encode_again(node: &Node, form: Form) {
    let before = runs(node);
    let changes = before.iter().map(|(run, sums)| RunChange { run: *run, sums: Sums::new(sums) });
    let (store, mut found) = (Nodes::default(), Found::default());
    let tree = Root::empty(form);
    let options = MergeOptions { birth: 1, leaves_max: None };
    let merged = merge_runs(&store, &tree, FromIter(changes), true, options, &mut found);
    let root = block_on(merged).expect("what was read can be written").root;
    let mut after = Vec::new();
    block_on(async {
        let mut scan = Scan::new(&store, &root, [0; 4]);
        while let Some(leaf) = scan.next_leaf().await.expect("what was written can be read") {
            after.extend(runs(&leaf));
        }
    });
    assert_eq!(joined(before), joined(after));
}

/// Joins runs that continue each other, as an encoder may.
fn joined(runs: Vec<(Run, Vec<u8>)>) -> Vec<(Run, Vec<u8>)> {
    let mut all: Vec<(Run, Vec<u8>)> = Vec::new();
    for (run, sums) in runs {
        if let Some((last, before)) = all.last_mut()
            && let Some(both) = last.joined(&run)
        {
            *last = both;
            before.extend(sums);
        } else {
            all.push((run, sums));
        }
    }
    all
}

/// Decodes fuzzed bytes as the descriptor of a tree. A decoded descriptor is the same after encoding and decoding.
pub fn descriptor(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    bytes.resize(Root::BYTES, 0);
    let bytes = bytes.try_into().expect("it has the length of a descriptor");
    let Ok(root) = Root::decode(&bytes) else { return false };
    assert_eq!(Root::decode(&root.encode()).expect("what was read is valid"), root);
    true
}
