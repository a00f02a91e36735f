//! A running graph: what a plan becomes.

use std::rc::Rc;

use block::env::LocalFuture;
use block::{
    Below, ByteRange, Control, Emulate, Env, Error, ErrorKind, Handled, Hooks, Info, Kept,
    NothingKept, Port, Report, Result, Table, TableId,
};

use crate::carried::Carried;
use crate::engine::{AnyDevice, Engine, NodeId};
use crate::kind::{Kind, Maker};
use crate::labels::{Labels, Place};
use crate::spec::{Planned, PlannedNode};

/// A graph whose devices are open. It stands for as long as its engine.
pub struct Graph {
    name: String,
    engine: Engine,
    nodes: Vec<Member>,
    exports: Vec<Export>,
}

/// A disk or device of a running graph.
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
    body: Body,
}

enum Body {
    Device(Rc<dyn AnyDevice>),
    /// A labelled disk: the raw one, and the table of its data.
    Labelled(Rc<dyn AnyDevice>, Fusion),
    Hooks(Rc<dyn Hooks>),
    Table(Fusion),
}

/// A table device: its own table over its lowers, and the fused one over the devices below them.
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
    /// Where its requests begin.
    pub node: NodeId,
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
}

impl Building<'_> {
    /// What the device keeps beneath it.
    fn kept(&self, index: usize) -> Rc<dyn Kept> {
        match self.labels {
            Some(labels) => labels.kept(self.plan, index),
            None => Rc::new(NothingKept::new(self.plan.nodes[index].created)),
        }
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
        let mut graph = Self {
            name: plan.name.clone(),
            engine: engine.clone(),
            nodes: Vec::new(),
            exports: Vec::new(),
        };
        let building = Building { plan, labels, env };
        for (index, node) in plan.nodes.iter().enumerate() {
            let member = graph.make(&building, index).await;
            graph.nodes.push(member.map_err(|error| error.at(&node.name))?);
        }
        for export in &plan.exports {
            let member = &graph.nodes[export.node];
            let mut info = member.info.clone();
            let mut node = member.node;
            if export.read_only && !info.read_only {
                info.read_only = true;
                let whole = Table::linear(Port(0), info.size, 0, info.size)
                    .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
                node = engine.add_table(&export.name, info.clone(), Rc::new(whole), &[node])?;
            }
            let name = export.name.clone();
            let clients = export.clients.clone();
            graph.exports.push(Export { name, member: export.node, node, clients, info });
        }
        Ok(graph)
    }

    async fn make(&self, building: &Building<'_>, index: usize) -> Result<Member> {
        let (plan, env) = (&building.plan.nodes[index], building.env);
        let below: Vec<NodeId> = plan.lowers.iter().map(|lower| self.nodes[*lower].node).collect();
        let (node, body, info) = match plan.kind.maker {
            Maker::Table(_) => self.table(plan)?,
            Maker::Hooks { make, .. } if plan.as_device() => {
                let hooks = make(&plan.given, env)?;
                let carried = Carried::new(hooks, self.engine.lower(below[0]));
                self.device(&plan.name, Rc::new(carried), &below)?
            }
            Maker::Hooks { make, .. } => {
                let hooks = make(&plan.given, env)?;
                let node = self.engine.add_hooks(&plan.name, hooks.clone(), below[0])?;
                (node, Body::Hooks(hooks), self.engine.info(node))
            }
            Maker::Device { make, .. } => {
                let lowers = below.iter().map(|id| self.engine.lower(*id)).collect();
                let device = make(&plan.given, env, lowers)?;
                self.device(&plan.name, device, &below)?
            }
            Maker::Keeper { make, .. } => {
                let lowers = below.iter().map(|id| self.engine.lower(*id)).collect();
                let kept = building.kept(index);
                let device = make(&plan.given, env, lowers, kept).await?;
                self.device(&plan.name, device, &below)?
            }
            Maker::Disk { .. } if plan.has_label() => self.labelled(building, index)?,
            Maker::Disk { make, .. } => {
                let device = make(&plan.given, env).await?;
                let (disk, body, info) = self.device(&plan.name, device, &[])?;
                (self.completed(&plan.name, disk, env)?, body, info)
            }
        };
        let (name, kind, lowers) = (plan.name.clone(), plan.kind, plan.lowers.clone());
        Ok(Member { name, kind, lowers, info, node, body })
    }

    fn device(
        &self,
        name: &str,
        device: Rc<dyn AnyDevice>,
        below: &[NodeId],
    ) -> Result<(NodeId, Body, Info)> {
        let node = self.engine.add_device(name, device.clone(), below)?;
        Ok((node, Body::Device(device), self.engine.info(node)))
    }

    /// A disk of which the label takes both ends.
    fn labelled(&self, building: &Building<'_>, index: usize) -> Result<(NodeId, Body, Info)> {
        let plan = &building.plan.nodes[index];
        let place = building.labels.and_then(|labels| labels.place(building.plan, index));
        let (device, raw, bytes) = match place {
            Some(Place::Here(device, raw, bytes)) => (device, raw, bytes),
            Some(Place::Absent(device)) => return self.device(&plan.name, device, &[]),
            None => return Err(Error::new(ErrorKind::Invalid, "its label was not opened")),
        };
        let raw = self.completed(&plan.name, raw, building.env)?;
        let fault = |error: block::TableError| Error::new(ErrorKind::Invalid, error.to_string());
        let id = TableId::new(&plan.name, 1).map_err(fault)?;
        let raw_info = self.engine.info(raw);
        let own = Table::linear(Port(0), raw_info.size, meta::DATA_START, bytes).map_err(fault)?;
        let fused = own.clone().named(id);
        let info = Info { size: bytes, ..raw_info };
        let node = self.engine.add_table(&plan.name, info, Rc::new(fused.clone()), &[raw])?;
        let fusion = Fusion { own, fused, ports: vec![raw] };
        Ok((node, Body::Labelled(device, fusion), self.engine.info(node)))
    }

    /// The disk itself, or what does for it what it cannot do.
    fn completed(&self, name: &str, disk: NodeId, env: &Env) -> Result<NodeId> {
        let info = self.engine.info(disk);
        if !Emulate::is_needed(&info, info.block_size) {
            return Ok(disk);
        }
        let emulate = Emulate::new(env, self.engine.lower(disk), info.block_size)?;
        self.engine.add_device(name, Rc::new(emulate), &[disk])
    }

    /// A table, fused with the tables directly below it: one lookup, however many there are.
    fn table(&self, plan: &PlannedNode) -> Result<(NodeId, Body, Info)> {
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
        Ok((node, Body::Table(fusion), self.engine.info(node)))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What clients see.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// The export of that name.
    pub fn export(&self, name: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.name == name)
    }

    /// Disks and devices, those below first.
    pub fn members(&self) -> &[Member] {
        &self.nodes
    }

    /// The member of that name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.nodes.iter().find(|member| member.name == name)
    }

    /// The engine that carries its requests.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Asks a member; one that has nothing to say is well.
    ///
    /// # Errors
    /// The device's answer, or `Unsupported` if it does not know the request, or needs time for it.
    pub fn control(&self, member: &Member, control: &Control) -> Result<Report> {
        match (self.handled(member, control), control) {
            (Handled::Done(answer), _) => answer,
            (Handled::Later(_), _) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} needs time for this, and was not given any", member.name),
            )),
            (Handled::Pass, Control::Report) => Ok(Report::default()),
            (Handled::Pass, Control::Keys { .. }) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} is a {} and has no key slots", member.name, member.kind.name),
            )),
            (Handled::Pass, _) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} is a {} and has no members", member.name, member.kind.name),
            )),
        }
    }

    /// As [`Graph::control`], of what may take time. The answer holds on to nothing of the graph.
    pub fn control_later(&self, member: &Member, control: &Control) -> LocalFuture<Result<Report>> {
        match self.handled(member, control) {
            Handled::Later(answer) => answer,
            Handled::Done(answer) => Box::pin(std::future::ready(answer)),
            Handled::Pass => Box::pin(std::future::ready(self.control(member, control))),
        }
    }

    fn handled(&self, member: &Member, control: &Control) -> Handled {
        match &member.body {
            Body::Device(device) | Body::Labelled(device, _) => device.control(control),
            Body::Hooks(hooks) => hooks.control(control),
            Body::Table(_) => Handled::Pass,
        }
    }

    /// Where a range of a member lies, one step down.
    ///
    /// # Errors
    /// `Limit` if it lies in too many places, `Unsupported` if the device cannot say.
    pub fn resolve(&self, member: &Member, range: ByteRange) -> Result<Vec<Below>> {
        match &member.body {
            Body::Device(device) => device.resolve(range),
            // It is a disk: there is nothing of ours below.
            Body::Labelled(..) => Ok(Vec::new()),
            Body::Hooks(_) => Ok(vec![Below { lower: 0, above: range.start(), range, how: "" }]),
            Body::Table(fusion) => {
                let below = |run: block::Run| Below {
                    lower: usize::from(run.port.0),
                    above: run.start,
                    range: run.range,
                    how: "",
                };
                Ok(fusion.own.map(range).map(below).collect())
            }
        }
    }
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
