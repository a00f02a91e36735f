//! How random graphs of the simulator draw `trace` devices.

use block::Result;
use kind::Value;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    let path = format!("/trace{}", drawing.next());
    // Small enough that it is filled to its end.
    let size = Value::Size((64 << 10) * drawing.within(1, 4));
    drawing.hook(depth, &super::KIND, vec![("file", Value::Text(path)), ("size", size)])
}
