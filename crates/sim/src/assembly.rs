//! A graph that a test builds in code, device by device from the bottom up, with the kinds of a registry.
//!
//! `graph::Graph` opens graphs from specs, and the simulator uses it for labelled disks. An [`Assembly`] can do three
//! things that a spec cannot express: it accepts devices without a kind (the strict lower of the battery, and the wrong
//! devices that the battery must detect), it can leave tables unfused, and it returns the facts about each device
//! before the test chooses the next device.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use block::control::{Command, Reply, Resolved, Verb, VerbInfo};
use block::env::LocalFuture;
use block::{
    Below, ByteRange, Env, Error, ErrorKind, Hooks, Info, Lower, Needs, NoStateStore, Port, Report,
    Result, StateStore, StoredState, Table,
};
use engine::{AnyDevice, Engine, NodeId};
use fixedbitset::FixedBitSet;
use kind::testing::PartId;
use kind::{
    Beneath, DeviceConfig, DevicePlan, Fault, Kind, LowerConfig, Maker, MakerArgs, Registry,
    Surroundings, TablePlan, Value, parts,
};

use crate::carried::{AS_DEVICE, Carried};
use crate::draw::Stream;
use crate::world::{SimWorld, Stuck};

/// A graph that a test builds device by device, with its engine.
pub struct Assembly {
    /// The engine of the graph. It runs from the creation of the assembly on.
    pub engine: Engine,
    env: Env,
    registry: Registry,
    fuse: bool,
    parts: Vec<Part>,
    /// The simulated world that the assembly runs while the opening of a device waits; `None` if no opening waits.
    world: Option<SimWorld>,
    /// Where devices keep their states, if the disks are labelled; `None` without labels.
    labels: Option<Rc<dyn Labels>>,
    keeps_objects: bool,
    /// Surroundings of the devices that are added.
    around: Surroundings,
}

/// Where the devices of an assembly keep their states, instead of the labels of real disks.
pub trait Labels {
    /// Returns the store for the state of `device`. `beneath`: for each port, the disks below it.
    fn kept(self: Rc<Self>, device: &str, beneath: &[BTreeSet<PartId>]) -> Rc<dyn StateStore>;

    /// Returns for each port whether the disks below it are new for the graph, and the newest state of `device` there, for
    /// the plan of the device. By default a plan gets neither.
    fn before_plan(&self, _device: &str, beneath: &[BTreeSet<PartId>]) -> Vec<BeforePlan> {
        vec![(false, None); beneath.len()]
    }
}

/// Whether the disks below a port are new, and the newest state of a device there.
pub type BeforePlan = (bool, Option<StoredState>);

struct Part {
    name: String,
    info: Info,
    node: NodeId,
    body: Body,
    on: Vec<PartId>,
    /// Address in bytes of the first byte of the device behind its last partition so far.
    next_free: u64,
    beneath: Rc<Beneath>,
}

/// The code or table that the engine runs for a device of the assembly.
enum Body {
    /// A device, with the mapping of its data to its first lower if it has objects.
    Device(Rc<dyn AnyDevice>, Option<Rc<Table>>),
    Hooks(Rc<dyn Hooks>),
    /// A table, with the engine's node for each of its ports.
    Table(Rc<Table>, Vec<NodeId>),
}

/// Options of a new device: pairs of name and value.
pub type Options<'a> = &'a [(&'static str, Value)];

impl Assembly {
    /// Creates a graph without devices. `fuse`: the assembly fuses tables over tables. `order`: the random numbers by
    /// which the engine orders ready requests.
    pub fn new(env: &Env, registry: Registry, fuse: bool, order: Stream) -> Self {
        let engine = Engine::new(env.pool());
        engine.shuffle(move |ready| order.below(ready as u64) as usize);
        env.spawn("engine", engine.clone().drive());
        let (env, parts) = (env.clone(), Vec::new());
        let (world, labels, keeps_objects) = (None, None, false);
        let around = Surroundings::default();
        Self { engine, env, registry, fuse, parts, world, labels, keeps_objects, around }
    }

    /// Sets the surroundings of the devices that are added from now on: the devices above them are not known yet.
    pub fn surround(&mut self, around: Surroundings) {
        self.around = around;
    }

    /// Returns the inputs for a device with the configuration `given` over the nodes `lowers`.
    fn args<'m>(&'m self, given: &'m DeviceConfig, lowers: &[NodeId]) -> MakerArgs<'m> {
        let lowers = lowers.iter().map(|node| self.engine.lower(*node)).collect();
        let around = self.around.clone();
        MakerArgs { lowers, around, ..MakerArgs::new(given, &self.env) }
    }

    /// Sets the simulated world of the assembly's environment. While the opening of a device waits, the assembly runs
    /// the world.
    #[must_use]
    pub fn in_world(mut self, world: &SimWorld) -> Self {
        self.world = Some(world.clone());
        self
    }

    /// Makes the disks of the assembly labelled: devices keep their states in `labels`.
    #[must_use]
    pub fn on_labels(mut self, labels: Rc<dyn Labels>) -> Self {
        self.labels = Some(labels);
        self
    }

    /// Returns the store for the state of a device called `name` over the devices `on`.
    pub fn kept(&self, name: &str, on: &[PartId]) -> Rc<dyn StateStore> {
        let Some(labels) = &self.labels else { return Rc::new(NoStateStore::new(false)) };
        let beneath: Vec<_> = on.iter().map(|part| self.beneath(*part)).collect();
        labels.clone().kept(name, &beneath)
    }

    /// Returns the disks below a device; the device itself if it has no lowers.
    fn beneath(&self, part: PartId) -> BTreeSet<PartId> {
        match &self.parts[part].on[..] {
            [] => BTreeSet::from([part]),
            on => on.iter().flat_map(|lower| self.beneath(*lower)).collect(),
        }
    }

    /// Returns the result of opening a device. Runs the simulated world until then; without a world the result must be
    /// ready.
    ///
    /// # Errors
    /// `TimedOut` if the simulated world has no event left and the result is not ready.
    pub fn finished<T>(&self, answer: LocalFuture<T>) -> Result<T> {
        let Some(world) = &self.world else { return Ok(at_once(answer)) };
        let stuck = |stuck: Stuck| Error::new(ErrorKind::TimedOut, stuck.to_string());
        world.block_on(answer).map_err(stuck)
    }

    /// Returns the engine's node of a device.
    pub fn node(&self, part: PartId) -> NodeId {
        self.parts[part].node
    }

    /// Returns the environment in which the devices of the graph were created.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Returns a handle with which an upper device sends requests to this device.
    pub fn lower(&self, part: PartId) -> Lower {
        self.engine.lower(self.parts[part].node)
    }

    /// Returns the name that the assembly gave to a device.
    pub fn name(&self, part: PartId) -> &str {
        &self.parts[part].name
    }

    /// Returns the facts about a device (size, block size, limits).
    pub fn info(&self, part: PartId) -> &Info {
        &self.parts[part].info
    }

    /// Returns the ports of a device whose lowers each have all bytes of the device now.
    pub fn holders(&self, part: PartId) -> Vec<usize> {
        match &self.parts[part].body {
            Body::Device(device, _) => device.holders(),
            _ => Vec::new(),
        }
    }

    /// Returns the report of a device (state, members, counters).
    pub fn report(&self, part: PartId) -> Report {
        match &self.parts[part].body {
            Body::Device(device, _) => device.report(),
            Body::Hooks(hooks) => hooks.report(),
            Body::Table(..) => Report::default(),
        }
    }

    /// Returns the commands that a device accepts.
    pub fn verbs(&self, part: PartId) -> &'static [&'static VerbInfo] {
        match &self.parts[part].body {
            Body::Device(device, _) => device.verbs(),
            _ => &[],
        }
    }

    /// Sends a command to a device. Returns a future of the reply.
    pub fn command(&self, part: PartId, command: Command) -> LocalFuture<Result<Reply>> {
        self.engine.control(self.parts[part].node, command)
    }

    /// Sends a command of type `V` to a device, which must answer without waiting.
    ///
    /// # Errors
    /// The error of the device; `TimedOut` if the device does not answer without waiting.
    pub fn ask<V: Verb>(&self, part: PartId, args: V::Args) -> Result<V::Answer> {
        answered(self.ask_later::<V>(part, args))
    }

    /// Sends a command of type `V` to a device. Returns a future of the answer.
    pub fn ask_later<V: Verb>(
        &self,
        part: PartId,
        args: V::Args,
    ) -> LocalFuture<Result<V::Answer>> {
        let reply = self.command(part, Command::new::<V>(args));
        Box::pin(async move { reply.await?.answer::<V>() })
    }

    /// Returns the byte ranges of a device's lowers to which `range` of the device maps; empty for a table or a hook.
    ///
    /// # Errors
    /// The error of the device.
    pub fn resolve(&self, part: PartId, range: ByteRange) -> Result<Vec<Below>> {
        let Body::Device(device, data) = &self.parts[part].body else { return Ok(Vec::new()) };
        let device = device.clone();
        let answer = self.finished(Box::pin(async move { device.resolve(range).await }))??;
        let Resolved::Places { mut all, .. } = answer else { return Ok(Vec::new()) };
        for below in all.iter_mut().filter(|_| data.is_some()) {
            // Tests resolve ranges that do not cross the room of the objects.
            let table = data.as_ref().expect("the filter found one");
            below.range = table.map_one(below.range).expect("one run of the data").range;
        }
        Ok(all)
    }

    /// Closes the devices over lowers, from the top down, as a graph does before it stops. Returns a future that waits
    /// for the end of their background work. Afterwards they refuse requests.
    pub fn close(&self) -> LocalFuture<()> {
        let of = |part: &Part| match &part.body {
            Body::Device(device, _) if !part.on.is_empty() => Some((device.clone(), part.node)),
            Body::Device(..) | Body::Hooks(_) | Body::Table(..) => None,
        };
        let devices: Vec<_> = self.parts.iter().rev().filter_map(of).collect();
        let engine = self.engine.clone();
        Box::pin(async move {
            for (device, node) in devices {
                device.close().await;
                engine.close(node);
            }
        })
    }

    /// Whether a kind in the graph keeps persistent objects on its lowers.
    pub fn keeps_objects(&self) -> bool {
        self.keeps_objects
    }

    /// Adds a device to the graph that the test has created itself, over the devices `on`.
    ///
    /// # Errors
    /// The errors of [`Engine::add_device`].
    pub fn adopt(
        &mut self,
        name: &str,
        device: Rc<dyn AnyDevice>,
        needs: Needs,
        on: &[PartId],
    ) -> Result<PartId> {
        let nodes: Vec<_> = on.iter().map(|part| self.parts[*part].node).collect();
        let node = self.engine.add_device(name, device.clone(), needs, &nodes)?;
        Ok(self.push(name.to_owned(), on, node, Body::Device(device, None)))
    }

    /// Creates a device of the kind called `kind` with these options over the devices `on`, and adds it to the graph.
    ///
    /// # Errors
    /// The error of planning or creating the device; `NotFound` if the registry has no such kind.
    pub fn add(&mut self, kind: &str, options: Options<'_>, on: &[PartId]) -> Result<PartId> {
        let unknown = || Error::new(ErrorKind::NotFound, format!("unknown kind {kind}"));
        let kind = self.registry.find(kind).ok_or_else(unknown)?;
        self.keeps_objects |= kind.keeps_objects();
        let name = format!("{}{}", kind.name, self.parts.len());
        let (graph, options) = ("sim".to_owned(), options.to_vec());
        let lowers = self.given(&name, on);
        let given = DeviceConfig { graph, name, options, lowers, trusted_now: false };
        let part = self.make(kind, &given, on)?;
        let beneath = Beneath::of(&given, part, kind.maker);
        self.parts[part].beneath = Rc::new(beneath);
        Ok(part)
    }

    fn make(&mut self, kind: &Kind, given: &DeviceConfig, on: &[PartId]) -> Result<PartId> {
        let name = given.name.clone();
        let nodes: Vec<_> = on.iter().map(|part| self.parts[*part].node).collect();
        match &kind.maker {
            Maker::Table(plan) => {
                let TablePlan { table, .. } = plan(given).map_err(refused)?;
                self.note_partition(kind.name, &table, on);
                self.add_table(name, table, on)
            }
            Maker::Hooks { plan, make } => {
                plan(given).map_err(refused)?;
                let hooks = make(MakerArgs::new(given, &self.env))?;
                if given.options.contains(&AS_DEVICE) {
                    let carried = Rc::new(Carried::new(hooks, self.engine.lower(nodes[0])));
                    return self.adopt(&name, carried, Needs::children(1), on);
                }
                let node = self.engine.add_hooks(&name, hooks.clone(), nodes[0])?;
                Ok(self.push(name, on, node, Body::Hooks(hooks)))
            }
            Maker::Device { plan, make, .. } => {
                let DevicePlan { needs, .. } = plan(given).map_err(refused)?;
                let device = make(self.args(given, &nodes))?;
                self.adopt(&name, device, needs, on)
            }
            Maker::Stateful { plan, make, .. } => {
                let DevicePlan { needs, .. } = plan(given).map_err(refused)?;
                let state = self.kept(&name, on);
                let making = MakerArgs { state, ..self.args(given, &nodes) };
                let device = self.finished(make(making))??;
                self.adopt(&name, device, needs, on)
            }
            Maker::Stored(stored) => {
                let DevicePlan { needs, .. } = stored.plan(kind, given).map_err(refused)?;
                let state = self.kept(&name, on);
                let facts: Vec<_> = nodes.iter().map(|node| self.engine.info(*node)).collect();
                let room = stored.room(kind, given, &facts, state)?;
                let add = |(port, table, info): (usize, &Table, Info)| {
                    self.engine.add_table(&name, info, Rc::new(table.clone()), &[nodes[port]])
                };
                let parts = parts(&room, &facts).into_iter().map(add);
                let parts = parts.collect::<Result<Vec<_>>>()?;
                let data = Rc::new(room.data.clone());
                let making = self.args(given, &parts);
                let device = self.finished(stored.make(kind, making, room))??;
                let node = self.engine.add_device(&name, device.clone(), needs, &parts)?;
                Ok(self.push(name, on, node, Body::Device(device, Some(data))))
            }
            Maker::Volume => unreachable!("a simulated graph names no volume"),
            Maker::Disk { plan, make } => {
                self.finished(plan(given, &self.env))?.map_err(refused)?;
                let disk = self.finished(make(MakerArgs::new(given, &self.env)))??;
                self.adopt(&name, disk, Needs::LEAF, &[])
            }
        }
    }

    fn given(&self, device: &str, on: &[PartId]) -> Vec<LowerConfig> {
        let beneath: Vec<_> = on.iter().map(|part| self.beneath(*part)).collect();
        let labels = self.labels.as_ref();
        let before = labels.map(|labels| labels.before_plan(device, &beneath));
        let before = before.unwrap_or_else(|| vec![(false, None); on.len()]);
        let lower = |(part, (fresh, state)): (&PartId, BeforePlan)| {
            let Part { name, info, next_free, beneath, .. } = &self.parts[*part];
            let (name, info) = (name.clone(), info.clone());
            let labelled = self.labels.is_some();
            let (next_free, beneath) = (*next_free, beneath.clone());
            let state = state.map(Rc::new);
            LowerConfig { name, info, created: false, labelled, fresh, state, next_free, beneath }
        };
        on.iter().zip(before).map(lower).collect()
    }

    fn note_partition(&mut self, kind: &str, table: &Table, on: &[PartId]) {
        if kind == "partition" {
            let start = table.segment(0).place.origins()[0].start;
            self.parts[on[0]].next_free = start + table.size();
        }
    }

    fn add_table(&mut self, name: String, table: Table, on: &[PartId]) -> Result<PartId> {
        let over = Info::over(on.iter().map(|part| &self.parts[*part].info));
        let info = Info { size: table.size(), ..over.expect("a table has lowers") };
        table.check_block_size(info.block_size)?;
        let (table, nodes) =
            if self.fuse { self.fused(&table, on)? } else { self.plain(table, on) };
        let table = Rc::new(table);
        let node = self.engine.add_table(&name, info, table.clone(), &nodes)?;
        Ok(self.push(name, on, node, Body::Table(table, nodes)))
    }

    fn plain(&self, table: Table, on: &[PartId]) -> (Table, Vec<NodeId>) {
        (table, on.iter().map(|part| self.parts[*part].node).collect())
    }

    fn fused(&self, table: &Table, on: &[PartId]) -> Result<(Table, Vec<NodeId>)> {
        let below = |part: &PartId| match &self.parts[*part].body {
            Body::Table(table, nodes) => Some((table, nodes)),
            Body::Device(..) | Body::Hooks(_) => None,
        };
        let tables: Vec<_> = on.iter().map(|part| below(part).map(|(table, _)| &**table)).collect();
        let fused = table.fuse(&tables)?;
        let node = |upper: Port, lower: Option<Port>| {
            let part = on[usize::from(upper.0)];
            match (lower, below(&part)) {
                (Some(lower), Some((_, nodes))) => nodes[usize::from(lower.0)],
                _ => self.parts[part].node,
            }
        };
        Ok((fused.table, fused.ports.iter().map(|port| node(port.upper, port.lower)).collect()))
    }

    fn push(&mut self, name: String, on: &[PartId], node: NodeId, body: Body) -> PartId {
        let (info, on) = (self.engine.info(node), on.to_vec());
        let mut disks = FixedBitSet::new();
        on.iter().for_each(|part| disks.union_with(&self.parts[*part].beneath.disks));
        if on.is_empty() {
            disks.grow_and_insert(self.parts.len());
        }
        let beneath = Rc::new(Beneath { disks, in_place: vec![name.clone()] });
        self.parts.push(Part { name, info, node, body, on, next_free: 0, beneath });
        self.parts.len() - 1
    }
}

/// Returns the answer to a command that a device must answer without waiting.
///
/// # Errors
/// The error in the answer; `TimedOut` if the device waits.
pub fn answered<T>(mut answer: LocalFuture<Result<T>>) -> Result<T> {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => {
            Err(Error::new(ErrorKind::TimedOut, "the device did not answer without waiting"))
        }
    }
}

/// Returns the result of opening a simulated disk, which never waits.
fn at_once<T>(mut answer: LocalFuture<T>) -> T {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a simulated disk opens without waiting"),
    }
}

fn refused(faults: Vec<Fault>) -> Error {
    let words: Vec<_> =
        faults.iter().map(|fault| format!("{}: {}", fault.option, fault.message)).collect();
    Error::new(ErrorKind::Invalid, words.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, DiskConfig, Profile, SimDisk, SimWorld};
    use block::{ByteRange, Op};

    #[test]
    fn simulated_stripe_reads_back_writes_with_and_without_fusing() {
        for fuse in [false, true] {
            let world = SimWorld::new(1);
            let env = world.env();
            let order = Stream::new(1, "order", 0);
            let mut graph = Assembly::new(&env, kinds::REGISTRY, fuse, order);
            let disk = |n: u64| {
                let disk = SimDisk::new(&world, n, DiskConfig::new(1 << 20, Profile::Native512));
                world.plug(format!("/disk{n}"), &disk);
            };
            (0..2).for_each(disk);
            let path = |n: u64| [("path", Value::Text(format!("/disk{n}")))];
            let disks = [0, 1].map(|n| graph.add("path", &path(n), &[]).unwrap());
            let low = [("start", Value::Size(4096)), ("size", Value::Size(512 << 10))];
            let parts = disks.map(|disk| graph.add("linear", &low, &[disk]).unwrap());
            let stripe = graph.add("stripe", &[("chunk", Value::Size(4096))], &parts).unwrap();
            let client = Client::new(&graph.engine, graph.node(stripe));
            let bytes: Vec<u8> = (0..16384_u32).map(|n| (n / 100) as u8).collect();
            let range = ByteRange::new(2048, 16384).unwrap();
            let data = env.buf(16384).unwrap();
            data.write().copy_from_slice(&bytes);
            let written = world.block_on(client.send(Op::write(range, data))).unwrap();
            written.result.unwrap();
            drop(written.op);
            let into = env.buf(16384).unwrap();
            let read = world.block_on(client.send(Op::read(range, into))).unwrap();
            let Op::Read { into, .. } = read.op else { panic!("it comes back as it went") };
            assert_eq!(*into.read(), *bytes);
            drop(into);
            assert_eq!((env.pool().used_bytes(), graph.engine.in_flight()), (0, 0));
        }
    }
}
