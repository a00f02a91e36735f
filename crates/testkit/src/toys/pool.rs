//! A test device with two volumes that clients open by name.

use std::cell::Cell;
use std::rc::Rc;

use block::{Device, Info, Lower, Request, Result};

/// A pool with two volumes, each in one half of a lower. A client opens a volume by its name.
pub struct Pool {
    lower: Lower,
    /// Number of volumes of the pool that are open now.
    open: Rc<Cell<usize>>,
}

impl Pool {
    /// Names of the two volumes. The first lies in the first half of the lower.
    pub const NAMES: [&str; 2] = ["left", "right"];

    /// Creates a pool with its two volumes over `lower`.
    pub fn new(lower: Lower) -> Self {
        Self { lower, open: Rc::default() }
    }

    /// Opens the volume called `name`; `None` if the pool has no such volume.
    pub fn open(&self, name: &str) -> Option<Volume> {
        let place = Self::NAMES.iter().position(|known| *known == name)?;
        let size = self.lower.info().size / 2;
        let info = Info { size, ..self.lower.info().clone() };
        self.open.set(self.open.get() + 1);
        let (lower, open) = (self.lower.clone(), self.open.clone());
        Some(Volume { lower, info, start: place as u64 * size, open })
    }

    /// Returns the number of volumes of the pool that are open now.
    pub fn open_count(&self) -> usize {
        self.open.get()
    }
}

/// An open volume of a [`Pool`]. The volume is closed when it is dropped.
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
