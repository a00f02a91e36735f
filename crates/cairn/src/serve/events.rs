//! What has happened to devices, for whoever asks, and for a program that is run for each.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use api::EventLine;
use block::{Env, Told};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::oneshot;

use super::Serving;
use crate::out;

/// A program that has not ended by then is killed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// The events after that number, as the control socket tells them.
pub fn lines(env: &Env, graph: &str, after: u64) -> Vec<EventLine> {
    let told = env.events().map(|events| events.after(after)).unwrap_or_default();
    told.into_iter().map(|told| line(graph, told)).collect()
}

/// The same, once there is one. Where none are kept there never is.
pub async fn next_lines(env: &Env, graph: &str, after: u64) -> Vec<EventLine> {
    let told = match env.events() {
        Some(events) => events.next_after(after).await,
        None => std::future::pending().await,
    };
    told.into_iter().map(|told| line(graph, told)).collect()
}

fn line(graph: &str, told: Told) -> EventLine {
    EventLine {
        number: told.number,
        at_unix_s: told.at.as_secs(),
        event: told.event.what.word().to_owned(),
        graph: graph.to_owned(),
        device: told.event.device,
        member: told.event.member,
        words: told.event.words,
    }
}

impl Serving {
    /// Runs the program of the spec, if it has one, once for each event: one after the other, beside the
    /// data path. What comes faster than it ends is kept as long as events are, and told of if it is lost.
    pub fn tell_program(self: &Rc<Self>) {
        let Some(events) = self.env.events() else { return };
        let serving = self.clone();
        self.env.spawn("the program of events", async move {
            let mut last = 0;
            loop {
                for told in events.next_after(last).await {
                    let (before, graph) = (last, serving.live.now().planned.name.clone());
                    last = told.number;
                    // The spec may be another one by now.
                    let program = serving.spec.borrow().events_program().map(Path::to_owned);
                    let Some(program) = program else { continue };
                    let lost = told.number - before - 1;
                    if lost > 0 {
                        let program = program.display();
                        out::note(&format!("warning: {lost} events were too fast for {program}"));
                    }
                    run(program, line(&graph, told)).await;
                }
            }
        });
    }
}

/// Runs the program on a thread of its own, and waits for its end.
async fn run(program: PathBuf, line: EventLine) {
    let (tell, ended) = oneshot::channel();
    let begun = std::thread::Builder::new().name("cairn-event".to_owned()).spawn(move || {
        let shown = format!("{} for {} of {}", program.display(), line.event, line.device);
        if let Err(error) = run_now(&program, &line) {
            out::note(&format!("warning: {shown}: {error}"));
        }
        // Nobody listens any more when the server is at its end.
        let _ = tell.send(());
    });
    match begun {
        // Its end is all that there is to know.
        Ok(_) => drop(ended.await),
        Err(error) => out::note(&format!("warning: no thread for the program of events: {error}")),
    }
}

/// Runs the program for one event: words as mdadm gives them, and the rest in its environment.
fn run_now(program: &Path, line: &EventLine) -> std::io::Result<()> {
    let member = line.member.as_deref().unwrap_or_default();
    // A bare name is no word to be looked for elsewhere.
    let mut command = std::process::Command::new(std::path::absolute(program)?);
    command
        .args([&line.event, &line.device])
        .args(line.member.as_deref())
        .env("CAIRN_EVENT", &line.event)
        .env("CAIRN_GRAPH", &line.graph)
        .env("CAIRN_DEVICE", &line.device)
        .env("CAIRN_MEMBER", member)
        .env("CAIRN_WORDS", &line.words)
        .env("CAIRN_NUMBER", line.number.to_string())
        .env("CAIRN_TIME", line.at_unix_s.to_string())
        .stdin(Stdio::null())
        .process_group(0);
    let mut child = runtime::let_signals_through(|| command.spawn())?;
    let until = Instant::now() + TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() >= until {
            // And what it has started.
            kill_process_group(Pid::from_child(&child), Signal::KILL)?;
            child.wait()?;
            let why = format!("it was still running after {TIMEOUT:?}, and was killed");
            return Err(std::io::Error::other(why));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
