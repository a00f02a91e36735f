//! Measures the maps of pools: bytes of nodes for each random write, time, lookups, clones. `docs/formats/pool-map.md` has
//! the figures.
//!
//! `cargo run --release -p cairn-pool --example map_cost [MILLIONS OF WRITES] [GIB MAPPED] [merge]`; without numbers 12 and
//! 64. With `merge` it measures the first policy alone, without lookups.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use block::{Result, error};
use pool::map::{
    Changes, Content, DeadChange, DeadEntry, FoldSource, Form, Found, FromIter, Kept, Layer,
    MergeOptions, NODE_BYTES, Node, NodeCache, Number, Place, Pointer, Reader, Reads, Root, Run,
    RunChange, RunKind, Scan, Store, SumKind, Sums, TreeKind, merge_dead, merge_runs, nodes_after,
    write_interval,
};
use pool::{Address, NUMBER_MAX};

/// Writes between two snapshots.
const WRITES_PER_SNAPSHOT: u64 = 100;

/// Blocks of an extent: 1 GiB.
const EXTENT_BITS: u32 = 18;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// Nodes in memory, decoded.
#[derive(Default)]
struct Memory {
    nodes: RefCell<Vec<Option<Rc<Node>>>>,
    free: RefCell<Vec<u64>>,
    written: Cell<u64>,
    reads: Cell<u64>,
    /// Time of the last rest, the longest time between two, and the number of times above the bound.
    rested: Cell<Option<Instant>>,
    slice_us_max: Cell<u64>,
    slices_long: Cell<u64>,
    slices: Cell<u64>,
}

/// Longest time between two rests that a pool allows while clients wait.
const SLICE_US_MAX: u64 = 25;

/// First extent with nodes, so that nodes and data do not mix.
const NODES_FROM: u64 = 1 << 12;

impl Memory {
    fn slot(address: Address) -> usize {
        ((address.extent() - NODES_FROM) << EXTENT_BITS) as usize + address.offset() as usize
    }

    fn release(&self, address: Address) {
        let slot = Self::slot(address);
        let node = self.nodes.borrow_mut()[slot].take();
        assert!(node.is_some(), "a node is freed twice");
        self.free.borrow_mut().push(slot as u64);
    }

    /// Returns the bytes of all nodes that were written since the last call.
    fn take_written(&self) -> u64 {
        self.written.replace(0) * NODE_BYTES as u64
    }
}

fn address(n: u64, from: u64) -> Address {
    Address::new(from + (n >> EXTENT_BITS), (n & ((1 << EXTENT_BITS) - 1)) as u32)
        .expect("in range")
}

impl Reads for Memory {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        self.reads.set(self.reads.get() + 1);
        let nodes = self.nodes.borrow();
        let Some(Some(node)) = nodes.get(Self::slot(pointer.address)) else {
            return Err(error!(Corrupt, "no node is at {:?}", pointer.address));
        };
        node.check_head(pointer, place)?;
        Ok(node.clone())
    }

    async fn rest(&self) {
        let now = Instant::now();
        if let Some(before) = self.rested.replace(Some(now)) {
            let slice = now.duration_since(before).as_micros() as u64;
            self.slice_us_max.set(self.slice_us_max.get().max(slice));
            self.slices.set(self.slices.get() + 1);
            self.slices_long.set(self.slices_long.get() + u64::from(slice > SLICE_US_MAX));
        }
    }
}

impl Store for Memory {
    fn allocate(&self) -> Result<Address> {
        let free = self.free.borrow_mut().pop();
        let slot = free.unwrap_or_else(|| {
            let mut nodes = self.nodes.borrow_mut();
            nodes.push(None);
            nodes.len() as u64 - 1
        });
        // The first block of an extent is its header.
        match slot & ((1 << EXTENT_BITS) - 1) {
            0 => self.allocate(),
            _ => Ok(address(slot, NODES_FROM)),
        }
    }

    async fn write(&self, address: Address, _: Option<Address>, node: Rc<Node>) -> Result<()> {
        self.written.set(self.written.get() + 1);
        self.nodes.borrow_mut()[Self::slot(address)] = Some(node);
        Ok(())
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("memory does not wait"),
    }
}

fn data(block: u64, address: Address, birth: Number, sum: u32) -> RunChange {
    let run = Run { block, blocks: 1, kind: RunKind::DATA, address, birth, first: birth };
    RunChange { run, sums: Sums::new(&sum.to_le_bytes()) }
}

/// When and how much to write.
#[derive(Clone, Copy)]
struct Policy {
    name: &'static str,
    writes: u64,
    mapped: u64,
    checkpoint: u64,
    fold: u64,
    trees: usize,
    in_order: bool,
    past: Number,
}

/// Bytes of nodes by purpose, and seconds.
#[derive(Default)]
struct Cost {
    interval: u64,
    change: u64,
    fold: u64,
    dead: u64,
    kept: u64,
    entries: u64,
    folds: u64,
    reads: u64,
    write_s: f64,
    merge_s: f64,
}

struct Line {
    store: Memory,
    below: Vec<Root>,
    dead: Root,
    kept: Kept,
    next: Number,
    cut: Number,
    taken: u64,
    cost: Cost,
}

/// Snapshots from which the mapped blocks are.
const PAST: Number = 120_000;

fn form(kind: TreeKind) -> Form {
    Form::runs(kind, 1, SumKind::Crc32c)
}

impl Line {
    /// A vdisk with all blocks mapped, none beside its neighbour.
    fn aged(mapped: u64, past: Number) -> Self {
        let store = Memory::default();
        let mut random = Random(7);
        let bits = 64 - (mapped * 2 - 1).leading_zeros();
        let runs = (0..mapped).map(|block| {
            // A permutation of the addresses.
            let place = (block.wrapping_mul(0x9e37_79b9) & ((1 << bits) - 1)) | 1;
            data(block, address(place, 0), 1 + random.below(past), random.next() as u32)
        });
        let (base, mut found) = (Root::empty(form(TreeKind::Base)), Found::default());
        let options = MergeOptions { birth: PAST + 1, leaves_max: None };
        let merged =
            block_on(merge_runs(&store, &base, FromIter(runs), false, options, &mut found));
        let below = vec![merged.expect("memory does not fail").root];
        store.take_written();
        let dead = Root::empty(Form::dead(1));
        let (kept, cost) = (Kept::new(0), Cost::default());
        Self { store, below, dead, kept, next: past + 1, cut: past + 1, taken: mapped * 2, cost }
    }

    /// Turns overwritten blocks into dead entries, and releases replaced nodes.
    fn settle(&mut self, found: Found, death: Number, entries: &mut Vec<DeadEntry>) {
        entries.extend(found.blocks.iter().filter_map(|run| self.kept.entry(run)));
        for node in found.nodes {
            if self.kept.holds(node.birth, death) {
                self.cost.kept += NODE_BYTES as u64;
                let (address, birth) = (node.address, node.birth);
                entries.push(DeadEntry { death, address, blocks: 1, birth, is_node: true });
            }
            // Nodes that a snapshot keeps are counted. They need no memory here.
            self.store.release(node.address);
        }
        self.store.rested.set(None);
    }

    async fn checkpoint(
        &mut self,
        changes: &Changes,
        policy: Policy,
        mut entries: Vec<DeadEntry>,
    ) -> Result<()> {
        let (first, cut) = (self.cut, self.next);
        let mut found = Found::default();
        self.store.rested.set(None);
        if self.kept.holds(first, cut) {
            let root = write_interval(
                &self.store,
                form(TreeKind::Interval),
                changes,
                first,
                cut - 1,
                &mut found,
            );
            let root = root.await?;
            nodes_after(&self.store, &root, 0, &mut found).await?;
        }
        self.cost.interval += self.store.take_written();
        let options = MergeOptions { birth: cut, leaves_max: None };
        if self.below.len() == 1 {
            self.below.insert(0, Root::empty(form(TreeKind::Change)));
        }
        let runs = FromIter(changes.newest());
        self.below[0] =
            merge_runs(&self.store, &self.below[0], runs, false, options, &mut found).await?.root;
        self.settle(found, cut, &mut entries);
        self.cut = cut;
        self.cost.change += self.store.take_written();
        let under: u64 = self.below[1..].iter().map(|tree| tree.blocks).sum();
        if self.below[0].blocks * policy.fold > under {
            if self.below.len() <= policy.trees {
                self.below.insert(0, Root::empty(form(TreeKind::Change)));
            } else {
                self.fold(&mut entries).await?;
            }
        }
        self.cost.fold += self.store.take_written();
        entries.sort_unstable();
        self.cost.entries += entries.len() as u64;
        self.store.rested.set(None);
        let mut found = Found::default();
        let entries = FromIter(entries.into_iter().map(DeadChange::Add));
        self.dead = merge_dead(&self.store, &self.dead, entries, options, &mut found).await?.root;
        found.nodes.iter().for_each(|node| self.store.release(node.address));
        self.cost.dead += self.store.take_written();
        Ok(())
    }

    /// Folds all change trees into the base tree, as at the cut that was just made.
    async fn fold(&mut self, entries: &mut Vec<DeadEntry>) -> Result<()> {
        let options = MergeOptions { birth: self.cut, leaves_max: None };
        while self.below.len() > 1 {
            let mut found = Found::default();
            let (source, target) = (self.below[0], self.below[1]);
            let changes = FoldSource::new(&self.store, &source, 0);
            let merged =
                merge_runs(&self.store, &target, changes, false, options, &mut found).await?;
            nodes_after(&self.store, &source, 0, &mut found).await?;
            self.below.remove(0);
            self.below[0] = merged.root;
            self.settle(found, self.cut, entries);
        }
        self.cost.folds += 1;
        Ok(())
    }

    /// Writes, with snapshots and checkpoints.
    fn run(&mut self, policy: Policy) {
        let mut random = Random(1);
        let mut changes = Changes::new(4, self.cut);
        let mut found = Found::default();
        let mut began = Instant::now();
        for n in 0..policy.writes {
            let block =
                if policy.in_order { n % policy.mapped } else { random.below(policy.mapped) };
            self.taken += 1 + u64::from((self.taken + 1) & ((1 << EXTENT_BITS) - 1) == 0);
            let change = data(block, address(self.taken, 0), self.next, n as u32);
            changes.write(change, &mut found);
            if (n + 1) % WRITES_PER_SNAPSHOT == 0 {
                self.kept.insert(self.next);
                self.next += 1;
            }
            if changes.count() as u64 >= policy.checkpoint || n + 1 == policy.writes {
                self.cost.write_s += began.elapsed().as_secs_f64();
                began = Instant::now();
                let mut entries = Vec::new();
                self.settle(std::mem::take(&mut found), 0, &mut entries);
                block_on(self.checkpoint(&changes, policy, entries)).expect("memory does not fail");
                changes = Changes::new(4, self.cut);
                self.cost.merge_s += began.elapsed().as_secs_f64();
                began = Instant::now();
            }
        }
        self.cost.reads = self.store.reads.get();
    }
}

fn measure(policy: Policy) -> Line {
    let mut line = Line::aged(policy.mapped, policy.past);
    let aged = line.below[0];
    line.run(policy);
    let Cost { interval, change, fold, dead, kept, entries, folds, reads, write_s, merge_s } =
        line.cost;
    let each = |sum: u64| sum as f64 / policy.writes as f64;
    let ns = |seconds: f64| seconds * 1e9 / policy.writes as f64;
    println!(
        "{:<28} {:>6.1} B = interval {:.1} + change {:.1} + fold {:.1}; dead {:.1}; kept {:.1}; \
         {:.2} entries, {folds} folds, {:.3} reads; {:.0} + {:.0} ns",
        policy.name,
        each(interval + change + fold),
        each(interval),
        each(change),
        each(fold),
        each(dead),
        each(kept),
        each(entries),
        each(reads),
        ns(write_s),
        ns(merge_s),
    );
    let base = line.below.last().expect("a base tree");
    let store = &line.store;
    println!(
        "    slices: {} of {} above {SLICE_US_MAX} us, at most {} us",
        store.slices_long.get(),
        store.slices.get(),
        store.slice_us_max.get(),
    );
    println!(
        "    base {} MiB of {} levels, at first {} MiB; change trees {:?} MiB",
        base.nodes >> 8,
        base.top.map_or(0, |(_, levels)| levels),
        aged.nodes >> 8,
        line.below[..line.below.len() - 1].iter().map(|tree| tree.nodes >> 8).collect::<Vec<_>>(),
    );
    line
}

/// Times random lookups through so many trees. Each of the upper trees has an eighth of the blocks.
fn lookups(line: &Line, mapped: u64) {
    let base = line.below.last().expect("a base tree");
    let mut layers = vec![Layer { tree: *base, limit: NUMBER_MAX }];
    for trees in 1..=5_u64 {
        let mut random = Random(trees);
        let count = mapped.min(2_000_000);
        let began = Instant::now();
        let mut sum = 0;
        let found = block_on(async {
            let mut reader = Reader::new(&line.store, &layers)?;
            let mut found = 0_u64;
            for _ in 0..count {
                let block = random.below(mapped);
                let piece = reader.piece(block, block + 1).await?;
                if let Content::Data { address, .. } = piece.content {
                    sum ^= address.bits();
                    found += 1;
                }
            }
            Ok::<_, block::Error>(found)
        });
        let found = found.expect("memory does not fail");
        let ns = began.elapsed().as_secs_f64() * 1e9 / count as f64;
        println!("lookup through {trees} trees: {ns:.0} ns ({found} of {count} found, {sum:x})");
        let mut blocks: Vec<u64> = (0..mapped / 8).map(|_| random.below(mapped)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let runs = blocks
            .iter()
            .map(|block| data(*block, address(random.below(mapped) | 1, 0), PAST + trees, 1));
        let tree = Root::empty(form(TreeKind::Change));
        let options = MergeOptions { birth: PAST + 100, leaves_max: None };
        let mut found = Found::default();
        let merged =
            block_on(merge_runs(&line.store, &tree, FromIter(runs), false, options, &mut found));
        layers.insert(
            0,
            Layer { tree: merged.expect("memory does not fail").root, limit: NUMBER_MAX },
        );
    }
}

/// Nodes behind a cache. Counts the reads that miss it.
struct Cached<'a> {
    memory: &'a Memory,
    cache: RefCell<NodeCache>,
    /// Whether uses are noted. Without that, the oldest node leaves first.
    is_clock: bool,
    is_scan: Cell<bool>,
    misses: Cell<u64>,
}

impl Reads for Cached<'_> {
    async fn read(&self, pointer: &Pointer, place: &Place) -> Result<Rc<Node>> {
        let found = match self.is_clock && !self.is_scan.get() {
            true => self.cache.borrow_mut().get(pointer.address),
            false => self.cache.borrow().peek(pointer.address),
        };
        if let Some(node) = found {
            node.check_head(pointer, place)?;
            return Ok(node);
        }
        self.misses.set(self.misses.get() + 1);
        let node = self.memory.read(pointer, place).await?;
        self.cache.borrow_mut().insert(pointer.address, node.clone());
        Ok(node)
    }

    async fn rest(&self) {}
}

/// Counts node reads of lookups with a cache for a tenth of the base tree: uniform ones and 80/20, undisturbed and after
/// each quarter of a scan of all leaves.
fn caches(line: &Line, mapped: u64) {
    let base = line.below.last().expect("a base tree");
    let layers = [Layer { tree: *base, limit: NUMBER_MAX }];
    for (is_clock, is_skewed) in [(false, false), (true, false), (false, true), (true, true)] {
        let cache = RefCell::new(NodeCache::new(base.nodes as usize / 10));
        let (is_scan, misses) = (Cell::new(false), Cell::new(0));
        let store = Cached { memory: &line.store, cache, is_clock, is_scan, misses };
        let mut random = Random(5);
        let count = mapped.min(500_000);
        let mut look = async || {
            let mut reader = Reader::new(&store, &layers)?;
            let before = store.misses.get();
            for _ in 0..count {
                let limit = if is_skewed && random.below(10) < 8 { mapped / 5 } else { mapped };
                let block = random.below(limit);
                reader.piece(block, block + 1).await?;
            }
            Ok::<_, block::Error>((store.misses.get() - before) as f64 / count as f64)
        };
        let misses = block_on(async {
            look().await?;
            let quiet = look().await?;
            let mut scan = Scan::new(&store, base, [0; 4]);
            let (mut leaves, mut disturbed) = (0, 0.0);
            store.is_scan.set(true);
            while scan.next_leaf().await?.is_some() {
                leaves += 1;
                if leaves % (base.nodes / 4) == 0 {
                    store.is_scan.set(false);
                    disturbed += look().await? / 3.0;
                    store.is_scan.set(true);
                }
            }
            Ok::<_, block::Error>((quiet, disturbed))
        });
        let (quiet, disturbed) = misses.expect("memory does not fail");
        let (policy, load) =
            (if is_clock { "CLOCK" } else { "FIFO" }, if is_skewed { "80/20" } else { "uniform" });
        println!(
            "cache of a tenth, {policy}, {load}: {quiet:.3} reads a lookup, {disturbed:.3} beside a scan"
        );
    }
}

/// Measures the memory of 1 Mi changes of one block each.
fn memory(mapped: u64) {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
    };
    let (before, mut random, mut found) = (resident(), Random(8), Found::default());
    let mut changes = Changes::new(4, 1);
    while changes.count() < 1 << 20 {
        let block = random.below(mapped);
        changes.write(data(block, address(block + 1, 0), 1, 1), &mut found);
        found.blocks.clear();
    }
    let each = (resident() - before) as f64 / changes.count() as f64;
    println!("changes in memory: {each:.0} bytes each");
}

/// Counts the nodes of a clone's own tree after some scattered writes.
fn clone(count: u64) {
    let store = Memory::default();
    let mut random = Random(3);
    let mut blocks: Vec<u64> = (0..count).map(|_| random.below(10 << 18)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let runs =
        blocks.iter().enumerate().map(|(n, block)| data(*block, address(n as u64 + 1, 0), 5, 1));
    let mut found = Found::default();
    let options = MergeOptions { birth: 5, leaves_max: None };
    let tree = Root::empty(form(TreeKind::Change));
    let merged = block_on(merge_runs(&store, &tree, FromIter(runs), false, options, &mut found));
    let nodes = merged.expect("memory does not fail").root.nodes;
    println!("a clone of 10 GiB with {count} scattered writes: {} KiB of nodes", nodes * 4);
}

fn main() {
    let number = |n: usize, usual: u64| {
        std::env::args().nth(n).map_or(usual, |word| word.parse().expect("a number"))
    };
    let (writes, mapped) = (number(1, 12) * 1_000_000, number(2, 64) << 18);
    let policy = Policy {
        name: "one change tree, 1/8",
        writes,
        mapped,
        checkpoint: 500_000,
        fold: 8,
        trees: 1,
        in_order: false,
        past: PAST,
    };
    if std::env::args().nth(3).is_some_and(|word| word == "merge") {
        return drop(measure(policy));
    }
    memory(mapped);
    let line = measure(policy);
    lookups(&line, mapped);
    caches(&line, mapped);
    drop(line);
    measure(Policy { name: "births over 47 bits", past: 1 << 47, ..policy });
    measure(Policy { name: "three change trees, 1/8", trees: 3, ..policy });
    measure(Policy { name: "one, 1/4", fold: 4, ..policy });
    measure(Policy { name: "one, 1/16", fold: 16, ..policy });
    measure(Policy { name: "every 125,000", checkpoint: 125_000, ..policy });
    measure(Policy { name: "every 32,768", checkpoint: 32_768, writes: writes / 4, ..policy });
    measure(Policy { name: "every 8,192", checkpoint: 8_192, writes: writes / 12, ..policy });
    measure(Policy { name: "in order", in_order: true, ..policy });
    clone(100);
}
