use std::cell::Cell;
use std::rc::Rc;

use block::env::LocalFuture;
use block::{Device, Error, ErrorKind, Handover, Info, Lower, Mutex, Needs, Op, Report};
use block::{Request, Result, StateStore};
use kind::{
    AnyDevice, Bytes, Capabilities, DeviceConfig, DevicePlan, Fault, Kind, LowerConfig, Lowers,
};
use kind::{Maker, MakerArgs, Plan, Summary};

/// `count`: counts the writes to it, over restarts.
pub const KIND: Kind = Kind {
    name: "count",
    summary: "counts writes, over restarts",
    manual: "# count",
    lowers: Lowers::One,
    options: &[],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Stateful {
        bytes: Bytes::Passthrough,
        plan,
        make,
        prepare: None,
        preflight: None,
        describe: |bytes| Ok(Summary::whole(format!("{} writes", decode(bytes)?))),
    },
};

/// Writes for which one update of the labels is enough.
const STEP: u64 = 64;

struct Count {
    lower: Lower,
    state: Rc<dyn StateStore>,
    writes: Cell<u64>,
    /// The number in the labels. It is never below `writes`, so a crash loses no write that was counted.
    reserved: Cell<u64>,
    turn: Mutex,
}

fn plan(given: &DeviceConfig) -> Plan<DevicePlan> {
    let LowerConfig { info, labelled, .. } = &given.lowers[0];
    let fault = Fault::new("on", "the count is kept in labels; put label = true on the disks");
    let plan = DevicePlan { info: info.clone(), needs: Needs::children(1) };
    if *labelled { Ok(plan) } else { Err(vec![fault]) }
}

fn decode(bytes: &[u8]) -> std::result::Result<u64, String> {
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| format!("{} bytes, not 8", bytes.len()))
}

/// Begins with the number in the labels. Disks that are in use and have none may belong to another device.
fn make(making: MakerArgs<'_>) -> LocalFuture<Result<Rc<dyn AnyDevice>>> {
    let MakerArgs { mut lowers, state, .. } = making;
    Box::pin(async move {
        let begun = match &state.found(0).state {
            Some(found) => {
                decode(&found.bytes).map_err(|why| Error::new(ErrorKind::Corrupt, why))?
            }
            None if state.found(0).fresh => 0,
            None => return Err(Error::new(ErrorKind::NotFound, "the disks have no count")),
        };
        keep(&state, begun + STEP).await?;
        let (writes, reserved) = (Cell::new(begun), Cell::new(begun + STEP));
        let (lower, turn) = (lowers.remove(0), Mutex::new());
        Ok(Rc::new(Count { lower, state, writes, reserved, turn }) as Rc<dyn AnyDevice>)
    })
}

impl Count {
    /// Counts one more write, once the labels have a number that is not below it.
    async fn count(&self) -> Result<()> {
        while self.writes.get() == self.reserved.get() {
            let _turn = self.turn.lock().await;
            keep(&self.state, self.reserved.get() + STEP).await?;
            self.reserved.set(self.reserved.get() + STEP);
        }
        self.writes.set(self.writes.get() + 1);
        Ok(())
    }
}

async fn keep(state: &Rc<dyn StateStore>, count: u64) -> Result<()> {
    let answers = state.write(&[0], count.to_le_bytes().to_vec()).await;
    answers.into_iter().try_for_each(|(_, answer)| answer)
}

impl Device for Count {
    fn info(&self) -> &Info {
        self.lower.info()
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        if let Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard { .. } = request.op {
            self.count().await?;
        }
        self.lower.forward(&mut request.op).await
    }

    fn report(&self) -> Report {
        Report { counters: vec![("writes", self.writes.get())], ..Report::default() }
    }

    /// The exact number, for the next start. Where that cannot be written, the labels have a higher one.
    fn close(&self) -> LocalFuture<Handover> {
        let (state, writes) = (self.state.clone(), self.writes.get());
        self.reserved.set(writes);
        Box::pin(async move {
            let _ = keep(&state, writes).await;
            None
        })
    }
}
