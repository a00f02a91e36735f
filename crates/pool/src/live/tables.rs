//! The tables of an allocator: a tree of rows for each, and the changes since the last checkpoint in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;

use block::{Result, bail, error};

use super::nodes::{Lookups, Passes};
use crate::map::{
    Finds, Form, FromIter, MergeOptions, Number, Root, RowChange, Scan, merge_rows, row_key,
};
use crate::root::TABLES;
use crate::rows::{Row, Table};
use crate::{DESCRIPTOR_BYTES, Descriptor};

/// Line of the trees of tables.
const NO_LINE: u64 = 0;

/// Most rows in one page of a table.
pub const PAGE_ROWS_MAX: usize = 4096;

/// A change in memory: the row, or `None` if it is removed.
type Edit = Option<Box<[u8]>>;

/// A table, or the empty place of a number without a meaning.
#[derive(Default)]
struct State {
    tree: Option<Root>,
    /// Changes that a checkpoint merges now.
    taken: BTreeMap<Vec<u8>, Edit>,
    /// Changes since the last cut.
    fresh: BTreeMap<Vec<u8>, Edit>,
}

impl State {
    /// Returns the newest change of the row with this key.
    fn edit(&self, key: &[u8]) -> Option<&Edit> {
        self.fresh.get(key).or_else(|| self.taken.get(key))
    }
}

/// The tables of an allocator. A change is in memory until a checkpoint has merged it.
pub struct Tables {
    states: RefCell<Vec<State>>,
    lookups: Lookups,
}

fn form(table: Table) -> Form {
    let (key, row) = (table.key_bytes(), table.row_bytes());
    Form::table(NO_LINE, key as u16, (row - key) as u16)
}

fn decode<R: Row>(bytes: &[u8]) -> Result<R> {
    R::decode(bytes).map_err(|why| error!(Corrupt, "a row of table {:?}: {why}", R::TABLE))
}

/// Returns the next key after `key`, if there is one.
fn after(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    let last = next.iter().rposition(|byte| *byte != u8::MAX)?;
    next[last] += 1;
    next[last + 1..].fill(0);
    Some(next)
}

impl Tables {
    /// Creates the tables with the trees of a superblock.
    ///
    /// # Errors
    /// `Corrupt` if a descriptor is damaged, or belongs to a table of another width.
    pub fn new(lookups: Lookups, trees: &[Descriptor; TABLES]) -> Result<Self> {
        let mut states: Vec<State> = (0..TABLES).map(|_| State::default()).collect();
        for table in Table::ALL {
            let bytes = &trees[*table as usize];
            let tree = match *bytes == [0; DESCRIPTOR_BYTES] {
                true => Root::empty(form(*table)),
                false => Root::decode(bytes)?,
            };
            if tree.form != form(*table) {
                bail!(Corrupt, "the tree of table {table:?} has rows of another width");
            }
            states[*table as usize].tree = Some(tree);
        }
        Ok(Self { states: RefCell::new(states), lookups })
    }

    /// Adds a row, or replaces the one with its key.
    pub fn put<R: Row>(&self, row: &R) {
        let mut bytes = Vec::new();
        row.encode(&mut bytes);
        self.put_bytes(R::TABLE, bytes);
    }

    /// Adds or replaces a row in its encoded form.
    pub fn put_bytes(&self, table: Table, row: Vec<u8>) {
        let key = row[..table.key_bytes()].to_vec();
        self.states.borrow_mut()[table as usize].fresh.insert(key, Some(row.into()));
    }

    /// Removes the row with this key.
    pub fn remove(&self, table: Table, key: &[u8]) {
        self.states.borrow_mut()[table as usize].fresh.insert(key.to_vec(), None);
    }

    /// Returns the row with this key.
    ///
    /// # Errors
    /// Those of reads of nodes; `Corrupt` for a damaged row.
    pub async fn get<R: Row>(&self, key: &[u8]) -> Result<Option<R>> {
        let _reading = self.lookups.0.reading();
        let tree = {
            let states = self.states.borrow();
            let state = &states[R::TABLE as usize];
            match state.edit(key) {
                Some(Some(row)) => return decode(row).map(Some),
                Some(None) => return Ok(None),
                None => *state.tree.as_ref().expect("a known table has a tree"),
            }
        };
        let mut scan = Scan::new(&self.lookups, &tree, row_key(key));
        let Some(leaf) = scan.next_leaf().await? else { return Ok(None) };
        for n in 0..leaf.items() {
            let (found, value) = leaf.row(n, &tree.form);
            if found == key {
                return decode(&[found, value].concat()).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns up to `most` rows whose keys begin with `prefix`, in the order of their keys, from the key `from` on, and
    /// the key from which the next page begins; `None` behind the last such row.
    ///
    /// # Errors
    /// As [`Tables::get`].
    ///
    /// # Panics
    /// If `most` is 0, or above [`PAGE_ROWS_MAX`].
    pub async fn page<R: Row>(
        &self,
        prefix: &[u8],
        from: &[u8],
        most: usize,
    ) -> Result<(Vec<R>, Option<Vec<u8>>)> {
        assert!((1..=PAGE_ROWS_MAX).contains(&most), "a page of {most} rows");
        let _reading = self.lookups.0.reading();
        let (tree, edits, mut last) = self.edits(R::TABLE, prefix, from, most);
        let mut rows: BTreeMap<Vec<u8>, Box<[u8]>> = BTreeMap::new();
        let mut scan = Scan::new(&self.lookups, &tree, row_key(from));
        'leaves: while let Some(leaf) = scan.next_leaf().await? {
            for n in 0..leaf.items() {
                let (key, value) = leaf.row(n, &tree.form);
                if key < from || edits.contains_key(key) {
                    continue;
                }
                let is_behind = last.as_ref().is_some_and(|last| key > last.as_slice());
                if is_behind || !key.starts_with(prefix) {
                    break 'leaves;
                }
                rows.insert(key.to_vec(), [key, value].concat().into());
                if rows.len() == most {
                    last = Some(key.to_vec());
                    break 'leaves;
                }
            }
        }
        let is_in = |key: &Vec<u8>| last.as_ref().is_none_or(|last| key <= last);
        let puts = edits.into_iter().filter(|(key, _)| is_in(key));
        rows.extend(puts.filter_map(|(key, edit)| Some((key, edit?))));
        if let Some((key, _)) = rows.iter().nth(most - 1) {
            last = Some(key.clone());
        }
        let page = rows.values().take(most).map(|row| decode(row)).collect::<Result<_>>()?;
        let next = last.and_then(|last| after(&last)).filter(|next| next.starts_with(prefix));
        Ok((page, next))
    }

    /// Returns all rows whose keys begin with `prefix`.
    ///
    /// # Errors
    /// As [`Tables::get`].
    pub async fn all_of<R: Row>(&self, prefix: &[u8]) -> Result<Vec<R>> {
        let mut from = prefix.to_vec();
        from.resize(R::TABLE.key_bytes(), 0);
        let mut all = Vec::new();
        let mut next = Some(from);
        while let Some(from) = next {
            let (rows, rest) = self.page::<R>(prefix, &from, PAGE_ROWS_MAX).await?;
            all.extend(rows);
            next = rest;
        }
        Ok(all)
    }

    /// Returns the tree of a table, and the changes in memory to rows with the prefix, from a key on, up to `most` rows.
    /// If there are more, the last key is returned, too.
    fn edits(
        &self,
        table: Table,
        prefix: &[u8],
        from: &[u8],
        most: usize,
    ) -> (Root, BTreeMap<Vec<u8>, Edit>, Option<Vec<u8>>) {
        let states = self.states.borrow();
        let state = &states[table as usize];
        let mut edits: BTreeMap<Vec<u8>, Edit> = BTreeMap::new();
        let mut last: Option<Vec<u8>> = None;
        for all in [&state.taken, &state.fresh] {
            let mut puts = 0;
            for (key, edit) in all.range(from.to_vec()..) {
                if last.as_ref().is_some_and(|last| key > last) || !key.starts_with(prefix) {
                    break;
                }
                puts += usize::from(edit.is_some());
                edits.insert(key.clone(), edit.clone());
                if puts == most {
                    last = Some(key.clone());
                    break;
                }
            }
        }
        if let Some(last) = &last {
            edits.retain(|key, _| key <= last);
        }
        (state.tree.expect("a known table has a tree"), edits, last)
    }

    /// Returns the tree of a table, as of the last checkpoint.
    pub fn tree(&self, table: Table) -> Root {
        self.states.borrow()[table as usize].tree.expect("a known table has a tree")
    }

    /// Returns the number of nodes of a table's tree.
    pub fn nodes(&self, table: Table) -> u64 {
        self.states.borrow()[table as usize].tree.map_or(0, |tree| tree.nodes)
    }

    /// Takes the changes up to now for a checkpoint.
    ///
    /// # Panics
    /// If a checkpoint runs.
    pub fn cut(&self) {
        for state in self.states.borrow_mut().iter_mut() {
            assert!(state.taken.is_empty(), "one checkpoint runs at a time");
            state.taken = std::mem::take(&mut state.fresh);
        }
    }

    /// Adds a row to the changes of the running checkpoint. A change by a record after the cut hides it from reads.
    pub fn put_taken<R: Row>(&self, row: &R) {
        let mut bytes = Vec::new();
        row.encode(&mut bytes);
        let key = bytes[..R::TABLE.key_bytes()].to_vec();
        self.states.borrow_mut()[R::TABLE as usize].taken.insert(key, Some(bytes.into()));
    }

    /// Removes a row in the running checkpoint.
    pub fn remove_taken(&self, table: Table, key: &[u8]) {
        self.states.borrow_mut()[table as usize].taken.insert(key.to_vec(), None);
    }

    /// Merges the changes of the running checkpoint into the tree of a table, and returns the new tree.
    ///
    /// # Errors
    /// As [`merge_rows`].
    pub async fn merge(
        &self,
        passes: &Passes,
        table: Table,
        birth: Number,
        finds: &mut impl Finds,
    ) -> Result<Root> {
        let (tree, changes) = {
            let states = self.states.borrow();
            let state = &states[table as usize];
            let change = |(key, edit): (&Vec<u8>, &Edit)| -> RowChange {
                (key.clone(), edit.as_ref().map(|row| row[key.len()..].to_vec()))
            };
            let changes: Vec<RowChange> = state.taken.iter().map(change).collect();
            (state.tree.expect("a known table has a tree"), changes)
        };
        if changes.is_empty() {
            return Ok(tree);
        }
        let options = MergeOptions { birth, leaves_max: None };
        let source = FromIter(changes.into_iter());
        Ok(merge_rows(passes, &tree, source, options, finds).await?.root)
    }

    /// Ends a checkpoint whose superblock counts: its trees replace the old ones.
    pub fn counted(&self, trees: &BTreeMap<Table, Root>) {
        let mut states = self.states.borrow_mut();
        for (table, tree) in trees {
            let state = &mut states[*table as usize];
            state.tree = Some(*tree);
            state.taken.clear();
        }
    }
}
