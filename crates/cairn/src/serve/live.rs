//! The requests of the control socket to a running graph.

use std::rc::Rc;
use std::sync::Arc;

use api::routes::{self, Route};
use api::{
    AttachRequest, Attached, Bridge, Byte, CommandRequest, Counts, DeviceStatus, GraphView,
    Handler, Health, LocateStep, MemberRequest, Power, ScrubRequest, Status, StatusRow, Top,
    TopRow, metrics,
};
use block::control::copies::{Action, Scrub};
use block::control::member::{Fail, Name, Resync, Stale};
use block::control::{Command, Verb, find_verb};
use block::{ErrorKind, MemberState, ROWS_MAX, Report, error};
use engine::{Engine, NodeId};
use graph::spec::Planned;
use graph::{Graph, Member};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Serving, vdisks};
use crate::attach::must_be_root;
use crate::exit::Result;
use crate::names;
use crate::registry::REGISTRY;
use crate::view;

/// Returns the handlers of the control socket, one for each route.
pub fn handlers() -> Vec<Handler<Arc<Bridge<Serving>>>> {
    let mut handlers = vdisks::handlers();
    handlers.extend(vec![
        on(&routes::GRAPH, async |serving, _| Ok(serving.graph())),
        on(&routes::SPEC, async |serving, _| Ok(view::spec(&serving.planned()))),
        on(&routes::STATUS, async |serving, _| Ok(serving.status())),
        on(&routes::TOP, async |serving, _| Ok(serving.top())),
        on(&routes::VOLUMES, async |serving, page| serving.volumes(&page).await),
        on(&routes::VOLUME, async |serving, request| serving.volume(&request.name).await),
        on(&routes::LOCATE, async |serving, byte| serving.locate(&byte).await),
        on(&routes::FAIL, async |serving, request| {
            let device = with_members(&serving.live.now().graph, &request)?.name.clone();
            let MemberRequest { member, dry_run, .. } = request;
            serving.ask::<Fail>(device, Name { member }, dry_run).await
        }),
        on(&routes::RESYNC, async |serving, request| {
            let device = with_members(&serving.live.now().graph, &request)?.name.clone();
            let MemberRequest { member, dry_run, .. } = request;
            serving.ask::<Resync>(device, Stale { member: Some(member) }, dry_run).await
        }),
        on(&routes::SCRUB, async |serving, request| {
            let ScrubRequest { of, stop, repair, trust, dry_run } = request;
            let device = with_copies(&serving.live.now().graph, &of)?.name.clone();
            // A dry run is sent too: the device checks the command.
            let action = Action { stop, repair, trust, dry_run };
            serving.ask::<Scrub>(device, action, false).await
        }),
        on(&routes::DISK, async |serving, request| serving.disk(&request).await),
        on(&routes::RESIZE, async |serving, request| serving.resize(&request).await),
        on(&routes::EVENTS, async |serving, from| Ok(serving.events(from.after))),
        api::follow(async |serving: Rc<Serving>, after| serving.next_events(after).await),
        on(&routes::JOBS, async |serving, _| Ok(serving.jobs())),
        on(&routes::JOB, async |serving, request| serving.job(&request).await),
        on(&routes::COMMAND, async |serving, request| Ok(serving.command(&request).await?)),
        on(&routes::ATTACH, async |serving, request| serving.attach_by_hand(request).await),
        on(&routes::DETACH, async |serving, request| {
            serving.attachments.detach(&request.name, request.dry_run).await
        }),
        on(&routes::APPLY, async |serving, request| serving.apply(&request).await),
        on(&routes::CHECK, async |serving, _| serving.check(false).await),
        api::repair(async |serving: Rc<Serving>| serving.check(true).await),
        on(&routes::HISTORY, async |serving, _| serving.history()),
        on(&routes::UNDO, async |serving, request| serving.go_back(request).await),
        api::figures(async |bridge: Arc<Bridge<Serving>>| {
            let sample = bridge.ask(false, async |serving| serving.sample()).await?;
            Ok(metrics::page(&[sample], None))
        }),
    ]);
    handlers
}

/// Returns the handler of `route`, which runs `work` on the core of the graph.
pub(super) fn on<Q, A>(
    route: &Route<Q, A>,
    work: impl AsyncFn(Rc<Serving>, Q) -> Result<A> + Copy + Send + Sync + 'static,
) -> Handler<Arc<Bridge<Serving>>>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    route.on_core(work)
}

/// Returns the status of every device.
fn devices(engine: &Engine, graph: &Graph) -> Vec<DeviceStatus> {
    graph.members().iter().map(|member| device(engine, member, graph.report(member))).collect()
}

/// Returns the worst health of the devices behind exports, and of those that hold volumes. The health of a device with
/// members includes that of its members; any other device is at best as healthy as its lowers.
fn health(graph: &Graph, devices: &[DeviceStatus]) -> Health {
    let mut health: Vec<Health> = Vec::new();
    for (member, device) in graph.members().iter().zip(devices) {
        let below = member.lowers.iter().map(|lower| health[*lower]);
        let below = below.max().filter(|_| device.members.is_empty());
        health.push(device.health.max(below.unwrap_or(Health::Ok)));
    }
    let shown = graph.exports().iter().map(|export| health[export.member]);
    let members = graph.members().iter().zip(&health);
    let holders = members.filter(|(member, _)| member.kind.capabilities.holds_volumes);
    shown.chain(holders.map(|(_, health)| *health)).max().unwrap_or(Health::Ok)
}

/// Returns the request counts of the node `index`.
fn counts(engine: &Engine, graph: &Graph, index: usize) -> Counts {
    counts_of(engine, graph.members()[index].counted())
}

/// Returns the request counts of a node of the engine.
pub fn counts_of(engine: &Engine, node: NodeId) -> Counts {
    let all = block::OpKind::ALL;
    engine.counters(node, |counters| Counts {
        ops: all.map(|verb| (verb.name().to_owned(), counters.ops(verb))).into(),
        bytes: all.map(|verb| (verb.name().to_owned(), counters.bytes(verb))).into(),
        errors: counters.errors(),
        in_flight: counters.in_flight(),
    })
}

/// Returns the rank of the state of a member: the higher, the worse.
fn severity(state: MemberState) -> u8 {
    match state {
        MemberState::InSync => 0,
        MemberState::Spare => 1,
        MemberState::Copying => 2,
        MemberState::Stale => 3,
        MemberState::Failed => 4,
    }
}

/// Adds to each disk on the way of a byte the path of its file or block device, and the offset there.
fn on_disks(place: &mut LocateStep, planned: &Planned) {
    let node = planned.nodes.iter().find(|node| node.name == place.name);
    if let Some(path) = node.and_then(|node| node.path()) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        place.path = Some(path.to_string_lossy().into_owned());
        place.path_offset_bytes = Some(place.offset_bytes + place.label_bytes);
    }
    place.below.iter_mut().for_each(|below| on_disks(below, planned));
}

/// Returns the path of each member of the graph, with the member's device.
pub fn members(graph: &Graph) -> Vec<(names::Path, &Member)> {
    let paths = |device| {
        let members = graph.report(device).members.into_iter();
        members
            .map(move |one| (vec![graph.name().to_owned(), device.name.clone(), one.name], device))
    };
    graph.members().iter().flat_map(paths).collect()
}

/// Returns the device with the member that a request names.
fn with_members<'g>(graph: &'g Graph, request: &MemberRequest) -> Result<&'g Member> {
    let word = format!("{}/{}", request.of, request.member);
    let all = members(graph);
    let names: Vec<_> = all.iter().map(|(path, _)| path[1..].join("/")).collect();
    names::resolve(&word, all).map_err(|unresolved| {
        let known = names.iter().map(String::as_str);
        let known = names::listed(known, "no device has members", "members:");
        unresolved.refuse(&word, || format!("no member {word}; {known}"))
    })
}

/// Returns the device with copies that a word names. The name of the graph stands for its only such device.
fn with_copies<'g>(graph: &'g Graph, of: &str) -> Result<&'g Member> {
    let has_copies = |device: &&Member| graph.report(device).scrub.is_some();
    let devices: Vec<_> = graph.members().iter().filter(has_copies).collect();
    let path = |device: &&'g Member| (vec![graph.name().to_owned(), device.name.clone()], *device);
    names::resolve_or_only(of, devices.iter().map(path).collect()).map_err(|unresolved| {
        let known = devices.iter().map(|device| device.name.as_str());
        let known = names::listed(known, "no device keeps copies", "devices with copies:");
        unresolved.refuse(of, || format!("no device {of} with copies; {known}"))
    })
}

impl Serving {
    fn sample(&self) -> metrics::Sample {
        metrics::Sample { graph: self.graph(), status: self.status(), top: self.top() }
    }

    fn graph(&self) -> GraphView {
        let mut view = self.view();
        let devices = devices(&self.engine, &self.live.now().graph);
        let members = || devices.iter().flat_map(|device| &device.members);
        for (node, device) in view.nodes.iter_mut().zip(&devices) {
            node.health = device.health;
            // A node below several devices is shown in its worst state.
            let states = members().filter(|member| member.name == node.name);
            node.member = states.map(|member| member.state).max_by_key(|state| severity(*state));
        }
        view
    }

    fn status(&self) -> Status {
        let graph = &self.live.now().graph;
        let devices = devices(&self.engine, graph);
        Status {
            graph: graph.name().to_owned(),
            pid: std::process::id(),
            health: health(graph, &devices),
            connections: self.server.connections(),
            served: self.server.served(),
            devices,
            attached: self.attachments.views(),
            kept: None,
        }
    }

    fn top(&self) -> Top {
        let now = self.live.now();
        let row = |index: usize| {
            let node = &now.planned.nodes[index];
            let is_counted = view::power(node) != Power::Hooks;
            TopRow {
                name: node.name.clone(),
                kind: node.kind.name.to_owned(),
                fused: view::run_of(&now.planned, index),
                counts: is_counted.then(|| counts(&self.engine, &now.graph, index)),
            }
        };
        let mut rows: Vec<TopRow> =
            view::entered(&now.planned).into_iter().rev().map(row).collect();
        rows.extend(self.volume_rows());
        Top {
            graph: now.graph.name().to_owned(),
            clock_us: self.env.now().0.as_micros() as u64,
            rows,
        }
    }

    async fn locate(&self, Byte { export, offset }: &Byte) -> Result<LocateStep> {
        let graph = &self.live.now().graph;
        let Some(found) = graph.export(export) else {
            if export.contains('/') {
                let mut place = self.live.locate_volume(export, *offset).await?;
                on_disks(&mut place, &self.live.now().planned);
                return Ok(place);
            }
            let names: Vec<_> = graph.exports().iter().map(|e| e.name.as_str()).collect();
            let (graph, names) = (graph.name(), names.join(", "));
            fail!(NotFound, "{graph} has no export {export:?}; its exports: {names}");
        };
        let mut place = graph.locate(found, *offset).await?;
        on_disks(&mut place, &self.live.now().planned);
        Ok(place)
    }

    async fn attach_by_hand(&self, request: AttachRequest) -> Result<Attached> {
        let AttachRequest { export, name, by, dry_run } = request;
        let view = self.view();
        let shown = view.exports.iter().find(|shown| shown.name == export);
        must_be_root(shown.and_then(|shown| shown.uris.first()).map(String::as_str))?;
        self.attachments.attach(&export, name.as_deref(), by, dry_run).await
    }

    /// Sends a command to the device `name`, unless `dry_run`. Returns the status of the device.
    async fn ask<V: Verb>(
        &self,
        name: String,
        args: V::Args,
        dry_run: bool,
    ) -> Result<DeviceStatus> {
        if !dry_run {
            self.live.ask::<V>(&name, args).await?;
        }
        let now = self.live.now();
        let found = now.graph.member(&name);
        let found = found.map(|found| device(&self.engine, found, now.graph.report(found)));
        found.ok_or_else(|| {
            failure!(NotFound, "the device {name} was removed from the graph meanwhile")
        })
    }

    /// Sends a command with arguments in JSON to a device, and returns the answer in JSON.
    async fn command(&self, request: &CommandRequest) -> block::Result<Value> {
        let CommandRequest { device, verb, args } = request;
        let at = |error: block::Error| error.at(device);
        self.find(device)?;
        let verb = find_verb(REGISTRY.verbs(), verb).map_err(at)?;
        let command = Command::decode(verb, args.to_string().as_bytes()).map_err(at)?;
        let reply = self.live.control(device, command).await.map_err(at)?;
        serde_json::from_slice(&reply.encode(verb))
            .map_err(|why| at(block::Error::new(ErrorKind::Invalid, why.to_string())))
    }

    /// Sends a command of verb `V` to a device, and returns the answer.
    pub(super) async fn command_to<V: Verb>(
        &self,
        device: &str,
        args: V::Args,
    ) -> block::Result<V::Answer> {
        self.find(device)?;
        self.live.ask::<V>(device, args).await.map_err(|error| error.at(device))
    }

    /// Checks that the graph has a device of this name.
    fn find(&self, device: &str) -> block::Result<()> {
        let now = self.live.now();
        if now.graph.member(device).is_some() {
            return Ok(());
        }
        let error = error!(NotFound, "no device {device:?} in {}", now.graph.name());
        Err(error.next("cairn graph shows the devices"))
    }
}

fn device(engine: &Engine, member: &Member, report: Report) -> DeviceStatus {
    let rows = report.rows.into_iter().take(ROWS_MAX);
    DeviceStatus {
        name: member.name.clone(),
        kind: member.kind.name.to_owned(),
        health: report.health,
        summary: report.summary,
        members: report.members,
        counters: report.counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect(),
        errors: engine.counters(member.counted(), |counters| counters.errors()),
        scrub: report.scrub,
        room: report.room,
        rows: rows.map(|(name, value)| StatusRow { name, value }).collect(),
        next: report.next,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn openapi_document_describes_every_route() {
        let document = include_str!("../../../../docs/api/openapi.json");
        let document: Value = serde_json::from_str(document).unwrap();
        let of = |tag: &str| -> BTreeSet<String> {
            let tagged = |methods: &Value| {
                let methods = methods.as_object().unwrap();
                methods
                    .values()
                    .all(|method| method["tags"].as_array().unwrap().contains(&json!(tag)))
            };
            let paths = document["paths"].as_object().unwrap().iter();
            paths.filter(|(_, methods)| tagged(methods)).map(|(path, _)| path.clone()).collect()
        };
        let served =
            |paths: Vec<&str>| paths.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
        let graph = handlers().into_iter().map(|(path, _)| path).collect();
        assert_eq!(of("graph"), served(graph));
        let daemon = crate::daemon::handlers().into_iter().map(|(path, _)| path).collect();
        assert_eq!(of("daemon"), served(daemon));
    }
}
