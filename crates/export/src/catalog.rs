//! Catalogues: volumes by name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::Result;
use block::env::LocalFuture;

use crate::nbd::Export;

/// The catalogue in which a server finds volumes by name. A search or a list may take time, because a volume may have
/// to be opened first.
pub trait Catalog {
    /// Finds the volume called `name`. While a client uses the volume, each search returns the same volume.
    ///
    /// # Errors
    /// The reason why an existing volume cannot be opened.
    fn find(&self, name: &str) -> LocalFuture<Result<Option<Rc<Export>>>>;

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
}

impl Catalog for ExportList {
    fn find(&self, name: &str) -> LocalFuture<Result<Option<Rc<Export>>>> {
        Box::pin(std::future::ready(Ok(self.get(name))))
    }

    fn list(&self, after: &str, most: usize) -> LocalFuture<Result<Vec<Listed>>> {
        let exports = self.0.borrow();
        let later = exports.values().filter(|export| export.name() > after);
        let listed = later.take(most).map(|export| export.listed()).collect();
        Box::pin(std::future::ready(Ok(listed)))
    }
}
