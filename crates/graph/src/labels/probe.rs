//! Probing of the disks that a spec names, before any decision about them and before any write.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::units::{format_exact, write_size};
use block::{Env, Error, ErrorKind, Info, Lower, Needs, Reason, StoredState, bail, error};
use engine::{AnyDevice, Engine, NodeId};
use kind::{DeviceConfig, DiskPlan, Fault, MakerArgs, Registry};
use meta::{AREA_BYTES, Area, AreaContent, Label, Store};

use super::diagnosis::{
    self, Binding, Bindings, BoundDisks, DiskContent, DiskFacts, Finding, LostLabel,
};
use super::slot::state_of;
use super::{Labels, Opening, text};
use crate::spec::{KnownDisk, LabelledDisk, NOT_FOUND, Spec, odd_size};

/// Time limit for reading the label of a disk that is in use and cannot be opened again. A disk that delivers its label
/// is present.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The labelled disks of a spec after probing: the present disks are open, and are matched to their labels.
pub struct Probe {
    pub(super) env: Env,
    pub(super) engine: Engine,
    pub(super) registry: Registry,
    pub(super) opening: Opening,
    /// The results of probing the disks, in the order of the spec.
    pub(super) results: Vec<ProbeResult>,
    /// The facts about the probed disks for the diagnosis, with the same indices as `results`.
    pub(super) disks: Vec<DiskFacts>,
    pub(super) binding: Bindings,
    pub(super) refusals: Vec<Error>,
    /// New number of data bytes of each disk that has been enlarged, by the index of the disk in `results`.
    pub(super) grown: BTreeMap<usize, u64>,
}

/// The result of probing one labelled disk of a spec.
pub(super) struct ProbeResult {
    pub disk: LabelledDisk,
    /// The facts that the kind reports about the disk, including its label areas; `None` if the disk is missing.
    pub facts: Option<DiskPlan>,
    /// The raw disk, if the probe has opened the disk or the running graph has it open.
    pub open: Option<OpenDisk>,
    /// The label of the disk, if the running graph has the disk open.
    pub store: Option<Rc<Store>>,
}

/// A labelled disk that the running graph has open.
pub(super) struct InUse {
    /// The description of the disk in the spec with which the disk was opened.
    pub disk: LabelledDisk,
    pub open: OpenDisk,
    pub store: Rc<Store>,
}

/// A raw disk that is open, with its node in the engine.
#[derive(Clone)]
pub(super) struct OpenDisk {
    pub device: Rc<dyn AnyDevice>,
    pub node: Rc<OwnNode>,
    pub lower: Lower,
}

impl OpenDisk {
    /// Adds the open device of a raw disk to the engine, as a node called `name`.
    pub fn new(engine: &Engine, name: &str, device: Rc<dyn AnyDevice>) -> Result<Self, Error> {
        let id = engine.add_device(name, device.clone(), Needs::LEAF, &[])?;
        let node = Rc::new(OwnNode { engine: engine.clone(), id });
        Ok(Self { device, node, lower: engine.lower(id) })
    }
}

/// The handle of a node of the engine. Dropping the last handle removes the node.
pub(super) struct OwnNode {
    engine: Engine,
    pub id: NodeId,
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        self.engine.forget(self.id);
    }
}

/// The effect that a start would have on a disk, for the user.
pub struct DiskPreview {
    /// Name of the disk in the spec.
    pub name: String,
    /// Path or address of the disk; empty if unknown.
    pub place: String,
    /// Size of the disk in bytes, including its label areas; `None` if the disk is absent.
    pub size: Option<u64>,
    /// The effect in a word: `would label`, `labelled`, `missing`, `refused`, `seen`.
    pub verb: &'static str,
    /// Details about the effect: `blank`, or the reason why the disk cannot be opened.
    pub words: String,
}

impl Probe {
    /// Opens the labelled disks of a spec, reads the labels of the disks, and matches the disks to the labels. Writes
    /// nothing. With `read_only`, which is for previews, opens the disks read-only. Disks that the running graph
    /// `running` has open are not opened again.
    pub async fn take(
        spec: &Spec,
        registry: Registry,
        env: &Env,
        engine: &Engine,
        opening: Opening,
        read_only: bool,
        running: Option<&Labels>,
    ) -> Self {
        let mut probe = Self::new(env, engine, registry, opening);
        let mut identities: BTreeMap<String, String> = BTreeMap::new();
        for disk in spec.labelled(registry) {
            if let Err(refusal) = probe.look(disk, &mut identities, read_only, running).await {
                probe.refusals.push(refusal);
            }
        }
        probe.decide(spec.name());
        probe
    }

    /// Diagnoses the labels of a spec's graph from `facts` about disks that were probed before. Opens no disk, so the
    /// graph cannot be opened from the result.
    pub fn of(
        spec: &Spec,
        registry: Registry,
        env: &Env,
        engine: &Engine,
        opening: Opening,
        facts: Vec<DiskFacts>,
    ) -> Self {
        let mut probe = Self::new(env, engine, registry, opening);
        let mut facts: BTreeMap<String, DiskFacts> =
            facts.into_iter().map(|facts| (facts.name.clone(), facts)).collect();
        for disk in spec.labelled(registry) {
            let Some(facts) = facts.remove(&disk.given.name) else { continue };
            probe.results.push(ProbeResult::of(disk, &facts));
            probe.disks.push(facts);
        }
        probe.decide(spec.name());
        probe
    }

    fn new(env: &Env, engine: &Engine, registry: Registry, opening: Opening) -> Self {
        Self {
            env: env.clone(),
            engine: engine.clone(),
            registry,
            opening,
            results: Vec::new(),
            disks: Vec::new(),
            binding: Bindings::default(),
            refusals: Vec::new(),
            grown: BTreeMap::new(),
        }
    }

    /// Matches the disks to their labels, and finds the reasons for which a start would refuse the graph.
    fn decide(&mut self, graph: &str) {
        let findings = if self.refusals.is_empty() {
            let (binding, findings) = diagnosis::identify(graph, &self.disks, &self.opening);
            self.binding = binding;
            findings
        } else {
            // Some disks could not be probed, so none is matched.
            diagnosis::truncated(&self.disks, &self.binding, &[], &self.opening)
        };
        self.refusals.extend(self.refusing(findings));
        self.grown = self.growing();
        self.binding.notices.extend(self.notes());
    }

    /// Returns the errors of those `findings` that refuse a start with the options of this probe.
    pub(super) fn refusing(&self, findings: Vec<Finding>) -> Vec<Error> {
        let refusing = findings.into_iter().filter(|finding| finding.refuses(&self.opening));
        refusing.map(|finding| finding.error).collect()
    }

    /// Returns the probed disks together with their matches.
    pub(super) fn bound(&self) -> BoundDisks<'_> {
        BoundDisks { disks: &self.disks, binding: &self.binding }
    }

    /// Returns a note for the user about each disk whose bytes are not trusted, because the disk is stale or
    /// overwritten.
    fn notes(&self) -> Vec<String> {
        let stale = self.bound().stale_names().into_iter().map(|name| {
            format!("note: {name} is older than the other disks, which were used without it")
        });
        let overwritten = self.bound().overwritten_names().into_iter().map(|name| {
            format!("note: another program wrote to the front of {name}: its bytes are not trusted")
        });
        stale.chain(overwritten).collect()
    }

    /// Returns the new number of data bytes of each disk that has been enlarged: because the operator says so, or
    /// because newer labels of other disks say so.
    fn growing(&self) -> BTreeMap<usize, u64> {
        let remembered = text::disks(&self.binding.spec).unwrap_or_default();
        let grown = self.binding.disks.iter().filter_map(|(name, bound)| {
            let Binding::Labelled(n) = bound else { return None };
            let (has, label) = (self.results[*n].facts.as_ref()?.info.size, self.label(*n)?);
            let wanted = match self.opening.grow.contains_key(name) {
                true => meta::data_bytes(has).ok()?,
                false => remembered.get(name)?.data_bytes,
            };
            let fits = Area::Back(wanted).range().end() <= has;
            // The new label area at the end must not overlap the old one, which counts until both generations have
            // moved.
            (fits && wanted >= label.data_bytes + AREA_BYTES).then_some((*n, wanted))
        });
        grown.collect()
    }

    /// Returns the number of data bytes that the labelled disk with index `n` has from this start on.
    pub(super) fn data_bytes(&self, n: usize) -> u64 {
        let label = self.label(n).expect("a bound disk has a label");
        self.grown.get(&n).copied().unwrap_or(label.data_bytes)
    }

    /// Whether waiting for further disks cannot end the refusals: all disks are present, and the contents of their
    /// labels are the reasons. An absent or incomplete disk may still appear.
    pub fn refuses_for_good(&self) -> bool {
        let lasts = |refusal: &Error| {
            use Reason::{LabelDamaged, LabelForgotten, LabelNewer, LabelSplitBrain};
            let lasting = [LabelDamaged, LabelForgotten, LabelNewer, LabelSplitBrain];
            refusal.reason().is_some_and(|reason| lasting.contains(&reason))
        };
        let is_there = |look: &ProbeResult| look.facts.is_some();
        !self.refusals.is_empty()
            && self.refusals.iter().all(lasts)
            && self.results.iter().all(is_there)
    }

    /// Returns the errors about labels for which a start would refuse the graph, without the errors that depend on the
    /// plan of the graph.
    pub fn refusals(&self) -> &[Error] {
        &self.refusals
    }

    /// Probes one disk of the spec, and adds the result. `identities` has the names of the disks probed before, by
    /// identity.
    async fn look(
        &mut self,
        disk: LabelledDisk,
        identities: &mut BTreeMap<String, String>,
        read_only: bool,
        running: Option<&Labels>,
    ) -> Result<(), Error> {
        let name = disk.given.name.clone();
        let place = place_of(&disk).to_owned();
        let fail = |error: Error| error.within(&name);
        let mut look = ProbeResult::at(disk);
        let mut lost = None;
        let content = match in_use_or_not(&look.disk, &self.env, running).await {
            Err(_) if place.is_empty() => DiskContent::Missing(not_found(&name)),
            Err(error) if is_missing(&error) => DiskContent::Missing(fail(error)),
            Err(error) => return Err(fail(error)),
            Ok((mut plan, in_use)) => {
                if let Some(first) = identities.insert(plan.identity.clone(), name.clone()) {
                    let at = plan.identity;
                    return Err(error!(Reason::LabelUsage, "{first:?} is on {at}, too").at(&name));
                }
                let creates = plan.creates;
                let would_have = self.opening.grow.get(&name).copied().unwrap_or_default();
                plan.info.size = plan.info.size.max(would_have);
                meta::data_bytes(plan.info.size).map_err(fail)?;
                look.facts = Some(plan);
                if let Some(in_use) = in_use {
                    self.look_at_used(&mut look, in_use).await?
                } else if creates {
                    DiskContent::ToBeMade
                } else {
                    let open = self.open(&look.disk, read_only).await.map_err(fail)?;
                    let found = meta::inspect(&self.env, &open.lower).await.map_err(fail)?;
                    look.open = Some(open);
                    lost = LostLabel::of(&found);
                    let content = DiskContent::from(AreaContent::from(found));
                    let is_as_made = |label| is_as_made(&look.disk, label);
                    // A disk that is shorter than its label records is reported as truncated, unless it is
                    // labelled anew.
                    let has = look.facts.as_ref().map_or(0, |facts| facts.info.size);
                    let is_short = look.disk.made_size().is_some_and(|said| has < said);
                    let is_anew = is_short && self.opening.wipe.contains(&name);
                    let says_size = look.disk.made_size().is_some();
                    if says_size && (is_anew || !content.label().is_some_and(is_as_made)) {
                        as_the_spec_says(&look.disk, &self.env).await.map_err(fail)?;
                    }
                    content
                }
            }
        };
        self.stays_where_it_is(&look, &content, running)?;
        self.disks.push(look.found(place, content, lost));
        self.results.push(look);
        Ok(())
    }

    /// Refuses to move a disk that is in use to a path at which no label of this disk is.
    fn stays_where_it_is(
        &self,
        look: &ProbeResult,
        content: &DiskContent,
        running: Option<&Labels>,
    ) -> Result<(), Error> {
        let name = &look.disk.given.name;
        let is_other = matches!(
            content,
            DiskContent::ToBeMade
                | DiskContent::Blank
                | DiskContent::Holds(_)
                | DiskContent::Wrong(_)
        );
        let is_meant =
            [&self.opening.wipe, &self.opening.replaced].iter().any(|all| all.contains(name));
        let at = running.and_then(|running| running.place_in_use(name));
        let Some(at) = at.filter(|_| is_other && !is_meant) else { return Ok(()) };
        let error = error!(
            Reason::LabelUsage,
            "{} does not have the label of disk {name}, which is in use on {at}",
            place_of(&look.disk)
        );
        let next = "keep the present path of the disk; or, if other disks have its data, cairn \
                    device replace";
        Err(error.next(next).at(name))
    }

    /// Probes a disk that the running graph has open. Its label comes from the memory of the running graph.
    async fn look_at_used(
        &self,
        look: &mut ProbeResult,
        in_use: InUse,
    ) -> Result<DiskContent, Error> {
        let InUse { disk: before, open, store } = in_use;
        let name = &look.disk.given.name;
        if self.opening.wipe.contains(name) {
            return Err(error!(
                Reason::LabelHeldByOtherHost,
                "{} is in use by this graph",
                place_of(&look.disk)
            )
            .next(format!("remove --wipe {name}"))
            .at(name));
        }
        let has = look.facts.as_ref().map_or(0, |facts| facts.info.size);
        if !is_as_made(&look.disk, &store.label()) {
            said_of_size(look, has)?;
        }
        let others = changed(&before, &look.disk);
        let label = store.label().clone();
        let may_have_grown = self.opening.grow.contains_key(name);
        let anew = match may_have_grown || !others.is_empty() {
            true => {
                let opened = self.open_anew(&look.disk, &open, &others).await;
                Some(opened.map_err(|error| error.within(name))?)
            }
            false => None,
        };
        // The graph keeps the node of a disk that neither changes nor has more bytes of data.
        let differs = |anew: &OpenDisk| {
            let size = self.engine.info(anew.node.id).size;
            !others.is_empty() || meta::data_bytes(size) != Ok(label.data_bytes)
        };
        let open = anew.filter(differs).unwrap_or(open);
        (look.open, look.store) = (Some(open), Some(store));
        // The store knows the number of the copies.
        Ok(DiskContent::Label(Box::new(label), 0))
    }

    /// Opens the raw disk of a labelled disk of the spec.
    pub(super) async fn open(
        &self,
        disk: &LabelledDisk,
        read_only: bool,
    ) -> Result<OpenDisk, Error> {
        let mut given = disk.given.clone();
        if read_only {
            given.refuse_writes(disk.kind);
        }
        self.node(disk, disk.make(MakerArgs::new(&given, &self.env)).await?)
    }

    /// Opens a disk that is in use a second time, with its present size and the options of the spec. `others` are the
    /// names of the options that have changed.
    async fn open_anew(
        &self,
        disk: &LabelledDisk,
        open: &OpenDisk,
        others: &[&str],
    ) -> Result<OpenDisk, Error> {
        let shared = open.device.share().ok_or_else(|| {
            let kind = disk.kind.name;
            let (words, next) = match others {
                [] => (
                    format!("a disk of kind {kind} cannot be resized while the disk is in use"),
                    "stop and start the graph; then resize the disk",
                ),
                others => (
                    format!(
                        "{} of a labelled disk of kind {kind} cannot change while the disk is in \
                         use: its connection holds unflushed writes",
                        others.join(", ")
                    ),
                    "stop the graph, and start it with the new spec",
                ),
            };
            Error::new(ErrorKind::Unsupported, words).next(next)
        })?;
        let making = MakerArgs::new(&disk.given, &self.env);
        self.node(disk, disk.make(MakerArgs { before: Some(shared), ..making }).await?)
    }

    fn node(&self, disk: &LabelledDisk, device: Rc<dyn AnyDevice>) -> Result<OpenDisk, Error> {
        OpenDisk::new(&self.engine, &disk.given.name, device)
    }

    /// Returns the facts about each labelled disk that a plan of the graph needs, by disk name.
    pub fn facts(&self) -> BTreeMap<String, KnownDisk> {
        let (bound, before) = (self.binding.disks.iter(), self.spec_before());
        bound.map(|(name, bound)| (name.clone(), self.probed(bound, &before))).collect()
    }

    fn probed(&self, bound: &Binding, before: &Spec) -> KnownDisk {
        match bound {
            Binding::Labelled(n) => {
                let label = self.label(*n).expect("a bound disk has a label");
                let (fresh, states) = (label.provisioning, states_of(label, before));
                KnownDisk { fresh, states, ..self.results[*n].probed(self.data_bytes(*n)) }
            }
            Binding::Fresh(n) => {
                let look = &self.results[*n];
                let size = look.facts.as_ref().map_or(0, |facts| facts.info.size);
                look.probed(meta::data_bytes(size).expect("the disk is large enough"))
            }
            Binding::Absent(known) => KnownDisk {
                info: Info::disk(known.data_bytes, known.block_size),
                created: false,
                absent: true,
                standing_bytes: 0,
                words: "not found".to_owned(),
                fresh: false,
                states: Rc::default(),
            },
        }
    }

    /// Returns the notices for the user about the probed disks.
    pub fn notices(&self) -> &[String] {
        &self.binding.notices
    }

    /// Returns the effect that a start would have on each probed disk, in the order of the spec.
    pub fn previews(&self) -> Vec<DiskPreview> {
        (0..self.results.len()).map(|n| self.preview(n)).collect()
    }

    fn preview(&self, own: usize) -> DiskPreview {
        let (look, DiskFacts { name, content, .. }) = (&self.results[own], &self.disks[own]);
        let refused = self.refusals.iter().find(|refusal| refusal.place() == Some(name));
        let bound = self.binding.disks.get(name);
        let there = match bound {
            Some(Binding::Labelled(n) | Binding::Fresh(n)) => Some(*n),
            Some(Binding::Absent(_)) => Some(own).filter(|own| !self.binding.is_bound(*own)),
            None => Some(own),
        };
        let (verb, words) = match (refused, bound) {
            (Some(refusal), _) => match content {
                DiskContent::Holds(what) if refusal.reason() == Some(Reason::LabelNotBlank) => {
                    ("would label", format!("HOLDS {what}; refused without --wipe {name}"))
                }
                _ => ("refused", refusal.sentence()),
            },
            (None, Some(Binding::Labelled(_))) => ("labelled", String::new()),
            (None, Some(Binding::Absent(_))) => ("missing", String::new()),
            (None, _) if self.opening.wipe.contains(name) => {
                ("would label", "regardless of its content".to_owned())
            }
            (None, _) if look.facts.as_ref().is_some_and(|facts| facts.creates) => {
                ("would label", "created by this start".to_owned())
            }
            (None, Some(Binding::Fresh(_))) => ("would label", "blank".to_owned()),
            (None, None) => ("seen", String::new()),
        };
        let found = there.filter(|_| !matches!(bound, Some(Binding::Absent(_))));
        let size = found.and_then(|n| self.results[n].facts.as_ref()).map(|facts| facts.info.size);
        let place = there.map(|n| self.disks[n].place.clone()).unwrap_or_default();
        DiskPreview { name: name.clone(), place, size, verb, words }
    }

    pub(super) fn label(&self, n: usize) -> Option<&Label> {
        self.disks[n].label()
    }
}

impl ProbeResult {
    /// Returns the result for a disk that was not probed yet.
    fn at(disk: LabelledDisk) -> Self {
        Self { disk, facts: None, open: None, store: None }
    }

    /// Returns the result of probing `disk`, made from `facts` of an earlier probe.
    fn of(disk: LabelledDisk, facts: &DiskFacts) -> Self {
        let DiskFacts { content, size, block_size, read_only, .. } = facts;
        let (words, identity) = Default::default();
        let creates = matches!(content, DiskContent::ToBeMade);
        let info = Info { read_only: *read_only, ..Info::disk(*size, *block_size) };
        let is_there = !matches!(content, DiskContent::Missing(_));
        Self {
            facts: is_there.then_some(DiskPlan {
                info,
                creates,
                identity,
                standing_bytes: 0,
                words,
            }),
            ..Self::at(disk)
        }
    }

    /// Returns the facts about the disk for the diagnosis.
    fn found(&self, place: String, content: DiskContent, lost: Option<LostLabel>) -> DiskFacts {
        let info = self.facts.as_ref().map(|facts| &facts.info);
        let size = info.map_or(0, |info| info.size);
        // A disk in use counts with at least the size in its label. If the disk has become shorter since, its own
        // requests show it.
        let labelled = content.label().filter(|_| self.store.is_some());
        let labelled = labelled.map_or(0, |label| Area::Back(label.data_bytes).range().end());
        DiskFacts {
            name: self.disk.given.name.clone(),
            place,
            content,
            size: size.max(labelled),
            block_size: info.map_or(0, |info| info.block_size),
            read_only: info.is_some_and(|info| info.read_only),
            lost,
        }
    }

    /// Returns the identity of the disk that was probed; empty if the disk is missing.
    pub fn identity(&self) -> String {
        self.facts.as_ref().map(|facts| facts.identity.clone()).unwrap_or_default()
    }

    fn probed(&self, data_bytes: u64) -> KnownDisk {
        let facts = self.facts.as_ref().expect("a bound disk was found");
        KnownDisk {
            info: Info { size: data_bytes, ..facts.info.clone() },
            created: facts.creates,
            absent: false,
            standing_bytes: facts.standing_bytes,
            words: facts.words.clone(),
            fresh: true,
            states: Rc::default(),
        }
    }
}

/// Returns the states in a label of those devices that the spec `before` has.
fn states_of(label: &Label, before: &Spec) -> Rc<BTreeMap<String, Rc<StoredState>>> {
    let cells = label.cells.iter().filter(|(name, _)| before.has(name));
    Rc::new(cells.map(|(name, cell)| (name.clone(), Rc::new(state_of(cell)))).collect())
}

/// Returns the names of the options in which two descriptions of a disk differ, except options that take effect only at
/// its creation.
fn changed<'d>(before: &'d LabelledDisk, after: &'d LabelledDisk) -> Vec<&'d str> {
    let value = |disk: &'d LabelledDisk, name: &str| {
        disk.given.options.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let names = [before, after].into_iter().flat_map(|disk| &disk.given.options);
    let mut names: Vec<&str> = names.map(|(name, _)| *name).collect();
    let counts = |name: &str| after.kind.option(name).is_none_or(|it| it.effect.is_lasting());
    names.retain(|name| counts(name) && value(before, name) != value(after, name));
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether the label records the size that the spec has for the disk; the disk may be longer, and bytes beyond that
/// size are not used. A process may have ended after it enlarged a file, and before the graph recorded the new size.
fn is_as_made(disk: &LabelledDisk, label: &Label) -> bool {
    let said = disk.made_size().and_then(|said| meta::data_bytes(said).ok());
    said == Some(label.data_bytes)
}

/// Returns an error if the spec has a size that differs from `has`, the size of a disk in use.
fn said_of_size(look: &ProbeResult, has: u64) -> Result<(), Error> {
    let given = &look.disk.given;
    let Some(said) = look.disk.made_size().filter(|said| *said != has) else { return Ok(()) };
    let (name, place) = (&given.name, place_of(&look.disk));
    let (is, would, size) = (format_exact(has), format_exact(said), write_size(said));
    let (why, next) = match said > has {
        true => (" and is in use", format!("cairn device resize {name} {size}; or remove size")),
        false => (
            ", and a labelled disk cannot shrink",
            format!(
                "remove size; or put the data of {name} on a smaller disk of another name, and \
                 apply that spec with --move"
            ),
        ),
    };
    Err(error!(Unsupported, "size {would}, but {place} has {is}{why}").next(next).at(name))
}

/// Returns the kind's plan of the disk; and the disk in use, if the running graph has the same disk open under any name
/// and with any options. Options that take effect only at creation are ignored for a disk in use. A disk may have another
/// size than that in the spec; the caller compares the label.
async fn in_use_or_not(
    disk: &LabelledDisk,
    env: &Env,
    running: Option<&Labels>,
) -> Result<(DiskPlan, Option<InUse>), Error> {
    let there = disk.once_made();
    let Some(running) = running else {
        let plan = match (probe(disk, env).await, disk.made_size()) {
            (Err(error), Some(said)) => {
                let there = probe(&there, env).await.ok().filter(|plan| plan.info.size != said);
                there.ok_or(error)?
            }
            (probed, _) => probed?,
        };
        return Ok((plan, None));
    };
    let probed = probe(&there, env).await;
    if let Err(error) = &probed
        && is_missing(error)
        && let Some((identity, in_use)) = running.in_use_at(disk)
        && let Some(Ok(_)) = env.within(ANSWERS_WITHIN, in_use.store.inspect()).await
    {
        // The disk may be present although it cannot be opened again: a server may accept one client only, or a file
        // may have another name by now.
        let info = in_use.open.lower.info().clone();
        let (words, standing_bytes) = Default::default();
        let plan = DiskPlan { info, creates: false, identity, standing_bytes, words };
        return Ok((plan, Some(in_use)));
    }
    let in_use = probed.as_ref().ok().and_then(|plan| running.in_use(disk.kind, &plan.identity));
    let says_more = there.given.options.len() < disk.given.options.len();
    let probed = if in_use.is_none() && says_more { probe(disk, env).await } else { probed };
    Ok((probed?, in_use))
}

/// Returns the kind's plan of the disk. If the kind reports faults, tries to open the disk: an error of the system
/// takes precedence, because the graph may be able to do without an absent disk.
async fn probe(disk: &LabelledDisk, env: &Env) -> Result<DiskPlan, Error> {
    let faults = match disk.plan(env).await {
        Ok(plan) if plan.identity.is_empty() => {
            bail!(Unsupported, "the disk is lost with the process, so it cannot have a label");
        }
        Ok(plan) if plan.info.padding > 0 => {
            bail!(Invalid, "{}", odd_size(&plan.info));
        }
        Ok(plan) => return Ok(plan),
        Err(faults) => faults,
    };
    let mut given: DeviceConfig = disk.given.clone();
    given.options.retain(|(name, _)| *name != "create");
    match disk.make(MakerArgs::new(&given, env)).await {
        Err(error) => Err(error),
        Ok(_) => Err(in_words(faults)),
    }
}

/// Checks that the kind accepts the options of the disk, which may be open by now.
async fn as_the_spec_says(disk: &LabelledDisk, env: &Env) -> Result<(), Error> {
    disk.plan(env).await.map(drop).map_err(in_words)
}

fn in_words(faults: Vec<Fault>) -> Error {
    let words: Vec<_> = faults.into_iter().map(|fault| fault.message).collect();
    Error::new(ErrorKind::Invalid, words.join("; "))
}

/// Whether the error means that the disk is absent, or failing so badly that it counts as absent.
fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Io | ErrorKind::TimedOut)
}

/// Returns the error of a disk for which the spec has no path.
fn not_found(name: &str) -> Error {
    error!(Reason::LabelMissing, "is not found")
        .next(format!("connect the disk, or name its path: --disk {name}=PATH"))
        .at(name)
}

/// Returns the path or address of a disk: the value of the option with the name of its kind. Empty if the spec has
/// none.
pub(super) fn place_of(disk: &LabelledDisk) -> &str {
    let place = disk.place().unwrap_or_default();
    if place == NOT_FOUND { "" } else { place }
}
