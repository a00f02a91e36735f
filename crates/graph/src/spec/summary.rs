//! The properties of the exports of a plan, for the user: size, redundancy, missing disks.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use block::units::format_exact;
use fixedbitset::FixedBitSet;

use super::plan::{Planned, PlannedExport, PlannedNode, Role};
use super::volumes::Amended;

/// The number of disks that a disk or device of a plan can lose.
struct Redundancy {
    /// Number of further disks that may fail, whichever they are, before the node loses data; `None` if the absent
    /// disks are already too many.
    survives: Option<usize>,
    /// The disks beneath the node, or the disk itself: indices into [`Planned::nodes`].
    disks: FixedBitSet,
}

impl Planned {
    fn redundancies(&self) -> Vec<Redundancy> {
        let mut all: Vec<Redundancy> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let lowers: Vec<&Redundancy> = node.lowers.iter().map(|lower| &all[*lower]).collect();
            let mut disks = FixedBitSet::new();
            match node.role {
                Role::Disk => disks.grow_and_insert(index),
                Role::Device => lowers.iter().for_each(|lower| disks.union_with(&lower.disks)),
            }
            let survives = match node.role {
                Role::Disk => (!node.absent).then_some(0),
                Role::Device => survives(&lowers, node.kind.can_lack(lowers.len())),
            };
            all.push(Redundancy { survives, disks });
        }
        all
    }

    /// Returns the names of the exports that cannot be served without the disks `disks`.
    pub fn lost_without(&self, disks: &[&str]) -> Vec<&str> {
        let lost = self.lost(disks);
        let exports = self.exports.iter().filter(|export| lost[export.node]);
        exports.map(|export| export.name.as_str()).collect()
    }

    /// Whether the device called `device` would lack some of its bytes without the disks `disks`.
    pub fn is_lost(&self, device: &str, disks: &[&str]) -> bool {
        let lost = self.lost(disks);
        self.nodes.iter().zip(lost).any(|(node, lost)| lost && node.name == device)
    }

    /// Returns the names of the exports that would lack bytes without the disks and devices `disks`, and of the top devices
    /// without an export for which the same is true.
    pub fn only_on(&self, disks: &[&str]) -> Vec<&str> {
        let lost = self.lost(disks);
        let stood_on: BTreeSet<usize> =
            self.nodes.iter().flat_map(|above| above.lowers.iter().copied()).collect();
        let tops = (0..self.nodes.len()).filter(|node| lost[*node] && !stood_on.contains(node));
        let tops = tops.map(|node| self.nodes[node].name.as_str());
        let is_shown =
            |top: &&str| !self.exports.iter().any(|export| self.nodes[export.node].name == *top);
        self.lost_without(disks).into_iter().chain(tops.filter(is_shown)).collect()
    }

    /// Returns for each node of the plan whether it would lack bytes without the disks and devices `without`.
    fn lost(&self, without: &[&str]) -> Vec<bool> {
        let mut lost: Vec<bool> = Vec::new();
        for node in &self.nodes {
            let below = node.lowers.iter().filter(|lower| lost[**lower]).count();
            let is_gone = without.contains(&node.name.as_str());
            lost.push(is_gone || below > node.kind.can_lack(node.lowers.len()));
        }
        lost
    }

    /// Returns the part of the plan with the device `device` and all devices and disks beneath it, without exports.
    #[must_use]
    pub fn down_from(&self, device: &str) -> Self {
        let mut wanted: Vec<bool> = self.nodes.iter().map(|node| node.name == device).collect();
        for (index, node) in self.nodes.iter().enumerate().rev() {
            if wanted[index] {
                node.lowers.iter().for_each(|lower| wanted[*lower] = true);
            }
        }
        let number = |index: usize| wanted[..index].iter().filter(|wanted| **wanted).count();
        let nodes = self.nodes.iter().zip(&wanted).filter(|(_, wanted)| **wanted);
        let moved = |node: &PlannedNode| {
            let lowers = node.lowers.iter().map(|lower| number(*lower)).collect();
            PlannedNode { lowers, ..node.clone() }
        };
        let nodes: Vec<_> = nodes.map(|(node, _)| moved(node)).collect();
        let inputs = self.inputs.clone().filter(|_| nodes.iter().any(|node| node.deferred));
        let amended = Amended { top: Some(device.to_owned()), ..self.amended.clone() };
        Self { nodes, exports: Vec::new(), inputs, amended, ..self.clone() }
    }

    /// Returns the names of the disks beneath the device called `device`.
    pub fn beneath(&self, device: &str) -> Vec<String> {
        let index = self.nodes.iter().position(|node| node.name == device);
        let disks = index.into_iter().flat_map(|index| self.disks_of(index));
        disks.map(|disk| self.nodes[disk].name.clone()).collect()
    }

    /// Returns the indices of the disks beneath node `index`, or `index` itself for a disk.
    pub(crate) fn disks_of(&self, index: usize) -> BTreeSet<usize> {
        self.disks_through(index, |_| true)
    }

    /// Returns the disks of [`Planned::disks_of`] to which a path leads that has no blank volume.
    pub(crate) fn written_disks_of(&self, index: usize) -> BTreeSet<usize> {
        self.disks_through(index, |node| !node.blank)
    }

    /// Returns the disks at or beneath node `index` to which nodes lead that `goes_on` selects. Visits each node once: in
    /// a hostile graph, each device doubles the number of paths to the disks.
    fn disks_through(
        &self,
        index: usize,
        goes_on: impl Fn(&PlannedNode) -> bool,
    ) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([index]);
        let mut open = vec![index];
        while let Some(node) = open.pop().map(|at| &self.nodes[at]) {
            let below = node.lowers.iter().filter(|_| goes_on(node));
            open.extend(below.filter(|lower| reached.insert(**lower)));
        }
        reached.retain(|node| self.nodes[*node].role == Role::Disk);
        reached
    }

    /// Returns the description of the plan for the user: a line for each export, a line for each device with volumes,
    /// and a note for each device that does not use all bytes of its lowers.
    pub fn summary(&self) -> String {
        let redundancies = self.redundancies();
        let exports = self.exports.iter().map(|export| {
            (export.name.clone(), self.export_line(export, &redundancies[export.node]))
        });
        let holders = self.nodes.iter().zip(&redundancies);
        let holders = holders.filter(|(node, _)| node.kind.capabilities.holds_volumes);
        let holders = holders.map(|(node, redundancy)| {
            let mut parts = vec!["volumes".to_owned()];
            self.add_disks(&mut parts, redundancy, false);
            (format!("{}/", node.name), parts.join(", "))
        });
        let lines: Vec<_> = exports.chain(holders).collect();
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, line) in lines {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{name:width$}  {line}");
        }
        for node in self.nodes.iter().filter(|node| node.unused_bytes > 0) {
            let bytes = format_exact(node.unused_bytes);
            let _ = writeln!(text, "note: {:?} leaves {bytes} of its lowers unused", node.name);
        }
        text
    }

    fn export_line(&self, export: &PlannedExport, redundancy: &Redundancy) -> String {
        let info = &export.info;
        let mut parts = match self.nodes[export.node].deferred {
            true => vec!["size known once the graph is open".to_owned()],
            false => vec![format_exact(info.size), format!("blocks of {}", info.block_size)],
        };
        self.add_disks(&mut parts, redundancy, export.read_only);
        parts.join(", ")
    }

    /// Adds to a line the properties that follow from the disks beneath a device.
    fn add_disks(&self, parts: &mut Vec<String>, redundancy: &Redundancy, read_only: bool) {
        let disks = redundancy.disks.ones().map(|disk| &self.nodes[disk]);
        let (absent, here): (Vec<_>, Vec<_>) = disks.partition(|disk| disk.absent);
        let words: BTreeSet<&str> = here.iter().map(|disk| disk.words.as_str()).collect();
        parts.extend(words.into_iter().filter(|words| !words.is_empty()).map(str::to_owned));
        let labels = redundancy.disks.ones().filter(|disk| self.nodes[*disk].labelled).count();
        let labels = match labels {
            0 => "raw",
            all if all == redundancy.disks.count_ones(..) => "labelled",
            _ => "raw and labelled",
        };
        parts.push(labels.to_owned());
        if read_only {
            parts.push("read-only".to_owned());
        }
        if !absent.is_empty() {
            let absent: Vec<_> = absent.iter().map(|disk| disk.name.as_str()).collect();
            parts.push(format!("without {}", absent.join(", ")));
        }
        match (redundancy.survives, here.len()) {
            (None, _) => parts.push("cannot be served".to_owned()),
            (Some(0), 1) => {}
            (Some(0), disks) => parts.push(format!("lost if any of {disks} disks is lost")),
            (Some(survives), disks) => {
                parts.push(format!("survives the loss of {survives} of {disks} disks"))
            }
        }
    }
}

/// Returns how many disks may fail, whichever they are, before a device loses more than `can_lack` of its lowers;
/// `None` if it has lost more already. Lowers that share a disk may fail together, so they form one group.
fn survives(lowers: &[&Redundancy], can_lack: usize) -> Option<usize> {
    let mut groups: Vec<(FixedBitSet, Vec<usize>)> = Vec::new();
    for lower in lowers {
        // The number of disks whose failure makes the lower fail.
        let mut group = (lower.disks.clone(), vec![lower.survives.map_or(0, |more| more + 1)]);
        groups.retain(|(disks, costs)| {
            let is_apart = disks.is_disjoint(&group.0);
            if !is_apart {
                group.0.union_with(disks);
                group.1.extend(costs);
            }
            is_apart
        });
        groups.push(group);
    }
    // `fewest[n]`: the smallest number of disks whose failure makes `n` lowers fail. In a group, the failure of the
    // most expensive of `n` lowers may make the other lowers fail too.
    let mut fewest = vec![0];
    for (_, mut costs) in groups {
        costs.sort_unstable();
        let taken = |lost: usize| if lost == 0 { 0 } else { costs[lost - 1] };
        let sums = (0..fewest.len() + costs.len()).map(|lost| {
            let of_group = lost.saturating_sub(fewest.len() - 1)..=lost.min(costs.len());
            of_group.map(|n| fewest[lost - n] + taken(n)).min().expect("the range is not empty")
        });
        fewest = sums.collect();
    }
    fewest[(can_lack + 1).min(lowers.len())..].iter().min()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies the rule for mirrors alone, from before kinds declared how many lowers they can lack.
    fn of_copies(lowers: &[&Redundancy]) -> Option<usize> {
        let mut groups: Vec<(FixedBitSet, Option<usize>)> = Vec::new();
        for lower in lowers {
            let mut group = (lower.disks.clone(), lower.survives);
            groups.retain(|(disks, survives)| {
                let apart = disks.is_disjoint(&group.0);
                if !apart {
                    group = (disks | &group.0, group.1.max(*survives));
                }
                apart
            });
            groups.push(group);
        }
        let in_all = groups.iter().map(|(_, survives)| survives.map_or(0, |survives| survives + 1));
        in_all.sum::<usize>().checked_sub(1)
    }

    /// A node of a plan: a disk, present or absent, or a device over some of the nodes before it.
    #[derive(Clone, Copy, Debug)]
    enum Drawn {
        Disk { absent: bool },
        Device { lowers: u32, is_mirror: bool },
    }

    fn choices(n: u32) -> Vec<Drawn> {
        let disks = [false, true].map(|absent| Drawn::Disk { absent });
        let devices = (1..1 << n)
            .flat_map(|lowers| [false, true].map(|is_mirror| Drawn::Device { lowers, is_mirror }));
        disks.into_iter().chain(devices).collect()
    }

    fn redundancies(
        plan: &[Drawn],
        mirror: impl Fn(&[&Redundancy]) -> Option<usize>,
    ) -> Vec<Option<usize>> {
        let mut all: Vec<Redundancy> = Vec::new();
        for (index, node) in plan.iter().enumerate() {
            let mut disks = FixedBitSet::new();
            let survives = match *node {
                Drawn::Disk { absent } => {
                    disks.grow_and_insert(index);
                    (!absent).then_some(0)
                }
                Drawn::Device { lowers, is_mirror } => {
                    let lowers = (0..index).filter(|lower| lowers & 1 << lower != 0);
                    let lowers: Vec<_> = lowers.map(|lower| &all[lower]).collect();
                    lowers.iter().for_each(|lower| disks.union_with(&lower.disks));
                    let least = || lowers.iter().map(|lower| lower.survives).min().flatten();
                    if is_mirror { mirror(&lowers) } else { least() }
                }
            };
            all.push(Redundancy { survives, disks });
        }
        all.into_iter().map(|redundancy| redundancy.survives).collect()
    }

    #[test]
    fn mirror_redundancy_matches_reference_on_all_plans_of_five_nodes() {
        let mut plans: Vec<Vec<Drawn>> = vec![Vec::new()];
        let mut compared = 0;
        for n in 0..5 {
            let longer = |plan: Vec<Drawn>| {
                choices(n).into_iter().map(move |node| [&plan[..], &[node]].concat())
            };
            plans = plans.into_iter().flat_map(longer).collect();
        }
        for plan in plans {
            let before = redundancies(&plan, of_copies);
            let now = redundancies(&plan, |lowers| survives(lowers, lowers.len() - 1));
            assert_eq!(before, now, "{plan:?}");
            compared += 1;
        }
        assert_eq!(compared, 2 * 4 * 8 * 16 * 32);
    }

    #[test]
    fn parity_redundancy_counts_shared_disks_once() {
        let disk = |index: usize| {
            let mut disks = FixedBitSet::new();
            disks.grow_and_insert(index);
            Redundancy { survives: Some(0), disks }
        };
        let on = |disks: &[usize]| disks.iter().map(|index| disk(*index)).collect::<Vec<_>>();
        let can =
            |disks: &[usize], can_lack| survives(&on(disks).iter().collect::<Vec<_>>(), can_lack);
        assert_eq!(can(&[0, 1, 2], 1), Some(1));
        assert_eq!(can(&[0, 1, 2, 3], 2), Some(2));
        // One disk takes two of its lowers.
        assert_eq!(can(&[0, 0, 1], 1), Some(0));
        assert_eq!(can(&[0, 0, 1, 2], 2), Some(1));
    }
}
