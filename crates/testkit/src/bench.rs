//! One run of the battery: the device under test, its simulated world, lowers and clients, and the model that checks
//! the replies.

use std::rc::Rc;
use std::time::Duration;

use block::env::{CacheMode, Open};
use block::{ByteRange, Error, ErrorKind, Health, Needs, Op, Report};
use kind::Registry;
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{
    Assembly, Client, CutPolicy, DiskConfig, Door, Model, PartId, Profile, SimDisk, SimWorld, Stuck,
};

use crate::kept::{Shelf, States};
use crate::refusal::{Broken, Refusal};
use crate::strict::{Strict, Watch};
use crate::subject::{LowerSpec, Subject, disk_path};

/// Longest virtual time that any operation in flight takes.
const SETTLE: Duration = Duration::from_secs(120);

/// Virtual time between two checks whether an error was injected.
const INJECTED_STEP: Duration = Duration::from_micros(20);

/// Largest number of such checks: together longer than the clients send requests.
const INJECTED_STEPS: u32 = 1000;

/// A lower of the device under test: its simulated disk, and the controls of the strict lower above the disk.
pub(crate) struct Member {
    pub disk: Rc<SimDisk>,
    pub watch: Rc<Watch>,
}

/// The end of the process of a device under test.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Close,
    Kill,
    PowerCut,
}

pub(crate) struct Bench<'s> {
    pub world: SimWorld,
    pub members: Vec<Member>,
    pub model: Rc<Model>,
    pub tally: Rc<Tally>,
    subject: &'s Subject,
    /// The labels of the lowers' disks.
    shelf: Rc<Shelf>,
    fuse: bool,
    starts: u64,
    running: Option<Running>,
    /// The report of the device under test at the end of its last run.
    reported: Report,
}

/// The device under test from one start to its end.
struct Running {
    graph: Assembly,
    top: PartId,
    client: Client,
    /// Bytes of the buffer pool that the devices hold even without requests.
    kept_bytes: usize,
}

impl<'s> Bench<'s> {
    pub fn new(subject: &'s Subject, seed: u64, fuse: bool) -> Result<Self, Refusal> {
        let world = SimWorld::new(seed);
        let draw = Stream::new(seed, "members", 0);
        let numbered = subject.lowers.iter().enumerate();
        let members: Vec<_> = numbered.map(|(n, spec)| member(&world, n, *spec, &draw)).collect();
        let watches = members.iter().map(|member| member.watch.clone()).collect();
        let shelf = Shelf::strict(&world.env(), Stream::new(seed, "labels", 0), watches);
        shelf.precede_plans();
        let mut bench = Self {
            world,
            members,
            // Replaced below, once the size is known.
            model: Rc::new(Model::new(seed, 0)),
            tally: Rc::default(),
            subject,
            shelf,
            fuse,
            starts: 0,
            running: None,
            reported: Report::default(),
        };
        bench.start().map_err(|error| Refusal::new(Broken::Builds, error))?;
        bench.model = Rc::new(Model::new(seed, bench.running().client.info().size));
        bench.learn()?;
        Ok(bench)
    }

    /// Gives the bytes that the device returns before the first write to the model. Under encryption, blank blocks read
    /// as junk, which must not change either.
    fn learn(&self) -> Result<(), Refusal> {
        self.world.block_on(self.worker(0, Mix::ALL).learn()).map(drop).map_err(stuck)
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the device runs between its start and its close")
    }

    /// Builds the device under test over its lowers, as at a start of the process.
    fn start(&mut self) -> Result<(), Error> {
        self.starts += 1;
        let (env, seed) = (self.world.env(), self.world.seed());
        let order = Stream::new(seed, "order", self.starts);
        let graph = Assembly::new(&env, self.subject.registry, self.fuse, order);
        let mut graph = graph.in_world(&self.world);
        if self.subject.labelled {
            graph = graph.on_labels(self.shelf.clone());
        }
        let mut lowers = Vec::new();
        let opened = if self.subject.is_disk { &[] } else { &self.members[..] };
        for (n, member) in opened.iter().enumerate() {
            let draw = Stream::new(seed, "strict", self.starts << 32 | n as u64);
            let most = self.subject.lowers[n].max_transfer;
            let copies = Stream::new(seed, "copies of lowers", n as u64).within(1, 2) as u32;
            let storage = env.open(&open(n))?;
            let strict = Strict::new(&env, storage, (most, copies), &member.watch, draw);
            lowers.push(graph.adopt(&format!("lower{n}"), Rc::new(strict), Needs::LEAF, &[])?);
        }
        let top = (self.subject.build)(&mut graph, &lowers)?;
        self.shelf.close(false);
        let client = Client::new(&graph.engine, graph.node(top));
        let kept_bytes = env.pool().used_bytes();
        self.running = Some(Running { graph, top, client, kept_bytes });
        Ok(())
    }

    pub fn client(&self) -> Client {
        self.running().client.clone()
    }

    /// Returns the graph with the device under test, and the number of the device in the graph.
    pub fn top(&self) -> (&Assembly, PartId) {
        let running = self.running();
        (&running.graph, running.top)
    }

    /// Returns the subject's own arguments for commands, as JSON.
    pub fn arguments(&self) -> &'s [&'static str] {
        self.subject.arguments
    }

    /// Returns the kinds from which the subject is built.
    pub fn registry(&self) -> Registry {
        self.subject.registry
    }

    /// Whether a kind of the device under test keeps persistent objects on its lowers.
    pub fn keeps_objects(&self) -> bool {
        self.running().graph.keeps_objects()
    }

    /// Returns the facts about the device under test (size, block size, limits).
    pub fn facts(&self) -> &block::Info {
        let running = self.running();
        running.graph.info(running.top)
    }

    fn worker(&self, number: u64, mix: Mix) -> Worker {
        Worker {
            env: self.world.env(),
            client: Door::Graph(self.client()),
            model: self.model.clone(),
            tally: self.tally.clone(),
            draw: Stream::new(self.world.seed(), "worker", self.starts << 32 | number),
            mix,
        }
    }

    /// Starts `clients` clients that send `requests` requests each, without waiting for them.
    pub fn begin(&self, clients: u64, requests: u64, mix: Mix) {
        (0..clients).for_each(|n| self.worker(n, mix).start(requests));
    }

    /// Waits until all clients have their replies, and fails if a rule was broken.
    pub fn finish(&self) -> Result<(), Refusal> {
        self.world.block_on(self.tally.idle()).map_err(stuck)?;
        self.judge()
    }

    /// Waits until `more` further flushes of clients have succeeded, or all clients have their replies.
    pub fn flushes(&self, more: u64) -> Result<(), Refusal> {
        let flushes = self.tally.flushes.get() + more;
        self.world.block_on(self.tally.until_flushes(flushes)).map_err(stuck)
    }

    /// Lets virtual time pass, in which devices and clients run.
    pub fn pass(&self, time: Duration) -> Result<(), Refusal> {
        self.world.run(self.world.env().now().after(time)).map_err(stuck)
    }

    /// Reads the whole device through a client, and compares the bytes with the model.
    pub fn verify(&self) -> Result<(), Refusal> {
        let worker = self.worker(u64::from(u32::MAX), Mix::ALL);
        self.world.block_on(worker.verify()).map_err(stuck)?;
        self.judge()
    }

    /// Fails with the first rule that the device has broken so far.
    pub fn judge(&self) -> Result<(), Refusal> {
        if let Some(wrong) = &*self.tally.wrong.borrow() {
            return Err(Refusal::new(Broken::Bytes(wrong.rule), &wrong.words));
        }
        for (n, member) in self.members.iter().enumerate() {
            if let Some((broken, words)) = &*member.watch.offence.borrow() {
                return Err(Refusal::new(*broken, format_args!("lower {n}: {words}")));
            }
        }
        let injected: u64 = self.members.iter().map(|member| member.watch.injected.get()).sum();
        if let (Some(error), 0) = (&*self.tally.error.borrow(), injected) {
            return Err(Refusal::new(
                Broken::Errors,
                format_args!("a request failed although no error was injected: {error}"),
            ));
        }
        Ok(())
    }

    /// Checks that no client got an error, if the device has redundancy for the failed lower.
    pub fn masked(&self) -> Result<(), Refusal> {
        self.judge()?;
        if self.redundancy() > 0
            && let Some(error) = &*self.tally.error.borrow()
        {
            let words =
                format!("a request failed although redundancy masks the failed lower: {error}");
            return Err(Refusal::new(Broken::Errors, words));
        }
        Ok(())
    }

    /// Waits until all operations have ended. Checks that all requests were answered and all buffers were returned.
    pub fn settle(&self) -> Result<(), Refusal> {
        self.pass(SETTLE)?;
        let running = self.running();
        let (open, in_flight) = (running.client.open(), running.graph.engine.in_flight());
        if open > 0 || in_flight > 0 {
            let words =
                format!("{open} requests got no answer, and {in_flight} are still in flight");
            return Err(Refusal::new(Broken::Completes, words));
        }
        let used = self.world.env().pool().used_bytes();
        if used > running.kept_bytes {
            let words =
                format!("the device did not return {} bytes of buffers", used - running.kept_bytes);
            return Err(Refusal::new(Broken::Returns, words));
        }
        self.judge()
    }

    /// Waits until the lower number `lower` has failed a request on purpose, but not longer than clients send requests.
    pub fn injected(&self, lower: usize) -> Result<(), Refusal> {
        let before = self.members[lower].watch.injected.get();
        for _ in 0..INJECTED_STEPS {
            if self.members[lower].watch.injected.get() > before {
                break;
            }
            self.pass(INJECTED_STEP)?;
        }
        Ok(())
    }

    /// Whether the device under test reports no failure. A failure in background work does not reach a client, so the
    /// health or the counter `failed` must show it.
    pub fn is_well(&self) -> bool {
        let report = self.report();
        report.health <= Health::Limited
            && !report.counters.iter().any(|(name, n)| *name == "failed" && *n > 0)
    }

    /// Returns the number of lowers that may fail at the same time without an error for clients.
    pub fn redundancy(&self) -> usize {
        self.subject.redundancy
    }

    /// Checks that all lowers' disks have the same bytes, if the device is a mirror.
    pub fn compare(&self) -> Result<(), Refusal> {
        if !self.subject.copies {
            return Ok(());
        }
        let size = self.subject.lowers.iter().map(|lower| lower.size).min().unwrap_or(0);
        let Some(range) = ByteRange::new(0, size) else { return Ok(()) };
        let first = self.members[0].disk.peek(range);
        for (n, member) in self.members.iter().enumerate().skip(1) {
            let other = member.disk.peek(range);
            if let Some(at) = (0..first.len()).find(|at| first[*at] != other[*at]) {
                let words = format!("lower 0 and lower {n} differ at byte {at}");
                return Err(Refusal::new(Broken::Copies, words));
            }
        }
        Ok(())
    }

    /// Ends the process of the device.
    fn stop(&mut self, end: End) -> Result<(), Refusal> {
        match end {
            End::Close => self.end(),
            End::Kill => self.die(),
            End::PowerCut => {
                self.lose_power();
                Ok(())
            }
        }
    }

    /// Cuts the power of all lowers' disks at the same moment, and starts the device again.
    pub fn power_cut(&mut self) -> Result<(), Refusal> {
        self.lose_power();
        self.start_again()
    }

    fn lose_power(&mut self) {
        let draw = Stream::new(self.world.seed(), "policy", self.starts);
        self.world.drop_tasks();
        self.ended();
        for member in &self.members {
            // The harshest policy is the most frequent.
            let any = draw.pick(&CutPolicy::ALL);
            let policy = if draw.below(2) == 0 { CutPolicy::DropAll } else { any };
            member.disk.power_cut(policy);
        }
        self.model.power_cut();
        self.tally.log.power_cut();
    }

    /// Flushes and closes the device in order, and starts it again in a new process.
    pub fn restart(&mut self) -> Result<(), Refusal> {
        self.close()?;
        self.start_again()
    }

    /// Waits for the clients, and flushes and closes the device in order.
    fn close(&mut self) -> Result<(), Refusal> {
        self.finish()?;
        let covered = self.tally.log.covered();
        let flushed = self.world.block_on(self.client().send(Op::Flush)).map_err(stuck)?;
        flushed.result.map_err(|error| Refusal::new(Broken::Errors, error))?;
        self.tally.log.flushed(covered);
        self.shelf.close(true);
        self.end()
    }

    /// Closes the device in order, and ends its process.
    fn end(&mut self) -> Result<(), Refusal> {
        let closes = |words: String| Err(Refusal::new(Broken::Closes, words));
        let closed = self.world.block_on(self.running().graph.close());
        closed.or_else(|stuck| closes(format!("the close does not end: {stuck}")))?;
        let calls = || self.members.iter().map(|member| member.watch.calls.get()).sum::<u64>();
        let (called, open) = (calls(), self.members.iter().map(|m| m.watch.in_flight.get()));
        let open: u64 = open.sum();
        self.pass(SETTLE)?;
        let later = calls() - called;
        if open > 0 || later > 0 {
            return closes(format!(
                "after its close {open} requests to lowers are in flight, and {later} follow"
            ));
        }
        self.world.drop_tasks();
        self.ended();
        self.model.restarted();
        Ok(())
    }

    /// Kills the process with the device, and starts the device in a new process when the disks are free.
    pub fn kill(&mut self) -> Result<(), Refusal> {
        self.die()?;
        self.start_again()
    }

    fn die(&mut self) -> Result<(), Refusal> {
        self.world.kill();
        self.ended();
        self.pass(SETTLE)?;
        self.model.restarted();
        Ok(())
    }

    /// Makes a live change: closes the device, builds it again as uncommitted, and after `meanwhile` commits the
    /// change, or undoes it if `taken_back`.
    pub fn change(&mut self, taken_back: bool, meanwhile: Duration) -> Result<(), Refusal> {
        self.close()?;
        self.start_uncommitted(meanwhile)?;
        if !taken_back {
            self.shelf.release();
            return self.keeps_promise();
        }
        self.take_back(End::Close)?;
        self.start_again()
    }

    /// Starts the device as a part of a live change, and lets the time `meanwhile` pass without a request and without
    /// the commit. Checks that the device changes no byte below.
    fn start_uncommitted(&mut self, meanwhile: Duration) -> Result<(), Refusal> {
        let before = self.changes();
        self.shelf.hold_back();
        self.start_or_refuse()?;
        self.pass(meanwhile)?;
        self.unchanged_since(before)
    }

    /// Undoes the live change: ends the device that is not committed. Checks that it has changed no byte below.
    fn take_back(&mut self, end: End) -> Result<(), Refusal> {
        let before = self.changes();
        // The discarded start does not count, and neither does its report.
        let reported = std::mem::take(&mut self.reported);
        self.stop(end)?;
        self.reported = reported;
        self.shelf.take_back();
        self.unchanged_since(before)
    }

    fn changes(&self) -> u64 {
        self.members.iter().map(|member| member.watch.changes.get()).sum()
    }

    fn unchanged_since(&self, before: u64) -> Result<(), Refusal> {
        match self.changes() - before {
            0 => Ok(()),
            n => Err(Refusal::new(Broken::Uncommitted, format_args!("{n} requests change bytes"))),
        }
    }

    /// Closes the device, and removes all states from the labels as if the disks were new. The disks' bytes remain.
    /// Returns the removed states.
    fn forget(&mut self) -> Result<States, Refusal> {
        self.close()?;
        let states = self.shelf.states();
        self.shelf.forget(true);
        self.tally.log.clear();
        self.reported = Report::default();
        Ok(states)
    }

    /// Gives the bytes of the running device, which has begun anew on its disks, to a new model.
    fn begin_anew(&mut self) -> Result<(), Refusal> {
        // The stamps of its writes differ from those on the disks.
        let seed = Stream::new(self.world.seed(), "model", self.starts).next();
        self.model = Rc::new(Model::new(seed, self.running().client.info().size));
        self.learn()?;
        self.keeps_promise()
    }

    /// Starts the device on disks without states, as a part of a live change, and commits the change at once.
    pub fn relabel(&mut self) -> Result<(), Refusal> {
        self.forget()?;
        self.start_uncommitted(Duration::ZERO)?;
        self.shelf.release();
        self.begin_anew()
    }

    /// Starts the device on disks without states, as a part of a live change. `meanwhile` later ends the device before
    /// the commit, and starts it again on disks that are still new.
    pub fn undone_first_start(&mut self, meanwhile: Duration, end: End) -> Result<(), Refusal> {
        self.forget()?;
        self.start_uncommitted(meanwhile)?;
        self.take_back(end)?;
        self.start_or_refuse()?;
        self.begin_anew()
    }

    /// Starts the device on disks without states, as a part of a live change, and commits the change. Ends the device
    /// `meanwhile` after the commit, perhaps before its first start has ended, and starts it again.
    pub fn ended_first_start(&mut self, meanwhile: Duration, end: End) -> Result<(), Refusal> {
        self.forget()?;
        self.start_uncommitted(Duration::ZERO)?;
        self.shelf.release();
        self.pass(meanwhile)?;
        self.stop(end)?;
        self.start_or_refuse()?;
        self.begin_anew()
    }

    /// Closes the device, removes its state from the labels, and checks that it refuses to start and changes no byte,
    /// unless the subject adopts used disks. A kind that keeps persistent objects must answer `NotFound`.
    pub fn refuses_used(&mut self) -> Result<(), Refusal> {
        let keeps_objects = self.keeps_objects();
        self.close()?;
        self.shelf.forget(false);
        if self.subject.adopts {
            return self.start_or_refuse();
        }
        let refused = self.refuses(Broken::Foreign)?;
        if keeps_objects && refused.kind() != ErrorKind::NotFound {
            let words = format!("the error is not of the kind NotFound: {refused}");
            return Err(Refusal::new(Broken::Foreign, words));
        }
        Ok(())
    }

    /// Starts a second device on the same disks as if they were new, closes it, and gives the state of the first device
    /// back to the labels. Checks that the first device refuses the store of the second: at a start, or as a part of a
    /// live change if `in_change`.
    pub fn refuses_other_store(&mut self, in_change: bool) -> Result<(), Refusal> {
        let first = self.forget()?;
        self.start_or_refuse()?;
        self.begin_anew()?;
        self.close()?;
        self.shelf.restore(first);
        if in_change {
            self.shelf.hold_back();
        }
        self.refuses(Broken::OtherStore).map(drop)
    }

    /// Checks that the device refuses to start, and changes no byte below. Returns the error of the start.
    fn refuses(&mut self, broken: Broken) -> Result<Error, Refusal> {
        let before = self.peek();
        let started = self.start();
        self.pass(SETTLE)?;
        match started {
            Err(_) if self.peek() != before => {
                Err(Refusal::new(broken, "the device refused to start, and changed bytes"))
            }
            Err(error) => Ok(error),
            Ok(()) => Err(Refusal::new(broken, "the device started")),
        }
    }

    /// Returns the bytes of all lowers' disks.
    fn peek(&self) -> Vec<Vec<u8>> {
        let lowers = self.members.iter().zip(&self.subject.lowers);
        let whole = |size| ByteRange::new(0, size).expect("a lower has at least one byte");
        lowers.map(|(member, lower)| member.disk.peek(whole(lower.size))).collect()
    }

    /// Starts the device again, and judges its promise.
    fn start_again(&mut self) -> Result<(), Refusal> {
        self.start_or_refuse()?;
        self.keeps_promise()
    }

    fn start_or_refuse(&mut self) -> Result<(), Refusal> {
        self.start().map_err(|error| Refusal::new(Broken::Builds, error))
    }

    /// Judges the promise of the device about its reports before and after its start, once it answers requests.
    fn keeps_promise(&self) -> Result<(), Refusal> {
        let Some(promise) = &self.subject.promise else { return Ok(()) };
        // A device may accept requests, and let them wait, before it has its state. A failed read has an answer too.
        let info = self.facts();
        let first = ByteRange::new(0, info.block_size.into()).expect("a block has bytes");
        let into = self.world.env().buf(first.len() as usize).expect("the pool has room");
        let read = self.client().send(Op::read(first, into));
        drop(self.world.block_on(read).map_err(stuck)?);
        promise(&self.report(), &self.reported, &self.tally.log)
            .map_err(|words| Refusal::new(Broken::Promise, words))
    }

    /// Returns the present report of the device under test.
    fn report(&self) -> Report {
        let Running { graph, top, .. } = self.running();
        graph.report(*top)
    }

    fn ended(&mut self) {
        if self.running.is_some() {
            self.reported = self.report();
        }
        self.running = None;
        self.tally.killed();
    }
}

fn member(world: &SimWorld, n: usize, spec: LowerSpec, draw: &Stream) -> Member {
    let profile = if spec.block_size == 4096 { Profile::Native4k } else { Profile::Native512 };
    let config = DiskConfig {
        discard_zeroes: draw.below(2) == 0,
        most_ns: draw.within(10_000, 2_000_000),
        ..DiskConfig::new(spec.size, profile)
    };
    let disk = SimDisk::new(world, n as u64, config);
    world.plug(disk_path(n), &disk);
    Member { disk, watch: Rc::default() }
}

fn open(n: usize) -> Open {
    Open {
        path: disk_path(n).into(),
        device: true,
        read_only: false,
        create: None,
        odd_size: false,
        cache: CacheMode::Direct,
    }
}

pub(crate) fn stuck(stuck: Stuck) -> Refusal {
    Refusal::new(Broken::Completes, stuck)
}
