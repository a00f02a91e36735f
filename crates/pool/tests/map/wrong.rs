//! Rules that are broken on purpose. The model of `line.rs` must notice each of them.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::line::Wrong;
use crate::model::{run_small, small_histories};

/// Histories that are tried for each wrong rule.
const HISTORIES: usize = 400;

fn is_noticed(wrong: Wrong) -> bool {
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    (0..HISTORIES).any(|_| {
        let steps = small_histories().new_tree(&mut runner).expect("a history").current();
        run_small(&steps, Some(wrong)).is_err()
    })
}

#[test]
fn model_notices_node_born_when_written() {
    assert!(is_noticed(Wrong::NodeBornWhenWritten));
}

#[test]
fn model_notices_last_overwrite_taken_for_first() {
    assert!(is_noticed(Wrong::LastOverwrite));
}

#[test]
fn model_notices_head_removed_without_merge() {
    assert!(is_noticed(Wrong::HeadNotMerged));
}

#[test]
fn model_notices_version_freed_by_tree_and_by_dead_entries() {
    assert!(is_noticed(Wrong::LaterDeadStay));
}

#[test]
fn model_notices_dropped_hole() {
    assert!(is_noticed(Wrong::HoleDropped));
}

#[test]
fn model_notices_interval_tree_born_at_its_end() {
    assert!(is_noticed(Wrong::IntervalBornLate));
}

#[test]
fn model_notices_interval_tree_without_last_birth() {
    assert!(is_noticed(Wrong::IntervalLacksLast));
}
