//! The engine reserves that the devices of a plan need, computed as the engine does when it admits requests.

use block::units::write_size;
use block::{Emulate, Needs, Port, Result, Table};
use engine::Reserve;
use kind::Maker;

use super::PlannedNode;
use super::fault::Log;
use crate::fusion::Fusion;

/// The reserve that a request needs in a planned node and in all nodes beneath it.
struct NodeReserve {
    /// Reserve for a request that begins at the node.
    reserve: Reserve,
    /// Reserve for a request that comes through a fused table above: on a labelled disk, such a request bypasses the
    /// table of the label.
    below_label: Reserve,
    fusion: Option<Fusion<usize>>,
}

/// The reserves of the nodes of a plan, with the indices of [`Planned::nodes`](super::Planned::nodes).
pub(super) struct Reserves {
    nodes: Vec<NodeReserve>,
    /// The sizes of the nodes in bytes.
    sizes: Vec<u64>,
    pool_bytes: usize,
}

impl Reserves {
    /// Returns an empty list. `pool_bytes` is the size of the pool from which requests take their buffers.
    pub fn new(pool_bytes: usize) -> Self {
        Self { nodes: Vec::new(), sizes: Vec::new(), pool_bytes }
    }

    /// Reports an error at the node that holds the most bytes of the buffer pool permanently, if all nodes together hold
    /// too many.
    pub fn check_standing(&self, nodes: &[PlannedNode], log: &mut Log) {
        let held: Vec<_> = nodes.iter().map(standing_bytes).collect();
        let (sum, most) = (held.iter().sum::<u64>(), Reserve::standing_max(self.pool_bytes) as u64);
        let Some(index) = (0..held.len()).rev().max_by_key(|index| held[*index]) else { return };
        if sum <= most {
            return;
        }
        let (node, share) = (&nodes[index], write_size(held[index]));
        let message = format!(
            "the disks and devices hold {} of buffers permanently, {:?} alone {share}; the limit is {}. Next: serve \
             some of them in another process",
            write_size(sum),
            node.name,
            write_size(most)
        );
        log.error(node.position, message);
    }

    /// Adds the next node of the plan, and returns its reserve.
    ///
    /// # Errors
    /// `Limit` if a request through this node needs more than the engine can reserve. In this case the node counts as a
    /// disk in the reserves of the nodes above.
    pub fn add(&mut self, node: &PlannedNode) -> Result<Reserve> {
        let checked = self.of(node).and_then(|found| {
            found.reserve.check(&node.name, node.info.max_transfer, self.pool_bytes)?;
            Ok(found)
        });
        let reserve = checked.as_ref().map(|found| found.reserve).map_err(Clone::clone);
        self.sizes.push(node.info.size);
        self.nodes.push(checked.unwrap_or_else(|_| NodeReserve::of_device(leaf(node))));
        reserve
    }

    fn of(&self, node: &PlannedNode) -> Result<NodeReserve> {
        let block = node.info.block_size;
        let below: Vec<_> = node.lowers.iter().map(|lower| self.nodes[*lower].reserve).collect();
        Ok(match (&node.kind.maker, &node.table) {
            (Maker::Disk { .. }, _) => self.of_disk(node)?,
            // A volume sends the same requests to the same lowers as the device that holds it.
            (Maker::Hooks { .. } | Maker::Volume, _) => NodeReserve::of_device(below[0]),
            (_, Some(table)) => {
                let lowers = node.lowers.iter();
                let lowers: Vec<_> =
                    lowers.map(|lower| (*lower, self.nodes[*lower].fusion.as_ref())).collect();
                self.of_table(Fusion::over(table.clone(), &lowers)?, block)
            }
            (Maker::Stored(_), None) => {
                let whole = |lower: &usize| self.of_whole(*lower, block);
                let part = |(port, table): &(usize, Table)| {
                    self.of_part(node.lowers[*port], table.clone(), block)
                };
                let parts: Vec<_> = match &node.parts[..] {
                    [] => node.lowers.iter().map(whole).collect::<Result<_>>()?,
                    parts => parts.iter().map(part).collect::<Result<_>>()?,
                };
                NodeReserve::of_device(Reserve::of_device(node.needs, block, &parts))
            }
            (_, None) => NodeReserve::of_device(Reserve::of_device(node.needs, block, &below)),
        })
    }

    /// Returns the reserve of a part of a lower that is one range. The parts of a new device are. Those of a device that has
    /// grown may have several ranges and need more: if its state is not known, the build of the graph checks that.
    fn of_whole(&self, lower: usize, block: u32) -> Result<Reserve> {
        let whole = Table::linear(Port(0), u64::MAX, 0, self.sizes[lower])?;
        self.of_part(lower, whole, block)
    }

    /// Returns the reserve of a part of a lower, such as the data of a device with objects.
    fn of_part(&self, lower: usize, part: Table, block: u32) -> Result<Reserve> {
        let fusion = Fusion::over(part, &[(lower, self.nodes[lower].fusion.as_ref())])?;
        Ok(self.of_table(fusion, block).reserve)
    }

    fn of_disk(&self, node: &PlannedNode) -> Result<NodeReserve> {
        let (info, mut raw) = (&node.info, leaf(node));
        if Emulate::is_needed(info, info.block_size) {
            raw = Reserve::of_device(Emulate::NEEDS, info.block_size, &[raw]);
        }
        if !node.has_label() {
            return Ok(NodeReserve::of_device(raw));
        }
        let end = meta::DATA_START + info.size;
        let own = Table::linear(Port(0), end, meta::DATA_START, info.size)?;
        let reserve = Reserve::of_table(&own, info.block_size, &[raw]);
        let fusion = Some(Fusion::alone(own, self.nodes.len()));
        Ok(NodeReserve { reserve, below_label: raw, fusion })
    }

    fn of_table(&self, fusion: Fusion<usize>, block: u32) -> NodeReserve {
        let below: Vec<_> = fusion.ports.iter().map(|node| self.nodes[*node].below_label).collect();
        let reserve = Reserve::of_table(&fusion.fused, block, &below);
        NodeReserve { reserve, below_label: reserve, fusion: Some(fusion) }
    }
}

/// Returns the needs of a disk that holds `bytes` of the buffer pool.
pub(super) fn standing(bytes: usize) -> Needs {
    Needs { standing_bytes: bytes.try_into().unwrap_or(u32::MAX), ..Needs::LEAF }
}

/// Returns the bytes of the buffer pool that a planned node holds permanently: those of its kind, of its label, and of
/// the device that emulates the requests which a disk does not support.
fn standing_bytes(node: &PlannedNode) -> u64 {
    let is_disk = matches!(node.kind.maker, Maker::Disk { .. });
    let emulates = is_disk && !node.absent && Emulate::is_needed(&node.info, node.info.block_size);
    u64::from(node.needs.standing_bytes)
        + if emulates { u64::from(Emulate::NEEDS.standing_bytes) } else { 0 }
        + if node.has_label() { meta::Store::STANDING_BYTES as u64 } else { 0 }
}

impl NodeReserve {
    fn of_device(reserve: Reserve) -> Self {
        Self { reserve, below_label: reserve, fusion: None }
    }
}

fn leaf(node: &PlannedNode) -> Reserve {
    Reserve::of_device(Needs::LEAF, node.info.block_size, &[])
}
