//! A graph with a device that holds volumes, and an NBD server of its catalogue.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::control::Verb;
use block::control::volume;
use block::env::{Address, Socket};
use block::{Env, Error, ErrorKind, OpenMode, Result};
use engine::{Engine, OpenVolume};
use export::nbd::{Limits, Server};
use export::{ExportList, GraphCatalog};
use graph::RunningGraph;
use graph::labels::{Labels, Opening, Probe};
use graph::live::{Changes, Unchanged};
use graph::spec::{Planned, Spec};
use kind::{Kind, Registry};
use meta::Machine;
use net::nbd::Client as Connection;
use sim::{DiskConfig, Profile, SimDisk, SimWorld};
use testkit::toys::{SHELF, Snap, SnapArgs};
use wire::nbd::{
    ClientConfig, ClientHandshake, ClientProgress, Command, CommandFlags, ExportEntry, ExportFacts,
    Goal,
};
use wire::stream::Inbox;

pub const BLOCK: usize = 4096;

/// Time within which each step of a test must end.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Size in bytes of each of the disks.
const DISK_BYTES: u64 = 4 << 20;

const COUNT: usize = kinds::REGISTRY.0.len() + 1;

const KINDS: [Kind; COUNT] = {
    let mut all = [SHELF; COUNT];
    let mut n = 0;
    while n < kinds::REGISTRY.0.len() {
        all[n] = kinds::REGISTRY.0[n];
        n += 1;
    }
    all
};

/// The kinds of the product, and the test kind that holds volumes.
pub const REGISTRY: Registry = Registry(&KINDS);

/// Returns a spec of two raw disks, the devices `below`, and a device with volumes on the device `on`.
pub fn spec(below: &str, on: &str) -> String {
    format!(
        "name = \"g\"\n[disk]\na = {{ path = \"/disk0\" }}\nb = {{ path = \"/disk1\" }}\n[device]\n{below}\
         vms = {{ kind = \"shelf\", on = \"{on}\", opening = \"300ms\" }}\n"
    )
}

/// A graph of the simulated world, and the server of its catalogue.
pub struct Rig {
    pub world: SimWorld,
    pub engine: Engine,
    pub disks: Vec<Rc<SimDisk>>,
    pub live: Rc<RunningGraph>,
    exports: Rc<ExportList>,
    pub catalog: GraphCatalog,
    pub server: Server,
    pub at: Address,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Breaks a reference cycle: tasks hold the world, and the world holds tasks.
        self.engine.abandon();
        self.world.drop_tasks();
    }
}

impl Rig {
    /// Starts the graph of the spec `text` over three blank disks, with the volumes `left` and `right`.
    pub fn new(text: &str) -> Self {
        let world = SimWorld::new(1);
        let disks: Vec<_> = (0..3)
            .map(|n| {
                let disk = SimDisk::new(&world, n, DiskConfig::new(DISK_BYTES, Profile::Native512));
                world.plug(format!("/disk{n}"), &disk);
                disk
            })
            .collect();
        let rig = Self::start(world, disks, text).unwrap();
        ["left", "right"].into_iter().for_each(|name| rig.create(name));
        rig
    }

    /// Stops the graph, and starts the graph of the spec `text` over the same disks.
    pub fn restart(self, text: &str) -> Result<Self, Unchanged> {
        let (world, disks) = (self.world.clone(), self.disks.clone());
        assert!(world.block_on(self.live.flush()).unwrap().is_empty());
        let deadline = world.env().now().after(LIMIT);
        world.block_on(self.live.close_devices(deadline)).unwrap();
        drop(self);
        Self::start(world, disks, text)
    }

    fn start(world: SimWorld, disks: Vec<Rc<SimDisk>>, text: &str) -> Result<Self, Unchanged> {
        let env = world.env();
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let opening = async {
            let (planned, probe) = plan(&env, &engine, text, None).await;
            RunningGraph::open(&env, &engine, planned, probe).await
        };
        let live = Rc::new(world.block_on(opening).unwrap()?);
        let exports = ExportList::new([]);
        let catalog = GraphCatalog::new(&env, &engine, &exports, live.volumes(), "a volume");
        let server = Server::new(&env, Rc::new(catalog.clone()), Limits::default(), |_| {});
        let at = Address::Unix(format!("/socket{}", env.now().0.as_nanos()).into());
        server.serve(env.listen(&at).unwrap());
        let rig = Self { world, engine, disks, live, exports, catalog, server, at };
        rig.offer();
        Ok(rig)
    }

    /// Offers the exports of the graph to clients.
    pub fn offer(&self) {
        let (env, now) = (self.world.env(), self.live.now());
        self.exports.set(now.graph.exports().iter().map(|export| {
            let portal = self.live.portal(&export.name).expect("each export has a portal");
            export::nbd::Export::new(&env, &self.engine, &portal, "")
        }));
    }

    /// Carries out a command of verb `V` on the device with volumes.
    pub fn ask<V: Verb>(&self, args: V::Args) -> Result<V::Answer> {
        self.world.block_on(self.live.ask::<V>("vms", args)).unwrap()
    }

    pub fn create(&self, name: &str) {
        let args = volume::Size { name: name.to_owned(), size_bytes: 32 << 10, dry_run: false };
        self.ask::<volume::Create>(args).unwrap();
    }

    pub fn snap(&self, of: &str, name: &str) {
        self.ask::<Snap>(SnapArgs { of: of.to_owned(), name: name.to_owned() }).unwrap();
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        self.ask::<volume::Remove>(volume::Name { name: name.to_owned(), dry_run: false }).map(drop)
    }

    /// Returns a counter of the device with volumes.
    pub fn count(&self, counter: &str) -> u64 {
        let now = self.live.now();
        let report = now.graph.report(now.graph.member("vms").unwrap());
        report.counters.into_iter().find(|(name, _)| *name == counter).unwrap().1
    }

    pub fn connect(&self, name: &str) -> Result<Connection> {
        self.world.block_on(connect(self.world.env(), self.at.clone(), name.to_owned())).unwrap()
    }

    /// Returns a handle to a volume that exists.
    pub fn opened(&self, name: &str) -> Rc<OpenVolume> {
        let (volumes, name) = (self.live.volumes().clone(), name.to_owned());
        let opening = async move { volumes.open(&name, OpenMode::Existing).await };
        self.world.block_on(opening).unwrap().unwrap().unwrap()
    }

    pub fn write(&self, connection: &Connection, start: u64, byte: u8) {
        let env = self.world.env();
        let written = write(&env, connection, start, byte);
        self.world.block_on(written).unwrap().unwrap();
    }

    pub fn read(&self, connection: &Connection, start: u64) -> u8 {
        self.world.block_on(read(&self.world.env(), connection, start)).unwrap().unwrap()
    }

    pub fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }

    /// Changes the running graph to the spec `text`.
    pub fn change(&self, text: &str) -> Result<Changes, Unchanged> {
        self.world.block_on(self.begin_change(text)).unwrap()
    }

    /// Returns a future that changes the running graph to the spec `text`.
    pub fn begin_change(
        &self,
        text: &str,
    ) -> impl Future<Output = Result<Changes, Unchanged>> + use<> {
        let (env, engine) = (self.world.env(), self.engine.clone());
        let (live, text) = (self.live.clone(), text.to_owned());
        async move {
            let (turn, now) = (live.turn().await, live.now());
            let (planned, probe) = plan(&env, &engine, &text, Some(now.labels.as_ref())).await;
            let planned = live.with_volumes(planned).await.map_err(Unchanged::Failed)?;
            live.change(&turn, planned, probe, LIMIT).await
        }
    }
}

/// Plans the spec `text`, which must be valid. `running`: the labels of the graph that is changed, if one is.
async fn plan(
    env: &Env,
    engine: &Engine,
    text: &str,
    running: Option<Option<&Labels>>,
) -> (Planned, Option<Probe>) {
    let spec = Spec::parse(text, "g.toml", &|_| None);
    let mut probe = None;
    if text.contains("label = true") {
        let opening = Opening {
            machine: Machine::new("host", [1; 16]),
            degraded: running.is_some(),
            wipe: Vec::new(),
            replaced: Vec::new(),
            grow: BTreeMap::new(),
            accept_loss: false,
            take: false,
            changes: running.is_some(),
        };
        let looked = Probe::take(&spec, REGISTRY, env, engine, opening, false, running.flatten());
        probe = Some(looked.await);
    }
    let refusals = probe.as_ref().map(Probe::refusals).unwrap_or_default();
    assert!(refusals.is_empty(), "{refusals:?}");
    let facts = probe.as_ref().map(Probe::facts).unwrap_or_default();
    let planned = spec.plan_over(REGISTRY, env, &facts).await;
    (planned.unwrap_or_else(|faults| panic!("{faults}")), probe)
}

/// Connects an NBD client to the export called `name`.
pub async fn connect(env: Env, at: Address, name: String) -> Result<Connection> {
    Connection::connect(&env, &at, ClientConfig::connect(name)).await
}

/// Writes a block of bytes `byte` at the byte address `start`.
pub async fn write(env: &Env, connection: &Connection, start: u64, byte: u8) -> Result<()> {
    let data = env.buf(BLOCK)?;
    data.write().fill(byte);
    let len = BLOCK as u64;
    connection.start(Command::Write, CommandFlags::NONE, start, len, Some(data)).await.result?;
    Ok(())
}

/// Reads the block at the byte address `start`, and returns the value of all its bytes.
pub async fn read(env: &Env, connection: &Connection, start: u64) -> Result<u8> {
    let (buf, len) = (env.buf(BLOCK)?, BLOCK as u64);
    let outcome = connection.start(Command::Read, CommandFlags::NONE, start, len, Some(buf)).await;
    outcome.result?;
    let bytes = outcome.buf.expect("a read returns its buffer");
    let bytes = bytes.read();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one write filled the block");
    Ok(bytes[0])
}

/// The reply to a client that does not enter the transmission phase.
#[derive(Debug)]
pub enum Told {
    Facts(ExportFacts),
    List(Vec<ExportEntry>),
}

/// Asks the server for the properties of an export, or for its list of exports.
pub async fn inquire(env: Env, at: Address, name: String, goal: Goal) -> Result<Told> {
    let config = ClientConfig { goal, ..ClientConfig::connect(name) };
    let broken = |error: wire::nbd::ProtocolError| Error::new(ErrorKind::Io, error.to_string());
    let socket: Rc<dyn Socket> = env.connect(&at).await?;
    let mut handshake = ClientHandshake::new(config).map_err(broken)?;
    let (mut inbox, mut out) = (Inbox::new(env.pool()).await?, Vec::new());
    loop {
        let (used, progress) = handshake.advance(&inbox.bytes(), &mut out).map_err(broken)?;
        inbox.take(used);
        while !out.is_empty() {
            let buf = env.buf(out.len())?;
            buf.write().copy_from_slice(&out);
            out.drain(..socket.send(vec![buf]).await.result?);
        }
        match progress {
            ClientProgress::Described(facts) => return Ok(Told::Facts(*facts)),
            ClientProgress::Listed(entries) => return Ok(Told::List(entries)),
            ClientProgress::NeedMore => match socket.recv(inbox.room()).await.result? {
                0 => return Err(Error::new(ErrorKind::Io, "the server closed the connection")),
                n => inbox.arrived(n),
            },
            _ => {}
        }
    }
}
