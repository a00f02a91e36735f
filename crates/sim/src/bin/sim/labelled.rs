//! Mirrors over labelled disks, through the graph's own way of opening them: power cuts and kills at
//! any moment, also while the graph comes up, and between two lives whatever hands can do to disks.
//! Whatever happens, nobody reads what is stale.

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

/// In virtual time: longer than any work takes that takes an end.
const LIMIT: Duration = Duration::from_secs(3600);

/// How often and how long a start waits for a disk that a dead process still writes to.
const OPEN_TRIES: u32 = 40;
const OPEN_PAUSE: Duration = Duration::from_millis(250);

/// Bytes of a disk beyond its data.
const LABEL_BYTES: u64 = 2 * meta::AREA_BYTES;
const DATA_BYTES: u64 = 64 << 10;

const IN_SYNC: &str = "in sync";

/// What a mirror says whose member came in sync so late that it is not durable.
const NOBODY: &str = "no member that has every write";
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

/// What hands do while nothing runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hand {
    Nothing,
    Swap,
    TakeAway,
    OldImage,
    Twin,
    Apart,
    Elsewhere,
}

const HANDS: [Hand; 8] = [
    Hand::Nothing,
    Hand::Nothing,
    Hand::Swap,
    Hand::TakeAway,
    Hand::OldImage,
    Hand::Twin,
    Hand::Apart,
    Hand::Elsewhere,
];

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
    /// Whether all labels may say that it was closed in order.
    closed: bool,
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
        kinds: vec!["mirror"],
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
            disks,
            plugged: (0..count).map(Some).collect(),
            images,
            tally: Rc::default(),
            starts: 0,
            running: None,
            in_sync: vec![0],
            closed: true,
        };
        trial.up(Ask::default())?;
        trial.images = trial.disks.iter().map(|disk| disk.image()).collect();
        Ok(trial)
    }

    fn text(&self, trust: Option<usize>) -> String {
        let all = 0..self.disks.len();
        let disks: String = all
            .clone()
            .map(|n| format!("d{n} = {{ path = \"{}\", label = true }}\n", path(n)))
            .collect();
        let on: Vec<_> = all.map(|n| format!("\"d{n}\"")).collect();
        let trust = trust.map(|n| format!(", trust = \"d{n}\"")).unwrap_or_default();
        format!(
            "name = \"g\"\n[disk]\n{disks}[device]\nm = {{ kind = \"mirror\", on = [{}]{trust} }}\n\
             [export]\nvol = {{ on = \"m\" }}\n",
            on.join(", ")
        )
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
            let text = self.text(ask.trust);
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
                    self.closed = false;
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
        match self.start(ask, LIMIT)? {
            Start::Up => {}
            Start::Refused(_, words) => {
                return Err(wrong(format!("a labelled graph comes up again: {words}")));
            }
            Start::Unfinished => return Err(wrong("a labelled graph comes up in time")),
        }
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
                let member = format!("d{any}");
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
        // A member that failed may not have the mark, or have it all the same.
        let _ = self.world.block_on(running.labels.close())?;
        self.closed = true;
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

    /// While nothing runs, hands do something; then it starts again, now and then at the second try.
    fn between(&mut self) -> Result<(), Failure> {
        self.settle()?;
        let hand = self.draw.pick(&HANDS);
        match hand {
            Hand::Nothing => {}
            Hand::Swap => self.swap(),
            Hand::TakeAway => return self.without(),
            Hand::OldImage => return self.old_image(),
            Hand::Twin => self.twin()?,
            Hand::Apart => return self.apart(),
            Hand::Elsewhere => self.elsewhere()?,
        }
        self.interrupted(Ask::default())?;
        self.up(Ask::default())
    }

    /// What a dead process had begun has ended: a disk is not moved before.
    fn settle(&self) -> Result<(), Failure> {
        Ok(self.world.run(self.world.env().now().after(Duration::from_secs(5)))?)
    }

    /// A start that does not come to its end.
    fn interrupted(&mut self, ask: Ask) -> Result<(), Failure> {
        while self.draw.below(3) == 0 {
            let limit = Duration::from_nanos(self.draw.within(1_000, 6_000_000));
            match self.start(ask, limit)? {
                Start::Up | Start::Unfinished => {}
                Start::Refused(None, words) if ask.degraded && words.contains(NOBODY) => {
                    return Ok(());
                }
                Start::Refused(_, words) => {
                    return Err(wrong(format!("a labelled graph comes up again: {words}")));
                }
            }
            let before = self.in_sync.clone();
            if self.draw.below(2) == 0 {
                self.power_cut()?
            } else {
                self.kill()?
            }
            self.in_sync.retain(|n| before.contains(n));
            if self.in_sync.is_empty() {
                self.in_sync = before;
            }
            self.settle()?;
        }
        Ok(())
    }

    fn plug(&mut self, place: usize, disk: Option<usize>) {
        self.plugged[place] = disk;
        match disk {
            Some(n) => self.world.plug(path(place), &self.disks[n]),
            None => self.world.unplug(path(place)),
        }
    }

    fn swap(&mut self) {
        let one = self.draw.below(self.disks.len() as u64) as usize;
        let two = (one + 1) % self.disks.len();
        let (a, b) = (self.plugged[one], self.plugged[two]);
        self.plug(one, b);
        self.plug(two, a);
        self.world.counters().add(Count::Swapped);
    }

    /// All disks are there, each in its place or in another's.
    fn put_all_back(&mut self) {
        for n in 0..self.disks.len() {
            self.plug(n, Some(n));
        }
    }

    /// One that the others can stand in for is away, for one life.
    fn without(&mut self) -> Result<(), Failure> {
        self.put_all_back();
        let any = self.draw.below(self.disks.len() as u64) as usize;
        let spare = self.in_sync.iter().any(|n| *n != any);
        if spare {
            self.plug(any, None);
            match self.start(Ask::default(), LIMIT)? {
                Start::Refused(Some(Why::Degraded), _) => {}
                Start::Refused(_, words) => {
                    return Err(wrong(format!("it says what is missing: {words}")));
                }
                _ => return Err(wrong("nothing comes up with less unasked")),
            }
            let ask = Ask { degraded: true, ..Ask::default() };
            self.interrupted(ask)?;
            match self.start(ask, LIMIT)? {
                Start::Up => {
                    self.world.counters().add(Count::Without);
                    let worker = self.worker(self.starts << 48);
                    self.world.block_on(worker.verify())?;
                    self.judge()?;
                    self.life()?;
                    self.settle()?;
                }
                // What the last life knew was not durable yet, and it says so.
                Start::Refused(None, words) if words.contains(NOBODY) => {}
                Start::Refused(_, words) => return Err(wrong(format!("it comes up: {words}"))),
                Start::Unfinished => return Err(wrong("it comes up in time")),
            }
        }
        self.put_all_back();
        self.up(Ask::default())
    }

    /// Somebody puts an older image of a member back: never is it taken for the newest.
    fn old_image(&mut self) -> Result<(), Failure> {
        let any = self.draw.below(self.disks.len() as u64) as usize;
        let other = self.in_sync.iter().copied().find(|n| *n != any);
        let Some(other) = other else { return self.up(Ask::default()) };
        self.disks[any].put_back(&self.images[any]);
        self.world.counters().add(Count::OldImage);
        match self.start(Ask::default(), LIMIT)? {
            Start::Up => {
                let worker = self.worker(self.starts << 48);
                self.world.block_on(worker.verify())?;
                self.judge()
            }
            // From a time when it knew better of the others.
            Start::Refused(None, words) if words.contains("written apart") => {
                self.up(Ask { trust: Some(other), ..Ask::default() })
            }
            Start::Refused(_, words) => Err(wrong(format!("it comes up or says why: {words}"))),
            Start::Unfinished => Err(wrong("it comes up in time")),
        }
    }

    /// Two disks with one label: neither is used.
    fn twin(&mut self) -> Result<(), Failure> {
        let one = self.draw.below(self.disks.len() as u64) as usize;
        let two = (one + 1) % self.disks.len();
        let own = self.disks[two].image();
        self.disks[two].put_back(&self.disks[one].image());
        match self.start(Ask { degraded: true, ..Ask::default() }, LIMIT)? {
            Start::Refused(Some(Why::Twin), _) => {
                self.world.counters().add(Count::TwinRefused);
            }
            Start::Refused(_, words) => {
                return Err(wrong(format!("two disks with one label are told: {words}")));
            }
            _ => return Err(wrong("two disks with one label are refused")),
        }
        self.disks[two].put_back(&own);
        Ok(())
    }

    /// Two halves go on, each without the other; put together, they are refused.
    fn apart(&mut self) -> Result<(), Failure> {
        self.put_all_back();
        if self.in_sync.len() < 2 {
            return self.up(Ask::default());
        }
        let (ours, theirs) = (self.in_sync[0], self.in_sync[1]);
        let degraded = Ask { degraded: true, ..Ask::default() };
        // Theirs goes on first, and writes what nobody here asked for.
        self.only(theirs);
        match self.start(degraded, LIMIT)? {
            Start::Up => {}
            Start::Refused(None, _) => {
                // What the last life knew of it was not durable yet.
                self.put_all_back();
                return self.up(Ask::default());
            }
            _ => return Err(wrong("a member in sync comes up alone")),
        }
        let running = self.running.as_ref().expect("it runs");
        let range = ByteRange::new(0, 4096).expect("some bytes");
        let data = self.world.env().buf(4096).map_err(|error| wrong(error.to_string()))?;
        data.write().fill(0xa5);
        let write = running.client.send(Op::Write { range, data, fua: true });
        let written = self.world.block_on(write)?;
        written.result.map_err(|error| wrong(error.to_string()))?;
        self.tally.killed();
        self.world.kill();
        if let Some(running) = self.running.take() {
            running.engine.abandon();
        }
        self.settle()?;
        self.only(ours);
        match self.start(degraded, LIMIT)? {
            Start::Up => {}
            Start::Refused(None, _) => {
                self.put_all_back();
                // Then theirs is all there is for them; take the word of a person for ours.
                return self.up(Ask { trust: Some(ours), ..Ask::default() });
            }
            _ => return Err(wrong("a member in sync comes up alone")),
        }
        self.life()?;
        self.settle()?;
        self.put_all_back();
        match self.start(Ask::default(), LIMIT)? {
            Start::Refused(None, words) if words.contains("written apart") => {
                self.world.counters().add(Count::ApartRefused);
            }
            Start::Refused(_, words) => {
                return Err(wrong(format!("halves that were written apart are told: {words}")));
            }
            _ => return Err(wrong("halves that were written apart are refused")),
        }
        self.up(Ask { trust: Some(ours), ..Ask::default() })
    }

    fn only(&mut self, disk: usize) {
        for n in 0..self.disks.len() {
            self.plug(n, (n == disk).then_some(n));
        }
    }

    /// What a machine has open, no other one opens unasked.
    fn elsewhere(&mut self) -> Result<(), Failure> {
        if self.closed || self.plugged.contains(&None) {
            return Ok(());
        }
        match self.start(Ask { elsewhere: true, ..Ask::default() }, LIMIT)? {
            Start::Refused(Some(Why::Elsewhere), _) => {
                self.world.counters().add(Count::ForeignRefused);
                Ok(())
            }
            Start::Refused(_, words) => Err(wrong(format!("another machine's mark: {words}"))),
            _ => Err(wrong("disks that another machine has open are refused")),
        }
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
        let data = ByteRange::new(meta::DATA_START, DATA_BYTES).expect("some bytes");
        let first = self.disks[self.in_sync_now()?[0]].peek(data);
        for n in self.in_sync_now()? {
            self.world.counters().add(Count::Compared);
            if self.disks[n].peek(data) != first {
                return Err(wrong(format!("members in sync are alike: d{n} is not")));
            }
        }
        let worker = self.worker(self.starts << 48 | 1);
        self.world.block_on(worker.verify())?;
        self.judge()
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
