//! The pool of a device: making and opening it, and the versions that clients have open.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ::pool::geometry::Geometry;
use ::pool::live::{Lost, Options, Pool, Version, VersionId};
use ::pool::name::VdiskName;
use block::{Env, Error, Event, Lower, Result, What, error};
use kind::MakerArgs;
use kind::home::record::Record;
use kind::home::{Access, Labels, Opening, Store};
use meta::Uuid;

use super::{options, record};

/// The pool of a device, from the time when the device is made. The pool is complete later if a live change makes the
/// device: it is first opened for reading.
#[derive(Clone)]
pub struct PoolHome(Rc<Opening<PoolStore>>);

/// The pool of a device as a store.
struct PoolStore {
    /// Name of the kind of the device.
    kind: &'static str,
    /// Name of the device in the spec.
    device: String,
    env: Env,
    lower: Lower,
    options: Options,
    /// Name and size of the vdisk that a new pool has.
    first: Option<(VdiskName, u64)>,
    /// The versions that clients have open.
    held: RefCell<BTreeMap<VersionId, Rc<Held>>>,
}

/// A pool, and the damage with which it was opened: for reading only, unless the operator accepts the loss.
struct OpenPool {
    pool: Pool,
    lost: Option<Lost>,
}

/// A version that clients have open.
#[derive(Default)]
pub struct Held {
    /// The version, once the pool is open.
    version: OnceCell<Result<Rc<Version>>>,
    count: Cell<u32>,
}

impl Store for PoolStore {
    type Open = OpenPool;

    async fn make(&self, state: &Record) -> Result<Uuid> {
        let (id, geometry) = (Uuid::draw(&self.env), geometry(state)?);
        Pool::make(&self.env, &self.lower, id, geometry).await?;
        if let Some((name, size)) = &self.first {
            let (pool, _) = Pool::open(&self.env, &self.lower, id, geometry, self.options).await?;
            pool.create(name, *size).await?;
            pool.close().await?;
        }
        Ok(id)
    }

    async fn open(&self, state: &Record, access: Access) -> Result<OpenPool> {
        let id = state.vault.expect("a pool is made before it is opened");
        let options = match access {
            Access::ReadOnly => Options { read_only: true, ..self.options },
            Access::Full => self.options,
        };
        let opening = Pool::open(&self.env, &self.lower, id, geometry(state)?, options);
        let (pool, lost) = opening.await?;
        if access == Access::Full {
            self.serve(&pool).await;
        }
        Ok(OpenPool { pool, lost })
    }

    fn grown(&self, open: &OpenPool, state: &Record) -> Option<Record> {
        let (was, bytes) = (geometry(state).ok()?, open.pool.bytes());
        let is_grown = was.bytes != bytes && !self.is_read_only(open);
        let now = was.grown(bytes).filter(|_| is_grown)?;
        Some(record::record(self.kind, state.vault, &now, self.lower.info().size))
    }

    async fn close(&self, open: &OpenPool) {
        // After an error the next opening replays the log.
        let _ = open.pool.close().await;
    }

    fn failure(&self, open: &OpenPool) -> Option<Error> {
        open.pool.failure()
    }
}

impl PoolStore {
    /// Opens the versions that clients have opened before, and reports damage from now on.
    async fn serve(&self, pool: &Pool) {
        // No command may remove those versions first. Clients may open and close some meanwhile.
        while let Some((id, held)) = self.next_without_version() {
            let version = pool.open_version(id).await;
            let is_held = self.held.borrow().get(&id).is_some_and(|now| Rc::ptr_eq(now, &held));
            if version.is_ok() && !is_held {
                pool.close_version(id);
            }
            assert!(held.version.set(version).is_ok(), "a version is opened once");
        }
        for words in pool.damage() {
            self.env.emit(event(What::VdiskDamaged, &self.device, "", words));
        }
        let (env, device) = (self.env.clone(), self.device.clone());
        pool.set_on_damage(Box::new(move |vdisk, error| {
            env.emit(event(What::VdiskDamaged, &device, vdisk, error.to_string()));
        }));
    }

    fn next_without_version(&self) -> Option<(VersionId, Rc<Held>)> {
        let all = self.held.borrow();
        let next = all.iter().find(|(_, held)| held.version.get().is_none());
        next.map(|(id, held)| (*id, held.clone()))
    }

    fn is_read_only(&self, open: &OpenPool) -> bool {
        self.options.read_only || open.lost.is_some() && !self.options.accept_loss
    }
}

/// Returns the sizes and places of the pool with the state `state` in labels.
fn geometry(state: &Record) -> Result<Geometry> {
    record::geometry(state).map_err(|why| {
        error!(Corrupt, "the state of the {} in the label is damaged: {why}", state.kind)
    })
}

impl PoolHome {
    /// Opens the pool of a device of the kind `kind`, or makes it on new disks, with a vdisk of the name and size
    /// `first` in it. If a live change makes the device, the pool is only opened for reading until the change is
    /// committed.
    ///
    /// # Errors
    /// `NotFound` if disks that are not new have no pool, `Corrupt` if the state in labels is damaged, `Invalid` if it is
    /// that of another kind, and those of [`Pool::open`].
    pub fn open(
        kind: &'static str,
        args: MakerArgs<'_>,
        first: Option<(VdiskName, u64)>,
    ) -> impl Future<Output = Result<Self>> + use<> {
        let home = Self::new(kind, args, first);
        async move {
            let home = home?;
            home.0.begin().await?;
            Ok(home)
        }
    }

    fn new(
        kind: &'static str,
        args: MakerArgs<'_>,
        first: Option<(VdiskName, u64)>,
    ) -> Result<Self> {
        let MakerArgs { config, env, mut lowers, state, .. } = args;
        let lower = lowers.remove(0);
        let options = options(config, lower.info(), &*state);
        let labels = Labels::new(state, 1, options.read_only);
        let found = labels.found(kind, false)?;
        if let Some(found) = &found {
            geometry(found)?;
        }
        let record = match &found {
            Some(found) if found.vault.is_some() => found.clone(),
            _ => {
                let bytes = lower.info().size;
                record::record(kind, None, &Geometry::new(bytes)?, bytes)
            }
        };
        let (device, held) = (config.name.clone(), RefCell::default());
        let store = PoolStore { kind, device, env: env.clone(), lower, options, first, held };
        Ok(Self(Opening::new(env, store, labels, found, record)))
    }

    /// Returns the handle to the device below.
    pub fn lower(&self) -> &Lower {
        &self.0.store().lower
    }

    /// Reports an event of a virtual disk or snapshot.
    pub fn emit(&self, what: What, version: &str, words: String) {
        let PoolStore { env, device, .. } = self.0.store();
        env.emit(event(what, device, version, words));
    }

    /// Waits until the pool is open, and returns it.
    ///
    /// # Errors
    /// The error with which the opening failed.
    pub async fn pool(&self) -> Result<&Pool> {
        self.0.get().await.map(|open| &open.pool)
    }

    /// Returns the pool for reading: also before the live change that makes the device is committed.
    ///
    /// # Errors
    /// As [`Self::pool`].
    pub async fn for_reading(&self) -> Result<&Pool> {
        match self.now_for_reading() {
            Some(pool) => Ok(pool),
            None => self.pool().await,
        }
    }

    /// Returns the pool if it is open now, at least for reading.
    pub fn now_for_reading(&self) -> Option<&Pool> {
        self.0.now_for_reading().map(|open| &open.pool)
    }

    /// Returns the pool if it is open now.
    pub fn now(&self) -> Option<&Pool> {
        self.0.now().map(|open| &open.pool)
    }

    /// Whether clients can only read.
    pub fn is_read_only(&self) -> bool {
        let store = self.0.store();
        let open = self.0.now_for_reading();
        open.map_or(store.options.read_only, |open| store.is_read_only(open))
    }

    fn lost(&self) -> Option<&Lost> {
        self.0.now_for_reading()?.lost.as_ref()
    }

    /// Returns the error of the opening or of a write, after which the pool takes no changes, or the damage of its log.
    pub fn failure(&self) -> Option<Error> {
        let accepted = self.0.store().options.accept_loss;
        self.0.failure().or_else(|| {
            let lost = self.lost().filter(|_| !accepted)?;
            let next = "start the graph with --accept-loss to go on without it";
            Some(error!(Corrupt, "{}", lost.why).next(next))
        })
    }

    /// Returns a description of the loss that the operator has accepted.
    pub fn accepted_loss(&self) -> Option<String> {
        let Lost { why, behind } = self.lost().filter(|_| self.0.store().options.accept_loss)?;
        let names = match behind.is_empty() {
            true => "no virtual disk".to_owned(),
            false => behind.join(", "),
        };
        Some(format!("{why}; it may concern any virtual disk, and later records changed {names}"))
    }

    /// Opens a version for a client: no command removes it before [`Self::release`].
    ///
    /// # Errors
    /// `NotFound` if it was removed; those of the device.
    pub async fn hold(&self, id: VersionId) -> Result<Rc<Held>> {
        let held = &self.0.store().held;
        let mut version = OnceCell::new();
        if let Some(pool) = self.now().filter(|_| !held.borrow().contains_key(&id)) {
            version = OnceCell::from(Ok(pool.open_version(id).await?));
        }
        let mut all = held.borrow_mut();
        if let Some(pool) = self.now().filter(|_| version.get().is_some() && all.contains_key(&id))
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
        let mut all = self.0.store().held.borrow_mut();
        let held = all.get(&id).expect("an open version is closed");
        held.count.set(held.count.get() - 1);
        if held.count.get() > 0 {
            return;
        }
        let is_open = matches!(held.version.get(), Some(Ok(_)));
        all.remove(&id);
        if let (true, Some(pool)) = (is_open, self.now()) {
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
        self.0.store().held.borrow().len() as u64
    }

    /// Ends the background work of the pool, and writes a last checkpoint.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

/// Returns an event of the device of a pool about a virtual disk or snapshot.
fn event(what: What, device: &str, version: &str, words: String) -> Event {
    let member = (!version.is_empty()).then(|| version.to_owned());
    Event { what, device: device.to_owned(), member, words }
}
