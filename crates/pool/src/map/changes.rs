//! The changes of a vdisk since the last cut, sorted by block.

use std::collections::BTreeMap;

use block::seeded::{self, Bug};

use super::run::{Number, Run, RunChange, RunKind, Sums};
use super::runs::RUN_SUM_BYTES_MAX;
use super::store::{Finds, Overwritten};
use crate::Address;

/// Largest number of snapshots between two cuts.
pub const INTERVAL_SNAPSHOTS_MAX: u64 = u32::MAX as u64;

/// Largest number of blocks of one group. A longer hole is several groups, and one run in the tree.
const GROUP_BLOCKS_MAX: u64 = u32::MAX as u64;

/// Adjacent blocks that have the same versions. It is small, because a pool has up to a million of them in memory.
#[derive(Clone, Copy)]
struct Group {
    address: [u32; 2],
    blocks: u32,
    /// Birth of the newest version, from the first number of the interval on.
    birth: u32,
    /// Birth of the first overwrite since the cut, from the first number of the interval on.
    first: u32,
    /// The checksum if it has four bytes, else a position in the list of checksums.
    sums: u32,
    kind: RunKind,
    has_inline_sum: bool,
    /// Whether snapshots since the cut can see older versions.
    has_older: bool,
}

const _: () = assert!(size_of::<Group>() == 28);

/// An older version of a group.
struct Version {
    kind: RunKind,
    address: Address,
    birth: Number,
    sums: Sums,
}

impl Group {
    fn address(&self) -> Address {
        Address::from_bits(u64::from(self.address[0]) | u64::from(self.address[1]) << 32)
    }

    fn set_address(&mut self, address: Address) {
        self.address = [address.bits() as u32, (address.bits() >> 32) as u32];
    }

    fn blocks(&self) -> u64 {
        u64::from(self.blocks)
    }
}

impl Version {
    /// Returns the version without its first blocks.
    fn part(&self, skipped: u64, sum_bytes: usize) -> Self {
        let Self { kind, address, birth, .. } = *self;
        if !kind.has_blocks() || skipped == 0 {
            return Self { kind, address, birth, sums: self.sums.clone() };
        }
        let address = Address::from_bits(address.bits() + skipped);
        Self { kind, address, birth, sums: self.sums.skip(skipped as usize * sum_bytes) }
    }

    fn change(&self, block: u64, blocks: u64, first: Number) -> RunChange {
        let Self { kind, address, birth, .. } = *self;
        RunChange {
            run: Run { block, blocks, kind, address, birth, first },
            sums: self.sums.clone(),
        }
    }
}

/// Blocks of a version as the changes have them.
#[derive(Clone, Debug)]
pub enum Changed {
    /// The run that contains the block, cut to the wanted blocks.
    Run(RunChange),
    /// No change up to this block.
    Gap(u64),
}

/// Changes in memory, sorted by block, with every birth that a snapshot can see.
pub struct Changes {
    groups: BTreeMap<u64, Group>,
    /// Older versions of groups, by first block, the oldest first.
    older: BTreeMap<u64, Vec<Version>>,
    /// Checksums of longer runs, and positions that are free.
    sums: Vec<Sums>,
    free: Vec<u32>,
    sum_bytes: usize,
    /// First number of the interval.
    from: Number,
    /// Number of groups and older versions.
    count: usize,
}

impl Changes {
    /// No changes, for blocks with checksums of `sum_bytes`. `from` is the number at the last cut.
    pub fn new(sum_bytes: u8, from: Number) -> Self {
        Self {
            groups: BTreeMap::new(),
            older: BTreeMap::new(),
            sums: Vec::new(),
            free: Vec::new(),
            sum_bytes: usize::from(sum_bytes),
            from,
            count: 0,
        }
    }

    /// Number of changes, as the bound of the memory counts them: adjacent blocks of one version.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there is no change.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Makes a change. Its birth is that of all changes since the last snapshot. Changes that it overwrites are
    /// reported, and stay as older versions if a snapshot came between.
    ///
    /// # Panics
    /// If the birth is before the first number of the interval, or [`INTERVAL_SNAPSHOTS_MAX`] behind it.
    pub fn write(&mut self, change: RunChange, finds: &mut impl Finds) {
        let (block, end) = (change.run.block, change.run.end());
        // Most changes meet no other.
        let before = self.groups.range(..end).next_back();
        let is_alone = before.is_none_or(|(at, group)| at + group.blocks() <= block);
        if is_alone && change.run.blocks <= GROUP_BLOCKS_MAX {
            return self.add(block, change.run.blocks, &change);
        }
        self.split_at(block);
        self.split_at(end);
        let mut rest = Some(change);
        while let Some(change) = rest {
            let (block, end) = (change.run.block, change.run.end());
            let next = self.groups.range(block..end).next().map(|(at, group)| (*at, *group));
            let until = match next {
                Some((at, group)) if at == block => {
                    self.replace(block, group, &change, finds);
                    block + group.blocks()
                }
                other => {
                    let until = other.map_or(end, |(at, _)| at).min(block + GROUP_BLOCKS_MAX);
                    self.add(block, until - block, &change);
                    until
                }
            };
            rest = change.from(until, self.sum_bytes);
        }
    }

    /// Returns a number as it is stored.
    fn since(&self, number: Number) -> u32 {
        let since = number.checked_sub(self.from).and_then(|since| u32::try_from(since).ok());
        since.expect("a birth is in the interval of the changes")
    }

    fn number(&self, since: u32) -> Number {
        self.from + u64::from(since)
    }

    /// Adds the first blocks of a change, where there is none.
    fn add(&mut self, block: u64, blocks: u64, change: &RunChange) {
        let first = self.since(change.run.birth);
        let group = self.group(blocks as u32, first, change);
        self.groups.insert(block, group);
        self.count += 1;
    }

    fn group(&mut self, blocks: u32, first: u32, change: &RunChange) -> Group {
        let Run { kind, address, birth, .. } = change.run;
        let mut group = Group {
            address: [0; 2],
            blocks,
            birth: self.since(birth),
            first,
            sums: 0,
            kind,
            has_inline_sum: false,
            has_older: false,
        };
        group.set_address(address);
        self.keep_sums(&mut group, &change.sums);
        group
    }

    fn keep_sums(&mut self, group: &mut Group, sums: &Sums) {
        group.has_inline_sum = group.kind.has_blocks() && group.blocks == 1 && self.sum_bytes == 4;
        if group.has_inline_sum {
            let bytes = sums.bytes(4).try_into().expect("four bytes");
            group.sums = u32::from_le_bytes(bytes);
        } else if group.kind.has_blocks() {
            group.sums = self.free.pop().unwrap_or(self.sums.len() as u32);
            match self.sums.get_mut(group.sums as usize) {
                Some(place) => *place = sums.clone(),
                None => self.sums.push(sums.clone()),
            }
        }
    }

    /// Removes the checksums of a group.
    fn take_sums(&mut self, group: &Group) -> Sums {
        if group.has_inline_sum || !group.kind.has_blocks() {
            return self.sums_of(group);
        }
        self.free.push(group.sums);
        std::mem::replace(&mut self.sums[group.sums as usize], Sums::NONE)
    }

    fn sums_of(&self, group: &Group) -> Sums {
        match group {
            Group { has_inline_sum: true, sums, .. } => Sums::new(&sums.to_le_bytes()),
            Group { kind, sums, .. } if kind.has_blocks() => self.sums[*sums as usize].clone(),
            _ => Sums::NONE,
        }
    }

    fn newest_of(&self, group: &Group) -> Version {
        let (birth, sums) = (self.number(group.birth), self.sums_of(group));
        Version { kind: group.kind, address: group.address(), birth, sums }
    }

    /// Overwrites a group with the first blocks of a change.
    fn replace(&mut self, block: u64, before: Group, change: &RunChange, finds: &mut impl Finds) {
        let (birth, death) = (self.number(before.birth), change.run.birth);
        if before.kind.has_blocks() {
            let (address, blocks) = (before.address(), before.blocks());
            finds.overwritten(Overwritten { address, blocks, birth, death });
        }
        let sums = self.take_sums(&before);
        if birth < death {
            let older = Version { kind: before.kind, address: before.address(), birth, sums };
            self.older.entry(block).or_default().push(older);
            self.count += 1;
        }
        let mut group = self.group(before.blocks, before.first, change);
        group.has_older = before.has_older || birth < death;
        self.groups.insert(block, group);
    }

    /// Splits the group around `block`, so that one begins there.
    fn split_at(&mut self, block: u64) {
        let Some((at, group)) = self.groups.range(..block).next_back() else { return };
        let (at, mut group) = (*at, *group);
        if at + group.blocks() <= block {
            return;
        }
        let skipped = block - at;
        let sums = self.take_sums(&group);
        let mut rest = group;
        rest.blocks -= skipped as u32;
        group.blocks = skipped as u32;
        if group.kind.has_blocks() {
            rest.set_address(Address::from_bits(group.address().bits() + skipped));
            self.keep_sums(&mut rest, &sums.skip(skipped as usize * self.sum_bytes));
        }
        self.keep_sums(&mut group, &sums);
        self.groups.insert(at, group);
        self.groups.insert(block, rest);
        self.count += 1;
        if group.has_older {
            let older = &self.older[&at];
            let parts: Vec<_> = older.iter().map(|it| it.part(skipped, self.sum_bytes)).collect();
            self.count += parts.len();
            self.older.insert(block, parts);
        }
    }

    /// Returns the versions of a group, the oldest first.
    fn versions(&self, block: u64, group: &Group) -> impl Iterator<Item = Version> {
        let older = if group.has_older { self.older.get(&block) } else { None };
        let older = older.into_iter().flatten().map(|version| version.part(0, self.sum_bytes));
        older.chain([self.newest_of(group)])
    }

    /// Returns the changes from `block` on that a version with newest birth `limit` sees, up to block `end`.
    ///
    /// # Panics
    /// If `end` is not behind `block`.
    pub fn find(&self, block: u64, end: u64, limit: Number) -> Changed {
        assert!(block < end, "a lookup of at least one block");
        let before = self.groups.range(..=block).next_back();
        let Some((at, group)) = before.filter(|(at, group)| **at + group.blocks() > block) else {
            let next = self.groups.range(block..end).next();
            return Changed::Gap(next.map_or(end, |(at, _)| *at));
        };
        let end = end.min(at + group.blocks());
        let seen = self.versions(*at, group).filter(|version| version.birth <= limit).last();
        match seen {
            None => Changed::Gap(end),
            Some(version) => {
                let version = version.part(block - at, self.sum_bytes);
                Changed::Run(version.change(block, end - block, self.number(group.first)))
            }
        }
    }

    /// Returns the newest version of each change, for a merge into a change tree.
    pub fn newest(&self) -> impl Iterator<Item = RunChange> {
        self.groups.iter().map(|(block, group)| {
            let first = match seeded::on(Bug::LastOverwrite) {
                true => group.birth,
                false => group.first,
            };
            self.newest_of(group).change(*block, group.blocks(), self.number(first))
        })
    }

    /// Returns every version that a snapshot up to `last` can see, for an interval tree. `last` is the newest snapshot
    /// since the cut.
    pub fn interval(&self, last: Number) -> impl Iterator<Item = RunChange> {
        let last = if seeded::on(Bug::IntervalLacksLast) { last.saturating_sub(1) } else { last };
        self.groups
            .iter()
            .flat_map(move |(block, group)| self.versions_in_parts(*block, group, last))
    }

    /// Returns the versions of a group up to `last`. All versions are cut at the same blocks, so that each part fits
    /// into a leaf.
    fn versions_in_parts(
        &self,
        block: u64,
        group: &Group,
        last: Number,
    ) -> impl Iterator<Item = RunChange> {
        let seen = move || self.versions(block, group).filter(move |version| version.birth <= last);
        let blocks_max = (RUN_SUM_BYTES_MAX / self.sum_bytes.max(1)) as u64;
        let is_long =
            group.blocks() > blocks_max && seen().any(|version| version.kind.has_blocks());
        let all = group.blocks();
        let step = if is_long { blocks_max } else { all };
        (0..all.div_ceil(step)).flat_map(move |n| {
            let (skipped, blocks) = (n * step, step.min(all - n * step));
            seen().map(move |version| {
                let part = version.part(skipped, self.sum_bytes);
                part.change(block + skipped, blocks, part.birth)
            })
        })
    }
}
