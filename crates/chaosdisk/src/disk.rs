//! A simulated disk that chaosdisk serves, as a device, and the faults that a test injects.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block::env::{CacheMode, DiskIo, Open, Outcome, Storage};
use block::{
    BUF_MAX_BYTES, ByteRange, Device, EXTENTS_MAX, Env, Error, ErrorKind, Info, Mono, Notify, Op,
    OpKind, Request, Result,
};
use serde_json::{Map, Value};
use sim::{CutPolicy, SimDisk};

use crate::command::DiskSpec;
use crate::time::Time;

const EIO: i32 = 5;

/// A simulated disk as a device. A [`crate::Shelf`], which holds all disks of chaosdisk, serves it over NBD.
pub struct Disk {
    info: Info,
    name: String,
    env: Env,
    time: Rc<Time>,
    sim: Rc<SimDisk>,
    storage: Rc<dyn Storage>,
    counts: Counts,
    /// For each operation, the number of next requests that fail.
    to_fail: [Cell<u64>; OpKind::ALL.len()],
    hung: Cell<bool>,
    stalled: Cell<Mono>,
    powered: Cell<bool>,
    /// Whether the disk holds back its replies to requests that a power cut has ended. The disk sends these replies
    /// after their connections are closed.
    mute: Cell<bool>,
    /// Number of power cuts so far. A request that began before a power cut does not change the disk after the cut.
    cuts: Cell<u64>,
    held: Notify,
}

#[derive(Default)]
struct Counts {
    verbs: [Cell<u64>; OpKind::ALL.len()],
    fua: Cell<u64>,
    in_flight: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

impl Disk {
    /// Creates a disk without content. `number` is the number of the disk in the simulated world.
    ///
    /// # Errors
    /// An error if the world has another open disk of the same name.
    pub fn new(env: &Env, time: &Rc<Time>, number: u64, spec: &DiskSpec) -> Result<Self> {
        let world = time.world();
        let sim = SimDisk::new(world, number, spec.config());
        let path = format!("/{}", spec.name);
        world.plug(&path, &sim);
        let storage = world.env().open(&Open {
            path: path.into(),
            device: true,
            read_only: false,
            create: None,
            odd_size: false,
            cache: CacheMode::Direct,
        })?;
        let facts = storage.facts();
        let info = Info {
            discard_zeroes: facts.discard_zeroes,
            ..Info::disk(facts.size, facts.block_size)
        };
        Ok(Self {
            info,
            name: spec.name.clone(),
            env: env.clone(),
            time: time.clone(),
            sim,
            storage,
            counts: Counts::default(),
            to_fail: Default::default(),
            hung: Cell::new(false),
            stalled: Cell::new(env.now()),
            powered: Cell::new(true),
            mute: Cell::new(false),
            cuts: Cell::new(0),
            held: Notify::default(),
        })
    }

    /// Returns the name of the disk.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the next `count` requests of operation `verb` fail. A failed flush loses the writes that it should have
    /// made durable.
    pub fn fail(&self, verb: OpKind, count: u64) {
        self.to_fail[verb as usize].set(count);
    }

    /// Delays all replies of the disk for `time` from now.
    pub fn stall(&self, time: Duration) {
        self.stalled.set(self.env.now().after(time));
    }

    /// Stops the disk until [`Disk::release`], which carries out the requests that arrive in between.
    pub fn hang(&self) {
        self.hung.set(true);
    }

    /// Lets the disk carry out requests again after [`Disk::hang`].
    pub fn release(&self) {
        self.hung.set(false);
        self.held.wake();
    }

    /// Flips a bit of the medium's byte at `offset`. Returns `false` if the medium has no data at that offset.
    pub fn rot(&self, offset: u64) -> bool {
        offset < self.info.size && self.sim.rot(offset)
    }

    /// Switches the power of the disk off: all requests fail, also those in flight. With `mute`, the disk sends the
    /// replies of these requests only after [`Disk::speak`].
    pub fn power_off(&self, policy: CutPolicy, mute: bool) {
        self.powered.set(false);
        self.mute.set(mute);
        add(&self.cuts, 1);
        self.time.catch_up();
        self.sim.power_cut(policy);
        self.stalled.set(self.env.now());
        self.release();
    }

    /// Sends the replies to the requests that the power cut has ended.
    pub fn speak(&self) {
        self.mute.set(false);
        self.held.wake();
    }

    /// Switches the power of the disk on after [`Disk::power_off`]. The disk has the content that the cut has left.
    pub fn power_on(&self) {
        self.powered.set(true);
    }

    /// Returns the numbers of requests to the disk as JSON: for each operation, with FUA, and not answered yet.
    pub fn counts(&self) -> Value {
        let verbs = OpKind::ALL.into_iter().zip(&self.counts.verbs);
        let mut all: Map<String, Value> =
            verbs.map(|(verb, count)| (verb.name().to_owned(), count.get().into())).collect();
        all.insert("fua".to_owned(), self.counts.fua.get().into());
        all.insert("in_flight".to_owned(), self.counts.in_flight.get().into());
        all.into()
    }

    fn power_is_gone() -> Error {
        Error::new(ErrorKind::Io, "the power of the simulated disk is cut")
    }

    /// Waits until the disk neither hangs nor stalls. Fails if a power cut comes during the wait.
    async fn held(&self) -> Result<()> {
        let cuts = self.cuts.get();
        self.held.until(|| !self.hung.get()).await;
        if self.stalled.get() > self.env.now() {
            self.env.sleep_until(self.stalled.get()).await;
        }
        if cuts == self.cuts.get() && self.powered.get() {
            Ok(())
        } else {
            Err(Self::power_is_gone())
        }
    }

    async fn spoken(&self) {
        self.held.until(|| !self.mute.get()).await;
    }

    fn struck(&self, verb: OpKind) -> Result<()> {
        let left = &self.to_fail[verb as usize];
        if left.get() == 0 {
            return Ok(());
        }
        left.set(left.get() - 1);
        if verb == OpKind::Flush {
            self.sim.lose_cache();
        }
        Err(Error::os(EIO, format_args!("{verb}: an injected failure of the simulated disk")))
    }

    async fn io(&self, io: DiskIo) -> Outcome {
        self.time.catch_up();
        let ticket = self.storage.start(io);
        self.time.begun();
        ticket.await
    }

    /// Writes zeros that are durable at completion. A flush instead would make other writes durable too, and hide a
    /// missing flush of the device above.
    async fn write_zeros(&self, range: ByteRange) -> Result<()> {
        let mut at = range.start();
        while at < range.end() {
            let piece = range.end().min(at + BUF_MAX_BYTES as u64) - at;
            let data = self.env.pool().wait_for(piece as usize).await?;
            data.write().fill(0);
            self.io(DiskIo::Write { offset: at, data, fua: true }).await.result?;
            at += piece;
        }
        Ok(())
    }

    async fn carry_out(&self, op: &mut Op) -> Result<()> {
        self.held().await?;
        self.struck(op.verb())?;
        match op {
            Op::Read { range, into, .. } => {
                let io = DiskIo::Read { offset: range.start(), into: into.clone() };
                self.io(io).await.result.map(drop)
            }
            Op::Write { range, data, fua, .. } => {
                let io = DiskIo::Write { offset: range.start(), data: data.clone(), fua: *fua };
                self.io(io).await.result.map(drop)
            }
            Op::WriteZeroes { range, fua: true, .. } | Op::Discard { range, fua: true } => {
                self.write_zeros(*range).await
            }
            Op::WriteZeroes { range, unmap, .. } => {
                self.io(DiskIo::Zero { range: *range, unmap: *unmap }).await.result.map(drop)
            }
            Op::Discard { range, .. } => {
                self.io(DiskIo::Discard { range: *range }).await.result.map(drop)
            }
            Op::Flush => self.io(DiskIo::Flush).await.result.map(drop),
            Op::Status { range, extents } => {
                *extents = self.storage.extents(*range, EXTENTS_MAX)?;
                Ok(())
            }
        }
    }
}

impl Device for Disk {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        add(&self.counts.verbs[request.op.verb() as usize], 1);
        add(&self.counts.fua, u64::from(request.op.fua()));
        add(&self.counts.in_flight, 1);
        let cuts = self.cuts.get();
        let result = self.carry_out(&mut request.op).await;
        if cuts != self.cuts.get() || !self.powered.get() {
            self.spoken().await;
        }
        self.counts.in_flight.set(self.counts.in_flight.get() - 1);
        result
    }
}
