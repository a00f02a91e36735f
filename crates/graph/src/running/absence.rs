//! Devices that count as absent: their disks are, or their own state is damaged. The graph goes on without them where the
//! devices above have all bytes.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Error, ErrorKind, Needs, Reason, Result};

use super::{Building, Graph, Member};
use crate::labels::Absent;
use crate::spec::{Planned, PlannedNode};

impl Graph {
    /// Makes a member. If a device with a state cannot be opened, because lowers are absent or its state is damaged, and
    /// the devices above have all bytes without it, a device that fails every request takes its place.
    pub(super) async fn make(&self, building: &Building<'_>, index: usize) -> Result<Member> {
        let node = &building.plan.nodes[index];
        let keeps_state = node.kind.maker.keeps_state();
        let can_lack = || keeps_state && self.can_go_without(building.plan, node);
        self.check_copies(node)?;
        match self.absence_of(node) {
            Some(why) if can_lack() && !seeded::on(Bug::AbsentLowerOpened) => {
                self.stand_in(node, why)
            }
            Some(why) => Ok(Member { absence: Some(why), ..self.open(building, index).await? }),
            None => match self.open(building, index).await {
                Err(error)
                    if is_of_state(&error)
                        && building.has_state(index, &self.nodes)
                        && can_lack() =>
                {
                    self.stand_in(node, error.at(&node.name))
                }
                opened => opened,
            },
        }
    }

    /// Returns the reason for which a disk or device counts as absent: it is an absent disk, or too many of its lowers are
    /// absent.
    fn absence_of(&self, node: &PlannedNode) -> Option<Error> {
        if node.absent {
            return Some(Absent::missing(&node.name));
        }
        let absent: Vec<_> =
            node.lowers.iter().filter_map(|lower| self.nodes[*lower].absence.as_ref()).collect();
        let is_absent = absent.len() > node.kind.can_lack(node.lowers.len());
        is_absent.then(|| absent[0].clone())
    }

    /// Checks that a redundant device over devices that did not open can record that. Without a record it would take
    /// them for current once they open again.
    ///
    /// # Errors
    /// The error of the first such device.
    fn check_copies(&self, node: &PlannedNode) -> Result<()> {
        let has_record =
            node.kind.maker.keeps_state() && node.given.lowers.iter().all(|lower| lower.labelled);
        let lowers = node.lowers.iter().map(|lower| &self.nodes[*lower]);
        let mut closed = lowers.filter(|lower| lower.kind.maker.keeps_state());
        match closed.find_map(|lower| lower.absence.clone()) {
            Some(why) if !has_record && node.kind.is_redundant(node.lowers.len()) => Err(why),
            _ => Ok(()),
        }
    }

    /// Whether the exports and the top devices have all their bytes without the device `node` and those that are absent.
    fn can_go_without(&self, plan: &Planned, node: &PlannedNode) -> bool {
        let absent = self.nodes.iter().filter(|member| member.absence.is_some());
        let mut without: Vec<_> = absent.map(|member| member.name.as_str()).collect();
        without.push(&node.name);
        plan.only_on(&without).is_empty()
    }

    /// Makes a member in the place of one that cannot be opened. It fails every request.
    fn stand_in(&self, plan: &PlannedNode, why: Error) -> Result<Member> {
        let device = Rc::new(Absent::device(plan.info.clone(), why.clone()));
        let (made, body, info) = self.device(&plan.name, device, Needs::LEAF, &[])?;
        Ok(Member { absence: Some(why), ..Member::new(plan, made, body, info) })
    }
}

/// Whether a device did not open with this error because its own state is damaged, or cannot be read.
fn is_of_state(error: &Error) -> bool {
    use ErrorKind::{Corrupt, Faulted, Io, TimedOut};
    let is_damage = matches!(error.kind(), Corrupt | Faulted | Io | TimedOut);
    let is_foreign = error.reason() == Some(Reason::StateForeign);
    is_damage && (!is_foreign || seeded::on(Bug::ForeignStateSpared))
}
