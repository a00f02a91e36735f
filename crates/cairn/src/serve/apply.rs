//! `cairn apply` for a running graph: changes the graph to a new spec while its clients wait.

use std::collections::BTreeMap;
use std::future::ready;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use api::{Applied, ApplyRequest, ChangeWay, ResizeRequest};
use doctor::{Opening, Probe, refuse_labelled};
use graph::live::{ChangeGuard, Changes, Unchanged};
use graph::spec::{Planned, Spec};

use super::growth::Growth;
use super::{Serving, no_device, offer};
use crate::certificates;
use crate::exit::{Exit, Failure, Result};
use crate::labels;
use crate::out;
use crate::registry::REGISTRY;
use crate::source::faulty;

/// Longest wait, in a live change, until begun requests are answered and flushed and the replaced devices have
/// closed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The plan of a spec to which a live change is possible, with the probe of its labelled disks.
pub(super) struct Wanted {
    planned: Planned,
    probe: Option<Probe>,
    notes: Vec<String>,
}

impl Serving {
    /// Changes the graph to the spec of the request; in a dry run, only returns the effects of the change.
    ///
    /// # Errors
    /// The reason why the change is not possible. Then nothing has changed.
    pub async fn apply(self: &Rc<Self>, request: &ApplyRequest) -> Result<Applied> {
        let turn = self.turn().await?;
        let mut spec = read(request)?;
        certificates::check(&self.env, &mut spec);
        self.become_or_move(&turn, spec, &request.way).await
    }

    /// Changes the graph to `spec`. If `way` moves bytes, an export that would show other bytes gets a migration of
    /// its present bytes instead.
    pub(super) async fn become_or_move(
        self: &Rc<Self>,
        turn: &ChangeGuard,
        mut spec: Spec,
        way: &ChangeWay,
    ) -> Result<Applied> {
        let (mut notes, opening) = (Vec::new(), self.opening(way.wipe.clone()));
        if way.move_bytes {
            let wanted = self.wanted(&spec, opening.clone(), true).await?;
            (spec, notes) = self.with_moves(&spec, &wanted.planned, way.speed_bytes)?;
        }
        let mut applied = self.become_spec(turn, spec, opening, way.dry_run).await?;
        applied.notes.extend(notes);
        if !way.dry_run {
            self.follow_moves();
        }
        Ok(applied)
    }

    /// Changes the graph so that it uses all of a disk that has grown. If the request has a size, first sets the
    /// disk's file to it.
    ///
    /// # Errors
    /// As [`Serving::apply`]; `NotFound` if the graph has no disk of that name.
    pub async fn resize(&self, request: &ResizeRequest) -> Result<Applied> {
        let turn = self.turn().await?;
        let now = self.live.now();
        let growth = Growth::of(&now.planned, request)?;
        let ResizeRequest { disk, size_bytes, dry_run } = request;
        let mut spec = self.spec.borrow().clone();
        let said =
            spec.forget_making(disk, REGISTRY).map_err(|why| Failure::new(Exit::NotFound, why))?;
        let grow = BTreeMap::from([(disk.clone(), size_bytes.unwrap_or_default())]);
        let opening = Opening { grow, ..self.opening(Vec::new()) };
        nothing_moves(&now.planned, disk)?;
        let mut grown = None;
        if let Some(growth) = growth.as_ref().filter(|_| !dry_run) {
            // This finds reasons against the change before the file is enlarged.
            self.wanted(&spec, opening.clone(), true).await?;
            // From now on, every start takes the file in the size that it has. If this cannot be recorded, the change
            // below reports it.
            self.on_record(&spec, ready(Ok(Changes::default())), &mut Vec::new()).await?;
            *self.spec.borrow_mut() = spec.clone();
            grown = growth.make()?;
        }
        let became = self.become_spec(&turn, spec, opening, *dry_run).await;
        if let (Err(_), Some(grown)) = (&became, grown)
            && self.live.now().labels.as_ref().is_none_or(|labels| labels.is_as_large(disk))
        {
            grown.take_back();
        }
        let mut applied = became?;
        applied.changes.splice(..0, growth.map(|growth| growth.line(disk)));
        if said && !dry_run && self.record.is_none() && !applied.changes.is_empty() {
            applied.notes.push(format!(
                "note: the next start reads your spec file. Next: remove size and create of {disk} \
                 from that file"
            ));
        }
        Ok(applied)
    }

    pub(super) async fn become_spec(
        &self,
        turn: &ChangeGuard,
        spec: Spec,
        opening: Opening,
        dry_run: bool,
    ) -> Result<Applied> {
        let Wanted { planned, probe, mut notes } = self.wanted(&spec, opening, dry_run).await?;
        self.reachable_as_before(&planned)?;
        self.nobody_uses_what_goes(&planned)?;
        let known = self.known();
        let changes = if dry_run {
            let now = self.live.now();
            refuse_labelled(&planned, Some(&now.planned), &self.env, &self.engine).await?;
            self.live.compare(&planned)?
        } else {
            // Devices that may not outlive this process any more must be withdrawn before the next request of a client
            // begins.
            let withdraw = || self.attachments.withdraw_mortal();
            let change = self.live.change_and(turn, planned, probe, PATIENCE, withdraw);
            self.on_record(&spec, change, &mut notes).await?
        };
        if !dry_run {
            *self.spec.borrow_mut() = spec;
            self.remember(known);
            notes.extend(self.notify_clients().await);
        }
        Ok(Applied { graph: self.live.now().planned.name.clone(), changes: changes.lines, notes })
    }

    /// Carries out `change`, and writes `spec` into the daemon's record of the graph, if a daemon keeps the graph.
    async fn on_record(
        &self,
        spec: &Spec,
        change: impl Future<Output = Result<Changes, Unchanged>>,
        notes: &mut Vec<String>,
    ) -> Result<Changes> {
        let Some(record) = &self.record else { return change.await.map_err(failure_of) };
        let file = format!("{}.toml", spec.name());
        let (text, variables) = (spec.to_text(), BTreeMap::new());
        record.begin(supervisor::Source::Spec { file, text, variables })?;
        let changed = change.await;
        if let Err(failure) = record.settle(changed.is_ok()) {
            let note = format!(
                "warning: the daemon's record of the graph was not written: {}. If no disk has a label, \
                 the next start uses the earlier spec. Next: fix the cause, and apply the spec again",
                failure
            );
            out::note(&note);
            notes.push(note);
        }
        changed.map_err(failure_of)
    }

    /// Returns the options for opening disks in a live change. `wipe` names disks that get a label even if they have
    /// data.
    pub(super) fn opening(&self, wipe: Vec<String>) -> Opening {
        // Disks that are missing now were missing before, and the operator has accepted that.
        let opening = labels::doctor(&self.env).opening();
        Opening { wipe, degraded: true, changes: true, ..opening }
    }

    pub(super) async fn wanted(
        &self,
        spec: &Spec,
        opening: Opening,
        dry_run: bool,
    ) -> Result<Wanted> {
        let now = self.live.now();
        let (is, would) = (&now.planned.name, spec.name());
        if is != would {
            fail!(Usage, "the running graph is {is:?}, and the spec is of {would:?}");
        }
        let (doctor, running) = (labels::doctor(&self.env), now.labels.as_ref());
        let look = doctor.probe(spec, &self.engine, opening, dry_run, running);
        let probe = look.await;
        if let Some(refusals) = probe.as_ref().map(Probe::refusals).filter(|all| !all.is_empty()) {
            return Err(Failure::because(refusals.to_vec()));
        }
        let probed = probe.as_ref().map(Probe::facts).unwrap_or_default();
        let planned = spec.plan_over(REGISTRY, &self.env, &probed).await;
        let planned = planned.map_err(|faults| faulty(&faults))?;
        let mut planned = self.live.with_volumes(planned).await?;
        if self.read_only {
            planned.refuse_writes();
        }
        let mut notes: Vec<String> = planned.warnings.iter().map(ToString::to_string).collect();
        notes.extend(self.live.forget_trust(&mut planned));
        notes.extend(probe.iter().flat_map(|probe| probe.notices().to_vec()));
        Ok(Wanted { planned, probe, notes })
    }

    /// Fails if the new plan changes addresses, certificates or the limit of connections, because these are fixed at
    /// the start.
    fn reachable_as_before(&self, planned: &Planned) -> Result<()> {
        let now = self.live.now();
        // `show` writes the addresses at which the server listens, also if the spec left them out.
        let listens_here = planned.listens == *self.listens.borrow();
        let same = (now.planned.listens == planned.listens || listens_here)
            && now.planned.tls == planned.tls
            && now.planned.max_connections == planned.max_connections;
        if same {
            return Ok(());
        }
        let why = "the spec changes [nbd], but a running server keeps its addresses, its TLS files \
                   and its limit of connections";
        Err(Failure::new(Exit::Unsupported, why).next("stop the graph, and start the new spec"))
    }

    fn nobody_uses_what_goes(&self, planned: &Planned) -> Result<()> {
        let now = self.live.now();
        let gone = now.graph.exports().iter().map(|export| &export.name);
        for name in gone.filter(|name| planned.exports.iter().all(|kept| kept.name != **name)) {
            if let Some(attached) = self.attachments.of(name) {
                let why = format!("the change drops export {name}, attached as {attached}");
                return Err(Failure::new(Exit::InUse, why).next(format!("cairn detach {attached}")));
            }
            let clients = self.server.connections_to(name);
            if clients > 0 {
                return Err(failure!(InUse, "the export {name} has connected clients ({clients})")
                    .next("disconnect those clients first"));
            }
        }
        Ok(())
    }

    /// Offers the exports of a changed graph to new clients, closes connections that are not admitted any more, and
    /// adapts attached devices. Returns notes for the operator.
    async fn notify_clients(&self) -> Vec<String> {
        let now = self.live.now();
        offer(&self.env, &self.engine, &self.live, &self.exports);
        self.server.close_barred();
        let mut notes = self.attachments.adapt().await;
        let wanted = now.planned.exports.iter().filter(|export| export.attach);
        for export in wanted.filter(|export| self.attachments.of(&export.name).is_none()) {
            match self.attachments.attach(&export.name, None, None, false).await {
                Ok(attached) => notes.extend(attached.notes),
                Err(failure) => notes.push(no_device(&export.name, &failure)),
            }
        }
        notes
    }
}

/// Parses the spec of a request. Its relative paths, if it has some, begin in the directory of the client.
fn read(request: &ApplyRequest) -> Result<Spec> {
    let variable = |name: &str| request.variables.get(name).cloned();
    let spec = Spec::parse(&request.text, &request.file, &variable);
    if spec.has_relative_path(REGISTRY) {
        here(&request.way.directory, &format!("paths in {}", request.file))?;
    }
    Ok(spec)
}

/// Fails if `directory`, where the client's relative paths begin, is not the working directory of this process.
pub(super) fn here(directory: &Path, what: &str) -> Result<()> {
    let here =
        std::env::current_dir().map_err(|error| Failure::io(&error, "the current directory"))?;
    if here == directory {
        return Ok(());
    }
    let why = format!(
        "{what} are relative to {}, but the graph is served from {}",
        directory.display(),
        here.display()
    );
    Err(Failure::new(Exit::Usage, why).next("run this command in that directory"))
}

/// Returns the failure for a graph that could not be opened or changed.
pub fn failure_of(unchanged: Unchanged) -> Failure {
    match unchanged {
        Unchanged::Refused(refusals) => Failure::because(refusals),
        Unchanged::Failed(error) => error.into(),
        Unchanged::Lost { change, back } => failure!(
            Io,
            "{change}; the previous devices could not be reopened: {back}. Clients get errors"
        )
        .next("stop the graph, and start it again"),
    }
}

/// Fails if a migration moves bytes from or to `disk`, because the size of the disk must not change during the
/// migration.
fn nothing_moves(planned: &Planned, disk: &str) -> Result<()> {
    let is_above = |device: &str| planned.beneath(device).iter().any(|below| below == disk);
    let moves = planned.nodes.iter().filter(|node| node.kind.capabilities.moves.is_some());
    let Some(moving) = moves.into_iter().find(|node| is_above(&node.name)) else { return Ok(()) };
    Err(failure!(
        InUse,
        "the migration {} is above {disk}, which cannot be resized until it ends. Next: cairn job \
         watch {0}; or cairn job cancel {0}",
        moving.name
    ))
}
