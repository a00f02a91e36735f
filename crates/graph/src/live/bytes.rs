//! Comparison of the bytes that exports show before and after a change.

use std::cell::RefCell;
use std::collections::BTreeMap;

use block::Table;
use kind::{Bytes, Effect};

use crate::spec::{Planned, PlannedNode, Role};

/// A comparison of the bytes that nodes of a graph show before and after a change.
pub struct Compared<'c> {
    /// Plan of the graph before the change.
    pub old: &'c Planned,
    /// Plan of the graph after the change.
    pub new: &'c Planned,
    /// For each node of `new`: the index of the node of `old` that continues unchanged, if there is one.
    pub unchanged: &'c [Option<usize>],
    /// Whether a lower (second argument) of a device of `old` (first argument) that keeps copies has all bytes of the
    /// device.
    pub has_all: &'c dyn Fn(&PlannedNode, &PlannedNode) -> bool,
    /// Results by pair of nodes: each pair is compared once, however many paths lead to it.
    compared: RefCell<BTreeMap<(usize, usize), Result<(), Differs>>>,
}

/// A device of the old graph and a device of the new graph that show different bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Differs {
    /// The device of the old graph: an index into its nodes.
    pub old: usize,
    /// The device of the new graph: an index into its nodes.
    pub new: usize,
}

impl<'c> Compared<'c> {
    /// Returns a comparison of two plans, in which no nodes are compared yet.
    pub fn new(
        old: &'c Planned,
        new: &'c Planned,
        unchanged: &'c [Option<usize>],
        has_all: &'c dyn Fn(&PlannedNode, &PlannedNode) -> bool,
    ) -> Self {
        Self { old, new, unchanged, has_all, compared: RefCell::default() }
    }

    /// Checks that node `n` of the new graph shows the same bytes at every address as node `o` of the old graph.
    ///
    /// # Errors
    /// The pair of devices, at or below these nodes, whose bytes differ.
    pub fn shows(&self, o: usize, n: usize) -> Result<(), Differs> {
        let (o, n) = (self.old.through(o), self.new.through(n));
        if self.unchanged[n] == Some(o) {
            return Ok(());
        }
        if let Some(known) = self.compared.borrow().get(&(o, n)) {
            return *known;
        }
        let shown = self.shows_anew(o, n);
        self.compared.borrow_mut().insert((o, n), shown);
        shown
    }

    fn shows_anew(&self, o: usize, n: usize) -> Result<(), Differs> {
        let (old, new) = (&self.old.nodes[o], &self.new.nodes[n]);
        if is_of_lowers(old) || is_of_lowers(new) {
            let both = [old, new].map(bytes) == [Bytes::FirstLower; 2] && old.name == new.name;
            let goes_on = both && self.is_alike(o, n).is_ok();
            return if goes_on { Ok(()) } else { self.shows_any(o, n) };
        }
        self.is_alike(o, n)
    }

    /// Checks that the nodes `o` and `n` have equal kinds and options, and lowers that show the same bytes.
    fn is_alike(&self, o: usize, n: usize) -> Result<(), Differs> {
        let (old, new) = (&self.old.nodes[o], &self.new.nodes[n]);
        let differs = || Err(Differs { old: o, new: n });
        if old.kind.name != new.kind.name {
            return differs();
        }
        let same = match (new.role, &old.table, &new.table) {
            (Role::Disk, ..) => is_same_disk(old, new),
            (_, Some(before), Some(after)) => begins_with(after, before),
            _ => {
                let counts = |effect| effect == Effect::Bytes;
                old.given.has_options_of(&new.given, new.kind, counts)
                    && old.lowers.len() == new.lowers.len()
            }
        };
        if !same || old.lowers.len() > new.lowers.len() || old.info.size > new.info.size {
            return differs();
        }
        let mut lowers = old.lowers.iter().zip(&new.lowers);
        lowers.try_for_each(|(o, n)| self.shows(*o, *n)).map_err(|below| {
            // The new lower is too small for all bytes of the old one, but the part that the nodes above show may fit.
            let fits = self.old.nodes[below.old].info.size <= self.new.nodes[below.new].info.size;
            if fits { below } else { Differs { old: o, new: n } }
        })
    }

    /// Compares nodes of which one shows the bytes of any of its lowers. One lower with the same bytes is enough: the
    /// device copies them to its other lowers.
    fn shows_any(&self, o: usize, n: usize) -> Result<(), Differs> {
        let (old, new) = (&self.old.nodes[o], &self.new.nodes[n]);
        let has_all = |lower: &&usize| (self.has_all)(old, &self.old.nodes[**lower]);
        let olds: Vec<usize> = match bytes(old) {
            Bytes::Replicated | Bytes::FirstLower => {
                old.lowers.iter().filter(has_all).copied().collect()
            }
            _ => vec![o],
        };
        let news: Vec<usize> = match bytes(new) {
            Bytes::Replicated => new.lowers.clone(),
            Bytes::FirstLower => vec![new.lowers[0]],
            _ => vec![n],
        };
        let found = olds.iter().any(|o| news.iter().any(|n| self.shows(*o, *n).is_ok()));
        if found { Ok(()) } else { Err(Differs { old: o, new: n }) }
    }
}

/// Returns the relation of a node's bytes to those of its lowers.
fn bytes(node: &PlannedNode) -> Bytes {
    node.bytes()
}

/// Whether a device shows the bytes of one of its lowers, or of each of them.
fn is_of_lowers(node: &PlannedNode) -> bool {
    matches!(bytes(node), Bytes::Replicated | Bytes::FirstLower)
}

/// Whether two nodes are the same disk. A labelled disk is identified by its name, which its label records; a raw disk
/// by its path. A disk without a path, such as memory, is the same only if it stays open.
fn is_same_disk(old: &PlannedNode, new: &PlannedNode) -> bool {
    if old.labelled || new.labelled {
        return old.labelled && new.labelled && old.name == new.name;
    }
    old.place().is_some() && old.place() == new.place()
}

/// Whether the table `after` maps all bytes of the table `before` to the same places.
fn begins_with(after: &Table, before: &Table) -> bool {
    let count = before.segments().len();
    let rows = before.segments().zip(after.segments());
    let same = rows.enumerate().all(|(index, (before, after))| {
        let ends = before.range == after.range
            || index + 1 == count && before.range.len() <= after.range.len();
        before.range.start() == after.range.start() && ends && before.place == after.place
    });
    same && after.segments().len() >= count
}
