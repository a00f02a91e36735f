//! Counts requests and changes nothing: the smallest hook, to measure the cost of one and to copy from.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use std::cell::Cell;
use std::rc::Rc;

use block::{Hooks, Push, Report, Request, Result};
use kind::{Capabilities, DeviceConfig, Kind, Lowers, Maker, MakerArgs, Plan};

/// The kind `pass`: a hook that counts requests and changes nothing.
pub const KIND: Kind = Kind {
    name: "pass",
    summary: "counts requests and changes nothing",
    manual: include_str!("manual.md"),
    lowers: Lowers::One,
    options: &[],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Hooks { plan, make },
};

#[derive(Default)]
struct Pass {
    down: Cell<u64>,
    up: Cell<u64>,
    failed: Cell<u64>,
}

fn plan(_: &DeviceConfig) -> Plan<()> {
    Ok(())
}

fn make(_: MakerArgs<'_>) -> Result<Rc<dyn Hooks>> {
    Ok(Rc::new(Pass::default()))
}

impl Hooks for Pass {
    fn push(&self, _: &Request) -> Push {
        self.down.set(self.down.get() + 1);
        Push::Watch(0)
    }

    fn pop(&self, _: u64, _: &Request, result: &mut Result<()>) {
        self.up.set(self.up.get() + 1);
        self.failed.set(self.failed.get() + u64::from(result.is_err()));
    }

    fn report(&self) -> Report {
        let counters =
            vec![("down", self.down.get()), ("up", self.up.get()), ("failed", self.failed.get())];
        Report { counters, ..Report::default() }
    }
}
