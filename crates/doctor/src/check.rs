//! Checks of the labels of one graph, and of the states of its devices in the labels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use block::{Error, Info, StoredState, error};
use graph::labels::{
    Case, DiskContent, DiskFacts, Facts, Finding as LabelFinding, LostLabel, Remembered, Waiver,
    counting, diagnose, disks, newest, objections_without_bytes, older, split_brain,
    split_brain_of,
};
use graph::spec::{KnownDisk, Local, NOT_FOUND, Planned, PlannedNode, Severity, Spec};
use kind::Summary;
use meta::{Area, Cell, Inspection, Label, Uuid};

use crate::{
    Checked, CheckedDevice, CheckedDisk, Doctor, Finding, Sort, Soundness, name_of, objects,
};

/// A disk whose label was read, as a check found it.
#[derive(Clone, Copy)]
pub struct ProbedDisk<'s> {
    /// Path or address of the disk.
    pub place: &'s str,
    /// All copies of the label of the disk.
    pub inspection: &'s Inspection,
    /// The label of the disk: the newest copy; for a disk of a running graph, the label that the graph has in memory.
    pub label: &'s Label,
}

/// A disk that another process has open, so that its label was read without the lock of the disk.
#[derive(Clone, Copy)]
pub struct LockedDisk<'h> {
    /// Path or address of the disk.
    pub place: &'h str,
    /// The error of opening the disk, which names the other process.
    pub why: &'h Error,
    /// The label of the disk, as read at its front.
    pub label: &'h Label,
}

impl ProbedDisk<'_> {
    /// Returns the damage of the copies of its label, in words.
    fn faults_of_copies(&self) -> Vec<String> {
        match &self.inspection.label {
            Ok(Some(_)) => self.inspection.faults_of_copies(),
            Ok(None) => vec!["the label is gone".to_owned()],
            Err(wrong) => vec![format!("no copy of the label can be read: {wrong}")],
        }
    }

    /// Returns the size that the disk had when it was labelled, if the disk is shorter now.
    fn cut_from(&self) -> Option<u64> {
        let had = Area::Back(self.label.data_bytes).range().end();
        Some(had).filter(|had| *had > self.inspection.size)
    }

    /// Whether the disk has lost the label at one end, and is not shorter than when it was labelled.
    pub fn has_lost_its_end(&self) -> bool {
        self.cut_from().is_none() && self.inspection.lost_end().is_some()
    }
}

impl Doctor {
    /// Checks the labels of one graph that no server of this user runs, and the object stores on its disks. `seen` are
    /// the disks whose labels were read; `held` are the disks that another process has open. Returns `None` if all
    /// disks of the graph are still being provisioned.
    pub async fn check_stopped(
        &self,
        seen: &[ProbedDisk<'_>],
        held: &[LockedDisk<'_>],
    ) -> Option<Checked> {
        check(self, seen, held, true).await
    }

    /// Checks the labels of one running graph of this process on the disks `seen`. Returns `None` if all disks of the
    /// graph are still being provisioned.
    pub async fn check_running(&self, seen: &[ProbedDisk<'_>]) -> Option<Checked> {
        check(self, seen, &[], false).await
    }
}

async fn check(
    doctor: &Doctor,
    seen: &[ProbedDisk<'_>],
    held: &[LockedDisk<'_>],
    stopped: bool,
) -> Option<Checked> {
    let all = seen.iter().map(|seen| seen.label).chain(held.iter().map(|held| held.label));
    let newest = newest(all.clone())?;
    let (counting, found) = (counting(all), Vec::new());
    let mut checking = Checking { doctor, newest, counting, seen, held, stopped, found };
    let named = checking.named();
    let planned = checking.plan(&named).await;
    checking.disks(&named);
    checking.missing(planned.as_ref(), &named);
    let findings = checking.diagnosis(planned.as_ref(), &named);
    checking.of_labels(&findings, planned.as_ref(), &named);
    checking.split_brain();
    checking.lost_ends(&named);
    checking.older(&named);
    let kept = planned.as_ref().map(|planned| checking.kept(planned, &named)).unwrap_or_default();
    if stopped {
        checking.undecided(&findings);
    }
    checking.in_use(&findings, &named);
    if let Some(planned) = planned.filter(|_| stopped && held.is_empty()) {
        let places = places(&named, seen);
        checking.found.extend(objects::check(doctor, newest, &planned, &places).await);
    }
    Some(Checked {
        graph: newest.graph_name.clone(),
        uuid: newest.graph.to_string(),
        change: newest.epoch,
        soundness: checking.worst(),
        disks: checking.checked_disks(&named),
        kept,
        findings: checking.found,
    })
}

/// The size that a plan assumes for a disk without a label, whose real size is unknown.
const UNKNOWN_BYTES: &str = "1048576GiB";

/// The labelled disks of a graph, as its newest label names them, by name of the disk.
pub type Named = BTreeMap<String, Remembered>;

/// Returns the name of the labelled disk: the name in `named`, else the one in its own label.
fn name_in(named: &Named, label: &Label) -> String {
    let known = named.iter().find(|(_, known)| known.disk == label.disk);
    known.map_or_else(|| label.disk_name.clone(), |(name, _)| name.clone())
}

/// Returns the names of those disks of `named` that have lost the label at one end.
pub fn cut<'s>(seen: &[ProbedDisk<'_>], named: &'s Named) -> impl Iterator<Item = &'s str> {
    let is_cut = |known: &Remembered| {
        seen.iter().any(|seen| seen.label.disk == known.disk && seen.has_lost_its_end())
    };
    named.iter().filter(move |(_, known)| is_cut(known)).map(|(name, _)| name.as_str())
}

/// Returns the reason why the disk `name` cannot be copied anew from other disks: it may have the only copy, or the
/// only newest copy, of some bytes. `cut` are the disks whose bytes must not be used, including `name`; the states in
/// their labels are used.
pub fn only_copy_reason(
    planned: &Planned,
    named: &Named,
    seen: &[ProbedDisk<'_>],
    cut: &[&str],
    name: &str,
) -> Option<String> {
    let others: Vec<_> = cut.iter().copied().filter(|cut| *cut != name).collect();
    let anyway = planned.only_on(&others);
    let only = planned.only_on(cut).into_iter().filter(|shows| !anyway.contains(shows));
    let only = only.collect::<Vec<_>>().join(", ");
    if !only.is_empty() {
        return Some(format!("{only} has bytes that may be on no other disk"));
    }
    let label = |disk: &str| {
        let known = named.get(disk)?;
        seen.iter().find(|seen| seen.label.disk == known.disk).map(|seen| seen.label)
    };
    let is_above = |device: &str| planned.beneath(device).iter().any(|disk| disk == name);
    let without = cut.iter().copied().collect();
    let mut objections = objections_without_bytes(planned, label, &without).into_iter();
    let (device, why) = objections.find(|(device, _)| is_above(device))?;
    Some(format!("{device} cannot supply a copy: {}", why.message()))
}

/// Returns substitutes for the settings that the label `newest` does not contain, so that its graph can be planned:
/// empty disks for disks without a label, and the path of no file for each required option.
pub(crate) fn ephemeral(doctor: &Doctor, newest: &Label) -> Local {
    let spec = Spec::parse(&newest.spec, &newest.graph_name, &|_| None);
    let disk = |name: &str| (name.to_owned(), ("null".to_owned(), UNKNOWN_BYTES.to_owned()));
    let mut local = Local::default();
    local.disks.extend(spec.unlabelled().into_iter().map(disk));
    for (device, option, _) in spec.local_options(doctor.registry) {
        if option.required {
            let of = local.options.entry(device.to_owned()).or_default();
            of.insert(option.name.to_owned(), NOT_FOUND.to_owned());
        }
    }
    local
}

/// Plans the graph of the label `newest` with all of its disks, present or not. Returns `None` if the plan needs the
/// size of a disk without a label.
///
/// # Errors
/// The first fault of the spec in the label.
pub(crate) async fn plan(
    doctor: &Doctor,
    newest: &Label,
    named: &Named,
) -> Result<Option<Planned>, String> {
    // The newest label has the newest states of all devices.
    let state = |cell: &Cell| StoredState { sequence: cell.sequence, bytes: cell.bytes.clone() };
    let states = newest.cells.iter().map(|(name, cell)| (name.clone(), Rc::new(state(cell))));
    let states: Rc<BTreeMap<_, _>> = Rc::new(states.collect());
    let probed = |known: &Remembered| KnownDisk {
        info: Info::disk(known.data_bytes, known.block_size),
        created: false,
        absent: false,
        standing_bytes: 0,
        words: String::new(),
        fresh: false,
        states: states.clone(),
    };
    let probed = named.iter().map(|(name, known)| (name.clone(), probed(known))).collect();
    let (local, registry) = (ephemeral(doctor, newest), doctor.registry);
    let has_raw = !local.disks.is_empty();
    let spec = Spec::of_label(&newest.spec, &name_of(newest), &newest.graph_name, registry, &local);
    match spec.plan_over(registry, &doctor.env, &probed).await {
        Ok(planned) => Ok(Some(planned)),
        // The plan may depend on the sizes of the disks without a label.
        Err(_) if has_raw => Ok(None),
        Err(faults) => {
            let first = faults.iter().find(|fault| fault.severity() == Severity::Error);
            Err(first.map(|fault| fault.message().to_owned()).unwrap_or_default())
        }
    }
}

/// Returns the paths of the disks of a graph that were found, by name of the disk.
fn places(named: &Named, seen: &[ProbedDisk<'_>]) -> BTreeMap<String, PathBuf> {
    let place = |(name, known): (&String, &Remembered)| {
        let seen = seen.iter().find(|seen| seen.label.disk == known.disk)?;
        Some((name.clone(), PathBuf::from(seen.place)))
    };
    named.iter().filter_map(place).collect()
}

struct Checking<'c> {
    doctor: &'c Doctor,
    newest: &'c Label,
    /// The labels among which `newest` was chosen, as [`counting`] returns them.
    counting: Vec<&'c Label>,
    seen: &'c [ProbedDisk<'c>],
    held: &'c [LockedDisk<'c>],
    stopped: bool,
    found: Vec<Finding>,
}

impl Checking<'_> {
    /// Returns the worst soundness among all findings.
    fn worst(&self) -> Soundness {
        let worst = self.found.iter().map(|finding| finding.soundness).max();
        worst.unwrap_or(Soundness::Sound)
    }

    /// Returns all disks of the graph that were found, sorted by name.
    fn checked_disks(&self, named: &Named) -> Vec<CheckedDisk> {
        let disk = |place: &str, label: &Label, to_renew: bool| CheckedDisk {
            name: name_in(named, label),
            place: place.to_owned(),
            change: label.epoch,
            to_renew,
        };
        // A disk that may have lost bytes gets no new label without a decision of the operator. A running graph knows
        // its own disks.
        let is_renewed = |seen: &ProbedDisk<'_>| {
            let may_have_lost = self.stopped && seen.has_lost_its_end();
            seen.cut_from().is_none() && !may_have_lost && !seen.faults_of_copies().is_empty()
        };
        let seen = self.seen.iter().map(|seen| disk(seen.place, seen.label, is_renewed(seen)));
        let held = self.held.iter().map(|held| disk(held.place, held.label, false));
        let mut disks: Vec<_> = seen.chain(held).collect();
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        disks
    }

    fn find(&mut self, sort: Sort, soundness: Soundness, name: &str, words: String, next: &str) {
        self.found.push(Finding::note(sort, soundness, Some(name), words).next(next));
    }

    fn refuse(
        &mut self,
        sort: Sort,
        soundness: Soundness,
        name: &str,
        words: String,
        next: &str,
        waived_by: &'static [Waiver],
    ) {
        let found = Finding::note(sort, soundness, Some(name), words).next(next);
        self.found.push(Finding { blocks: true, waived_by, ..found });
    }

    /// Returns the labelled disks that the newest label names. Adds a finding if they cannot be read.
    fn named(&mut self) -> Named {
        disks(&self.newest.spec).unwrap_or_else(|error| {
            let graph = self.newest.graph_name.clone();
            let sort = Sort::Label(Case::Damaged);
            self.refuse(sort, Soundness::Damaged, &graph, error.to_string(), "", &[]);
            Named::new()
        })
    }

    /// Adds the findings about each disk that follow from the label of that disk and the newest label.
    fn disks(&mut self, named: &Named) {
        for seen in self.seen {
            let ProbedDisk { place, label, .. } = seen;
            let name = name_in(named, label);
            if seen.cut_from().is_none() && !seen.has_lost_its_end() {
                for ill in seen.faults_of_copies() {
                    let words = format!("{place}: {ill}");
                    let next = "cairn repair rewrites the label";
                    self.find(Sort::DamagedCopy, Soundness::Repairable, &name, words, next);
                }
            }
            self.note_membership(&name, place, label, named);
        }
    }

    /// Returns the findings that a start without any flags would have about the disks of the graph.
    fn diagnosis(&self, planned: Option<&Planned>, named: &Named) -> Vec<LabelFinding> {
        let disks: Vec<_> =
            named.iter().flat_map(|(name, known)| self.facts(name, known)).collect();
        let facts = Facts { graph: &self.newest.graph_name, disks: &disks, planned };
        diagnose(&facts, &self.doctor.opening())
    }

    /// Returns the facts about the disk `name` of the graph for the diagnosis, once for each path at which the disk was
    /// found.
    fn facts(&self, name: &str, known: &Remembered) -> Vec<DiskFacts> {
        let whole = Area::Back(known.data_bytes).range().end();
        let facts =
            |place: &str, content: DiskContent, size: u64, lost: Option<LostLabel>| DiskFacts {
                name: name.to_owned(),
                place: place.to_owned(),
                content,
                size,
                block_size: known.block_size,
                read_only: false,
                lost,
            };
        let content = |label: &Label| DiskContent::Label(Box::new(label.clone()), 0);
        let is_it = |label: &Label| {
            label.disk == known.disk && self.counting.iter().any(|it| std::ptr::eq(*it, label))
        };
        let seen = self.seen.iter().filter(|seen| is_it(seen.label)).map(|seen| {
            let ProbedDisk { place, inspection, label } = seen;
            facts(place, content(label), inspection.size, LostLabel::of(inspection))
        });
        let held = self.held.iter().filter(|held| is_it(held.label));
        let held = held.map(|held| facts(held.place, content(held.label), whole, None));
        let found: Vec<_> = seen.chain(held).collect();
        match found.is_empty() {
            true => {
                let error = error!(NotFound, "the disk is not found").at(name);
                vec![facts("", DiskContent::Missing(error), 0, None)]
            }
            false => found,
        }
    }

    /// Adds a finding of the diagnosis to the findings of this check.
    fn add(&mut self, found: &LabelFinding, soundness: Soundness, next: &str) {
        let (sort, name) =
            (Sort::Label(found.case), found.place().unwrap_or(&self.newest.graph_name));
        let words = found.error.message().to_owned();
        let note = Finding::note(sort, soundness, Some(name), words).next(next);
        self.found.push(Finding { blocks: found.blocks, waived_by: found.waived_by, ..note });
    }

    /// Adds the findings of the diagnosis, except those about missing disks, undecided devices and disks in use: other
    /// functions add those.
    fn of_labels(&mut self, findings: &[LabelFinding], planned: Option<&Planned>, named: &Named) {
        for found in findings {
            let name = found.place().unwrap_or_default();
            let usual = || found.error.next_step().unwrap_or_default().to_owned();
            let (soundness, next) = match found.case {
                Case::Missing | Case::Degraded | Case::HeldByOtherHost | Case::Undecided => {
                    continue;
                }
                Case::Truncated => (Soundness::Damaged, self.after_a_cut(name, named, planned)),
                Case::LostEnd | Case::LostFront => self.without_its_end(name, named, planned),
                Case::Stale if !found.blocks => (Soundness::Repairable, usual()),
                _ => (Soundness::Damaged, usual()),
            };
            self.add(found, soundness, &next);
        }
    }

    /// Returns the next step of the operator for a disk that is shorter than its label records.
    fn after_a_cut(&self, name: &str, named: &Named, planned: Option<&Planned>) -> String {
        let kept =
            planned.map(|planned| only_copy_reason(planned, named, self.seen, &[name], name));
        match kept {
            Some(None) => format!(
                "make the disk that large again, and label it with --wipe {name}: all its bytes \
                 are copied from the other disks"
            ),
            Some(Some(_)) | None => "restore the disk, or a backup of it".to_owned(),
        }
    }

    /// Returns the soundness and the next step of the operator for a disk that has lost the label at one end.
    fn without_its_end(
        &self,
        name: &str,
        named: &Named,
        planned: Option<&Planned>,
    ) -> (Soundness, String) {
        let graph = &self.newest.graph_name;
        if !self.stopped {
            let next = format!(
                "if the disk was truncated or overwritten, cairn device replace {graph}/{name} \
                 PATH; cairn repair rewrites only its label"
            );
            return (Soundness::Repairable, next);
        }
        let trust = format!("if its bytes are intact, cairn repair {graph} --trust {name}");
        let cut = cut(self.seen, named).collect::<Vec<_>>();
        match planned.map(|planned| only_copy_reason(planned, named, self.seen, &cut, name)) {
            Some(None) => (
                Soundness::Repairable,
                format!("cairn repair, then the disk is copied from the others; {trust}"),
            ),
            Some(Some(_)) | None => {
                (Soundness::Damaged, format!("restore the disk, or a backup of it; {trust}"))
            }
        }
    }

    /// Adds a note about a disk that has left its graph, or that its next start updates.
    fn note_membership(&mut self, name: &str, place: &str, label: &Label, named: &Named) {
        if named.values().all(|known| known.disk != label.disk) {
            let is = match label.provisioning {
                true => "did not complete its provisioning as a disk of this graph",
                false => "is no longer a disk of this graph",
            };
            return self.find(Sort::Removed, Soundness::Sound, name, format!("{place} {is}"), "");
        }
        let (is, newest) = (label.epoch, self.newest.epoch);
        if is < newest && !self.older_disks().contains(&label.disk) {
            let words = format!("the label on {place} has change {is}, and the graph has {newest}");
            let next = "the next start of the graph updates the label";
            self.find(Sort::Behind, Soundness::Sound, name, words, next);
        }
    }

    /// Plans the graph with all of its disks. Adds a finding and returns `None` if its spec cannot be planned.
    async fn plan(&mut self, named: &Named) -> Option<Planned> {
        plan(self.doctor, self.newest, named).await.unwrap_or_else(|why| {
            let words = format!("the spec in the labels cannot be planned: {why}");
            let next = "use the version of Cairn that wrote the labels, or a newer one";
            let (sort, graph) = (Sort::Unplannable, &self.newest.graph_name);
            self.refuse(sort, Soundness::Damaged, graph, words, next, &[]);
            None
        })
    }

    /// Adds a finding for each disk that another process or another machine has open.
    fn in_use(&mut self, findings: &[LabelFinding], named: &Named) {
        let is_named = |label: &Label| named.values().any(|known| known.disk == label.disk);
        for LockedDisk { why, label, .. } in self.held.iter().filter(|held| is_named(held.label)) {
            let next = why.next_step().unwrap_or_default();
            let (name, words) = (name_in(named, label), why.message().to_owned());
            self.refuse(Sort::Held, Soundness::InUse, &name, words, next, &[]);
        }
        for found in findings.iter().filter(|found| found.case == Case::HeldByOtherHost) {
            self.add(found, Soundness::InUse, found.error.next_step().unwrap_or_default());
        }
    }

    /// Adds a finding for each disk of the graph that was not found.
    fn missing(&mut self, planned: Option<&Planned>, named: &Named) {
        let is_here = |known: &Remembered| {
            self.seen.iter().any(|seen| seen.label.disk == known.disk)
                || self.held.iter().any(|held| held.label.disk == known.disk)
        };
        let missing = named.iter().filter(|(_, known)| !is_here(known));
        let missing: Vec<_> = missing.map(|(name, _)| name.as_str()).collect();
        let Some(planned) = planned else { return };
        let lost = planned.lost_without(&missing).join(", ");
        for name in missing {
            if lost.is_empty() {
                let words = "the disk is not found; the other disks have all data".to_owned();
                let next = "bring the disk back, or use --degraded to start without the disk";
                let sort = Sort::Label(Case::Degraded);
                let waived_by = &[Waiver::Degraded];
                self.refuse(sort, Soundness::Repairable, name, words, next, waived_by);
            } else {
                let words =
                    format!("the disk is not found, and {lost} cannot be served without it");
                let (sort, next) = (Sort::Label(Case::Missing), "bring the disk back");
                self.refuse(sort, Soundness::Damaged, name, words, next, &[]);
            }
        }
    }

    fn older_disks(&self) -> BTreeSet<Uuid> {
        let seen = self.seen.iter().map(|seen| seen.label);
        older(seen.chain(self.held.iter().map(|held| held.label)))
    }

    /// Adds the finding about a split brain, if the diagnosis has not found it: one of its disks may not be named in
    /// the newest label.
    fn split_brain(&mut self) {
        let newest = self.newest;
        let labels = self.counting.iter().copied();
        let is_found = self.found.iter().any(|it| it.sort == Sort::Label(Case::SplitBrain));
        if let Some(other) = split_brain(newest, labels).filter(|_| !is_found) {
            let found = split_brain_of(newest, other);
            self.add(&found, Soundness::Damaged, found.error.next_step().unwrap_or_default());
        }
    }

    /// Adds a finding for each disk without a label at one end that the diagnosis has not judged, for the reasons at
    /// [`Checking::older`].
    fn lost_ends(&mut self, named: &Named) {
        for seen in self.seen.iter().filter(|seen| seen.has_lost_its_end()) {
            let (name, place) = (name_in(named, seen.label), seen.place);
            let cases = [Case::LostEnd, Case::LostFront].map(Sort::Label);
            let mut judged = self.found.iter().filter(|finding| cases.contains(&finding.sort));
            if judged.any(|finding| finding.name.as_ref() == Some(&name)) {
                continue;
            }
            let (area, sort) = match seen.inspection.has_lost_its_front() {
                true => ("front", cases[1]),
                false => ("end", cases[0]),
            };
            let words = format!("the label at the {area} of {place} is lost, and maybe data too");
            let next = "fix the other findings first";
            self.find(sort, Soundness::Damaged, &name, words, next);
        }
    }

    /// Adds a finding for each stale disk that the diagnosis has not judged: it judges none if disks were not matched
    /// to their labels, or if the graph was not planned.
    fn older(&mut self, named: &Named) {
        let older = self.older_disks();
        let is_judged = |name: &String| {
            let mut stale = self.found.iter().filter(|it| it.sort == Sort::Label(Case::Stale));
            stale.any(|finding| finding.name.as_ref() == Some(name))
        };
        let names = named.iter().filter(|(_, known)| older.contains(&known.disk));
        let names: Vec<_> = names.map(|(name, _)| name).filter(|name| !is_judged(name)).collect();
        for name in names {
            let words =
                "is older than the other disks, which were in use without this disk".to_owned();
            let next = "the next start copies the missed writes to it";
            self.find(Sort::Label(Case::Stale), Soundness::Repairable, name, words, next);
        }
    }

    /// Returns a summary of the newest state of each device. Adds a finding for each state that its device cannot read.
    fn kept(&mut self, planned: &Planned, named: &Named) -> Vec<CheckedDevice> {
        let mut all = Vec::new();
        for node in &planned.nodes {
            let Some(describe) = node.kind.maker.describe() else { continue };
            let mut newest: Option<(u64, Summary)> = None;
            for ProbedDisk { place, label, .. } in self.seen {
                let Some(cell) = label.cells.get(&node.name) else { continue };
                match describe(&cell.bytes) {
                    Ok(told) if newest.as_ref().is_none_or(|(at, _)| *at < cell.sequence) => {
                        newest = Some((cell.sequence, told));
                    }
                    Ok(_) => {}
                    Err(why) => {
                        let words = format!("the device's state on {place} cannot be used: {why}");
                        let next = "use the version of Cairn that wrote that state, or a newer one";
                        let sort = Sort::UnreadableState;
                        self.find(sort, Soundness::Damaged, &node.name, words, next);
                    }
                }
            }
            let Some((_, Summary { words, lacks })) = newest else { continue };
            self.without_a_state(planned, named, node);
            if !lacks.is_empty() {
                let next = "serve the graph: the missing bytes are copied";
                self.find(Sort::Resync, Soundness::Repairable, &node.name, lacks, next);
            }
            let (name, kind) = (node.name.clone(), node.kind.name.to_owned());
            all.push(CheckedDevice { name, kind, words });
        }
        all
    }

    /// Adds a finding for each device that does not open without a decision of the operator about its data.
    fn undecided(&mut self, findings: &[LabelFinding]) {
        for found in findings.iter().filter(|found| found.case == Case::Undecided) {
            // A refused start copies no missing data, so other findings about this device would mislead.
            self.found.retain(|finding| finding.name.as_deref() != found.place());
            self.add(found, Soundness::Damaged, found.error.next_step().unwrap_or_default());
        }
    }

    /// Adds a finding for each member whose label has no state of the device `node`: the device copies all data to that
    /// member.
    fn without_a_state(&mut self, planned: &Planned, named: &Named, node: &PlannedNode) {
        if !node.kind.capabilities.names_members {
            return;
        }
        let beneath: Vec<String> = planned.beneath(&node.name);
        let lacks = |seen: &&ProbedDisk<'_>| {
            let (label, name) = (seen.label, name_in(named, seen.label));
            let is_named = named.values().any(|known| known.disk == label.disk);
            is_named && beneath.contains(&name) && !label.cells.contains_key(&node.name)
        };
        for ProbedDisk { place, label, .. } in self.seen.iter().filter(lacks) {
            let words = format!("{place} has no state of {}, which other disks have", node.name);
            let next = "serve the graph: all bytes are copied to the disk";
            self.find(Sort::NoState, Soundness::Repairable, &name_in(named, label), words, next);
        }
    }
}
