//! The running graph, as the control socket asks for it.

use std::rc::Rc;

use api::{
    AttachRequest, Attached, Counts, DetachRequest, DeviceStatus, GraphView, Health, KeyRequest,
    KeySlots, Live, MemberRequest, MemberStatus, Place, Power, Problem, Progress, SpecText, Status,
    Top, TopRow,
};
use block::env::LocalFuture;
use block::{Control, Env, Report, Verb};
use export::nbd::Server;
use graph::engine::Engine;
use graph::spec::Planned;
use graph::{Graph, Located, Member};

use super::keys;
use crate::attach::{Attachments, must_be_root};
use crate::exit::{Exit, Failure};
use crate::view;

/// Everything that answers need.
pub struct Running {
    /// The clock.
    pub env: Env,
    /// The counters.
    pub engine: Engine,
    /// The devices.
    pub graph: Rc<Graph>,
    /// The connections.
    pub server: Server,
    /// What is a device of this machine.
    pub attachments: Attachments,
    /// What the graph was built from: its nodes are the graph's members, in the same order.
    pub planned: Planned,
    /// The graph as it was built, with the URIs.
    pub view: GraphView,
}

impl Live for Running {
    fn graph(&self) -> GraphView {
        let mut view = self.view.clone();
        for (node, device) in view.nodes.iter_mut().zip(self.devices()) {
            node.health = device.health;
        }
        self.attachments.show(&mut view);
        view
    }

    fn spec(&self) -> SpecText {
        view::spec(&self.planned)
    }

    fn status(&self) -> Status {
        let devices = self.devices();
        Status {
            graph: self.graph.name().to_owned(),
            pid: std::process::id(),
            health: self.health(&devices),
            connections: self.server.connections(),
            served: self.server.served(),
            devices,
            attached: self.attachments.views(),
        }
    }

    fn top(&self) -> Top {
        let row = |index: usize| {
            let node = &self.planned.nodes[index];
            TopRow {
                name: node.name.clone(),
                kind: node.kind.name.to_owned(),
                fused: view::run_of(&self.planned, index),
                counts: (view::power(node) != Power::Hooks).then(|| self.counts(index)),
            }
        };
        Top {
            graph: self.graph.name().to_owned(),
            clock_us: self.env.now().0.as_micros() as u64,
            rows: view::entered(&self.planned).into_iter().rev().map(row).collect(),
        }
    }

    fn locate(&self, export: &str, offset: u64) -> Result<Place, Problem> {
        let Some(found) = self.graph.export(export) else {
            let names: Vec<_> = self.graph.exports().iter().map(|e| e.name.as_str()).collect();
            let graph = self.graph.name();
            let why = format!("{graph} has no export {export:?}; it has {}", names.join(", "));
            return Err(problem(Exit::NotFound, why));
        };
        self.graph.locate(found, offset).map(place).map_err(refused)
    }

    fn fail(&self, request: &MemberRequest) -> Result<DeviceStatus, Problem> {
        let control = Control::Fail { member: request.member.clone() };
        self.control(request, &control)
    }

    fn resync(&self, request: &MemberRequest) -> Result<DeviceStatus, Problem> {
        let control = Control::Resync { member: Some(request.member.clone()) };
        self.control(request, &control)
    }

    fn keys(&self, request: &KeyRequest) -> LocalFuture<Result<KeySlots, Problem>> {
        keys::answer(&self.graph, request)
    }

    fn attach(&self, request: AttachRequest) -> LocalFuture<Result<Attached, Problem>> {
        let attachments = self.attachments.clone();
        let uri = self.view.exports.iter().find(|export| export.name == request.export);
        let uri = uri.and_then(|export| export.uris.first()).cloned();
        Box::pin(async move {
            let AttachRequest { export, name, by, dry_run } = request;
            must_be_root(uri.as_deref())?;
            let attached = attachments.attach(&export, name.as_deref(), by, dry_run).await;
            attached.map_err(Problem::from)
        })
    }

    fn detach(&self, request: DetachRequest) -> LocalFuture<Result<Attached, Problem>> {
        let attachments = self.attachments.clone();
        Box::pin(async move {
            let detached = attachments.detach(&request.name, request.dry_run).await;
            detached.map_err(Problem::from)
        })
    }

    fn spawn(&self, task: LocalFuture<()>) {
        self.env.spawn("an answer of the control socket", task);
    }
}

impl Running {
    fn devices(&self) -> Vec<DeviceStatus> {
        let report = |member: &Member| match self.graph.control(member, &Control::Report) {
            Ok(report) => device(member, report),
            Err(error) => {
                let mut failed = device(member, Report::default());
                failed.health = Health::Failed;
                failed.summary = error.to_string();
                failed
            }
        };
        self.graph.members().iter().map(report).collect()
    }

    /// The worst of what exports show. A device with members knows what it makes of theirs.
    fn health(&self, devices: &[DeviceStatus]) -> Health {
        let mut health: Vec<Health> = Vec::new();
        for (member, device) in self.graph.members().iter().zip(devices) {
            let below = member.lowers.iter().map(|lower| health[*lower]);
            let below = below.max().filter(|_| device.members.is_empty());
            health.push(device.health.max(below.unwrap_or(Health::Ok)));
        }
        let shown = self.graph.exports().iter().map(|export| health[export.member]);
        shown.max().unwrap_or(Health::Ok)
    }

    fn counts(&self, index: usize) -> Counts {
        self.engine.counters(self.graph.members()[index].node, |counters| Counts {
            ops: Verb::ALL.map(|verb| (verb.name().to_owned(), counters.ops(verb))).into(),
            bytes: Verb::ALL.map(|verb| (verb.name().to_owned(), counters.bytes(verb))).into(),
            errors: counters.errors(),
            in_flight: counters.in_flight(),
        })
    }

    fn control(&self, request: &MemberRequest, control: &Control) -> Result<DeviceStatus, Problem> {
        let member = self.with_members(request)?;
        let control = if request.dry_run { &Control::Report } else { control };
        self.graph.control(member, control).map(|report| device(member, report)).map_err(refused)
    }

    /// The device that a request is for: named itself, or by its graph and its member.
    fn with_members(&self, request: &MemberRequest) -> Result<&Member, Problem> {
        let MemberRequest { of, member, .. } = request;
        let devices = self.devices();
        let has = |device: &&DeviceStatus| device.members.iter().any(|one| one.name == *member);
        let named = devices.iter().find(|device| device.name == *of);
        let found: Vec<_> = match named {
            Some(device) if has(&device) => vec![device],
            None if *of == self.graph.name() => devices.iter().filter(has).collect(),
            _ => Vec::new(),
        };
        match found[..] {
            [device] => Ok(self.graph.member(&device.name).expect("it was reported just now")),
            [] => {
                let members = devices.iter().flat_map(|device| {
                    device
                        .members
                        .iter()
                        .map(move |member| format!("{}/{}", device.name, member.name))
                });
                let members: Vec<_> = members.collect();
                let known = match &members[..] {
                    [] => "no device here has members".to_owned(),
                    _ => format!("there are {}", members.join(", ")),
                };
                Err(problem(Exit::NotFound, format!("no member {of}/{member}; {known}")))
            }
            _ => {
                let names: Vec<_> = found.iter().map(|device| device.name.as_str()).collect();
                let names = names.join(", ");
                let why =
                    format!("{member} is a member of {names}. Next: name one of these, not {of}");
                Err(problem(Exit::Usage, why))
            }
        }
    }
}

fn device(member: &Member, report: Report) -> DeviceStatus {
    let one = |member: block::Member| MemberStatus {
        name: member.name,
        state: member.state.to_owned(),
        errors: member.errors,
        detail: member.detail,
        since_unix_s: member.since.map(|since| since.as_secs()),
        progress: member.progress.map(|(done_bytes, all_bytes)| Progress { done_bytes, all_bytes }),
    };
    DeviceStatus {
        name: member.name.clone(),
        kind: member.kind.name.to_owned(),
        health: match report.health {
            block::Health::Ok => Health::Ok,
            block::Health::Degraded => Health::Degraded,
            block::Health::Failed => Health::Failed,
        },
        summary: report.summary,
        members: report.members.into_iter().map(one).collect(),
        counters: report.counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect(),
        next: report.next,
    }
}

fn place(located: Located) -> Place {
    Place {
        name: located.name,
        kind: located.kind.to_owned(),
        offset_bytes: located.offset,
        label_bytes: located.label_bytes,
        how: located.how.to_owned(),
        below: located.below.into_iter().map(place).collect(),
    }
}

pub fn refused(error: block::Error) -> Problem {
    Failure::from(error).into()
}

pub fn problem(exit: Exit, message: String) -> Problem {
    Problem { exit: exit.code(), message }
}
