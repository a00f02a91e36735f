//! Counts the writes to each MiB, over restarts: the smallest kind with persistent objects, and a template for new ones.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::rc::Rc;

use block::control::Resolved;
use block::env::LocalFuture;
use block::{ByteRange, Device, Info, Lower, Needs, Op, Report, Request, Result};
use kind::home::{self, Home, HomeParts, Objects};
use kind::{AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Fault, Kind, Lowers, META};
use kind::{Maker, MakerArgs, Plan, Stored};
use meta::vault::{Array, Vault};
use zerocopy::little_endian::U64;

/// The kind `wear`: counts the writes to each MiB.
pub const KIND: Kind = Kind {
    name: "wear",
    summary: "counts the writes to each MiB, over restarts",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(1, 2),
    options: &[META],
    capabilities: Capabilities::NONE,
    verbs: home::VERBS,
    maker: Maker::Stored(Stored { bytes: Bytes::Passthrough, objects, plan, make }),
};

const MIB: u64 = 1 << 20;

/// Most counts of a device: they are also in memory.
const COUNTS_MAX: u64 = 1 << 24;

/// Most counts of one transaction.
const COUNTS_AT_ONCE: usize = 64;

struct Wear {
    lower: Lower,
    home: Home<Counts>,
}

struct Counts {
    vault: Vault,
    stored: Array<U64>,
    now: RefCell<Vec<U64>>,
}

fn objects(_: &DeviceConfig, lower_bytes: u64) -> Plan<Objects> {
    match lower_bytes.div_ceil(MIB) {
        counts @ ..=COUNTS_MAX => Ok(Objects::new().array::<U64>(counts)),
        _ => Err(vec![Fault::new("on", "wear counts 16TiB at most; use several for parts of it")]),
    }
}

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    Ok(DevicePlan { info: given.lowers[0].info.clone(), needs: Needs::children(1) })
}

fn make(args: MakerArgs<'_>, home: HomeParts) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let lower = args.lowers[0].clone();
    Box::pin(async move {
        let home = home.open(|opened| Box::pin(Counts::read(opened))).await?;
        Ok(home.device(Wear { lower, home: home.clone() }) as Rc<dyn AnyDevice>)
    })
}

impl Counts {
    async fn read(opened: home::Opened) -> Result<Self> {
        let stored = opened.array::<U64>(0)?;
        let mut now = vec![U64::ZERO; stored.records()? as usize];
        stored.get_many(0, &mut now).await?;
        Ok(Self { vault: opened.vault, stored, now: RefCell::new(now) })
    }

    /// Counts a write. The counts are durable after the next flush, as the write is. Counts of one MiB may reach the
    /// vault in any order: the array keeps the highest.
    async fn count(&self, range: ByteRange) -> Result<()> {
        let mut all = range.start() / MIB..=(range.end() - 1) / MIB;
        while !all.is_empty() {
            let mut transaction = self.vault.begin();
            for mib in all.by_ref().take(COUNTS_AT_ONCE) {
                let count = &mut self.now.borrow_mut()[mib as usize];
                *count += 1;
                self.stored.raise(&mut transaction, mib, count.get())?;
            }
            self.vault.post(transaction).await?;
        }
        Ok(())
    }
}

impl Device for Wear {
    fn info(&self) -> &Info {
        self.lower.info()
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let (counts, op) = (self.home.get().await?, &mut request.op);
        match op {
            Op::Flush => return self.home.sync().await,
            Op::Write { range, .. } | Op::WriteZeroes { range, .. } => counts.count(*range).await?,
            _ => {}
        }
        self.lower.forward(op).await?;
        if op.fua() { self.home.sync().await } else { Ok(()) }
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, "counted"))
    }

    fn report(&self) -> Report {
        let counts = self.home.now_for_reading().map(|counts| counts.now.borrow().clone());
        let written = (0..).zip(counts.unwrap_or_default()).filter(|(_, count)| count.get() > 0);
        let row = |(mib, count): (u64, U64)| (format!("writes to MiB {mib}"), count.to_string());
        Report { rows: written.map(row).collect(), ..Report::default() }
    }
}
