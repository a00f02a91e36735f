//! Random histories of lines, against flat copies of every version.

use block::Result;
use pool::map::Number;
use proptest::prelude::*;

use crate::line::{Pool, Wrong};
use crate::store::block_on;

/// A step of a history. Lines and snapshots are picked by a number modulo those that there are.
#[derive(Clone, Debug)]
pub enum Step {
    Write {
        line: usize,
        block: u64,
        blocks: u64,
        is_hole: bool,
    },
    /// Many writes of one block each.
    Scatter {
        line: usize,
        seed: u64,
        count: u64,
    },
    Snapshot {
        line: usize,
    },
    Checkpoint {
        line: usize,
        is_new_tree: bool,
    },
    Fold {
        line: usize,
        tree: usize,
        leaves: Option<u64>,
    },
    Remove {
        line: usize,
        snapshot: usize,
    },
    Clone {
        line: usize,
        snapshot: usize,
    },
    RemoveHead {
        line: usize,
    },
}

/// Blocks of the vdisks.
const FEW: u64 = 12;
const MANY: u64 = 3000;

/// Returns the n-th number of a fixed sequence that looks random.
fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

fn snapshot_of(pool: &Pool, line: usize, pick: usize) -> Option<Number> {
    let line = &pool.lines[line];
    let numbers: Vec<Number> = line.kept.numbers().filter(|it| !line.held.contains(it)).collect();
    (!numbers.is_empty()).then(|| numbers[pick % numbers.len()])
}

async fn step(pool: &mut Pool, step: &Step, blocks_in_all: u64) -> Result<()> {
    let lines = pool.lines.len();
    match *step {
        Step::Remove { line, snapshot } => {
            let line = line % lines;
            if let Some(number) = snapshot_of(pool, line, snapshot) {
                pool.remove(line, number).await?;
            }
            return Ok(());
        }
        Step::Clone { line, snapshot } => {
            let line = line % lines;
            let numbers: Vec<Number> = pool.lines[line].kept.numbers().collect();
            if lines < 4 && !numbers.is_empty() {
                pool.clone_of(line, numbers[snapshot % numbers.len()]);
            }
            return Ok(());
        }
        _ => {}
    }
    let with_heads: Vec<usize> = (0..lines).filter(|line| pool.lines[*line].has_head()).collect();
    let pick = |line: usize| with_heads.get(line % with_heads.len().max(1)).copied();
    match *step {
        Step::Write { line, block, blocks, is_hole } => {
            let Some(line) = pick(line) else { return Ok(()) };
            let block = block % blocks_in_all;
            pool.write(line, block, blocks.min(blocks_in_all - block), is_hole);
        }
        Step::Scatter { line, seed, count } => {
            let Some(line) = pick(line) else { return Ok(()) };
            for n in 0..count {
                let number = mixed(seed << 20 | n);
                pool.write(line, number % blocks_in_all, 1, number >> 40 & 15 == 0);
            }
        }
        Step::Snapshot { line } => {
            pick(line).into_iter().for_each(|line| pool.snapshot(line));
        }
        Step::Checkpoint { line, is_new_tree } => {
            let Some(line) = pick(line) else { return Ok(()) };
            pool.checkpoint(line, is_new_tree).await?;
        }
        Step::Fold { line, tree, leaves } => {
            let Some(line) = pick(line) else { return Ok(()) };
            pool.fold(line, tree, leaves).await?;
        }
        Step::RemoveHead { line } => {
            let Some(line) = pick(line) else { return Ok(()) };
            pool.remove_head(line).await?;
        }
        Step::Remove { .. } | Step::Clone { .. } => {}
    }
    Ok(())
}

/// Removes everything that is left: heads, then snapshots, clones before their origins.
async fn remove_all(pool: &mut Pool) -> Result<()> {
    for line in (0..pool.lines.len()).rev() {
        if pool.lines[line].has_head() {
            pool.remove_head(line).await?;
        }
        let numbers: Vec<Number> = pool.lines[line].kept.numbers().collect();
        for (n, number) in numbers.iter().enumerate() {
            // From both ends.
            let number = if n % 2 == 0 { *number } else { numbers[numbers.len() - n / 2 - 1] };
            let number = if pool.lines[line].kept.numbers().any(|it| it == number) {
                number
            } else {
                pool.lines[line].kept.numbers().next_back().expect("one is left")
            };
            pool.remove(line, number).await?;
        }
    }
    Ok(())
}

/// Runs a history, and checks everything after each step, or at the end only.
///
/// # Errors
/// The first violation.
pub fn run(
    steps: &[Step],
    blocks: u64,
    is_checked_often: bool,
    wrong: Option<Wrong>,
) -> std::result::Result<(), String> {
    block_on(async {
        let mut pool = Pool::new(wrong, steps.len().is_multiple_of(2));
        for one in steps {
            step(&mut pool, one, blocks).await.map_err(|error| error.to_string())?;
            if is_checked_often {
                pool.check().await?;
            }
        }
        pool.check().await?;
        remove_all(&mut pool).await.map_err(|error| error.to_string())?;
        pool.check().await?;
        match pool.store.nodes.borrow().len() {
            0 => Ok(()),
            left => Err(format!("{left} nodes are left of nothing")),
        }
    })
}

fn any_step(blocks_max: u64, scatter_max: u64) -> impl Strategy<Value = Step> {
    let line = 0..4_usize;
    let write = (line.clone(), any::<u64>(), 1..=blocks_max, prop::bool::weighted(0.25));
    let leaves = prop_oneof![Just(None), (1..4_u64).prop_map(Some)];
    prop_oneof![
        6 => write.prop_map(|(line, block, blocks, is_hole)| {
            Step::Write { line, block, blocks, is_hole }
        }),
        3 => (line.clone(), 0..1_u64 << 20, 1..=scatter_max)
            .prop_map(|(line, seed, count)| Step::Scatter { line, seed, count }),
        5 => line.clone().prop_map(|line| Step::Snapshot { line }),
        4 => (line.clone(), any::<bool>())
            .prop_map(|(line, is_new_tree)| Step::Checkpoint { line, is_new_tree }),
        4 => (line.clone(), 0..3_usize, leaves)
            .prop_map(|(line, tree, leaves)| Step::Fold { line, tree, leaves }),
        3 => (line.clone(), any::<usize>())
            .prop_map(|(line, snapshot)| Step::Remove { line, snapshot }),
        1 => (line.clone(), any::<usize>())
            .prop_map(|(line, snapshot)| Step::Clone { line, snapshot }),
        1 => line.prop_map(|line| Step::RemoveHead { line }),
    ]
}

/// Histories over few blocks, so that all meet each other.
pub fn small_histories() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any_step(FEW, 3), 1..50)
}

/// Runs a history over few blocks.
///
/// # Errors
/// The first violation.
pub fn run_small(steps: &[Step], wrong: Option<Wrong>) -> std::result::Result<(), String> {
    run(steps, FEW, true, wrong)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    #[test]
    fn map_versions_read_right_and_space_is_freed_once_in_small_histories(
        steps in small_histories()
    ) {
        prop_assert_eq!(run_small(&steps, None), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]
    #[test]
    fn map_versions_read_right_and_space_is_freed_once_with_trees_of_several_levels(
        steps in prop::collection::vec(any_step(700, 1500), 1..20)
    ) {
        prop_assert_eq!(run(&steps, MANY, false, None), Ok(()));
    }
}
