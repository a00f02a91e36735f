//! How random graphs of the simulator draw `partition` devices.

use block::Result;
use kind::Value;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

/// Adds two partitions of one device to a random graph, and a concat with the second partition first.
fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    // It takes two of the four levels through which a request may fan out.
    let lower = drawing.device(depth.saturating_sub(1))?;
    let block = drawing.block();
    let blocks = drawing.size(lower) / block;
    if blocks < 2 {
        return Ok(lower);
    }
    let first = Value::Size(drawing.within(1, blocks - 1) * block);
    let low = drawing.add(&super::KIND, vec![("size", first)], &[lower])?;
    let high = drawing.add(&super::KIND, vec![("size", Value::Rest)], &[lower])?;
    drawing.add(&crate::concat::KIND, vec![], &[high, low])
}
