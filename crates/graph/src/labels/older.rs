//! Disks that are as they were at an earlier time: the others were in use since, without them.

use std::collections::BTreeSet;

use block::seeded::{self, Bug};
use block::{Error, Reason};
use meta::{Label, Uuid};

use super::bind::Bound;
use super::survey::Survey;
use crate::spec::Planned;

impl Survey {
    /// Disks that are as they were at an earlier time, with data that are on no other: with them, exports would show
    /// bytes of different times.
    pub(super) fn older(&self, planned: &Planned) -> Vec<Error> {
        let names = self.names_of_older();
        let lost = planned.lost_without(&names).join(", ");
        if lost.is_empty() {
            return Vec::new();
        }
        let refusal = |name: &&str| {
            let graph = &planned.name;
            let words = format!(
                "is older than the other disks of {graph:?}: they were in use since, without \
                         it, and {lost} would show bytes of different times"
            );
            Error::because(Reason::LabelStale, words)
                .next(format!(
                    "bring back the disk as it was last; or if its bytes are meant, from a backup: \
                         cairn repair {graph} --disk {name}=PATH --trust {name} --plan"
                ))
                .at(name)
        };
        names.iter().map(refusal).collect()
    }

    /// See [`older`].
    pub(super) fn names_of_older(&self) -> Vec<&str> {
        let older = older(self.labels());
        let is_older = |bound: &Bound| match bound {
            Bound::Labelled(n) => self.label(*n).is_some_and(|label| older.contains(&label.disk)),
            Bound::Fresh(_) | Bound::Absent(_) => false,
        };
        let bound = self.binding.disks.iter().filter(|(_, bound)| is_older(bound));
        bound.map(|(name, _)| name.as_str()).collect()
    }
}

/// The disks that are older than others: these were told of a round of which all were told, and that they know
/// nothing of.
pub fn older<'l>(labels: impl Iterator<Item = &'l Label> + Clone) -> BTreeSet<Uuid> {
    let complete = labels.clone().map(|label| label.acked_broadcast).max().unwrap_or(0);
    let complete = if seeded::on(Bug::OlderServes) { 0 } else { complete };
    let complete = complete.saturating_sub(u64::from(seeded::on(Bug::OlderByOneServes)));
    labels.filter(|label| label.broadcast < complete).map(|label| label.disk).collect()
}
