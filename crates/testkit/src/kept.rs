//! Labels in memory: what a device keeps, without disks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::env::LocalFuture;
use block::{Error, ErrorKind, Found, KEPT_BYTES_MAX, Kept, KeptState, Result};

/// What one device of one port has kept. It outlives the device: each start looks at it anew.
#[derive(Default)]
pub struct Shelf {
    state: RefCell<Option<KeptState>>,
    writes: Cell<u64>,
    fails: Cell<bool>,
    used: Cell<bool>,
}

impl Shelf {
    /// Nothing was ever kept, on disks that are new until the first start.
    pub fn new() -> Rc<Self> {
        Rc::default()
    }

    /// What a device finds that starts now. Disks are new once.
    pub fn look(self: &Rc<Self>) -> Rc<dyn Kept> {
        let (state, fresh) = (self.state.borrow().clone(), !self.used.replace(true));
        let everywhere = state.is_some();
        let found = Found { labelled: true, present: true, fresh, clean: false, state, everywhere };
        Rc::new(Look { shelf: self.clone(), found })
    }

    /// What is kept now.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        self.state.borrow().as_ref().map(|state| state.bytes.clone())
    }

    /// Puts something there; nothing if `None`.
    pub fn put(&self, bytes: Option<Vec<u8>>) {
        self.used.set(true);
        *self.state.borrow_mut() =
            bytes.map(|bytes| KeptState { sequence: self.writes.get(), bytes });
    }

    /// Whether writes fail from now on.
    pub fn fail(&self, fails: bool) {
        self.fails.set(fails);
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.writes.get()
    }
}

struct Look {
    shelf: Rc<Shelf>,
    found: Found,
}

impl Kept for Look {
    fn found(&self, _: usize) -> &Found {
        &self.found
    }

    fn may_degrade(&self) -> bool {
        false
    }

    fn write(&self, ports: &[usize], state: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>> {
        assert!(state.len() <= KEPT_BYTES_MAX, "{} bytes are too many", state.len());
        let shelf = &self.shelf;
        let answer = if shelf.fails.get() {
            Err(Error::new(ErrorKind::Io, "the label cannot be written"))
        } else {
            shelf.writes.set(shelf.writes.get() + 1);
            shelf.put(Some(state));
            Ok(())
        };
        let answers = ports.iter().map(|port| (*port, answer.clone())).collect();
        Box::pin(std::future::ready(answers))
    }
}
