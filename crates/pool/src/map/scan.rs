//! Walks over trees: leaf by leaf, as changes for a fold, and node by node.

use std::rc::Rc;

use block::{Error, Result};

use super::merge::{Frame, Source};
use super::node::{Key, Node};
use super::root::Root;
use super::run::{BLOCKS_MAX, Number, RunChange, Sums};
use super::store::{Finds, Reads};

/// Returns the leaves of a tree, from the one with a key on.
pub struct Scan<'a, S> {
    store: &'a S,
    from: Key,
    stack: Vec<Frame>,
}

impl<'a, S: Reads> Scan<'a, S> {
    /// Begins a scan at the leaf that can have items with the key `from`.
    pub fn new(store: &'a S, tree: &Root, from: Key) -> Self {
        let top = tree.root().map(|(pointer, place)| Frame::top(pointer, place));
        Self { store, from, stack: top.into_iter().collect() }
    }

    /// Returns the next leaf; `None` at the end of the tree.
    ///
    /// # Errors
    /// As [`Reads::read`].
    pub async fn next_leaf(&mut self) -> Result<Option<Rc<Node>>> {
        while let Some(frame) = self.stack.last_mut() {
            let Some((pointer, place)) = frame.next() else {
                self.stack.pop();
                continue;
            };
            let node = self.store.read(&pointer, &place).await?;
            if place.level == 0 {
                return Ok(Some(node));
            }
            let mut frame = Frame::of(node, place, pointer);
            frame.skip_to(&self.from);
            self.stack.push(frame);
        }
        Ok(None)
    }
}

/// The runs of a change tree as changes of the tree below: the source of a fold.
pub struct FoldSource<'a, S> {
    scan: Scan<'a, S>,
    from: u64,
    sum_bytes: usize,
    leaf: Option<(Rc<Node>, Rc<[u8]>)>,
    next: usize,
}

impl<'a, S: Reads> FoldSource<'a, S> {
    /// The changes of a change tree from block `from` on.
    pub fn new(store: &'a S, tree: &Root, from: u64) -> Self {
        let sum_bytes = usize::from(tree.form.sums.bytes());
        let scan = Scan::new(store, tree, [from, 0, 0, 0]);
        Self { scan, from, sum_bytes, leaf: None, next: 0 }
    }

    /// Returns run `n` of a leaf as a change, from block `from` on.
    fn change(&self, node: &Node, all: &Rc<[u8]>, n: usize) -> Option<RunChange> {
        let run = node.run(n);
        let own = node.run_sums(n, &run, self.sum_bytes);
        let sums = if run.sums() <= 1 {
            Sums::new(own)
        } else {
            Sums::Shared(all.clone(), (node.sum_index(n) * self.sum_bytes) as u32)
        };
        RunChange { run, sums }.from(self.from.max(run.block), self.sum_bytes)
    }
}

impl<S: Reads> Source<RunChange> for FoldSource<'_, S> {
    async fn next(&mut self) -> Result<Option<RunChange>> {
        loop {
            if let Some((node, all)) = &self.leaf
                && self.next < node.items()
            {
                let change = self.change(node, all, self.next);
                self.next += 1;
                if change.is_some() {
                    return Ok(change);
                }
                continue;
            }
            let Some(node) = self.scan.next_leaf().await? else { return Ok(None) };
            let bytes = usize::from(node.extra()) * self.sum_bytes;
            let all = node.bytes[node.tail..node.tail + bytes].into();
            self.leaf = Some((node, all));
            self.next = 0;
        }
    }
}

/// Reports all nodes of a tree that were born after `after` as replaced. Does not read below older nodes, because a node
/// is never older than the nodes below it.
///
/// # Errors
/// As [`Reads::read`].
pub async fn nodes_after<S: Reads>(
    store: &S,
    tree: &Root,
    after: Number,
    finds: &mut impl Finds,
) -> Result<()> {
    let top = tree.root().map(|(pointer, place)| Frame::top(pointer, place));
    let mut stack: Vec<Frame> = top.into_iter().collect();
    while let Some(frame) = stack.last_mut() {
        let Some((pointer, place)) = frame.next() else {
            stack.pop();
            continue;
        };
        if pointer.birth <= after {
            continue;
        }
        finds.replaced_at(&pointer);
        if place.level > 0 {
            let node = store.read(&pointer, &place).await?;
            stack.push(Frame::of(node, place, pointer));
            store.rest().await;
        }
    }
    Ok(())
}

/// A part of a tree of runs that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedPart {
    /// First block.
    pub block: u64,
    /// Block behind the last one.
    pub end: u64,
    /// Error of the node.
    pub why: Error,
}

/// Reads all nodes of a tree of runs, and returns the parts behind those that cannot be read.
pub async fn damaged_parts<S: Reads>(store: &S, tree: &Root) -> Vec<DamagedPart> {
    let mut parts: Vec<DamagedPart> = Vec::new();
    let top = tree.root().map(|(pointer, place)| Frame::top(pointer, place));
    let mut stack: Vec<Frame> = top.into_iter().collect();
    while let Some(frame) = stack.last_mut() {
        let Some((pointer, place)) = frame.next() else {
            stack.pop();
            continue;
        };
        match store.read(&pointer, &place).await {
            Ok(node) if place.level > 0 => stack.push(Frame::of(node, place, pointer)),
            Ok(_) => {}
            Err(why) => {
                let (block, end) = (place.low[0], place.high.map_or(BLOCKS_MAX, |high| high[0]));
                match parts.last_mut().filter(|last| last.end == block) {
                    Some(last) => last.end = end,
                    None => parts.push(DamagedPart { block, end, why }),
                }
            }
        }
    }
    parts
}
