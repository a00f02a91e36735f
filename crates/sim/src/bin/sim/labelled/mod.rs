//! Graphs over labelled disks, through the graph's own way of opening them: power cuts and kills at
//! any moment, also while the graph comes up, and between two lives whatever hands can do to disks.
//! Whatever happens, nobody reads what is stale.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | lives of the process |
//! | `shape.rs` | the graph: a mirror, and what stands above and below it |
//! | `hands.rs` | what becomes of disks between two lives |
//! | `labels.rs` | what labels say, read from outside |

use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Control, ErrorKind, Op, Report as DeviceReport};
use graph::Graph;
use graph::engine::Engine;
use graph::labels::{Labels, Opening, Survey, Why};
use graph::spec::Spec;
use meta::Machine;
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{
    Client, Count, Counters, CutPolicy, DiskConfig, Door, Faults, Image, Model, Profile, SimDisk,
    SimWorld,
};

use crate::trial::{Failure, Report};

mod hands;
mod labels;
mod shape;

pub use shape::KINDS;
use shape::Shape;

/// In virtual time: longer than any work takes that takes an end.
const LIMIT: Duration = Duration::from_secs(3600);

/// How often and how long a start waits for a disk that a dead process still writes to.
const OPEN_TRIES: u32 = 40;
const OPEN_PAUSE: Duration = Duration::from_millis(250);

/// Bytes of a disk beyond its data.
const LABEL_BYTES: u64 = 2 * meta::AREA_BYTES;
const DATA_BYTES: u64 = 64 << 10;

const IN_SYNC: &str = "in sync";

const HERE: [u8; 16] = [1; 16];
const THERE: [u8; 16] = [2; 16];

/// How a life of the process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stop,
    PowerAfter(Duration),
    KillAfter(Duration),
    /// At the moment when a member has failed and hardly anybody knows.
    KillAtFailure,
}

/// How a start is asked for.
#[derive(Clone, Copy, Default)]
struct Ask {
    degraded: bool,
    elsewhere: bool,
    trust: Option<usize>,
}

/// What came of a start.
enum Start {
    Up,
    /// The first reason, if labels say so; and the words.
    Refused(Option<Why>, String),
    /// It was not up in the time that it had.
    Unfinished,
}

struct Trial {
    seed: u64,
    world: SimWorld,
    draw: Stream,
    shape: Shape,
    disks: Vec<Rc<SimDisk>>,
    /// Which disk is plugged in where; `None`: it is away.
    plugged: Vec<Option<usize>>,
    /// An image of each disk from some time when nothing ran.
    images: Vec<Image>,
    model: Rc<Model>,
    tally: Rc<Tally>,
    starts: u64,
    running: Option<Running>,
    /// Who was in sync when the process ended.
    in_sync: Vec<usize>,
}

/// One life of the process.
struct Running {
    engine: Engine,
    graph: Rc<Graph>,
    labels: Labels,
    client: Client,
}

/// Runs a seed.
///
/// # Errors
/// The first promise that is broken.
pub fn run(seed: u64) -> Result<Report, Failure> {
    let mut trial = Trial::new(seed)?;
    for _ in 0..trial.draw.within(2, 6) {
        trial.life()?;
        trial.between()?;
    }
    trial.all_back()?;
    let counters = Counters::default();
    counters.absorb(trial.world.counters());
    Ok(Report {
        counters,
        kinds: trial.shape.kinds(),
        requests: (trial.tally.done.get(), trial.tally.failed.get()),
        trace: trial.world.trace(),
    })
}

fn path(n: usize) -> String {
    format!("/disk{n}")
}

fn wrong(words: impl Into<String>) -> Failure {
    Failure::new(words)
}

impl Trial {
    fn new(seed: u64) -> Result<Self, Failure> {
        let world = SimWorld::new(seed);
        let draw = Stream::new(seed, "labelled", 0);
        let count = draw.within(2, 3) as usize;
        let shape = Shape::draw(&draw);
        let disk = |n: usize| {
            let profile = draw.pick(&[Profile::Native512, Profile::Native512, Profile::Native4k]);
            let config = DiskConfig {
                most_ns: draw.within(10_000, 1_000_000),
                discard_zeroes: draw.below(2) == 0,
                destage: draw.pick(&[0, 100_000, 1_000_000]),
                ..DiskConfig::new(LABEL_BYTES + DATA_BYTES, profile)
            };
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(path(n), &disk);
            disk
        };
        let disks: Vec<_> = (0..count).map(disk).collect();
        let images = disks.iter().map(|disk| disk.image()).collect();
        let mut trial = Self {
            seed,
            model: Rc::new(Model::new(seed, DATA_BYTES)),
            world,
            draw,
            shape,
            disks,
            plugged: (0..count).map(Some).collect(),
            images,
            tally: Rc::default(),
            starts: 0,
            running: None,
            in_sync: vec![0],
        };
        trial.begin(Ask::default())?;
        // Under an encryption blank bytes are junk, and have to stay so.
        trial.world.block_on(trial.worker(0).learn())?;
        trial.check()?;
        trial.images = trial.disks.iter().map(|disk| disk.image()).collect();
        Ok(trial)
    }

    /// Starts the process, however long disks of the one before are busy. `limit`: for all of it.
    fn start(&mut self, ask: Ask, limit: Duration) -> Result<Start, Failure> {
        for _ in 0..OPEN_TRIES {
            self.starts += 1;
            let env = self.world.env();
            let engine = Engine::new(env.pool());
            let order = Stream::new(self.seed, "order", self.starts);
            engine.shuffle(move |ready| order.below(ready as u64) as usize);
            env.spawn("engine", engine.clone().drive());
            let text = self.shape.text(self.disks.len(), ask.trust);
            let id = if ask.elsewhere { THERE } else { HERE };
            let opening = Opening {
                machine: Machine::new("host", id),
                degraded: ask.degraded,
                wipe: Vec::new(),
                take: false,
                changes: false,
            };
            let (world, opened) = (self.world.env(), engine.clone());
            let opening = async move { open(&text, &world, &opened, opening).await };
            let up = self.world.block_on(async move { env.within(limit, opening).await })?;
            match up {
                None => {
                    engine.abandon();
                    return Ok(Start::Unfinished);
                }
                Some(Ok((graph, labels))) => {
                    self.world.counters().add(Count::Labelled);
                    let client = Client::new(&engine, graph.exports()[0].node);
                    self.running = Some(Running { engine, graph: Rc::new(graph), labels, client });
                    return Ok(Start::Up);
                }
                Some(Err((why, words))) => {
                    engine.abandon();
                    self.world.drop_tasks();
                    if why != Some(Why::Failed(ErrorKind::InUse)) {
                        return Ok(Start::Refused(why, words));
                    }
                    let later = self.world.env().now().after(OPEN_PAUSE);
                    self.world.run(later)?;
                }
            }
        }
        Err(wrong("a labelled graph comes up again: its disks stay in use"))
    }

    /// Starts the process; it must come up, and show what it must show.
    fn up(&mut self, ask: Ask) -> Result<(), Failure> {
        self.begin(ask)?;
        self.check()
    }

    /// Starts the process; it must come up.
    fn begin(&mut self, ask: Ask) -> Result<(), Failure> {
        match self.start(ask, LIMIT)? {
            Start::Up => {}
            Start::Refused(_, words) => {
                return Err(wrong(format!("a labelled graph comes up again: {words}")));
            }
            Start::Unfinished => return Err(wrong("a labelled graph comes up in time")),
        }
        Ok(())
    }

    /// What can be read now is what must be there.
    fn check(&self) -> Result<(), Failure> {
        let worker = self.worker(self.starts << 48);
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    fn worker(&self, number: u64) -> Worker {
        let running = self.running.as_ref().expect("it runs");
        Worker {
            env: self.world.env(),
            client: Door::Graph(running.client.clone()),
            model: self.model.clone(),
            tally: self.tally.clone(),
            draw: Stream::new(self.seed, "worker", number),
            mix: Mix::ALL,
        }
    }

    fn judge(&self) -> Result<(), Failure> {
        if let Some(broken) = &*self.tally.wrong.borrow() {
            return Err(wrong(broken.to_string()));
        }
        match &*self.tally.error.borrow() {
            Some(error) => Err(wrong(format!("what a mirror survives fails no request: {error}"))),
            None => Ok(()),
        }
    }

    fn report(&self) -> Result<DeviceReport, Failure> {
        let graph = &self.running.as_ref().expect("it runs").graph;
        let member = graph.member("m").expect("the spec has it");
        graph.control(member, &Control::Report).map_err(|error| wrong(error.to_string()))
    }

    fn in_sync_now(&self) -> Result<Vec<usize>, Failure> {
        let members = self.report()?.members;
        Ok((0..members.len()).filter(|n| members[*n].state == IN_SYNC).collect())
    }

    /// Requests, with one member that fails, until the process ends one way or another.
    fn life(&mut self) -> Result<(), Failure> {
        let soon = Duration::from_nanos(self.draw.within(1_000, 8_000_000));
        let end = match self.draw.below(8) {
            0 | 1 => End::Stop,
            2..=4 => End::PowerAfter(soon),
            5 => End::KillAfter(soon),
            _ => End::KillAtFailure,
        };
        self.trouble(end)?;
        let clients = self.draw.within(1, 5);
        for n in 0..clients {
            self.worker(self.starts << 32 | n).start(self.draw.within(5, 30));
        }
        match end {
            End::Stop => {
                self.finish()?;
                self.calm();
                self.stop()?;
            }
            End::PowerAfter(time) => {
                self.world.run(self.world.env().now().after(time))?;
                self.judge()?;
                self.power_cut()?;
            }
            End::KillAfter(time) => {
                self.world.run(self.world.env().now().after(time))?;
                self.kill()?;
            }
            End::KillAtFailure => {
                self.until_failed(soon)?;
                self.kill()?;
            }
        }
        self.calm();
        for (disk, image) in self.disks.iter().zip(&mut self.images) {
            if self.draw.below(4) == 0 {
                *image = disk.image();
            }
        }
        Ok(())
    }

    /// One member that another can stand in for has errors, or is taken out by command.
    fn trouble(&mut self, end: End) -> Result<(), Failure> {
        let in_sync = self.in_sync_now()?;
        let any = self.draw.below(self.disks.len() as u64) as usize;
        if in_sync == [any] || self.plugged.contains(&None) {
            return Ok(());
        }
        let none = Faults::default();
        let rate = self.draw.within(50_000, 500_000) as u32;
        let faults = match (self.draw.below(4), end) {
            (0, _) => {
                let running = self.running.as_ref().expect("it runs");
                let mirror = running.graph.member("m").expect("the spec has it");
                let member = self.shape.member(any);
                // It may be the last one, or out already.
                if running.graph.control(mirror, &Control::Fail { member }).is_ok() {
                    self.world.counters().add(Count::MemberFailed);
                }
                none
            }
            // What a failed flush drops is lost before anybody knows: a kill then is one fault more
            // than a mirror survives.
            (1, End::Stop) => Faults { flush_error: rate, ..none },
            (1 | 2, _) => Faults { write_error: rate, ..none },
            _ => none,
        };
        // Its label follows it, wherever it is plugged in.
        self.disks[any].set_faults(faults);
        Ok(())
    }

    fn calm(&self) {
        self.disks.iter().for_each(|disk| disk.set_faults(Faults::default()));
    }

    fn finish(&self) -> Result<(), Failure> {
        let (env, tally) = (self.world.env(), self.tally.clone());
        let done = self.world.block_on(async move { env.within(LIMIT, tally.idle()).await })?;
        if done.is_none() {
            return Err(wrong(format!("everything is done within {LIMIT:?}: it is not")));
        }
        self.judge()
    }

    /// Until a member has failed, in steps so short that little else happens; or for so long.
    fn until_failed(&self, limit: Duration) -> Result<(), Failure> {
        let step = Duration::from_nanos(self.draw.within(5_000, 100_000));
        let until = self.world.env().now().after(limit.max(step * 20));
        while self.world.env().now() < until {
            if self.report()?.members.iter().any(|member| member.state == "failed") {
                self.world.counters().add(Count::KillRetired);
                // What it missed may be answered by now, or not.
                let more = Duration::from_nanos(self.draw.below(1_000_000));
                return Ok(self.world.run(self.world.env().now().after(more))?);
            }
            self.world.run(self.world.env().now().after(step))?;
        }
        Ok(())
    }

    /// Flushes and closes, as the server does.
    fn stop(&mut self) -> Result<(), Failure> {
        self.in_sync = self.in_sync_now()?;
        let running = self.running.take().expect("it runs");
        let flushed = self.world.block_on(running.client.send(Op::Flush))?;
        flushed.result.map_err(|error| wrong(format!("a calm graph can be flushed: {error}")))?;
        let closed = self.world.block_on(running.labels.close())?;
        self.closed_in_order(closed)?;
        self.tally.killed();
        self.world.drop_tasks();
        running.engine.abandon();
        self.model.restarted();
        Ok(())
    }

    fn power_cut(&mut self) -> Result<(), Failure> {
        if self.running.is_some() {
            self.in_sync = self.in_sync_now()?;
        }
        self.tally.killed();
        self.world.drop_tasks();
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        let together = self.draw.pick(&CutPolicy::ALL);
        for disk in &self.disks {
            let own = self.draw.pick(&CutPolicy::ALL);
            disk.power_cut(if self.draw.below(2) == 0 { together } else { own });
        }
        self.model.power_cut();
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failure> {
        if self.running.is_some() {
            self.in_sync = self.in_sync_now()?;
        }
        self.tally.killed();
        self.world.kill();
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        self.model.restarted();
        Ok(())
    }

    /// What a dead process had begun has ended: a disk is not moved before.
    fn settle(&self) -> Result<(), Failure> {
        Ok(self.world.run(self.world.env().now().after(Duration::from_secs(5)))?)
    }

    /// In the end all disks are there and well: all come back in sync, and are alike.
    fn all_back(&mut self) -> Result<(), Failure> {
        self.finish()?;
        for _ in 0..100 {
            self.world.run(self.world.env().now().after(Duration::from_secs(1)))?;
            if self.in_sync_now()?.len() == self.disks.len() {
                break;
            }
            let running = self.running.as_ref().expect("it runs");
            let mirror = running.graph.member("m").expect("the spec has it");
            // It may be under way.
            let _ = running.graph.control(mirror, &Control::Resync { member: None });
        }
        let report = self.report()?;
        let away = |n: usize| report.members[n].detail == "not there";
        if (0..self.disks.len()).any(|n| report.members[n].state != IN_SYNC && !away(n)) {
            return Err(wrong(format!("redundancy is restored: {report:?}")));
        }
        self.alike()?;
        let worker = self.worker(self.starts << 48 | 1);
        self.world.block_on(worker.verify())?;
        self.judge()
    }

    /// Members in sync hold the same.
    fn alike(&self) -> Result<(), Failure> {
        let data = ByteRange::new(meta::DATA_START, DATA_BYTES).expect("some bytes");
        let first = self.disks[self.in_sync_now()?[0]].peek(data);
        for n in self.in_sync_now()? {
            self.world.counters().add(Count::Compared);
            if self.disks[n].peek(data) != first {
                return Err(wrong(format!("members in sync are alike: d{n} is not")));
            }
        }
        Ok(())
    }
}

/// Opens the graph of a text as `serve` does. A refusal comes with its reason, if labels gave it.
async fn open(
    text: &str,
    env: &block::Env,
    engine: &Engine,
    opening: Opening,
) -> Result<(Graph, Labels), (Option<Why>, String)> {
    let refused = |refusals: &[graph::labels::Refusal]| {
        let words: Vec<_> = refusals.iter().map(ToString::to_string).collect();
        (refusals.first().map(|first| first.why), words.join("; "))
    };
    let spec = Spec::parse(text, "g.toml", &|_| None);
    let survey = Survey::take(&spec, kinds::REGISTRY, env, engine, opening, false, None).await;
    if !survey.refusals().is_empty() {
        return Err(refused(survey.refusals()));
    }
    let planned = spec.plan_over(kinds::REGISTRY, env, &survey.facts()).await;
    let planned = planned.map_err(|faults| (None, faults.to_string()))?;
    let labels = survey.begin(&planned).await.map_err(|refusals| refused(&refusals))?;
    match Graph::build_on(&planned, Some(&labels), engine, env).await {
        Ok(graph) => Ok((graph, labels)),
        Err(error) => {
            let words = error.to_string();
            // A label that keeps its mark costs a copy, and no more.
            let _ = labels.give_up().await;
            Err((None, words))
        }
    }
}
