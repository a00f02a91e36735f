//! Disks whose label at the front is gone while the one at the back is whole: another program has written there, and
//! maybe to the data. A mirror copies such a member anew; where its bytes are nowhere else, a start is refused.

use std::collections::{BTreeMap, BTreeSet};

use block::{Error, Reason};
use meta::Label;

use super::bind::Bound;
use super::foreseen::objections;
use super::survey::{Look, Survey};
use crate::spec::{Planned, PlannedNode};

impl Survey {
    /// Refuses the overwritten disks whose bytes are on no other disk, or whose copies miss writes.
    pub(super) fn overwritten(&self, planned: &Planned) -> Vec<Error> {
        let lost = self.overwritten_names();
        if lost.is_empty() {
            return Vec::new();
        }
        let names: BTreeSet<&str> = lost.iter().map(|(name, _)| *name).collect();
        let label = |disk: &str| match self.binding.disks.get(disk) {
            Some(Bound::Labelled(n)) => self.label(*n),
            Some(Bound::Fresh(_) | Bound::Absent(_)) | None => None,
        };
        let objections = objections_without_bytes(planned, label, &names).into_iter();
        let objecting: BTreeSet<String> =
            objections.flat_map(|(device, _)| planned.beneath(device)).collect();
        let is_refused =
            |name: &str| objecting.contains(name) || self.is_nowhere_else(planned, name, &names);
        let refused = lost.iter().filter(|(name, _)| is_refused(name));
        refused.map(|(_, refusal)| (*refusal).clone()).collect()
    }

    /// The bound disks that are overwritten at the front, each with the refusal that is due where no copy is.
    pub(super) fn overwritten_names(&self) -> Vec<(&str, &Error)> {
        let bound = self.binding.disks.iter().filter_map(|(name, bound)| match bound {
            Bound::Labelled(n) => Some((name.as_str(), self.looks[*n].overwritten.as_ref()?)),
            Bound::Fresh(_) | Bound::Absent(_) => None,
        });
        bound.collect()
    }

    /// Whether some bytes of a disk are on no other disk than those that are new, absent or `overwritten`.
    fn is_nowhere_else(&self, planned: &Planned, name: &str, overwritten: &BTreeSet<&str>) -> bool {
        let is_without_bytes = |(name, bound): &(&String, &Bound)| {
            !matches!(bound, Bound::Labelled(_)) || overwritten.contains(name.as_str())
        };
        let without = self.binding.disks.iter().filter(is_without_bytes);
        let without: Vec<&str> = without.map(|(name, _)| name.as_str()).collect();
        let others: Vec<&str> = without.iter().copied().filter(|other| *other != name).collect();
        let anyway = planned.only_on(&others);
        planned.only_on(&without).iter().any(|shows| !anyway.contains(shows))
    }
}

/// What stands against copying the disks `without` anew from others.
///
/// By the states in their labels another member may have missed writes, so these count while their bytes do not. A start
/// forgets these states, so the others must be enough without them as well.
pub fn objections_without_bytes<'p, 'l>(
    planned: &'p Planned,
    label: impl Fn(&str) -> Option<&'l Label>,
    without: &BTreeSet<&str>,
) -> Vec<(&'p str, Error)> {
    let with_states = objections(planned, |disk| Some((label(disk)?, !without.contains(disk))));
    let forgotten: BTreeMap<&str, Label> = without
        .iter()
        .filter_map(|disk| {
            let mut label = label(disk)?.clone();
            forget_copies(&mut label, planned);
            Some((*disk, label))
        })
        .collect();
    let without_states =
        objections(planned, |disk| Some((forgotten.get(disk).or(label(disk))?, true)));
    with_states.into_iter().chain(without_states).collect()
}

/// Forgets the states of the devices that hold copies: they copy all of the disk anew. The label on the disk loses them
/// with the first update, which is durable before anything is served.
pub fn forget_copies(label: &mut Label, planned: &Planned) {
    let names_members = |node: &&PlannedNode| node.kind.capabilities.names_members;
    let copies = planned.nodes.iter().filter(names_members);
    copies.for_each(|node| drop(label.cells.remove(&node.name)));
}

/// The refusal that is due if the bytes of the disk are on no other one.
pub(super) fn refusal(look: &Look) -> Option<Error> {
    let (label, _) = look.label.as_ref()?;
    let (name, place, graph) = (&look.disk.given.name, &look.place, &label.graph_name);
    let words = format!(
        "the front of {place} is not what was written there: another program has \
                         written there, and maybe to its data"
    );
    let next = format!("cairn repair {graph} --plan says what can be done");
    Some(Error::because(Reason::LabelDamaged, words).next(next).at(name))
}
