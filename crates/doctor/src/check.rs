//! Whether the labels of a graph, and what it keeps beside them, are sound. What was found in them goes in, what to say of it comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use block::{Error, Info};
use graph::labels::{
    Case, Remembered, belongs, disks, newest, objections, objections_without_bytes, older,
    split_brain,
};
use graph::spec::{Local, NOWHERE, Planned, PlannedNode, Severity, Spec, Surveyed};
use kind::{Maker, Summary};
use meta::{Area, Inspection, Label, Uuid};

use crate::{
    Checked, CheckedDevice, CheckedDisk, Doctor, Finding, Sort, Soundness, name_of, objects,
};

/// A disk with a label that can be read, looked at.
#[derive(Clone, Copy)]
pub struct Seen<'s> {
    /// Where it is.
    pub place: &'s str,
    /// What is there.
    pub inspection: &'s Inspection,
    /// The label that counts. That of an open disk is known whatever is there.
    pub label: &'s Label,
}

/// A disk that somebody else has open.
#[derive(Clone, Copy)]
pub struct Held<'h> {
    /// Where it is.
    pub place: &'h str,
    /// Why it cannot be opened.
    pub why: &'h Error,
    /// What its label says.
    pub label: &'h Label,
}

impl Seen<'_> {
    /// What is wrong with the copies of its label that count, in words.
    fn ills(&self) -> Vec<String> {
        match &self.inspection.label {
            Ok(Some(_)) => self.inspection.ills(),
            Ok(None) => vec!["its label is gone".to_owned()],
            Err(wrong) => vec![format!("no copy of its label can be read: {wrong}")],
        }
    }

    /// Bytes of the whole disk when it was labelled, if it has lost some since.
    fn cut_from(&self) -> Option<u64> {
        let had = Area::Back(self.label.data_bytes).range().end();
        Some(had).filter(|had| *had > self.inspection.size)
    }

    /// Whether it is as long as it was, and the label at one of its ends is gone.
    pub fn has_lost_its_end(&self) -> bool {
        self.cut_from().is_none() && self.inspection.lost_end().is_some()
    }
}

impl Doctor {
    /// Checks the labels of one graph that does not run for this user, and the object stores on its disks. `held`: disks of
    /// it that another process has open. `None` if all of them are still being made.
    pub async fn check_stopped(&self, seen: &[Seen<'_>], held: &[Held<'_>]) -> Option<Checked> {
        check(self, seen, held, true).await
    }

    /// Checks the labels of one graph that runs here. `None` if all of its disks are still being made.
    pub async fn check_running(&self, seen: &[Seen<'_>]) -> Option<Checked> {
        check(self, seen, &[], false).await
    }
}

async fn check(
    doctor: &Doctor,
    seen: &[Seen<'_>],
    held: &[Held<'_>],
    stopped: bool,
) -> Option<Checked> {
    let all = seen.iter().map(|seen| seen.label).chain(held.iter().map(|held| held.label));
    let newest = newest(all)?;
    let mut checking = Checking { doctor, newest, seen, held, stopped, found: Vec::new() };
    let named = checking.named();
    let planned = checking.plan(&named).await;
    checking.disks(&named, planned.as_ref());
    checking.split_brain();
    checking.missing(planned.as_ref(), &named);
    checking.older(planned.as_ref(), &named);
    let kept = planned.as_ref().map(|planned| checking.kept(planned, &named)).unwrap_or_default();
    if let Some(planned) = planned.as_ref().filter(|_| stopped) {
        checking.undecided(planned, &named);
    }
    checking.in_use(&named);
    if let Some(planned) = planned.filter(|_| stopped && held.is_empty()) {
        let places = places(&named, seen);
        checking.found.extend(objects::check(doctor, newest, &planned, &places).await);
    }
    let soundness = checking.found.iter().map(|finding| finding.soundness).max();
    let disk = |seen: &Seen<'_>| CheckedDisk {
        name: name_in(&named, seen.label),
        place: seen.place.to_owned(),
        change: seen.label.epoch,
        // Whether its bytes are whole is asked first; while it is in use its own writes tell.
        to_renew: seen.cut_from().is_none()
            && !(stopped && seen.has_lost_its_end())
            && !seen.ills().is_empty(),
    };
    let held = held.iter().map(|held| CheckedDisk {
        name: name_in(&named, held.label),
        place: held.place.to_owned(),
        change: held.label.epoch,
        to_renew: false,
    });
    let mut disks: Vec<_> = seen.iter().map(disk).chain(held).collect();
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    Some(Checked {
        graph: newest.graph_name.clone(),
        uuid: newest.graph,
        change: newest.epoch,
        soundness: soundness.unwrap_or(Soundness::Sound),
        disks,
        kept,
        findings: checking.found,
    })
}

/// The size of a disk without a label: nobody knows it.
const UNKNOWN_BYTES: &str = "1048576GiB";

/// The labelled disks of a graph, by their names in it.
pub type Named = BTreeMap<String, Remembered>;

/// What the graph calls a disk.
fn name_in(named: &Named, label: &Label) -> String {
    let known = named.iter().find(|(_, known)| known.disk == label.disk);
    known.map_or_else(|| label.disk_name.clone(), |(name, _)| name.clone())
}

/// The disks that have lost what was at their ends.
pub fn cut<'s>(seen: &[Seen<'_>], named: &'s Named) -> impl Iterator<Item = &'s str> {
    let is_cut = |known: &Remembered| {
        seen.iter().any(|seen| seen.label.disk == known.disk && seen.has_lost_its_end())
    };
    named.iter().filter(move |(_, known)| is_cut(known)).map(|(name, _)| name.as_str())
}

/// Why the bytes of a disk cannot be copied anew from others, in words: they may be nowhere else, or nobody else may have
/// the newest. `cut`: the disks whose bytes count for nothing, this one among them; what their labels say counts.
pub fn nowhere_else(
    planned: &Planned,
    named: &Named,
    seen: &[Seen<'_>],
    cut: &[&str],
    name: &str,
) -> Option<String> {
    let others: Vec<_> = cut.iter().copied().filter(|cut| *cut != name).collect();
    let anyway = planned.only_on(&others);
    let only = planned.only_on(cut).into_iter().filter(|shows| !anyway.contains(shows));
    let only = only.collect::<Vec<_>>().join(", ");
    if !only.is_empty() {
        return Some(format!("{only} has bytes of it that may be nowhere else"));
    }
    let label = |disk: &str| {
        let known = named.get(disk)?;
        seen.iter().find(|seen| seen.label.disk == known.disk).map(|seen| seen.label)
    };
    let is_above = |device: &str| planned.beneath(device).iter().any(|disk| disk == name);
    let without = cut.iter().copied().collect();
    let mut objections = objections_without_bytes(planned, label, &without).into_iter();
    let (device, why) = objections.find(|(device, _)| is_above(device))?;
    Some(format!("{device} cannot be copied from: {}", why.message()))
}

/// Stand-ins for the settings that labels do not hold, so that a graph can be planned: empty disks for those without a label,
/// and paths that lead nowhere.
pub(crate) fn nowhere(doctor: &Doctor, newest: &Label) -> Local {
    let spec = Spec::parse(&newest.spec, &newest.graph_name, &|_| None);
    let disk = |name: &str| (name.to_owned(), ("null".to_owned(), UNKNOWN_BYTES.to_owned()));
    let mut local = Local::default();
    local.disks.extend(spec.unlabelled().into_iter().map(disk));
    for (device, option, _) in spec.local_options(doctor.registry) {
        if option.required {
            let of = local.options.entry(device.to_owned()).or_default();
            of.insert(option.name.to_owned(), NOWHERE.to_owned());
        }
    }
    local
}

/// The graph that a label tells of as it would be with all of its disks, whether or not they are here; `None` if
/// disks without a label matter.
///
/// # Errors
/// What is wrong with the spec in the label.
pub(crate) async fn plan(
    doctor: &Doctor,
    newest: &Label,
    named: &Named,
) -> Result<Option<Planned>, String> {
    let surveyed = |known: &Remembered| Surveyed {
        info: Info::disk(known.data_bytes, known.block_size),
        created: false,
        absent: false,
        words: String::new(),
    };
    let surveyed = named.iter().map(|(name, known)| (name.clone(), surveyed(known))).collect();
    let (local, registry) = (nowhere(doctor, newest), doctor.registry);
    let has_raw = !local.disks.is_empty();
    let spec = Spec::of_label(&newest.spec, &name_of(newest), &newest.graph_name, registry, &local);
    match spec.plan_over(registry, &doctor.env, &surveyed).await {
        Ok(planned) => Ok(Some(planned)),
        // How large they are may matter.
        Err(_) if has_raw => Ok(None),
        Err(faults) => {
            let first = faults.iter().find(|fault| fault.severity() == Severity::Error);
            Err(first.map(|fault| fault.message().to_owned()).unwrap_or_default())
        }
    }
}

/// Where the disks of a graph are, by their names in it.
fn places(named: &Named, seen: &[Seen<'_>]) -> BTreeMap<String, PathBuf> {
    let place = |(name, known): (&String, &Remembered)| {
        let seen = seen.iter().find(|seen| seen.label.disk == known.disk)?;
        Some((name.clone(), PathBuf::from(seen.place)))
    };
    named.iter().filter_map(place).collect()
}

struct Checking<'c> {
    doctor: &'c Doctor,
    newest: &'c Label,
    seen: &'c [Seen<'c>],
    held: &'c [Held<'c>],
    stopped: bool,
    found: Vec<Finding>,
}

impl Checking<'_> {
    fn find(&mut self, sort: Sort, soundness: Soundness, name: &str, words: String, next: &str) {
        let name = Some(name.to_owned());
        self.found.push(Finding { sort, soundness, name, words, next: next.to_owned() });
    }

    /// The labelled disks that the newest label names.
    fn named(&mut self) -> Named {
        disks(&self.newest.spec).unwrap_or_else(|error| {
            let graph = self.newest.graph_name.clone();
            self.find(
                Sort::Label(Case::Damaged),
                Soundness::Damaged,
                &graph,
                error.to_string(),
                "",
            );
            Named::new()
        })
    }

    /// Each disk by itself.
    fn disks(&mut self, named: &Named, planned: Option<&Planned>) {
        let mut first: BTreeMap<[u8; 16], &str> = BTreeMap::new();
        for seen in self.seen {
            let Seen { place, inspection, label } = seen;
            let name = name_in(named, label);
            if let Some(had) = seen.cut_from() {
                let has = inspection.size;
                let words = format!(
                    "{place} has {has} bytes, and had {had} when it was labelled: what was cut off is lost"
                );
                let next = self.after_a_cut(&name, named, planned);
                self.find(Sort::Label(Case::Truncated), Soundness::Damaged, &name, words, &next);
            } else if seen.has_lost_its_end() {
                let (area, case) = match inspection.has_lost_its_front() {
                    true => ("front", Case::LostFront),
                    false => ("back", Case::LostEnd),
                };
                let words = format!(
                    "{place}: both copies of its label at the {area} are gone, and data may be"
                );
                let (soundness, next) = self.without_its_end(&name, named, planned);
                self.find(Sort::Label(case), soundness, &name, words, &next);
            } else {
                for ill in seen.ills() {
                    let words = format!("{place}: {ill}");
                    self.find(
                        Sort::DamagedCopy,
                        Soundness::Repairable,
                        &name,
                        words,
                        "cairn repair writes it anew",
                    );
                }
            }
            if let Some(other) = first.insert(label.disk.0, place) {
                let words = format!("{other} and {place} are both this disk: one is a copy");
                self.find(
                    Sort::Label(Case::Duplicate),
                    Soundness::Damaged,
                    &name,
                    words,
                    "take one of them away",
                );
            }
            self.standing(&name, place, label, named);
        }
    }

    /// What to do about a disk that was cut short: zeros in the place of what it had are not what it had.
    fn after_a_cut(&self, name: &str, named: &Named, planned: Option<&Planned>) -> String {
        let kept = planned.map(|planned| nowhere_else(planned, named, self.seen, &[name], name));
        match kept {
            Some(None) => format!(
                "make it that large again, and take it in anew with --wipe {name}: all of it is copied from the \
                 other disks"
            ),
            Some(Some(_)) | None => "bring back the disk as it was, or a backup of it".to_owned(),
        }
    }

    /// What to do about a disk that was cut short and made long again, or written over at its end.
    fn without_its_end(
        &self,
        name: &str,
        named: &Named,
        planned: Option<&Planned>,
    ) -> (Soundness, String) {
        let graph = &self.newest.graph_name;
        if !self.stopped {
            let next = format!(
                "if it was cut short or written over, cairn device replace {graph}/{name} PATH; cairn repair writes \
                 only its label"
            );
            return (Soundness::Repairable, next);
        }
        let trust =
            format!("if its bytes are known to be whole, cairn repair {graph} --trust {name}");
        let cut = cut(self.seen, named).collect::<Vec<_>>();
        match planned.map(|planned| nowhere_else(planned, named, self.seen, &cut, name)) {
            Some(None) => (
                Soundness::Repairable,
                format!("cairn repair, and it is copied anew from the others; {trust}"),
            ),
            Some(Some(_)) | None => (
                Soundness::Damaged,
                format!("bring back the disk as it was, or a backup of it; {trust}"),
            ),
        }
    }

    /// What a disk is to its graph, if that is worth a word.
    fn standing(&mut self, name: &str, place: &str, label: &Label, named: &Named) {
        if named.values().all(|known| known.disk != label.disk) {
            let is = match label.provisioning {
                true => "was to become a disk of this graph, and did not",
                false => "is a disk of this graph no more",
            };
            return self.find(Sort::Removed, Soundness::Sound, name, format!("{place} {is}"), "");
        }
        let (is, newest) = (label.epoch, self.newest.epoch);
        if is < newest && !self.older_disks().contains(&label.disk) {
            let words = format!("{place} is at change {is}, and the graph at {newest}");
            let next = "its next start tells it what it has missed";
            self.find(Sort::Behind, Soundness::Sound, name, words, next);
        }
        if label.unknown_read_only != 0 {
            let bits = label.unknown_read_only;
            let words = format!("{place} has features that this version must not write: {bits:#x}");
            self.find(
                Sort::Label(Case::Newer),
                Soundness::Sound,
                name,
                words,
                "use a newer version",
            );
        }
    }

    /// Two halves that went different ways.
    fn split_brain(&mut self) {
        let newest = self.newest;
        let labels = self.seen.iter().map(|seen| seen.label);
        let labels = labels.filter(|label| belongs(label, Some(newest)));
        if let Some(label) = split_brain(newest, labels) {
            let words = format!(
                "{} and {} were opened apart, and each says something else of the graph since",
                newest.disk_name, label.disk_name
            );
            let next = "leave one of them away, and --degraded";
            self.find(
                Sort::Label(Case::SplitBrain),
                Soundness::Damaged,
                &newest.graph_name,
                words,
                next,
            );
        }
    }

    /// The graph as it would be with all of its disks.
    async fn plan(&mut self, named: &Named) -> Option<Planned> {
        plan(self.doctor, self.newest, named).await.unwrap_or_else(|why| {
            let words = format!("the spec in its labels cannot be planned: {why}");
            let next = "use the version that wrote it, or a newer one";
            self.find(Sort::Unplannable, Soundness::Damaged, &self.newest.graph_name, words, next);
            None
        })
    }

    /// Who has disks of it open, here or elsewhere: it cannot be served meanwhile.
    fn in_use(&mut self, named: &Named) {
        let is_named = |label: &Label| named.values().any(|known| known.disk == label.disk);
        for Held { why, label, .. } in self.held.iter().filter(|held| is_named(held.label)) {
            let next = why.next_step().unwrap_or_default();
            self.find(
                Sort::Held,
                Soundness::InUse,
                &name_in(named, label),
                why.message().to_owned(),
                next,
            );
        }
        for Seen { place, label, .. } in self.seen.iter().filter(|seen| is_named(seen.label)) {
            let Some(other) = self.doctor.other_holder(label) else { continue };
            let words = format!("{place} is open on the machine {other}");
            let next = "stop it there; if that machine is gone for good, serve it with --take";
            self.find(
                Sort::Label(Case::HeldByOtherHost),
                Soundness::InUse,
                &name_in(named, label),
                words,
                next,
            );
        }
    }

    /// What cannot be served for want of disks.
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
            let (case, soundness, words, next) = match lost.is_empty() {
                true => (
                    Case::Degraded,
                    Soundness::Repairable,
                    "is not here; all data are on the other disks".to_owned(),
                    "bring it back, or --degraded to go on without",
                ),
                false => (
                    Case::Missing,
                    Soundness::Damaged,
                    format!("is not here, and {lost} cannot be served without"),
                    "bring it back",
                ),
            };
            self.find(Sort::Label(case), soundness, name, words, next);
        }
    }

    fn older_disks(&self) -> BTreeSet<Uuid> {
        let seen = self.seen.iter().map(|seen| seen.label);
        older(seen.chain(self.held.iter().map(|held| held.label)))
    }

    /// Disks that are as they were at an earlier time.
    fn older(&mut self, planned: Option<&Planned>, named: &Named) {
        let older = self.older_disks();
        let older = named.iter().filter(|(_, known)| older.contains(&known.disk));
        let older: Vec<_> = older.map(|(name, _)| name.as_str()).collect();
        let lost = planned.map(|planned| planned.lost_without(&older).join(", "));
        let graph = &self.newest.graph_name;
        for name in older {
            let is = "is older than the other disks: they were in use since, without it".to_owned();
            match lost.as_deref() {
                Some("") | None => {
                    let next = "its next start copies what it has missed";
                    self.find(Sort::Label(Case::Stale), Soundness::Repairable, name, is, next);
                }
                Some(lost) => {
                    let words = format!("{is}; {lost} would show bytes of different times");
                    let next = format!(
                        "bring back the disk as it was last; or if its bytes are meant, from a backup: cairn repair \
                         {graph} --disk {name}=PATH --trust {name} --plan"
                    );
                    self.find(Sort::Label(Case::Stale), Soundness::Damaged, name, words, &next);
                }
            }
        }
    }

    /// What devices keep: the newest state of each, and which of them cannot be read.
    fn kept(&mut self, planned: &Planned, named: &Named) -> Vec<CheckedDevice> {
        let mut all = Vec::new();
        for node in &planned.nodes {
            let Maker::Stateful { describe, .. } = node.kind.maker else { continue };
            let mut newest: Option<(u64, Summary)> = None;
            for Seen { place, label, .. } in self.seen {
                let Some(cell) = label.cells.get(&node.name) else { continue };
                match describe(&cell.bytes) {
                    Ok(told) if newest.as_ref().is_none_or(|(at, _)| *at < cell.sequence) => {
                        newest = Some((cell.sequence, told));
                    }
                    Ok(_) => {}
                    Err(why) => {
                        let words = format!("what it keeps on {place} cannot be used: {why}");
                        let next = "use the version that wrote it, or a newer one";
                        self.find(
                            Sort::UnreadableState,
                            Soundness::Damaged,
                            &node.name,
                            words,
                            next,
                        );
                    }
                }
            }
            let Some((_, Summary { words, lacks })) = newest else { continue };
            self.without_a_state(planned, named, node);
            if !lacks.is_empty() {
                let next = "serve it: that is copied";
                self.find(Sort::Resync, Soundness::Repairable, &node.name, lacks, next);
            }
            all.push(CheckedDevice {
                name: node.name.clone(),
                kind: node.kind.name.to_owned(),
                words,
            });
        }
        all
    }

    /// Devices that would not open without a word of somebody.
    fn undecided(&mut self, planned: &Planned, named: &Named) {
        let labels = self.seen.iter().map(|seen| seen.label);
        let labels: Vec<_> = labels.chain(self.held.iter().map(|held| held.label)).collect();
        let label = |name: &str| {
            let known = named.get(name)?;
            let label = labels.iter().copied().find(|label| label.disk == known.disk)?;
            Some((label, true))
        };
        for (device, why) in objections(planned, label) {
            // What it lacks is not copied by a start that does not come about.
            self.found.retain(|finding| finding.name.as_deref() != Some(device));
            let next = why.next_step().unwrap_or_default();
            self.find(
                Sort::Label(Case::Undecided),
                Soundness::Damaged,
                device,
                why.message().to_owned(),
                next,
            );
        }
    }

    /// Members of a mirror that have nothing of what it keeps: they have missed everything.
    fn without_a_state(&mut self, planned: &Planned, named: &Named, node: &PlannedNode) {
        if !node.kind.capabilities.names_members {
            return;
        }
        let beneath: Vec<String> = planned.beneath(&node.name);
        let lacks = |seen: &&Seen<'_>| {
            let (label, name) = (seen.label, name_in(named, seen.label));
            let is_named = named.values().any(|known| known.disk == label.disk);
            is_named && beneath.contains(&name) && !label.cells.contains_key(&node.name)
        };
        for Seen { place, label, .. } in self.seen.iter().filter(lacks) {
            let words = format!("{place} has nothing of what {} keeps on the others", node.name);
            let next = "serve it: all of it is copied there";
            self.find(Sort::NoState, Soundness::Repairable, &name_in(named, label), words, next);
        }
    }
}
