//! Freed blocks that are not given away yet.

use std::collections::{BTreeMap, VecDeque};

use block::seeded::{self, Bug};

use super::Taken;
use super::bits::Bits;

/// A read of a client, by the number of its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading(u64);

/// Freed blocks in the order of their states: freed by a record that is not proven, or by a root that does not count;
/// then free, while reads that began before run.
#[derive(Default)]
pub struct Waiting {
    /// Blocks that records have freed, in the order of the records.
    by_record: VecDeque<(u64, Taken)>,
    /// Blocks that the running checkpoint frees.
    by_root: Vec<Taken>,
    /// Blocks that reads may still use, with the last epoch of such a read.
    read: VecDeque<(u64, Taken)>,
    epoch: u64,
    /// Number of reads by the epoch in which they began.
    reads: BTreeMap<u64, u32>,
    ready: VecDeque<Taken>,
}

impl Waiting {
    pub fn by_record(&mut self, taken: Taken, record: u64) {
        self.by_record.push_back((record, taken));
    }

    pub fn by_root(&mut self, taken: Taken) {
        self.by_root.push(taken);
    }

    /// Whether blocks wait for the proof of the record that has freed them.
    pub fn needs_proof(&self) -> bool {
        !self.by_record.is_empty()
    }

    /// Moves the blocks on that records up to `record` have freed.
    pub fn proven(&mut self, record: u64) {
        let before = self.read.len();
        while let Some((number, taken)) = self.by_record.front().copied()
            && (number <= record || seeded::on(Bug::GivenUnproven))
        {
            self.by_record.pop_front();
            self.read.push_back((self.epoch, taken));
        }
        self.next_epoch(before);
    }

    /// Moves the blocks on that the checkpoint has freed whose root counts now.
    pub fn counted(&mut self) {
        let before = self.read.len();
        let freed = std::mem::take(&mut self.by_root);
        self.read.extend(freed.into_iter().map(|taken| (self.epoch, taken)));
        self.next_epoch(before);
    }

    fn next_epoch(&mut self, before: usize) {
        if self.read.len() > before {
            self.epoch += 1;
        }
        self.release();
    }

    pub fn begin_read(&mut self) -> Reading {
        *self.reads.entry(self.epoch).or_default() += 1;
        Reading(self.epoch)
    }

    pub fn end_read(&mut self, reading: Reading) {
        let count = self.reads.get_mut(&reading.0).expect("the read has begun");
        *count -= 1;
        if *count == 0 {
            self.reads.remove(&reading.0);
            self.release();
        }
    }

    /// Makes the blocks ready for which no older read runs.
    fn release(&mut self) {
        let oldest = match self.reads.first_key_value() {
            Some((epoch, _)) if !seeded::on(Bug::GivenUnderRead) => *epoch,
            _ => u64::MAX,
        };
        while let Some((epoch, taken)) = self.read.front().copied()
            && epoch < oldest
        {
            self.read.pop_front();
            self.ready.push_back(taken);
        }
    }

    pub fn next_ready(&mut self) -> Option<Taken> {
        self.ready.pop_front()
    }

    /// Returns the blocks of an extent that are freed and not given away.
    pub fn of_extent(&self, extent: u64, blocks: u32) -> Bits {
        let mut bits = Bits::new(blocks);
        let by_record = self.by_record.iter().chain(&self.read).map(|(_, taken)| taken);
        for taken in by_record.chain(&self.by_root).chain(&self.ready) {
            if taken.address.extent() == extent {
                bits.set(taken.address.offset(), taken.blocks as u32, true);
            }
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    fn run() -> Taken {
        Taken { address: Address::new(1, 5).expect("a small number"), blocks: 2 }
    }

    #[test]
    fn freed_block_waits_until_its_record_is_proven() {
        let mut waiting = Waiting::default();
        waiting.by_record(run(), 5);
        waiting.proven(4);
        assert_eq!(waiting.next_ready(), None, "the record is not proven");
        waiting.proven(5);
        assert_eq!(waiting.next_ready(), Some(run()));
    }

    #[test]
    fn freed_block_waits_for_reads_that_began_before() {
        let mut waiting = Waiting::default();
        let before = waiting.begin_read();
        waiting.by_record(run(), 5);
        waiting.proven(5);
        assert_eq!(waiting.next_ready(), None, "a read may use the block");
        let after = waiting.begin_read();
        waiting.end_read(before);
        assert_eq!(waiting.next_ready(), Some(run()), "the later read cannot use the block");
        waiting.end_read(after);
    }

    #[test]
    fn block_that_checkpoint_frees_waits_until_its_root_counts() {
        let mut waiting = Waiting::default();
        waiting.by_root(run());
        waiting.proven(u64::MAX);
        assert_eq!(waiting.next_ready(), None, "the root does not count");
        waiting.counted();
        assert_eq!(waiting.next_ready(), Some(run()));
    }
}
