//! How random graphs of the simulator draw `error` devices.

use block::Result;
use kind::Value;
use kind::testing::{Drawing, PartId, Testing};

pub const TESTING: Testing = Testing::drawn(draw);

/// Adds an `error` device to a random graph where the simulator expects failures; elsewhere adds a `pass` device.
fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    if !drawing.may_fail() {
        return crate::pass::testing::draw(drawing, depth);
    }
    let mut options = vec![
        ("after", Value::Integer(drawing.below(60))),
        ("rate", Value::Share(0.1)),
        ("count", Value::Integer(drawing.within(1, 12))),
        ("when", Value::Text(drawing.pick(&["before", "after"]).to_owned())),
    ];
    if drawing.below(3) == 0 {
        let op = drawing.pick(&["read", "write", "zero", "discard", "flush", "status"]);
        options.push(("op", Value::List(vec![op.to_owned()])));
    }
    drawing.hook(depth, &super::KIND, options)
}
