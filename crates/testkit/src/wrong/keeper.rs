//! A device that stores the number of its starts on its only lower, and can break a rule on purpose.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{
    Device, Env, Error, ErrorKind, Info, Lower, Notify, Op, Report, Request, Result, StateStore,
    StoredState,
};

use super::Sin;

/// A device that counts its starts in the label of its lower, and forwards all requests to the lower.
pub(super) struct Stateful {
    lower: Lower,
    kept: Rc<dyn StateStore>,
    /// The number of starts of the device that the labels record.
    starts: Cell<u64>,
    opened: RefCell<Option<Result<()>>>,
    waiting: Notify,
    sin: Option<Sin>,
}

impl Stateful {
    pub fn new(
        lower: Lower,
        kept: Rc<dyn StateStore>,
        env: &Env,
        sin: Option<Sin>,
    ) -> Result<Rc<Self>> {
        let found = kept.found(0);
        let is_used = !found.fresh && found.state.is_none();
        if is_used && !matches!(sin, Some(Sin::FormatsUsed | Sin::NeverStores)) {
            return Err(Error::new(ErrorKind::NotFound, "the disk is not new, and has no state"));
        }
        let formats = is_used && sin == Some(Sin::FormatsUsed)
            || sin == Some(Sin::ActsUnsure) && !kept.is_committed();
        let starts = Cell::new(found.state.as_ref().map_or(0, number));
        let (opened, waiting) = Default::default();
        let keeper = Rc::new(Self { lower, kept, starts, opened, waiting, sin });
        let opening = keeper.clone();
        env.spawn("a keeper's start", async move {
            let opened = opening.open(formats).await;
            opening.opened.replace(Some(opened));
            opening.waiting.wake();
        });
        Ok(keeper)
    }

    async fn open(&self, formats: bool) -> Result<()> {
        if formats {
            let range = block::ByteRange::new(0, self.lower.info().size)
                .expect("a lower has at least one byte");
            let zeroes = Op::WriteZeroes { range, unmap: false, fua: true };
            self.lower.call(zeroes).await.result?;
        }
        let next = self.starts.get() + 1;
        if self.sin != Some(Sin::NeverStores) {
            let written = self.kept.write(&[0], next.to_le_bytes().to_vec()).await;
            written.into_iter().try_for_each(|(_, answer)| answer)?;
            // A write that is held back may be discarded. If it is kept, the next start reports it.
            if !self.kept.is_committed() {
                return Ok(());
            }
        }
        self.starts.set(next);
        Ok(())
    }
}

fn number(state: &StoredState) -> u64 {
    state.bytes.as_slice().try_into().map_or(0, u64::from_le_bytes)
}

impl Device for Stateful {
    fn info(&self) -> &Info {
        self.lower.info()
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.waiting.until(|| self.opened.borrow().is_some()).await;
        self.opened.borrow().clone().expect("the result of the opening was stored")?;
        self.lower.forward(&mut request.op).await
    }

    fn report(&self) -> Report {
        let counters = vec![("starts", self.starts.get())];
        Report { counters, ..Report::default() }
    }
}
