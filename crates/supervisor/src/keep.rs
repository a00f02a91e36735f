//! One graph: its worker is started, heard, and started again.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, SystemTime};

use block::{Error, Result};
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::events::{Events, Run};
use crate::held::Held;
use crate::notify_socket::{Heard, NotifySocket};
use crate::pace::Pace;
use crate::worker::Worker;
use crate::worker_lock::{Sat, WorkerLock};

/// A worker that has said nothing for so long does not turn any more, and is killed.
pub const WATCHDOG: Duration = Duration::from_secs(15);

/// Until a worker is up: disks that are slow to answer, keys that are derived.
const START: Duration = Duration::from_secs(600);

/// Until a worker that is to end in order has: its own limit is shorter, if nobody has set it higher.
const STOP: Duration = Duration::from_secs(600);

/// Until a worker has handed over, or has said why it does not.
const RENEW: Duration = Duration::from_secs(60);

/// Orders on their way to one graph.
const ORDERS_MAX: usize = 16;

/// The exit code of what failed before it could have one of its own.
const OTHER: u8 = 1;

/// The exit code of what somebody needs as it is.
const IN_USE: u8 = 5;

/// The exit code of a worker that was killed, or crashed, while it was to end in order.
const UNFLUSHED: u8 = 12;

/// How a worker is started; what it is given are words for this start only.
pub type Start = Box<dyn Fn(&[String]) -> Command + Send>;

/// What is to be kept.
pub struct WorkerSpec {
    /// The graph.
    pub name: String,
    /// Where its socket and its seat lie.
    pub place: PathBuf,
    /// What is held for it already.
    pub held: Vec<(String, OwnedFd)>,
    /// How its worker is started.
    pub command: Start,
    /// Where a line for the log goes.
    pub note: fn(&str),
    /// How a program is run for an event.
    pub run: Run,
}

/// What a graph is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// There is a worker, and clients cannot connect yet.
    Starting,
    /// They can.
    Up,
    /// The worker is to end.
    Stopping,
    /// The worker has died, and the next one is not started yet.
    Waiting,
    /// Workers have died again and again. What they held is held still.
    GivenUp,
    /// The worker has ended in order.
    Ended,
}

/// How a worker has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: u8,
    /// Why.
    pub why: String,
}

/// How a graph is.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// What it is at.
    pub phase: Phase,
    /// Since then.
    pub since: SystemTime,
    /// Its worker.
    pub pid: Option<u32>,
    /// Workers so far.
    pub starts: u64,
    /// Descriptors that are held for the next one.
    pub held: usize,
    /// Why the last worker has ended, if it should not have.
    pub failure: Option<Ended>,
}

type Told = std::result::Result<(), Ended>;
type Tell = oneshot::Sender<Told>;

/// Descriptors with their names.
pub type Left = Vec<(String, OwnedFd)>;

enum Order {
    Start(Vec<String>, Tell),
    /// The same, and if it does not come up it is what it was.
    Once(Vec<String>, Tell),
    /// Nothing is started by itself from then on.
    Rest(Tell),
    /// It is again.
    GoOn,
    Stop(Tell),
    /// The same of somebody who has no patience.
    StopAtOnce(Tell),
    Renew(Tell),
    Leave(Leaver),
}

/// Whoever waits until it can be left to another daemon.
struct Leaver {
    tell: oneshot::Sender<std::result::Result<Left, Ended>>,
    /// Whether that daemon gets what is held here.
    passes_on: bool,
}

/// A graph that is kept, as everybody else sees it.
#[derive(Clone)]
pub struct Kept {
    orders: mpsc::Sender<Order>,
    standing: watch::Receiver<WorkerStatus>,
}

impl Kept {
    /// Keeps it from now on: goes on with the worker that there is. If there is none, it is to be
    /// started.
    ///
    /// # Errors
    /// What the system says of its place.
    pub fn begin(charge: WorkerSpec) -> Result<Self> {
        let path = charge.place.join(format!("{}.sock", charge.name));
        let ear = NotifySocket::open(&path).map_err(|error| Error::io(&error, path.display()))?;
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        let now = WorkerStatus {
            phase: Phase::Ended,
            since: SystemTime::now(),
            pid: None,
            starts: 0,
            held: charge.held.len(),
            failure: None,
        };
        let (tell, standing) = watch::channel(now);
        let WorkerSpec { name, place, held, command, note, run } = charge;
        let events = Events::begin(run);
        let held = Held::new(&name, held);
        let pace = Pace::default();
        let leaver = None;
        let keep =
            Keep { name, place, ear, held, command, note, events, pace, orders, tell, leaver };
        tokio::spawn(keep.run());
        Ok(Self { orders: sender, standing })
    }

    /// How it is.
    pub fn standing(&self) -> WorkerStatus {
        self.standing.borrow().clone()
    }

    /// Starts it, if it is not up; until clients can connect.
    ///
    /// # Errors
    /// Why its worker has ended; it may be tried again after that.
    pub async fn start(&self, words: Vec<String>) -> Told {
        self.order(|tell| Order::Start(words, tell)).await
    }

    /// Starts it for somebody who waits. If it does not come up it is what it was, with the tries that it had left,
    /// and whoever has had it rest has it go on.
    ///
    /// # Errors
    /// Why its worker has ended.
    pub async fn try_once(&self, words: Vec<String>) -> Told {
        self.order(|tell| Order::Once(words, tell)).await
    }

    /// Has nothing started by itself, if nothing runs; a try that is under way is waited for so long.
    ///
    /// # Errors
    /// What runs; then it is as before.
    pub async fn rest(&self, within: Duration) -> Told {
        if let Ok(told) = timeout(within, self.order(Order::Rest)).await {
            return told;
        }
        self.go_on().await;
        Err(Ended { code: IN_USE, why: "a process of it is being started".to_owned() })
    }

    /// Has it go on with what it waits for, after a rest.
    pub async fn go_on(&self) {
        // Of what is not kept any more nothing goes on.
        let _ = self.orders.send(Order::GoOn).await;
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// Why that is not so, or not everything was flushed.
    pub async fn stop(&self) -> Told {
        self.order(Order::Stop).await
    }

    /// Ends one that is being stopped without waiting for what is not flushed.
    ///
    /// # Errors
    /// As [`Kept::stop`].
    pub async fn stop_at_once(&self) -> Told {
        self.order(Order::StopAtOnce).await
    }

    /// Has its worker hand over to a new one; until that one is up.
    ///
    /// # Errors
    /// Why the old one goes on, or the new one does not come up.
    pub async fn renew(&self) -> Told {
        self.order(Order::Renew).await
    }

    /// Leaves it to another daemon, as it is, once its worker can be found: not while one hands over to the next.
    /// Answers what is held for it. If it is not passed on, that daemon is told of all of it by the worker.
    ///
    /// # Errors
    /// Something is held, is not passed on, and there is no worker. Then it is kept as before.
    pub async fn leave(&self, passes_on: bool) -> std::result::Result<Left, Ended> {
        let (tell, left) = oneshot::channel();
        // Whoever has left already is gone.
        let _ = self.orders.send(Order::Leave(Leaver { tell, passes_on })).await;
        left.await.unwrap_or_else(|_| Ok(Left::new()))
    }

    async fn order(&self, order: impl FnOnce(Tell) -> Order) -> Told {
        let gone = || Ended { code: OTHER, why: "the graph is not kept any more".to_owned() };
        let (tell, told) = oneshot::channel();
        self.orders.send(order(tell)).await.map_err(|_| gone())?;
        told.await.unwrap_or_else(|_| Err(gone()))
    }
}

struct Keep {
    name: String,
    place: PathBuf,
    ear: NotifySocket,
    held: Held,
    command: Start,
    note: fn(&str),
    events: Events,
    pace: Pace,
    orders: mpsc::Receiver<Order>,
    tell: watch::Sender<WorkerStatus>,
    leaver: Option<Leaver>,
}

/// What is known of a worker.
struct Life {
    begun: Instant,
    /// Whether it has the seat, where another daemon finds it.
    seated: bool,
    /// When clients could connect.
    ready: Option<Instant>,
    /// Without a word until then it is killed.
    until: Instant,
    stopping: bool,
    renewed: bool,
    exit: Option<u8>,
    why: Option<String>,
    /// Whether the next one would end the same way.
    lasting: bool,
    waiting: Waiting,
    /// What there is again if clients can never connect.
    before: Option<Before>,
}

/// Who waits for a worker to be up, for its end, for its successor, for nothing to be begun.
#[derive(Default)]
struct Waiting {
    starters: Vec<Tell>,
    stoppers: Vec<Tell>,
    renewers: Vec<Tell>,
    resters: Vec<Tell>,
}

/// How long there is no worker.
#[derive(Clone, Copy, Default)]
struct Rest {
    /// Until then, or for good.
    until: Option<Instant>,
    /// Somebody is about to order something: nothing begins by itself.
    ordered: bool,
}

/// What a graph was at before somebody tried to bring it up.
struct Before {
    standing: WorkerStatus,
    rest: Rest,
}

/// What comes after a life.
enum Next {
    /// Another one, for those who wait for it.
    Life(Vec<String>, Waiting),
    /// Another one, or what there is now.
    Trial(Vec<String>, Tell, Rest),
    /// Nothing for a while.
    Rest(Rest),
    /// It is somebody else's.
    Leave,
    /// Nobody keeps it any more.
    Forget,
}

impl Keep {
    async fn run(mut self) {
        let mut next = match WorkerLock::sat(&self.seat()) {
            Ok(Sat::By(_)) => Next::Life(Vec::new(), Waiting::default()),
            _ => Next::Rest(Rest::default()),
        };
        loop {
            next = match next {
                Next::Life(words, waiting) => self.live(&words, Life::begin(waiting)).await,
                Next::Trial(words, tell, rest) => {
                    let waiting = Waiting { starters: vec![tell], ..Waiting::default() };
                    let before = Some(Before { standing: self.tell.borrow().clone(), rest });
                    self.live(&words, Life { before, ..Life::begin(waiting) }).await
                }
                Next::Rest(rest) => self.rest(rest).await,
                Next::Leave => return self.go(),
                Next::Forget => return self.forget(),
            };
        }
    }

    fn seat(&self) -> PathBuf {
        self.place.join(format!("{}.seat", self.name))
    }

    fn note(&self, words: &str) {
        (self.note)(&format!("{}: {words}", self.name));
    }

    fn is_at(&self, phase: Phase, change: impl FnOnce(&mut WorkerStatus)) {
        self.tell.send_modify(|standing| {
            standing.phase = phase;
            standing.since = SystemTime::now();
            standing.held = self.held.len();
            change(standing);
        });
    }

    /// Waits for an order, or until it is time.
    async fn rest(&mut self, rest: Rest) -> Next {
        if let Some(leaver) = self.leaver.take() {
            return self.leave_at_rest(leaver, rest);
        }
        let until = rest.until.filter(|_| !rest.ordered);
        let far = Instant::now() + START;
        tokio::select! {
            () = sleep_until(until.unwrap_or(far)), if until.is_some() => {
                Next::Life(Vec::new(), Waiting::default())
            }
            order = self.orders.recv() => match order {
                Some(Order::Start(_, tell)) if rest.ordered => {
                    // Whoever it rests for begins it, or lets it go on.
                    self.pace.reset();
                    let why = "somebody is about to bring it up".to_owned();
                    answer([tell], Err(Ended { code: IN_USE, why }));
                    Next::Rest(Rest { until: Some(Instant::now()), ..rest })
                }
                Some(Order::Start(words, tell)) => {
                    self.pace.reset();
                    Next::Life(words, Waiting { starters: vec![tell], ..Waiting::default() })
                }
                Some(Order::Once(words, tell)) => Next::Trial(words, tell, rest),
                Some(Order::Rest(tell)) => {
                    Next::Rest(Rest { ordered: tell.send(Ok(())).is_ok(), ..rest })
                }
                Some(Order::GoOn) => Next::Rest(Rest { ordered: false, ..rest }),
                Some(Order::Stop(tell) | Order::StopAtOnce(tell)) => {
                    self.close_listeners();
                    self.is_at(Phase::Ended, |_| {});
                    answer([tell], Ok(()));
                    Next::Rest(Rest::default())
                }
                Some(Order::Renew(tell)) => {
                    let why = "it is not up".to_owned();
                    answer([tell], Err(Ended { code: OTHER, why }));
                    Next::Rest(rest)
                }
                Some(Order::Leave(leaver)) => self.leave_at_rest(leaver, rest),
                None => Next::Forget,
            },
        }
    }

    /// Nobody else has what is held for it.
    fn leave_at_rest(&mut self, leaver: Leaver, rest: Rest) -> Next {
        if leaver.passes_on || self.held.is_empty() {
            self.leaver = Some(leaver);
            return Next::Leave;
        }
        let why = format!(
            "{} does not run, and what is held for its next process ({}) would be gone with this daemon",
            self.name,
            self.held.len()
        );
        let _ = leaver.tell.send(Err(Ended { code: IN_USE, why }));
        Next::Rest(rest)
    }

    /// It is another daemon's from now on.
    fn go(mut self) {
        if let Some(leaver) = self.leaver.take() {
            // Whoever does not hear of it has left without.
            let _ = leaver.tell.send(Ok(self.held.into_all()));
        }
    }

    /// A worker that ends in order does that itself; here there is none that has, or will.
    fn close_listeners(&mut self) {
        if let Err(error) = self.held.close_listeners() {
            self.note(&format!("warning: {error}"));
        }
    }

    /// What is held for it is of no use to anybody: keys least of all.
    fn forget(mut self) {
        if let Err(error) = self.held.clear() {
            self.note(&format!("warning: {error}"));
        }
    }

    /// A worker, from its start to its end.
    async fn live(&mut self, words: &[String], mut life: Life) -> Next {
        let worker = match self.worker(words, &mut life) {
            Ok(worker) => worker,
            Err(error) => {
                life.why = Some(error.to_string());
                return self.after(life, None);
            }
        };
        self.is_at(Phase::Starting, |standing| {
            standing.pid = Some(worker.pid());
            standing.starts += 1;
        });
        loop {
            if self.leaver.is_some() && life.may_be_left(&self.held) {
                return Next::Leave;
            }
            tokio::select! {
                () = worker.gone() => break,
                heard = self.ear.hear() => match heard {
                    Ok(heard) => {
                        self.obey(heard, &mut life);
                        if life.ready.is_some() && !life.waiting.stoppers.is_empty() && !life.stopping {
                            // They have waited for the one before, which has handed over instead.
                            self.end(&worker, &mut life);
                        }
                    }
                    Err(error) => self.note(&format!("its socket: {error}")),
                },
                order = self.orders.recv() => match order {
                    Some(order) => self.carry_out(order, &worker, &mut life),
                    None => return Next::Forget,
                },
                () = sleep_until(life.until) => {
                    self.note(&format!("process {} says nothing any more, and is killed", worker.pid()));
                    worker.signal(Signal::KILL);
                    life.until += START;
                }
            }
        }
        while let Some(heard) = self.ear.heard() {
            self.obey(heard, &mut life);
        }
        self.after(life, worker.bury())
    }

    /// The worker that there is, or a new one.
    fn worker(&mut self, words: &[String], life: &mut Life) -> Result<Worker> {
        let failed = |error: std::io::Error| Error::io(&error, "starting a process");
        let sat = WorkerLock::sat(&self.seat())?;
        if let Sat::By(pid) = sat
            && let Some(worker) = Worker::adopt(pid).map_err(failed)?
            // Its number may have become somebody else's before it was opened.
            && WorkerLock::sat(&self.seat())? == sat
        {
            life.seated = true;
            self.note(&format!("goes on with process {pid}"));
            worker.signal(Signal::USR1);
            return Ok(worker);
        }
        let bequest = runtime::bequeath(self.held.all())?;
        let mut command = (self.command)(words);
        command.stdin(bequest).env("NOTIFY_SOCKET", self.ear.path());
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        Worker::start(command).map_err(failed)
    }

    /// Does what a worker has said.
    fn obey(&mut self, (words, file): Heard, life: &mut Life) {
        life.until = life.until.max(Instant::now() + life.patience());
        // It says nothing before.
        life.seated = true;
        let mut done = Ok(());
        if words.store
            && let Some(file) = file
        {
            done = self.held.store(&words.name, file);
        } else if words.remove {
            done = self.held.remove(&words.name);
        }
        if let Err(error) = done {
            self.note(&format!("warning: {error}"));
        }
        if words.store || words.remove {
            self.tell.send_modify(|standing| standing.held = self.held.len());
        }
        if let Some(event) = words.event.filter(|event| !self.events.push(event.clone())) {
            self.note(&format!("warning: an event was lost for {}", event.program.display()));
        }
        life.renewed |= words.renewed;
        life.lasting |= words.lasting;
        life.exit = words.exit.or(life.exit);
        if let Some(why) = words.failure {
            if words.exit.is_none() {
                // It goes on as it was.
                let code = OTHER;
                answer(life.waiting.renewers.drain(..), Err(Ended { code, why }));
            } else {
                life.why = Some(why);
            }
        }
        if words.ready && life.ready.is_none() {
            let now = Instant::now();
            life.ready = Some(now);
            life.until = now + WATCHDOG;
            self.is_at(Phase::Up, |standing| standing.failure = None);
            answer(life.waiting.starters.drain(..), Ok(()));
            answer(life.waiting.resters.drain(..), Err(runs()));
            if life.before.take().is_some() {
                self.pace.reset();
            }
        }
    }

    fn carry_out(&mut self, order: Order, worker: &Worker, life: &mut Life) {
        match order {
            Order::Start(_, tell) | Order::Once(_, tell) if life.ready.is_some() => {
                answer([tell], Ok(()));
            }
            Order::Start(_, tell) | Order::Once(_, tell) => life.waiting.starters.push(tell),
            Order::Rest(tell) if life.ready.is_some() => answer([tell], Err(runs())),
            Order::Rest(tell) => life.waiting.resters.push(tell),
            // Who has not waited for the rest does not hear of it.
            Order::GoOn => {}
            Order::Stop(tell) => {
                life.waiting.stoppers.push(tell);
                if !life.stopping {
                    self.end(worker, life);
                }
            }
            Order::StopAtOnce(tell) => {
                life.waiting.stoppers.push(tell);
                // A second one of the same might come before the first is taken, and be one with it.
                worker.signal(if life.stopping { Signal::INT } else { Signal::TERM });
                life.stopping = true;
            }
            Order::Renew(tell) if life.ready.is_some() && !life.stopping => {
                life.waiting.renewers.push(tell);
                life.until = life.until.max(Instant::now() + RENEW);
                worker.signal(Signal::USR2);
            }
            Order::Renew(tell) => {
                answer([tell], Err(Ended { code: OTHER, why: "it is not up".to_owned() }));
            }
            Order::Leave(leaver) => self.leaver = Some(leaver),
        }
    }

    /// Has it end in order.
    fn end(&self, worker: &Worker, life: &mut Life) {
        life.stopping = true;
        life.until = Instant::now() + STOP;
        self.is_at(Phase::Stopping, |_| {});
        worker.signal(Signal::TERM);
    }

    /// What comes after that life; all who wait are told.
    fn after(&mut self, mut life: Life, end: Option<ExitStatus>) -> Next {
        let resters = std::mem::take(&mut life.waiting.resters);
        match self.then(life, end) {
            Next::Life(words, waiting) => Next::Life(words, Waiting { resters, ..waiting }),
            Next::Rest(rest) => {
                let wait = resters.into_iter().filter_map(|tell| tell.send(Ok(())).ok()).count();
                Next::Rest(Rest { ordered: rest.ordered || wait > 0, ..rest })
            }
            next => next,
        }
    }

    fn then(&mut self, life: Life, end: Option<ExitStatus>) -> Next {
        let came_to_nothing = life.came_to_nothing(end);
        let code = life.exit.unwrap_or(if life.stopping { UNFLUSHED } else { OTHER });
        let why = life.why.unwrap_or_else(|| match life.exit {
            Some(code) => format!("it ended with {code}"),
            None => match end {
                Some(end) => format!("it was killed, or has crashed: {end}"),
                None => "it was killed, or has crashed".to_owned(),
            },
        });
        let ended = Ended { code, why };
        self.tell.send_modify(|standing| standing.pid = None);
        let Waiting { starters, stoppers, renewers, .. } = life.waiting;
        if life.renewed {
            self.note("has handed over to a new process");
            // To the successor the same holds: it is what is to be stopped.
            let waiting = Waiting { starters: renewers, stoppers, ..Waiting::default() };
            return Next::Life(Vec::new(), waiting);
        }
        let others = starters.into_iter().chain(renewers);
        if life.stopping || !stoppers.is_empty() {
            let is_well = life.exit == Some(0) || came_to_nothing;
            let told = if is_well { Ok(()) } else { Err(ended.clone()) };
            let failure = told.clone().err();
            self.close_listeners();
            self.is_at(Phase::Ended, |standing| standing.failure = failure);
            answer(stoppers, told);
            answer(others, Err(ended));
            return Next::Rest(Rest::default());
        }
        let age = life.begun.elapsed().as_millis();
        if let Some(before) = life.before {
            self.note(&format!("did not come up, ended after {age} ms: {}", ended.why));
            answer(others, Err(ended));
            return self.again(before);
        }
        if life.exit == Some(0) {
            self.note(&format!(
                "was stopped, though not by this daemon, and stays so until the next one. Next: cairn apply its spec; \
                 or cairn stop {0}, and cairn import {0}",
                self.name
            ));
            self.is_at(Phase::Ended, |standing| standing.failure = None);
            answer(others, Err(ended));
            return Next::Rest(Rest::default());
        }
        answer(others, Err(ended.clone()));
        let lived = life.ready.map_or(Duration::ZERO, |ready| ready.elapsed());
        let pause = if life.lasting { None } else { self.pace.after(lived) };
        let then = match pause {
            Some(Duration::ZERO) => "starting it again".to_owned(),
            Some(pause) => format!("starting it again in {} ms", pause.as_millis()),
            None => "it is not started again by itself".to_owned(),
        };
        self.note(&format!("ended after {age} ms: {}; {then}", ended.why));
        let phase = if pause.is_some() { Phase::Waiting } else { Phase::GivenUp };
        self.is_at(phase, |standing| standing.failure = Some(ended));
        let until = pause.map(|pause| Instant::now() + pause);
        Next::Rest(Rest { until, ..Rest::default() })
    }

    /// It is what it was.
    fn again(&self, before: Before) -> Next {
        let Before { standing: WorkerStatus { phase, since, failure, .. }, rest } = before;
        self.is_at(phase, |standing| {
            standing.since = since;
            standing.failure = failure;
        });
        Next::Rest(rest)
    }
}

/// What keeps a graph from being at rest.
fn runs() -> Ended {
    Ended { code: IN_USE, why: "a process of it runs".to_owned() }
}

impl Life {
    fn begin(waiting: Waiting) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            seated: false,
            ready: None,
            until: begun + START,
            stopping: false,
            renewed: false,
            exit: None,
            why: None,
            lasting: false,
            waiting,
            before: None,
        }
    }

    /// Whether another daemon can go on with it: it finds the worker, and is told by it of all that is held. One that
    /// is about to hand over has told this daemon, and one that comes up tells the next one only if it does.
    fn may_be_left(&self, held: &Held) -> bool {
        let is_told = self.ready.is_some() || held.is_empty();
        self.seated && is_told && self.waiting.renewers.is_empty()
    }

    /// Whether it has served nobody, and left nothing to be flushed.
    fn came_to_nothing(&self, end: Option<ExitStatus>) -> bool {
        // Whoever dies of our signal has not come as far as to take signals, and opens disks after that.
        let was_early = || end.and_then(|end| end.signal()) == Some(Signal::TERM.as_raw());
        self.ready.is_none() && self.exit.map_or_else(was_early, |code| code != UNFLUSHED)
    }

    /// From one word to the next.
    fn patience(&self) -> Duration {
        if self.ready.is_some() { WATCHDOG } else { START }
    }
}

fn answer(tell: impl IntoIterator<Item = Tell>, told: Told) {
    for tell in tell {
        // Who asked may have left.
        let _ = tell.send(told.clone());
    }
}
