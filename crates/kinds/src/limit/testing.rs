//! How random graphs of the simulator draw `limit` devices.

use std::time::Duration;

use block::Result;
use kind::Value;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

/// Adds a `limit` device to a random graph. Requests wait for its rate, but all requests pass within a second.
fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    let lower = drawing.device(depth)?;
    let iops = Value::Integer(drawing.within(500, 5_000));
    let bytes = Value::Size(drawing.within(8 << 20, 64 << 20));
    let burst = Value::Duration(Duration::from_micros(drawing.within(1, 20_000)));
    let mut options = match drawing.below(2) {
        0 => vec![("iops", iops), ("bytes", bytes)],
        _ => vec![("read_bytes", bytes), ("write_iops", iops)],
    };
    options.push(("burst", burst));
    drawing.add(&super::KIND, options, &[lower])
}
