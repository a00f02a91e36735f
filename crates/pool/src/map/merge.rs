//! Merges sorted changes into a tree. Each changed path is written once, all other nodes are referred to.

use std::rc::Rc;

use block::{Result, bail, error};

use super::inner::POINTER_COLUMNS;
use super::node::{Head, Key, LEVELS_MAX, Node, Place, Pointer};
use super::pack::{NewNode, Packer};
use super::root::{Filter, Form, Root, TreeKind};
use super::run::Number;
use super::store::{Finds, Store};

/// Sorted changes that do not overlap.
pub trait Source<C> {
    /// Returns the next change.
    ///
    /// # Errors
    /// Those of reads, if the changes come from a tree.
    fn next(&mut self) -> impl Future<Output = Result<Option<C>>>;
}

/// Changes from an iterator.
pub struct FromIter<I>(pub I);

impl<C, I: Iterator<Item = C>> Source<C> for FromIter<I> {
    async fn next(&mut self) -> Result<Option<C>> {
        Ok(self.0.next())
    }
}

/// Items that a merge handles between two rests, besides the nodes that it finishes.
const ITEMS_PER_REST: usize = 96;

/// How to merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeOptions {
    /// Birth of the new nodes.
    pub birth: Number,
    /// Number of new leaves after which the merge stops, for a fold in parts; `None` for all changes.
    pub leaves_max: Option<u64>,
}

/// The result of a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merged {
    /// The new tree.
    pub root: Root,
    /// Number of nodes that were written.
    pub written: u64,
    /// Key of the first change that is not in the new tree, if the merge has stopped before the end.
    pub rest: Option<Key>,
}

/// The leaves of one kind of tree: decodes old ones, applies changes, packs new ones.
pub(super) trait Leaves {
    type Change;

    fn change_key(&self, change: &Self::Change) -> Key;

    /// Begins to change an old leaf.
    fn open(&mut self, node: Rc<Node>) -> Result<()>;

    /// Applies a change up to the key `high`, and returns its rest.
    fn apply(
        &mut self,
        change: Self::Change,
        high: Option<Key>,
        finds: &mut impl Finds,
    ) -> Result<Option<Self::Change>>;

    /// Keeps at most `most` old items before a key, or any items without one. Returns their number.
    fn keep_before(&mut self, key: Option<&Key>, most: usize) -> usize;

    /// Ends the old leaf. All its items are kept or changed.
    fn finish_leaf(&mut self);

    /// Returns the blocks that the items of a leaf cover.
    fn blocks(&self, node: &Node) -> u64;

    fn has_ready(&self) -> bool;
    fn next_ready(&mut self) -> Option<NewNode>;
    fn flush(&mut self);
    fn is_small(&self) -> bool;
}

/// An inner node of the old tree, or the pointer to its root, on the way through the old tree.
pub(super) struct Frame {
    node: Option<Rc<Node>>,
    top: Pointer,
    place: Place,
    index: usize,
}

impl Frame {
    pub fn top(top: Pointer, place: Place) -> Self {
        Self { node: None, top, place, index: 0 }
    }

    pub fn of(node: Rc<Node>, place: Place, top: Pointer) -> Self {
        Self { node: Some(node), top, place, index: 0 }
    }

    /// Returns the next child with its place.
    pub fn next(&mut self) -> Option<(Pointer, Place)> {
        let n = self.index;
        self.index += 1;
        match &self.node {
            None => (n == 0).then_some((self.top, self.place)),
            Some(node) if n < node.items() => {
                Some((node.child(n), node.child_place(n, &self.place)))
            }
            Some(_) => None,
        }
    }

    /// Skips all children that end before `key`.
    pub fn skip_to(&mut self, key: &Key) {
        if let Some(node) = &self.node {
            self.index = self.index.max(node.child_with(key, &self.place));
        }
    }
}

/// The new tree, from the left to the right.
struct Builder<'a, S, L> {
    store: &'a S,
    form: Form,
    birth: Number,
    leaves: L,
    /// The packers of inner nodes: the first one for level 1.
    inner: Vec<Packer<Pointer, POINTER_COLUMNS>>,
    written: u64,
    leaves_written: u64,
    items: u64,
    blocks: u64,
}

impl<S: Store, L: Leaves> Builder<'_, S, L> {
    /// Writes a node, and gives its pointer to the level above. Damage of an inner node or of a table would cost more than
    /// a few blocks, so these nodes may have a second copy.
    async fn write(&mut self, new: NewNode, level: usize) -> Result<()> {
        let address = self.store.allocate()?;
        let has_second = level > 0 || self.form.kind == TreeKind::Table;
        let second = if has_second { self.store.allocate_second(address) } else { None };
        let checksum = new.node.checksum();
        self.store.write(address, second, new.node).await?;
        self.written += 1;
        let (key, newest, birth) = (new.key, new.newest, self.birth);
        self.push(Pointer { key, address, second, checksum, birth, newest }, level)
    }

    /// Adds a pointer to a node of `level` to the inner nodes above it.
    fn push(&mut self, pointer: Pointer, level: usize) -> Result<()> {
        while self.inner.len() <= level {
            let above = self.inner.len() as u8 + 1;
            if above >= LEVELS_MAX {
                bail!(
                    Limit,
                    "a tree of line {} needs more than {LEVELS_MAX} levels",
                    self.form.line
                );
            }
            let head = Head { form: self.form, level: above, birth: self.birth };
            self.inner.push(Packer::new(head));
        }
        self.inner[level].push(&pointer, &[]);
        Ok(())
    }

    /// Writes all finished nodes, and rests after each.
    async fn write_ready(&mut self) -> Result<()> {
        while let Some(new) = self.leaves.next_ready() {
            self.items += new.items;
            self.blocks += new.blocks;
            self.leaves_written += 1;
            self.write(new, 0).await?;
            self.store.rest().await;
        }
        let mut level = 0;
        while level < self.inner.len() {
            while let Some(new) = self.inner[level].next_ready() {
                self.write(new, level + 1).await?;
            }
            level += 1;
        }
        Ok(())
    }

    /// Whether a waiting node below or at `level` is so small that it takes its right neighbour in.
    fn is_small(&self, level: u8) -> bool {
        let below = self.inner.iter().take(usize::from(level));
        self.leaves.is_small() || below.into_iter().any(Packer::is_small)
    }

    /// Finishes all waiting nodes up to `level`.
    async fn flush(&mut self, level: u8) -> Result<()> {
        self.leaves.flush();
        self.write_ready().await?;
        for below in 0..usize::from(level).min(self.inner.len()) {
            self.inner[below].flush();
            self.write_ready().await?;
        }
        Ok(())
    }

    /// Adds an unchanged node of the old tree with all that is below it.
    async fn reuse(&mut self, pointer: Pointer, level: u8) -> Result<()> {
        self.flush(level).await?;
        self.push(pointer, usize::from(level))?;
        self.write_ready().await
    }

    /// Finishes all nodes, and returns the pointer to the root with the number of levels.
    async fn finish(&mut self) -> Result<Option<(Pointer, u8)>> {
        self.flush(0).await?;
        let mut level = 0;
        while level < self.inner.len() {
            let is_top = self.inner[level + 1..].iter().all(Packer::is_empty);
            if let (true, [only]) = (is_top, self.inner[level].waiting()) {
                return Ok(Some((Pointer { key: [0; 4], ..*only }, level as u8 + 1)));
            }
            self.inner[level].flush();
            self.write_ready().await?;
            level += 1;
        }
        Ok(None)
    }
}

/// A merge on its way.
struct Merge<'a, S, L: Leaves, C> {
    out: Builder<'a, S, L>,
    source: C,
    next: Option<L::Change>,
    rest: Option<Key>,
    leaves_max: u64,
    /// Items since the last rest.
    work: usize,
}

impl<S: Store, L: Leaves, C: Source<L::Change>> Merge<'_, S, L, C> {
    /// Whether a change begins before `high`. Drops all changes if enough leaves are written.
    fn has_change(&mut self, high: Option<Key>) -> bool {
        let Some(change) = &self.next else { return false };
        let key = self.out.leaves.change_key(change);
        if self.out.leaves_written >= self.leaves_max {
            self.rest = Some(key);
            self.next = None;
            return false;
        }
        high.is_none_or(|high| key < high)
    }

    /// Notes that items are handled. Returns whether a leaf is finished, or a rest is due.
    #[inline]
    fn is_due(&mut self, items: usize) -> bool {
        self.work += items;
        self.work >= ITEMS_PER_REST || self.out.leaves.has_ready()
    }

    /// Writes finished nodes, and rests if it is time.
    async fn write_and_rest(&mut self) -> Result<()> {
        self.out.write_ready().await?;
        if self.work >= ITEMS_PER_REST {
            self.work = 0;
            self.out.store.rest().await;
        }
        Ok(())
    }

    /// Keeps all old items before a key, or all that are left without one.
    async fn keep_before(&mut self, key: Option<Key>) -> Result<()> {
        loop {
            let kept = self.out.leaves.keep_before(key.as_ref(), ITEMS_PER_REST);
            if self.is_due(kept) {
                self.write_and_rest().await?;
            }
            if kept < ITEMS_PER_REST {
                return Ok(());
            }
        }
    }

    /// Applies all changes before `high`.
    async fn apply(&mut self, high: Option<Key>, finds: &mut impl Finds) -> Result<()> {
        while self.has_change(high) {
            let Some(change) = self.next.take() else { break };
            self.keep_before(Some(self.out.leaves.change_key(&change))).await?;
            self.next = self.out.leaves.apply(change, high, finds)?;
            if self.next.is_none() {
                self.next = self.source.next().await?;
            }
            if self.is_due(1) {
                self.write_and_rest().await?;
            }
        }
        Ok(())
    }
}

/// Merges the changes of `source` into `tree`.
pub(super) async fn merge<S: Store, L: Leaves>(
    store: &S,
    tree: &Root,
    leaves: L,
    source: impl Source<L::Change>,
    options: MergeOptions,
    finds: &mut impl Finds,
) -> Result<Merged> {
    if tree.unknown_read_only != 0 {
        let flags = tree.unknown_read_only;
        bail!(ReadOnly, "a tree has flags {flags:#x}, which this Cairn does not know");
    }
    let (form, birth) = (tree.form, options.birth);
    let out = Builder {
        store,
        form,
        birth,
        leaves,
        inner: Vec::new(),
        written: 0,
        leaves_written: 0,
        items: 0,
        blocks: 0,
    };
    let leaves_max = options.leaves_max.unwrap_or(u64::MAX);
    let mut merge = Merge { out, source, next: None, rest: None, leaves_max, work: 0 };
    merge.next = merge.source.next().await?;
    let mut stack: Vec<Frame> =
        tree.root().map(|(pointer, place)| Frame::top(pointer, place)).into_iter().collect();
    let (mut replaced, mut items, mut blocks) = (0, 0, 0);
    while let Some(frame) = stack.last_mut() {
        let Some((pointer, place)) = frame.next() else {
            stack.pop();
            continue;
        };
        if !merge.has_change(place.high) && !merge.out.is_small(place.level) {
            merge.out.reuse(pointer, place.level).await?;
            if merge.is_due(1) {
                merge.write_and_rest().await?;
            }
            continue;
        }
        let node = store.read(&pointer, &place).await?;
        finds.replaced_at(&pointer);
        replaced += 1;
        if place.level > 0 {
            stack.push(Frame::of(node, place, pointer));
            continue;
        }
        items += node.items() as u64;
        blocks += merge.out.leaves.blocks(&node);
        merge.out.leaves.open(node)?;
        merge.apply(place.high, finds).await?;
        merge.keep_before(None).await?;
        merge.out.leaves.finish_leaf();
    }
    merge.apply(None, finds).await?;
    let top = merge.out.finish().await?;
    let out = &merge.out;
    let count = |before: u64, fewer: u64, more: u64| {
        let left = before.checked_sub(fewer).and_then(|left| left.checked_add(more));
        left.ok_or_else(|| error!(Corrupt, "the counts of a tree of line {} are wrong", form.line))
    };
    let root = Root {
        top,
        items: count(tree.items, items, out.items)?,
        blocks: count(tree.blocks, blocks, out.blocks)?,
        nodes: count(tree.nodes, replaced, out.written)?,
        filter: Filter::default(),
        ..*tree
    };
    Ok(Merged { root, written: merge.out.written, rest: merge.rest })
}
