//! Checks of the object stores of a stopped graph: makes its devices over disks that are opened read-only, and returns
//! the damage that the devices report.

use std::collections::BTreeMap;
use std::path::PathBuf;

use block::control::Nothing;
use block::control::state::{Check, Checked};
use block::{Error, ErrorKind, Health};
use engine::Engine;
use graph::Graph;
use graph::labels::{Labels, Opening, Probe};
use graph::spec::{Faults, Planned, Role, Spec};
use meta::Label;

use crate::check::ephemeral;
use crate::scan::place;
use crate::{Doctor, Finding, Sort, Soundness, name_of};

/// Maximum number of damaged objects that are reported for one device; further ones are counted.
const TOLD_MAX: usize = 16;

/// The report of an opened device about its object store, or the error of opening the device.
type Answer = block::Result<Checked>;

/// Checks the object stores on the disks of a stopped graph. Writes nothing. `places` are the paths of the disks, by
/// name.
pub async fn check(
    doctor: &Doctor,
    newest: &Label,
    planned: &Planned,
    places: &BTreeMap<String, PathBuf>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let spec = Spec::parse(&newest.spec, &newest.graph_name, &|_| None);
    let keyed = spec.keyed(doctor.registry).into_iter().map(|name| (name, "a key"));
    let local = spec.local_options(doctor.registry).into_iter();
    let local = local.filter(|(_, option, _)| option.required);
    // Devices that cannot open without a setting that labels do not contain, such as a key: by name, with the setting.
    let locked: BTreeMap<_, _> =
        keyed.chain(local.map(|(name, option, _)| (name, option.name))).collect();
    for node in planned.nodes.iter().filter(|node| node.kind.answers_check()) {
        let beneath = planned.down_from(&node.name);
        let disks = beneath.nodes.iter().filter(|node| node.role == Role::Disk);
        let missing =
            disks.map(|disk| disk.name.as_str()).filter(|disk| !places.contains_key(*disk));
        if planned.is_lost(&node.name, &missing.collect::<Vec<_>>()) {
            // The check has a finding about the missing disk already.
            continue;
        }
        let mut names = beneath.nodes.iter().map(|node| node.name.as_str());
        // The check of the labels has found out already whether any other device opens.
        let must_open = node.kind.keeps_objects();
        if let Some((on, lacks)) = names.find_map(|name| locked.get_key_value(name)) {
            if !must_open {
                continue;
            }
            let words = format!("the state is on {on}, and was not checked without {lacks}");
            let why = Error::new(ErrorKind::Denied, words);
            found.push(finding(&node.name, Sort::Unchecked, Soundness::Sound, &why));
            continue;
        }
        let engine = doctor.engine();
        let asked = ask(doctor, &engine, newest, &node.name, places).await;
        engine.abandon();
        if !must_open && !matches!(asked, Ok(Ok(_))) {
            continue;
        }
        let absent = planned.nodes.iter().filter(|node| node.role == Role::Disk);
        let absent =
            absent.map(|disk| disk.name.as_str()).filter(|disk| !places.contains_key(*disk));
        let without: Vec<_> = absent.chain([node.name.as_str()]).collect();
        let spares = planned.only_on(&without).is_empty();
        found.extend(findings_of(&node.name, spares, asked));
    }
    found
}

/// Opens the device `device` of a graph, and returns its report about its object store, or the error of opening it.
///
/// # Errors
/// If its disks cannot be opened, so that the state of the object store is unknown.
async fn ask(
    doctor: &Doctor,
    engine: &Engine,
    newest: &Label,
    device: &str,
    places: &BTreeMap<String, PathBuf>,
) -> Result<Answer, Vec<Error>> {
    let (planned, labels) = open(doctor, engine, newest, device, places).await?;
    let graph = match Graph::build_on(&planned, Some(&labels), engine, &doctor.env).await {
        Ok(graph) => graph,
        Err(error) => return Ok(Err(error)),
    };
    let member = graph.member(device).expect("the planned graph has the device");
    Ok(graph.ask::<Check>(member, Nothing {}).await)
}

/// Plans the part of the graph below `device`, and opens its disks read-only, so that no device writes to them.
async fn open(
    doctor: &Doctor,
    engine: &Engine,
    newest: &Label,
    device: &str,
    places: &BTreeMap<String, PathBuf>,
) -> Result<(Planned, Labels), Vec<Error>> {
    let here = places.iter().map(|(name, path)| (name.clone(), place(path)));
    let (registry, env) = (doctor.registry, &doctor.env);
    let mut local = ephemeral(doctor, newest);
    local.disks.extend(here);
    let spec = Spec::of_label(&newest.spec, &name_of(newest), &newest.graph_name, registry, &local);
    let opening = Opening { degraded: true, take: true, changes: true, ..doctor.opening() };
    let probe = Probe::take(&spec, registry, env, engine, opening, true, None).await;
    if !probe.refusals().is_empty() {
        return Err(probe.refusals().to_vec());
    }
    let planned = spec.plan_over(registry, env, &probe.facts()).await;
    let faulty = |faults: Faults| vec![Error::new(ErrorKind::Invalid, faults.to_string())];
    let mut planned = planned.map_err(faulty)?.down_from(device);
    planned.refuse_all_writes();
    let labels = probe.begin(&planned).await?;
    Ok((planned, labels))
}

/// Returns the findings about the object store of a device. `spares`: whether the devices above have all bytes without it.
fn findings_of(device: &str, spares: bool, asked: Result<Answer, Vec<Error>>) -> Vec<Finding> {
    let unseen = |why: &Error| {
        let why = why.clone().message_after("the state of the device was not checked");
        finding(device, Sort::Unchecked, Soundness::Sound, &why)
    };
    match asked {
        Err(refusals) => refusals.iter().map(unseen).collect(),
        // The device wanted to create its object store, so it never had one.
        Ok(Err(error)) if error.kind() == ErrorKind::ReadOnly => Vec::new(),
        // The device does not open without a missing disk unless the operator decides so.
        Ok(Err(error)) if error.kind() == ErrorKind::Degraded => vec![unseen(&error)],
        Ok(Err(error)) if spares => {
            let why = error.message_after("the device cannot be opened; others have all its bytes");
            let next =
                format!("start with --degraded, and then cairn device replace {device} PATH");
            vec![finding(device, Sort::DamagedObjects, Soundness::Repairable, &why.next(next))]
        }
        Ok(Err(error)) => {
            let why = error.message_after("the state of the device cannot be opened");
            vec![finding(device, Sort::DamagedObjects, Soundness::Damaged, &why)]
        }
        Ok(Ok(report)) => wrong(device, &report),
    }
}

/// Returns the first findings of a report about an object store, and one finding with the number of the others.
fn wrong(device: &str, report: &Checked) -> Vec<Finding> {
    let soundness = match report.health {
        Health::Ok | Health::Limited => return Vec::new(),
        Health::Degraded => Soundness::Repairable,
        Health::Failed => Soundness::Damaged,
    };
    let told = report.wrong.iter().take(TOLD_MAX).cloned();
    let more = report.wrong.len().saturating_sub(TOLD_MAX);
    let more = (more > 0).then(|| format!("and {more} more of {}", report.summary));
    let all = told.chain(more).map(|words| Error::new(ErrorKind::Corrupt, words));
    all.map(|why| finding(device, Sort::DamagedObjects, soundness, &why)).collect()
}

fn finding(device: &str, sort: Sort, soundness: Soundness, why: &Error) -> Finding {
    let next = why.next_step().unwrap_or(match soundness {
        Soundness::Sound | Soundness::InUse => "",
        Soundness::Repairable => "serve the graph: that repairs the state",
        Soundness::Damaged => "restore the disks from a backup",
    });
    Finding::note(sort, soundness, Some(device), why.message().to_owned()).next(next)
}
