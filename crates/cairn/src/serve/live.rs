//! Requests of the control socket to the running graph.

use std::rc::Rc;

use api::{
    Applied, ApplyRequest, AttachRequest, Attached, Checked, CommandRequest, Counts, DetachRequest,
    DeviceStatus, DiskRequest, EventLine, GraphView, Health, History, Job, JobRequest, Later, Live,
    MemberRequest, Place, Power, Problem, ResizeRequest, ScrubRequest, SpecText, Status, Top,
    TopRow, UndoRequest,
};
use block::control::copies::{Action, Scrub};
use block::control::member::{Fail, Name, Resync, Stale};
use block::control::{Command, Verb, find_verb};
use block::{ErrorKind, Report};
use graph::live::Current;
use graph::{Graph, Located, Member};
use serde_json::Value;

use super::{Serving, events};
use crate::attach::must_be_root;
use crate::exit::{Exit, Failure};
use crate::names;
use crate::registry::REGISTRY;
use crate::view;

/// The served graph, for the control socket.
pub struct Running(pub Rc<Serving>);

impl Live for Running {
    fn graph(&self) -> GraphView {
        let mut view = self.0.view();
        for (node, device) in view.nodes.iter_mut().zip(devices(&self.now().graph)) {
            node.health = device.health;
        }
        view
    }

    fn spec(&self) -> SpecText {
        view::spec(&self.0.planned())
    }

    fn status(&self) -> Status {
        let graph = &self.now().graph;
        let devices = devices(graph);
        Status {
            graph: graph.name().to_owned(),
            pid: std::process::id(),
            health: health(graph, &devices),
            connections: self.0.server.connections(),
            served: self.0.server.served(),
            devices,
            attached: self.0.attachments.views(),
            kept: None,
        }
    }

    fn top(&self) -> Top {
        let now = self.now();
        let row = |index: usize| {
            let node = &now.planned.nodes[index];
            TopRow {
                name: node.name.clone(),
                kind: node.kind.name.to_owned(),
                fused: view::run_of(&now.planned, index),
                counts: (view::power(node) != Power::Hooks).then(|| self.counts(&now.graph, index)),
            }
        };
        Top {
            graph: now.graph.name().to_owned(),
            clock_us: self.0.env.now().0.as_micros() as u64,
            rows: view::entered(&now.planned).into_iter().rev().map(row).collect(),
        }
    }

    fn locate(&self, export: &str, offset: u64) -> Later<Result<Place, Problem>> {
        let (now, export) = (self.now(), export.to_owned());
        Box::pin(async move {
            let graph = &now.graph;
            let Some(found) = graph.export(&export) else {
                let names: Vec<_> = graph.exports().iter().map(|e| e.name.as_str()).collect();
                let graph = graph.name();
                let why = format!("{graph} has no export {export:?}; it has {}", names.join(", "));
                return Err(problem(Exit::NotFound, why));
            };
            graph.locate(found, offset).await.map(place).map_err(refused)
        })
    }

    fn fail(&self, request: MemberRequest) -> Later<Result<DeviceStatus, Problem>> {
        let args = Name { member: request.member.clone() };
        self.ask_member::<Fail>(&request, args)
    }

    fn resync(&self, request: MemberRequest) -> Later<Result<DeviceStatus, Problem>> {
        let args = Stale { member: Some(request.member.clone()) };
        self.ask_member::<Resync>(&request, args)
    }

    fn scrub(&self, request: ScrubRequest) -> Later<Result<DeviceStatus, Problem>> {
        let ScrubRequest { of, stop, dry_run } = request;
        let device = with_copies(&self.now().graph, &of).map(|device| device.name.clone());
        self.ask::<Scrub>(device, Action { stop }, dry_run)
    }

    fn events(&self, after: u64) -> Vec<EventLine> {
        events::lines(&self.0.env, &self.now().planned.name, after)
    }

    fn next_events(&self, after: u64) -> Later<Vec<EventLine>> {
        let serving = self.0.clone();
        Box::pin(async move {
            let name = serving.live.now().planned.name.clone();
            events::next_lines(&serving.env, &name, after).await
        })
    }

    fn disk(&self, request: DiskRequest) -> Later<Result<Applied, Problem>> {
        self.later(async move |serving| serving.disk(&request).await)
    }

    fn command(&self, request: CommandRequest) -> Later<Result<Value, Problem>> {
        self.later(async move |serving| Ok::<_, Failure>(serving.command(&request).await?))
    }

    fn attach(&self, request: AttachRequest) -> Later<Result<Attached, Problem>> {
        let exports = self.0.view().exports;
        let uri = exports.iter().find(|export| export.name == request.export);
        let uri = uri.and_then(|export| export.uris.first()).cloned();
        self.later(async move |serving| {
            let AttachRequest { export, name, by, dry_run } = request;
            must_be_root(uri.as_deref())?;
            serving.attachments.attach(&export, name.as_deref(), by, dry_run).await
        })
    }

    fn detach(&self, request: DetachRequest) -> Later<Result<Attached, Problem>> {
        self.later(async move |serving| {
            serving.attachments.detach(&request.name, request.dry_run).await
        })
    }

    fn apply(&self, request: ApplyRequest) -> Later<Result<Applied, Problem>> {
        self.later(async move |serving| serving.apply(&request).await)
    }

    fn check(&self, repair: bool) -> Later<Result<Checked, Problem>> {
        self.later(async move |serving| serving.check(repair).await)
    }

    fn history(&self) -> Result<History, Problem> {
        self.0.history().map_err(Problem::from)
    }

    fn undo(&self, request: UndoRequest) -> Later<Result<Applied, Problem>> {
        self.later(async move |serving| serving.go_back(&request).await)
    }

    fn jobs(&self) -> Vec<Job> {
        self.0.jobs()
    }

    fn job(&self, request: JobRequest) -> Later<Result<Job, Problem>> {
        self.later(async move |serving| serving.job(&request).await)
    }

    fn resize(&self, request: ResizeRequest) -> Later<Result<Applied, Problem>> {
        self.later(async move |serving| serving.resize(&request).await)
    }

    fn spawn(&self, task: Later<()>) {
        self.0.env.spawn("an answer of the control socket", task);
    }
}

/// Returns the status of every device.
fn devices(graph: &Graph) -> Vec<DeviceStatus> {
    graph.members().iter().map(|member| device(member, graph.report(member))).collect()
}

/// Returns the worst health of the exported devices. A device with members accounts for their health itself; any other
/// device is at best as healthy as its lowers.
fn health(graph: &Graph, devices: &[DeviceStatus]) -> Health {
    let mut health: Vec<Health> = Vec::new();
    for (member, device) in graph.members().iter().zip(devices) {
        let below = member.lowers.iter().map(|lower| health[*lower]);
        let below = below.max().filter(|_| device.members.is_empty());
        health.push(device.health.max(below.unwrap_or(Health::Ok)));
    }
    let shown = graph.exports().iter().map(|export| health[export.member]);
    shown.max().unwrap_or(Health::Ok)
}

impl Running {
    fn now(&self) -> Rc<Current> {
        self.0.live.now()
    }

    /// Returns the answer of a request that takes time.
    fn later<T, E: Into<Problem>>(
        &self,
        work: impl AsyncFnOnce(Rc<Serving>) -> Result<T, E> + 'static,
    ) -> Later<Result<T, Problem>> {
        let serving = self.0.clone();
        Box::pin(async move { work(serving).await.map_err(Into::into) })
    }

    fn counts(&self, graph: &Graph, index: usize) -> Counts {
        self.0.engine.counters(graph.members()[index].counted(), |counters| Counts {
            ops: block::Verb::ALL.map(|verb| (verb.name().to_owned(), counters.ops(verb))).into(),
            bytes: block::Verb::ALL
                .map(|verb| (verb.name().to_owned(), counters.bytes(verb)))
                .into(),
            errors: counters.errors(),
            in_flight: counters.in_flight(),
        })
    }

    fn ask_member<V: Verb>(
        &self,
        request: &MemberRequest,
        args: V::Args,
    ) -> Later<Result<DeviceStatus, Problem>> {
        let device = with_members(&self.now().graph, request).map(|device| device.name.clone());
        self.ask::<V>(device, args, request.dry_run)
    }

    /// Carries out a command on a device unless `dry_run`, and returns the state of the device.
    fn ask<V: Verb>(
        &self,
        name: Result<String, Problem>,
        args: V::Args,
        dry_run: bool,
    ) -> Later<Result<DeviceStatus, Problem>> {
        let serving = self.0.clone();
        Box::pin(async move {
            let name = name?;
            if !dry_run {
                serving.live.ask::<V>(&name, args).await.map_err(refused)?;
            }
            let now = serving.live.now();
            let found = now.graph.member(&name).map(|found| device(found, now.graph.report(found)));
            found.ok_or_else(|| problem(Exit::NotFound, format!("{name} has just left the graph")))
        })
    }
}

/// Lists the members of a graph by their paths, each with its device.
pub fn members(graph: &Graph) -> Vec<(names::Path, &Member)> {
    let paths = |device| {
        let members = graph.report(device).members.into_iter();
        members
            .map(move |one| (vec![graph.name().to_owned(), device.name.clone(), one.name], device))
    };
    graph.members().iter().flat_map(paths).collect()
}

/// Returns the device with the member that a request names.
fn with_members<'g>(graph: &'g Graph, request: &MemberRequest) -> Result<&'g Member, Problem> {
    let word = format!("{}/{}", request.of, request.member);
    let all = members(graph);
    let names: Vec<_> = all.iter().map(|(path, _)| path[1..].join("/")).collect();
    names::resolve(&word, all).map_err(|unresolved| {
        let known = names.iter().map(String::as_str);
        let known = names::listed(known, "no device here has members", "there are");
        unresolved.refuse(&word, || format!("no member {word}; {known}")).into()
    })
}

/// Returns the device with copies that a word names. The graph's name stands for its only such device.
fn with_copies<'g>(graph: &'g Graph, of: &str) -> Result<&'g Member, Problem> {
    let has_copies = |device: &&Member| graph.report(device).scrub.is_some();
    let devices: Vec<_> = graph.members().iter().filter(has_copies).collect();
    let path = |device: &&'g Member| (vec![graph.name().to_owned(), device.name.clone()], *device);
    names::resolve_or_only(of, devices.iter().map(path).collect()).map_err(|unresolved| {
        let known = devices.iter().map(|device| device.name.as_str());
        let known = names::listed(known, "nothing here has copies", "there are");
        unresolved.refuse(of, || format!("no device {of} with copies; {known}")).into()
    })
}

impl Serving {
    /// Carries out a command with arguments in JSON.
    async fn command(&self, request: &CommandRequest) -> block::Result<Value> {
        let CommandRequest { device, verb, args } = request;
        let at = |error: block::Error| error.at(device);
        let now = self.live.now();
        if now.graph.member(device).is_none() {
            let why = format!("no device {device:?} in {}", now.graph.name());
            let error = block::Error::new(ErrorKind::NotFound, why);
            return Err(error.next("cairn graph shows what there is"));
        }
        let verb = find_verb(REGISTRY.verbs(), verb).map_err(at)?;
        let command = Command::decode(verb, args.to_string().as_bytes()).map_err(at)?;
        let reply = self.live.control(device, command).await.map_err(at)?;
        serde_json::from_slice(&reply.encode(verb))
            .map_err(|why| at(block::Error::new(ErrorKind::Invalid, why.to_string())))
    }
}

fn device(member: &Member, report: Report) -> DeviceStatus {
    DeviceStatus {
        name: member.name.clone(),
        kind: member.kind.name.to_owned(),
        health: report.health,
        summary: report.summary,
        members: report.members,
        counters: report.counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect(),
        scrub: report.scrub,
        room: report.room,
        next: report.next,
    }
}

fn place(located: Located) -> Place {
    Place {
        name: located.name,
        kind: located.kind.to_owned(),
        offset_bytes: located.offset,
        label_bytes: located.label_bytes,
        how: located.how.into_owned(),
        below: located.below.into_iter().map(place).collect(),
    }
}

pub fn refused(error: block::Error) -> Problem {
    Failure::from(error).into()
}

pub fn problem(exit: Exit, message: String) -> Problem {
    Problem::new(exit.code(), message)
}
