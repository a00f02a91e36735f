//! Enumeration of crashes: a graph over simulated disks runs a script of requests. At every event below, each state that a
//! kill or a power cut may leave is started again and judged.

mod rig;
mod states;

use std::rc::Rc;
use std::time::Duration;

use block::control::Verb;
use block::{ByteRange, Env, Op, Report, Result};
use graph::live::{RunningGraph, Unchanged};
use kind::Registry;

use crate::{Client, DiskConfig, Image, Profile, WriteLog};

pub use rig::{LIMIT, Rig, opening};
pub use states::{Crash, CrashStates, moments};

/// A graph for an enumeration of crashes: its disks, and its specs, each with an export called `vol`.
pub struct Setup {
    /// The kinds of the graph.
    pub registry: Registry,
    /// The disks, at the paths `/disk0`, `/disk1` and so on.
    pub disks: Vec<DiskConfig>,
    /// The specs. The graph of the first is started; the script may change it to others. After each crash at least one
    /// of them must start.
    pub specs: Vec<String>,
    /// Whether starts after a crash are crashed too: that of each so many-th state, 0 for none.
    pub again: usize,
    /// Simulated time after such a start in which it may still crash.
    pub running: Duration,
}

impl Setup {
    /// Creates a setup of `disks` new labelled disks, `d0`, `d1` and so on, with `bytes` bytes for data each.
    /// `devices` are the lines of the spec's section `[device]`, and `top` is the device that is exported.
    pub fn new(registry: Registry, disks: usize, bytes: u64, devices: &str, top: &str) -> Self {
        let config = DiskConfig::new(bytes + 2 * meta::AREA_BYTES, Profile::Native512);
        let setup = Self {
            registry,
            disks: vec![config; disks],
            specs: Vec::new(),
            again: 0,
            running: Duration::ZERO,
        };
        setup.or(devices, top)
    }

    /// Adds a spec over the same disks, for a live change of the script ([`Script::change`]).
    #[must_use]
    pub fn or(mut self, devices: &str, top: &str) -> Self {
        let disk = |n| format!("d{n} = {{ path = \"/disk{n}\", label = true }}\n");
        let disks: String = (0..self.disks.len()).map(disk).collect();
        let export = format!("[export]\nvol = {{ on = \"{top}\" }}\n");
        self.specs.push(format!("name = \"g\"\n[disk]\n{disks}[device]\n{devices}\n{export}"));
        self
    }
}

impl Setup {
    /// Lets the start after each `again`-th crash state crash, too.
    #[must_use]
    pub fn crashed_again(self, again: usize) -> Self {
        Self { again, ..self }
    }

    /// Lets a start after a crash crash within this simulated time after it has ended, too.
    #[must_use]
    pub fn running_for(self, running: Duration) -> Self {
        Self { running, ..self }
    }
}

/// The client of a graph during an enumeration of crashes. A script sends requests and live changes through it.
#[derive(Clone)]
pub struct Script {
    /// The environment (clock, buffers, tasks) of the graph's process.
    pub env: Env,
    rig: Rc<Rig>,
    live: Rc<RunningGraph>,
    client: Client,
    log: WriteLog,
    specs: Rc<[String]>,
}

impl Script {
    /// Sends a request, and waits for the answer. Returns its operation with the buffers.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn send(&self, op: Op) -> Result<Op> {
        let covered = matches!(op, Op::Flush).then(|| self.log.covered());
        let logged = self.log.send(&op);
        let answer = self.client.send(op).await;
        answer.result?;
        logged.into_iter().for_each(|number| self.log.acknowledge(number));
        covered.into_iter().for_each(|covered| self.log.flushed(covered));
        Ok(answer.op)
    }

    /// Writes `len` bytes of the value `byte` at the address `start`.
    ///
    /// # Panics
    /// If the write fails.
    pub async fn write(&self, start: u64, len: u64, byte: u8) {
        let data = self.env.buf(len as usize).expect("the pool has room");
        data.write().fill(byte);
        self.must(Op::write(range(start, len), data)).await;
    }

    /// Discards `len` bytes at the address `start`.
    ///
    /// # Panics
    /// If the discard fails.
    pub async fn discard(&self, start: u64, len: u64) {
        self.must(Op::Discard { range: range(start, len), fua: false }).await;
    }

    /// Flushes all acknowledged writes.
    ///
    /// # Panics
    /// If the flush fails.
    pub async fn flush(&self) {
        self.must(Op::Flush).await;
    }

    async fn must(&self, op: Op) {
        let what = op.verb().name();
        self.send(op).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    /// Changes the running graph to spec number `spec` of the setup.
    ///
    /// # Errors
    /// The reason why the graph was not changed.
    pub async fn change(&mut self, spec: usize) -> std::result::Result<(), Unchanged> {
        let (turn, now) = (self.live.turn().await, self.live.now());
        let looked = self.rig.look(&self.specs[spec], opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        self.live.change(&turn, planned, Some(probe), LIMIT).await?;
        self.client = self.rig.client(&self.live);
        Ok(())
    }

    /// Carries out a command of verb `V` on a device.
    ///
    /// # Errors
    /// The error of the command.
    ///
    /// # Panics
    /// If the graph has no such device.
    pub async fn ask<V: Verb>(&self, device: &str, args: V::Args) -> Result<V::Answer> {
        let now = self.live.now();
        let member = now.graph.member(device).expect("the graph has the device");
        now.graph.ask::<V>(member, args).await
    }

    /// Returns the report of a device.
    ///
    /// # Panics
    /// If the graph has no such device.
    pub fn report(&self, device: &str) -> Report {
        report(&self.live, device)
    }

    /// Flushes and closes the graph in order, as a server does at its stop.
    async fn close(&self) {
        self.flush().await;
        self.live.close_devices(self.env.now().after(LIMIT)).await;
        if let Some(labels) = &self.live.now().labels {
            labels.close().await.unwrap_or_else(|error| panic!("close: {error}"));
        }
    }
}

/// A graph that was started after a crash, with a client of its export.
pub struct Running {
    /// Number of the spec in the setup.
    pub spec: usize,
    /// The crash before the start.
    pub crash: Crash,
    client: Client,
    live: RunningGraph,
    rig: Rig,
}

impl Running {
    /// Sends a request, and returns its operation with the buffers.
    ///
    /// # Errors
    /// The error of the request.
    ///
    /// # Panics
    /// If the request has no answer.
    pub fn send(&self, op: Op) -> Result<Op> {
        let sent = self.rig.world.block_on(self.client.send(op));
        let answer = sent.unwrap_or_else(|stuck| panic!("{stuck}"));
        answer.result.map(|()| answer.op)
    }

    /// Returns `len` bytes from the address `start`.
    ///
    /// # Errors
    /// The error of the read.
    pub fn read(&self, start: u64, len: u64) -> Result<Vec<u8>> {
        let into = self.rig.world.env().buf(len as usize)?;
        let Op::Read { into, .. } = self.send(Op::read(range(start, len), into))? else {
            unreachable!("a read stays a read")
        };
        let bytes = into.read().to_vec();
        Ok(bytes)
    }

    /// Returns the report of a device.
    ///
    /// # Panics
    /// If the graph has no such device.
    pub fn report(&self, device: &str) -> Report {
        report(&self.live, device)
    }

    /// Returns the bytes that a read of disk number `disk` would return now.
    pub fn peek(&self, disk: usize, range: ByteRange) -> Vec<u8> {
        self.rig.disks[disk].peek(range)
    }

    /// Lets simulated time pass.
    pub fn pass(&self, time: Duration) {
        self.rig.pass(time);
    }
}

fn report(live: &RunningGraph, device: &str) -> Report {
    let now = live.now();
    let member = now.graph.member(device).expect("the graph has the device");
    now.graph.report(member)
}

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).expect("a request has bytes")
}

/// Totals of an enumeration of crashes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Crashes {
    /// Number of crash states that were started and judged.
    pub states: usize,
    /// For each spec of the setup, the number of crash states in which its graph starts.
    pub started: Vec<usize>,
    /// Number of crash states in which the graphs of several specs start.
    pub ambiguous: usize,
    /// Number of states after a second crash, in a start after the first one, that were started and judged.
    pub again: usize,
}

/// Enumerates the crashes of a graph: of its first start on new disks, of the script, and of its close in order. After
/// each simulated event every state of the disks is tried that a kill or a power cut may leave (of many unflushed writes
/// some subsets only). In each state at least one of the specs must start, without options, and `judge` is called with
/// the running graph and the log of the script's writes. After a power cut the log counts unflushed writes as sent only.
/// With [`Setup::again`], so are the states that a second crash leaves during a start.
///
/// # Errors
/// The first state in which no graph starts, or that `judge` refuses, in words.
///
/// # Panics
/// If the graph without a crash does not start or close.
pub fn every_crash<S: AsyncFnOnce(Script) + 'static>(
    setup: &Setup,
    script: S,
    judge: impl Fn(&Running, &WriteLog) -> std::result::Result<(), String>,
) -> std::result::Result<Crashes, String> {
    let mut trial = Trial {
        setup,
        judge: &judge,
        seen: CrashStates::default(),
        broken: None,
        totals: Crashes { started: vec![0; setup.specs.len()], ..Crashes::default() },
    };
    let (rig, log) = (Rc::new(Rig::new(setup.registry, &setup.disks)), WriteLog::default());
    let specs: Rc<[String]> = setup.specs.clone().into();
    let (own, first) = (rig.clone(), specs.clone());
    let start = async move { own.start(&first[0]).await };
    let live = trial.run("first start", &rig, &log, start);
    let live = Rc::new(live.unwrap_or_else(|unchanged| panic!("{unchanged:?}")));
    let (env, client) = (rig.world.env(), rig.client(&live));
    let own = Script { env, rig: rig.clone(), live, client, log: log.clone(), specs };
    let (sent, closing) = (own.clone(), own);
    trial.run("script", &rig, &log, async move { script(sent).await });
    trial.run("close", &rig, &log, async move { closing.close().await });
    match trial.broken {
        Some(words) => Err(words),
        None => Ok(trial.totals),
    }
}

/// Judges the states of disks after a crash. Returns an error in words if the graph has broken its promise.
type Judge<'t> = dyn Fn(&Running, &WriteLog) -> std::result::Result<(), String> + 't;

/// An enumeration of crashes in progress.
struct Trial<'t> {
    setup: &'t Setup,
    judge: &'t Judge<'t>,
    seen: CrashStates,
    /// The first broken promise, in words.
    broken: Option<String>,
    totals: Crashes,
}

impl Trial<'_> {
    /// Runs a phase of the graph to its end, and tries the crashes at each of its events.
    fn run<T: 'static>(
        &mut self,
        phase: &str,
        rig: &Rig,
        log: &WriteLog,
        task: impl Future<Output = T> + 'static,
    ) -> T {
        let mut event = 0;
        moments(rig, task, |images| {
            event += 1;
            for crash in [Crash::Kill, Crash::PowerCut] {
                if self.broken.is_none()
                    && let Err(words) = self.crash(crash, &images, log)
                {
                    let place = format!("{crash:?} at event {event} of the {phase}");
                    self.broken = Some(format!("{place}: {words}"));
                }
            }
        })
    }

    fn crash(
        &mut self,
        crash: Crash,
        images: &[Image],
        log: &WriteLog,
    ) -> std::result::Result<(), String> {
        let log = log.snapshot();
        if crash == Crash::PowerCut {
            log.power_cut();
        }
        for state in self.seen.after(crash, images, &log) {
            self.start(crash, &state, &log)?;
            self.totals.states += 1;
            if self.setup.again > 0 && self.totals.states.is_multiple_of(self.setup.again) {
                self.crash_again(&state, &log)?;
            }
        }
        Ok(())
    }

    /// Starts the graph of each spec on disks in a crash state, and tries the crashes at each event of the start.
    fn crash_again(&mut self, state: &[Image], log: &WriteLog) -> std::result::Result<(), String> {
        let mut seen = CrashStates::default();
        for text in &self.setup.specs {
            let rig = Rc::new(Rig::new(self.setup.registry, &self.setup.disks));
            rig.put(state);
            let (own, text, mut event, mut broken) = (rig.clone(), text.clone(), 0, None);
            let running = self.setup.running;
            let start = async move {
                let started = own.start(&text).await;
                own.world.env().sleep(running).await;
                started
            };
            let started = moments(&rig, start, |images| {
                event += 1;
                for crash in [Crash::Kill, Crash::PowerCut] {
                    let log = log.snapshot();
                    if crash == Crash::PowerCut {
                        log.power_cut();
                    }
                    for state in seen.after(crash, &images, &log) {
                        self.totals.again += 1;
                        if broken.is_none()
                            && let Err(words) = self.start(crash, &state, &log)
                        {
                            broken =
                                Some(format!("{crash:?} at event {event} of a start: {words}"));
                        }
                    }
                }
            });
            drop(started);
            if let Some(words) = broken {
                return Err(words);
            }
        }
        Ok(())
    }

    /// Starts the graph of each spec on disks in a crash state, and judges those that start.
    fn start(
        &mut self,
        crash: Crash,
        state: &[Image],
        log: &WriteLog,
    ) -> std::result::Result<(), String> {
        let (mut started, mut refusals) = (0, Vec::new());
        for (spec, text) in self.setup.specs.iter().enumerate() {
            let rig = Rig::new(self.setup.registry, &self.setup.disks);
            rig.put(state);
            match rig.try_open(text) {
                Ok(live) => {
                    let client = rig.client(&live);
                    let running = Running { spec, crash, client, live, rig };
                    (self.judge)(&running, log).map_err(|words| format!("spec {spec}: {words}"))?;
                    self.totals.started[spec] += 1;
                    started += 1;
                }
                Err(Unchanged::Refused(why)) => {
                    refusals.extend(why.iter().map(ToString::to_string))
                }
                Err(unchanged) => refusals.push(format!("{unchanged:?}")),
            }
        }
        self.totals.ambiguous += usize::from(started > 1);
        match started {
            0 => Err(format!("no graph starts: {}", refusals.join("; "))),
            _ => Ok(()),
        }
    }
}
