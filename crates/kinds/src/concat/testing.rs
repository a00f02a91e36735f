//! How random graphs of the simulator draw `concat` devices.

use block::Result;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    let lowers = drawing.devices(depth, 4)?;
    drawing.add(&super::KIND, vec![], &lowers)
}
