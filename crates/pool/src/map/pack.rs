//! Packs sorted items into nodes, as full as possible.

use std::collections::VecDeque;
use std::rc::Rc;

use super::columns::{Shape, Values};
use super::node::{Head, Key, NODE_BYTES, Node, encode};
use super::root::Form;
use super::run::Number;

/// A node with fewer bytes takes in its right neighbour.
const SMALL_BYTES: usize = NODE_BYTES / 4;

/// Free bytes of a node below which the next item may not fit, because it makes columns wider.
const NEAR_FULL_BYTES: usize = 512;

/// An item that is stored in columns, with a tail of bytes behind them.
pub(super) trait Packed<const N: usize>: Clone {
    /// The numbers of the item. `index` is the number of tail elements before the item in its node.
    fn values(&self, index: u64) -> Values<N>;
    fn key(&self, form: &Form) -> Key;
    /// Newest birth of a run in the item.
    fn newest(&self) -> Number;
    /// Blocks that the item covers.
    fn blocks(&self) -> u64;
    fn tail_bytes(&self, form: &Form) -> usize;
    fn tail_count(&self) -> u64;
}

/// A new node, and the facts about it that its parent needs.
pub(super) struct NewNode {
    pub node: Rc<Node>,
    pub key: Key,
    pub newest: Number,
    pub items: u64,
    pub blocks: u64,
}

/// The node that is being filled.
#[derive(Clone, Copy)]
struct Filling<const N: usize> {
    shape: Shape<N>,
    /// Number of tail elements.
    tail_count: u64,
    /// Whether the shape may be wider than its items, because an item was replaced.
    is_loose: bool,
}

impl<const N: usize> Filling<N> {
    const EMPTY: Self = Self { shape: Shape::EMPTY, tail_count: 0, is_loose: false };

    /// Returns the shape if the next item may not fit. Few items need so many bytes that another one does not.
    #[inline]
    fn shape_if_near_full(&self) -> Option<Shape<N>> {
        (self.shape.bytes() > NODE_BYTES - NEAR_FULL_BYTES).then_some(self.shape)
    }
}

/// The items of the leaf or inner node that is being filled, and of the one before it.
pub(super) struct Packer<T, const N: usize> {
    pub head: Head,
    items: Vec<T>,
    tails: Vec<u8>,
    /// A full node that waits for its successor.
    full: Option<Filling<N>>,
    filling: Filling<N>,
    ready: VecDeque<NewNode>,
}

impl<T: Packed<N>, const N: usize> Packer<T, N> {
    pub fn new(head: Head) -> Self {
        Self {
            head,
            items: Vec::new(),
            tails: Vec::new(),
            full: None,
            filling: Filling::EMPTY,
            ready: VecDeque::new(),
        }
    }

    /// Whether a node is finished.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns a finished node, if there is one.
    pub fn next_ready(&mut self) -> Option<NewNode> {
        self.ready.pop_front()
    }

    /// The last item, if it is in the node that is being filled.
    pub fn last(&self) -> Option<&T> {
        if self.filling.shape.items == 0 { None } else { self.items.last() }
    }

    /// Free bytes of the node that is being filled.
    pub fn free_bytes(&self) -> usize {
        NODE_BYTES.saturating_sub(self.filling.shape.bytes())
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether the items that wait are less than a quarter of a node.
    pub fn is_small(&self) -> bool {
        let is_short = self.filling.shape.bytes() < SMALL_BYTES;
        !self.items.is_empty() && self.full.is_none() && is_short
    }

    /// The items that wait.
    pub fn waiting(&self) -> &[T] {
        &self.items
    }

    /// Adds an item to the node that is being filled, if it fits there.
    #[inline]
    pub fn try_push(&mut self, item: &T, tail: &[u8]) -> bool {
        let filling = &mut self.filling;
        let before = filling.shape_if_near_full();
        filling.shape.add(&item.values(filling.tail_count), tail.len());
        if filling.shape.bytes() > NODE_BYTES {
            self.refill(before);
            return false;
        }
        filling.tail_count += item.tail_count();
        self.items.push(item.clone());
        self.tails.extend_from_slice(tail);
        true
    }

    /// Adds an item.
    ///
    /// # Panics
    /// If the item does not fit into a node of its own.
    #[inline]
    pub fn push(&mut self, item: &T, tail: &[u8]) {
        if !self.try_push(item, tail) {
            self.close();
            assert!(self.try_push(item, tail), "an item fits into a node of its own");
        }
    }

    /// Replaces the last item by `item`, which has `tail` behind the tail of the last item, if that fits.
    pub fn try_extend(&mut self, item: &T, tail: &[u8]) -> bool {
        let filling = &mut self.filling;
        let before = filling.shape_if_near_full();
        let added = item.tail_count() - self.items.last().map_or(0, Packed::tail_count);
        // The wider numbers count. The item and its index do not, because they are there already.
        let mut values = item.values(filling.tail_count + added - item.tail_count());
        values.index = values.index.map(|(column, _)| (column, false));
        filling.shape.add(&values, tail.len());
        filling.shape.items -= 1;
        if filling.shape.bytes() > NODE_BYTES {
            self.refill(before);
            return false;
        }
        filling.is_loose = true;
        filling.tail_count += added;
        *self.items.last_mut().expect("there is a last item") = item.clone();
        self.tails.extend_from_slice(tail);
        true
    }

    /// Takes an item that did not fit out of the shape of the node that is being filled: by the shape `before` it, or by
    /// all items.
    fn refill(&mut self, before: Option<Shape<N>>) {
        if let Some(before) = before {
            self.filling.shape = before;
            return;
        }
        let from = self.full.map_or(0, |full| full.shape.items);
        self.filling.shape = self.shape_of(from..self.items.len());
        self.filling.is_loose = false;
    }

    /// Ends the node that is being filled. The full node before it is then finished.
    pub fn close(&mut self) {
        if let Some(full) = self.full.take() {
            self.finish(full);
        }
        let filling = std::mem::replace(&mut self.filling, Filling::EMPTY);
        self.full = (filling.shape.items > 0).then_some(filling);
    }

    /// Finishes all items that wait. If the last node were less than half full, it shares evenly with the one before.
    pub fn flush(&mut self) {
        let mut last = std::mem::replace(&mut self.filling, Filling::EMPTY);
        if let Some(mut full) = self.full.take() {
            let is_short = last.shape.bytes() < NODE_BYTES / 2 && last.shape.items > 0;
            if let Some(halves) = is_short.then(|| self.halves()).flatten() {
                (full, last) = halves;
            }
            self.finish(full);
        }
        if last.shape.items > 0 {
            self.finish(last);
        }
    }

    /// Divides all waiting items into two halves of the same number of bytes, if each fits into a node.
    fn halves(&self) -> Option<(Filling<N>, Filling<N>)> {
        let average = self.shape_of(0..self.items.len()).bytes() / 2;
        let mut first = Filling::<N>::EMPTY;
        for item in &self.items[..self.items.len() - 1] {
            if first.shape.bytes() >= average {
                break;
            }
            let tail_bytes = item.tail_bytes(&self.head.form);
            first.shape.add(&item.values(first.tail_count), tail_bytes);
            first.tail_count += item.tail_count();
        }
        let shape = self.shape_of(first.shape.items..self.items.len());
        let fits = first.shape.bytes().max(shape.bytes()) <= NODE_BYTES && first.shape.items > 0;
        fits.then_some((first, Filling { shape, ..Filling::EMPTY }))
    }

    fn shape_of(&self, range: std::ops::Range<usize>) -> Shape<N> {
        let mut shape = Shape::EMPTY;
        let mut count = 0;
        for item in &self.items[range] {
            shape.add(&item.values(count), item.tail_bytes(&self.head.form));
            count += item.tail_count();
        }
        shape
    }

    /// Makes a node of the first items, which have the shape of `filled`.
    fn finish(&mut self, filled: Filling<N>) {
        let items = filled.shape.items;
        let shape = if filled.is_loose { self.shape_of(0..items) } else { filled.shape };
        let mine = &self.items[..items];
        let mut count = 0;
        let values = mine.iter().map(move |item| {
            let values = item.values(count);
            count += item.tail_count();
            values
        });
        let node = encode(self.head, &shape, values, &self.tails[..shape.tail_bytes]);
        self.ready.push_back(NewNode {
            node,
            key: mine[0].key(&self.head.form),
            newest: mine.iter().map(Packed::newest).max().unwrap_or(0),
            items: items as u64,
            blocks: mine.iter().map(Packed::blocks).sum(),
        });
        self.items.drain(..items);
        self.tails.drain(..shape.tail_bytes);
    }
}
