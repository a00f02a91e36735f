//! How random graphs of the simulator draw `pass` devices.

use block::Result;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

pub fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    drawing.hook(depth, &super::KIND, vec![])
}
