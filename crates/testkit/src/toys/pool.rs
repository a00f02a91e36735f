//! A pool of two volumes on one lower, for tests of catalogues.

use std::cell::Cell;
use std::rc::Rc;

use block::{Device, Info, Lower, Request, Result};

/// Two volumes, each in one half of a lower. A client opens a volume by its name.
pub struct Pool {
    lower: Lower,
    /// Number of volumes that are open now.
    open: Rc<Cell<usize>>,
}

impl Pool {
    /// The names of the volumes in the first half and in the second half of the lower.
    pub const NAMES: [&str; 2] = ["left", "right"];

    /// Creates the two volumes over `lower`.
    pub fn new(lower: Lower) -> Self {
        Self { lower, open: Rc::default() }
    }

    /// Opens the volume called `name`; `None` if the pool has no volume of this name.
    pub fn open(&self, name: &str) -> Option<Volume> {
        let place = Self::NAMES.iter().position(|known| *known == name)?;
        let size = self.lower.info().size / 2;
        let info = Info { size, ..self.lower.info().clone() };
        self.open.set(self.open.get() + 1);
        let (lower, open) = (self.lower.clone(), self.open.clone());
        Some(Volume { lower, info, start: place as u64 * size, open })
    }

    /// Returns the number of volumes that are open now.
    pub fn open_count(&self) -> usize {
        self.open.get()
    }
}

/// An open volume of a [`Pool`]. It is closed when it is dropped.
pub struct Volume {
    lower: Lower,
    info: Info,
    start: u64,
    open: Rc<Cell<usize>>,
}

impl Device for Volume {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        if let Some(range) = request.op.range() {
            request.op.set_range(range.at(self.start + range.start()));
        }
        self.lower.forward(&mut request.op).await
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}
