//! Leaves of runs.

use block::{Result, bail};

use super::columns::Values;
use super::node::{Key, Node, Place};
use super::pack::Packed;
use super::root::{Form, TreeKind};
use super::run::{BLOCKS_MAX, Number, Run, RunKind};
use crate::{Address, EXTENT_BLOCKS_MAX, NUMBER_MAX};

const BLOCK: usize = 0;
const LENGTH: usize = 1;
const KIND: usize = 2;
const EXTENT: usize = 3;
const OFFSET: usize = 4;
const BIRTH: usize = 5;
const SINCE: usize = 6;
const INDEX: usize = 7;

/// Number of columns of a leaf of runs.
pub(super) const RUN_COLUMNS: usize = 8;

/// Returns the key of a run with this first block and birth.
pub(super) fn run_key(kind: TreeKind, block: u64, birth: Number) -> Key {
    match kind {
        TreeKind::Interval => [block, birth, 0, 0],
        _ => [block, 0, 0, 0],
    }
}

impl Packed<RUN_COLUMNS> for Run {
    #[inline]
    fn values(&self, index: u64) -> Values<RUN_COLUMNS> {
        let has_blocks = self.kind.has_blocks();
        Values {
            numbers: [
                self.block,
                self.blocks - 1,
                u64::from(self.kind.bits()),
                self.address.extent(),
                u64::from(self.address.offset()),
                self.birth,
                self.birth - self.first,
                index,
            ],
            unused: if has_blocks { 0 } else { 1 << EXTENT | 1 << OFFSET },
            index: Some((INDEX, has_blocks)),
        }
    }

    fn key(&self, form: &Form) -> Key {
        run_key(form.kind, self.block, self.birth)
    }

    fn newest(&self) -> Number {
        self.birth
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn tail_bytes(&self, form: &Form) -> usize {
        self.sums() as usize * usize::from(form.sums.bytes())
    }

    fn tail_count(&self) -> u64 {
        self.sums()
    }
}

impl Node {
    /// Returns run `n` of a leaf of runs.
    ///
    /// # Panics
    /// Possibly, if the node is of another kind.
    pub fn run(&self, n: usize) -> Run {
        let birth = self.number(BIRTH, n);
        let kind = RunKind::from_bits(self.number(KIND, n) as u8);
        let address = match kind.has_blocks() {
            true => self.address(EXTENT, n).unwrap_or(Address::from_bits(0)),
            false => Address::from_bits(0),
        };
        Run {
            block: self.number(BLOCK, n),
            blocks: self.number(LENGTH, n) + 1,
            kind,
            address,
            birth,
            first: birth - self.number(SINCE, n),
        }
    }

    /// Returns first block and birth of run `n`.
    pub(super) fn run_start(&self, n: usize) -> (u64, Number) {
        (self.number(BLOCK, n), self.number(BIRTH, n))
    }

    /// Returns the first block of run `n`, without a look at its other columns.
    #[inline]
    pub(super) fn run_block(&self, n: usize) -> u64 {
        self.number(BLOCK, n)
    }

    /// Returns the block behind run `n`.
    #[inline]
    pub(super) fn run_end(&self, n: usize) -> u64 {
        self.number(BLOCK, n) + self.number(LENGTH, n) + 1
    }

    /// Returns the index of the first checksum of run `n` of a leaf of runs.
    pub(super) fn sum_index(&self, n: usize) -> usize {
        match self.present >> INDEX & 1 {
            0 => n,
            _ => self.number(INDEX, n) as usize,
        }
    }

    /// Returns the checksums of `run`, which is run `n` of this leaf of runs.
    ///
    /// # Panics
    /// If the leaf does not have them.
    pub fn run_sums(&self, n: usize, run: &Run, sum_bytes: usize) -> &[u8] {
        let count = run.sums() as usize;
        let from = if count == 0 { 0 } else { self.sum_index(n) };
        &self.bytes[self.tail + from * sum_bytes..][..count * sum_bytes]
    }

    /// Returns the number of runs of the leaf at `place` with a first block not above `block`.
    #[inline]
    pub(super) fn runs_up_to(&self, block: u64, place: &Place) -> usize {
        let highest = place.high.map(|high| high[0]);
        self.columns[BLOCK].count_up_to(&self.bytes, self.items, block, highest)
    }

    /// Returns the number of blocks that the runs of the leaf cover.
    pub(super) fn covered(&self) -> u64 {
        let more = (0..self.items).map(|n| self.number(LENGTH, n));
        self.items as u64 + if self.present >> LENGTH & 1 == 0 { 0 } else { more.sum::<u64>() }
    }

    /// Whether the leaf has runs of a kind that this code does not know, and that forbids writing.
    pub(super) fn forbids_writing(&self) -> bool {
        let forbids = |n| RunKind::from_bits(self.number(KIND, n) as u8).forbids_writing();
        self.present >> KIND & 1 == 1 && (0..self.items).any(forbids)
    }

    /// Refuses kinds of runs that this code must know and does not.
    pub(super) fn check_kinds(&self) -> Result<()> {
        for n in 0..self.items {
            let bits = self.number(KIND, n);
            if bits <= 0xff && RunKind::from_bits(bits as u8).forbids_opening() {
                bail!(
                    Unsupported,
                    "a map has runs of kind {bits:#x}, which this Cairn does not know"
                );
            }
        }
        Ok(())
    }

    /// Checks all runs of a leaf.
    pub(super) fn check_runs(&self, place: &Place) -> std::result::Result<(), String> {
        let kind = place.form.kind;
        let mut sums = 0;
        let mut before: Option<Run> = None;
        for n in 0..self.items {
            let (block, more) = (self.number(BLOCK, n), self.number(LENGTH, n));
            let (kind_bits, birth) = (self.number(KIND, n), self.number(BIRTH, n));
            let is_inside = block < BLOCKS_MAX && more < BLOCKS_MAX - block;
            if !is_inside || kind_bits > 0xff || birth > NUMBER_MAX || self.number(SINCE, n) > birth
            {
                return Err(format!(
                    "has a run of {more} + 1 blocks at block {block}, birth {birth}"
                ));
            }
            let run_kind = RunKind::from_bits(kind_bits as u8);
            if run_kind.has_blocks() {
                let address = self.address(EXTENT, n).filter(|address| address.bits() != 0);
                let end = address.map(|address| u64::from(address.offset()).saturating_add(more));
                let is_index = self.sum_index(n) as u64 == sums;
                if end.is_none_or(|end| end >= EXTENT_BLOCKS_MAX.into()) || !is_index {
                    return Err(format!("has a run at block {block} with a wrong address"));
                }
                sums += more + 1;
            }
            let run = self.run(n);
            if before.is_some_and(|before| !is_order(kind, &before, &run)) {
                return Err(format!("has runs out of order at block {block}"));
            }
            before = Some(run);
        }
        if sums != u64::from(self.extra()) {
            return Err(format!("has {} checksums, not {sums}", self.extra()));
        }
        self.check_range(place, before.as_ref())
    }

    /// Checks that the first and the last run are inside the keys of the parent.
    fn check_range(&self, place: &Place, last: Option<&Run>) -> std::result::Result<(), String> {
        let kind = place.form.kind;
        let (block, birth) = self.run_start(0);
        let is_behind = run_key(kind, block, birth) >= place.low;
        let is_before = last.zip(place.high).is_none_or(|(last, high)| {
            let shares = kind == TreeKind::Interval && last.block == high[0];
            run_key(kind, last.block, last.birth) < high && (last.end() <= high[0] || shares)
        });
        match is_behind && is_before {
            true => Ok(()),
            false => Err(format!("has runs outside of its keys, from block {block}")),
        }
    }
}

/// Whether `next` may follow `run` in a leaf.
fn is_order(kind: TreeKind, run: &Run, next: &Run) -> bool {
    let is_version = kind == TreeKind::Interval
        && (run.block, run.blocks) == (next.block, next.blocks)
        && run.birth < next.birth;
    is_version || run.end() <= next.block
}
