//! The reasons for which a start would refuse to open a graph, found without starting it.

use block::{Error, ErrorKind, Found};
use kind::Maker;
use meta::Label;

use super::diagnosis;
use super::kept::{DiskLabel, found};
use super::probe::Probe;
use super::slot::state_of;
use crate::spec::{Planned, PlannedNode};

impl Probe {
    /// Returns all errors for which a start would refuse to open the graph `planned` on the probed disks: those about
    /// labels, and the objections of stateful devices.
    pub fn foreseen(&self, planned: &Planned) -> Vec<Error> {
        let refusals = self.refusals_of(planned);
        if refusals.iter().any(|refusal| refusal.kind() == ErrorKind::NotFound) {
            return refusals;
        }
        let objections = diagnosis::objections_of(self.bound(), planned);
        [refusals, self.refusing(objections)].concat()
    }

    /// Returns the errors of devices with objects that do not fit their states in labels. A start finds them before it
    /// writes a label: otherwise its spec would be there, and refuse the next start, too.
    pub(super) fn misfits(&self, planned: &Planned) -> Vec<Error> {
        let disks = self.bound();
        let is_stored = |name: &str| {
            let mut nodes = planned.nodes.iter().filter(|node| node.name == name);
            nodes.any(|node| matches!(node.kind.maker, Maker::Stored(_)))
        };
        let all = objections(planned, |disk| Some((disks.label(disk)?, true))).into_iter();
        all.filter(|(name, _)| is_stored(name)).map(|(name, error)| error.within(name)).collect()
    }
}

/// Returns for each device of a closed graph the reason why the device cannot be opened at all, or without an explicit
/// decision of the operator (`trust`, `--degraded`). `label` returns the label of a disk, and whether the data of the disk are
/// present.
pub fn objections<'p, 'l>(
    planned: &'p Planned,
    label: impl Fn(&str) -> Option<(&'l Label, bool)>,
) -> Vec<(&'p str, Error)> {
    let objection = |node: &'p PlannedNode| {
        if !node.kind.maker.keeps_state() {
            return None;
        }
        let beneath = |lower: &usize| {
            let disks = planned.disks_of(*lower).into_iter().map(|disk| &planned.nodes[disk]);
            let labels: Vec<_> = disks.map(|disk| (disk.labelled, label(&disk.name))).collect();
            let here = labels.iter().filter_map(|(_, label)| *label);
            let states = here.map(|(label, _)| label.cells.get(&node.name).map(state_of));
            let closed = |(labelled, label): &(bool, Option<(&Label, bool)>)| DiskLabel {
                labelled: *labelled,
                present: label.is_some_and(|(_, is_there)| is_there),
                clean: label.is_some_and(|(label, _)| label.holder.is_none()),
                fresh: label.is_some_and(|(label, _)| label.provisioning),
                ..DiskLabel::default()
            };
            found(&labels.iter().map(closed).collect::<Vec<_>>(), states.collect())
        };
        let found: Vec<Found> = node.lowers.iter().map(beneath).collect();
        // Other code reports missing disks.
        let why = match node.kind.maker {
            Maker::Stateful { preflight: Some(preflight), .. } => {
                preflight(&node.given, &node.info, &found, true).err()?
            }
            Maker::Stored(stored) if found.iter().all(|found| found.present) => {
                let lowers = node.lowers.iter().map(|lower| planned.nodes[*lower].info.clone());
                let lowers: Vec<_> = lowers.collect();
                stored.check_found(node.kind, &node.given, &lowers, &found).err()?
            }
            _ => return None,
        };
        Some((node.name.as_str(), why))
    };
    planned.nodes.iter().filter_map(objection).collect()
}
