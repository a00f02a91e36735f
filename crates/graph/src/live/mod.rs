//! The running graph, and live changes to it while its clients wait.
//!
//! Devices that a change leaves unchanged continue to run. All other devices are closed in order and made anew, as a
//! start makes them. Meanwhile no request of a client begins. The change is committed when the labels are written. A
//! change that fails is undone in the same way. After a crash, the labels show which of the two graphs counts.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the steps of a change, and its undo |
//! | `same.rs` | the nodes that a change leaves unchanged |
//! | `allow.rs` | the changes that are permitted |
//! | `bytes.rs` | comparison of the bytes that exports show |
//! | `changes.rs` | the effect of a change, in words |
//! | `volumes.rs` | the volumes of the graph's devices, and their move to new devices |

mod allow;
mod bytes;
mod changes;
mod same;
#[cfg(test)]
mod tests;
mod volumes;

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::control::member::{Fail, Name};
use block::control::{Command, Reply, Verb};
use block::seeded::{self, Bug};
use block::{
    Env, Error, ErrorKind, Locked, Mono, Mutex, NoStateStore, Notify, Op, Result, ScopeGuard,
    StateStore, error,
};
use engine::{Engine, PausedVolumes, Portal, Portals, VolumeSet};
use kind::Maker;

use crate::Graph;
use crate::labels::{Labels, Probe};
use crate::running::Before;
use crate::spec::Planned;

use allow::{allow, newly_trusted, shows};
use bytes::Differs;
pub use changes::Changes;
pub(crate) use volumes::open_all;

/// A running graph, which stays the same object through all of its live changes.
pub struct RunningGraph {
    env: Env,
    engine: Engine,
    now: RefCell<Rc<Current>>,
    /// One portal for each export. Clients use the same portal before and after a change.
    portals: Portals,
    /// The volumes of the devices, which clients open by name.
    volumes: VolumeSet,
    /// Lock that permits one live change at a time.
    turn: Mutex,
    /// Wakes the commands that wait until a change has ended.
    changed: Notify,
}

/// The state of a running graph between two changes.
pub struct Current {
    /// The plan from which the open graph was built.
    pub planned: Planned,
    /// The open graph, with one member for each node of the plan in the same order.
    pub graph: Graph,
    /// The labels of the graph, if it has labelled disks.
    pub labels: Option<Labels>,
}

/// The reason why a graph was not opened, or a change was not made.
#[derive(Debug)]
pub enum Unchanged {
    /// The reasons for which a start or a change refuses the labelled disks of the graph. Nothing was changed.
    Refused(Vec<Error>),
    /// The error for which a start or a change failed. Nothing was changed, or every change is undone.
    Failed(Error),
    /// Both the change and its undo have failed. Clients get errors until the next start.
    Lost {
        /// The error for which the change failed.
        change: Error,
        /// The error of reopening the previous graph for the undo.
        back: Error,
    },
}

/// A guard that prevents other live changes of the graph from beginning while the guard exists.
pub struct ChangeGuard(#[expect(dead_code, reason = "it is held, not read")] Locked);

/// Hand-overs of closed devices to their successors, by name and kind of the device.
type Handovers = BTreeMap<(String, &'static str), Rc<dyn Any>>;

/// A live change in progress.
struct Change<'c> {
    old: &'c Current,
    planned: &'c Planned,
    /// For each node of the new plan: the index of the member of the old graph that continues unchanged, if there is
    /// one.
    unchanged: Vec<Option<usize>>,
    labels: Option<&'c Labels>,
    /// For each member of the old graph: whether the change has closed the member.
    closed: Vec<bool>,
    handovers: Handovers,
}

impl RunningGraph {
    /// Opens the graph of a plan, with the probed disks `probe` if the plan has labelled disks.
    ///
    /// # Errors
    /// The reasons why the graph cannot be opened. Everything that was opened is closed again.
    pub async fn open(
        env: &Env,
        engine: &Engine,
        planned: Planned,
        probe: Option<Probe>,
    ) -> Result<Self, Unchanged> {
        let labels = match probe {
            Some(probe) => Some(probe.begin(&planned).await.map_err(Unchanged::Refused)?),
            None => None,
        };
        let volumes = VolumeSet::new(env, engine);
        let made = async {
            let made = open_all(planned, labels.as_ref(), env, engine, &volumes).await?;
            if let Some(labels) = &labels {
                labels.made().await?;
            }
            Ok(made)
        }
        .await;
        match made {
            Ok((planned, graph)) => {
                let (env, engine, portals) = (env.clone(), engine.clone(), Portals::default());
                portals.retarget(&engine, &graph.targets());
                let now = RefCell::new(Rc::new(Current { planned, graph, labels }));
                Ok(Self {
                    env,
                    engine,
                    now,
                    portals,
                    volumes,
                    turn: Mutex::new(),
                    changed: Notify::default(),
                })
            }
            Err(error) => {
                let left = match &labels {
                    Some(labels) => labels.give_up().await.err(),
                    None => None,
                };
                Err(Unchanged::Failed(also(error, left)))
            }
        }
    }

    /// Returns the plan, the devices and the labels that the running graph has at present.
    pub fn now(&self) -> Rc<Current> {
        self.now.borrow().clone()
    }

    /// Returns the portal of the export called `export`. The portal stays valid through every change after which the
    /// graph has an export of this name.
    pub fn portal(&self, export: &str) -> Option<Portal> {
        self.portals.get(export)
    }

    /// Removes new `trust` options of running devices from the plan, and returns a note for the user about each. A
    /// running device records which members are in sync, so the option has no effect.
    pub fn forget_trust(&self, planned: &mut Planned) -> Vec<String> {
        let old = self.now();
        let mut notes = Vec::new();
        while let Some((device, said)) = newly_trusted(&old.planned, planned) {
            notes.push(format!(
                "trust = {said} counts only at a start: {device} is running, knows the members \
                 with every write, and copies nothing"
            ));
            let device = device.to_owned();
            let node = planned.nodes.iter_mut().find(|node| node.name == device);
            node.into_iter().for_each(|node| node.given.forget_start_option(node.kind));
        }
        notes
    }

    /// Returns the effect that a live change of the running graph to `planned` would have.
    ///
    /// # Errors
    /// The reason why the change is not permitted.
    pub fn compare(&self, planned: &Planned) -> Result<Changes> {
        let old = self.now();
        let unchanged = same::unchanged(&old.planned, planned);
        allow(&old, planned, &unchanged)?;
        self.allow_volumes(&old, planned, &unchanged)?;
        Ok(Changes::of(&old.planned, planned, &unchanged))
    }

    /// Returns the migrations that the change to `planned` needs so that each export still shows the same bytes: pairs
    /// of a device of the running graph and a device of `planned`, by name.
    pub fn to_move(&self, planned: &Planned) -> Vec<(String, String)> {
        let old = self.now();
        let unchanged = same::unchanged(&old.planned, planned);
        let mut moves = Vec::new();
        for before in &old.planned.exports {
            let after = planned.exports.iter().find(|after| after.name == before.name);
            let Some(after) = after else { continue };
            if let Err(Differs { old: o, new: n }) =
                shows(&old, planned, &unchanged, (before.node, after.node))
            {
                let pair = (old.planned.nodes[o].name.clone(), planned.nodes[n].name.clone());
                if !moves.contains(&pair) {
                    moves.push(pair);
                }
            }
        }
        moves
    }

    /// Waits until no live change is in progress, and returns a guard that prevents others from beginning. The caller
    /// must read the inputs of its change while it holds the guard.
    pub async fn turn(&self) -> ChangeGuard {
        ChangeGuard(self.turn.lock().await)
    }

    /// Changes the running graph to `planned`. `probe` has the labelled disks of `planned`, probed while the caller
    /// held `turn`. Clients wait during the change. `limit` is the time within which requests in flight must complete
    /// and be flushed, and devices must close.
    ///
    /// # Errors
    /// The reason why the change failed. The graph is as before, except after [`Unchanged::Lost`].
    pub async fn change(
        &self,
        turn: &ChangeGuard,
        planned: Planned,
        probe: Option<Probe>,
        limit: Duration,
    ) -> Result<Changes, Unchanged> {
        self.change_and(turn, planned, probe, limit, || {}).await
    }

    /// Changes the running graph as [`RunningGraph::change`] does, and calls `before_clients` when the change has
    /// succeeded, before any request of a client continues.
    ///
    /// # Errors
    /// As [`RunningGraph::change`].
    pub async fn change_and(
        &self,
        _turn: &ChangeGuard,
        planned: Planned,
        probe: Option<Probe>,
        limit: Duration,
        before_clients: impl FnOnce(),
    ) -> Result<Changes, Unchanged> {
        let changes = self.compare(&planned).map_err(Unchanged::Failed)?;
        let old = self.now();
        let labels = match probe {
            Some(probe) => Some(probe.prepare(&planned).await.map_err(Unchanged::Refused)?),
            None => None,
        };
        let handovers =
            self.prepare(&old, &planned, labels.as_ref()).await.map_err(Unchanged::Failed)?;
        let _held_volumes = volumes::hold_all(&self.volumes, &self.engine, &planned, 0)
            .await
            .map_err(Unchanged::Failed)?;
        let held = self.engine.suspend();
        let deadline = self.env.now().after(limit);
        self.quiet(&old, deadline).await.map_err(Unchanged::Failed)?;
        let left = deadline.since(self.env.now());
        let Some(paused) = self.env.within(left, self.volumes.pause()).await else {
            let words =
                "no live change was made, because volumes are not opened and closed in time";
            return Err(Unchanged::Failed(
                Error::new(ErrorKind::TimedOut, words).next("cairn status"),
            ));
        };
        let unchanged = same::unchanged(&old.planned, &planned);
        let closed = vec![false; old.planned.nodes.len()];
        let labels_of = labels.as_ref();
        let mut change = Change {
            old: &old,
            planned: &planned,
            unchanged,
            labels: labels_of,
            closed,
            handovers,
        };
        let _ended = ScopeGuard::new(|| self.changed.wake());
        match self.replace(&mut change, &paused, deadline).await {
            Ok(graph) => {
                *self.now.borrow_mut() = Rc::new(Current { planned, graph, labels });
                before_clients();
                drop(held);
                drop(paused);
                if let (Some(labels), Some(before)) = (&self.now().labels, &old.labels) {
                    labels.record_removal(before).await;
                }
                Ok(changes)
            }
            Err(error) => Err(self.undo(change, &paused, error).await),
        }
    }

    /// Calls `prepare` of the kinds of new devices: the slow part of opening them, which runs while clients are still
    /// served. Returns the results as hand-overs.
    async fn prepare(
        &self,
        old: &Current,
        planned: &Planned,
        labels: Option<&Labels>,
    ) -> Result<Handovers> {
        let mut prepared = Handovers::new();
        for (index, node) in planned.nodes.iter().enumerate() {
            let Maker::Stateful { prepare: Some(prepare), .. } = node.kind.maker else { continue };
            let before = old.graph.member(&node.name);
            if before.is_some_and(|member| member.kind.name == node.kind.name) {
                // If the device is replaced at all, its predecessor hands over.
                continue;
            }
            let kept: Rc<dyn StateStore> = match labels {
                Some(labels) => Rc::new(labels.kept(planned, index, None)),
                None => Rc::new(NoStateStore::new(false)),
            };
            let done = prepare(&node.given, &self.env, kept).await;
            let key = (node.name.clone(), node.kind.name);
            prepared.extend(done.map_err(|error| error.at(&node.name))?.map(|done| (key, done)));
        }
        Ok(prepared)
    }

    /// Waits until every request of clients is complete, also of closed connections. Then flushes all devices that
    /// [`Graph::flushed`] returns. Returns the errors, each with the name of the export or device that could not be
    /// flushed.
    pub async fn flush(&self) -> Vec<(String, Error)> {
        // A write in flight may have reached only one member of a mirror. In this case, labels must not record an
        // orderly close.
        if !seeded::on(Bug::FlushUndrained) {
            self.engine.drained().await;
        }
        let now = self.now();
        let begun: Vec<_> = now
            .graph
            .flushed()
            .map(|(name, device)| (name, self.engine.lower(device.node).start(Op::Flush)))
            .collect();
        let mut failed = Vec::new();
        for (name, child) in begun {
            failed.extend(child.await.result.err().map(|error| (name.to_owned(), error)));
        }
        failed
    }

    /// Carries out a command on a device of the running graph. While a live change is replacing the device, waits for
    /// the new device.
    ///
    /// # Errors
    /// `NotFound` if the graph has no such device; `InUse` if the change takes longer than the time limit of the
    /// command; else the error of the device.
    pub async fn control(&self, device: &str, command: Command) -> Result<Reply> {
        let is_open = || !self.now().graph.is_closed(device);
        if self.env.within(command.limit, self.changed.until(is_open)).await.is_none() {
            return Err(error!(InUse, "a live change has held {device} for {:?}", command.limit)
                .next("repeat the command"));
        }
        let now = self.now();
        let member = now
            .graph
            .member(device)
            .ok_or_else(|| error!(NotFound, "no device {device:?} in {}", now.graph.name()))?;
        now.graph.control(member, command).await
    }

    /// Carries out a command of verb `V` on a device of the running graph.
    ///
    /// # Errors
    /// As [`RunningGraph::control`].
    pub async fn ask<V: Verb>(&self, device: &str, args: V::Args) -> Result<V::Answer> {
        self.control(device, Command::new::<V>(args)).await?.answer::<V>()
    }

    /// Returns a text for each device of the graph `now` that has requests in flight: `a (file): 3`.
    pub fn unanswered(&self, now: &Current) -> Vec<String> {
        let members = now.graph.members().iter();
        let members = members.filter(|member| !self.volumes.is_open(&member.name));
        let waiting = members.filter_map(|member| {
            let requests = self.engine.counters(member.counted(), |counters| counters.in_flight());
            (requests > 0).then(|| format!("{} ({}): {requests}", member.name, member.kind.name))
        });
        let volumes = self.volumes.open_nodes().into_iter().filter_map(|(name, node)| {
            let requests = self.engine.counters(node, |counters| counters.in_flight());
            (requests > 0).then(|| format!("{name} (volume): {requests}"))
        });
        waiting.chain(volumes).collect()
    }

    /// Fails the disk called `disk` as a member of the lowest devices above it that can do without this member.
    pub async fn take_out(&self, disk: &str) {
        let now = self.now();
        let nodes = &now.planned.nodes;
        // For each node, in the order of the plan: whether the node loses bytes without the disk.
        let mut loses: Vec<bool> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let mut is_lost = node.name == disk;
            for lower in node.lowers.iter().filter(|lower| loses[**lower]) {
                let name = Name { member: nodes[*lower].name.clone() };
                // A device without members cannot do without a lower, and a mirror refuses to fail its last member in
                // sync.
                is_lost |= match now.graph.member(&node.name) {
                    Some(device) => now.graph.ask::<Fail>(device, name).await.is_err(),
                    None => true,
                };
            }
            loses.push(is_lost);
        }
    }

    /// Ends the background work of all devices, uppers first. Work that continues at `deadline` is aborted, as a kill
    /// of the process does. No request may be sent to the graph after this call.
    pub async fn close_devices(&self, deadline: Mono) {
        let graph = &self.now().graph;
        let left = deadline.since(self.env.now());
        let Some(paused) = self.env.within(left, self.volumes.pause()).await else { return };
        // Disks stay open, since the labels are written after this.
        for member in graph.members().iter().rev().filter(|member| !member.lowers.is_empty()) {
            let left = deadline.since(self.env.now());
            let closing = async {
                Self::leave_volumes(graph, member, &paused).await;
                graph.close(member).await
            };
            if self.env.within(left, closing).await.is_none() {
                break;
            }
        }
        paused.end();
    }

    /// Waits until every request of clients is complete and every acknowledged write is flushed, at most until
    /// `deadline`.
    async fn quiet(&self, old: &Current, deadline: Mono) -> Result<()> {
        let quiet = async {
            self.engine.drained().await;
            if seeded::on(Bug::ChangeUnflushed) {
                return Ok(());
            }
            self.flush().await.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
        };
        let left = deadline.since(self.env.now());
        self.env.within(left, quiet).await.unwrap_or_else(|| Err(self.overdue(old)))
    }

    fn overdue(&self, old: &Current) -> Error {
        let waiting = self.unanswered(old);
        error!(
            TimedOut,
            "no live change was made, because requests are not answered in time: {}",
            if waiting.is_empty() { "of clients".to_owned() } else { waiting.join(", ") }
        )
        .next("cairn status")
    }

    /// Closes the members that do not continue, uppers first; makes the new members; and writes the labels.
    async fn replace(
        &self,
        change: &mut Change<'_>,
        paused: &PausedVolumes,
        deadline: Mono,
    ) -> Result<Graph> {
        let old = change.old;
        // Uppers first.
        for (index, member) in old.graph.members().iter().enumerate().rev() {
            if change.unchanged.contains(&Some(index)) {
                continue;
            }
            let left = deadline.since(self.env.now());
            let closing = async {
                Self::leave_volumes(&old.graph, member, paused).await;
                old.graph.close(member).await
            };
            let Some(handover) = self.env.within(left, closing).await else {
                return Err(self.overdue(old));
            };
            change.closed[index] = true;
            let key = (member.name.clone(), member.kind.name);
            change.handovers.extend(handover.map(|handover| (key, handover)));
        }
        // A request that was in flight may have failed a member since the change was compared with the running graph.
        allow(old, change.planned, &change.unchanged)?;
        let (unchanged, handovers) = (change.unchanged.clone(), change.handovers.clone());
        let before = Before { graph: &old.graph, planned: &old.planned, unchanged, handovers };
        let mut graph = Graph::empty(change.planned, &self.engine);
        let made = async {
            if seeded::on(Bug::ChangeToldEarly) {
                write_labels(change).await?;
            }
            let (planned, labels) = (change.planned, change.labels);
            graph.fill(planned, labels, &self.env, &self.volumes, Some(&before)).await?;
            self.set_holders(&graph);
            if !seeded::on(Bug::VolumesNotMoved) {
                paused.rejoin().await?;
            }
            write_labels(change).await
        }
        .await;
        if let Err(error) = made {
            let left = self.discard(&graph, &old.graph, paused, deadline).await;
            change.handovers.extend(left);
            return Err(error);
        }
        self.portals.retarget(&self.engine, &graph.targets());
        old.graph.leave(&graph);
        Ok(graph)
    }

    /// Closes the members that a failed change has made, and removes them from the engine. Returns their hand-overs for
    /// the previous graph, except those of members that do not close before `deadline`.
    async fn discard(
        &self,
        graph: &Graph,
        old: &Graph,
        paused: &PausedVolumes,
        deadline: Mono,
    ) -> Handovers {
        let mut left = Handovers::new();
        for member in graph.members().iter().rev() {
            if old.members().iter().any(|before| before.node == member.node) {
                continue;
            }
            let limit = deadline.since(self.env.now());
            let closing = async {
                Self::leave_volumes(graph, member, paused).await;
                graph.close(member).await
            };
            let closed = self.env.within(limit, closing).await;
            let key = (member.name.clone(), member.kind.name);
            left.extend(closed.flatten().map(|handover| (key, handover)));
        }
        graph.leave(old);
        left
    }

    /// Reopens the previous graph, with the members that a failed change has closed. Clients still wait.
    async fn undo(&self, change: Change<'_>, paused: &PausedVolumes, error: Error) -> Unchanged {
        let Change { old, labels, closed, handovers, .. } = change;
        let labels = old.labels.as_ref().map(|before| before.reopened(labels));
        let unchanged =
            closed.iter().enumerate().map(|(n, closed)| (!closed).then_some(n)).collect();
        let before = Before { graph: &old.graph, planned: &old.planned, unchanged, handovers };
        let mut graph = Graph::empty(&old.planned, &self.engine);
        let back = async {
            let labels = labels.as_ref();
            graph.fill(&old.planned, labels, &self.env, &self.volumes, Some(&before)).await?;
            self.set_holders(&graph);
            paused.rejoin().await?;
            match &labels {
                Some(labels) => labels.commit().await,
                None => Ok(()),
            }
        }
        .await;
        match back {
            Ok(()) => {
                self.portals.retarget(&self.engine, &graph.targets());
                old.graph.leave(&graph);
                let planned = old.planned.clone();
                *self.now.borrow_mut() = Rc::new(Current { planned, graph, labels });
                Unchanged::Failed(error)
            }
            Err(back) => {
                let lost = "a live change has failed, and the previous graph could not be reopened";
                let lost = Error::new(ErrorKind::Io, lost).next("start the graph again");
                self.portals.close(&lost);
                paused.close_portals(&lost);
                Unchanged::Lost { change: error, back }
            }
        }
    }
}

/// Combines the error of a failed start with the error of closing its disks.
fn also(error: Error, left: Option<Error>) -> Error {
    match left {
        None => error,
        Some(left) => {
            let words = format!("{error}; disks remain marked as open: {left}");
            Error::new(error.kind(), words)
                .next("start the graph again on this machine, to close these disks")
        }
    }
}

/// Writes the labels of the new graph, which commits the change. A new graph without labels closes those of the old
/// graph.
async fn write_labels(change: &Change<'_>) -> Result<()> {
    match (change.labels, &change.old.labels) {
        (Some(labels), _) => labels.commit().await,
        (None, Some(before)) => before.close().await,
        (None, None) => Ok(()),
    }
}
