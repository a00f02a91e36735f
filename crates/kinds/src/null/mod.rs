//! A disk without storage: reads return zeros, and writes are dropped. For measurements of a graph without the cost of
//! a disk.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use std::rc::Rc;

use block::{Device, Info, Op, Request, Result, State, push_extent};
use kind::{
    AnyDevice, Capabilities, DeviceConfig, Effect, Kind, Lowers, Maker, OptionSpec, Scope,
    ValueType, at_once,
};

use crate::ephemeral;

/// The kind `null`: a disk that returns zeros for reads and drops writes.
pub const KIND: Kind = Kind {
    name: "null",
    summary: "answers reads with zeros, drops writes",
    manual: include_str!("manual.md"),
    lowers: Lowers::None,
    options: &[SIZE],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Disk {
        plan: |given, _| {
            at_once(ephemeral::plan(ephemeral::info(given, &SIZE), "null: stores nothing"))
        },
        make: |making| at_once(make(making.config)),
    },
};

const SIZE: OptionSpec = OptionSpec {
    name: "null",
    value: ValueType::Size(512, 1 << 62),
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Local,
    help: "size in bytes",
};

struct Null {
    info: Info,
}

fn make(given: &DeviceConfig) -> Result<Rc<dyn AnyDevice>> {
    Ok(Rc::new(Null { info: ephemeral::info(given, &SIZE) }))
}

impl Device for Null {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { into, .. } => into.write().fill(0),
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard { .. } | Op::Flush => {}
            Op::Status { range, extents } => push_extent(extents, range.len(), State::Hole),
        }
        Ok(())
    }
}
