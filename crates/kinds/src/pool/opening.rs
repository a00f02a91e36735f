//! Opens the pool on the disks beneath a device, or makes it on new disks.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ::pool::cell::{CellFlags, PoolCell};
use ::pool::geometry::Geometry;
use ::pool::live::{Lost, Options, Pool, Version, VersionId};
use block::{
    Env, Error, Event, Lower, Notify, Result, StateStore, TaskGroup, What, bail, error, first,
};
use meta::Uuid;

use kind::home::Labels;

/// The pool of a device, from the time when the device is made. The pool is complete later if a live change makes the
/// device: it is first opened for reading.
pub struct Opening {
    /// Name of the device in the spec.
    name: String,
    pub env: Env,
    pub lower: Lower,
    kept: Labels,
    options: Options,
    /// The pool.
    pool: OnceCell<Pool>,
    /// The pool before the live change that makes the device is committed: nothing is written.
    preview: OnceCell<Pool>,
    /// The error with which the opening failed.
    broken: RefCell<Option<Error>>,
    /// The damage with which the pool was opened: for reading only, unless the operator accepts the loss.
    lost: RefCell<Option<Lost>>,
    opened: Notify,
    /// The versions that clients have open.
    held: RefCell<BTreeMap<VersionId, Rc<Held>>>,
    tasks: TaskGroup,
}

/// A version that clients have open.
#[derive(Default)]
pub struct Held {
    /// The version, once the pool is open.
    version: OnceCell<Result<Rc<Version>>>,
    count: Cell<u32>,
}

impl Opening {
    /// Creates the opening of the pool of the device `name`, which is not open yet.
    pub fn new(
        name: &str,
        env: &Env,
        lower: Lower,
        store: Rc<dyn StateStore>,
        options: Options,
    ) -> Rc<Self> {
        Rc::new(Self {
            name: name.to_owned(),
            env: env.clone(),
            kept: Labels::new(store, 1, options.read_only),
            lower,
            options,
            pool: OnceCell::new(),
            preview: OnceCell::new(),
            broken: RefCell::default(),
            lost: RefCell::default(),
            opened: Notify::default(),
            held: RefCell::default(),
            tasks: TaskGroup::new(env),
        })
    }

    /// Opens the pool, or makes it and calls `fill` on new disks. If a live change makes the device, the pool is only
    /// opened for reading, and a task opens it once the change is committed: the change may still be undone, and a
    /// mirror below may not be able to mark dirty regions yet.
    ///
    /// # Errors
    /// `NotFound` if disks that are not new have no pool, `Corrupt` if the state in labels is damaged, and those of
    /// [`Pool::open`].
    pub async fn begin(
        self: &Rc<Self>,
        fill: impl AsyncFnOnce(&Pool) -> Result<()> + 'static,
    ) -> Result<()> {
        let cell = match self.found()? {
            Some(cell) => {
                self.kept.keep_everywhere(cell.encode().to_vec()).await?;
                cell
            }
            None => {
                let Geometry { bytes, far, extent_bytes, .. } =
                    Geometry::new(self.lower.info().size)?;
                let cell = PoolCell { pool: None, bytes, far, extent_bytes, flags: CellFlags(0) };
                self.kept.keep(cell.encode().to_vec()).await?;
                cell
            }
        };
        if self.kept.store().is_committed() {
            return self.open(cell, fill).await;
        }
        if cell.pool.is_some() {
            let options = Options { read_only: true, ..self.options };
            let (pool, lost) = Pool::open(&self.env, &self.lower, &cell, options).await?;
            *self.lost.borrow_mut() = lost;
            let first = self.preview.set(pool);
            assert!(first.is_ok(), "a pool is opened for reading once");
        }
        let opening = self.clone();
        self.tasks.spawn("opening of a pool", async move {
            let gone = opening.tasks.changed().until(|| opening.tasks.is_closing());
            if first(opening.kept.store().committed(), gone).await.is_ok() {
                // Requests wait for the pool, and get the error.
                let _ = opening.open(cell, fill).await;
            }
        });
        Ok(())
    }

    /// Returns the state of the pool in labels; `None` on new disks.
    fn found(&self) -> Result<Option<PoolCell>> {
        let Some(state) = self.kept.start("pool", false)? else { return Ok(None) };
        let wrong = |why| error!(Corrupt, "the state of the pool in the label is damaged: {why}");
        PoolCell::decode(state).map(Some).map_err(wrong)
    }

    async fn open(
        self: &Rc<Self>,
        cell: PoolCell,
        fill: impl AsyncFnOnce(&Pool) -> Result<()>,
    ) -> Result<()> {
        let opened = self.try_open(cell, fill).await;
        if let Err(error) = &opened {
            *self.broken.borrow_mut() = Some(error.clone());
        }
        self.opened.wake();
        opened
    }

    async fn try_open(
        self: &Rc<Self>,
        cell: PoolCell,
        fill: impl AsyncFnOnce(&Pool) -> Result<()>,
    ) -> Result<()> {
        let is_new = cell.pool.is_none();
        let cell = if is_new { self.make(cell).await? } else { cell };
        let (pool, lost) = Pool::open(&self.env, &self.lower, &cell, self.options).await?;
        *self.lost.borrow_mut() = lost;
        if is_new {
            fill(&pool).await?;
        }
        let has_grown = pool.bytes() != cell.bytes;
        if is_new || has_grown && !self.is_read_only() {
            let cell = PoolCell { bytes: pool.bytes(), ..cell };
            self.kept.keep(cell.encode().to_vec()).await?;
        }
        // Clients may have opened versions before, and no command may remove those first.
        // Others may open and close some meanwhile.
        while let Some((id, held)) = self.next_without_version() {
            let version = pool.open_version(id).await;
            let is_held = self.held.borrow().get(&id).is_some_and(|now| Rc::ptr_eq(now, &held));
            if version.is_ok() && !is_held {
                pool.close_version(id);
            }
            assert!(held.version.set(version).is_ok(), "a version is opened once");
        }
        for words in pool.damage() {
            self.emit(What::VdiskDamaged, "", words);
        }
        let (env, device) = (self.env.clone(), self.name.clone());
        pool.set_on_damage(Box::new(move |vdisk, error| {
            let event = event(What::VdiskDamaged, &device, vdisk, error.to_string());
            env.emit(event);
        }));
        let first = self.pool.set(pool);
        assert!(first.is_ok(), "a pool is opened once");
        Ok(())
    }

    /// Reports what a command has done to a virtual disk or snapshot.
    pub fn emit(&self, what: What, version: &str, words: String) {
        self.env.emit(event(what, &self.name, version, words));
    }

    fn next_without_version(&self) -> Option<(VersionId, Rc<Held>)> {
        let all = self.held.borrow();
        let next = all.iter().find(|(_, held)| held.version.get().is_none());
        next.map(|(id, held)| (*id, held.clone()))
    }

    /// Makes the pool. It counts once the labels name it.
    async fn make(&self, cell: PoolCell) -> Result<PoolCell> {
        let pool = Uuid::draw(&self.env);
        let PoolCell { bytes, far, extent_bytes, .. } = cell;
        let geometry = Geometry::new(bytes)?;
        if (geometry.far, geometry.extent_bytes) != (far, extent_bytes) {
            bail!(Corrupt, "the label of the pool that is being made has other sizes: {cell:?}");
        }
        Pool::make(&self.env, &self.lower, pool, geometry).await?;
        Ok(PoolCell { pool: Some(pool), ..cell })
    }

    /// Waits until the pool is open, and returns it.
    ///
    /// # Errors
    /// The error with which the opening failed.
    pub async fn pool(&self) -> Result<&Pool> {
        if self.pool.get().is_none() {
            self.opened.until(|| self.pool.get().is_some() || self.broken.borrow().is_some()).await;
        }
        self.pool.get().ok_or_else(|| {
            let broken = self.broken.borrow();
            broken.clone().expect("the wait ends with a pool or an error")
        })
    }

    /// Returns the pool for reading: also before the live change that makes the device is committed.
    ///
    /// # Errors
    /// As [`Opening::pool`].
    pub async fn for_reading(&self) -> Result<&Pool> {
        match self.now_for_reading() {
            Some(pool) => Ok(pool),
            None => self.pool().await,
        }
    }

    /// Returns the pool if it is open now, at least for reading.
    pub fn now_for_reading(&self) -> Option<&Pool> {
        self.pool.get().or_else(|| self.preview.get())
    }

    /// Returns the pool if it is open now.
    pub fn now(&self) -> Option<&Pool> {
        self.pool.get()
    }

    /// Whether clients can only read.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only || self.lost.borrow().is_some() && !self.options.accept_loss
    }

    /// Returns the error of the opening or of a write, after which the pool takes no changes, or the damage of its log.
    pub fn failure(&self) -> Option<Error> {
        let failed = self.now().and_then(Pool::failure).or_else(|| self.broken.borrow().clone());
        let lost = self.lost.borrow();
        let lost = lost.as_ref().filter(|_| !self.options.accept_loss);
        failed.or_else(|| {
            let next = "start the graph with --accept-loss to go on without it";
            lost.map(|lost| error!(Corrupt, "{}", lost.why).next(next))
        })
    }

    /// Returns a description of the loss that the operator has accepted.
    pub fn accepted_loss(&self) -> Option<String> {
        let lost = self.lost.borrow();
        let Lost { why, behind } = lost.as_ref().filter(|_| self.options.accept_loss)?;
        let names = match behind.is_empty() {
            true => "no virtual disk".to_owned(),
            false => behind.join(", "),
        };
        Some(format!("{why}; it may concern any virtual disk, and later records changed {names}"))
    }

    /// Opens a version for a client: no command removes it before [`Opening::release`].
    ///
    /// # Errors
    /// `NotFound` if it was removed; those of the device.
    pub async fn hold(&self, id: VersionId) -> Result<Rc<Held>> {
        let mut version = OnceCell::new();
        if let Some(pool) = self.pool.get().filter(|_| !self.held.borrow().contains_key(&id)) {
            version = OnceCell::from(Ok(pool.open_version(id).await?));
        }
        let mut all = self.held.borrow_mut();
        if let Some(pool) =
            self.pool.get().filter(|_| version.get().is_some() && all.contains_key(&id))
        {
            // Another client has opened it meanwhile, under another of its names.
            pool.close_version(id);
        }
        let held = all.entry(id).or_insert_with(|| Rc::new(Held { version, count: Cell::new(0) }));
        held.count.set(held.count.get() + 1);
        Ok(held.clone())
    }

    /// Closes a version for a client.
    ///
    /// # Panics
    /// If the client does not have it open.
    pub fn release(&self, id: VersionId) {
        let mut all = self.held.borrow_mut();
        let held = all.get(&id).expect("an open version is closed");
        held.count.set(held.count.get() - 1);
        if held.count.get() > 0 {
            return;
        }
        let is_open = matches!(held.version.get(), Some(Ok(_)));
        all.remove(&id);
        if let (true, Some(pool)) = (is_open, self.pool.get()) {
            pool.close_version(id);
        }
    }

    /// Returns the pool and an open version of it, once both are open.
    ///
    /// # Errors
    /// The error with which the opening of either failed.
    pub async fn version(&self, held: &Held) -> Result<(&Pool, Rc<Version>)> {
        let pool = self.pool().await?;
        let version = held.version.get().expect("an open pool has its open versions");
        Ok((pool, version.clone()?))
    }

    /// Returns the number of versions that clients have open.
    pub fn held(&self) -> u64 {
        self.held.borrow().len() as u64
    }

    /// Ends the background work of the pool, and writes a last checkpoint.
    pub async fn close(&self) {
        let closing = self.tasks.close(|| {}).await;
        if let Some(pool) = self.pool.get() {
            // After an error the next opening replays the log.
            let _ = pool.close().await;
        }
        closing.done();
    }
}

/// Returns an event of the device of a pool about a virtual disk or snapshot.
fn event(what: What, device: &str, version: &str, words: String) -> Event {
    let member = (!version.is_empty()).then(|| version.to_owned());
    Event { what, device: device.to_owned(), member, words }
}
