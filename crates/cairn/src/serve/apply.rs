//! `cairn apply`, for a graph that is served: it becomes what the spec says while its clients wait.

use std::collections::BTreeMap;
use std::future::ready;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use api::{Applied, ApplyRequest, ChangeLine, ResizeRequest};
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

/// Until what clients have begun is answered and flushed, and what is replaced has ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// Disks of which a change says more than the spec.
#[derive(Clone, Default)]
pub(super) struct Anew {
    /// Those that are labelled whatever is on them.
    pub wipe: Vec<String>,
    /// Those that are other ones from now on.
    pub replaced: Vec<String>,
    /// Those with a label that have grown, and are used as a whole; as of so many bytes, should they have fewer.
    pub grow: BTreeMap<String, u64>,
}

impl Anew {
    /// Disks that are labelled whatever is on them.
    pub fn wipe(wipe: Vec<String>) -> Self {
        Self { wipe, ..Self::default() }
    }
}

/// A spec that could become true, and its labelled disks, looked at.
pub(super) struct Wanted {
    planned: Planned,
    probe: Option<Probe>,
    notes: Vec<String>,
}

impl Serving {
    /// Makes the graph what a spec says, or says what that would do.
    ///
    /// # Errors
    /// What stands against it; then nothing has changed.
    pub async fn apply(self: &Rc<Self>, request: &ApplyRequest) -> Result<Applied> {
        let turn = self.live.turn().await;
        let mut spec = read(request)?;
        certificates::check(&self.env, &mut spec);
        let ApplyRequest { wipe, move_bytes, speed_bytes, dry_run, .. } = request;
        let moving = move_bytes.then_some(*speed_bytes);
        self.become_or_move(&turn, spec, wipe.clone(), moving, *dry_run).await
    }

    /// `moving`: whether the bytes of an export that would show others move, and how many a second at most.
    pub(super) async fn become_or_move(
        self: &Rc<Self>,
        turn: &ChangeGuard,
        mut spec: Spec,
        wipe: Vec<String>,
        moving: Option<Option<u64>>,
        dry_run: bool,
    ) -> Result<Applied> {
        let mut notes = Vec::new();
        if let Some(speed) = moving {
            let wanted = self.wanted(&spec, Anew::wipe(wipe.clone()), true).await?;
            (spec, notes) = self.with_moves(&spec, &wanted.planned, speed)?;
        }
        let mut applied = self.become_spec(turn, spec, Anew::wipe(wipe), dry_run).await?;
        applied.notes.extend(notes);
        if !dry_run {
            self.follow_moves();
        }
        Ok(applied)
    }

    /// Lets the graph use all of a disk that has grown, or makes its file larger first.
    ///
    /// # Errors
    /// As [`Serving::apply`]; `NotFound` without such a disk.
    pub async fn resize(&self, request: &ResizeRequest) -> Result<Applied> {
        let turn = self.live.turn().await;
        let now = self.live.now();
        let growth = Growth::of(&now.planned, request)?;
        let ResizeRequest { disk, size_bytes, dry_run } = request;
        let mut spec = self.spec.borrow().clone();
        let said =
            spec.forget_making(disk, REGISTRY).map_err(|why| Failure::new(Exit::NotFound, why))?;
        let grow = BTreeMap::from([(disk.clone(), size_bytes.unwrap_or_default())]);
        let anew = Anew { grow, ..Anew::default() };
        nothing_moves(&now.planned, disk)?;
        let mut grown = None;
        if let Some(growth) = growth.as_ref().filter(|_| !dry_run) {
            // What stands against it is found before the file is larger.
            self.wanted(&spec, anew.clone(), true).await?;
            // From now on a start takes the file as it is, whatever comes between.
            // If that cannot be written the change says so below.
            self.on_record(&spec, ready(Ok(Changes::default())), &mut Vec::new()).await?;
            *self.spec.borrow_mut() = spec.clone();
            grown = growth.make()?;
        }
        let became = self.become_spec(&turn, spec, anew, *dry_run).await;
        if let (Err(_), Some(grown)) = (&became, grown)
            && self.live.now().labels.as_ref().is_none_or(|labels| labels.is_as_large(disk))
        {
            grown.take_back();
        }
        let mut applied = became?;
        applied.changes.splice(..0, growth.map(|growth| growth.line(disk)));
        if said && !dry_run && self.record.is_none() && !applied.changes.is_empty() {
            applied.notes.push(format!(
                "note: the next start reads the spec that you have. Next: take size and create of {disk} \
                 out of it"
            ));
        }
        Ok(applied)
    }

    pub(super) async fn become_spec(
        &self,
        turn: &ChangeGuard,
        spec: Spec,
        anew: Anew,
        dry_run: bool,
    ) -> Result<Applied> {
        let Wanted { planned, probe, mut notes } = self.wanted(&spec, anew, dry_run).await?;
        self.reachable_as_before(&planned)?;
        self.nobody_uses_what_goes(&planned)?;
        let known = self.known();
        let changes = if dry_run {
            let now = self.live.now();
            refuse_labelled(&planned, Some(&now.planned), &self.env, &self.engine).await?;
            self.live.compare(&planned)?
        } else {
            // What would not outlive this process any more is not held when the first request of clients begins.
            let withdraw = || self.attachments.withdraw_mortal();
            let change = self.live.change_and(turn, planned, probe, PATIENCE, withdraw);
            self.on_record(&spec, change, &mut notes).await?
        };
        if !dry_run {
            *self.spec.borrow_mut() = spec;
            self.remember(known);
            notes.extend(self.tell_clients().await);
        }
        Ok(applied(self.live.now().planned.name.clone(), changes, notes))
    }

    /// Changes the graph, and what a daemon keeps of it with it.
    async fn on_record(
        &self,
        spec: &Spec,
        change: impl Future<Output = Result<Changes, Unchanged>>,
        notes: &mut Vec<String>,
    ) -> Result<Changes> {
        let Some(record) = &self.record else { return change.await.map_err(told) };
        let file = format!("{}.toml", spec.name());
        let (text, variables) = (spec.to_text(), BTreeMap::new());
        record.begin(supervisor::Source::Spec { file, text, variables })?;
        let changed = change.await;
        if let Err(failure) = record.settle(changed.is_ok()) {
            let note = format!(
                "warning: what the daemon keeps of it was not written: {}. If its disks have no labels, the next start \
                 is of the spec before. Next: see to that, and apply once more",
                failure
            );
            out::note(&note);
            notes.push(note);
        }
        changed.map_err(told)
    }

    pub(super) async fn wanted(&self, spec: &Spec, anew: Anew, dry_run: bool) -> Result<Wanted> {
        let now = self.live.now();
        let (is, would) = (&now.planned.name, spec.name());
        if is != would {
            let why = format!("this is the graph {is:?}, and the spec is of {would:?}");
            return Err(Failure::new(Exit::Usage, why));
        }
        // What is missing now was missing before: somebody has said that this is right.
        let Anew { wipe, replaced, grow } = anew;
        let doctor = labels::doctor(&self.env);
        let opening =
            Opening { wipe, replaced, grow, degraded: true, changes: true, ..doctor.opening() };
        let running = now.labels.as_ref();
        let look = doctor.probe(spec, &self.engine, opening, dry_run, running);
        let probe = look.await;
        if let Some(refusals) = probe.as_ref().map(Probe::refusals).filter(|all| !all.is_empty()) {
            return Err(labels::refused(refusals));
        }
        let surveyed = probe.as_ref().map(Probe::facts).unwrap_or_default();
        let planned = spec.plan_over(REGISTRY, &self.env, &surveyed).await;
        let mut planned = planned.map_err(|faults| faulty(&faults))?;
        if self.read_only {
            planned.refuse_writes();
        }
        let mut notes: Vec<String> = planned.warnings.iter().map(ToString::to_string).collect();
        notes.extend(self.live.forget_trust(&mut planned));
        notes.extend(probe.iter().flat_map(|probe| probe.notices().to_vec()));
        Ok(Wanted { planned, probe, notes })
    }

    /// Addresses and certificates are those of the start.
    fn reachable_as_before(&self, planned: &Planned) -> Result<()> {
        let now = self.live.now();
        let same = now.planned.listens == planned.listens
            && now.planned.tls == planned.tls
            && now.planned.max_connections == planned.max_connections;
        if same {
            return Ok(());
        }
        let why = "[nbd] says something else than at the start, and clients know where they are \
                         connected";
        Err(Failure::new(Exit::Unsupported, why).next("stop, and start with the new spec"))
    }

    fn nobody_uses_what_goes(&self, planned: &Planned) -> Result<()> {
        let now = self.live.now();
        let gone = now.graph.exports().iter().map(|export| &export.name);
        for name in gone.filter(|name| planned.exports.iter().all(|kept| kept.name != **name)) {
            if let Some(attached) = self.attachments.of(name) {
                let why = format!("{name} is {attached}");
                return Err(Failure::new(Exit::InUse, why).next(format!("cairn detach {attached}")));
            }
            let clients = self.server.connections_to(name);
            if clients > 0 {
                let why = format!("{name} has clients ({clients})");
                return Err(Failure::new(Exit::InUse, why).next("let them disconnect first"));
            }
        }
        Ok(())
    }

    /// Clients that come are offered what there is now; devices of this machine have their new size.
    async fn tell_clients(&self) -> Vec<String> {
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

/// The spec of a request, in the directory of whoever asks.
fn read(request: &ApplyRequest) -> Result<Spec> {
    here(&request.directory, &format!("paths in {}", request.file))?;
    let variable = |name: &str| request.variables.get(name).cloned();
    Ok(Spec::parse(&request.text, &request.file, &variable))
}

/// Whether relative paths mean the same to whoever asks.
pub(super) fn here(directory: &Path, what: &str) -> Result<()> {
    let here = std::env::current_dir().map_err(|error| Failure::io(&error, "this directory"))?;
    if here == directory {
        return Ok(());
    }
    let why = format!(
        "{what} would begin in {}, and the graph is served from {}",
        directory.display(),
        here.display()
    );
    Err(Failure::new(Exit::Usage, why).next("apply it from there"))
}

fn applied(graph: String, changes: Changes, notes: Vec<String>) -> Applied {
    let line = |line: graph::live::Line| ChangeLine {
        verb: line.verb.to_owned(),
        name: line.name,
        words: line.words,
    };
    Applied { graph, changes: changes.lines.into_iter().map(line).collect(), notes }
}

/// Why a graph was not opened, or not changed.
pub fn told(unchanged: Unchanged) -> Failure {
    match unchanged {
        Unchanged::Refused(refusals) => labels::refused(&refusals),
        Unchanged::Failed(error) => error.into(),
        Unchanged::Lost { change, back } => {
            let why = format!(
                "{change}; and what was there before could not be opened again: {back}. \
                         Clients get errors"
            );
            Failure::new(Exit::Io, why).next("stop, and start again")
        }
    }
}

/// While bytes move, what they move from and to stays as large as it is.
fn nothing_moves(planned: &Planned, disk: &str) -> Result<()> {
    let is_above = |device: &str| planned.beneath(device).iter().any(|below| below == disk);
    let moves = planned.nodes.iter().filter(|node| node.kind.capabilities.moves.is_some());
    let Some(moving) = moves.into_iter().find(|node| is_above(&node.name)) else { return Ok(()) };
    let why = format!(
        "{} moves bytes above {disk}, which stays as large as it is meanwhile. Next: wait for it with cairn job watch \
         {0}; or cairn job cancel {0}",
        moving.name
    );
    Err(Failure::new(Exit::InUse, why))
}
