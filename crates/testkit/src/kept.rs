//! Labels in memory: what a device keeps, without disks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::env::LocalFuture;
use block::{Error, ErrorKind, Found, KEPT_BYTES_MAX, Kept, KeptState, Result, Waiters};

/// What one device of one port has kept. It outlives the device: each start looks at it anew.
#[derive(Default)]
pub struct Shelf {
    state: RefCell<Option<KeptState>>,
    writes: Cell<u64>,
    fails: Cell<bool>,
    held: Cell<bool>,
    waiting: Waiters,
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

    /// Whether writes wait from now on; those that waited go on when it ends.
    pub fn hold(&self, held: bool) {
        self.held.set(held);
        self.waiting.wake();
    }

    async fn let_go(&self) {
        self.waiting.until(|| !self.held.get()).await;
    }

    fn write(&self, state: Vec<u8>) -> Result<()> {
        if self.fails.get() {
            return Err(Error::new(ErrorKind::Io, "the label cannot be written"));
        }
        self.writes.set(self.writes.get() + 1);
        self.put(Some(state));
        Ok(())
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
        let (shelf, ports) = (self.shelf.clone(), ports.to_vec());
        Box::pin(async move {
            shelf.let_go().await;
            let answer = shelf.write(state);
            ports.into_iter().map(|port| (port, answer.clone())).collect()
        })
    }
}
