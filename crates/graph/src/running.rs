//! A running graph: what a plan becomes.

use std::rc::Rc;

use block::{
    Below, ByteRange, Control, Emulate, Env, Error, ErrorKind, Handled, Hooks, Info, NothingKept,
    Port, Report, Result, Table, TableId,
};

use crate::carried::Carried;
use crate::engine::{AnyDevice, Engine, NodeId};
use crate::kind::{Kind, Maker};
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

impl Graph {
    /// Opens and makes everything that `plan` names, the lowest first.
    ///
    /// # Errors
    /// What the first disk or device says that cannot be made; what was opened before is closed.
    pub async fn build(plan: &Planned, engine: &Engine, env: &Env) -> Result<Self> {
        let mut graph = Self {
            name: plan.name.clone(),
            engine: engine.clone(),
            nodes: Vec::new(),
            exports: Vec::new(),
        };
        for node in &plan.nodes {
            let member = graph.make(node, env).await.map_err(|error| error.at(&node.name))?;
            graph.nodes.push(member);
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

    async fn make(&self, plan: &PlannedNode, env: &Env) -> Result<Member> {
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
                let kept = Rc::new(NothingKept::new(plan.created));
                let device = make(&plan.given, env, lowers, kept).await?;
                self.device(&plan.name, device, &below)?
            }
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
        let info = device.info().clone();
        let node = self.engine.add_device(name, device.clone(), below)?;
        Ok((node, Body::Device(device), info))
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
                (Some(port), Body::Table(fusion)) => fusion.ports[usize::from(port.0)],
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
        let node =
            self.engine.add_table(&plan.name, info.clone(), Rc::new(table.clone()), &nodes)?;
        Ok((node, Body::Table(Fusion { own, fused: table, ports: nodes }), info))
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
    /// The device's answer, or `Unsupported` if it does not know the request.
    pub fn control(&self, member: &Member, control: &Control) -> Result<Report> {
        let handled = match &member.body {
            Body::Device(device) => device.control(control),
            Body::Hooks(hooks) => hooks.control(control),
            Body::Table(_) => Handled::Pass,
        };
        match (handled, control) {
            (Handled::Done(answer), _) => answer,
            (Handled::Pass, Control::Report) => Ok(Report::default()),
            (Handled::Pass, _) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} is a {} and has no members", member.name, member.kind.name),
            )),
        }
    }

    /// Where a range of a member lies, one step down.
    ///
    /// # Errors
    /// `Limit` if it lies in too many places, `Unsupported` if the device cannot say.
    pub fn resolve(&self, member: &Member, range: ByteRange) -> Result<Vec<Below>> {
        match &member.body {
            Body::Device(device) => device.resolve(range),
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
    /// The mapping that its requests go through in one lookup, if it is a table.
    pub fn fused(&self) -> Option<&Table> {
        match &self.body {
            Body::Table(fusion) => Some(&fusion.fused),
            _ => None,
        }
    }
}
