//! Order of the devices in a plan, lowers first. Reports cycles, for which there is no order, and graphs that are too
//! deep.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Draft;
use super::fault::Log;

/// Maximum number of devices above one another in a graph, including the disk. Each level costs every request time and
/// memory.
pub const DEPTH_MAX: usize = 32;

/// Returns the indices of the drafts, lowers first, otherwise in the order of the spec. Leaves out and reports drafts
/// in a cycle, and leaves out those above a cycle.
pub(super) fn order(drafts: &[Draft<'_>], log: &mut Log) -> Vec<usize> {
    let mut uppers = vec![Vec::new(); drafts.len()];
    let mut waits: Vec<usize> = drafts.iter().map(|draft| draft.lowers.len()).collect();
    for (index, draft) in drafts.iter().enumerate() {
        for lower in &draft.lowers {
            uppers[*lower].push(index);
        }
    }
    let mut ready: BTreeSet<usize> = (0..drafts.len()).filter(|index| waits[*index] == 0).collect();
    let mut order = Vec::new();
    while let Some(index) = ready.pop_first() {
        order.push(index);
        for upper in &uppers[index] {
            waits[*upper] -= 1;
            if waits[*upper] == 0 {
                ready.insert(*upper);
            }
        }
    }
    report_cycles(drafts, &waits, log);
    report_depth(drafts, &order, log);
    order
}

/// Reports each cycle once. Drafts that still wait are in a cycle or above one, and each waits for another one that
/// waits. So the walk down from each comes to a cycle.
fn report_cycles(drafts: &[Draft<'_>], waits: &[usize], log: &mut Log) {
    let mut walked = BTreeSet::new();
    for start in 0..drafts.len() {
        let mut path = Vec::new();
        let mut at = BTreeMap::new();
        let mut next = (waits[start] > 0).then_some(start);
        while let Some(index) = next.filter(|index| !walked.contains(index)) {
            if let Some(first) = at.insert(index, path.len()) {
                report_cycle(drafts, &path[first..], log);
                break;
            }
            path.push(index);
            next = drafts[index].lowers.iter().copied().find(|lower| waits[*lower] > 0);
        }
        walked.extend(path);
    }
}

fn report_cycle(drafts: &[Draft<'_>], cycle: &[usize], log: &mut Log) {
    let name = |index: &usize| drafts[*index].entry.name.text.as_str();
    // The cycle is reported at the device of the cycle that comes first in the spec.
    let first = (0..cycle.len()).min_by_key(|at| cycle[*at]).unwrap_or(0);
    let turned = cycle[first..].iter().chain(&cycle[..=first]);
    let way = turned.map(name).collect::<Vec<_>>().join(" -> ");
    let entry = drafts[cycle[first]].entry;
    let message = format!("{:?} is below itself: {way}; remove one from \"on\"", entry.name.text);
    log.error(entry.place("on"), message);
}

/// Reports only the first device that is too high, not those above it.
fn report_depth(drafts: &[Draft<'_>], order: &[usize], log: &mut Log) {
    let mut depths = vec![0; drafts.len()];
    for index in order {
        let draft = &drafts[*index];
        depths[*index] = 1 + draft.lowers.iter().map(|lower| depths[*lower]).max().unwrap_or(0);
        if depths[*index] == DEPTH_MAX + 1 {
            let name = &draft.entry.name.text;
            let message = format!(
                "{name:?} is the top of {} devices on one another; at most {DEPTH_MAX} are possible",
                DEPTH_MAX + 1
            );
            log.error(draft.entry.name.at, message);
        }
    }
}
