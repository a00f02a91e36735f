//! Merges of dead entries and rows: items that a key replaces or removes.

use std::marker::PhantomData;
use std::rc::Rc;

use block::Result;

use super::dead::{DEAD_COLUMNS, DeadEntry};
use super::merge::{Leaves, MergeOptions, Merged, Source, merge};
use super::node::{Head, Key, Node};
use super::pack::{NewNode, Packed, Packer};
use super::root::{Form, Root, TreeKind};
use super::rows::{RowKey, row_key};
use super::store::{Finds, Store};

/// A change of a keyed item: a new item in place of one with the same key, or a removal.
struct Edit<T> {
    key: Key,
    put: Option<(T, Vec<u8>)>,
}

/// An item of a leaf, found by its key.
trait Keyed<const N: usize>: Packed<N> {
    fn read<'a>(node: &'a Node, n: usize, form: &Form) -> (Self, &'a [u8]);
}

impl Keyed<DEAD_COLUMNS> for DeadEntry {
    fn read<'a>(node: &'a Node, n: usize, _: &Form) -> (Self, &'a [u8]) {
        (node.dead(n), &[])
    }
}

impl Keyed<0> for RowKey {
    fn read<'a>(node: &'a Node, n: usize, form: &Form) -> (Self, &'a [u8]) {
        let (key, value) = node.row(n, form);
        let length = key.len() + value.len();
        (Self(row_key(key)), &node.bytes[node.tail + n * length..][..length])
    }
}

struct KeyedLeaves<T, const N: usize> {
    form: Form,
    packer: Packer<T, N>,
    old: Option<(Rc<Node>, usize)>,
}

impl<T: Keyed<N>, const N: usize> KeyedLeaves<T, N> {
    fn new(form: Form, birth: u64) -> Self {
        Self { form, packer: Packer::new(Head { form, level: 0, birth }), old: None }
    }

    /// Drops the next old item if it has this key.
    fn drop_old(&mut self, key: &Key) {
        if let Some((node, next)) = &mut self.old
            && *next < node.items()
            && T::read(node, *next, &self.form).0.key(&self.form) == *key
        {
            *next += 1;
        }
    }
}

impl<T: Keyed<N>, const N: usize> Leaves for KeyedLeaves<T, N> {
    type Change = Edit<T>;

    fn change_key(&self, change: &Edit<T>) -> Key {
        change.key
    }

    fn open(&mut self, node: Rc<Node>) -> Result<()> {
        self.old = Some((node, 0));
        Ok(())
    }

    fn apply(
        &mut self,
        change: Edit<T>,
        _: Option<Key>,
        _: &mut impl Finds,
    ) -> Result<Option<Edit<T>>> {
        self.drop_old(&change.key);
        if let Some((item, tail)) = change.put {
            self.packer.push(&item, &tail);
        }
        Ok(None)
    }

    fn keep_before(&mut self, key: Option<&Key>, most: usize) -> usize {
        let Some((node, next)) = &mut self.old else { return 0 };
        let mut kept = 0;
        while kept < most && *next < node.items() {
            let (item, tail) = T::read(node, *next, &self.form);
            if key.is_some_and(|key| item.key(&self.form) >= *key) {
                break;
            }
            self.packer.push(&item, tail);
            (*next, kept) = (*next + 1, kept + 1);
        }
        kept
    }

    fn finish_leaf(&mut self) {
        self.old = None;
    }

    fn blocks(&self, node: &Node) -> u64 {
        (0..node.items()).map(|n| T::read(node, n, &self.form).0.blocks()).sum()
    }

    fn has_ready(&self) -> bool {
        self.packer.has_ready()
    }

    fn next_ready(&mut self) -> Option<NewNode> {
        self.packer.next_ready()
    }

    fn flush(&mut self) {
        self.packer.flush();
    }

    fn is_small(&self) -> bool {
        self.packer.is_small()
    }
}

/// Turns changes of one type into changes of another.
struct Mapped<A, C, F>(C, F, PhantomData<A>);

impl<A, B, C: Source<A>, F: FnMut(A) -> B> Source<B> for Mapped<A, C, F> {
    async fn next(&mut self) -> Result<Option<B>> {
        Ok(self.0.next().await?.map(&mut self.1))
    }
}

/// A change of the dead entries of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadChange {
    /// A new entry.
    Add(DeadEntry),
    /// The entry's blocks are free.
    Remove(DeadEntry),
}

impl DeadChange {
    /// The entry.
    pub fn entry(&self) -> &DeadEntry {
        match self {
            Self::Add(entry) | Self::Remove(entry) => entry,
        }
    }
}

/// Merges changes into a tree of dead entries. They are sorted by death, then by address.
///
/// # Errors
/// As [`merge_runs`](super::merge_runs).
///
/// # Panics
/// If `tree` is another kind of tree.
pub async fn merge_dead<S: Store>(
    store: &S,
    tree: &Root,
    source: impl Source<DeadChange>,
    options: MergeOptions,
    finds: &mut impl Finds,
) -> Result<Merged> {
    assert_eq!(tree.form.kind, TreeKind::Dead, "a tree of dead entries");
    let form = tree.form;
    let edit = move |change: DeadChange| Edit {
        key: change.entry().key(&form),
        put: match change {
            DeadChange::Add(entry) => Some((entry, Vec::new())),
            DeadChange::Remove(_) => None,
        },
    };
    let source = Mapped(source, edit, PhantomData);
    let leaves = KeyedLeaves::<DeadEntry, DEAD_COLUMNS>::new(form, options.birth);
    merge(store, tree, leaves, source, options, finds).await
}

/// A change of a table: the key of a row, and its new value, or `None` to remove the row.
pub type RowChange = (Vec<u8>, Option<Vec<u8>>);

/// Merges changes into a table. They are sorted by key.
///
/// # Errors
/// As [`merge_runs`](super::merge_runs).
///
/// # Panics
/// If `tree` is another kind of tree, or a key or value does not have the width of the table.
pub async fn merge_rows<S: Store>(
    store: &S,
    tree: &Root,
    source: impl Source<RowChange>,
    options: MergeOptions,
    finds: &mut impl Finds,
) -> Result<Merged> {
    assert_eq!(tree.form.kind, TreeKind::Table, "a table");
    let form = tree.form;
    let edit = move |(key, value): RowChange| {
        let words = row_key(&key);
        assert_eq!(key.len(), usize::from(form.key_bytes), "a key has the width of the table");
        let put = value.map(|value| {
            assert_eq!(value.len(), usize::from(form.value_bytes), "so has a value");
            (RowKey(words), [key, value].concat())
        });
        Edit { key: words, put }
    };
    let source = Mapped(source, edit, PhantomData);
    let leaves = KeyedLeaves::<RowKey, 0>::new(form, options.birth);
    merge(store, tree, leaves, source, options, finds).await
}
