//! Graphs that were found on disks, as their labels describe them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use block::{Error, ErrorKind, Reason, Result, bail};
use graph::labels::{Opening, Probe, Remembered, disks, duplicate_of, newest};
use graph::spec::{Local, Spec};
use kind::Registry;
use meta::Uuid;
use serde::Serialize;

use crate::directory::graph_of;
use crate::scan::{self, FoundLabel, Skipped};
use crate::{Doctor, Places, name_of};

/// A graph that was found on disks, as their labels describe it.
#[derive(Serialize)]
pub struct FoundGraph {
    /// Name of the graph.
    pub name: String,
    /// Uuid of the graph.
    pub uuid: String,
    /// Epoch of the newest label of the graph.
    pub epoch: u64,
    /// Name of the machine that has the graph open, or that did not close it. If labels name several, one that is not
    /// this machine.
    pub open_on: Option<String>,
    /// Whether a label names another machine that has the graph open, so that a start needs `--take`.
    #[serde(skip)]
    pub needs_take: bool,
    /// Time of the last write of the newest label, in seconds since 1970.
    pub written_unix_s: u64,
    /// The disks of the graph that were found.
    pub disks: Vec<FoundDisk>,
    /// Names of the labelled disks of the graph that were not found, but that the newest label names.
    pub missing: Vec<String>,
    /// Names of the disks of the graph that have no label, so that no scan can find them.
    pub unlabelled: Vec<String>,
    /// Names of the devices that cannot open without a key.
    pub keys: Vec<String>,
    /// Required options of devices that labels do not contain, as `DEVICE.OPTION`.
    pub options: Vec<String>,
    /// The reasons for which a start of the graph would be refused even with `--degraded` and `--take`.
    pub refused: Vec<String>,
    /// The spec in the newest label of the graph.
    #[serde(skip)]
    pub text: String,
    /// The name of the newest label in messages.
    #[serde(skip)]
    file: String,
}

/// A disk of a found graph.
#[derive(Serialize)]
pub struct FoundDisk {
    /// Name of the disk in its graph.
    pub name: String,
    /// Path of the disk.
    pub path: PathBuf,
    /// Epoch of the label of the disk.
    pub epoch: u64,
    /// The error of opening the disk, if another process has the disk open.
    #[serde(serialize_with = "as_text_if_any")]
    pub in_use: Option<Error>,
}

fn as_text_if_any<S: serde::Serializer>(error: &Option<Error>, to: S) -> Result<S::Ok, S::Error> {
    match error {
        Some(error) => scan::as_text(error, to),
        None => to.serialize_none(),
    }
}

/// A label that was found, and the error of opening its disk if another process has the disk open.
type LabelOnDisk = (FoundLabel, Option<Error>);

/// Returns the graphs to which the found `labels` and those of the `skipped` disks belong, each described by its newest
/// label.
pub fn graphs(doctor: &Doctor, labels: Vec<FoundLabel>, skipped: &[Skipped]) -> Vec<FoundGraph> {
    let free = labels.into_iter().map(|found| (found, None));
    let in_use = skipped.iter().filter_map(|Skipped { path, why, label }| {
        let (path, label) = (PathBuf::from(path), label.clone()?);
        Some((FoundLabel { path, label }, Some(why.clone())))
    });
    let mut by_graph: BTreeMap<_, Vec<LabelOnDisk>> = BTreeMap::new();
    for found in free.chain(in_use) {
        by_graph.entry(graph_of(&found.0.label)).or_default().push(found);
    }
    let graphs = by_graph.into_iter();
    graphs.filter_map(|((name, uuid), labels)| graph(doctor, name, uuid, &labels)).collect()
}

/// Returns the graph `name` with these labels. `None` if all of its disks are still being provisioned.
fn graph(doctor: &Doctor, name: String, uuid: Uuid, labels: &[LabelOnDisk]) -> Option<FoundGraph> {
    let registry = doctor.registry;
    let newest = newest(labels.iter().map(|(found, _)| &found.label))?;
    let (on, _) = labels.iter().find(|(found, _)| std::ptr::eq(&found.label, newest))?;
    let file = format!("{} ({})", name_of(newest), on.path.display());
    // A start reports a spec that cannot be read.
    let named: BTreeMap<String, Remembered> = disks(&newest.spec).unwrap_or_default();
    let disk = |(FoundLabel { path, label }, in_use): &LabelOnDisk| {
        let (name, _) = named.iter().find(|(_, known)| known.disk == label.disk)?;
        let (name, path, epoch) = (name.clone(), path.clone(), label.epoch);
        Some(FoundDisk { name, path, epoch, in_use: in_use.clone() })
    };
    let mut found: Vec<FoundDisk> = labels.iter().filter_map(disk).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let is_missing = |name: &&String| found.iter().all(|disk| disk.name != **name);
    let missing = named.keys().filter(is_missing).cloned().collect();
    let spec = Spec::of_label(&newest.spec, &file, &name, registry, &Local::default());
    let text = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    let as_written = Spec::parse(&newest.spec, &name, &|_| None);
    let mut holders = labels.iter().filter_map(|(found, _)| found.label.holder.as_ref());
    let other = holders.clone().find(|holder| holder.id != doctor.machine.id);
    Some(FoundGraph {
        uuid: uuid.to_string(),
        epoch: newest.epoch,
        open_on: other.or_else(|| holders.next()).map(|machine| machine.host.clone()),
        needs_take: other.is_some(),
        written_unix_s: newest.written_unix_s,
        disks: found,
        missing,
        unlabelled: text(as_written.unlabelled()),
        keys: text(spec.keyed(registry)),
        options: needed(&spec, registry),
        refused: Vec::new(),
        text: newest.spec.clone(),
        file,
        name,
    })
}

/// Returns the required options of devices that the spec does not set, as `DEVICE.OPTION`.
fn needed(spec: &Spec, registry: Registry) -> Vec<String> {
    let options = spec.local_options(registry).into_iter();
    let needed = options.filter(|(_, option, is_set)| option.required && !is_set);
    needed.map(|(device, option, _)| format!("{device}.{}", option.name)).collect()
}

impl FoundGraph {
    /// Returns the spec in the newest label of the graph, completed with the settings `local` of this machine.
    pub fn spec(&self, registry: Registry, local: &Local) -> Spec {
        Spec::of_label(&self.text, &self.file, &self.name, registry, local)
    }

    /// Checks that `local` sets all required options that labels do not contain, and no options that labels contain.
    ///
    /// # Errors
    /// `Invalid` for an option that labels contain, or for a required option that is not set.
    pub fn check_options(&self, registry: Registry, local: &Local) -> Result<()> {
        let spec = self.spec(registry, local);
        let set = local.options.iter();
        for (device, option) in set.flat_map(|(device, of)| of.keys().map(move |key| (device, key)))
        {
            if !spec.has_local_option(device, option, registry) {
                bail!(Invalid, "--set {device}.{option}: {} has no such option to set", self.name);
            }
        }
        let Some(option) = needed(&spec, registry).into_iter().next() else { return Ok(()) };
        let why = format!("{option} of {} depends on the machine, so no label has it", self.name);
        Err(Error::new(ErrorKind::Invalid, why).next(format!("--set {option}=VALUE")))
    }

    /// Returns the kinds and paths of the found disks of the graph, except the disks whose paths `said` has.
    ///
    /// # Errors
    /// `InUse` if another process has one of these disks open; an error if two of them have the same label.
    pub fn places(&self, said: &[(String, String)]) -> Result<Places, Vec<Error>> {
        let is_said = |disk: &FoundDisk| said.iter().any(|(name, _)| *name == disk.name);
        let unsaid = self.disks.iter().filter(|disk| !is_said(disk));
        let in_use: Vec<_> = unsaid.clone().filter_map(|disk| disk.in_use.as_ref()).collect();
        if !in_use.is_empty() {
            return Err(in_use.into_iter().cloned().collect());
        }
        let mut places = Places::new();
        for FoundDisk { name, path, .. } in unsaid {
            let Some((_, first)) = places.insert(name.clone(), scan::place(path)) else { continue };
            let second = path.display().to_string();
            let error = duplicate_of(&first, &second, name, &self.name).error;
            return Err(vec![error.next(format!("choose one of them with --disk {name}=PATH"))]);
        }
        Ok(places)
    }

    /// Returns the reasons for which a start of the graph would be refused even with `--degraded` and `--take`. Opens
    /// the disks read-only.
    pub async fn refusals(&self, doctor: &Doctor) -> Vec<String> {
        let (env, registry) = (&doctor.env, doctor.registry);
        if let Some(faults) = self.spec(registry, &Local::default()).faults() {
            return vec![faults.to_string()];
        }
        let disks = match self.places(&[]) {
            Ok(disks) => disks,
            Err(errors) => return errors.iter().map(Error::to_string).collect(),
        };
        if !self.unlabelled.is_empty() || !self.options.is_empty() {
            // The graph cannot be planned before these settings are known.
            return Vec::new();
        }
        let local = Local { disks, ..Local::default() };
        let spec = self.spec(registry, &local);
        let engine = doctor.engine();
        let opening = Opening { take: true, ..doctor.opening() };
        let probe = doctor.probe(&spec, &engine, opening, true, None).await;
        let probed = probe.as_ref().map(Probe::facts).unwrap_or_default();
        let planned = spec.plan_over(registry, env, &probed).await;
        let refusals = match (probe, planned) {
            (Some(probe), _) if !probe.refusals().is_empty() => Ok(probe.refusals().to_vec()),
            (Some(probe), Ok(planned)) => Ok(probe.foreseen(&planned)),
            (None, Ok(_)) => Ok(Vec::new()),
            (_, Err(faults)) => Err(faults.to_string()),
        };
        engine.abandon();
        let helped = |refusal: &&Error| refusal.reason() != Some(Reason::LabelDegraded);
        match refusals {
            Ok(refusals) => refusals.iter().filter(helped).map(Error::to_string).collect(),
            Err(why) => vec![why],
        }
    }
}
