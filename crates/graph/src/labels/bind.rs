//! Which disk is which: by what their labels say, not by where they were found. Pure: what was seen
//! goes in, what to do comes out, or everything that keeps the graph from being opened.

use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Error, Reason};
use meta::{Label, Machine, Past, Uuid, Wrong};

use super::Opening;
use super::diagnosis::Sight;
use super::text::{self, Remembered};

/// What was seen where the spec says that a disk is.
pub struct Sighting {
    /// The disk's name in the spec.
    pub name: String,
    /// Where that is, for people: a path.
    pub place: String,
    /// What is there.
    pub sight: Sight,
}

/// What a disk of the spec turned out to be. Numbers are those of the sightings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bound {
    /// It has its label.
    Labelled(usize),
    /// It is to be labelled.
    Fresh(usize),
    /// The graph remembers it, and it is not there.
    Absent(Remembered),
}

/// Which disk is which.
#[derive(Debug, Default)]
pub struct Binding {
    /// By the names in the spec.
    pub disks: BTreeMap<String, Bound>,
    /// The graph, if there is one already.
    pub graph: Option<Uuid>,
    /// Its epoch, and the spec of that epoch.
    pub epoch: u64,
    /// See `epoch`.
    pub spec: String,
    /// The specs before it, the newest first.
    pub past: Rc<[Past]>,
    /// What is worth knowing.
    pub notices: Vec<String>,
}

/// Decides which disk is which for the graph called `graph`.
///
/// # Errors
/// Everything that keeps the graph from being opened.
pub fn bind(graph: &str, sightings: &[Sighting], opening: &Opening) -> Result<Binding, Vec<Error>> {
    let mut binder =
        Binder { graph, sightings, opening, refusals: Vec::new(), binding: Binding::default() };
    binder.each();
    let labels = binder.labels();
    binder.of_one_graph(&labels);
    if let (true, Some(newest)) = (binder.refusals.is_empty(), binder.newest(&labels)) {
        binder.by_label(&labels, newest);
    } else if binder.refusals.is_empty() {
        binder.fresh(&BTreeMap::new());
    }
    match binder.refusals.is_empty() {
        true => Ok(binder.binding),
        false => Err(binder.refusals),
    }
}

struct Binder<'b> {
    graph: &'b str,
    sightings: &'b [Sighting],
    opening: &'b Opening,
    refusals: Vec<Error>,
    binding: Binding,
}

impl<'b> Binder<'b> {
    fn refuse(&mut self, error: Error) {
        self.refusals.push(error);
    }

    fn is_wiped(&self, name: &str) -> bool {
        self.opening.wipe.iter().any(|wiped| wiped == name)
    }

    /// What can be said of each disk by itself.
    fn each(&mut self) {
        for wiped in &self.opening.wipe {
            if !self.sightings.iter().any(|sighting| sighting.name == *wiped) {
                let words = format!("--wipe {wiped}: the spec has no labelled disk of that name");
                self.refuse(Error::because(Reason::LabelUsage, words));
            }
        }
        for Sighting { name, place, sight } in self.sightings {
            match sight {
                _ if self.is_wiped(name) => {}
                Sight::Holds(what) => {
                    let words = format!("{place} HOLDS {what}; refused without --wipe {name}");
                    self.refuse(Error::because(Reason::LabelNotBlank, words).at(name));
                }
                Sight::Wrong(wrong @ (Wrong::Version(_) | Wrong::Features(_))) => {
                    let words = format!("{place} has {wrong}");
                    self.refuse(
                        Error::because(Reason::LabelNewer, words)
                            .next("use a newer version of Cairn")
                            .at(name),
                    );
                }
                Sight::Wrong(wrong) => {
                    let words = format!("{place} has {wrong}");
                    self.refuse(Error::because(Reason::LabelDamaged, words).next(format!("cairn repair {} --disk {name}={place} --plan; or if another disk has what \
                         this one had, or it never served, label it anew with --wipe {name}", self.graph)).at(name));
                }
                Sight::Missing(_) | Sight::ToBeMade | Sight::Blank | Sight::Label(..) => {}
            }
        }
    }

    /// The labels that count, with the numbers of their sightings. Nothing was served yet from a disk that is
    /// being made; but if the others say already that it is of this graph, they cannot do without it.
    fn labels(&self) -> Vec<(usize, &'b Label)> {
        let sightings = self.sightings.iter().enumerate();
        let labels = sightings.filter(|(_, sighting)| !self.is_wiped(&sighting.name));
        let labels = labels.filter_map(|(n, sighting)| match &sighting.sight {
            Sight::Label(label, _) => Some((n, &**label)),
            _ => None,
        });
        let (provisioning, mut counting): (Vec<_>, Vec<_>) =
            labels.partition(|(_, label)| label.provisioning);
        let newest = counting.iter().map(|(_, label)| *label).max_by_key(|label| label.epoch);
        let told = newest.and_then(|newest| Some((newest.graph, text::disks(&newest.spec).ok()?)));
        if let Some((graph, disks)) = told {
            let is_told = |label: &Label| {
                label.graph == graph && disks.values().any(|known| known.disk == label.disk)
            };
            counting.extend(provisioning.into_iter().filter(|(_, label)| is_told(label)));
        }
        counting.sort_by_key(|(n, _)| *n);
        counting
    }

    /// All belong to this graph, each once, and nobody else has them open.
    fn of_one_graph(&mut self, labels: &[(usize, &Label)]) {
        let mut graphs: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        for (n, label) in labels {
            let Sighting { name, place, .. } = &self.sightings[*n];
            let theirs = &label.graph_name;
            if *theirs != self.graph {
                let words = format!(
                    "{place} is disk {:?} of the graph {theirs:?}, and this is {:?}",
                    label.disk_name, self.graph
                );
                self.refuse(
                    Error::because(Reason::LabelForeign, words)
                        .next(format!("name another, or --wipe {name}"))
                        .at(name),
                );
                continue;
            }
            graphs.entry(label.graph).or_default().push(*n);
            if label.unknown_read_only != 0 {
                let bits = label.unknown_read_only;
                let words = format!(
                    "{place} has a label that this version of Cairn must not write (features \
                         {bits:#x})"
                );
                self.refuse(
                    Error::because(Reason::LabelNewer, words).next("use a newer version").at(name),
                );
            }
            self.of_one_machine(name, place, label);
        }
        if graphs.len() > 1 {
            self.refuse(self.of_several(&graphs));
        }
        self.once_each(labels);
    }

    /// Disks of several graphs of one name: which are of which, and what it takes to have one of them.
    fn of_several(&self, graphs: &BTreeMap<Uuid, Vec<usize>>) -> Error {
        let places = |disks: &Vec<usize>| {
            let places: Vec<_> = disks.iter().map(|n| &*self.sightings[*n].place).collect();
            places.join(", ")
        };
        let of = |(graph, disks): (&Uuid, _)| format!("{} of {graph}", places(disks));
        let without = |graph: &Uuid| {
            let others = graphs.iter().filter(|(other, _)| *other != graph);
            let wipe = |n: &usize| format!("--wipe {}", self.sightings[*n].name);
            let wipes: Vec<_> = others.flat_map(|(_, disks)| disks.iter().map(wipe)).collect();
            format!("{} for {}", wipes.join(" "), &graph.to_string()[..8])
        };
        let all: Vec<_> = graphs.iter().map(of).collect();
        let wipes: Vec<_> = graphs.keys().map(without).collect();
        let (count, all) = (graphs.len(), all.join("; "));
        let words =
            format!("these disks are of {count} graphs, all called {:?}: {all}", self.graph);
        Error::because(Reason::LabelForeign, words).next(format!(
            "name the disks of one; or take in those of the others as new ones, and lose \
                         what they hold: {}",
            wipes.join(", or ")
        ))
    }

    fn of_one_machine(&mut self, name: &str, place: &str, label: &Label) {
        let ours = |machine: &Machine| machine.id == self.opening.machine.id;
        let Some(other) = label.holder.as_ref().filter(|machine| !ours(machine)) else { return };
        if !self.opening.take {
            let words = format!("{place} is open on the machine {other}");
            self.refuse(
                Error::because(Reason::LabelHeldByOtherHost, words)
                    .next("stop it there; if that machine is gone for good, --take")
                    .at(name),
            );
        }
    }

    /// Two disks with one label: one of them is a copy, and nobody knows which.
    fn once_each(&mut self, labels: &[(usize, &Label)]) {
        let mut seen: BTreeMap<Uuid, usize> = BTreeMap::new();
        for (n, label) in labels {
            let Some(first) = seen.insert(label.disk, *n) else { continue };
            let (one, two) = (&self.sightings[first].place, &self.sightings[*n].place);
            let words = format!(
                "{one} and {two} are both disk {:?} of {:?}: one is a copy of the other",
                label.disk_name, self.graph
            );
            self.refuse(Error::because(Reason::LabelDuplicate, words).next("take one away"));
        }
    }

    /// The label whose spec counts.
    fn newest<'l>(&mut self, labels: &[(usize, &'l Label)]) -> Option<&'l Label> {
        let newest = labels.iter().map(|(_, label)| *label).max_by_key(|label| label.epoch)?;
        // Those of another graph never were of one with it.
        let differs = labels.iter().find(|(_, label)| {
            let is_same = label.graph == newest.graph && label.epoch == newest.epoch;
            is_same && label.spec != newest.spec
        });
        if let Some((_, other)) = differs {
            let (one, two) = (&newest.disk_name, &other.disk_name);
            let words = format!(
                "{one:?} and {two:?} were opened apart, and each says something else of the \
                         graph since"
            );
            let error = Error::because(Reason::LabelSplitBrain, words);
            self.refuse(error.next("leave one of them away, and --degraded"));
            return None;
        }
        Some(newest)
    }

    fn by_label(&mut self, labels: &[(usize, &Label)], newest: &Label) {
        let remembered = match text::disks(&newest.spec) {
            Ok(remembered) => remembered,
            Err(error) => {
                return self.refuse(Error::because(Reason::LabelDamaged, error.to_string()));
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
                    let Sighting { name, place, .. } = &self.sightings[*n];
                    let words = format!(
                        "{place} was disk {:?} of this graph, and is not any more: its other disks say \
                         so",
                        label.disk_name
                    );
                    self.refuse(
                        Error::because(Reason::LabelForeign, words)
                            .next(format!("to take it in as a new one, --wipe {name}"))
                            .at(name),
                    );
                }
            }
        }
        self.fresh(&remembered);
        self.kept(&remembered);
    }

    /// A labelled disk has its name from the newest label.
    fn found(&mut self, n: usize, name: &str) {
        let Sighting { name: sought, place, .. } = &self.sightings[n];
        if !self.sightings.iter().any(|sighting| sighting.name == name) {
            let words = format!(
                "{place} is disk {name:?} of this graph, and the spec has no labelled disk of \
                         that name"
            );
            return self.refuse(
                Error::because(Reason::LabelForgotten, words)
                    .next(format!("call it {name} again"))
                    .at(sought),
            );
        }
        if sought != name {
            let notice = format!("note: {place} is {name}, by its label; the spec says {sought}");
            self.binding.notices.push(notice);
        }
        self.binding.disks.insert(name.to_owned(), Bound::Labelled(n));
    }

    /// Whether what was seen there is a disk already, perhaps one of another name.
    fn is_bound(&self, n: usize) -> bool {
        self.binding.disks.values().any(|bound| *bound == Bound::Labelled(n))
    }

    /// The disks of the spec that have no label yet, or are not there.
    fn fresh(&mut self, remembered: &BTreeMap<String, Remembered>) {
        for (n, Sighting { name, place, sight }) in self.sightings.iter().enumerate() {
            if self.binding.disks.contains_key(name) {
                continue;
            }
            let known = remembered.get(name);
            let blank = match sight {
                Sight::Blank | Sight::Holds(_) | Sight::Wrong(_) => true,
                Sight::Label(label, _) => {
                    self.is_wiped(name) || label.provisioning && !self.is_bound(n)
                }
                // What the graph remembers is not made anew unasked.
                Sight::ToBeMade => known.is_none() || self.is_wiped(name),
                Sight::Missing(_) => false,
            };
            let known = known.filter(|_| !(blank && self.is_wiped(name)));
            let bound = match (known, sight) {
                (None, Sight::Missing(why)) => {
                    self.refuse(why.clone());
                    continue;
                }
                (Some(_), _) if blank && !self.opening.degraded => {
                    let words = format!("{place} is blank, and {name} of this graph has a label");
                    self.refuse(Error::because(Reason::LabelMissing, words).next(format!("find that disk, cairn import lists those with a label; if this is it, cairn \
                         repair {} --disk {name}={place} --plan; or take it in its place with --wipe \
                         {name}", self.graph)).at(name));
                    continue;
                }
                (None, _) if blank => Bound::Fresh(n),
                (Some(known), _) => Bound::Absent(*known),
                // It was told what it is.
                (None, _) if self.refusals.iter().any(|it| it.place() == Some(name)) => {
                    continue;
                }
                (None, _) => {
                    let words = format!("{place} is another disk of this graph, by its label");
                    self.refuse(Error::because(Reason::LabelForeign, words).at(name));
                    continue;
                }
            };
            self.binding.disks.insert(name.clone(), bound);
        }
    }

    /// Every disk that the labels name is in the spec.
    fn kept(&mut self, remembered: &BTreeMap<String, Remembered>) {
        if self.opening.changes {
            return;
        }
        for name in remembered.keys() {
            let is_named = self.sightings.iter().any(|sighting| sighting.name == *name);
            let renamed =
                self.refusals.iter().any(|it| it.reason() == Some(Reason::LabelForgotten));
            if !is_named && !renamed {
                let words = format!(
                    "{name} is a disk of this graph, its labels say, and the spec does not name it \
                         as a labelled one"
                );
                self.refuse(Error::because(Reason::LabelForgotten, words).next("put it back"));
            }
        }
    }
}

#[cfg(test)]
#[path = "bind_tests.rs"]
mod tests;
