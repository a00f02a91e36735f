//! Tables and dead entries against sorted maps.

use std::collections::BTreeMap;

use pool::Address;
use pool::map::{DeadChange, DeadEntry, Form, Found, FromIter, Root, Scan, merge_dead, merge_rows};
use proptest::prelude::*;

use crate::golden::options;
use crate::store::{TestStore, block_on};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn read_rows(store: &TestStore, root: &Root) -> Rows {
    block_on(async {
        let mut rows = Rows::new();
        let mut scan = Scan::new(store, root, [0; 4]);
        while let Some(leaf) = scan.next_leaf().await.unwrap() {
            for n in 0..leaf.items() {
                let (key, value) = leaf.row(n, &root.form);
                rows.insert(key.to_vec(), value.to_vec());
            }
        }
        rows
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    #[test]
    fn table_equals_sorted_map_after_merges(
        merges in prop::collection::vec(
            prop::collection::btree_map(0..3000_u32, prop::option::weighted(0.7, any::<u8>()), 1..600),
            1..8,
        )
    ) {
        let store = TestStore::default();
        let mut root = Root::empty(Form::table(3, 20, 45));
        let mut rows = Rows::new();
        let key = |number: u32| [number.to_be_bytes().as_slice(), &[0; 12], &number.to_be_bytes()].concat();
        for merge in merges {
            let changes: Vec<_> =
                merge.iter().map(|(number, value)| (key(*number), value.map(|byte| vec![byte; 45]))).collect();
            for (key, value) in &changes {
                match value {
                    Some(value) => { rows.insert(key.clone(), value.clone()); }
                    None => { rows.remove(key); }
                }
            }
            let mut found = Found::default();
            let changes = FromIter(changes.into_iter());
            root = block_on(merge_rows(&store, &root, changes, options(9), &mut found)).unwrap().root;
            found.nodes.iter().for_each(|node| store.free_node(node.address));
            prop_assert_eq!(store.nodes.borrow().len() as u64, root.nodes);
            prop_assert_eq!(root.items, rows.len() as u64);
            prop_assert_eq!(Root::decode(&root.encode()).unwrap(), root);
        }
        prop_assert_eq!(read_rows(&store, &root), rows);
    }
}

#[test]
fn dead_entries_are_removed_by_key_from_tree_of_several_levels() {
    let store = TestStore::default();
    let entry = |n: u64| DeadEntry {
        death: 10 + n / 5,
        address: Address::from_bits(((n % 40 + 1) << 20) | (n % 900)),
        blocks: 1 + n % 3,
        birth: n % 9,
        is_node: n.is_multiple_of(7),
    };
    let mut entries: Vec<_> = (1..20_000).map(entry).collect();
    entries.sort_unstable();
    entries.dedup_by_key(|entry| (entry.death, entry.address));
    let mut found = Found::default();
    let adds = FromIter(entries.iter().map(|entry| DeadChange::Add(*entry)));
    let tree = Root::empty(Form::dead(1));
    let root = block_on(merge_dead(&store, &tree, adds, options(1), &mut found)).unwrap().root;
    assert!(root.top.unwrap().1 >= 2 && root.items == entries.len() as u64);
    let removes =
        FromIter(entries.iter().filter(|it| it.birth != 4).map(|it| DeadChange::Remove(*it)));
    let root = block_on(merge_dead(&store, &root, removes, options(2), &mut found)).unwrap().root;
    let left: Vec<_> = entries.iter().filter(|entry| entry.birth == 4).copied().collect();
    let is: Vec<_> = crate::golden::leaves(&store, &root)
        .iter()
        .flat_map(|leaf| (0..leaf.items()).map(|n| leaf.dead(n)).collect::<Vec<_>>())
        .collect();
    assert_eq!(is, left);
}
