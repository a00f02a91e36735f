//! The live changes that a running graph permits.

use block::{Error, Reason, Result, bail};

use super::Current;
use super::bytes::{Compared, Differs};
use crate::spec::{Planned, PlannedNode};

/// Returns an error if a live change of the running graph `old` to `planned` is not permitted.
pub fn allow(old: &Current, planned: &Planned, unchanged: &[Option<usize>]) -> Result<()> {
    for (index, node) in old.planned.nodes.iter().enumerate() {
        if node.kind.capabilities.names_members
            && !node.labelled
            && !unchanged.contains(&Some(index))
        {
            let words = format!(
                "{} is on raw disks: a live change would lose which members are in sync",
                node.name
            );
            let error = Error::because(Reason::ChangeOnRawDisks, words);
            return Err(error
                .next("stop the graph, and start it with trust = MEMBER; or use labelled disks"));
        }
    }
    let has_all = having_all(old);
    let compared = Compared::new(&old.planned, planned, unchanged, &has_all);
    if let Some(Renamed { device, was, is }) = renamed(&compared) {
        let words = format!(
            "{device} records its members by name, and the change would rename {was} to {is}: the \
             record of writes would not fit"
        );
        let error = Error::because(Reason::ChangeRenamesMembers, words);
        return Err(error.next(format!("put {is} above {device} instead of below")));
    }
    for before in &old.planned.exports {
        let Some(after) = planned.exports.iter().find(|after| after.name == before.name) else {
            continue;
        };
        let name = &before.name;
        if let Err(differs) = compared.shows(before.node, after.node) {
            let place = &planned.nodes[differs.new].name;
            let words = format!("export {name} would show other bytes, as device {place} differs");
            let next = "apply with --move, to move the bytes; or another name for the export";
            return Err(Error::because(Reason::ChangeOtherBytes, words).next(next));
        }
        if after.info.data_bytes() < before.info.data_bytes() {
            let (is, would) = (before.info.data_bytes(), after.info.data_bytes());
            bail!(Unsupported, "export {name} would shrink from {is} to {would} bytes");
        }
        if after.info.block_size > before.info.block_size {
            let (is, would) = (before.info.block_size, after.info.block_size);
            let words = format!(
                "clients of export {name} use blocks of {is} bytes; the change would make blocks \
                 {would} bytes"
            );
            let error = Error::because(Reason::ChangeOtherBlocks, words);
            return Err(error.next("give the export another name"));
        }
    }
    Ok(())
}

/// Returns a function of a running device and one of its lowers: whether the lower has all bytes of the device at
/// present.
fn having_all(old: &Current) -> impl Fn(&PlannedNode, &PlannedNode) -> bool {
    |device, lower| {
        let Some(running) = old.graph.member(&device.name) else { return false };
        old.graph.holders(running).any(|holder| holder.name == lower.name)
    }
}

/// Checks that node `after` of the new graph shows the same bytes as node `before` of the running graph.
pub fn shows(
    old: &Current,
    planned: &Planned,
    unchanged: &[Option<usize>],
    (before, after): (usize, usize),
) -> Result<(), Differs> {
    let has_all = having_all(old);
    let compared = Compared::new(&old.planned, planned, unchanged, &has_all);
    compared.shows(before, after)
}

/// Returns the first device for which the plan `new` has another `trust` option than the running graph, and the member
/// that the option names.
pub fn newly_trusted<'p>(old: &Planned, new: &'p Planned) -> Option<(&'p str, &'p str)> {
    new.nodes.iter().find_map(|node| {
        let trust = node.kind.trust()?;
        let said = node.given.text(trust)?;
        let before = old.nodes.iter().find(|before| before.name == node.name)?;
        let heard = before.kind.name != node.kind.name || before.given.text(trust) == Some(said);
        (!heard).then_some((node.name.as_str(), said))
    })
}

/// A member of a device that a live change would rename.
#[derive(PartialEq, Eq, Debug)]
pub struct Renamed<'p> {
    /// Name of the device that has the member.
    pub device: &'p str,
    /// Name of the member in the running graph.
    pub was: &'p str,
    /// Name of the member in the new graph.
    pub is: &'p str,
}

/// Returns the first member that shows the same bytes in both graphs but has another name in the new graph.
pub fn renamed<'p>(compared: &Compared<'p>) -> Option<Renamed<'p>> {
    let (old, new) = (compared.old, compared.new);
    let name_of = |planned: &'p Planned, node: usize| planned.nodes[node].name.as_str();
    for after in new.nodes.iter().filter(|node| node.kind.capabilities.names_members) {
        let is_it =
            |node: &&PlannedNode| node.name == after.name && node.kind.name == after.kind.name;
        let Some(before) = old.nodes.iter().find(is_it) else { continue };
        let olds = before.lowers.iter().copied();
        let left =
            olds.filter(|o| after.lowers.iter().all(|n| name_of(new, *n) != name_of(old, *o)));
        for o in left {
            let same = after.lowers.iter().find(|n| compared.shows(o, **n).is_ok());
            if let Some(n) = same {
                let (was, is) = (name_of(old, o), name_of(new, *n));
                return Some(Renamed { device: &before.name, was, is });
            }
        }
    }
    None
}
