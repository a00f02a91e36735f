//! Events of devices: for clients of the control socket, and for a program that is run for each event.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use api::EventLine;
use block::{ErrorKind, Mono, OpKind, RecordedEvent, What};
use engine::Failure;
use rustix::process::{Pid, Signal, kill_process_group};
use supervisor::Event;
use tokio::sync::oneshot;

use super::{Serving, process};
use crate::log;

/// Longest run of the program for one event. A longer run is killed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of the checks whether the program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Shortest time between two events about failures of the same kind in the same device.
const REPORT: Duration = Duration::from_secs(10);

/// The state of the log of events.
#[derive(Default)]
pub struct EventLog {
    /// Number of the last event in the log.
    last: Cell<u64>,
    /// The last reports of failures, by type of event and device.
    reports: RefCell<BTreeMap<(What, String), Reported>>,
}

/// The last event about failures of one kind in one device.
#[derive(Default)]
struct Reported {
    at: Option<Mono>,
    /// Number of such failures since the event.
    since: u64,
}

/// Returns the type of the event for a failed request.
fn what_failed(failure: &Failure) -> What {
    match (failure.verb, failure.error.kind()) {
        (OpKind::Flush, _) => What::FlushFailed,
        (_, ErrorKind::NoSpace) => What::DeviceFull,
        _ => What::DeviceError,
    }
}

fn line(graph: &str, receiver: RecordedEvent) -> EventLine {
    EventLine {
        number: receiver.number,
        at_unix_s: receiver.at.as_secs(),
        event: receiver.event.what.word().to_owned(),
        graph: graph.to_owned(),
        device: receiver.event.device,
        member: receiver.event.member,
        words: receiver.event.words,
    }
}

impl Serving {
    /// Returns the recent events with numbers above `after`, as replies of the control socket.
    pub(super) fn events(&self, after: u64) -> Vec<EventLine> {
        self.lines(self.env.events().map(|events| events.after(after)).unwrap_or_default())
    }

    /// Waits for events with numbers above `after`, and returns them. Waits without end if the environment stores no
    /// events.
    pub(super) async fn next_events(&self, after: u64) -> Vec<EventLine> {
        match self.env.events() {
            Some(events) => self.lines(events.next_after(after).await),
            None => std::future::pending().await,
        }
    }

    fn lines(&self, told: Vec<RecordedEvent>) -> Vec<EventLine> {
        let graph = &self.live.now().planned.name;
        told.into_iter().map(|told| line(graph, told)).collect()
    }

    /// Writes each event to the log, and reports failed requests of devices as events.
    pub fn log_events(self: &Rc<Self>) {
        let serving = self.clone();
        self.env.spawn("failures of devices", async move {
            loop {
                serving.engine.has_failures().await;
                serving.report_failures();
            }
        });
        let Some(events) = self.env.events() else { return };
        let serving = self.clone();
        self.env.spawn("the log of events", async move {
            loop {
                events.next_after(serving.event_log.last.get()).await;
                serving.log_new_events();
            }
        });
    }

    /// Writes the events to the log that are not in it yet. The end of the server calls this method, because no task
    /// runs after it.
    pub fn log_rest(&self) {
        self.report_failures();
        self.log_new_events();
    }

    fn log_new_events(&self) {
        let last = &self.event_log.last;
        let events = self.env.events().map(|events| events.after(last.get())).unwrap_or_default();
        for receiver in events {
            let lost = receiver.number - last.replace(receiver.number) - 1;
            if lost > 0 {
                warn!("{lost} events are lost: they came too fast for the log");
            }
            let level = receiver.event.what.level();
            let graph = self.live.now().planned.name.clone();
            log::event(&line(&graph, receiver), level);
        }
    }

    /// Reports failed requests as events, of one kind and device at most one in [`REPORT`].
    fn report_failures(&self) {
        let (failures, _) = self.engine.take_failures();
        let now = self.env.now();
        for failure in failures {
            let what = what_failed(&failure);
            let mut reports = self.event_log.reports.borrow_mut();
            let last = reports.entry((what, failure.device.clone())).or_default();
            if last.at.is_some_and(|at| now.since(at) < REPORT) {
                last.since += 1;
                continue;
            }
            let since = std::mem::take(&mut last.since);
            last.at = Some(now);
            let mut words = failure.error.sentence();
            if since > 0 {
                words += &format!("; {since} similar errors since the last report");
            }
            let device = failure.device;
            self.env.emit(block::Event { what, device, member: None, words });
        }
    }

    /// Takes a member out of its mirror when its file is deleted, because the bytes of the file will be lost when
    /// this process ends.
    pub fn take_out_deleted(self: &Rc<Self>) {
        let Some(events) = self.env.events() else { return };
        let serving = self.clone();
        self.env.spawn("deleted disks", async move {
            let mut last = 0;
            loop {
                for receiver in events.next_after(last).await {
                    last = receiver.number;
                    if receiver.event.what == What::DiskDeleted {
                        serving.live.take_out(&receiver.event.device).await;
                    }
                }
            }
        });
    }

    /// Runs the program that the spec names, once for each event, one run after the other. Clients do not wait for
    /// it. If events come faster than the runs, the event buffer stores them; when the buffer is full, a warning
    /// reports the lost events.
    pub fn notify_program(self: &Rc<Self>) {
        let Some(events) = self.env.events() else { return };
        let serving = self.clone();
        self.env.spawn("the program of events", async move {
            let mut last = 0;
            loop {
                for receiver in events.next_after(last).await {
                    let (before, graph) = (last, serving.live.now().planned.name.clone());
                    last = receiver.number;
                    // The spec may have changed since the last event.
                    let program = serving.spec.borrow().events_program().map(Path::to_owned);
                    let Some(program) = program else { continue };
                    let lost = receiver.number - before - 1;
                    if lost > 0 {
                        let program = program.display();
                        warn!("{lost} events are lost: {program} runs too slowly");
                    }
                    let event = match event_of(&program, line(&graph, receiver)) {
                        Ok(event) => event,
                        Err(error) => {
                            warn!("{}: {error}", program.display());
                            continue;
                        }
                    };
                    match serving.record {
                        Some(_) => have_run(&event),
                        None => run(event).await,
                    }
                }
            }
        });
    }
}

/// Returns the run of the program for one event: its arguments and environment. The arguments are those of a program
/// of mdadm.
fn event_of(program: &Path, line: EventLine) -> std::io::Result<Event> {
    let EventLine { number, at_unix_s, event, graph, device, member, words } = line;
    let variables = [
        ("CAIRN_EVENT", event.clone()),
        ("CAIRN_GRAPH", graph),
        ("CAIRN_DEVICE", device.clone()),
        ("CAIRN_MEMBER", member.clone().unwrap_or_default()),
        ("CAIRN_WORDS", words),
        ("CAIRN_NUMBER", number.to_string()),
        ("CAIRN_TIME", at_unix_s.to_string()),
    ];
    Ok(Event {
        // A bare name means a file in this directory, and is not searched for in PATH.
        program: std::path::absolute(program)?,
        directory: std::env::current_dir()?,
        arguments: [event, device].into_iter().chain(member).collect(),
        variables: variables.map(|(name, value)| (name.to_owned(), value)).into(),
    })
}

/// Sends the run to the daemon, which carries it out. A child of this process would inherit the filter of system
/// calls.
fn have_run(event: &Event) {
    match event.message() {
        Some(message) => process::notify_manager(&message),
        None => {
            let shown = event.program.display();
            warn!("an event for {shown} is lost: the event is too long");
        }
    }
}

/// Runs the program on a thread of its own, and waits until it has ended.
async fn run(event: Event) {
    let (sender, ended) = oneshot::channel();
    let begun = std::thread::Builder::new().name("cairn-event".to_owned()).spawn(move || {
        run_noted(&event);
        // The receiver is gone if the server is at its end.
        let _ = sender.send(());
    });
    match begun {
        // A thread that panics has ended too, so the result does not matter.
        Ok(_) => drop(ended.await),
        Err(error) => {
            warn!("starting a thread for the event program: {error}")
        }
    }
}

/// Runs the program, and waits until it has ended. A failure is logged as a warning.
pub fn run_noted(event: &Event) {
    if let Err(error) = run_now(event) {
        let what = event.arguments.join(" of ");
        warn!("event program {} for {what}: {error}", event.program.display());
    }
}

fn run_now(event: &Event) -> std::io::Result<()> {
    let mut command = std::process::Command::new(&event.program);
    command
        .args(&event.arguments)
        .envs(&event.variables)
        .current_dir(&event.directory)
        .stdin(Stdio::null())
        .process_group(0);
    let mut child = runtime::let_signals_through(|| command.spawn())?;
    let until = Instant::now() + TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() >= until {
            // This includes the children of the program.
            kill_process_group(Pid::from_child(&child), Signal::KILL)?;
            child.wait()?;
            let why = format!("the program was killed, because it still ran after {TIMEOUT:?}");
            return Err(std::io::Error::other(why));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
