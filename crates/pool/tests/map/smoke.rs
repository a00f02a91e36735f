//! Runs the fuzz target of nodes over seeded inputs: damaged valid inputs, and random bytes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Result, error};
use pool::Address;
use pool::map::{
    DeadChange, DeadEntry, Form, Found, FromIter, MergeOptions, Node, Place, Pointer, Reads, Root,
    Run, RunChange, RunKind, Store, SumKind, Sums, TreeKind, merge_dead, merge_rows, merge_runs,
};

use crate::bodies;
use crate::store::block_on;

#[derive(Default)]
struct Written(RefCell<BTreeMap<u64, Vec<u8>>>);

impl Reads for Written {
    async fn read(&self, pointer: &Pointer, _: &Place) -> Result<Rc<Node>> {
        Err(error!(Corrupt, "a new tree reads nothing, and not {:?}", pointer.address))
    }

    async fn rest(&self) {}
}

impl Store for Written {
    fn allocate(&self) -> Result<Address> {
        Ok(Address::from_bits(self.0.borrow().len() as u64 + 1))
    }

    async fn write(&self, address: Address, _: Option<Address>, node: Rc<Node>) -> Result<()> {
        self.0.borrow_mut().insert(address.bits(), node.bytes().to_vec());
        Ok(())
    }
}

fn run(n: u64) -> RunChange {
    let kind = if n.is_multiple_of(5) { RunKind::HOLE } else { RunKind::DATA };
    let (address, blocks) = (Address::from_bits(n * 9 + 1), n % 3 + 1);
    let run = Run { block: n * 4, blocks, kind, address, birth: n + 2, first: n / 2 };
    RunChange { run, sums: Sums::new(&vec![n as u8; blocks as usize * 4]) }
}

/// Returns small nodes of all kinds, without their zeros, so that the damage hits the content.
fn nodes() -> Vec<Vec<u8>> {
    let (store, mut found) = (Written::default(), Found::default());
    let options = MergeOptions { birth: 1000, leaves_max: None };
    let form = |kind| Root::empty(Form::runs(kind, bodies::LINE, SumKind::Crc32c));
    block_on(async {
        for (kind, count) in [(TreeKind::Change, 12), (TreeKind::Base, 900)] {
            let runs = FromIter((0..count).map(run));
            merge_runs(&store, &form(kind), runs, true, options, &mut found).await?;
        }
        let versions = (0..6).map(|n| {
            let mut change = run(1);
            change.run.birth += n;
            change
        });
        let interval = form(TreeKind::Interval);
        merge_runs(&store, &interval, FromIter(versions), true, options, &mut found).await?;
        let entry = |n| DeadEntry {
            death: n + 3,
            address: Address::from_bits(n * 5 + 1),
            blocks: n % 4 + 1,
            birth: n,
            is_node: n == 7,
        };
        let entries = FromIter((0..20).map(entry).map(DeadChange::Add));
        let dead = Root::empty(Form::dead(bodies::LINE));
        merge_dead(&store, &dead, entries, options, &mut found).await?;
        let rows = FromIter((0..9_u8).map(|n| (vec![n, 1], Some(vec![n; 9]))));
        let table = Root::empty(Form::table(bodies::LINE, 2, 9));
        merge_rows(&store, &table, rows, options, &mut found).await
    })
    .expect("memory does not fail");
    let used = |bytes: &Vec<u8>| usize::from(u16::from_le_bytes([bytes[26], bytes[27]]));
    store.0.take().into_values().map(|bytes| bytes[..used(&bytes)].to_vec()).collect()
}

#[test]
fn map_node_decoder_survives_fuzzed_nodes() {
    let mut opened = 0;
    testkit::smoke(&nodes(), |input| opened += u64::from(bodies::node(input)));
    assert!(opened > testkit::INPUTS / 10, "{opened} of {} were nodes", testkit::INPUTS);
}

#[test]
fn map_descriptor_decoder_survives_fuzzed_descriptors() {
    let tree = Root::empty(Form::table(3, 2, 9));
    let mut whole = vec![tree.encode().to_vec()];
    let (store, mut found) = (Written::default(), Found::default());
    let options = MergeOptions { birth: 1, leaves_max: None };
    let rows = FromIter((0..9_u8).map(|n| (vec![n, 1], Some(vec![n; 9]))));
    let merged = merge_rows(&store, &tree, rows, options, &mut found);
    whole.push(block_on(merged).expect("memory does not fail").root.encode().to_vec());
    let mut decoded = 0;
    testkit::smoke(&whole, |input| decoded += u64::from(bodies::descriptor(input)));
    assert!(decoded > testkit::INPUTS / 10, "{decoded} of {} were descriptors", testkit::INPUTS);
}
