//! The node cache against a sorted map.

use std::collections::BTreeMap;
use std::rc::Rc;

use pool::Address;
use pool::map::{Node, NodeCache};
use proptest::prelude::*;

use crate::golden::{leaves, scattered};
use crate::store::TestStore;

fn some_nodes() -> Vec<Rc<Node>> {
    let store = TestStore::default();
    let root = scattered(&store, 3000);
    leaves(&store, &root)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    #[test]
    fn node_cache_returns_last_node_of_address_or_none(
        steps in prop::collection::vec((0..3_u8, 0..40_u64, 0..8_usize), 1..400)
    ) {
        let nodes = some_nodes();
        let mut cache = NodeCache::new(16);
        let mut model: BTreeMap<u64, usize> = BTreeMap::new();
        for (step, number, node) in steps {
            // The lower bits of all addresses are alike, so some searches collide.
            let address = Address::from_bits(number << 32);
            let node = node % nodes.len();
            match step {
                0 => {
                    cache.insert(address, nodes[node].clone());
                    model.insert(number, node);
                }
                1 => {
                    cache.remove(address);
                    model.remove(&number);
                }
                _ => {
                    let got = cache.get(address);
                    let is_right = got.as_ref().is_none_or(|got| {
                        model.get(&number).is_some_and(|node| Rc::ptr_eq(got, &nodes[*node]))
                    });
                    prop_assert!(is_right, "address {number} has the wrong node");
                    if got.is_none() {
                        model.remove(&number);
                    }
                }
            }
            prop_assert!(cache.len() <= 16);
        }
        let there = model.keys().filter(|number| cache.peek(Address::from_bits(**number << 32)).is_some());
        prop_assert_eq!(there.count(), cache.len());
    }
}

#[test]
fn node_cache_keeps_used_nodes_during_scan() {
    let nodes = some_nodes();
    let mut cache = NodeCache::new(10);
    let at = |number: u64| Address::from_bits(number + 1);
    for number in 0..1000 {
        for used in 0..5 {
            let node = cache.get(at(used)).unwrap_or_else(|| nodes[0].clone());
            cache.insert(at(used), node);
        }
        cache.insert(at(100 + number), nodes[0].clone());
    }
    assert_eq!(cache.len(), 10);
    assert!((0..5).all(|used| cache.peek(at(used)).is_some()), "a used node was replaced");
}
