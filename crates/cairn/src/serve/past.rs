//! The labels of a running graph: their check, and the undo of changes.

use std::collections::BTreeMap;
use std::rc::Rc;

use api::{Applied, Checked, ForgottenDisk, History, PastSpec, UndoRequest};
use doctor::{Labels, PAST_MAX, Past, Uuid, disks};
use graph::spec::{Forgotten, Known, Local, Spec};

use super::Serving;
use super::apply::here;
use crate::certificates;
use crate::exit::{Exit, Failure, Result};
use crate::registry::REGISTRY;
use crate::source::faulty;

impl Serving {
    /// Returns the earlier specs of the graph that its labels contain.
    ///
    /// # Errors
    /// `Unsupported` if the graph has no labelled disks.
    pub fn history(&self) -> Result<History> {
        let now = self.live.now();
        let labels = kept(now.labels.as_ref())?;
        let (change, text) = labels.open_spec();
        let read = |text: &str| Spec::parse(text, "label", &|_| None);
        let (mut after, mut text) = (read(text), text);
        let mut past = Vec::new();
        for one in labels.past() {
            // A move that was cancelled leaves two equal specs in a row.
            if std::mem::replace(&mut text, &one.spec) == one.spec {
                continue;
            }
            let spec = read(&one.spec);
            let then = after.since(&spec).into_iter();
            past.push(PastSpec {
                change: one.epoch,
                until_unix_s: one.until_unix_s,
                then: then.map(|(name, word)| format!("{name} {word}")).collect(),
                text: one.spec.clone(),
                forgotten: self.forgotten(one),
            });
            after = spec;
        }
        Ok(History { graph: now.planned.name.clone(), change, past })
    }

    /// Checks the labels of the graph. With `repair`, first rewrites labels that have one sound copy.
    ///
    /// # Errors
    /// `Unsupported` if the graph has no labelled disks; errors of the disks.
    pub async fn check(&self, repair: bool) -> Result<Checked> {
        // The graph must not change during the check.
        let _turn = self.turn().await?;
        let now = self.live.now();
        let labels = now.labels.as_ref().ok_or_else(|| {
            let why = "no disk of this graph has a label to check";
            Failure::new(Exit::Unsupported, why)
        })?;
        if repair {
            labels.renew().await?;
        }
        let checked = crate::labels::doctor(&self.env).check_open(labels).await;
        checked.map(|checked| checked.map(Into::into)).ok_or_else(|| {
            failure!(Damaged, "no disk of the graph can be read, or all are in provisioning")
        })
    }

    /// Changes the graph to an earlier spec from its labels; in a dry run, only returns the effects of the change.
    ///
    /// # Errors
    /// As [`Serving::apply`]; `NotFound` if the labels do not contain the requested spec, or the path of a disk is
    /// not known.
    pub async fn go_back(self: &Rc<Self>, request: UndoRequest) -> Result<Applied> {
        let turn = self.turn().await?;
        if !(request.disks.is_empty() && request.keys.is_empty() && request.options.is_empty()) {
            here(&request.way.directory, "paths")?;
        }
        if let [moving, ..] = &self.spec.borrow().moves(REGISTRY)[..] {
            return Err(failure!(InUse, "{} is migrated to {} now", moving.from, moving.to).next(
                format!("cairn job cancel {} moves them back; or wait, then undo", moving.name),
            ));
        }
        let UndoRequest { to, disks, keys, options, way } = request;
        let past = self.past(to)?;
        let local = Local { disks, keys, options };
        let spec = self.as_it_was(&past, &local);
        let mut spec = spec.map_err(|forgotten| nobody_knows(&past, &forgotten))?;
        if let Some(faults) = spec.faults() {
            return Err(faulty(&faults));
        }
        certificates::check(&self.env, &mut spec);
        let mut applied = self.become_or_move(&turn, spec, &way).await?;
        if !way.dry_run && self.record.is_none() && !applied.changes.is_empty() {
            let note = "note: the next start reads your spec file. Next: write the output of cairn \
                        show to that file";
            applied.notes.push(note.to_owned());
        }
        Ok(applied)
    }

    /// Returns the present spec and its disks, for a later undo.
    pub fn known(&self) -> Known {
        let now = self.live.now();
        let disks =
            now.labels.as_ref().map(|labels| uuids(labels.open_spec().1)).unwrap_or_default();
        Known { spec: self.spec.borrow().clone(), disks }
    }

    /// Stores the spec and the disks that the graph had before a change, for a later undo.
    pub fn remember(&self, known: Known) {
        let mut before = self.before.borrow_mut();
        before.insert(0, known);
        before.truncate(PAST_MAX);
    }

    fn past(&self, to: Option<u64>) -> Result<Past> {
        let now = self.live.now();
        let labels = kept(now.labels.as_ref())?;
        let (_, text) = labels.open_spec();
        let is_it = |past: &&Past| to.map_or(past.spec != text, |change| past.epoch == change);
        if let Some(past) = labels.past().iter().find(is_it) {
            return Ok(past.clone());
        }
        let name = &now.planned.name;
        let all: Vec<_> = labels.past().iter().map(|past| past.epoch.to_string()).collect();
        let why = match (to, &all[..]) {
            (_, []) => format!("the spec of {name} has not changed since the graph was created"),
            (Some(to), all) => {
                let all = all.join(", ");
                format!(
                    "{name} has no recorded change {to}; changes: {all}. Next: cairn undo --list"
                )
            }
            (None, _) => format!("{name} has no earlier spec"),
        };
        Err(Failure::new(Exit::NotFound, why))
    }

    fn as_it_was(&self, past: &Past, local: &Local) -> Result<Spec, Vec<Forgotten>> {
        let known: Vec<_> =
            [self.known()].into_iter().chain(self.before.borrow().iter().cloned()).collect();
        let names: Vec<_> = known[0].disks.keys().map(String::as_str).collect();
        let file = format!("change {} in the labels of {}", past.epoch, names.join(", "));
        Spec::back_to(&past.spec, &file, &uuids(&past.spec), &known, local, REGISTRY)
    }

    fn forgotten(&self, past: &Past) -> Vec<ForgottenDisk> {
        let forgotten = self.as_it_was(past, &Local::default()).err().unwrap_or_default();
        let disks = forgotten.into_iter().filter_map(|forgotten| match forgotten {
            Forgotten::Disk(name, Some(uuid)) => {
                Some(ForgottenDisk { name, uuid: uuid.to_string() })
            }
            Forgotten::Disk(_, None) | Forgotten::Key(_) | Forgotten::Option(..) => None,
        });
        disks.collect()
    }
}

/// Returns the uuids of the labelled disks in the text of a spec from a label. Empty for a text that cannot be read;
/// another check reports the fault.
fn uuids(text: &str) -> BTreeMap<String, Uuid> {
    let disks = disks(text).unwrap_or_default().into_iter();
    disks.map(|(name, known)| (name, known.disk)).collect()
}

fn kept(labels: Option<&Labels>) -> Result<&Labels> {
    labels.ok_or_else(|| {
        let why = "no earlier spec is recorded: the graph has no labelled disks";
        Failure::new(Exit::Unsupported, why).next("cairn apply with the earlier spec")
    })
}

fn nobody_knows(past: &Past, forgotten: &[Forgotten]) -> Failure {
    let change = past.epoch;
    let line = |forgotten: &Forgotten| match forgotten {
        Forgotten::Disk(name, uuid) => {
            let uuid = uuid.map(|uuid| format!(" (uuid {uuid})")).unwrap_or_default();
            format!(
                "disk {name:?} of change {change}{uuid} is not found. Next: --disk {name}=PATH|URI"
            )
        }
        Forgotten::Key(name) => format!(
            "the source of the key of {name} is not recorded. Next: --key {name}=file:PATH or \
             credential:NAME"
        ),
        Forgotten::Option(name, option) => {
            format!("labels do not hold {option} of {name}. Next: --set {name}.{option}=VALUE")
        }
    };
    let lines: Vec<_> = forgotten.iter().map(line).collect();
    Failure::new(Exit::NotFound, lines.join("\nerror: "))
}
