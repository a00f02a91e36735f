//! How random graphs of the simulator draw `delay` devices.

use std::time::Duration;

use block::Result;
use kind::Value;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

/// Adds a `delay` device to a random graph. Its delays are much shorter than all timeouts of the simulator.
fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    let lower = drawing.device(depth)?;
    let mut time = |most: u64| Value::Duration(Duration::from_micros(drawing.below(most)));
    let options = vec![("time", time(2_000)), ("jitter", time(3_000)), ("flush", time(5_000))];
    drawing.add(&super::KIND, options, &[lower])
}
