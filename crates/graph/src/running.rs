//! A graph with open devices, built from a plan.

mod absence;

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::control::{Command, Reach, Reply, Resolved, Verb, VerbInfo};
use block::env::LocalFuture;
use block::{
    Below, ByteRange, Emulate, Env, Error, ErrorKind, Handover, Hooks, Info, Needs, NoStateStore,
    Port, Report, Result, ScopeGuard, StateStore, Table, bail,
};
use engine::{AnyDevice, AnyVolumes, Engine, HeldVolume, Holder, NodeId, Targets, VolumeSet};
use kind::home::Room;
use kind::{DeviceConfig, Kind, Maker, MakerArgs, Value, parts};

use crate::fusion::Fusion;
use crate::labels::{self, DataSource, Labels, is_looked_at};
use crate::live::open_all;
use crate::spec::{Planned, PlannedNode, Role};

/// A graph with open devices. Its nodes belong to the engine with which it was built.
pub struct Graph {
    name: String,
    engine: Engine,
    nodes: Vec<Member>,
    exports: Vec<Export>,
    /// The names of devices that a live change has closed and not reopened. Their replacements may exist already.
    closed: Rc<RefCell<BTreeSet<String>>>,
}

/// A disk or device of a running graph.
#[derive(Clone)]
pub struct Member {
    /// Name of the disk or device in the spec.
    pub name: String,
    /// Kind of the disk or device.
    pub kind: &'static Kind,
    /// Lowers of the device: indices into [`Graph::members`].
    pub lowers: Vec<usize>,
    /// Size, block size and other facts about the disk or device.
    pub info: Info,
    /// The node of the engine at which requests for the disk or device begin. If it has several nodes, this is the top
    /// one.
    pub node: NodeId,
    /// The nodes of the engine that were made for the disk or device, and that are removed with it; the top one is
    /// last.
    made: Vec<NodeId>,
    /// The mapping of the data of a device with objects to its first lower.
    data: Option<Rc<Table>>,
    /// The reason for which the disk or device counts as absent: its bytes cannot be used, and devices above go on without
    /// them.
    absence: Option<Error>,
    /// Whether the device had been absent, and was made anew over bytes that do not count.
    is_renewed: bool,
    body: Body,
}

impl Member {
    /// Returns the member for a node of a plan, with these nodes of the engine, the top one last.
    fn new(plan: &PlannedNode, made: Vec<NodeId>, body: Body, info: Info) -> Self {
        Self {
            name: plan.name.clone(),
            kind: plan.kind,
            lowers: plan.lowers.clone(),
            info,
            node: *made.last().expect("a new device has a node"),
            made,
            data: None,
            absence: None,
            is_renewed: false,
            body,
        }
    }

    /// Returns the number of bytes of the label area before the data of a labelled disk; 0 for any other disk or
    /// device.
    pub fn label_bytes(&self) -> u64 {
        if matches!(self.body, Body::Labelled(..)) { meta::DATA_START } else { 0 }
    }

    /// Returns the fused table through which requests for this disk or device go, if it is a table device or a labelled
    /// disk.
    pub fn fused(&self) -> Option<&Table> {
        self.fusion().map(|fusion| &fusion.fused)
    }

    fn fusion(&self) -> Option<&Fusion<NodeId>> {
        match &self.body {
            Body::Table(fusion) | Body::Labelled(_, fusion) => Some(fusion),
            Body::Device(_) | Body::Hooks(..) | Body::Volume(_) => None,
        }
    }

    /// Returns the node of the engine that counts the requests of this disk or device. For a labelled disk, this is the
    /// node of the raw disk, since fused tables above bypass the node of the data.
    pub fn counted(&self) -> NodeId {
        match &self.body {
            Body::Labelled(_, data) => data.ports[0],
            Body::Device(_) | Body::Hooks(..) | Body::Table(_) | Body::Volume(_) => self.node,
        }
    }
}

#[derive(Clone)]
enum Body {
    Device(Rc<dyn AnyDevice>),
    /// A labelled disk: the raw disk, and the table that maps the data between its label areas.
    Labelled(Rc<dyn AnyDevice>, Fusion<NodeId>),
    /// A hook, and the options with which the hook was made.
    Hooks(Rc<dyn Hooks>, Vec<(&'static str, Value)>),
    Table(Fusion<NodeId>),
    /// A volume of the member below. The set of volumes owns its node.
    Volume(Rc<HeldVolume>),
}

/// The result of making a member: its nodes of the engine, its body, and its facts.
type Made = (Vec<NodeId>, Body, Info);

/// An export of a graph with open devices.
pub struct Export {
    /// Name of the export.
    pub name: String,
    /// The disk or device that the export shows: an index into [`Graph::members`].
    pub member: usize,
    /// The node of the engine to which a portal of this export leads.
    pub node: NodeId,
    /// The node that was made for this export alone: a read-only table over a writable device. `None` if not needed.
    made: Option<NodeId>,
    /// The names that client certificates must have to use the export; `None` if all clients may use the export.
    pub clients: Option<Vec<String>>,
    /// Size, block size and other facts about the export.
    pub info: Info,
}

/// The inputs from which a graph is built.
struct Building<'b> {
    plan: &'b Planned,
    labels: Option<&'b Labels>,
    env: &'b Env,
    volumes: &'b VolumeSet,
    before: Option<&'b Before<'b>>,
}

/// The running graph that a live change replaces, as the input for building its successor.
pub struct Before<'b> {
    /// The running graph that the live change replaces.
    pub graph: &'b Graph,
    /// The plan of the running graph that the live change replaces.
    pub planned: &'b Planned,
    /// For each node of the new plan: the index of the member of the old graph that continues unchanged, if there is
    /// one.
    pub unchanged: Vec<Option<usize>>,
    /// The hand-overs of closed devices of the old graph to their successors, by name and kind of the device.
    pub handovers: BTreeMap<(String, &'static str), Rc<dyn Any>>,
}

impl Building<'_> {
    /// Returns the store for the state of the stateful device `index`, with the hand-over of its predecessor if there
    /// is one.
    fn kept(&self, index: usize, made: &[Member]) -> Rc<dyn StateStore> {
        let node = &self.plan.nodes[index];
        let handover = self.handover(node);
        let Some(labels) = self.labels else {
            let mut none = NoStateStore::new(node.created && self.before.is_none());
            none.handover = handover;
            return Rc::new(none);
        };
        let mut kept = labels.kept(self.plan, index, handover);
        for (port, lower) in node.lowers.iter().enumerate() {
            let is_device = self.plan.nodes[*lower].role == Role::Device;
            match &made[*lower] {
                Member { absence: Some(why), .. } if is_device => kept.close(port, why.clone()),
                Member { is_renewed: true, .. } => kept.forget(port),
                _ => {}
            }
        }
        if self.is_renewed(node, &kept) {
            kept.accept_loss();
        }
        Rc::new(kept)
    }

    /// Whether the device `node` of the old graph was absent, and a disk beneath it is replaced by a new one. A device above
    /// copies all bytes to it, so its own state may be made anew.
    fn is_renewed(&self, node: &PlannedNode, kept: &dyn StateStore) -> bool {
        let before = self.before.and_then(|before| before.graph.member(&node.name));
        let was_absent = before.is_some_and(|before| before.absence.is_some());
        was_absent && (0..node.lowers.len()).any(|port| kept.found(port).fresh)
    }

    /// Whether labels have a state of the device `index`, so that it is not made for the first time.
    fn has_state(&self, index: usize, made: &[Member]) -> bool {
        let kept = self.kept(index, made);
        let found = (0..self.plan.nodes[index].lowers.len()).map(|port| kept.found(port));
        let found: Vec<_> = found.collect();
        found.iter().any(|found| found.state.is_some()) && !found.iter().all(|found| found.fresh)
    }

    /// Returns the configuration of the stateful device `node`. If a device of this name and kind ran in the old graph,
    /// leaves out the option for one start (`trust`): the state of that device decides instead.
    fn given(&self, node: &PlannedNode) -> DeviceConfig {
        let mut given = node.given.clone();
        let before = self.before.and_then(|before| before.graph.member(&node.name));
        if before.is_some_and(|member| member.kind.name == node.kind.name) {
            given.forget_start_option(node.kind);
        }
        given
    }

    /// Returns the hand-over of the closed device that had the name and kind of `node`.
    fn handover(&self, node: &PlannedNode) -> Handover {
        let key = (node.name.clone(), node.kind.name);
        self.before?.handovers.get(&key).cloned()
    }

    /// Returns the member of the old graph that continues unchanged as node `index` of the new plan.
    fn staying(&self, index: usize) -> Option<&Member> {
        let before = self.before?;
        before.unchanged[index].map(|member| &before.graph.nodes[member])
    }

    /// Returns the running hook with the name and the options of `node`. A hook does not depend on the devices below
    /// it.
    fn same_hooks(&self, node: &PlannedNode) -> Option<Rc<dyn Hooks>> {
        let before = self.before?;
        let member = before.graph.member(&node.name)?;
        match &member.body {
            Body::Hooks(hooks, given) if *given == node.given.options => Some(hooks.clone()),
            _ => None,
        }
    }
}

impl Graph {
    /// Builds the graph that `plan` describes, without labelled disks: opens its disks and makes its devices, lowers
    /// first.
    ///
    /// # Errors
    /// The error of the first disk or device that cannot be made. Everything opened before is closed.
    pub async fn build(plan: &Planned, engine: &Engine, env: &Env) -> Result<Self> {
        Self::build_on(plan, None, engine, env).await
    }

    /// Builds a graph as [`Graph::build`] does, with the labelled disks of `labels`, which were opened with the same
    /// `engine`.
    ///
    /// # Errors
    /// As [`Graph::build`]; `Invalid` if the plan has a labelled disk that `labels` does not have.
    pub async fn build_on(
        plan: &Planned,
        labels: Option<&Labels>,
        engine: &Engine,
        env: &Env,
    ) -> Result<Self> {
        let volumes = VolumeSet::new(env, engine);
        let (_, graph) = open_all(plan.clone(), labels, env, engine, &volumes).await?;
        Ok(graph)
    }

    /// Returns a graph without members and exports.
    pub(crate) fn empty(plan: &Planned, engine: &Engine) -> Self {
        let (name, engine) = (plan.name.clone(), engine.clone());
        Self { name, engine, nodes: Vec::new(), exports: Vec::new(), closed: Rc::default() }
    }

    /// Opens the disks and makes the devices and exports that `plan` names, lowers first. Members of the graph `before`
    /// that continue unchanged are taken over. Adds the devices that hold volumes to `volumes`, which holds the volumes
    /// of the plan. If the plan has deferred nodes, makes neither these nor exports.
    ///
    /// # Errors
    /// As [`Graph::build_on`]. Members that were made before the error stay in the graph.
    pub(crate) async fn fill(
        &mut self,
        plan: &Planned,
        labels: Option<&Labels>,
        env: &Env,
        volumes: &VolumeSet,
        before: Option<&Before<'_>>,
    ) -> Result<()> {
        let building = Building { plan, labels, env, volumes, before };
        for (index, node) in plan.nodes.iter().enumerate().take(plan.known_nodes()) {
            let member = match building.staying(index) {
                // The lowers may have other indices in this graph.
                Some(member) => {
                    Member { lowers: node.lowers.clone(), is_renewed: false, ..member.clone() }
                }
                None => self.make(&building, index).await.map_err(|error| error.at(&node.name))?,
            };
            if let Some(holder) = self.holder(&member) {
                volumes.add_holder(&member.name, holder);
            }
            self.nodes.push(member);
        }
        for export in plan.exports.iter().filter(|_| !plan.is_deferred()) {
            let member = &self.nodes[export.node];
            let mut info = member.info.clone();
            let (mut node, mut made) = (member.node, None);
            if export.read_only && !info.read_only {
                info.read_only = true;
                let whole = Table::linear(Port(0), info.size, 0, info.size)?;
                let engine = &self.engine;
                node = engine.add_table(&export.name, info.clone(), Rc::new(whole), &[node])?;
                made = Some(node);
            }
            let (name, clients) = (export.name.clone(), export.clients.clone());
            self.exports.push(Export { name, member: export.node, node, made, clients, info });
        }
        Ok(())
    }

    /// Removes from the engine the nodes of this graph that its replacement `to` does not use.
    pub(crate) fn leave(&self, to: &Self) {
        let taken = |node: &NodeId| to.nodes.iter().any(|member| member.made.contains(node));
        let made = self.nodes.iter().flat_map(|member| &member.made);
        let gone = made.filter(|node| !taken(node));
        let own = self.exports.iter().filter_map(|export| export.made.as_ref());
        gone.chain(own).for_each(|node| self.engine.forget(*node));
    }

    /// Ends the background work of a member, and returns its hand-over to a successor. Afterwards the member refuses
    /// requests, unless the future is dropped before it completes.
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
            // Closing `Labels` closes labelled disks. A volume is closed with the device that holds it.
            Body::Labelled(..) | Body::Hooks(..) | Body::Table(_) | Body::Volume(_) => {
                Box::pin(std::future::ready(None))
            }
        }
    }

    /// Opens a disk, or makes a device over its lowers.
    async fn open(&self, building: &Building<'_>, index: usize) -> Result<Member> {
        let (plan, env) = (&building.plan.nodes[index], building.env);
        let below: Vec<NodeId> = plan.lowers.iter().map(|lower| self.nodes[*lower].node).collect();
        let making = |config| {
            let lowers = below.iter().map(|id| self.engine.lower(*id)).collect();
            let around = plan.around.clone();
            MakerArgs { lowers, around, ..MakerArgs::new(config, env) }
        };
        let (mut data, mut is_renewed) = (None, false);
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
                self.device(&plan.name, device, plan.needs, &below)?
            }
            Maker::Stateful { make, .. } => {
                let given = building.given(plan);
                let state = building.kept(index, &self.nodes);
                let device = make(MakerArgs { state, ..making(&given) }).await?;
                self.device(&plan.name, device, plan.needs, &below)?
            }
            Maker::Stored(stored) => {
                let facts: Vec<_> = below.iter().map(|node| self.engine.info(*node)).collect();
                let state = building.kept(index, &self.nodes);
                is_renewed = building.is_renewed(plan, &*state);
                let room = stored.room(plan.kind, &plan.given, &facts, state)?;
                data = Some(Rc::new(room.data.clone()));
                let parts = self.parts_of(plan, &room, &facts)?;
                let lowers = parts.iter().map(|node| self.engine.lower(*node)).collect();
                let args = MakerArgs { lowers, ..making(&plan.given) };
                let made = stored
                    .make(plan.kind, args, room)
                    .await
                    .and_then(|device| self.device(&plan.name, device, plan.needs, &parts));
                let forget = || parts.iter().for_each(|node| self.engine.forget(*node));
                let (own, body, info) = made.inspect_err(|_| forget())?;
                (parts.into_iter().chain(own).collect(), body, info)
            }
            Maker::Volume => return self.volume(building, plan).await,
            Maker::Disk { .. } if plan.has_label() => self.labelled(building, index)?,
            Maker::Disk { make, .. } => {
                let before = building.handover(plan);
                let device = make(MakerArgs { before, ..making(&plan.given) }).await?;
                let (mut made, body, info) = self.device(&plan.name, device, Needs::LEAF, &[])?;
                made.extend(self.completed(&plan.name, made[0], env)?);
                let before = building.before.map(|before| before.planned);
                if is_looked_at(building.plan, plan, before) {
                    let refused = labels::refuse(plan, env, &self.engine.lower(made[0])).await;
                    // The old graph may still have this disk open, and so may the next change.
                    refused
                        .inspect_err(|_| made.iter().for_each(|node| self.engine.forget(*node)))?;
                }
                (made, body, info)
            }
        };
        is_renewed |= plan.lowers.iter().any(|lower| self.nodes[*lower].is_renewed)
            && !plan.kind.is_redundant(plan.lowers.len());
        Ok(Member { data, is_renewed, ..Member::new(plan, made, body, info) })
    }

    /// Makes the member for a volume, which the set of volumes holds for the graph.
    async fn volume(&self, building: &Building<'_>, plan: &PlannedNode) -> Result<Member> {
        let held = building.volumes.hold_again(&plan.name).await?;
        let found = held.and_then(|held| Some((held.node()?.1, held)));
        let Some((node, held)) = found else { bail!(NotFound, "the volume is not open") };
        let (info, body) = (self.engine.info(node), Body::Volume(held));
        Ok(Member { made: Vec::new(), ..Member::new(plan, vec![node], body, info) })
    }

    fn hooks(&self, plan: &PlannedNode, hooks: Rc<dyn Hooks>, below: &[NodeId]) -> Result<Made> {
        let node = self.engine.add_hooks(&plan.name, hooks.clone(), below[0])?;
        let body = Body::Hooks(hooks, plan.given.options.clone());
        Ok((vec![node], body, self.engine.info(node)))
    }

    fn device(
        &self,
        name: &str,
        device: Rc<dyn AnyDevice>,
        needs: Needs,
        below: &[NodeId],
    ) -> Result<Made> {
        let node = self.engine.add_device(name, device.clone(), needs, below)?;
        Ok((vec![node], Body::Device(device), self.engine.info(node)))
    }

    /// Makes the nodes for the parts of the lowers of a device with objects: its data, its vault, its journal.
    fn parts_of(&self, plan: &PlannedNode, room: &Room, facts: &[Info]) -> Result<Vec<NodeId>> {
        let add = |(port, own, info): (usize, &Table, Info)| {
            let below = &self.nodes[plan.lowers[port]];
            let fusion = Fusion::over(own.clone(), &[(below.node, below.fusion())])?;
            self.engine.add_table(&below.name, info, Rc::new(fusion.fused), &fusion.ports)
        };
        let mut made = Vec::new();
        for part in parts(room, facts) {
            let forget = |_: &Error| made.iter().for_each(|node| self.engine.forget(*node));
            let node = add(part).inspect_err(forget)?;
            made.push(node);
        }
        Ok(made)
    }

    /// Makes the node of a labelled disk: a table over the raw disk that leaves out the label areas at both ends.
    fn labelled(&self, building: &Building<'_>, index: usize) -> Result<Made> {
        let plan = &building.plan.nodes[index];
        let place = building.labels.and_then(|labels| labels.place(building.plan, index));
        let (device, raw, bytes) = match place {
            Some(DataSource::Here(device, raw, bytes)) => (device, raw, bytes),
            Some(DataSource::Absent(device)) => {
                return self.device(&plan.name, device, Needs::LEAF, &[]);
            }
            None => {
                bail!(Invalid, "the label of the disk was not opened");
            }
        };
        let mut made: Vec<NodeId> =
            self.completed(&plan.name, raw, building.env)?.into_iter().collect();
        let raw = made.last().copied().unwrap_or(raw);
        let raw_info = self.engine.info(raw);
        let own = Table::linear(Port(0), raw_info.size, meta::DATA_START, bytes)?;
        let fusion = Fusion::alone(own, raw);
        let info = Info { size: bytes, ..raw_info };
        let table = Rc::new(fusion.fused.clone());
        let node = self.engine.add_table(&plan.name, info, table, &fusion.ports)?;
        made.push(node);
        Ok((made, Body::Labelled(device, fusion), self.engine.info(node)))
    }

    /// Adds a device above `disk` that emulates the requests which the disk does not support. Returns `None` if it
    /// supports all.
    fn completed(&self, name: &str, disk: NodeId, env: &Env) -> Result<Option<NodeId>> {
        let info = self.engine.info(disk);
        if !Emulate::is_needed(&info, info.block_size) {
            return Ok(None);
        }
        let emulate = Emulate::new(env, self.engine.lower(disk), info.block_size)?;
        self.engine.add_device(name, Rc::new(emulate), Emulate::NEEDS, &[disk]).map(Some)
    }

    /// Makes a table device. Its table is fused with the tables directly below, so that one lookup per request is
    /// enough.
    fn table(&self, plan: &PlannedNode) -> Result<Made> {
        let own = plan.table.clone().expect("the plan of a table kind has a table");
        let below = plan.lowers.iter().map(|lower| &self.nodes[*lower]);
        let lowers: Vec<_> = below.map(|lower| (lower.node, lower.fusion())).collect();
        let fusion = Fusion::over(own, &lowers)?;
        let (table, info) = (Rc::new(fusion.fused.clone()), plan.info.clone());
        let node = self.engine.add_table(&plan.name, info, table, &fusion.ports)?;
        Ok((vec![node], Body::Table(fusion), self.engine.info(node)))
    }

    /// Returns the name of this graph.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the exports of this graph, in the order of the plan.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Returns for each export of this graph, by name, the node of the engine to which its portals must lead.
    pub fn targets(&self) -> Targets {
        self.exports.iter().map(|export| (export.name.clone(), export.node)).collect()
    }

    /// Returns the export called `name`.
    pub fn export(&self, name: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.name == name)
    }

    /// Returns the disks and devices of this graph, lowers first.
    pub fn members(&self) -> &[Member] {
        &self.nodes
    }

    /// Returns the devices that must be flushed to make all writes to the graph durable: writable devices that an
    /// export shows, or that have no writable device above. Each is paired with the name of an export that shows it, or
    /// with its own name.
    pub fn flushed(&self) -> impl Iterator<Item = (&str, &Member)> {
        let is_writable = |device: &&Member| !self.engine.info(device.node).read_only;
        // A device that holds volumes has more of them than the graph names.
        let above = self.nodes.iter().filter(is_writable);
        let above = above.filter(|device| !matches!(device.body, Body::Volume(_)));
        let below: BTreeSet<_> = above.flat_map(|device| &device.lowers).copied().collect();
        let all = self.nodes.iter().enumerate().filter(move |(_, device)| is_writable(device));
        all.filter_map(move |(index, device)| {
            let export = self.exports.iter().find(|export| export.member == index);
            let is_top = !below.contains(&index) && !device.lowers.is_empty();
            let own = is_top.then_some(device.name.as_str());
            Some((export.map(|export| export.name.as_str()).or(own)?, device))
        })
    }

    /// Returns the devices that hold volumes, by name.
    pub fn holders_of_volumes(&self) -> impl Iterator<Item = (String, Holder)> {
        self.nodes.iter().filter_map(|member| Some((member.name.clone(), self.holder(member)?)))
    }

    fn holder(&self, member: &Member) -> Option<Holder> {
        let volumes = self.volumes(member)?;
        let lowers = member.lowers.iter().map(|lower| self.nodes[*lower].node).collect();
        Some(Holder { node: member.node, volumes, lowers })
    }

    /// Returns the volumes that a device holds, if it holds any.
    pub fn volumes(&self, member: &Member) -> Option<Rc<dyn AnyVolumes>> {
        match &member.body {
            Body::Device(device) => device.clone().volumes(),
            Body::Labelled(..) | Body::Hooks(..) | Body::Table(_) | Body::Volume(_) => None,
        }
    }

    /// Returns the member called `name`.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.nodes.iter().find(|member| member.name == name)
    }

    /// Returns the engine that carries the requests of this graph.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the report of a disk or device about its health and state.
    pub fn report(&self, member: &Member) -> Report {
        match &member.body {
            Body::Device(device) | Body::Labelled(device, _) => device.report(),
            Body::Hooks(hooks, _) => hooks.report(),
            Body::Table(_) | Body::Volume(_) => Report::default(),
        }
    }

    /// Carries out a command on a device.
    ///
    /// # Errors
    /// `Unsupported` if the device does not have the command's verb; `InUse` while a live change replaces the device;
    /// else the error of the device.
    pub fn control(&self, device: &Member, command: Command) -> LocalFuture<Result<Reply>> {
        if self.is_closed(&device.name) {
            let words = format!("a live change of the graph is replacing {}", device.name);
            let error = Error::new(ErrorKind::InUse, words).next("repeat the command");
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

    /// Whether a live change has closed the device called `device` and has not yet replaced it.
    pub fn is_closed(&self, device: &str) -> bool {
        self.closed.borrow().contains(device)
    }

    /// Returns the verbs of the commands that a device supports.
    pub fn verbs(&self, device: &Member) -> &'static [&'static VerbInfo] {
        match &device.body {
            Body::Device(running) => running.verbs(),
            Body::Labelled(..) | Body::Hooks(..) | Body::Table(_) | Body::Volume(_) => &[],
        }
    }

    /// Returns the lowers of a device that have all bytes of the device at present, such as the members in sync of a
    /// mirror.
    pub fn holders(&self, device: &Member) -> impl Iterator<Item = &Member> {
        let holders = match &device.body {
            Body::Device(running) => running.holders(),
            Body::Labelled(..) | Body::Hooks(..) | Body::Table(_) | Body::Volume(_) => Vec::new(),
        };
        holders.into_iter().map(|lower| &self.nodes[device.lowers[lower]])
    }

    /// Returns the members in whose bytes [`Graph::resolve`] finds those of `member`: its lowers; for a volume, the
    /// lowers of the device that holds it.
    pub fn holding<'m>(&'m self, member: &'m Member) -> &'m [usize] {
        match &member.body {
            Body::Volume(_) => &self.nodes[member.lowers[0]].lowers,
            _ => &member.lowers,
        }
    }

    /// Returns the byte ranges of the lowers that hold the byte range `range` of `member`. Together, at most `most` of
    /// them hold the whole range.
    ///
    /// # Errors
    /// `Limit` if more than `most` byte ranges hold it; else the error of the device.
    pub async fn resolve(
        &self,
        member: &Member,
        range: ByteRange,
        most: usize,
    ) -> Result<Vec<Below>> {
        let places = match &member.body {
            Body::Device(device) => {
                let places = resolved(&**device, range, most).await?;
                match &member.data {
                    Some(data) => places.into_iter().flat_map(|at| in_lower(data, at)).collect(),
                    None => places,
                }
            }
            Body::Volume(held) => match held.node() {
                Some((device, _)) => resolved(&*device, range, most).await?,
                None => bail!(InUse, "a live change of the graph is replacing {}", member.name),
            },
            // A disk has no lowers.
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
            bail!(Limit, "bytes {range} of {} lie in over {most} ranges of lowers", member.name);
        }
        Ok(places)
    }
}

/// Maps a place in the data of a device with objects to places in its first lower.
fn in_lower(data: &Table, place: Below) -> impl Iterator<Item = Below> {
    let Below { range, above, .. } = place;
    data.map(range).map(move |run| Below {
        above: above + (run.start - range.start()),
        range: run.range,
        ..place.clone()
    })
}

/// Returns the byte ranges of the lowers that hold a range of `device`. Stops after `most + 1` of them. A device that
/// cannot resolve its bytes counts as a disk.
pub(crate) async fn resolved(
    device: &dyn AnyDevice,
    range: ByteRange,
    most: usize,
) -> Result<Vec<Below>> {
    let (mut places, mut rest) = (Vec::new(), Some(range));
    while let Some(range) = rest.filter(|_| places.len() <= most) {
        let Resolved::Places { all, upto, .. } = device.resolve(range).await? else { break };
        places.extend(all);
        rest = ByteRange::between(upto, range.end());
    }
    Ok(places)
}
