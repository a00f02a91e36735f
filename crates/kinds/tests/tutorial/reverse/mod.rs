use std::rc::Rc;

use block::control::Resolved;
use block::{Buf, ByteRange, Device, Env, Info, Lower, Needs, Op, Request, Result};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Kind, Lowers, Maker, MakerArgs, Plan,
};

/// `reverse`: every 512 bytes back to front. Of no use but to show a device that changes bytes.
pub const KIND: Kind = Kind {
    name: "reverse",
    summary: "stores every 512 bytes back to front",
    manual: "# reverse",
    lowers: Lowers::One,
    options: &[],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Device { bytes: Bytes::Private, plan, make },
};

struct Reverse {
    info: Info,
    env: Env,
    lower: Lower,
}

/// What is known before anything is opened: the facts, or every fault of the options.
fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let needs = Needs { children: 1, scratch_copies: 1, ..Needs::LEAF };
    Ok(DevicePlan { info: given.lowers[0].info.clone(), needs })
}

fn make(mut making: MakerArgs<'_>) -> Result<Rc<dyn AnyDevice>> {
    let lower = making.lowers.remove(0);
    Ok(Rc::new(Reverse { info: lower.info().clone(), env: making.env.clone(), lower }))
}

/// A payload belongs to the device that made it: the changed bytes go into a new buffer.
fn reversed(from: &Buf, to: &Buf) {
    to.write().copy_from_slice(&from.read());
    to.write().chunks_mut(512).for_each(<[u8]>::reverse);
}

impl Device for Reverse {
    fn info(&self) -> &Info {
        &self.info
    }

    /// One request below at a time, and a buffer as long as the request.
    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { .. } => {
                // The request goes down unchanged, with the copies that it avoids.
                self.lower.forward(&mut request.op).await?;
                let Op::Read { into, .. } = &mut request.op else {
                    unreachable!("it stays a read")
                };
                let plain = self.env.buf(into.len())?;
                reversed(into, &plain);
                *into = plain;
                Ok(())
            }
            Op::Write { range, data, fua, restores } => {
                let stored = self.env.buf(data.len())?;
                reversed(data, &stored);
                let (range, fua, restores) = (*range, *fua, *restores);
                self.lower.call(Op::Write { range, data: stored, fua, restores }).await.result
            }
            // Zeros are zeros from both ends, and what is allocated stays where it is.
            Op::WriteZeroes { .. } | Op::Discard { .. } | Op::Flush | Op::Status { .. } => {
                self.lower.forward(&mut request.op).await
            }
        }
    }

    /// For `cairn locate`.
    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, "reversed"))
    }
}
