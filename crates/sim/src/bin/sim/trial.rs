//! The trial of a random graph: rounds with disk faults, kills and power cuts, then a check without faults in which
//! every request must succeed.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use block::ErrorKind;
use engine::Engine;
use export::nbd::Server;
use sim::draw::Stream;
use sim::workload::Mix;
use sim::{
    Assembly, Client, Count, Counters, CutPolicy, Door, PartId, Promise, SimDisk, SimWorld, Stuck,
};

use crate::clients::{Clients, May};
use crate::mirrors::Mirrors;
use crate::plan::{self, End, Plan};
use crate::served::serve;
use crate::shapes::{self, Step};

/// Longest virtual time that the simulator waits for any operation. An operation that takes longer fails the trial.
pub const LIMIT: Duration = Duration::from_secs(3600);

/// Time in nanoseconds from the begin of a round within which the simulator sends commands to mirrors.
const COMMANDS_WITHIN_NS: u64 = 10_000_000;

/// Longest virtual time that an idle NBD server may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Number of times that the simulator starts a graph whose disks are still in use by the previous process, and the
/// pause between two starts.
const OPEN_TRIES: u32 = 40;
const OPEN_PAUSE: Duration = Duration::from_millis(250);

/// The results of a seed without a failure.
pub struct Report {
    /// For each event that the simulator counts, the number of times that it happened.
    pub counters: Counters,
    /// The kinds of all devices in the seed's graph, one entry for each device.
    pub kinds: Vec<&'static str>,
    /// Number of clients' requests that succeeded, and number of requests that failed as the trial permits.
    pub requests: (u64, u64),
    /// A hash of all events of the run in their order; equal in each run of a seed.
    pub trace: u64,
}

impl Report {
    /// Adds the results of a seed's second trial to the results of the first trial.
    pub fn and(self, other: Self) -> Self {
        self.counters.absorb(&other.counters);
        Self {
            counters: self.counters,
            kinds: self.kinds.into_iter().chain(other.kinds).collect(),
            requests: (self.requests.0 + other.requests.0, self.requests.1 + other.requests.1),
            trace: self.trace ^ other.trace.rotate_left(1),
        }
    }
}

/// The rule that a seed broke, in words.
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Failure {
    /// Creates a failure with a description of the broken rule.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl From<Stuck> for Failure {
    fn from(stuck: Stuck) -> Self {
        Self(format!("a request did not complete: {stuck}"))
    }
}

/// Runs the trial of a seed with a random graph.
///
/// # Errors
/// The first rule that the seed broke.
pub fn run(seed: u64) -> Result<Report, Failure> {
    let mut trial = Trial::new(seed)?;
    for (round, end) in trial.plan.rounds.clone().into_iter().enumerate() {
        trial.chaos(round as u64, end)?;
    }
    trial.heal()?;
    if trial.plan.within_budget {
        trial.redundancy()?;
    } else {
        trial.work(u64::from(u32::MAX))?;
        trial.verify()?;
    }
    trial.settle()?;
    let counters = trial.world.counters();
    counters.add_many(Count::Injected, trial.clients.tally.injected.get());
    counters.add_many(Count::Unknown, trial.clients.tally.lost.get());
    let counters = Counters::default();
    counters.absorb(trial.world.counters());
    Ok(Report {
        counters,
        kinds: trial.steps.iter().map(|step| step.kind).collect(),
        requests: (trial.clients.tally.done.get(), trial.clients.tally.failed.get()),
        trace: trial.world.trace(),
    })
}

struct Trial {
    plan: Plan,
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    steps: Vec<Step>,
    top: PartId,
    mirrors: Mirrors,
    clients: Clients,
    starts: u64,
    running: Option<Running>,
}

/// The simulated server process from one start to its end.
struct Running {
    graph: Rc<Assembly>,
    client: Client,
    server: Option<Server>,
    /// Bytes of the buffer pool that devices of the graph hold even without requests.
    kept_bytes: usize,
}

impl Drop for Trial {
    fn drop(&mut self) {
        // Breaks a reference cycle: tasks hold the world, and the world holds tasks.
        if let Some(running) = self.running.take() {
            running.graph.engine.abandon();
        }
        self.world.drop_tasks();
    }
}

impl Trial {
    fn new(seed: u64) -> Result<Self, Failure> {
        let (plan, world) = (Plan::draw(seed), SimWorld::new(seed));
        let mut disks = Vec::new();
        let mut steps = Vec::new();
        let draw = Stream::new(seed, "graph", 0);
        for (n, config) in plan.disks.iter().enumerate() {
            let disk = SimDisk::new(&world, n as u64, config.clone());
            let path = format!("/disk{n}");
            world.plug(&path, &disk);
            steps.push(shapes::disk(draw.pick(&["path", "file"]), path, plan.timeout));
            disks.push(disk);
        }
        let mut graph = assembly(&world, plan.fuse, 0);
        let blocks = plan.disks.iter().map(|disk| u64::from(disk.profile.block_size()));
        let block = blocks.max().unwrap_or(512);
        let Plan { depth, patience, within_budget, .. } = plan;
        let drawn = shapes::draw(&mut graph, &draw, steps, block, depth, patience, within_budget)
            .map_err(|error| Failure(format!("the graph did not open: {error}")))?;
        let troubles = Stream::new(seed, "troubles", 0);
        let mirrors = Mirrors::new(&world, &disks, drawn.mirrors, &plan, |is_disk| {
            plan.within_budget.then(|| match plan.relapses {
                true => plan::relapsing(),
                false => plan::trouble(&troubles, is_disk),
            })
        });
        let (running, door) = Running::new(graph, drawn.top, plan.connections, 0)?;
        let may = May { fail_on_purpose: drawn.may_fail, fail: plan.may_fail };
        let clients = Clients::new(&world, door, may);
        clients.model.demand(plan.promise);
        if plan.may_fail {
            clients.model.let_copies_fail();
        }
        let trial = Self {
            plan,
            world,
            disks,
            steps: drawn.steps,
            top: drawn.top,
            mirrors,
            clients,
            starts: 0,
            running: Some(running),
        };
        if drawn.scrambles {
            trial.world.block_on(trial.clients.worker(u64::MAX, Mix::ALL).learn())?;
        }
        Ok(trial)
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the graph runs between its start and its end")
    }

    fn begin(&self, round: u64) {
        for n in 0..self.plan.clients {
            self.clients.worker(round << 32 | n, self.plan.mix).start(self.plan.requests);
        }
    }

    fn chaos(&mut self, round: u64, end: End) -> Result<(), Failure> {
        self.begin(round);
        let draw = Stream::new(self.world.seed(), "commands", self.starts << 32 | round);
        self.mirrors.command(&self.running().graph, draw, COMMANDS_WITHIN_NS);
        self.resets(Stream::new(self.world.seed(), "resets", self.starts << 32 | round));
        match end {
            End::Done => {
                self.clients.finish()?;
                if self.quiet()? {
                    self.compare()?;
                }
            }
            End::PowerAfter(time) => {
                self.clients.pass(time)?;
                self.power_cut()?;
            }
            End::PowerAtFlush(flushes) => {
                let flushes = self.clients.tally.flushes.get() + flushes;
                self.world.block_on(self.clients.tally.until_flushes(flushes))?;
                self.power_cut()?;
            }
            End::KillAfter(time) => {
                self.clients.pass(time)?;
                self.kill()?;
            }
        }
        self.clients.judge()?;
        self.verify()
    }

    /// Resets random NBD connections of the clients at random times in the round, if clients use NBD.
    fn resets(&self, draw: Stream) {
        if self.plan.connections == 0 {
            return;
        }
        let world = self.world.clone();
        world.env().spawn("resets", async move {
            for _ in 0..draw.below(5) {
                let pause = draw.below(COMMANDS_WITHIN_NS / 4) + 1;
                world.env().sleep(Duration::from_nanos(pause)).await;
                world.reset_connection(draw.next());
            }
        });
    }

    fn work(&self, round: u64) -> Result<(), Failure> {
        self.begin(round);
        self.clients.finish()
    }

    fn quiet(&self) -> Result<bool, Failure> {
        self.mirrors.quiet(&self.running().graph).map_err(Failure)
    }

    /// Checks that all members in sync of each mirror have the same bytes, unless the seed's disks corrupt bytes
    /// silently.
    fn compare(&self) -> Result<(), Failure> {
        if self.plan.promise == Promise::Nothing {
            return Ok(());
        }
        self.mirrors.check(&self.running().graph).map_err(Failure)
    }

    /// Checks, after all disk faults have ended, that every member comes in sync, and that a mirror does not read a
    /// member that a command took out.
    fn redundancy(&self) -> Result<(), Failure> {
        let graph = &self.running().graph;
        self.until_in_sync()?;
        let draw = Stream::new(self.world.seed(), "out", 0);
        let out = self.mirrors.take_out(graph, &draw).map_err(Failure)?;
        self.work(u64::from(u32::MAX))?;
        self.verify()?;
        self.mirrors.bring_back(graph, &out).map_err(Failure)?;
        self.work(u64::from(u32::MAX) - 1)?;
        self.until_in_sync()?;
        self.verify()
    }

    fn until_in_sync(&self) -> Result<(), Failure> {
        self.at_rest()?;
        self.mirrors.all_in_sync(&self.running().graph).map_err(Failure)?;
        self.compare()?;
        // The comparison reads members that are mirrors themselves. A block that this mirror cannot read from its own
        // member begins a repair, which reads its other members.
        self.at_rest()
    }

    fn at_rest(&self) -> Result<(), Failure> {
        match self.quiet()? {
            true => Ok(()),
            false => {
                let why = "the mirrors did not come to rest after the last fault";
                Err(Failure(why.to_owned()))
            }
        }
    }

    fn verify(&self) -> Result<(), Failure> {
        self.clients.verify(self.starts)
    }

    fn power_cut(&mut self) -> Result<(), Failure> {
        let draw = Stream::new(self.world.seed(), "cut", self.starts);
        // Sometimes there is a second power cut while the graph comes up.
        for _ in 0..1 + draw.below(4) / 3 {
            let engine = self.stopped()?;
            self.world.drop_tasks();
            engine.abandon();
            drop(engine);
            let together = draw.pick(&CutPolicy::ALL);
            for disk in &self.disks {
                let own = draw.pick(&CutPolicy::ALL);
                let drawn = if draw.below(2) == 0 { together } else { own };
                disk.power_cut(self.plan.cut.unwrap_or(drawn));
            }
            self.world.power_cut_files();
            self.clients.model.power_cut();
            self.start()?;
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failure> {
        let engine = self.stopped()?;
        self.world.kill();
        engine.abandon();
        drop(engine);
        self.start()?;
        self.clients.model.restarted();
        Ok(())
    }

    /// Takes the running process away before its end. Selects for each mirror the member that the next start trusts, by
    /// the members' present states, which an operator would see.
    fn stopped(&mut self) -> Result<Engine, Failure> {
        let draw = Stream::new(self.world.seed(), "trust", self.starts);
        let running = self.running.take().expect("the graph runs between its start and its end");
        for (part, name) in self.mirrors.trusted(&running.graph, &draw).map_err(Failure)? {
            if self.steps[part].trust(&name) {
                self.world.counters().add(Count::Trusted);
            }
        }
        self.clients.tally.killed();
        self.clients.door = None;
        Ok(running.graph.engine.clone())
    }

    fn start(&mut self) -> Result<(), Failure> {
        for attempt in 0..OPEN_TRIES {
            self.starts += 1;
            let mut graph = assembly(&self.world, self.plan.fuse, self.starts);
            match shapes::rebuild(&mut graph, &self.steps) {
                Ok(()) => {
                    let connections = self.plan.connections;
                    let (running, door) = Running::new(graph, self.top, connections, self.starts)?;
                    (self.running, self.clients.door) = (Some(running), Some(door));
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::InUse => {
                    drop(graph);
                    self.world.drop_tasks();
                    if attempt == OPEN_TRIES / 2 {
                        self.disks.iter().for_each(|disk| disk.release());
                    }
                    self.clients.pass(OPEN_PAUSE)?;
                }
                Err(error) => {
                    return Err(Failure(format!(
                        "the graph did not open after a restart: {error}"
                    )));
                }
            }
        }
        Err(Failure("the graph did not open after a restart: the disks stay in use".to_owned()))
    }

    /// Ends all faults of all disks, then kills and restarts the process, so that the graph opens disks again that were
    /// out of service.
    fn heal(&mut self) -> Result<(), Failure> {
        for disk in &self.disks {
            disk.set_faults(Default::default());
            disk.release();
        }
        self.clients.finish()?;
        self.kill()
    }

    /// Checks, after all requests have ended, that the engine holds no slot and the graph no buffer of a request.
    fn settle(&self) -> Result<(), Failure> {
        if let (Door::Nbd(remote), Some(server)) = (self.clients.door(), &self.running().server) {
            remote.close();
            let (_, answered) = self.world.block_on(server.stop(STOP_WITHIN))?;
            if !answered {
                return Err(Failure("an idle server did not stop in time".to_owned()));
            }
        }
        self.clients.pass(Duration::from_secs(60))?;
        let Running { graph, client, kept_bytes, .. } = self.running();
        let used = self.world.env().pool().used_bytes().saturating_sub(*kept_bytes);
        let (open, in_flight) = (client.open(), graph.engine.in_flight());
        if used > 0 || open > 0 || in_flight > 0 {
            let words =
                format!("{used} buffer bytes, {open} calls and {in_flight} requests remain");
            return Err(Failure(format!("buffers or slots were not returned: {words}")));
        }
        Ok(())
    }
}

impl Running {
    /// Begins to serve a graph that was just opened. Also returns the clients' access to the volume: through an NBD
    /// server, or directly.
    fn new(
        graph: Assembly,
        top: PartId,
        connections: usize,
        start: u64,
    ) -> Result<(Self, Door), Failure> {
        let (env, node) = (graph.env().clone(), graph.node(top));
        let client = Client::new(&graph.engine, node);
        let kept_bytes = env.pool().used_bytes();
        let portal = graph.engine.portal("vol", node);
        let (door, server) = serve(&env, &graph.engine, portal, connections, start)?;
        Ok((Self { graph: Rc::new(graph), client, server, kept_bytes }, door))
    }
}

fn assembly(world: &SimWorld, fuse: bool, start: u64) -> Assembly {
    let order = Stream::new(world.seed(), "order", start);
    Assembly::new(&world.env(), kinds::REGISTRY, fuse, order)
}
