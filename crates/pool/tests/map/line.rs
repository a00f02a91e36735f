//! A small pool in memory: lines with snapshots, checkpoints, folds, clones and removals, by the rules of the map.

use std::collections::{BTreeMap, BTreeSet};

use block::{Error, Result, bail};
use pool::map::{
    BLOCKS_MAX, Changed, Changes, Content, DeadChange, DeadEntry, FoldSource, Form, Found,
    FromIter, Kept, Layer, MergeOptions, Number, Overwritten, Reader, Replaced, Root, Run,
    RunChange, RunKind, SumKind, Sums, TreeKind, Window, drop_after, merge_dead, merge_runs,
    nodes_after, release, sweep, write_interval,
};
use pool::{Address, NUMBER_MAX};

use crate::store::TestStore;

/// A rule that a test breaks on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The new nodes of a checkpoint count as born one snapshot later.
    NodeBornWhenWritten,
    /// A merge passes its newest overwrite as the first one.
    LastOverwrite,
    /// The trees of a head are not merged before it is removed.
    HeadNotMerged,
    /// Later dead entries stay when a version without a successor is removed.
    LaterDeadStay,
    /// Explicit holes are missing in change trees.
    HoleDropped,
    /// The node of an interval tree is born at the end of its interval.
    IntervalBornLate,
    /// An interval tree lacks the last birth.
    IntervalLacksLast,
}

/// The content of a version: the physical address of each block that has one.
pub type Flat = BTreeMap<u64, u64>;

/// A snapshot whose trees are written.
struct Row {
    interval: Option<Root>,
    below: Vec<Root>,
}

/// A vdisk with its snapshots.
pub struct Line {
    number: u64,
    next: Number,
    /// Number at the last cut.
    cut: Number,
    changes: Changes,
    /// The own trees since the last cut, the newest first.
    below: Vec<Root>,
    /// The trees of the origin.
    inherited: Vec<Layer>,
    /// The tree that is being folded into the one below it, and the first block that is not folded.
    folding: Option<(usize, u64)>,
    pub kept: Kept,
    rows: BTreeMap<Number, Row>,
    dead: Root,
    /// Dead entries that are not in the tree yet.
    new_dead: Vec<DeadEntry>,
    pub flat: Flat,
    flats: BTreeMap<Number, Flat>,
    has_head: bool,
    /// Snapshots that a clone depends on.
    pub held: BTreeSet<Number>,
}

/// Lines that share space.
pub struct Pool {
    pub store: TestStore,
    data: BTreeSet<u64>,
    pub lines: Vec<Line>,
    wrong: Option<Wrong>,
    /// Nodes that were freed twice, or other damage that a test must see.
    fault: Option<String>,
}

const SUMS: SumKind = SumKind::Crc32c;

/// Returns the checksum of the block at an address.
fn sum(address: u64) -> [u8; 4] {
    (address as u32).wrapping_mul(0x9e37_79b9).to_le_bytes()
}

fn options(birth: Number, leaves_max: Option<u64>) -> MergeOptions {
    MergeOptions { birth, leaves_max }
}

impl Line {
    fn new(number: u64, origin: Number, inherited: Vec<Layer>, flat: Flat) -> Self {
        let mut below = Vec::new();
        if inherited.is_empty() {
            below.push(Root::empty(Form::runs(TreeKind::Base, number, SUMS)));
        }
        Self {
            number,
            next: origin + 1,
            cut: origin + 1,
            changes: Changes::new(SUMS.bytes(), origin + 1),
            below,
            inherited,
            folding: None,
            kept: Kept::new(origin),
            rows: BTreeMap::new(),
            dead: Root::empty(Form::dead(number)),
            new_dead: Vec::new(),
            flat,
            flats: BTreeMap::new(),
            has_head: true,
            held: BTreeSet::new(),
        }
    }

    pub fn has_head(&self) -> bool {
        self.has_head
    }

    fn own_layers(&self, number: Option<Number>) -> Vec<Layer> {
        let limit = number.unwrap_or(NUMBER_MAX);
        let layer = |tree: &Root| Layer { tree: *tree, limit };
        match number.and_then(|number| self.rows.get(&number)) {
            Some(row) => row.interval.iter().chain(&row.below).map(layer).collect(),
            None => self.below.iter().map(layer).collect(),
        }
    }

    fn layers(&self, number: Option<Number>) -> Vec<Layer> {
        [self.own_layers(number), self.inherited.clone()].concat()
    }
}

impl Pool {
    pub fn new(wrong: Option<Wrong>, doubles: bool) -> Self {
        let line = Line::new(1, 0, Vec::new(), Flat::new());
        let (store, data) = (TestStore::new(doubles), BTreeSet::new());
        Self { store, data, lines: vec![line], wrong, fault: None }
    }

    fn free(&mut self, address: Address, blocks: u64) {
        for bits in address.bits()..address.bits() + blocks {
            if !self.data.remove(&bits) {
                self.fault = Some(format!("block {bits:#x} is freed twice"));
            }
        }
    }

    fn free_node(&mut self, address: Address) {
        if self.store.nodes.borrow_mut().remove(&address.bits()).is_none() {
            self.fault = Some(format!("the node at {address:?} is freed twice"));
        }
    }

    /// Frees overwritten blocks and replaced nodes, or keeps them as dead entries. The nodes died at `death`.
    fn settle(&mut self, line: usize, found: Found, death: Number) {
        for run in found.blocks {
            match self.lines[line].kept.entry(&run) {
                Some(entry) => self.lines[line].new_dead.push(entry),
                None => self.free(run.address, run.blocks),
            }
        }
        for Replaced { address, birth } in found.nodes {
            if self.lines[line].kept.holds(birth, death) {
                let entry = DeadEntry { death, address, blocks: 1, birth, is_node: true };
                self.lines[line].new_dead.push(entry);
            } else {
                self.free_node(address);
            }
        }
    }

    /// Writes blocks, or an explicit hole.
    pub fn write(&mut self, line: usize, block: u64, blocks: u64, is_hole: bool) {
        let mut runs = vec![(Address::from_bits(0), blocks)];
        if !is_hole {
            runs = self.store.take(blocks);
        }
        let mut block = block;
        for (address, blocks) in runs {
            let it = &mut self.lines[line];
            let kind = if is_hole { RunKind::HOLE } else { RunKind::DATA };
            let run = Run { block, blocks, kind, address, birth: it.next, first: it.next };
            let mut sums = Vec::new();
            for n in 0..blocks {
                it.flat.remove(&(block + n));
                if !is_hole {
                    let bits = address.bits() + n;
                    it.flat.insert(block + n, bits);
                    self.data.insert(bits);
                    sums.extend(sum(bits));
                }
            }
            let mut found = Found::default();
            it.changes.write(RunChange { run, sums: Sums::new(&sums) }, &mut found);
            self.settle(line, found, 0);
            block += blocks;
        }
    }

    pub fn snapshot(&mut self, line: usize) {
        let it = &mut self.lines[line];
        it.kept.insert(it.next);
        it.flats.insert(it.next, it.flat.clone());
        it.next += 1;
    }

    /// Merges the dead entries in memory into their tree.
    async fn merge_dead(&mut self, line: usize) -> Result<()> {
        let it = &mut self.lines[line];
        let mut entries = std::mem::take(&mut it.new_dead);
        entries.sort_unstable();
        let (dead, next) = (it.dead, it.next);
        let mut found = Found::default();
        let source = FromIter(entries.into_iter().map(DeadChange::Add));
        let merged =
            merge_dead(&self.store, &dead, source, options(next, None), &mut found).await?;
        self.replace_dead(line, merged.root, found);
        Ok(())
    }

    fn replace_dead(&mut self, line: usize, root: Root, found: Found) {
        self.lines[line].dead = root;
        found.nodes.into_iter().for_each(|node| self.free_node(node.address));
    }

    /// Writes the changes in memory. With `is_new_tree`, they become a change tree of their own.
    pub async fn checkpoint(&mut self, line: usize, is_new_tree: bool) -> Result<()> {
        let it = &mut self.lines[line];
        let (first, cut, number) = (it.cut, it.next, it.number);
        let changes = std::mem::replace(&mut it.changes, Changes::new(SUMS.bytes(), cut));
        let pending: Vec<Number> = it.kept.numbers().filter(|number| *number >= first).collect();
        let mut interval = None;
        let mut found = Found::default();
        if let (Some(last), false) = (pending.last(), changes.is_empty()) {
            let form = Form::runs(TreeKind::Interval, number, SUMS);
            let last = last - u64::from(self.wrong == Some(Wrong::IntervalLacksLast));
            let late = self.wrong == Some(Wrong::IntervalBornLate);
            let born = if late { cut } else { first };
            let root = write_interval(&self.store, form, &changes, born, last, &mut found).await?;
            // Nothing but these snapshots refers to the interval tree.
            nodes_after(&self.store, &root, 0, &mut found).await?;
            interval = Some(root);
        }
        for number in pending {
            let row = Row { interval, below: it.below.clone() };
            it.rows.insert(number, row);
        }
        let can_merge = it.folding.is_none_or(|(tree, _)| tree > 0)
            && it.below.first().is_some_and(|tree| tree.form.kind == TreeKind::Change);
        if !can_merge || is_new_tree && it.below.len() < 5 {
            it.below.insert(0, Root::empty(Form::runs(TreeKind::Change, number, SUMS)));
            it.folding = it.folding.map(|(tree, block)| (tree + 1, block));
        }
        let target = it.below[0];
        let (wrong, birth) =
            (self.wrong, cut + u64::from(self.wrong == Some(Wrong::NodeBornWhenWritten)));
        let runs = changes
            .newest()
            .filter(|change| wrong != Some(Wrong::HoleDropped) || change.run.kind != RunKind::HOLE);
        let runs = runs.map(|mut change| {
            if wrong == Some(Wrong::LastOverwrite) {
                change.run.first = change.run.birth;
            }
            change
        });
        let options = options(birth, None);
        let merged = merge_runs(&self.store, &target, FromIter(runs), false, options, &mut found);
        let root = merged.await?.root;
        self.lines[line].below[0] = root;
        self.lines[line].cut = cut;
        self.settle(line, found, cut);
        self.merge_dead(line).await
    }

    /// Folds a part of a change tree into the tree below it: at most `leaves` leaves.
    pub async fn fold(&mut self, line: usize, tree: usize, leaves: Option<u64>) -> Result<()> {
        let it = &mut self.lines[line];
        if it.folding.is_none() && tree + 1 < it.below.len() {
            it.folding = Some((tree, 0));
        }
        let Some((tree, from)) = it.folding else { return Ok(()) };
        let (source, target, cut) = (it.below[tree], it.below[tree + 1], it.cut);
        let mut found = Found::default();
        let changes = FoldSource::new(&self.store, &source, from);
        let options = options(cut, leaves);
        let merged = merge_runs(&self.store, &target, changes, false, options, &mut found).await?;
        let it = &mut self.lines[line];
        it.below[tree + 1] = merged.root;
        it.folding = merged.rest.map(|key| (tree, key[0]));
        if it.folding.is_none() {
            nodes_after(&self.store, &source, 0, &mut found).await?;
            it.below.remove(tree);
        }
        self.settle(line, found, cut);
        Ok(())
    }

    /// Folds until one own tree is left.
    async fn fold_all(&mut self, line: usize) -> Result<()> {
        while self.lines[line].below.len() > 1 {
            self.fold(line, 0, None).await?;
        }
        Ok(())
    }

    /// Frees the blocks of a version without a successor, and drops the later dead entries.
    async fn sweep(&mut self, line: usize, number: Option<Number>) -> Result<()> {
        let it = &self.lines[line];
        let after = it.kept.before(number.unwrap_or(it.next));
        let layers = it.own_layers(number);
        let mut found = Found::default();
        sweep(&self.store, &layers, after, &mut found).await?;
        for Overwritten { address, blocks, .. } in found.blocks {
            self.free(address, blocks);
        }
        let it = &self.lines[line];
        let (dead, next) = (it.dead, it.next);
        if let (Some(number), true) = (number, self.wrong != Some(Wrong::LaterDeadStay)) {
            let mut nodes = Found::default();
            let options = options(next, None);
            let root = drop_after(&self.store, &dead, number, options, &mut nodes).await?;
            self.replace_dead(line, root, nodes);
        }
        // The walk needs the nodes until here.
        let freed: BTreeSet<u64> = found.nodes.iter().map(|node| node.address.bits()).collect();
        freed.into_iter().for_each(|bits| self.free_node(Address::from_bits(bits)));
        Ok(())
    }

    /// Removes a snapshot.
    pub async fn remove(&mut self, line: usize, number: Number) -> Result<()> {
        self.merge_dead(line).await?;
        let it = &mut self.lines[line];
        let is_last = !it.has_head && it.kept.after(number).is_none();
        it.kept.remove(number);
        it.flats.remove(&number);
        if is_last {
            self.sweep(line, Some(number)).await?;
        }
        self.release(line, &[number]).await?;
        self.lines[line].rows.remove(&number);
        Ok(())
    }

    /// Runs a pass over dead entries, in steps.
    async fn release(&mut self, line: usize, removed: &[Number]) -> Result<()> {
        let windows = Window::of(removed, &self.lines[line].kept);
        let mut from = Some([0; 4]);
        while let Some(position) = from {
            let it = &self.lines[line];
            let mut found = Found::default();
            let how = (options(it.next, None), 3);
            let pass =
                release(&self.store, &it.dead, &it.kept, &windows, position, how, &mut found);
            let released = pass.await?;
            from = released.rest;
            self.replace_dead(line, released.root, found);
            for entry in released.freed {
                match entry.is_node {
                    true => self.free_node(entry.address),
                    false => self.free(entry.address, entry.blocks),
                }
            }
        }
        Ok(())
    }

    /// Removes the head of a line.
    pub async fn remove_head(&mut self, line: usize) -> Result<()> {
        self.checkpoint(line, false).await?;
        if self.wrong != Some(Wrong::HeadNotMerged) {
            self.fold_all(line).await?;
        }
        self.merge_dead(line).await?;
        self.sweep(line, None).await?;
        let it = &mut self.lines[line];
        it.has_head = false;
        it.below.clear();
        it.flat.clear();
        Ok(())
    }

    /// Clones a snapshot whose trees are written. Returns whether there is one.
    pub fn clone_of(&mut self, line: usize, number: Number) -> bool {
        let it = &mut self.lines[line];
        if !it.rows.contains_key(&number) || it.layers(Some(number)).len() > 10 {
            return false;
        }
        it.held.insert(number);
        let (layers, flat) = (it.layers(Some(number)), it.flats[&number].clone());
        let clone = Line::new(self.lines.len() as u64 + 1, number, layers, flat);
        self.lines.push(clone);
        true
    }

    /// Reads a whole version.
    async fn read(&self, line: usize, number: Option<Number>) -> Result<Flat> {
        let it = &self.lines[line];
        let (limit, layers) = (number.unwrap_or(NUMBER_MAX), it.layers(number));
        let in_memory = number.is_none_or(|number| !it.rows.contains_key(&number));
        let mut reader = Reader::new(&self.store, &layers)?;
        let mut flat = Flat::new();
        let mut add = |block: u64, address: Address, blocks: u64, sums: &[u8]| {
            for n in 0..blocks {
                let bits = address.bits() + n;
                let is_right = sums[n as usize * 4..][..4] == sum(bits);
                assert!(is_right, "block {} has the checksum of another", block + n);
                flat.insert(block + n, bits);
            }
        };
        let mut block = 0;
        while block < BLOCKS_MAX {
            let changed = match in_memory {
                true => it.changes.find(block, BLOCKS_MAX, limit),
                false => Changed::Gap(BLOCKS_MAX),
            };
            let end = match changed {
                Changed::Run(change) => {
                    let run = change.run;
                    add(block, run.address, run.sums(), change.sums.bytes(run.sums() as usize * 4));
                    block = run.end();
                    continue;
                }
                Changed::Gap(end) => end,
            };
            let piece = reader.piece(block, end).await?;
            if let Content::Data { address, sums, .. } = piece.content {
                add(block, address, piece.blocks, sums.bytes());
            }
            block += piece.blocks;
        }
        Ok(flat)
    }

    /// Checks that all versions read right, that nothing in use is free, and that nothing else is allocated.
    pub async fn check(&self) -> std::result::Result<(), String> {
        let damaged = |error: Error| error.to_string();
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let mut used: BTreeSet<u64> = BTreeSet::new();
        let mut nodes: BTreeSet<u64> = BTreeSet::new();
        for (n, it) in self.lines.iter().enumerate() {
            let head = it.has_head.then_some((None, &it.flat));
            let snapshots = it.flats.iter().map(|(number, flat)| (Some(*number), flat));
            for (number, flat) in head.into_iter().chain(snapshots) {
                let is = self.read(n, number).await.map_err(damaged)?;
                if is != *flat {
                    return Err(format!("line {n} at {number:?} reads wrong"));
                }
                used.extend(flat.values());
                for layer in it.own_layers(number) {
                    self.nodes_of(&layer.tree, &mut nodes).await.map_err(damaged)?;
                }
            }
            self.nodes_of(&it.dead, &mut nodes).await.map_err(damaged)?;
            if it.has_head {
                self.unfound(it, &mut used).await.map_err(damaged)?;
            }
        }
        compare("block", &used, &self.data)?;
        compare("node", &nodes, &self.store.nodes.borrow().keys().copied().collect())
    }

    async fn nodes_of(&self, tree: &Root, into: &mut BTreeSet<u64>) -> Result<()> {
        let mut found = Found::default();
        nodes_after(&self.store, tree, 0, &mut found).await?;
        // Copies of a node have the same bytes.
        let nodes = self.store.nodes.borrow();
        let bytes = found.nodes.iter().filter_map(|node| nodes.get(&node.address.bits()));
        let count = bytes.collect::<BTreeSet<_>>().len() as u64;
        if count != tree.nodes {
            bail!(Corrupt, "a tree has {count} nodes, not {}", tree.nodes);
        }
        into.extend(found.nodes.iter().map(|node| node.address.bits()));
        Ok(())
    }

    /// Adds the blocks of the head's trees that are overwritten, which only a merge will find.
    async fn unfound(&self, line: &Line, into: &mut BTreeSet<u64>) -> Result<()> {
        for tree in &line.below {
            let layers = [Layer { tree: *tree, limit: NUMBER_MAX }];
            let mut reader = Reader::new(&self.store, &layers)?;
            let (mut block, mut covered) = (0, 0);
            while block < BLOCKS_MAX {
                let piece = reader.piece(block, BLOCKS_MAX).await?;
                if let Content::Data { address, .. } = piece.content {
                    // Blocks that a partial fold has replaced are no longer in the tree below. Moved ones are in both trees.
                    into.extend(address.bits()..address.bits() + piece.blocks);
                }
                covered += if let Content::Absent = piece.content { 0 } else { piece.blocks };
                block += piece.blocks;
            }
            assert_eq!(covered, tree.blocks, "the count of blocks of a tree");
        }
        Ok(())
    }
}

/// Compares used with allocated addresses.
fn compare(
    what: &str,
    used: &BTreeSet<u64>,
    allocated: &BTreeSet<u64>,
) -> std::result::Result<(), String> {
    if let Some(bits) = used.difference(allocated).next() {
        return Err(format!("a {what} in use at {bits:#x} is free"));
    }
    match allocated.difference(used).next() {
        Some(bits) => Err(format!("the {what} at {bits:#x} is leaked")),
        None => Ok(()),
    }
}
