//! Versions: the head of a vdisk or a snapshot of it, and where their blocks are.

use std::cell::{Cell, RefCell};
use std::iter;
use std::rc::Rc;

use block::{Result, bail};
use smallvec::SmallVec;

use super::catalogue::VersionId;
use super::origin::{Origin, settled_list};
use super::tables::Tables;
use super::vdisk::Vdisk;
use crate::NUMBER_MAX;
use crate::map::{Changed, Changes, Layer, Number, Root, TREES_MAX};
use crate::rows::{DEAD_ENTRIES_INDEX, HEAD, TreeRow};

/// The head of a vdisk, or a snapshot of it.
pub struct Version {
    /// The vdisk.
    pub vdisk: Rc<Vdisk>,
    /// Number of the snapshot; `None` for the head.
    pub number: Option<Number>,
    /// The trees of a snapshot that a checkpoint has written. They stay the same.
    listed: RefCell<Option<Listed>>,
    /// The trees of the latest view. They stay the same in an epoch of the pool.
    trees: RefCell<Option<(u64, Trees)>>,
}

/// All trees of a version, those of its origins included.
#[derive(Clone)]
struct Trees {
    layers: Rc<[Layer]>,
    /// Number of the first ones, which are of the version's own line.
    own: usize,
}

/// The trees of a snapshot.
#[derive(Clone)]
struct Listed {
    layers: Rc<[Layer]>,
    /// Whether they contain those of its origins.
    has_origins: bool,
}

/// Changes of a vdisk in memory, up to a birth.
enum Part {
    /// The changes since the last cut.
    Fresh(Rc<Vdisk>, Number),
    /// The changes that a running checkpoint merges.
    Taken(Rc<Changes>, Number),
}

/// Where the blocks of a version are at one time: changes in memory, then trees, the newest first.
pub struct View {
    parts: SmallVec<[Part; 2]>,
    /// Number of the first parts, which are of the version's own line.
    own_parts: usize,
    trees: Trees,
}

impl View {
    /// Returns the changes in memory from `block` on, up to block `end`, and whether they are of the version's own line.
    pub fn find(&self, block: u64, end: u64) -> (Changed, bool) {
        let mut end = end;
        for (n, part) in self.parts.iter().enumerate() {
            let found = match part {
                Part::Fresh(vdisk, limit) => vdisk.fresh.borrow().find(block, end, *limit),
                Part::Taken(changes, limit) => changes.find(block, end, *limit),
            };
            match found {
                Changed::Run(run) => return (Changed::Run(run), n < self.own_parts),
                Changed::Gap(until) => end = until,
            }
        }
        (Changed::Gap(end), false)
    }

    /// Returns the trees.
    pub fn layers(&self) -> &[Layer] {
        &self.trees.layers
    }

    /// Whether a tree is of the version's own line.
    pub fn is_own(&self, layer: usize) -> bool {
        layer < self.trees.own
    }
}

impl Version {
    /// Creates a handle to the head (`None`) or to a snapshot of a vdisk.
    pub fn new(vdisk: Rc<Vdisk>, number: Option<Number>) -> Rc<Self> {
        Rc::new(Self { vdisk, number, listed: RefCell::default(), trees: RefCell::default() })
    }

    /// Returns where the blocks of the version are now. The result holds until the next await. `epoch` is that of the
    /// pool.
    ///
    /// # Errors
    /// Those of reads of the table of trees; `Limit` if the version has more than 16 trees.
    pub async fn view(&self, tables: &Tables, epoch: &Cell<u64>) -> Result<View> {
        // The lists of snapshots are read first, because a checkpoint may end meanwhile.
        while !self.is_listed() {
            self.list(tables).await?;
        }
        let mut parts = SmallVec::new();
        self.add_parts_to(&mut parts);
        let own_parts = parts.len();
        self.origins().for_each(|origin| origin.add_parts_to(&mut parts));
        Ok(View { parts, own_parts, trees: self.trees(epoch.get())? })
    }

    /// Returns the trees of the version in this epoch.
    fn trees(&self, epoch: u64) -> Result<Trees> {
        let mut known = self.trees.borrow_mut();
        if let Some((of, trees)) = &*known
            && *of == epoch
        {
            return Ok(trees.clone());
        }
        let mut layers = Vec::new();
        let own = self.add_layers_to(&mut layers);
        for origin in self.origins() {
            origin.add_layers_to(&mut layers);
        }
        if layers.len() > TREES_MAX {
            let (vdisk, trees) = (self.vdisk.number, layers.len());
            bail!(Limit, "vdisk {vdisk} has {trees} trees, at most {TREES_MAX}");
        }
        let trees = Trees { layers: layers.into(), own };
        *known = Some((epoch, trees.clone()));
        Ok(trees)
    }

    /// Whether the changes of the version are in memory, so that its trees are those of the head.
    fn is_in_memory(&self) -> bool {
        self.number.is_none_or(|number| number >= self.vdisk.first_in_memory())
    }

    /// Whether the lists of trees of this version and of its origins are known.
    fn is_listed(&self) -> bool {
        self.has_list() && self.origins().all(|origin| origin.has_list())
    }

    fn has_list(&self) -> bool {
        self.is_in_memory() || self.listed.borrow().is_some()
    }

    /// Returns the version from which this one inherits, if its trees are not known.
    fn parent(&self) -> Option<Rc<Self>> {
        if !self.is_in_memory() && self.listed.borrow().as_ref().is_some_and(|it| it.has_origins) {
            return None;
        }
        match &*self.vdisk.origin.borrow() {
            Some(Origin::Version(version)) => Some(version.clone()),
            _ => None,
        }
    }

    /// Returns the versions from which this one inherits, the nearest first, up to trees that are known.
    fn origins(&self) -> impl Iterator<Item = Rc<Self>> {
        iter::successors(self.parent(), |version| version.parent())
    }

    /// Reads the lists of trees that are not known.
    async fn list(&self, tables: &Tables) -> Result<()> {
        self.list_own(tables).await?;
        let mut next = self.parent();
        while let Some(version) = next {
            version.list_own(tables).await?;
            next = version.parent();
        }
        Ok(())
    }

    async fn list_own(&self, tables: &Tables) -> Result<()> {
        if self.has_list() {
            return Ok(());
        }
        let number = self.number.expect("a head is in memory");
        let id = VersionId { vdisk: self.vdisk.number, snapshot: self.number };
        let mut layers = settled_list(tables, id).await?;
        let has_origins = !layers.is_empty();
        if !has_origins {
            layers = list_of(tables, self.vdisk.number, number).await?;
        }
        *self.listed.borrow_mut() = Some(Listed { layers: layers.into(), has_origins });
        Ok(())
    }

    /// Adds the changes in memory of the version's line.
    fn add_parts_to(&self, parts: &mut SmallVec<[Part; 2]>) {
        if !self.is_in_memory() {
            return;
        }
        let (vdisk, limit) = (&self.vdisk, self.number.unwrap_or(NUMBER_MAX));
        if limit >= vdisk.cut.get() {
            parts.push(Part::Fresh(vdisk.clone(), limit));
        }
        if let Some(taken) = &*vdisk.taken.borrow() {
            parts.push(Part::Taken(taken.clone(), limit));
        }
    }

    /// Adds the trees of the version's line, and those of its origins if they stay the same. Returns the number of trees
    /// before those of the origins.
    fn add_layers_to(&self, layers: &mut Vec<Layer>) -> usize {
        let mut has_origins = false;
        if self.is_in_memory() {
            let limit = self.number.unwrap_or(NUMBER_MAX);
            layers.extend(self.vdisk.own.borrow().iter().map(|tree| Layer { tree: *tree, limit }));
        } else if let Some(listed) = &*self.listed.borrow() {
            layers.extend(listed.layers.iter());
            has_origins = listed.has_origins;
        }
        let own = layers.len();
        if let Some(Origin::Listed(list)) = &*self.vdisk.origin.borrow()
            && !has_origins
        {
            layers.extend(list.layers.iter());
        }
        own
    }
}

/// Returns the own trees of a snapshot that a checkpoint has written, the newest first.
///
/// # Errors
/// Those of reads of the table of trees.
pub async fn own_trees(tables: &Tables, vdisk: u64, number: Number) -> Result<Vec<Root>> {
    let layers = list_of(tables, vdisk, number).await?;
    Ok(layers.into_iter().map(|layer| layer.tree).collect())
}

/// Returns the own trees of a snapshot that a checkpoint has written, with the births that count in them.
///
/// # Errors
/// Those of reads of the table of trees.
pub async fn list_of(tables: &Tables, vdisk: u64, number: Number) -> Result<Vec<Layer>> {
    let mut from = [vdisk, number, 0].map(u64::to_be_bytes).concat();
    let mut list: Option<(Number, Vec<Layer>)> = None;
    loop {
        let of_vdisk = vdisk.to_be_bytes();
        let (rows, next) = tables.page::<TreeRow>(&of_vdisk, &from, TREES_MAX + 1).await?;
        for row in rows {
            let last = list.as_ref().map_or(row.last, |(last, _)| *last);
            if row.last != last || row.index == DEAD_ENTRIES_INDEX {
                return Ok(list.map_or(Vec::new(), |(_, layers)| layers));
            }
            let layer =
                Layer { tree: Root::decode(&row.descriptor)?, limit: number.min(row.newest_birth) };
            list.get_or_insert((last, Vec::new())).1.push(layer);
        }
        match next {
            Some(next) => from = next,
            None => return Ok(list.map_or(Vec::new(), |(_, layers)| layers)),
        }
    }
}

/// The key of a tree of a head.
pub fn head_key(vdisk: u64, index: u64) -> Vec<u8> {
    [vdisk, HEAD, index].map(u64::to_be_bytes).concat()
}
