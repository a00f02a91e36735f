//! Catalogues: volumes by name.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use block::env::LocalFuture;
use block::{Env, Info, OpenMode, Result};
use engine::{Engine, VolumeSet};

use crate::nbd::Export;

/// Fewest open volumes of a catalogue at which it looks for entries of closed ones.
const SWEEP_MIN: usize = 64;

/// The catalogue in which a server finds volumes by name. A search or a list may take time, because a volume may have
/// to be opened first.
pub trait Catalog {
    /// Returns the facts about the volume called `name`. Opens and creates nothing.
    ///
    /// # Errors
    /// The reason why an existing volume cannot be opened.
    fn look(&self, name: &str) -> LocalFuture<Result<Option<Looked>>>;

    /// Opens the volume called `name`. While a client uses the volume, each search returns the same volume. `mode` is
    /// whether the search may create a volume.
    ///
    /// # Errors
    /// The reason why an existing volume cannot be opened.
    fn find(&self, name: &str, mode: OpenMode) -> LocalFuture<Result<Option<Rc<Export>>>>;

    /// Lists up to `most` volumes with names after `after`, in the order of their names. No volume is opened for the
    /// list.
    ///
    /// # Errors
    /// The reason why the list of volumes cannot be read.
    fn list(&self, after: &str, most: usize) -> LocalFuture<Result<Vec<Listed>>>;
}

/// A volume in the list of a server's catalogue.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Name of the volume.
    pub name: String,
    /// Description of the volume for the operator; may be empty.
    pub description: String,
    /// Names that admit a client: its certificate must have one of them. `None` admits every client.
    pub clients: Option<Vec<String>>,
}

impl Listed {
    /// Whether a client whose certificate has `names` may use the volume.
    pub fn is_for(&self, names: &[String]) -> bool {
        let admits = |clients: &Vec<String>| names.iter().any(|name| clients.contains(name));
        self.clients.as_ref().is_none_or(admits)
    }
}

/// The facts about a volume of a catalogue, open or not.
pub struct Looked {
    /// Name, description and admitted clients of the volume.
    pub listed: Listed,
    /// Size, block size and abilities of the volume.
    pub info: Info,
}

/// A catalogue of volumes that are open already.
#[derive(Default)]
pub struct ExportList(RefCell<BTreeMap<String, Rc<Export>>>);

impl ExportList {
    /// Creates a catalogue of the volumes `exports`.
    pub fn new(exports: impl IntoIterator<Item = Rc<Export>>) -> Rc<Self> {
        let list = Self::default();
        list.set(exports);
        Rc::new(list)
    }

    /// Replaces the volumes of the catalogue. Clients of a removed volume stay connected until
    /// [`crate::nbd::Server::close_barred`] closes their connections.
    pub fn set(&self, exports: impl IntoIterator<Item = Rc<Export>>) {
        let named = exports.into_iter().map(|export| (export.name().to_owned(), export));
        *self.0.borrow_mut() = named.collect();
    }

    /// Returns the volume called `name`, if the catalogue has it.
    pub fn get(&self, name: &str) -> Option<Rc<Export>> {
        self.0.borrow().get(name).cloned()
    }

    /// Returns all volumes of the catalogue, in the order of their names.
    pub fn all(&self) -> Vec<Rc<Export>> {
        self.0.borrow().values().cloned().collect()
    }

    fn page(&self, after: &str, most: usize) -> Vec<Listed> {
        let exports = self.0.borrow();
        let later = exports.values().filter(|export| export.name() > after);
        later.take(most).map(|export| export.listed()).collect()
    }
}

impl Catalog for ExportList {
    fn look(&self, name: &str) -> LocalFuture<Result<Option<Looked>>> {
        Box::pin(std::future::ready(Ok(self.get(name).map(|export| export.looked()))))
    }

    fn find(&self, name: &str, _: OpenMode) -> LocalFuture<Result<Option<Rc<Export>>>> {
        Box::pin(std::future::ready(Ok(self.get(name))))
    }

    fn list(&self, after: &str, most: usize) -> LocalFuture<Result<Vec<Listed>>> {
        Box::pin(std::future::ready(Ok(self.page(after, most))))
    }
}

/// The catalogue of a graph: its exports, and the volumes of its devices. A volume is opened when its first client
/// connects, and closed when its last connection has ended. Every client may use the volumes.
#[derive(Clone)]
pub struct GraphCatalog(Rc<Inner>);

struct Inner {
    env: Env,
    engine: Engine,
    exports: Rc<ExportList>,
    volumes: VolumeSet,
    description: String,
    /// The exports of open volumes, by name. Those without a client are dropped.
    open: RefCell<BTreeMap<String, Weak<Export>>>,
    /// Number of entries of `open` at which the entries of dropped exports are removed.
    sweep_at: Cell<usize>,
}

impl GraphCatalog {
    /// Creates the catalogue of the exports in `exports` and of the volumes in `volumes`. `description` describes the
    /// volumes for the operator.
    pub fn new(
        env: &Env,
        engine: &Engine,
        exports: &Rc<ExportList>,
        volumes: &VolumeSet,
        description: &str,
    ) -> Self {
        Self(Rc::new(Inner {
            env: env.clone(),
            engine: engine.clone(),
            exports: exports.clone(),
            volumes: volumes.clone(),
            description: description.to_owned(),
            open: RefCell::default(),
            sweep_at: Cell::new(SWEEP_MIN),
        }))
    }

    /// Returns the export called `name`, if the graph has it, or if it is a volume that a client has open.
    pub fn get(&self, name: &str) -> Option<Rc<Export>> {
        self.0.exports.get(name).or_else(|| self.known(name))
    }

    /// Returns the exports of the graph, in the order of their names, without volumes.
    pub fn exports(&self) -> Vec<Rc<Export>> {
        self.0.exports.all()
    }

    /// Returns the exports of all volumes that clients have open, in the order of their names.
    pub fn open_volumes(&self) -> Vec<Rc<Export>> {
        self.0.open.borrow().values().filter_map(Weak::upgrade).collect()
    }

    fn listed(&self, name: &str) -> Listed {
        let (name, description) = (name.to_owned(), self.0.description.clone());
        Listed { name, description, clients: None }
    }

    fn known(&self, name: &str) -> Option<Rc<Export>> {
        self.0.open.borrow().get(name).and_then(Weak::upgrade)
    }

    async fn open(&self, name: &str, mode: OpenMode) -> Result<Option<Rc<Export>>> {
        let Some(volume) = self.0.volumes.open(name, mode).await? else { return Ok(None) };
        // Another client may have opened the volume meanwhile.
        if let Some(known) = self.known(name) {
            return Ok(Some(known));
        }
        let Inner { env, engine, description, open, sweep_at, .. } = &*self.0;
        let export = Export::of_volume(env, engine, volume, description);
        let mut open = open.borrow_mut();
        if open.len() >= sweep_at.get() {
            open.retain(|_, export| export.strong_count() > 0);
            sweep_at.set(SWEEP_MIN.max(2 * open.len()));
        }
        open.insert(name.to_owned(), Rc::downgrade(&export));
        Ok(Some(export))
    }
}

impl Catalog for GraphCatalog {
    fn look(&self, name: &str) -> LocalFuture<Result<Option<Looked>>> {
        if let Some(export) = self.get(name) {
            return Box::pin(std::future::ready(Ok(Some(export.looked()))));
        }
        let (catalog, name) = (self.clone(), name.to_owned());
        Box::pin(async move {
            let facts = catalog.0.volumes.look(&name).await?;
            Ok(facts.map(|facts| Looked { listed: catalog.listed(&name), info: facts.info }))
        })
    }

    fn find(&self, name: &str, mode: OpenMode) -> LocalFuture<Result<Option<Rc<Export>>>> {
        if let Some(export) = self.get(name) {
            return Box::pin(std::future::ready(Ok(Some(export))));
        }
        let (catalog, name) = (self.clone(), name.to_owned());
        Box::pin(async move { catalog.open(&name, mode).await })
    }

    fn list(&self, after: &str, most: usize) -> LocalFuture<Result<Vec<Listed>>> {
        let (catalog, after) = (self.clone(), after.to_owned());
        Box::pin(async move {
            let mut all = catalog.0.exports.page(&after, most);
            let volumes = catalog.0.volumes.list(&after, most).await?;
            all.extend(volumes.into_iter().map(|volume| catalog.listed(&volume.name)));
            all.sort_by(|one, other| one.name.cmp(&other.name));
            all.truncate(most);
            Ok(all)
        })
    }
}
