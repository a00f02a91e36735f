//! One seed: chaos, then healing, then everything must work.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use block::ErrorKind;
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Assembly, Client, Counters, CutPolicy, Model, PartId, SimDisk, SimWorld, Stuck};

use crate::plan::{End, Plan};
use crate::shapes::{self, Step};

/// In virtual time: longer than any work takes that takes an end.
const LIMIT: Duration = Duration::from_secs(3600);

/// How often and how long a start waits for a disk that somebody else has open still.
const OPEN_TRIES: u32 = 40;
const OPEN_PAUSE: Duration = Duration::from_millis(250);

/// What became of a seed that did well.
pub struct Report {
    /// What happened in its world.
    pub counters: Counters,
    /// The kinds of its graph.
    pub kinds: Vec<&'static str>,
    /// Requests that succeeded, and that failed as they may.
    pub requests: (u64, u64),
    /// A number that tells this run from every other.
    pub trace: u64,
}

/// Why a seed failed.
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Stuck> for Failure {
    fn from(stuck: Stuck) -> Self {
        Self(format!("every request completes: {stuck}"))
    }
}

/// Runs a seed.
///
/// # Errors
/// The first promise that is broken.
pub fn run(seed: u64) -> Result<Report, Failure> {
    let mut trial = Trial::new(seed)?;
    for (round, end) in trial.plan.rounds.clone().into_iter().enumerate() {
        trial.chaos(round as u64, end)?;
    }
    trial.heal()?;
    trial.work(u64::from(u32::MAX))?;
    trial.verify()?;
    trial.settle()?;
    let counters = Counters::default();
    counters.absorb(trial.world.counters());
    Ok(Report {
        counters,
        kinds: trial.steps.iter().map(|step| step.kind).collect(),
        requests: (trial.tally.done.get(), trial.tally.failed.get()),
        trace: trial.world.trace(),
    })
}

struct Trial {
    plan: Plan,
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    steps: Vec<Step>,
    top: PartId,
    model: Rc<Model>,
    tally: Rc<Tally>,
    starts: u64,
    running: Option<(Assembly, Client)>,
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
        let (top, steps) = shapes::draw(&mut graph, &draw, steps, block, plan.depth)
            .map_err(|error| Failure(format!("a graph can be built: {error}")))?;
        let client = Client::new(&graph.engine, graph.node(top));
        let model = Rc::new(Model::new(seed, client.info().size));
        model.demand(plan.promise);
        let running = Some((graph, client));
        let tally = Rc::default();
        Ok(Self { plan, world, disks, steps, top, model, tally, starts: 0, running })
    }

    fn worker(&self, number: u64, mix: Mix) -> Worker {
        let (_, client) = self.running.as_ref().expect("it runs");
        Worker {
            env: self.world.env(),
            client: client.clone(),
            model: self.model.clone(),
            tally: self.tally.clone(),
            draw: Stream::new(self.world.seed(), "worker", number),
            mix,
        }
    }

    fn begin(&self, round: u64) {
        for n in 0..self.plan.clients {
            self.worker(round << 32 | n, self.plan.mix).start(self.plan.requests);
        }
    }

    fn chaos(&mut self, round: u64, end: End) -> Result<(), Failure> {
        self.begin(round);
        match end {
            End::Done => self.finish()?,
            End::PowerAfter(time) => {
                self.pass(time)?;
                self.power_cut()?;
            }
            End::PowerAtFlush(flushes) => {
                let flushes = self.tally.flushes.get() + flushes;
                self.world.block_on(self.tally.until_flushes(flushes))?;
                self.power_cut()?;
            }
            End::KillAfter(time) => {
                self.pass(time)?;
                self.kill()?;
            }
        }
        self.judge()?;
        self.verify()
    }

    fn work(&self, round: u64) -> Result<(), Failure> {
        self.begin(round);
        self.finish()
    }

    fn finish(&self) -> Result<(), Failure> {
        let env = self.world.env();
        let tally = self.tally.clone();
        let done = self.world.block_on(async move { env.within(LIMIT, tally.idle()).await })?;
        if done.is_none() {
            return Err(Failure(format!("everything is done within {LIMIT:?}: it is not")));
        }
        self.judge()
    }

    fn verify(&self) -> Result<(), Failure> {
        let worker = self.worker(self.starts << 48, Mix::ALL);
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    fn pass(&self, time: Duration) -> Result<(), Failure> {
        Ok(self.world.run(self.world.env().now().after(time))?)
    }

    fn judge(&self) -> Result<(), Failure> {
        if let Some(wrong) = &*self.tally.wrong.borrow() {
            return Err(Failure(wrong.to_string()));
        }
        match &*self.tally.error.borrow() {
            Some(error) if !self.plan.may_fail => {
                Err(Failure(format!("what a graph must survive fails no request: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn power_cut(&mut self) -> Result<(), Failure> {
        let draw = Stream::new(self.world.seed(), "cut", self.starts);
        // Now and then it goes again while the graph comes up.
        for _ in 0..1 + draw.below(4) / 3 {
            self.world.drop_tasks();
            self.stopped();
            let together = draw.pick(&CutPolicy::ALL);
            for disk in &self.disks {
                let own = draw.pick(&CutPolicy::ALL);
                let drawn = if draw.below(2) == 0 { together } else { own };
                disk.power_cut(self.plan.cut.unwrap_or(drawn));
            }
            self.model.power_cut();
            self.start()?;
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.world.kill();
        self.stopped();
        self.start()?;
        self.model.restarted();
        Ok(())
    }

    fn stopped(&mut self) {
        self.running = None;
        self.tally.killed();
    }

    fn start(&mut self) -> Result<(), Failure> {
        for attempt in 0..OPEN_TRIES {
            self.starts += 1;
            let mut graph = assembly(&self.world, self.plan.fuse, self.starts);
            match shapes::rebuild(&mut graph, &self.steps) {
                Ok(()) => {
                    let client = Client::new(&graph.engine, graph.node(self.top));
                    self.running = Some((graph, client));
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::InUse => {
                    drop(graph);
                    self.world.drop_tasks();
                    if attempt == OPEN_TRIES / 2 {
                        self.disks.iter().for_each(|disk| disk.release());
                    }
                    self.pass(OPEN_PAUSE)?;
                }
                Err(error) => return Err(Failure(format!("a graph comes up again: {error}"))),
            }
        }
        Err(Failure("a graph comes up again: its disks stay in use".to_owned()))
    }

    /// Nothing goes wrong any more. A disk that refused service is taken back by a restart.
    fn heal(&mut self) -> Result<(), Failure> {
        for disk in &self.disks {
            disk.set_faults(Default::default());
            disk.release();
        }
        self.finish()?;
        if self.plan.may_fail { self.kill() } else { Ok(()) }
    }

    /// Nobody holds anything when all is quiet.
    fn settle(&self) -> Result<(), Failure> {
        self.pass(Duration::from_secs(60))?;
        let (graph, client) = self.running.as_ref().expect("it runs");
        let used = self.world.env().pool().used_bytes();
        let (open, in_flight) = (client.open(), graph.engine.in_flight());
        if used > 0 || open > 0 || in_flight > 0 {
            let words = format!("{used} bytes, {open} calls and {in_flight} requests are left");
            return Err(Failure(format!("buffers and slots come back: {words}")));
        }
        Ok(())
    }
}

fn assembly(world: &SimWorld, fuse: bool, start: u64) -> Assembly {
    let order = Stream::new(world.seed(), "order", start);
    Assembly::new(&world.env(), kinds::REGISTRY, fuse, order)
}
