//! How serving ends: nobody is let in any more, what was begun is answered, every device is flushed.

use std::rc::Rc;
use std::time::Duration;

use block::Env;
use block::Op;
use block::env::Address;
use export::nbd::{Export, Limits, Server};
use graph::Graph;
use graph::engine::Engine;
use graph::spec::Planned;
use graph::spec::units::format_duration;
use runtime::{Core, Signals};

use super::command::Command;
use super::{Serving, process};
use crate::exit::{Exit, Failure, Result};
use crate::out;
use crate::race::{First, race};

/// What serving came to.
pub enum Ended {
    /// All is flushed; with the code to end with.
    Flushed(u8),
    /// Not all is flushed, for the reason given.
    Unflushed(String),
    /// A second signal asked for the end at once.
    AtOnce,
}

impl Ended {
    /// Closes the core and makes it an exit code.
    pub fn finish(self, core: Core, limit: Duration) -> Result {
        let unflushed = |why: String| Err(Failure::new(Exit::Unflushed, why));
        match self {
            Self::Flushed(code) => match core.shutdown(limit) {
                Ok(()) if code == 0 => Ok(Exit::Ok),
                Ok(()) => Err(Failure { code, message: String::new() }),
                Err(error) => unflushed(error.to_string()),
            },
            Self::Unflushed(why) => {
                // What did not come within the deadline is not waited for a second time.
                let _ = core.shutdown(Duration::ZERO);
                unflushed(why)
            }
            Self::AtOnce => {
                let _ = core.shutdown(Duration::ZERO);
                unflushed("stopped at once by a second signal; nothing was flushed".to_owned())
            }
        }
    }
}

impl Serving {
    /// Opens everything that the plan names.
    pub async fn open(env: &Env, planned: &Planned) -> Result<Self> {
        let engine = Engine::new();
        env.spawn("engine", engine.clone().drive());
        let graph = Rc::new(Graph::build(planned, &engine, env).await?);
        let export = |export: &graph::Export| {
            Export::new(env, &engine, export.node, &export.name, &planned.name)
        };
        let exports = graph.exports().iter().map(export).collect();
        let mut limits = Limits::default();
        if let Some(most) = planned.max_connections {
            limits.connections = most as usize;
        }
        let server = Server::new(env, exports, limits, out::note);
        Ok(Self { env: env.clone(), engine, graph, server })
    }

    /// Lets clients in. Answers the addresses as they turned out.
    pub fn listen(&self, listens: &[Address]) -> Result<Vec<Address>> {
        let mut bound = Vec::new();
        for at in listens {
            let listener = self.env.listen(at)?;
            bound.push(listener.address());
            self.server.serve(listener);
        }
        Ok(bound)
    }

    /// Serves until a signal comes, then stops.
    pub async fn until_signal(&self, signals: &mut Signals, limit: Duration) -> Ended {
        let _ = signals.next().await;
        self.end(signals, limit, None, 0).await
    }

    /// Serves until the command ends, or a signal comes, then stops.
    pub async fn until_command(
        &self,
        mut command: Command,
        signals: &mut Signals,
        limit: Duration,
    ) -> Ended {
        match race(command.ended(), signals.next()).await {
            First::One(code) => self.end(signals, limit, None, code).await,
            First::Other(_) => self.end(signals, limit, Some(command), 0).await,
        }
    }

    /// Stops, unless a second signal comes before that is done.
    async fn end(
        &self,
        signals: &mut Signals,
        limit: Duration,
        command: Option<Command>,
        code: u8,
    ) -> Ended {
        process::tell_manager("STOPPING=1");
        let stop = async {
            if let Some(mut command) = command {
                command.terminate();
                let _ = self.env.within(limit, command.ended()).await;
            }
            self.stop(limit).await
        };
        match race(stop, signals.next()).await {
            First::One(Ok(closed)) => {
                if code == 0 {
                    // A terminal that is gone does not make it less flushed.
                    let closed = out::count(closed as u64, "connection");
                    let _ = out::print(&format!("flushed; closed {closed}.\n"));
                }
                Ended::Flushed(code)
            }
            First::One(Err(why)) => Ended::Unflushed(why),
            First::Other(_) => Ended::AtOnce,
        }
    }

    /// Answers what is begun and flushes. Says how many connections were closed, or what is missing.
    async fn stop(&self, limit: Duration) -> Result<usize, String> {
        let deadline = self.env.now().after(limit);
        let (closed, answered) = self.server.stop(limit).await;
        if !answered {
            return Err(self.overdue(limit));
        }
        let left = deadline.since(self.env.now());
        match self.env.within(left, self.flush()).await {
            Some(Ok(())) => Ok(closed),
            Some(Err(failed)) => Err(format!("not everything was flushed: {failed}")),
            None => Err(self.overdue(limit)),
        }
    }

    /// Flushes what every export shows, all at once; a failure does not keep the others from it.
    async fn flush(&self) -> Result<(), String> {
        let writable = self.graph.exports().iter().filter(|export| !export.info.read_only);
        let begun: Vec<_> = writable
            .map(|export| (&export.name, self.engine.lower(export.node).start(Op::Flush)))
            .collect();
        let mut failed = Vec::new();
        for (name, child) in begun {
            if let Err(error) = child.await.result {
                failed.push(format!("{name}: {error}"));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// What is still waited for.
    fn overdue(&self, limit: Duration) -> String {
        let mut waiting = Vec::new();
        for member in self.graph.members() {
            let requests = self.engine.counters(member.node, |counters| counters.in_flight());
            if requests > 0 {
                waiting.push(format!("{} ({}): {requests}", member.name, member.kind.name));
            }
        }
        let limit = format_duration(limit);
        let clients = out::count(self.engine.in_flight(), "request");
        format!(
            "stopped after {limit} with {clients} unanswered; waiting: {}. What was not \
             flushed may be lost with power",
            waiting.join(", ")
        )
    }
}
