//! A running graph: what a plan becomes.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::control::{Command, Reach, Reply, Resolved, Verb, VerbInfo};
use block::env::LocalFuture;
use block::{
    Below, ByteRange, Deadline, Emulate, Env, Error, ErrorKind, Found, Handover, Hooks, Info,
    NoStateStore, OnFailure, Port, Report, Result, ScopeGuard, StateStore, Table, TableId,
};
use engine::{AnyDevice, Engine, NodeId, Targets};
use kind::{DeviceConfig, Kind, Maker, Making, Value};

use crate::labels::{self, Labels, Place, is_looked_at};
use crate::spec::{Planned, PlannedNode};

/// A graph whose devices are open. It stands for as long as its engine.
pub struct Graph {
    name: String,
    engine: Engine,
    nodes: Vec<Member>,
    exports: Vec<Export>,
    /// The devices that were closed, by name: what takes their place may be there already.
    closed: Rc<RefCell<BTreeSet<String>>>,
}

/// A disk or device of a running graph.
#[derive(Clone)]
pub struct Member {
    /// Its name in the spec.
    pub name: String,
    /// What sort of device it is.
    pub kind: &'static Kind,
    /// What it stands on: indices into [`Graph::members`].
    pub lowers: Vec<usize>,
    /// Its facts.
    pub info: Info,
    /// Where requests for it begin.
    pub node: NodeId,
    /// The nodes that were made for it, and that go with it.
    made: Vec<NodeId>,
    body: Body,
}

impl Member {
    /// Where what is asked of it is counted. Tables above a labelled disk go past the one of its data.
    pub fn counted(&self) -> NodeId {
        match &self.body {
            Body::Labelled(_, data) => data.ports[0],
            Body::Device(_) | Body::Hooks(..) | Body::Table(_) => self.node,
        }
    }
}

#[derive(Clone)]
enum Body {
    Device(Rc<dyn AnyDevice>),
    /// A labelled disk: the raw one, and the table of its data.
    Labelled(Rc<dyn AnyDevice>, Fusion),
    /// What looks on, and the options that it was made from.
    Hooks(Rc<dyn Hooks>, Vec<(&'static str, Value)>),
    Table(Fusion),
}

/// A table device: its own table over its lowers, and the fused one over the devices below them.
#[derive(Clone)]
struct Fusion {
    own: Table,
    fused: Table,
    ports: Vec<NodeId>,
}

/// What a client sees.
pub struct Export {
    /// Its name.
    pub name: String,
    /// What it shows: an index into [`Graph::members`].
    pub member: usize,
    /// Where a portal of its name leads.
    pub node: NodeId,
    /// The node that was made for it alone, if it needs one.
    made: Option<NodeId>,
    /// Whose certificates get it; everybody if it does not say.
    pub clients: Option<Vec<String>>,
    /// Its facts.
    pub info: Info,
}

/// What a graph is built from.
struct Building<'b> {
    plan: &'b Planned,
    labels: Option<&'b Labels>,
    env: &'b Env,
    before: Option<&'b Before<'b>>,
}

/// The graph whose place another one takes.
pub struct Before<'b> {
    /// That graph.
    pub graph: &'b Graph,
    /// What it was planned as.
    pub planned: &'b Planned,
    /// For each node of the plan: the member of it that stays as it is.
    pub stays: Vec<Option<usize>>,
    /// What its other devices have handed over, by their names and kinds.
    pub handovers: BTreeMap<(String, &'static str), Rc<dyn Any>>,
}

impl Building<'_> {
    /// What the device keeps beneath it.
    fn kept(&self, index: usize) -> Rc<dyn StateStore> {
        let node = &self.plan.nodes[index];
        let kept: Rc<dyn StateStore> = match self.labels {
            Some(labels) => labels.kept(self.plan, index),
            None => Rc::new(NoStateStore::new(node.created && self.before.is_none())),
        };
        match self.handover(node) {
            Some(handover) => Rc::new(Inherited { kept, handover }),
            None => kept,
        }
    }

    /// What a keeper is given. Whom to trust is a word for one start: a device that has run since
    /// knows better.
    fn given(&self, node: &PlannedNode) -> DeviceConfig {
        let mut given = node.given.clone();
        let before = self.before.and_then(|before| before.graph.member(&node.name));
        if before.is_some_and(|member| member.kind.name == node.kind.name) {
            given.forget_first_word(node.kind);
        }
        given
    }

    /// What the device of that name and kind has left.
    fn handover(&self, node: &PlannedNode) -> Handover {
        let key = (node.name.clone(), node.kind.name);
        self.before?.handovers.get(&key).cloned()
    }

    /// The member that stays as it is.
    fn staying(&self, index: usize) -> Option<&Member> {
        let before = self.before?;
        before.stays[index].map(|member| &before.graph.nodes[member])
    }

    /// The hook that looks on already: it knows nothing of what is below it.
    fn same_hooks(&self, node: &PlannedNode) -> Option<Rc<dyn Hooks>> {
        let before = self.before?;
        let member = before.graph.member(&node.name)?;
        match &member.body {
            Body::Hooks(hooks, given) if *given == node.given.options => Some(hooks.clone()),
            _ => None,
        }
    }
}

/// What a device keeps, and what its predecessor handed over.
struct Inherited {
    kept: Rc<dyn StateStore>,
    handover: Rc<dyn Any>,
}

impl StateStore for Inherited {
    fn found(&self, port: usize) -> &Found {
        self.kept.found(port)
    }

    fn may_degrade(&self) -> bool {
        self.kept.may_degrade()
    }

    fn handed_over(&self) -> Handover {
        Some(self.handover.clone())
    }

    fn committed(&self) -> LocalFuture<()> {
        self.kept.committed()
    }

    fn is_committed(&self) -> bool {
        self.kept.is_committed()
    }

    fn on_failure(&self, deadline: Deadline, told: OnFailure) {
        self.kept.on_failure(deadline, told);
    }

    fn write(&self, ports: &[usize], state: Vec<u8>) -> LocalFuture<Vec<(usize, Result<()>)>> {
        self.kept.write(ports, state)
    }
}

impl Graph {
    /// Opens and makes everything that `plan` names, the lowest first.
    ///
    /// # Errors
    /// What the first disk or device says that cannot be made; what was opened before is closed.
    pub async fn build(plan: &Planned, engine: &Engine, env: &Env) -> Result<Self> {
        Self::build_on(plan, None, engine, env).await
    }

    /// The same over labelled disks, whose labels were opened with that engine.
    ///
    /// # Errors
    /// As [`Graph::build`]; `Invalid` if a disk is to have a label and `labels` has none.
    pub async fn build_on(
        plan: &Planned,
        labels: Option<&Labels>,
        engine: &Engine,
        env: &Env,
    ) -> Result<Self> {
        let mut graph = Self::empty(plan, engine);
        graph.fill(plan, labels, env, None).await?;
        Ok(graph)
    }

    /// A graph of which nothing is made yet.
    pub(crate) fn empty(plan: &Planned, engine: &Engine) -> Self {
        let (name, engine) = (plan.name.clone(), engine.clone());
        Self { name, engine, nodes: Vec::new(), exports: Vec::new(), closed: Rc::default() }
    }

    /// Makes everything that `plan` names, the lowest first, but for what stays as it was before.
    ///
    /// # Errors
    /// As [`Graph::build_on`]; what was made until then stays in the graph.
    pub(crate) async fn fill(
        &mut self,
        plan: &Planned,
        labels: Option<&Labels>,
        env: &Env,
        before: Option<&Before<'_>>,
    ) -> Result<()> {
        let building = Building { plan, labels, env, before };
        for (index, node) in plan.nodes.iter().enumerate() {
            let member = match building.staying(index) {
                // Its number among the members may be another one now.
                Some(member) => Member { lowers: node.lowers.clone(), ..member.clone() },
                None => self.make(&building, index).await.map_err(|error| error.at(&node.name))?,
            };
            self.nodes.push(member);
        }
        for export in &plan.exports {
            let member = &self.nodes[export.node];
            let mut info = member.info.clone();
            let (mut node, mut made) = (member.node, None);
            if export.read_only && !info.read_only {
                info.read_only = true;
                let whole = Table::linear(Port(0), info.size, 0, info.size)
                    .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
                let engine = &self.engine;
                node = engine.add_table(&export.name, info.clone(), Rc::new(whole), &[node])?;
                made = Some(node);
            }
            let (name, clients) = (export.name.clone(), export.clients.clone());
            self.exports.push(Export { name, member: export.node, node, made, clients, info });
        }
        Ok(())
    }

    /// Forgets the nodes that another graph, which takes its place, has not taken over.
    pub(crate) fn leave(&self, to: &Self) {
        let taken = |node: &NodeId| to.nodes.iter().any(|member| member.made.contains(node));
        let made = self.nodes.iter().flat_map(|member| &member.made);
        let gone = made.filter(|node| !taken(node));
        let own = self.exports.iter().filter_map(|export| export.made.as_ref());
        gone.chain(own).for_each(|node| self.engine.forget(*node));
    }

    /// Ends what a member does by itself. Afterwards it refuses requests, unless the future is dropped before its
    /// end.
    pub(crate) fn close(&self, member: &Member) -> LocalFuture<Handover> {
        match &member.body {
            Body::Device(device) => {
                let (closing, closed, name) =
                    (device.close(), self.closed.clone(), member.name.clone());
                let (engine, node) = (self.engine.clone(), member.made[0]);
                Box::pin(async move {
                    closed.borrow_mut().insert(name.clone());
                    let goes_on = ScopeGuard::new(|| {
                        closed.borrow_mut().remove(&name);
                    });
                    let left = closing.await;
                    goes_on.done();
                    engine.close(node);
                    left
                })
            }
            // A labelled disk is its labels', and they go on.
            Body::Labelled(..) | Body::Hooks(..) | Body::Table(_) => {
                Box::pin(std::future::ready(None))
            }
        }
    }

    async fn make(&self, building: &Building<'_>, index: usize) -> Result<Member> {
        let (plan, env) = (&building.plan.nodes[index], building.env);
        let below: Vec<NodeId> = plan.lowers.iter().map(|lower| self.nodes[*lower].node).collect();
        let making = |config| {
            let lowers = below.iter().map(|id| self.engine.lower(*id)).collect();
            Making { lowers, ..Making::new(config, env) }
        };
        let (made, body, info) = match plan.kind.maker {
            Maker::Table(_) => self.table(plan)?,
            Maker::Hooks { make, .. } => {
                let hooks = match building.same_hooks(plan) {
                    Some(hooks) => hooks,
                    None => make(making(&plan.given))?,
                };
                self.hooks(plan, hooks, &below)?
            }
            Maker::Device { make, .. } => {
                let device = make(making(&plan.given))?;
                self.device(&plan.name, device, &below)?
            }
            Maker::Stateful { make, .. } => {
                let given = building.given(plan);
                let state = building.kept(index);
                let device = make(Making { state, ..making(&given) }).await?;
                self.device(&plan.name, device, &below)?
            }
            Maker::Disk { .. } if plan.has_label() => self.labelled(building, index)?,
            Maker::Disk { make, .. } => {
                let before = building.handover(plan);
                let device = make(Making { before, ..making(&plan.given) }).await?;
                let (mut made, body, info) = self.device(&plan.name, device, &[])?;
                made.extend(self.completed(&plan.name, made[0], env)?);
                let before = building.before.map(|before| before.planned);
                if is_looked_at(building.plan, plan, before) {
                    let refused = labels::refuse(plan, env, &self.engine.lower(made[0])).await;
                    // The graph as it was before may want this disk, and so may the next change.
                    refused
                        .inspect_err(|_| made.iter().for_each(|node| self.engine.forget(*node)))?;
                }
                (made, body, info)
            }
        };
        let node = *made.last().expect("what is made has a node");
        let (name, kind, lowers) = (plan.name.clone(), plan.kind, plan.lowers.clone());
        Ok(Member { name, kind, lowers, info, node, made, body })
    }

    fn hooks(
        &self,
        plan: &PlannedNode,
        hooks: Rc<dyn Hooks>,
        below: &[NodeId],
    ) -> Result<(Vec<NodeId>, Body, Info)> {
        let node = self.engine.add_hooks(&plan.name, hooks.clone(), below[0])?;
        let body = Body::Hooks(hooks, plan.given.options.clone());
        Ok((vec![node], body, self.engine.info(node)))
    }

    fn device(
        &self,
        name: &str,
        device: Rc<dyn AnyDevice>,
        below: &[NodeId],
    ) -> Result<(Vec<NodeId>, Body, Info)> {
        let node = self.engine.add_device(name, device.clone(), below)?;
        Ok((vec![node], Body::Device(device), self.engine.info(node)))
    }

    /// A disk of which the label takes both ends.
    fn labelled(&self, building: &Building<'_>, index: usize) -> Result<(Vec<NodeId>, Body, Info)> {
        let plan = &building.plan.nodes[index];
        let place = building.labels.and_then(|labels| labels.place(building.plan, index));
        let (device, raw, bytes) = match place {
            Some(Place::Here(device, raw, bytes)) => (device, raw, bytes),
            Some(Place::Absent(device)) => return self.device(&plan.name, device, &[]),
            None => return Err(Error::new(ErrorKind::Invalid, "its label was not opened")),
        };
        let mut made: Vec<NodeId> =
            self.completed(&plan.name, raw, building.env)?.into_iter().collect();
        let raw = made.last().copied().unwrap_or(raw);
        let fault = |error: block::TableError| Error::new(ErrorKind::Invalid, error.to_string());
        let id = TableId::new(&plan.name, 1).map_err(fault)?;
        let raw_info = self.engine.info(raw);
        let own = Table::linear(Port(0), raw_info.size, meta::DATA_START, bytes).map_err(fault)?;
        let fused = own.clone().named(id);
        let info = Info { size: bytes, ..raw_info };
        let node = self.engine.add_table(&plan.name, info, Rc::new(fused.clone()), &[raw])?;
        made.push(node);
        let fusion = Fusion { own, fused, ports: vec![raw] };
        Ok((made, Body::Labelled(device, fusion), self.engine.info(node)))
    }

    /// What does for a disk what it cannot do, if there is anything.
    fn completed(&self, name: &str, disk: NodeId, env: &Env) -> Result<Option<NodeId>> {
        let info = self.engine.info(disk);
        if !Emulate::is_needed(&info, info.block_size) {
            return Ok(None);
        }
        let emulate = Emulate::new(env, self.engine.lower(disk), info.block_size)?;
        self.engine.add_device(name, Rc::new(emulate), &[disk]).map(Some)
    }

    /// A table, fused with the tables directly below it: one lookup, however many there are.
    fn table(&self, plan: &PlannedNode) -> Result<(Vec<NodeId>, Body, Info)> {
        let fault = |error: block::TableError| Error::new(ErrorKind::Invalid, error.to_string());
        let own = plan.table.clone().expect("a table kind is planned with its table");
        let id = TableId::new(&plan.name, 1).map_err(fault)?;
        let below: Vec<_> = plan.lowers.iter().map(|lower| &self.nodes[*lower]).collect();
        let tables: Vec<_> = below.iter().map(|lower| lower.fused()).collect();
        let fused = own.clone().named(id).fuse(&tables).map_err(fault)?;
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut ports = Vec::new();
        for path in &fused.ports {
            let lower = below[usize::from(path.upper.0)];
            let node = match (path.lower, &lower.body) {
                (Some(port), Body::Table(fusion) | Body::Labelled(_, fusion)) => {
                    fusion.ports[usize::from(port.0)]
                }
                _ => lower.node,
            };
            let at = nodes.iter().position(|known| *known == node).unwrap_or_else(|| {
                nodes.push(node);
                nodes.len() - 1
            });
            ports.push(Port(at as u16));
        }
        let table = fused.table.renumber(&ports).map_err(fault)?;
        let info = plan.info.clone();
        let node = self.engine.add_table(&plan.name, info, Rc::new(table.clone()), &nodes)?;
        let fusion = Fusion { own, fused: table, ports: nodes };
        Ok((vec![node], Body::Table(fusion), self.engine.info(node)))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What clients see.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// The nodes that portals with the names of its exports lead to.
    pub fn targets(&self) -> Targets {
        self.exports.iter().map(|export| (export.name.clone(), export.node)).collect()
    }

    /// The export of that name.
    pub fn export(&self, name: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.name == name)
    }

    /// Disks and devices, those below first.
    pub fn members(&self) -> &[Member] {
        &self.nodes
    }

    /// The devices whose flush makes the whole graph durable: those that an export shows, and those that nothing writable
    /// stands on. A flush from above may pass a lower by. Each comes with the name of an export that shows it, or its own.
    pub fn flushed(&self) -> impl Iterator<Item = (&str, &Member)> {
        let is_writable = |device: &&Member| !self.engine.info(device.node).read_only;
        let above = self.nodes.iter().filter(is_writable);
        let below: BTreeSet<_> = above.flat_map(|device| &device.lowers).copied().collect();
        let all = self.nodes.iter().enumerate().filter(move |(_, device)| is_writable(device));
        all.filter_map(move |(index, device)| {
            let export = self.exports.iter().find(|export| export.member == index);
            let is_top = !below.contains(&index) && !device.lowers.is_empty();
            let own = is_top.then_some(device.name.as_str());
            Some((export.map(|export| export.name.as_str()).or(own)?, device))
        })
    }

    /// The member of that name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.nodes.iter().find(|member| member.name == name)
    }

    /// The engine that carries its requests.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the report of a device or a disk.
    pub fn report(&self, member: &Member) -> Report {
        match &member.body {
            Body::Device(device) | Body::Labelled(device, _) => device.report(),
            Body::Hooks(hooks, _) => hooks.report(),
            Body::Table(_) => Report::default(),
        }
    }

    /// Carries out a command on a device.
    ///
    /// # Errors
    /// `Unsupported` if the device does not know it; `InUse` while a change of the graph makes the device anew; else the
    /// device's own.
    pub fn control(&self, device: &Member, command: Command) -> LocalFuture<Result<Reply>> {
        if self.is_closed(&device.name) {
            let words = format!("{} is made anew just now, by a change of its graph", device.name);
            let error = Error::new(ErrorKind::InUse, words).next("ask again");
            return Box::pin(std::future::ready(Err(error)));
        }
        let is_here = matches!(command.verb().reach, Reach::Here);
        if is_here && !self.verbs(device).iter().any(|verb| verb.name == command.verb().name) {
            let (name, kind, needs) = (&device.name, device.kind.name, command.verb().needs);
            let words = format!("{name} is a {kind} and has no {needs}");
            return Box::pin(std::future::ready(Err(Error::new(ErrorKind::Unsupported, words))));
        }
        self.engine.control(device.node, command)
    }

    /// Carries out a command of verb `V` on a device.
    ///
    /// # Errors
    /// As [`Graph::control`].
    pub fn ask<V: Verb>(&self, device: &Member, args: V::Args) -> LocalFuture<Result<V::Answer>> {
        let reply = self.control(device, Command::new::<V>(args));
        Box::pin(async move { reply.await?.answer::<V>() })
    }

    /// Whether a change of the graph has closed the device, and has not put another one in its place yet.
    pub fn is_closed(&self, device: &str) -> bool {
        self.closed.borrow().contains(device)
    }

    /// The verbs that a device knows.
    pub fn verbs(&self, device: &Member) -> &'static [&'static VerbInfo] {
        match &device.body {
            Body::Device(running) => running.verbs(),
            Body::Labelled(..) | Body::Hooks(..) | Body::Table(_) => &[],
        }
    }

    /// Returns the lowers of a device that have all of its bytes now.
    pub fn holders(&self, device: &Member) -> impl Iterator<Item = &Member> {
        let holders = match &device.body {
            Body::Device(running) => running.holders(),
            Body::Labelled(..) | Body::Hooks(..) | Body::Table(_) => Vec::new(),
        };
        holders.into_iter().map(|lower| &self.nodes[device.lowers[lower]])
    }

    /// Returns where a range of a member lies, one step down: all of the range, in at most `most` places.
    ///
    /// # Errors
    /// `Limit` if it lies in more places; the device's own error.
    pub async fn resolve(
        &self,
        member: &Member,
        range: ByteRange,
        most: usize,
    ) -> Result<Vec<Below>> {
        let places = match &member.body {
            Body::Device(device) => resolved(&**device, range, most).await?,
            // It is a disk: there is nothing of ours below.
            Body::Labelled(..) => Vec::new(),
            Body::Hooks(..) => {
                vec![Below { lower: 0, above: range.start(), range, how: "".into() }]
            }
            Body::Table(fusion) => {
                let below = |run: block::Run| Below {
                    lower: usize::from(run.port.0),
                    above: run.start,
                    range: run.range,
                    how: "".into(),
                };
                fusion.own.map(range).take(most + 1).map(below).collect()
            }
        };
        if places.len() > most {
            let words = format!("{range} lies in more than {most} places");
            return Err(Error::new(ErrorKind::Limit, words));
        }
        Ok(places)
    }
}

/// The places of a range in the lowers of a device, up to the first beyond `most`. A device that cannot answer counts as the
/// storage.
async fn resolved(device: &dyn AnyDevice, range: ByteRange, most: usize) -> Result<Vec<Below>> {
    let (mut places, mut rest) = (Vec::new(), Some(range));
    while let Some(range) = rest.filter(|_| places.len() <= most) {
        let Resolved::Places { all, upto, .. } = device.resolve(range).await? else { break };
        places.extend(all);
        rest = ByteRange::between(upto, range.end());
    }
    Ok(places)
}

impl Member {
    /// Bytes before its data, if it is a labelled disk.
    pub fn label_bytes(&self) -> u64 {
        if matches!(self.body, Body::Labelled(..)) { meta::DATA_START } else { 0 }
    }

    /// The mapping that its requests go through in one lookup, if it is a table.
    pub fn fused(&self) -> Option<&Table> {
        match &self.body {
            Body::Table(fusion) | Body::Labelled(_, fusion) => Some(&fusion.fused),
            _ => None,
        }
    }
}
