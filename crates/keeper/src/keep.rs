//! One graph: its worker is started, heard, and started again.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, SystemTime};

use block::{Error, Result};
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::ear::{Ear, Heard};
use crate::held::Held;
use crate::pace::Pace;
use crate::seat::{Sat, Seat};
use crate::worker::Worker;

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

/// The exit code of a worker that was killed, or crashed, while it was to end in order.
const UNFLUSHED: u8 = 12;

/// How a worker is started; what it is given are words for this start only.
pub type Start = Box<dyn Fn(&[String]) -> Command + Send>;

/// What is to be kept.
pub struct Charge {
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
pub struct Standing {
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

enum Order {
    Start(Vec<String>, Tell),
    Stop(Tell),
    Renew(Tell),
    Leave(Tell),
}

/// A graph that is kept, as everybody else sees it.
#[derive(Clone)]
pub struct Kept {
    orders: mpsc::Sender<Order>,
    standing: watch::Receiver<Standing>,
}

impl Kept {
    /// Keeps it from now on: goes on with the worker that there is. If there is none, it is to be
    /// started.
    ///
    /// # Errors
    /// What the system says of its place.
    pub fn begin(charge: Charge) -> Result<Self> {
        let path = charge.place.join(format!("{}.sock", charge.name));
        let ear = Ear::open(&path).map_err(|error| Error::io(&error, path.display()))?;
        let (orders, receiver) = mpsc::channel(ORDERS_MAX);
        let now = Standing {
            phase: Phase::Ended,
            since: SystemTime::now(),
            pid: None,
            starts: 0,
            held: charge.held.len(),
            failure: None,
        };
        let (tell, standing) = watch::channel(now);
        let Charge { name, place, held, command, note } = charge;
        let held = Held::new(&name, held);
        let pace = Pace::default();
        let keep = Keep { name, place, ear, held, command, note, pace, orders: receiver, tell };
        tokio::spawn(keep.run());
        Ok(Self { orders, standing })
    }

    /// How it is.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Starts it, if it is not up; until clients can connect.
    ///
    /// # Errors
    /// Why its worker has ended; it may be tried again after that.
    pub async fn start(&self, words: Vec<String>) -> Told {
        self.order(|tell| Order::Start(words, tell)).await
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// Why that is not so, or not everything was flushed.
    pub async fn stop(&self) -> Told {
        self.order(Order::Stop).await
    }

    /// Has its worker hand over to a new one; until that one is up.
    ///
    /// # Errors
    /// Why the old one goes on, or the new one does not come up.
    pub async fn renew(&self) -> Told {
        self.order(Order::Renew).await
    }

    /// Leaves it to another daemon, as it is.
    pub async fn leave(&self) {
        // Whoever has left already is gone.
        let _ = self.order(Order::Leave).await;
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
    ear: Ear,
    held: Held,
    command: Start,
    note: fn(&str),
    pace: Pace,
    orders: mpsc::Receiver<Order>,
    tell: watch::Sender<Standing>,
}

/// What is known of a worker.
struct Life {
    begun: Instant,
    /// When clients could connect.
    ready: Option<Instant>,
    /// Without a word until then it is killed.
    until: Instant,
    stopping: bool,
    renewed: bool,
    exit: Option<u8>,
    why: Option<String>,
    /// Who waits for it to be up, for its end, for its successor.
    starters: Vec<Tell>,
    stoppers: Vec<Tell>,
    renewers: Vec<Tell>,
}

/// What comes after a life.
enum Next {
    /// Another one, for those who wait for it.
    Life(Vec<String>, Vec<Tell>),
    /// Nothing, until then or for good.
    Rest(Option<Instant>),
    /// It is somebody else's.
    Leave,
    /// Nobody keeps it any more.
    Forget,
}

impl Keep {
    async fn run(mut self) {
        let mut next = match Seat::sat(&self.seat()) {
            Ok(Sat::By(_)) => Next::Life(Vec::new(), Vec::new()),
            _ => Next::Rest(None),
        };
        loop {
            next = match next {
                Next::Life(words, starters) => self.live(&words, starters).await,
                Next::Rest(until) => self.rest(until).await,
                Next::Leave => return,
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

    fn is_at(&self, phase: Phase, change: impl FnOnce(&mut Standing)) {
        self.tell.send_modify(|standing| {
            standing.phase = phase;
            standing.since = SystemTime::now();
            standing.held = self.held.len();
            change(standing);
        });
    }

    /// Waits for an order, or until it is time.
    async fn rest(&mut self, until: Option<Instant>) -> Next {
        let far = Instant::now() + START;
        tokio::select! {
            () = sleep_until(until.unwrap_or(far)), if until.is_some() => Next::Life(Vec::new(), Vec::new()),
            order = self.orders.recv() => match order {
                Some(Order::Start(words, tell)) => {
                    self.pace.reset();
                    Next::Life(words, vec![tell])
                }
                Some(Order::Stop(tell)) => {
                    self.close_listeners();
                    self.is_at(Phase::Ended, |_| {});
                    answer([tell], Ok(()));
                    Next::Rest(None)
                }
                Some(Order::Renew(tell)) => {
                    let why = "it is not up".to_owned();
                    answer([tell], Err(Ended { code: OTHER, why }));
                    Next::Rest(until)
                }
                Some(Order::Leave(tell)) => {
                    answer([tell], Ok(()));
                    Next::Leave
                }
                None => Next::Forget,
            },
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
    async fn live(&mut self, words: &[String], starters: Vec<Tell>) -> Next {
        let mut life = Life::begin(starters);
        let worker = match self.worker(words) {
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
            tokio::select! {
                () = worker.gone() => break,
                heard = self.ear.hear() => match heard {
                    Ok(heard) => self.obey(heard, &mut life),
                    Err(error) => self.note(&format!("its socket: {error}")),
                },
                order = self.orders.recv() => match order {
                    Some(Order::Leave(tell)) => {
                        answer([tell], Ok(()));
                        return Next::Leave;
                    }
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
    fn worker(&mut self, words: &[String]) -> Result<Worker> {
        let failed = |error: std::io::Error| Error::io(&error, "starting a process");
        if let Sat::By(pid) = Seat::sat(&self.seat())?
            && let Some(worker) = Worker::adopt(pid).map_err(failed)?
        {
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
        life.renewed |= words.renewed;
        life.exit = words.exit.or(life.exit);
        if let Some(why) = words.failure {
            if words.exit.is_none() {
                // It goes on as it was.
                let code = OTHER;
                answer(life.renewers.drain(..), Err(Ended { code, why }));
            } else {
                life.why = Some(why);
            }
        }
        if words.ready && life.ready.is_none() {
            let now = Instant::now();
            life.ready = Some(now);
            life.until = now + WATCHDOG;
            self.is_at(Phase::Up, |standing| standing.failure = None);
            answer(life.starters.drain(..), Ok(()));
        }
    }

    fn carry_out(&mut self, order: Order, worker: &Worker, life: &mut Life) {
        match order {
            Order::Start(_, tell) if life.ready.is_some() => answer([tell], Ok(())),
            Order::Start(_, tell) => life.starters.push(tell),
            Order::Stop(tell) => {
                life.stoppers.push(tell);
                // A second one of the same might come before the first is taken, and be one with it.
                let signal = if life.stopping { Signal::INT } else { Signal::TERM };
                life.stopping = true;
                life.until = Instant::now() + STOP;
                self.is_at(Phase::Stopping, |_| {});
                worker.signal(signal);
            }
            Order::Renew(tell) if life.ready.is_some() && !life.stopping => {
                life.renewers.push(tell);
                life.until = life.until.max(Instant::now() + RENEW);
                worker.signal(Signal::USR2);
            }
            Order::Renew(tell) => {
                answer([tell], Err(Ended { code: OTHER, why: "it is not up".to_owned() }));
            }
            Order::Leave(tell) => answer([tell], Ok(())),
        }
    }

    /// What comes after that life; all who wait are told.
    fn after(&mut self, life: Life, end: Option<ExitStatus>) -> Next {
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
        if life.stopping {
            let is_well = life.exit == Some(0) || came_to_nothing;
            let told = if is_well { Ok(()) } else { Err(ended.clone()) };
            let failure = told.clone().err();
            self.close_listeners();
            self.is_at(Phase::Ended, |standing| standing.failure = failure);
            answer(life.stoppers, told);
            answer(life.starters.into_iter().chain(life.renewers), Err(ended));
            return Next::Rest(None);
        }
        if life.renewed {
            self.note("has handed over to a new process");
            return Next::Life(Vec::new(), life.renewers);
        }
        if life.exit == Some(0) {
            self.note("was stopped, though not by this daemon");
            self.is_at(Phase::Ended, |standing| standing.failure = None);
            answer(life.starters.into_iter().chain(life.renewers), Err(ended));
            return Next::Rest(None);
        }
        answer(life.starters.into_iter().chain(life.renewers), Err(ended.clone()));
        let lived = life.ready.map_or(Duration::ZERO, |ready| ready.elapsed());
        let pause = self.pace.after(lived);
        let then = match pause {
            Some(Duration::ZERO) => "starting it again".to_owned(),
            Some(pause) => format!("starting it again in {} ms", pause.as_millis()),
            None => "it is not started again by itself".to_owned(),
        };
        let age = life.begun.elapsed().as_millis();
        self.note(&format!("ended after {age} ms: {}; {then}", ended.why));
        let phase = if pause.is_some() { Phase::Waiting } else { Phase::GivenUp };
        self.is_at(phase, |standing| standing.failure = Some(ended));
        Next::Rest(pause.map(|pause| Instant::now() + pause))
    }
}

impl Life {
    fn begin(starters: Vec<Tell>) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            ready: None,
            until: begun + START,
            stopping: false,
            renewed: false,
            exit: None,
            why: None,
            starters,
            stoppers: Vec::new(),
            renewers: Vec::new(),
        }
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
