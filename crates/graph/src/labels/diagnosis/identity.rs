//! Identification of the disk at each path: by its label, not by the path.

use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Error, Reason, error};
use meta::{Label, Past, Uuid, Wrong};

use super::{
    Case, DiskContent, DiskFacts, Finding, Waiver, counting, duplicate_of, label_findings, newest,
    service, split_brain, split_brain_of,
};
use crate::labels::Opening;
use crate::labels::text::{self, Remembered};

/// The disk that was matched to a disk name of the spec. The numbers are indices into the list of disk facts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// The disk with this number, matched by its label.
    Labelled(usize),
    /// The disk with this number, which gets a new label.
    Fresh(usize),
    /// A disk that labels of the graph name and that was not found, with the facts in those labels.
    Absent(Remembered),
}

/// The graph that the labels of disks describe, and the disk that is matched to each disk name of the spec.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// The matched disks, by their names in the spec; empty if the disks cannot be matched.
    pub(crate) disks: BTreeMap<String, Binding>,
    /// Uuid of the graph; `None` if no disk has a label of the graph.
    pub(crate) graph: Option<Uuid>,
    /// Epoch in the newest label of the graph.
    pub(crate) epoch: u64,
    /// The spec in the newest label of the graph.
    pub(crate) spec: String,
    /// The earlier specs in the newest label of the graph, the newest first.
    pub(crate) past: Rc<[Past]>,
    /// Messages for the user about disks whose labels have other names than the spec.
    pub(crate) notices: Vec<String>,
}

impl Bindings {
    /// Whether the disk with number `n` is matched by its label, perhaps under another name than the spec has.
    pub(crate) fn is_bound(&self, n: usize) -> bool {
        self.disks.values().any(|bound| *bound == Binding::Labelled(n))
    }
}

/// Matches the disks that the spec of `graph` names to their labels, and returns the reasons why disks cannot be
/// matched.
pub fn identify(graph: &str, disks: &[DiskFacts], asked: &Opening) -> (Bindings, Vec<Finding>) {
    let mut it = Identity {
        graph,
        disks,
        asked,
        findings: Vec::new(),
        stops: false,
        binding: Bindings::default(),
    };
    it.each();
    let labels = it.labels();
    it.of_one_graph(&labels);
    let newest = it.newest(&labels);
    match newest.filter(|_| !it.stops) {
        Some(newest) => it.by_label(&labels, newest),
        None if !it.stops => it.fresh(&BTreeMap::new()),
        None => {}
    }
    if it.stops {
        it.binding = Bindings::default();
    }
    let Identity { binding, mut findings, .. } = it;
    findings.extend(service::truncated(disks, &binding, &findings, asked));
    (binding, findings)
}

/// Whether `findings` refuse the disk called `name` because of its label.
pub(super) fn is_judged(findings: &[Finding], name: &str) -> bool {
    let mut others = findings.iter().filter(|found| found.case != Case::HeldByOtherHost);
    others.any(|found| found.place() == Some(name))
}

struct Identity<'i> {
    graph: &'i str,
    disks: &'i [DiskFacts],
    asked: &'i Opening,
    findings: Vec<Finding>,
    /// Whether a finding prevents disks from being matched.
    stops: bool,
    binding: Bindings,
}

impl<'i> Identity<'i> {
    /// Adds a finding that prevents disks from being matched.
    fn stop(&mut self, case: Case, error: Error, waived_by: &'static [Waiver]) {
        self.stops = true;
        self.findings.push(Finding::new(case, error, waived_by));
    }

    fn is_wiped(&self, name: &str) -> bool {
        self.asked.wipe.iter().any(|wiped| wiped == name)
    }

    /// Adds the findings about each disk that follow from the contents of that disk alone.
    fn each(&mut self) {
        for wiped in &self.asked.wipe {
            if !self.disks.iter().any(|disk| disk.name == *wiped) {
                let words = format!("--wipe {wiped}: the spec has no labelled disk of that name");
                let error = Error::because(Reason::LabelUsage, words);
                self.stop(Case::UnknownDisk, error, &[]);
            }
        }
        let all = self.disks;
        for DiskFacts { name, place, content, .. } in all {
            match content {
                _ if self.is_wiped(name) => {}
                DiskContent::Holds(what) => {
                    let words = format!("{place} HOLDS {what}; refused without --wipe {name}");
                    let error = Error::because(Reason::LabelNotBlank, words).at(name);
                    self.stop(Case::NotBlank, error, &[Waiver::Wipe]);
                }
                DiskContent::Wrong(wrong @ (Wrong::Version(_) | Wrong::Features(_))) => {
                    let error = error!(Reason::LabelNewer, "{place} has {wrong}");
                    let error = error.next("use a newer version of Cairn").at(name);
                    self.stop(Case::Newer, error, &[Waiver::Wipe]);
                }
                DiskContent::Wrong(wrong) => {
                    let next = format!(
                        "cairn repair {} --disk {name}={place} --plan; or, if another disk has the same \
                         data or the disk never served, label the disk anew with --wipe {name}",
                        self.graph
                    );
                    let words = format!("{place} has {wrong}");
                    let error = Error::because(Reason::LabelDamaged, words).next(next).at(name);
                    self.stop(Case::Damaged, error, &[Waiver::Wipe]);
                }
                DiskContent::Missing(_)
                | DiskContent::ToBeMade
                | DiskContent::Blank
                | DiskContent::Label(..) => {}
            }
        }
    }

    /// Returns the labels that count, with the numbers of their disks. The label of a provisioning disk counts only if
    /// the other labels name that disk as one of this graph: then the graph depends on the disk.
    fn labels(&self) -> Vec<(usize, &'i Label)> {
        let disks = self.disks.iter().enumerate().filter(|(_, disk)| !self.is_wiped(&disk.name));
        let labels: Vec<_> = disks.filter_map(|(n, disk)| Some((n, disk.label()?))).collect();
        let of_name = labels.iter().map(|(_, label)| *label);
        let counting = counting(of_name.filter(|label| label.graph_name == self.graph));
        let counts = |label: &Label| counting.iter().any(|it| std::ptr::eq(*it, label));
        labels.into_iter().filter(|(_, label)| !label.provisioning || counts(label)).collect()
    }

    /// Checks that all labels are of this graph, that no two disks have the same label, and that no other machine has a
    /// disk open.
    fn of_one_graph(&mut self, labels: &[(usize, &Label)]) {
        let mut graphs: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        for (n, label) in labels {
            let DiskFacts { name, place, .. } = &self.disks[*n];
            let theirs = &label.graph_name;
            if *theirs != self.graph {
                let words = format!(
                    "{place} is disk {:?} of the graph {theirs:?}, but this graph is {:?}",
                    label.disk_name, self.graph
                );
                let next = format!("name another disk, or --wipe {name}");
                let error = Error::because(Reason::LabelForeign, words).next(next).at(name);
                self.stop(Case::Foreign, error, &[Waiver::Wipe]);
                continue;
            }
            graphs.entry(label.graph).or_default().push(*n);
            let findings = label_findings(name, place, label, &self.asked.machine);
            self.stops |= findings.iter().any(|finding| finding.case == Case::Newer);
            self.findings.extend(findings);
        }
        if graphs.len() > 1 {
            self.stop(Case::Foreign, self.of_several(&graphs), &[Waiver::Wipe]);
        }
        self.once_each(labels);
    }

    /// Returns the error that several graphs have the same name. It lists the disks of each graph, and how to select
    /// one graph.
    fn of_several(&self, graphs: &BTreeMap<Uuid, Vec<usize>>) -> Error {
        let places = |disks: &Vec<usize>| {
            let places: Vec<_> = disks.iter().map(|n| &*self.disks[*n].place).collect();
            places.join(", ")
        };
        let of = |(graph, disks): (&Uuid, _)| format!("{} of {graph}", places(disks));
        let without = |graph: &Uuid| {
            let others = graphs.iter().filter(|(other, _)| *other != graph);
            let wipe = |n: &usize| format!("--wipe {}", self.disks[*n].name);
            let wipes: Vec<_> = others.flat_map(|(_, disks)| disks.iter().map(wipe)).collect();
            format!("{} for {}", wipes.join(" "), &graph.to_string()[..8])
        };
        let all: Vec<_> = graphs.iter().map(of).collect();
        let wipes: Vec<_> = graphs.keys().map(without).collect();
        let (count, all) = (graphs.len(), all.join("; "));
        error!(
            Reason::LabelForeign,
            "the disks belong to {count} graphs with the same name {:?}: {all}", self.graph
        )
        .next(format!(
            "name only the disks of one graph; or label the disks of the others anew, and lose \
             their data: {}",
            wipes.join(", or ")
        ))
    }

    /// Adds a finding for each two disks with the same label.
    fn once_each(&mut self, labels: &[(usize, &Label)]) {
        let mut seen: BTreeMap<Uuid, usize> = BTreeMap::new();
        for (n, label) in labels {
            let Some(first) = seen.insert(label.disk, *n) else { continue };
            let (one, two) = (&self.disks[first].place, &self.disks[*n].place);
            self.stops = true;
            self.findings.push(duplicate_of(one, two, &label.disk_name, self.graph));
        }
    }

    /// Returns the newest of `labels`. In a split brain, adds a finding and returns `None`.
    fn newest<'l>(&mut self, labels: &[(usize, &'l Label)]) -> Option<&'l Label> {
        let labels = || labels.iter().map(|(_, label)| *label);
        let newest = newest(labels())?;
        let Some(other) = split_brain(newest, labels()) else { return Some(newest) };
        self.stops = true;
        self.findings.push(split_brain_of(newest, other));
        None
    }

    fn by_label(&mut self, labels: &[(usize, &Label)], newest: &Label) {
        let remembered = match text::disks(&newest.spec) {
            Ok(remembered) => remembered,
            Err(error) => {
                let error = Error::because(Reason::LabelDamaged, error.to_string());
                return self.stop(Case::Damaged, error, &[]);
            }
        };
        self.binding.graph = Some(newest.graph);
        self.binding.epoch = newest.epoch;
        self.binding.spec.clone_from(&newest.spec);
        self.binding.past.clone_from(&newest.past);
        for (n, label) in labels {
            let known = remembered.iter().find(|(_, one)| one.disk == label.disk);
            match known {
                Some((name, _)) => self.found(*n, name),
                None => {
                    let DiskFacts { name, place, .. } = &self.disks[*n];
                    let words = format!(
                        "{place} was disk {:?} of this graph, but newer labels of the other disks \
                         do not list that disk",
                        label.disk_name
                    );
                    let next = format!("to add the disk as a new one, --wipe {name}");
                    let error = Error::because(Reason::LabelForeign, words).next(next).at(name);
                    self.stop(Case::Foreign, error, &[Waiver::Wipe]);
                }
            }
        }
        self.fresh(&remembered);
        self.kept(&remembered);
    }

    /// Matches the labelled disk with number `n` to `name`, the name that the newest label has for the disk.
    fn found(&mut self, n: usize, name: &str) {
        let DiskFacts { name: sought, place, .. } = &self.disks[n];
        if !self.disks.iter().any(|disk| disk.name == name) {
            let words = format!(
                "{place} is disk {name:?} of this graph, and the spec has no labelled disk of that name"
            );
            let next = format!("name the disk {name} again in the spec");
            let error = Error::because(Reason::LabelForgotten, words).next(next).at(sought);
            return self.stop(Case::Forgotten, error, &[]);
        }
        if sought != name {
            let notice = format!("note: {place} is disk {name} by its label, not {sought}");
            self.binding.notices.push(notice);
        }
        self.binding.disks.insert(name.to_owned(), Binding::Labelled(n));
    }

    /// Whether the contents of disk `n` permit a new label. `is_known` is set if labels of the graph name the disk.
    fn is_blank(&self, n: usize, is_known: bool) -> bool {
        let DiskFacts { name, content, .. } = &self.disks[n];
        match content {
            DiskContent::Blank | DiskContent::Holds(_) | DiskContent::Wrong(_) => true,
            DiskContent::Label(label, _) => {
                self.is_wiped(name) || label.provisioning && !self.binding.is_bound(n)
            }
            // A disk that labels of the graph name is created again only if the operator asks for that with `--wipe`.
            DiskContent::ToBeMade => !is_known || self.is_wiped(name),
            DiskContent::Missing(_) => false,
        }
    }

    /// Matches the disks of the spec that no label has matched: disks without a label yet, and disks that were not
    /// found. `remembered` has the disks that the newest label names.
    fn fresh(&mut self, remembered: &BTreeMap<String, Remembered>) {
        let all = self.disks;
        for (n, DiskFacts { name, place, content, .. }) in all.iter().enumerate() {
            if self.binding.disks.contains_key(name) {
                continue;
            }
            let known = remembered.get(name);
            let blank = self.is_blank(n, known.is_some());
            let known = known.filter(|_| !(blank && self.is_wiped(name)));
            let bound = match (known, content) {
                (None, DiskContent::Missing(why)) => {
                    self.stop(Case::Missing, why.clone(), &[]);
                    continue;
                }
                (Some(known), _) => {
                    if blank {
                        self.replaced(name, place);
                    }
                    Binding::Absent(*known)
                }
                (None, _) if blank => Binding::Fresh(n),
                (None, _) if is_judged(&self.findings, name) => continue,
                (None, _) => {
                    let words = format!("{place} has the label of another disk of this graph");
                    let error = Error::because(Reason::LabelForeign, words).at(name);
                    self.stop(Case::Foreign, error, &[Waiver::Wipe]);
                    continue;
                }
            };
            self.binding.disks.insert(name.clone(), bound);
        }
    }

    /// Adds the finding that a blank disk is at the path of a labelled disk.
    fn replaced(&mut self, name: &str, place: &str) {
        let words = format!("{place} is blank, but disk {name} of this graph has a label");
        let next = format!(
            "find the labelled disk with cairn import; if its label was lost, cairn repair {} \
             --disk {name}={place} --plan; or use the blank disk instead with --wipe {name}",
            self.graph
        );
        let error = Error::because(Reason::LabelMissing, words).next(next).at(name);
        let waived_by = &[Waiver::Degraded, Waiver::Wipe];
        self.findings.push(Finding::new(Case::Replaced, error, waived_by));
    }

    /// Adds a finding for each labelled disk that the newest label names and that the spec does not have.
    fn kept(&mut self, remembered: &BTreeMap<String, Remembered>) {
        if self.asked.changes {
            return;
        }
        for name in remembered.keys() {
            let is_named = self.disks.iter().any(|disk| disk.name == *name);
            let renamed = self.findings.iter().any(|it| it.case == Case::Forgotten);
            if !is_named && !renamed {
                let words = format!(
                    "{name} is a labelled disk of this graph by its labels, but the spec has no \
                     labelled disk of that name"
                );
                let error = Error::because(Reason::LabelForgotten, words)
                    .next("put the disk back into the spec");
                self.stop(Case::Forgotten, error, &[]);
            }
        }
    }
}
