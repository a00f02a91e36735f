//! A test kind that counts writes in a store of its own on its lower. It can break a rule about states on purpose.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::env::LocalFuture;
use block::{
    ByteRange, Device, Env, Error, ErrorKind, Handover, Info, Lower, Mutex, Needs, Notify, Op,
    Report, Request, Result, StateStore, TaskGroup, bail, first,
};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Effect, Fault, Kind, Lowers, Maker,
    MakerArgs, OptionSpec, Plan, Scope, Summary, ValueType,
};

use super::Sin;

/// The kind `keeper`: counts writes durably.
///
/// The first [`STORE_BYTES`] of the lower are the store: the id of the device, and a number of writes that is never
/// below the count. The labels have the id; the id 0 stands for a store that is being made.
pub const KEEPER: Kind = Kind {
    name: "keeper",
    summary: "counts writes durably; a toy",
    manual: "# keeper",
    lowers: Lowers::One,
    options: &[SIN],
    capabilities: Capabilities { keeps_objects: true, ..Capabilities::NONE },
    verbs: &[],
    maker: Maker::Stateful {
        bytes: Bytes::Private,
        plan,
        make,
        prepare: None,
        preflight: None,
        describe: |bytes| Ok(Summary::whole(format!("id {}", decode(bytes)?))),
    },
};

const SIN: OptionSpec = OptionSpec {
    name: "sin",
    value: ValueType::Text,
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "the rule that the device breaks on purpose; none if not set",
};

/// Bytes of the store at the beginning of the lower.
const STORE_BYTES: u64 = 4096;

/// Writes for which one update of the store is enough.
const STEP: u64 = 8;

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let below = &given.lowers[0].info;
    if below.size <= STORE_BYTES || u64::from(below.block_size) > STORE_BYTES {
        return Err(vec![Fault::new("on", "the store needs 4096 bytes, and the data more")]);
    }
    Ok(DevicePlan { info: info(below), needs: Needs::children(2) })
}

fn info(below: &Info) -> Info {
    Info { size: below.size - STORE_BYTES, ..below.clone() }
}

fn decode(bytes: &[u8]) -> std::result::Result<u64, String> {
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| format!("{} bytes, not 8", bytes.len()))
}

fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { config, env, mut lowers, state, .. } = making;
    let sin = config.text(&SIN).and_then(Sin::of_name);
    let keeper = Rc::new(Keeper::new(lowers.remove(0), state, env, sin));
    Box::pin(async move {
        let id = keeper.found()?;
        if id == 0 && !keeper.has(Sin::MakesEarly) {
            // In a live change, the labels get this state with the commit.
            keeper.keep(0).await?;
        }
        if keeper.state.is_committed() {
            keeper.open(id).await?;
            keeper.ready(Ok(()));
        } else {
            if id != 0 {
                keeper.mark(id).await?;
            }
            keeper.clone().open_later(id);
        }
        Ok(Rc::new(KeeperDevice(keeper)) as Rc<dyn AnyDevice>)
    })
}

struct KeeperDevice(Rc<Keeper>);

struct Keeper {
    info: Info,
    env: Env,
    lower: Lower,
    state: Rc<dyn StateStore>,
    id: Cell<u64>,
    writes: Cell<u64>,
    /// The number of writes in the store.
    mark: Cell<u64>,
    turn: Mutex,
    opened: RefCell<Option<Result<()>>>,
    waiting: Notify,
    tasks: TaskGroup,
    sin: Option<Sin>,
}

impl Keeper {
    fn new(lower: Lower, state: Rc<dyn StateStore>, env: &Env, sin: Option<Sin>) -> Self {
        let (info, env, tasks) = (info(lower.info()), env.clone(), TaskGroup::new(env));
        let (id, writes, mark, opened, waiting) = Default::default();
        let turn = Mutex::new();
        Self { info, env, lower, state, id, writes, mark, turn, opened, waiting, tasks, sin }
    }

    fn has(&self, sin: Sin) -> bool {
        self.sin == Some(sin)
    }

    /// Returns the id in the labels; 0 if the store must be made.
    fn found(&self) -> Result<u64> {
        let found = self.state.found(0);
        match &found.state {
            Some(state) => decode(&state.bytes).map_err(|why| Error::new(ErrorKind::Corrupt, why)),
            None if found.fresh || self.has(Sin::FormatsUsed) => Ok(0),
            None => bail!(NotFound, "the disk is not new, and has no state"),
        }
    }

    /// Opens the store in a task, once the change that makes the device is committed.
    fn open_later(self: Rc<Self>, id: u64) {
        let keeper = self.clone();
        self.tasks.spawn("a keeper's start", async move {
            let tasks = &keeper.tasks;
            let closing = tasks.changed().until(|| tasks.is_closing());
            let unsure = !keeper.has(Sin::ActsUnsure);
            if unsure && first(keeper.state.committed(), closing).await.is_err() {
                return;
            }
            let opened = keeper.open(id).await;
            keeper.ready(opened);
        });
    }

    fn ready(&self, opened: Result<()>) {
        self.opened.replace(Some(opened));
        self.waiting.wake();
    }

    async fn open(&self, id: u64) -> Result<()> {
        let id = if id == 0 { self.format().await? } else { id };
        let mark = self.mark(id).await?;
        self.id.set(id);
        self.writes.set(mark);
        self.mark.set(mark);
        Ok(())
    }

    /// Makes the store, and records its id in the labels.
    async fn format(&self) -> Result<u64> {
        let id = self.env.random("keeper") | 1;
        self.store(id, 0).await?;
        self.keep(id).await?;
        Ok(id)
    }

    async fn keep(&self, id: u64) -> Result<()> {
        let written = self.state.write(&[0], id.to_le_bytes().to_vec()).await;
        written.into_iter().try_for_each(|(_, answer)| answer)
    }

    /// Returns the number of writes in the store `id`.
    async fn mark(&self, id: u64) -> Result<u64> {
        let into = self.env.buf(STORE_BYTES as usize)?;
        let mut read = Op::read(store(), into);
        self.lower.forward(&mut read).await?;
        let Op::Read { into, .. } = read else { unreachable!("it stays a read") };
        let bytes = into.read();
        let word = |at: usize| decode(&bytes[at..at + 8]).expect("eight bytes");
        if word(0) != id && !self.has(Sin::AcceptsOther) {
            bail!(Corrupt, "the store has the id {}, the label has {id}", word(0));
        }
        Ok(word(8))
    }

    async fn store(&self, id: u64, mark: u64) -> Result<()> {
        let data = self.env.buf(STORE_BYTES as usize)?;
        {
            let mut bytes = data.write();
            bytes.fill(0);
            bytes[..8].copy_from_slice(&id.to_le_bytes());
            bytes[8..16].copy_from_slice(&mark.to_le_bytes());
        }
        let (range, restores) = (store(), block::Copies::NONE);
        self.lower.call(Op::Write { range, data, fua: true, restores }).await.result
    }

    /// Counts one more write, once the store has a number that is not below the count.
    async fn count(self: &Rc<Self>) -> Result<()> {
        while self.writes.get() == self.mark.get() {
            let _turn = self.turn.lock().await;
            if self.writes.get() == self.mark.get() {
                let mark = self.mark.get() + STEP;
                if self.has(Sin::CountsLate) {
                    let keeper = self.clone();
                    self.tasks.spawn("a late count", async move {
                        let _ = keeper.store(keeper.id.get(), mark).await;
                    });
                } else if !self.has(Sin::NeverStores) {
                    self.store(self.id.get(), mark).await?;
                }
                self.mark.set(mark);
            }
        }
        self.writes.set(self.writes.get() + 1);
        Ok(())
    }
}

fn store() -> ByteRange {
    ByteRange::new(0, STORE_BYTES).expect("the store has bytes")
}

impl Device for KeeperDevice {
    fn info(&self) -> &Info {
        &self.0.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let keeper = &self.0;
        keeper.waiting.until_some(|| keeper.opened.borrow().clone()).await?;
        if let Op::Write { .. } = request.op {
            keeper.count().await?;
        }
        let Some(asked) = request.op.range() else {
            return keeper.lower.forward(&mut request.op).await;
        };
        request.op.set_range(asked.at(asked.start() + STORE_BYTES));
        let answer = keeper.lower.forward(&mut request.op).await;
        request.op.set_range(asked);
        answer
    }

    fn report(&self) -> Report {
        Report { counters: vec![("writes", self.0.writes.get())], ..Report::default() }
    }

    /// Stores the exact count. Where that fails, the store has a higher one.
    fn close(&self) -> LocalFuture<Handover> {
        let keeper = self.0.clone();
        Box::pin(async move {
            if keeper.has(Sin::ClosesEarly) {
                return None;
            }
            let closing = keeper.tasks.close(|| ()).await;
            let is_open = matches!(*keeper.opened.borrow(), Some(Ok(())));
            if is_open && !keeper.has(Sin::NeverStores) {
                keeper.mark.set(keeper.writes.get());
                let _ = keeper.store(keeper.id.get(), keeper.writes.get()).await;
            }
            closing.done();
            None
        })
    }
}
