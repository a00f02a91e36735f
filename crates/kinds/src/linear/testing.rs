//! How random graphs of the simulator draw `linear` devices.

use block::Result;
use kind::Value;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    let lower = drawing.device(depth)?;
    let block = drawing.block();
    let blocks = drawing.size(lower) / block;
    let start = drawing.below(blocks.div_ceil(2));
    let len = drawing.within(blocks.div_ceil(4), blocks - start).max(1);
    let size = |key, blocks| (key, Value::Size(blocks * block));
    drawing.add(&super::KIND, vec![size("start", start), size("size", len)], &[lower])
}
