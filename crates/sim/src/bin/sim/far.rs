//! The trial of a graph over NBD disks. The disks are exports of one server, with several connections each. The
//! simulator cuts the power of the server repeatedly while the clients of the graph send requests. No power cut may
//! cause an error or a wrong reply at a client.

use std::rc::Rc;
use std::time::Duration;

use block::Op;
use block::env::{Address, Listener};
use export::ExportList;
use export::nbd::{Export, Server};
use kind::{Kind, Registry, Value};
use sim::draw::Stream;
use sim::workload::Mix;
use sim::{Assembly, Client, Count, Counters, CutPolicy, PartId, ProcessId, SimDisk, SimWorld};

use crate::clients::{Clients, May};
use crate::mirrors::Mirrors;
use crate::plan::Plan;
use crate::served;
use crate::shapes::{self, Step};
use crate::trial::{Failure, Report};

/// Number of the process that runs the graph over NBD disks, and its clients. It never ends.
const GRAPH: ProcessId = ProcessId(0);

const SOCKET: &str = "/far";

/// Largest number of power cuts of the server and connection resets in one round.
const CUTS_MAX: u64 = 4;

/// Values of the option `replay` of NBD disks: bytes of unflushed writes that a disk keeps. More than any single write,
/// sometimes less than the writes of all clients together.
const REPLAY_BYTES: [u64; 3] = [128 << 10, 256 << 10, 1 << 20];

/// Pause between two rounds. An NBD connection that lasts so long resets the disk's count of short connections; too
/// many in a row would make the disk report an error.
const STEADY: Duration = Duration::from_secs(11);

const COUNT: usize = kinds::REGISTRY.0.len() + 1;

const KINDS: [Kind; COUNT] = {
    let mut all = [net::nbd::KIND; COUNT];
    let mut n = 0;
    while n < kinds::REGISTRY.0.len() {
        all[n] = kinds::REGISTRY.0[n];
        n += 1;
    }
    all
};

/// All kinds of `kinds`, and the kind `nbd` for disks on a server's exports.
const REGISTRY: Registry = Registry(&KINDS);

/// Runs the trial `far` of a seed.
///
/// # Errors
/// The first rule that the seed broke.
pub fn run(seed: u64) -> Result<Report, Failure> {
    let mut trial = Trial::new(seed)?;
    for round in 0..trial.plan.rounds.len() as u64 {
        trial.round(round)?;
    }
    trial.redundancy()?;
    trial.last_cut()?;
    trial.report()
}

/// The process of the NBD server from one start to its power cut, with the disks that it exports.
struct Life {
    process: ProcessId,
    graph: Assembly,
    listener: Rc<dyn Listener>,
    _server: Server,
}

/// The simulated machine with the NBD server and its disks.
struct Machine {
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    draw: Stream,
    lives: u64,
    life: Option<Life>,
}

impl Machine {
    fn new(world: &SimWorld, plan: &Plan) -> Self {
        let disk = |(n, config): (usize, &sim::DiskConfig)| {
            let disk = SimDisk::new(world, n as u64, config.clone());
            world.plug(path(n), &disk);
            disk
        };
        let disks = plan.disks.iter().enumerate().map(disk).collect();
        let draw = Stream::new(world.seed(), "machine", 0);
        Self { world: world.clone(), disks, draw, lives: 0, life: None }
    }

    /// Starts a new process of the NBD server.
    fn start(&mut self) -> Result<(), Failure> {
        self.lives += 1;
        let process = ProcessId(GRAPH.0 + self.lives);
        self.world.enter(process);
        let life = self.begin(process);
        self.world.enter(GRAPH);
        self.life =
            Some(life.map_err(|error| Failure::new(format!("the server did not start: {error}")))?);
        Ok(())
    }

    fn begin(&self, process: ProcessId) -> block::Result<Life> {
        let env = self.world.env();
        let order = Stream::new(self.world.seed(), "server order", self.lives);
        let mut graph = Assembly::new(&env, kinds::REGISTRY, false, order);
        let mut exports = Vec::new();
        for n in 0..self.disks.len() {
            let part = graph.add("path", &[("path", Value::Text(path(n)))], &[])?;
            let portal = graph.engine.portal(&export(n), graph.node(part));
            exports.push(Export::new(&env, &graph.engine, &portal, ""));
        }
        let server = Server::new(&env, ExportList::new(exports), served::limits(), |_| {});
        let listener = env.listen(&Address::Unix(SOCKET.into()))?;
        server.serve(listener.clone());
        Ok(Life { process, graph, listener, _server: server })
    }

    /// Cuts the power of the machine with the NBD server: kills the process, resets its connections and cuts its disks.
    fn stop(&mut self) {
        let Some(life) = self.life.take() else { return };
        self.world.counters().add(Count::ServerCut);
        self.world.reset_connections();
        self.world.kill_process(life.process);
        life.listener.close();
        life.graph.engine.abandon();
        let together = self.draw.pick(&CutPolicy::ALL);
        for disk in &self.disks {
            let own = self.draw.pick(&CutPolicy::ALL);
            disk.power_cut(if self.draw.below(2) == 0 { together } else { own });
        }
    }
}

fn path(n: usize) -> String {
    format!("/disk{n}")
}

fn export(n: usize) -> String {
    format!("export{n}")
}

struct Trial {
    plan: Plan,
    machine: Machine,
    graph: Rc<Assembly>,
    clients: Clients,
    /// The NBD server between the clients and the graph; `None` if clients send requests directly into the engine.
    _server: Option<Server>,
    top: PartId,
    steps: Vec<Step>,
    mirrors: Mirrors,
}

impl Drop for Trial {
    fn drop(&mut self) {
        // Breaks a reference cycle: tasks hold the world, and the world holds tasks.
        self.graph.engine.abandon();
        if let Some(life) = self.machine.life.take() {
            life.graph.engine.abandon();
        }
        self.machine.world.drop_tasks();
    }
}

impl Trial {
    fn new(seed: u64) -> Result<Self, Failure> {
        let (plan, world) = (Plan::far(seed), SimWorld::new(seed));
        let mut machine = Machine::new(&world, &plan);
        machine.start()?;
        let draw = Stream::new(seed, "graph", 0);
        let uri = |n| format!("nbd+unix:///{}?socket={SOCKET}", export(n));
        let disk = |n| shapes::far_disk(uri(n), draw.within(1, 3), draw.pick(&REPLAY_BYTES));
        let disks = (0..plan.disks.len()).map(disk).collect();
        let blocks = plan.disks.iter().map(|disk| u64::from(disk.profile.block_size()));
        let block = blocks.max().unwrap_or(512);
        let env = world.env();
        let order = Stream::new(seed, "order", 0);
        let mut graph = Assembly::new(&env, REGISTRY, plan.fuse, order).in_world(&world);
        let (depth, patience) = (plan.depth, plan.patience);
        let drawn = shapes::draw(&mut graph, &draw, disks, block, depth, patience, true).map_err(
            |error| Failure::new(format!("the graph of the clients did not open: {error}")),
        )?;
        let mirrors = Mirrors::new(&world, &machine.disks, drawn.mirrors, &plan, |_| None);
        let portal = graph.engine.portal("vol", graph.node(drawn.top));
        let (door, server) = served::serve(&env, &graph.engine, portal, plan.connections, 0)?;
        let clients =
            Clients::new(&world, door, May { fail_on_purpose: drawn.may_fail, fail: false });
        if drawn.scrambles {
            world.block_on(clients.worker(u64::MAX, Mix::ALL).learn())?;
        }
        Ok(Self {
            plan,
            machine,
            graph: Rc::new(graph),
            clients,
            _server: server,
            top: drawn.top,
            steps: drawn.steps,
            mirrors,
        })
    }

    /// Runs one round: clients send requests while the simulator cuts the server's power and resets connections. Then
    /// verifies the volume.
    fn round(&mut self, round: u64) -> Result<(), Failure> {
        for n in 0..self.plan.clients {
            self.clients.worker(round << 32 | n, self.plan.mix).start(self.plan.requests);
        }
        let commands = Stream::new(self.machine.world.seed(), "commands", round);
        self.mirrors.command(&self.graph, commands, 10_000_000);
        for _ in 0..self.machine.draw.below(CUTS_MAX + 1) {
            self.pass(1_000, 10_000_000)?;
            match self.machine.draw.below(4) {
                0 => self.machine.world.reset_connection(self.machine.draw.next()),
                _ => {
                    self.machine.stop();
                    self.pass(1_000, 50_000_000)?;
                    self.machine.start()?;
                }
            }
        }
        self.clients.finish()?;
        self.clients.verify(round)?;
        self.clients.pass(STEADY)
    }

    fn pass(&self, least_ns: u64, most_ns: u64) -> Result<(), Failure> {
        self.clients.pass(Duration::from_nanos(self.machine.draw.within(least_ns, most_ns)))
    }

    /// Commands a resync, waits for its end, and checks that all members of all mirrors are in sync and hold equal bytes.
    fn redundancy(&self) -> Result<(), Failure> {
        self.mirrors.resync(&self.graph);
        if !self.mirrors.quiet(&self.graph).map_err(Failure::new)? {
            return Err(Failure::new("the mirrors did not come to rest after the last fault"));
        }
        self.mirrors.all_in_sync(&self.graph).map_err(Failure::new)?;
        self.mirrors.check(&self.graph).map_err(Failure::new)
    }

    /// Flushes the volume, cuts the server's power, and verifies that the volume still has all writes.
    fn last_cut(&mut self) -> Result<(), Failure> {
        let client = Client::new(&self.graph.engine, self.graph.node(self.top));
        let flushed = self.machine.world.block_on(client.send(Op::Flush))?.result;
        if let Err(error) = flushed {
            let words = format!("a flush failed although the server came back in time: {error}");
            let is_wrong = !self.clients.may.fail_on_purpose;
            return if is_wrong { Err(Failure::new(words)) } else { Ok(()) };
        }
        self.machine.stop();
        self.machine.start()?;
        self.clients.verify(self.plan.rounds.len() as u64)
    }

    fn report(&self) -> Result<Report, Failure> {
        let counters = Counters::default();
        counters.absorb(self.machine.world.counters());
        counters.add_many(Count::Injected, self.clients.tally.injected.get());
        counters.add_many(Count::Unknown, self.clients.tally.lost.get());
        counters.add_many(Count::Replayed, self.replayed());
        Ok(Report {
            counters,
            kinds: self.steps.iter().map(|step| step.kind).collect(),
            requests: (self.clients.tally.done.get(), self.clients.tally.failed.get()),
            trace: self.machine.world.trace(),
        })
    }

    /// Returns the number of writes and discards that NBD disks have sent again after a reconnect.
    fn replayed(&self) -> u64 {
        let mut sum = 0;
        for part in (0..self.steps.len()).filter(|part| self.steps[*part].kind == "nbd") {
            let report = self.graph.report(part);
            let replayed = report.counters.iter().find(|(name, _)| *name == "replayed");
            sum += replayed.map_or(0, |(_, count)| *count);
        }
        sum
    }
}
