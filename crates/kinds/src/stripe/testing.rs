//! How random graphs of the simulator draw `stripe` devices.

use block::Result;
use kind::Value;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

/// Adds a `stripe` device to a random graph, or a concat if the drawn lowers are too few or too small for a stripe.
fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    let lowers = drawing.devices(depth, 4)?;
    let block = drawing.block();
    let smallest = lowers.iter().map(|lower| drawing.size(*lower)).min();
    let fits = smallest.unwrap_or(0) / block;
    if lowers.len() < 2 || fits == 0 {
        return drawing.add(&crate::concat::KIND, vec![], &lowers);
    }
    let chunk = Value::Size(block * drawing.within(1, fits.min(16)));
    drawing.add(&super::KIND, vec![("chunk", chunk)], &lowers)
}
