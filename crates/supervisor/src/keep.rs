//! The supervision of one graph: this module starts its worker, receives the worker's messages, and starts the next
//! worker.

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
use crate::spare::SpareDescriptors;
use crate::worker::Worker;
use crate::worker_lock::{LockHolder, WorkerLock};

/// Longest time between two messages of a worker. A worker without messages for longer hangs, and is killed.
pub const WATCHDOG: Duration = Duration::from_secs(15);

/// Longest time from the start of a worker until clients can connect. It is long because disks may be slow, and keys
/// must be derived.
const START: Duration = Duration::from_secs(600);

/// Longest time in which a worker stops in order. The worker's own limit is shorter, unless it was set higher.
const STOP: Duration = Duration::from_secs(600);

/// Longest time in which a worker hands over, or reports why it does not.
const RENEW: Duration = Duration::from_secs(60);

/// Most orders in the queue of one graph.
const ORDERS_MAX: usize = 16;

/// The exit code of a failure for which no other code fits.
const OTHER: u8 = 1;

/// The exit code if the supervisor cannot carry out an order in the present phase of the graph.
const IN_USE: u8 = 5;

/// The exit code of a worker that was killed or crashed while it stopped.
const UNFLUSHED: u8 = 12;

/// A function that returns the command that starts a worker. The arguments are only for this start.
pub type Start = Box<dyn Fn(&[String]) -> Command + Send>;

/// A graph to supervise, with the callbacks of its supervisor.
pub struct WorkerSpec {
    /// Name of the graph.
    pub name: String,
    /// Directory of the graph's notify socket and worker lock.
    pub place: PathBuf,
    /// Descriptors that are held for the graph from the begin of supervision on.
    pub held: Vec<(String, OwnedFd)>,
    /// Function that returns the command for starting a worker.
    pub command: Start,
    /// Function that is called with the name of the graph and a line about it for the log. The line may begin with a
    /// level: `warning: `, `error: `.
    pub note: fn(&str, &str),
    /// Function that runs the program for an event of the graph.
    pub run: Run,
    /// Descriptors in reserve, so that a worker can be started when all others are in use.
    pub spare: SpareDescriptors,
}

/// The phase of a supervised graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// A worker runs, but clients cannot connect yet.
    Starting,
    /// A worker runs, and clients can connect.
    Up,
    /// A worker was ordered to end, and still runs.
    Stopping,
    /// The last worker has ended unexpectedly, and the next one is started later.
    Waiting,
    /// Workers have ended unexpectedly too often, and no further one is started. The descriptors for the next worker
    /// are still held.
    GivenUp,
    /// The worker has ended in order, and no further one is started.
    Ended,
}

/// The end of a worker, or the refusal of an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Exit code of the worker, or for the refusal.
    pub code: u8,
    /// The reason why the worker has ended, or why the order was refused.
    pub why: String,
}

/// The status of a supervised graph.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// The phase of the graph.
    pub phase: Phase,
    /// Time of the last change of the phase.
    pub since: SystemTime,
    /// Process id of the worker, if one runs.
    pub pid: Option<u32>,
    /// Number of workers that this supervisor has started.
    pub starts: u64,
    /// Number of descriptors that are held for the next worker.
    pub held: usize,
    /// The end of the last worker, if it ended unexpectedly.
    pub failure: Option<Ended>,
}

type Outcome = std::result::Result<(), Ended>;
type Reply = oneshot::Sender<Outcome>;

/// Descriptors that are held for a graph, with their names.
pub type Left = Vec<(String, OwnedFd)>;

enum Order {
    Start(Vec<String>, Reply),
    /// A start that restores the previous phase if clients cannot connect to the worker.
    Once(Vec<String>, Reply),
    /// The suspension of automatic starts.
    Rest(Reply),
    /// The resumption of automatic starts.
    GoOn,
    Stop(Reply),
    /// A stop without waiting for the flush.
    StopAtOnce(Reply),
    Renew(Reply),
    Leave(Leaver),
}

/// A caller that waits until another daemon can supervise the graph.
struct Leaver {
    reply: oneshot::Sender<std::result::Result<Left, Ended>>,
    /// Whether the caller passes the descriptors of this supervisor to that daemon.
    passes_on: bool,
}

/// A handle of a supervised graph. Callers give orders to its supervisor through the handle.
#[derive(Clone)]
pub struct Kept {
    orders: mpsc::Sender<Order>,
    status: watch::Receiver<WorkerStatus>,
}

impl Kept {
    /// Begins to supervise the graph. A running worker of the graph continues under this supervisor. If none runs,
    /// [`Kept::start`] must start one.
    ///
    /// # Errors
    /// Errors of the system in the directory of the graph.
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
        let (status, watched) = watch::channel(now);
        let WorkerSpec { name, place, held, command, note, run, spare } = charge;
        let events = Events::begin(run);
        let held = Held::new(&name, held);
        let pace = Pace::default();
        let keep = Keep {
            name,
            place,
            ear,
            held,
            command,
            note,
            events,
            pace,
            spare,
            orders,
            status,
            leaver: None,
        };
        tokio::spawn(keep.run());
        Ok(Self { orders: sender, status: watched })
    }

    /// Returns the status of the graph.
    pub fn status(&self) -> WorkerStatus {
        self.status.borrow().clone()
    }

    /// Starts a worker of the graph, if none runs, and waits until clients can connect. `words` are arguments for
    /// this start only.
    ///
    /// # Errors
    /// The end of the worker. The caller may start the graph again after that.
    pub async fn start(&self, words: Vec<String>) -> Outcome {
        self.order(|reply| Order::Start(words, reply)).await
    }

    /// Starts a worker of the graph once, and waits. If clients cannot connect to it, the previous phase and the
    /// remaining number of automatic starts are restored. A caller that has suspended automatic starts must resume
    /// them.
    ///
    /// # Errors
    /// The end of the worker.
    pub async fn try_once(&self, words: Vec<String>) -> Outcome {
        self.order(|reply| Order::Once(words, reply)).await
    }

    /// Suspends automatic starts of the graph. Waits up to `within` until a start in progress has ended.
    ///
    /// # Errors
    /// A worker runs, or is still being started after `within`. Then automatic starts are not suspended.
    pub async fn rest(&self, within: Duration) -> Outcome {
        if let Ok(outcome) = timeout(within, self.order(Order::Rest)).await {
            return outcome;
        }
        self.go_on().await;
        Err(Ended { code: IN_USE, why: "a worker is starting".to_owned() })
    }

    /// Resumes automatic starts of the graph.
    pub async fn go_on(&self) {
        // If the graph is not supervised any more, there is nothing to resume.
        let _ = self.orders.send(Order::GoOn).await;
    }

    /// Stops the worker of the graph in order.
    ///
    /// # Errors
    /// The failure of the worker, or the fact that writes were not flushed.
    pub async fn stop(&self) -> Outcome {
        self.order(Order::Stop).await
    }

    /// Stops the worker of a graph without waiting for the flush.
    ///
    /// # Errors
    /// As [`Kept::stop`].
    pub async fn stop_at_once(&self) -> Outcome {
        self.order(Order::StopAtOnce).await
    }

    /// Makes the worker of the graph hand over to a new worker, and waits until clients can connect to the new
    /// worker.
    ///
    /// # Errors
    /// The reason why the old worker continues, or why the new worker does not start.
    pub async fn renew(&self) -> Outcome {
        self.order(Order::Renew).await
    }

    /// Ends the supervision of the graph, so that another daemon can begin it, as soon as that daemon can find the
    /// worker: not during a hand-over. Returns the descriptors that are held for the graph. If the caller does not
    /// pass them on, the worker sends all of them to the other daemon.
    ///
    /// # Errors
    /// No worker runs, and descriptors are held that the caller does not pass on. Then supervision continues.
    pub async fn leave(&self, passes_on: bool) -> std::result::Result<Left, Ended> {
        let (reply, left) = oneshot::channel();
        // If the channel is closed, the graph was left already.
        let _ = self.orders.send(Order::Leave(Leaver { reply, passes_on })).await;
        left.await.unwrap_or_else(|_| Ok(Left::new()))
    }

    async fn order(&self, order: impl FnOnce(Reply) -> Order) -> Outcome {
        let gone = || Ended { code: OTHER, why: "the daemon no longer keeps the graph".to_owned() };
        let (reply, outcome) = oneshot::channel();
        self.orders.send(order(reply)).await.map_err(|_| gone())?;
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}

struct Keep {
    name: String,
    place: PathBuf,
    ear: NotifySocket,
    held: Held,
    command: Start,
    note: fn(&str, &str),
    events: Events,
    pace: Pace,
    spare: SpareDescriptors,
    orders: mpsc::Receiver<Order>,
    status: watch::Sender<WorkerStatus>,
    leaver: Option<Leaver>,
}

/// State of the present worker.
struct Life {
    begun: Instant,
    /// Whether the worker holds the worker lock, by which another daemon finds it.
    seated: bool,
    /// Time from which on clients could connect; `None` before.
    ready: Option<Instant>,
    /// Time at which the worker is killed, unless it sends a message before.
    until: Instant,
    stopping: bool,
    renewed: bool,
    exit: Option<u8>,
    why: Option<String>,
    /// Whether the next worker would end in the same way.
    lasting: bool,
    waiting: Waiting,
    /// State to restore if the worker ends before clients could connect.
    before: Option<Before>,
}

/// Callers that wait until clients can connect to a worker, until a worker has ended, until a new worker has replaced
/// it, or until automatic starts are suspended.
#[derive(Default)]
struct Waiting {
    starters: Vec<Reply>,
    stoppers: Vec<Reply>,
    renewers: Vec<Reply>,
    resters: Vec<Reply>,
}

/// A period without a worker.
#[derive(Clone, Copy, Default)]
struct Rest {
    /// Time of the next automatic start; `None` if there is none.
    until: Option<Instant>,
    /// Whether automatic starts are suspended, because a caller will give an order.
    ordered: bool,
}

/// State of a graph before a single start ([`Kept::try_once`]).
struct Before {
    status: WorkerStatus,
    rest: Rest,
}

/// The next step of the supervisor after a worker has ended.
enum Next {
    /// The supervisor starts another worker, and these callers wait for it.
    Life(Vec<String>, Waiting),
    /// The supervisor starts a worker once, and restores this state if that fails.
    Trial(Vec<String>, Reply, Rest),
    /// No worker is started for now.
    Rest(Rest),
    /// Another daemon supervises the graph.
    Leave,
    /// The graph is not supervised any more.
    Forget,
}

impl Keep {
    async fn run(mut self) {
        let mut next = match WorkerLock::holder(&self.seat()) {
            Ok(LockHolder::By(_)) => Next::Life(Vec::new(), Waiting::default()),
            _ => Next::Rest(Rest::default()),
        };
        loop {
            next = match next {
                Next::Life(words, waiting) => self.live(&words, Life::begin(waiting)).await,
                Next::Trial(words, reply, rest) => {
                    let waiting = Waiting { starters: vec![reply], ..Waiting::default() };
                    let before = Some(Before { status: self.status.borrow().clone(), rest });
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
        (self.note)(&self.name, words);
    }

    /// Changes the status of the graph, and writes its new phase to the log.
    fn is_at(&self, phase: Phase, change: impl FnOnce(&mut WorkerStatus)) {
        let before = self.status.borrow().phase;
        self.status.send_modify(|status| {
            status.phase = phase;
            status.since = SystemTime::now();
            status.held = self.held.len();
            change(status);
        });
        let pid =
            self.status.borrow().pid.map_or_else(String::new, |pid| format!(", process {pid}"));
        match phase {
            _ if phase == before => {}
            Phase::Starting => self.note(&format!("starting{pid}")),
            Phase::Up => self.note(&format!("up{pid}")),
            Phase::Stopping => self.note("stopping"),
            Phase::Ended => self.note("stopped"),
            // The line about the end of the worker says so.
            Phase::Waiting | Phase::GivenUp => {}
        }
    }

    /// Waits for an order, or until the time of the next automatic start.
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
                Some(Order::Start(_, reply)) if rest.ordered => {
                    // The caller that has suspended automatic starts will start it or resume them.
                    self.pace.reset();
                    let why = "another request is about to start the graph".to_owned();
                    answer([reply], Err(Ended { code: IN_USE, why }));
                    Next::Rest(Rest { until: Some(Instant::now()), ..rest })
                }
                Some(Order::Start(words, reply)) => {
                    self.pace.reset();
                    Next::Life(words, Waiting { starters: vec![reply], ..Waiting::default() })
                }
                Some(Order::Once(words, reply)) => Next::Trial(words, reply, rest),
                Some(Order::Rest(reply)) => {
                    Next::Rest(Rest { ordered: reply.send(Ok(())).is_ok(), ..rest })
                }
                Some(Order::GoOn) => Next::Rest(Rest { ordered: false, ..rest }),
                Some(Order::Stop(reply) | Order::StopAtOnce(reply)) => {
                    self.close_listeners();
                    self.is_at(Phase::Ended, |_| {});
                    answer([reply], Ok(()));
                    Next::Rest(Rest::default())
                }
                Some(Order::Renew(reply)) => {
                    let why = "the graph is not up".to_owned();
                    answer([reply], Err(Ended { code: OTHER, why }));
                    Next::Rest(rest)
                }
                Some(Order::Leave(leaver)) => self.leave_at_rest(leaver, rest),
                None => Next::Forget,
            },
        }
    }

    /// Ends the supervision of a graph without a worker, if the held descriptors are passed on or there are none.
    /// Otherwise refuses, because no other process has the descriptors.
    fn leave_at_rest(&mut self, leaver: Leaver, rest: Rest) -> Next {
        if leaver.passes_on || self.held.is_empty() {
            self.leaver = Some(leaver);
            return Next::Leave;
        }
        let why = format!(
            "{} does not run, and this daemon would lose the descriptors for its next worker ({})",
            self.name,
            self.held.len()
        );
        let _ = leaver.reply.send(Err(Ended { code: IN_USE, why }));
        Next::Rest(rest)
    }

    /// Ends the supervision for another daemon, and returns the held descriptors to the caller that waits.
    fn go(mut self) {
        if let Some(leaver) = self.leaver.take() {
            // If the caller is gone, it continues without the descriptors.
            let _ = leaver.reply.send(Ok(self.held.into_all()));
        }
    }

    /// Closes the held listeners of a graph whose worker ended unexpectedly. A worker that ends in order closes them
    /// itself.
    fn close_listeners(&mut self) {
        if let Err(error) = self.held.close_listeners() {
            self.note(&format!("warning: {error}"));
        }
    }

    /// Closes the held descriptors of a graph that is not supervised any more. Without a supervisor they have no use,
    /// and keys among them must not remain.
    fn forget(mut self) {
        if let Err(error) = self.held.clear() {
            self.note(&format!("warning: {error}"));
        }
    }

    /// Supervises one worker, from its start to its end.
    async fn live(&mut self, words: &[String], mut life: Life) -> Next {
        let spare = self.spare.clone();
        let worker = match spare.lend(|| self.worker(words, &mut life)) {
            Ok(worker) => worker,
            Err(error) => {
                life.why = Some(error.to_string());
                return self.after(life, None);
            }
        };
        self.is_at(Phase::Starting, |status| {
            status.pid = Some(worker.pid());
            status.starts += 1;
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
                            // The stop was meant for the previous worker, which has handed over instead.
                            self.end(&worker, &mut life);
                        }
                    }
                    Err(error) => self.note(&format!("warning: the worker's notify socket: {error}")),
                },
                order = self.orders.recv() => match order {
                    Some(order) => self.carry_out(order, &worker, &mut life),
                    None => return Next::Forget,
                },
                () = sleep_until(life.until) => {
                    let pid = worker.pid();
                    self.note(&format!(
                        "warning: worker process {pid} missed its deadline, and is killed"
                    ));
                    worker.signal(Signal::KILL);
                    life.until += START;
                }
            }
        }
        while let Some(heard) = self.ear.heard() {
            self.obey(heard, &mut life);
        }
        self.after(life, worker.reap())
    }

    /// Returns the running worker of the graph, or starts a new one.
    fn worker(&mut self, words: &[String], life: &mut Life) -> Result<Worker> {
        let failed = |error: std::io::Error| Error::io(&error, "starting a worker process");
        let sat = WorkerLock::holder(&self.seat())?;
        if let LockHolder::By(pid) = sat
            && let Some(worker) = Worker::adopt(pid).map_err(failed)?
            // Its process id may have been reused before it was opened.
            && WorkerLock::holder(&self.seat())? == sat
        {
            life.seated = true;
            self.note(&format!("adopts worker process {pid}"));
            worker.signal(Signal::USR1);
            return Ok(worker);
        }
        let passed = runtime::pass_fds(self.held.all())?;
        let mut command = (self.command)(words);
        command.stdin(passed).env("NOTIFY_SOCKET", self.ear.path());
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        Worker::start(command).map_err(failed)
    }

    /// Handles a message of the worker.
    fn obey(&mut self, (words, file): Heard, life: &mut Life) {
        life.until = life.until.max(Instant::now() + life.patience());
        // A worker sends no message before it has the lock.
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
            self.status.send_modify(|status| status.held = self.held.len());
        }
        if let Some(event) = words.event.filter(|event| !self.events.push(event.clone())) {
            self.note(&format!(
                "warning: an event for {} is lost: too many events wait",
                event.program.display()
            ));
        }
        life.renewed |= words.renewed;
        life.lasting |= words.lasting;
        life.exit = words.exit.or(life.exit);
        if let Some(why) = words.failure {
            if words.exit.is_none() {
                // The worker continues as it was.
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
            self.is_at(Phase::Up, |status| status.failure = None);
            answer(life.waiting.starters.drain(..), Ok(()));
            answer(life.waiting.resters.drain(..), Err(runs()));
            if life.before.take().is_some() {
                self.pace.reset();
            }
        }
    }

    fn carry_out(&mut self, order: Order, worker: &Worker, life: &mut Life) {
        match order {
            Order::Start(_, reply) | Order::Once(_, reply) if life.ready.is_some() => {
                answer([reply], Ok(()));
            }
            Order::Start(_, reply) | Order::Once(_, reply) => life.waiting.starters.push(reply),
            Order::Rest(reply) if life.ready.is_some() => answer([reply], Err(runs())),
            Order::Rest(reply) => life.waiting.resters.push(reply),
            // Only a caller that gave up waiting for the suspension resumes here: there is nothing to resume.
            Order::GoOn => {}
            Order::Stop(reply) => {
                life.waiting.stoppers.push(reply);
                if !life.stopping {
                    self.end(worker, life);
                }
            }
            Order::StopAtOnce(reply) => {
                life.waiting.stoppers.push(reply);
                // A second equal signal might come before the first is handled, and be merged with it.
                worker.signal(if life.stopping { Signal::INT } else { Signal::TERM });
                life.stopping = true;
            }
            Order::Renew(reply) if life.ready.is_some() && !life.stopping => {
                life.waiting.renewers.push(reply);
                life.until = life.until.max(Instant::now() + RENEW);
                worker.signal(Signal::USR2);
            }
            Order::Renew(reply) => {
                answer([reply], Err(Ended { code: OTHER, why: "the graph is not up".to_owned() }));
            }
            Order::Leave(leaver) => self.leaver = Some(leaver),
        }
    }

    /// Orders the worker to end.
    fn end(&self, worker: &Worker, life: &mut Life) {
        life.stopping = true;
        life.until = Instant::now() + STOP;
        self.is_at(Phase::Stopping, |_| {});
        worker.signal(Signal::TERM);
    }

    /// Decides the next step after a worker has ended, and replies to all callers that wait.
    fn after(&mut self, mut life: Life, end: Option<ExitStatus>) -> Next {
        let resters = std::mem::take(&mut life.waiting.resters);
        match self.then(life, end) {
            Next::Life(words, waiting) => Next::Life(words, Waiting { resters, ..waiting }),
            Next::Rest(rest) => {
                let wait = resters.into_iter().filter_map(|reply| reply.send(Ok(())).ok()).count();
                Next::Rest(Rest { ordered: rest.ordered || wait > 0, ..rest })
            }
            next => next,
        }
    }

    fn then(&mut self, life: Life, end: Option<ExitStatus>) -> Next {
        let came_to_nothing = life.came_to_nothing(end);
        let code = life.exit.unwrap_or(if life.stopping { UNFLUSHED } else { OTHER });
        let why = life.why.unwrap_or_else(|| match life.exit {
            Some(code) => format!("the worker exited with code {code}"),
            None => match end {
                Some(end) => format!("the worker was killed, or crashed: {end}"),
                None => "the worker was killed, or crashed".to_owned(),
            },
        });
        let ended = Ended { code, why };
        self.status.send_modify(|status| status.pid = None);
        let Waiting { starters, stoppers, renewers, .. } = life.waiting;
        if life.renewed {
            self.note("the worker has handed over to a new process");
            // A stop applies to the successor as well.
            let waiting = Waiting { starters: renewers, stoppers, ..Waiting::default() };
            return Next::Life(Vec::new(), waiting);
        }
        let others = starters.into_iter().chain(renewers);
        if life.stopping || !stoppers.is_empty() {
            let is_well = life.exit == Some(0) || came_to_nothing;
            let outcome = if is_well { Ok(()) } else { Err(ended.clone()) };
            let failure = outcome.clone().err();
            self.close_listeners();
            self.is_at(Phase::Ended, |status| status.failure = failure);
            answer(stoppers, outcome);
            answer(others, Err(ended));
            return Next::Rest(Rest::default());
        }
        let age = life.begun.elapsed().as_millis();
        if let Some(before) = life.before {
            self.note(&format!("error: the new worker ended after {age} ms: {}", ended.why));
            answer(others, Err(ended));
            return self.again(before);
        }
        if life.exit == Some(0) {
            self.note(&format!(
                "warning: the worker was stopped, but not by this daemon, which starts no other worker. \
                 Next: cairn apply SPEC; or cairn stop {0}, and cairn import {0}",
                self.name
            ));
            self.is_at(Phase::Ended, |status| status.failure = None);
            answer(others, Err(ended));
            return Next::Rest(Rest::default());
        }
        answer(others, Err(ended.clone()));
        let lived = life.ready.map_or(Duration::ZERO, |ready| ready.elapsed());
        let pause = if life.lasting { None } else { self.pace.after(lived) };
        let then = match pause {
            Some(Duration::ZERO) => "starting the next worker".to_owned(),
            Some(pause) => format!("starting the next worker in {} ms", pause.as_millis()),
            None => "given up: the daemon starts no other worker".to_owned(),
        };
        let (phase, level) = match pause {
            Some(_) => (Phase::Waiting, "warning"),
            None => (Phase::GivenUp, "error"),
        };
        let why = &ended.why;
        self.note(&format!("{level}: the worker ended after {age} ms: {why}; {then}"));
        self.is_at(phase, |status| status.failure = Some(ended));
        let until = pause.map(|pause| Instant::now() + pause);
        Next::Rest(Rest { until, ..Rest::default() })
    }

    /// Restores the state from before a single start.
    fn again(&self, before: Before) -> Next {
        let Before { status: WorkerStatus { phase, since, failure, .. }, rest } = before;
        self.is_at(phase, |status| {
            status.since = since;
            status.failure = failure;
        });
        Next::Rest(rest)
    }
}

/// Returns the refusal to suspend automatic starts, because a worker runs.
fn runs() -> Ended {
    Ended { code: IN_USE, why: "a worker is running".to_owned() }
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

    /// Whether another daemon can supervise the worker. That daemon must find the worker, and must get all held
    /// descriptors from it. A worker in a hand-over has sent them to this daemon. A worker that is starting sends
    /// them to the next daemon only when clients can connect.
    fn may_be_left(&self, held: &Held) -> bool {
        let is_told = self.ready.is_some() || held.is_empty();
        self.seated && is_told && self.waiting.renewers.is_empty()
    }

    /// Whether the worker has served no client, and has no unflushed writes.
    fn came_to_nothing(&self, end: Option<ExitStatus>) -> bool {
        // A worker that dies of our SIGTERM does not handle signals yet, and opens disks only after it does.
        let was_early = || end.and_then(|end| end.signal()) == Some(Signal::TERM.as_raw());
        self.ready.is_none() && self.exit.map_or_else(was_early, |code| code != UNFLUSHED)
    }

    /// Returns the longest time between two messages of the worker.
    fn patience(&self) -> Duration {
        if self.ready.is_some() { WATCHDOG } else { START }
    }
}

fn answer(reply: impl IntoIterator<Item = Reply>, outcome: Outcome) {
    for reply in reply {
        // The caller may have given up.
        let _ = reply.send(outcome.clone());
    }
}
