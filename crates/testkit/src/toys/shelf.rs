//! A test kind that holds volumes: an index in memory, and the bytes of each volume in a slot of the lower.
//!
//! A flush writes the index to the first bytes of the lower. A snapshot is a volume without writes. A name
//! `SNAPSHOT+NAME` is a clone, which is created when the name is first opened.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::control::{Command, Reply, Resolved, Verb, VerbInfo, volume};
use block::env::LocalFuture;
use block::{
    Below, Buf, ByteRange, Device, Env, Error, Handover, Info, Lower, Needs, Op, OpenMode,
    OpenedVolume, Report, Request, Result, VolumeEntry, VolumeFacts, VolumeId, Volumes,
    VolumesVisitor, bail, error,
};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, Summary, ValueType,
};

/// Length in bytes of the index at the start of the lower.
const INDEX_BYTES: u64 = 64 << 10;

/// Largest size in bytes of a volume: each has a slot of this length behind the index.
pub const SLOT_BYTES: u64 = 64 << 10;

const VERBS: &[&VerbInfo] =
    &[volume::Create::INFO, volume::Remove::INFO, volume::Resize::INFO, Snap::INFO];

const OPENING: OptionSpec = OptionSpec {
    name: "opening",
    value: ValueType::Duration(Duration::from_secs(60)),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "the time that each opening of a volume takes; by default none",
};

const CLOSING: OptionSpec = OptionSpec {
    name: "closing",
    help: "the time that each closing of a volume takes; by default none",
    ..OPENING
};

const REFUSE: OptionSpec = OptionSpec {
    name: "refuse",
    value: ValueType::Switch,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "whether every opening of a volume fails",
};

/// The test kind `shelf`. The registry of the product does not have it.
pub const SHELF: Kind = Kind {
    name: "shelf",
    summary: "holds volumes, for tests",
    manual: "# shelf",
    lowers: Lowers::One,
    options: &[OPENING, CLOSING, REFUSE],
    capabilities: Capabilities { holds_volumes: true, ..Capabilities::NONE },
    verbs: VERBS,
    maker: Maker::Stateful {
        bytes: Bytes::Private,
        plan,
        make,
        prepare: None,
        preflight: None,
        describe: |_| Ok(Summary::whole("no state in labels".to_owned())),
    },
};

/// The verb that makes a read-only volume of another volume's bytes.
pub struct Snap;

/// Arguments of [`Snap`].
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct SnapArgs {
    /// Name of the volume.
    pub of: String,
    /// Name of the read-only volume, such as `gold@v1`.
    pub name: String,
}

impl Verb for Snap {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "shelf.snap",
        "copy a volume to a read-only volume",
        "volumes",
        block::control::Reach::Here,
    );
    type Args = SnapArgs;
    type Answer = block::control::Nothing;
}

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let info = Info { size: 0, ..given.lowers[0].info.clone() };
    Ok(DevicePlan { info, needs: Needs::children(1) })
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let (env, refuses) = (making.env.clone(), making.config.switch(&REFUSE));
    let opening = making.config.duration(&OPENING).unwrap_or_default();
    let closing = making.config.duration(&CLOSING).unwrap_or_default();
    let MakerArgs { mut lowers, state, .. } = making;
    Box::pin(async move {
        let lower = lowers.remove(0);
        let handed = state.handed_over().and_then(|handed| handed.downcast::<Index>().ok());
        // Commands may have changed the index since the flush before a live change.
        let is_dirty = handed.is_some();
        let index = match handed {
            Some(index) => Index::clone(&index),
            None => Index::read(&env, &lower).await?,
        };
        let info = Info { size: 0, ..lower.info().clone() };
        Ok(Rc::new(Shelf {
            info,
            env,
            lower,
            opening,
            closing,
            refuses,
            index: RefCell::new(index),
            is_dirty: Cell::new(is_dirty),
            taken: RefCell::default(),
            open: RefCell::default(),
            opened: Cell::new(0),
            created: Cell::new(0),
        }) as Rc<dyn AnyDevice>)
    })
}

/// A volume in the index.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    id: u64,
    slot: u64,
    size: u64,
    is_read_only: bool,
    is_gone: bool,
}

impl Row {
    fn id(&self) -> VolumeId {
        let mut id = [0; 24];
        id[..8].copy_from_slice(&self.id.to_le_bytes());
        VolumeId(id)
    }
}

/// The volumes of a shelf, by name.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Index {
    rows: BTreeMap<String, Row>,
    next_id: u64,
}

impl Index {
    fn to_text(&self) -> String {
        let rows = self.rows.iter().map(|(name, row)| {
            let Row { id, slot, size, is_read_only, is_gone } = row;
            format!("{id} {slot} {size} {is_read_only} {is_gone} {name}\n")
        });
        format!("shelf {}\n{}", self.next_id, rows.collect::<String>())
    }

    fn of_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let next_id = lines.next()?.strip_prefix("shelf ")?.parse().ok()?;
        let row = |line: &str| {
            let mut words = line.splitn(6, ' ');
            let mut word = || words.next();
            let (id, slot, size) =
                (word()?.parse().ok()?, word()?.parse().ok()?, word()?.parse().ok()?);
            let (is_read_only, is_gone) = (word()?.parse().ok()?, word()?.parse().ok()?);
            Some((word()?.to_owned(), Row { id, slot, size, is_read_only, is_gone }))
        };
        Some(Self { rows: lines.map(row).collect::<Option<_>>()?, next_id })
    }

    /// Reads the index from the start of the lower. A lower of zeros has no volumes.
    async fn read(env: &Env, lower: &Lower) -> Result<Self> {
        let range = ByteRange::new(0, INDEX_BYTES).expect("an index has bytes");
        let bytes = lower.read(range, env.buf(INDEX_BYTES as usize)?).await?;
        let text = String::from_utf8_lossy(&bytes.read()).into_owned();
        let text = text.trim_end_matches('\0');
        if text.is_empty() {
            return Ok(Self::default());
        }
        Self::of_text(text).ok_or_else(|| error!(Corrupt, "the index of the shelf is damaged"))
    }
}

/// A device that holds volumes.
pub struct Shelf {
    info: Info,
    env: Env,
    lower: Lower,
    opening: Duration,
    closing: Duration,
    refuses: bool,
    index: RefCell<Index>,
    is_dirty: Cell<bool>,
    /// Slots of volumes that are being created.
    taken: RefCell<Vec<u64>>,
    /// How often each volume is open now, by identity.
    open: RefCell<BTreeMap<VolumeId, u64>>,
    opened: Cell<u64>,
    created: Cell<u64>,
}

impl Shelf {
    fn is_open(&self, row: &Row) -> bool {
        self.open.borrow().contains_key(&row.id())
    }

    fn row(&self, name: &str) -> Result<Option<Row>> {
        if name.contains(['/', ' ', '\n']) {
            bail!(Invalid, "a volume's name has no slash, blank or line break: {name:?}");
        }
        let row = self.index.borrow().rows.get(name).cloned();
        match row {
            Some(row) if row.is_gone => Err(gone(name)),
            row => Ok(row),
        }
    }

    /// Returns the snapshot of which `name` would be a clone.
    fn origin(&self, name: &str) -> Result<Option<Row>> {
        let Some((origin, _)) = name.rsplit_once('+') else { return Ok(None) };
        Ok(self.row(origin)?.filter(|row| row.is_read_only))
    }

    fn info_of(&self, row: &Row) -> Info {
        Info { size: row.size, read_only: row.is_read_only, ..self.lower.info().clone() }
    }

    /// Returns a slot that no volume has, and keeps it until [`Shelf::put`].
    fn take_slot(&self) -> Result<u64> {
        let slots = (self.lower.info().size - INDEX_BYTES) / SLOT_BYTES;
        let (index, mut taken) = (self.index.borrow(), self.taken.borrow_mut());
        let is_free = |slot: &u64| {
            !taken.contains(slot) && index.rows.values().all(|row| row.is_gone || row.slot != *slot)
        };
        let slot = (0..slots).find(is_free);
        let slot = slot.ok_or_else(|| error!(NoSpace, "all {slots} slots have volumes"))?;
        taken.push(slot);
        Ok(slot)
    }

    /// Puts a volume into the index.
    fn put(&self, name: &str, slot: u64, size: u64, is_read_only: bool) -> Row {
        let mut index = self.index.borrow_mut();
        index.next_id += 1;
        let row = Row { id: index.next_id, slot, size, is_read_only, is_gone: false };
        index.rows.insert(name.to_owned(), row.clone());
        self.taken.borrow_mut().retain(|taken| *taken != slot);
        self.is_dirty.set(true);
        row
    }

    /// Creates a volume with the bytes of `origin`, or of zeros.
    async fn create(
        &self,
        name: &str,
        size: u64,
        origin: Option<Row>,
        is_read_only: bool,
    ) -> Result<Row> {
        let slot = self.take_slot()?;
        let range = |slot| {
            let start = INDEX_BYTES + slot * SLOT_BYTES;
            ByteRange::new(start, SLOT_BYTES).expect("a slot has bytes")
        };
        let made = async {
            let Some(origin) = origin else {
                let op = Op::WriteZeroes { range: range(slot), unmap: true, fua: false };
                return self.lower.call(op).await.result;
            };
            let bytes = self.env.buf(SLOT_BYTES as usize)?;
            let bytes = self.lower.read(range(origin.slot), bytes).await?;
            self.lower.write(range(slot), bytes).await
        };
        if let Err(error) = made.await {
            self.taken.borrow_mut().retain(|taken| *taken != slot);
            return Err(error);
        }
        self.created.set(self.created.get() + 1);
        Ok(self.put(name, slot, size, is_read_only))
    }

    /// Writes the index to the lower if it has changed since it was written.
    async fn write_index(&self) -> Result<()> {
        if !self.is_dirty.replace(false) {
            return Ok(());
        }
        let text = self.index.borrow().to_text();
        let buf: Buf = self.env.buf(INDEX_BYTES as usize)?;
        let Some(padding) = buf.len().checked_sub(text.len()) else {
            self.is_dirty.set(true);
            bail!(NoSpace, "an index of {} bytes does not fit into {}", text.len(), buf.len());
        };
        buf.write().copy_from_slice(&[text.as_bytes(), &vec![0; padding]].concat());
        let range = ByteRange::new(0, INDEX_BYTES).expect("an index has bytes");
        let written = self.lower.write(range, buf).await;
        written.inspect_err(|_| self.is_dirty.set(true))
    }

    async fn carry_out(&self, command: &Command) -> Result<()> {
        if let Some(volume::Size { name, size_bytes, .. }) = command.args::<volume::Create>() {
            let is_new = self.index.borrow().rows.get(name).is_none_or(|row| row.is_gone);
            if !is_new {
                bail!(InUse, "the volume {name} exists already");
            }
            self.create(name, fits(*size_bytes)?, None, false).await?;
        } else if let Some(SnapArgs { of, name }) = command.args::<Snap>() {
            let row = self.known(of)?;
            self.create(name, row.size, Some(row), true).await?;
        } else if let Some(volume::Name { name, .. }) = command.args::<volume::Remove>() {
            self.closed(name)?;
            self.change(name, |row| row.is_gone = true);
        } else if let Some(volume::Size { name, size_bytes, .. }) = command.args::<volume::Resize>()
        {
            self.closed(name)?;
            let size = fits(*size_bytes)?;
            self.change(name, |row| row.size = size);
        }
        Ok(())
    }

    fn known(&self, name: &str) -> Result<Row> {
        self.row(name)?.ok_or_else(|| error!(NotFound, "the shelf has no volume {name}"))
    }

    /// Returns an error if the volume does not exist, or a client has it open.
    fn closed(&self, name: &str) -> Result<()> {
        match self.is_open(&self.known(name)?) {
            true => Err(error!(InUse, "clients have the volume {name} open")
                .next("disconnect those clients first")),
            false => Ok(()),
        }
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Row)) {
        if let Some(row) = self.index.borrow_mut().rows.get_mut(name) {
            change(row);
        }
        self.is_dirty.set(true);
    }
}

fn fits(size: u64) -> Result<u64> {
    if size == 0 || size > SLOT_BYTES || !size.is_multiple_of(4096) {
        bail!(Invalid, "a volume of {size} bytes: a volume has blocks of 4096 up to {SLOT_BYTES}");
    }
    Ok(size)
}

fn gone(name: &str) -> Error {
    error!(Reason::VolumeGone, "the volume {name} was removed").next("create it again")
}

impl Device for Shelf {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        assert!(matches!(request.op, Op::Flush), "a device without bytes gets flushes only");
        self.write_index().await?;
        self.lower.forward(&mut request.op).await
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        VERBS
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        Box::pin(async move {
            let done = self.carry_out(&command).await;
            if command.is::<volume::Remove>() {
                let removed = volume::Removed { dependants: 0 };
                return done.map(|()| Reply::of::<volume::Remove>(removed));
            }
            command.done(done).await
        })
    }

    fn volumes<V: VolumesVisitor>(self: Rc<Self>, visitor: V) -> Option<V::Output> {
        Some(visitor.visit(self))
    }

    fn report(&self) -> Report {
        let open = self.open.borrow().values().sum();
        let counters =
            vec![("open", open), ("opened", self.opened.get()), ("created", self.created.get())];
        Report { counters, ..Report::default() }
    }

    /// The index is handed over. All volumes are closed by now.
    fn close(&self) -> LocalFuture<Handover> {
        assert!(self.open.borrow().is_empty(), "volumes are closed before their device");
        let index: Rc<dyn std::any::Any> = Rc::new(self.index.borrow().clone());
        Box::pin(std::future::ready(Some(index)))
    }
}

impl Volumes for Shelf {
    type Volume = ShelfVolume;

    async fn list(&self, after: &str, most: usize) -> Result<Vec<VolumeEntry>> {
        self.env.give_way().await;
        let index = self.index.borrow();
        let later = index.rows.iter().filter(|(name, row)| !row.is_gone && name.as_str() > after);
        let entry = |(name, row): (&String, &Row)| VolumeEntry {
            name: name.clone(),
            size_bytes: row.size,
            read_only: row.is_read_only,
        };
        Ok(later.take(most).map(entry).collect())
    }

    async fn look(&self, name: &str) -> Result<Option<VolumeFacts>> {
        self.env.give_way().await;
        if let Some(row) = self.row(name)? {
            return Ok(Some(VolumeFacts { id: Some(row.id()), info: self.info_of(&row) }));
        }
        let facts = |row: Row| VolumeFacts {
            id: None,
            info: self.info_of(&Row { is_read_only: false, ..row }),
        };
        Ok(self.origin(name)?.map(facts))
    }

    async fn open(&self, name: &str, mode: OpenMode) -> Result<Option<OpenedVolume<ShelfVolume>>> {
        self.env.sleep(self.opening).await;
        if self.refuses {
            bail!(Io, "the shelf refuses to open {name}");
        }
        let row = match (self.row(name)?, mode) {
            (Some(row), _) => row,
            (None, OpenMode::Existing) => return Ok(None),
            (None, OpenMode::OrCreate) => {
                let Some(origin) = self.origin(name)? else { return Ok(None) };
                self.create(name, origin.size, Some(origin), false).await?
            }
        };
        self.opened.set(self.opened.get() + 1);
        *self.open.borrow_mut().entry(row.id()).or_default() += 1;
        let (lower, info) = (self.lower.clone(), self.info_of(&row));
        let start = INDEX_BYTES + row.slot * SLOT_BYTES;
        let device = Rc::new(ShelfVolume { lower, info, start, is_closed: Cell::new(false) });
        Ok(Some(OpenedVolume { id: row.id(), device, needs: Needs::children(1) }))
    }

    async fn close(&self, id: VolumeId) {
        self.env.sleep(self.closing).await;
        let mut open = self.open.borrow_mut();
        let count = open.get_mut(&id).expect("an open volume is closed");
        *count -= 1;
        if *count == 0 {
            open.remove(&id);
        }
    }
}

/// An open volume of a [`Shelf`].
pub struct ShelfVolume {
    lower: Lower,
    info: Info,
    start: u64,
    is_closed: Cell<bool>,
}

impl Device for ShelfVolume {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        assert!(!self.is_closed.get(), "no request follows the closing of a volume");
        if let Some(range) = request.op.range() {
            request.op.set_range(range.at(self.start + range.start()));
        }
        self.lower.forward(&mut request.op).await
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        let below = range.at(self.start + range.start());
        let below = Below { lower: 0, above: range.start(), range: below, how: "volume".into() };
        Ok(Resolved::places(range, vec![below]))
    }

    fn close(&self) -> LocalFuture<Handover> {
        self.is_closed.set(true);
        Box::pin(std::future::ready(None))
    }
}
