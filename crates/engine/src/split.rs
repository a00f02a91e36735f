//! A request that a table spreads over several runs: its parts, a window of them at a time.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{
    Below, ByteRange, Child, Device, EXTENTS_MAX, Error, ErrorKind, Info, Lower, Needs, Op,
    Request, Result, State, Table, push_extent,
};

/// Parts in flight at once; wider requests go in windows of this many.
pub const WINDOW: usize = 8;

/// The slow side of a table node.
pub struct Split {
    info: Info,
    table: Rc<Table>,
    lowers: Box<[Lower]>,
}

impl Split {
    /// The device that splits what `table` spreads over `lowers`, one for each of its ports.
    pub fn new(info: Info, table: Rc<Table>, lowers: Box<[Lower]>) -> Self {
        Self { info, table, lowers }
    }

    /// A flush has no address: it goes once to every lower.
    async fn flush(&self) -> Result<()> {
        let mut result = Ok(());
        let count = if seeded::on(Bug::FlushFirstChild) { 1 } else { self.lowers.len() };
        for lowers in self.lowers[..count].chunks(WINDOW) {
            let mut window = Window::new();
            for lower in lowers {
                window.push(lower.start(Op::Flush));
            }
            result = result.and(window.drain().await);
        }
        result
    }

    /// Runs in upper order; reads and writes bring their part of the buffer along.
    async fn transfer(&self, op: &Op, range: ByteRange) -> Result<()> {
        let mut window = Window::new();
        let mut result = Ok(());
        for run in self.table.map(range) {
            if window.is_full() {
                result = window.pop(op).await;
                if result.is_err() {
                    break;
                }
            }
            let mut part = op.part(run.range.at(run.start));
            part.set_range(run.range);
            window.push_at(self.lowers[usize::from(run.port.0)].start(part), run.start);
        }
        while !window.is_empty() {
            result = result.and(window.pop(op).await);
        }
        result
    }

    /// Without payload, runs of one lower that touch go down as one.
    async fn spread(&self, op: &Op, range: ByteRange) -> Result<()> {
        let mut open: Vec<Option<ByteRange>> = vec![None; self.lowers.len()];
        let mut window = Window::new();
        let mut result = Ok(());
        for run in self.table.map(range) {
            let port = usize::from(run.port.0);
            match open[port] {
                Some(before) if before.end() == run.range.start() => {
                    open[port] = ByteRange::between(before.start(), run.range.end());
                }
                before => {
                    if let Some(before) = before {
                        result = result.and(self.send(&mut window, op, port, before).await);
                    }
                    open[port] = Some(run.range);
                }
            }
        }
        for (port, last) in open.into_iter().enumerate() {
            if let Some(last) = last {
                result = result.and(self.send(&mut window, op, port, last).await);
            }
        }
        result.and(window.drain().await)
    }

    async fn send(&self, window: &mut Window, op: &Op, port: usize, to: ByteRange) -> Result<()> {
        let result = if window.is_full() { window.pop(op).await } else { Ok(()) };
        let part = match *op {
            Op::WriteZeroes { unmap, fua, .. } => Op::WriteZeroes { range: to, unmap, fua },
            Op::Discard { fua, .. } => Op::Discard { range: to, fua },
            _ => unreachable!("only what has no payload is spread"),
        };
        window.push(self.lowers[port].start(part));
        result
    }

    /// One run after the other, until one lower knows less than it was asked.
    async fn status(&self, range: ByteRange) -> Result<Vec<block::Extent>> {
        let mut all = Vec::new();
        for run in self.table.map(range) {
            let ask = Op::Status { range: run.range, extents: Vec::new() };
            let done = self.lowers[usize::from(run.port.0)].call(ask).await;
            done.result?;
            let Op::Status { extents, .. } = done.op else {
                unreachable!("it came back as it went")
            };
            let mut known = 0;
            for extent in extents {
                let len = extent.len.min(run.range.len() - known);
                if len > 0 {
                    push_extent(&mut all, len, extent.state);
                    known += len;
                }
            }
            if known < run.range.len() || all.len() >= EXTENTS_MAX {
                break;
            }
        }
        if all.is_empty() {
            push_extent(&mut all, range.len(), State::Data);
        }
        Ok(all)
    }
}

impl Device for Split {
    fn info(&self) -> &Info {
        &self.info
    }

    /// What is one run from end to end never comes here in parts.
    fn needs(&self) -> Needs {
        let mut segments = self.table.segments();
        let whole = segments.len() == 1
            && segments.all(|segment| matches!(segment.place, block::Place::Linear(_)));
        Needs::children(if whole { 1 } else { WINDOW as u32 })
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Flush => self.flush().await,
            Op::Read { range, .. } | Op::Write { range, .. } => {
                let range = *range;
                self.transfer(&request.op, range).await
            }
            Op::WriteZeroes { range, .. } | Op::Discard { range, .. } => {
                let range = *range;
                self.spread(&request.op, range).await
            }
            Op::Status { range, extents } => {
                *extents = self.status(*range).await?;
                Ok(())
            }
        }
    }

    fn resolve(&self, range: ByteRange) -> Result<Vec<Below>> {
        let place = |run: block::Run| Below {
            lower: usize::from(run.port.0),
            above: run.start,
            range: run.range,
            how: "",
        };
        let places: Vec<_> = self.table.map(range).take(EXTENTS_MAX + 1).map(place).collect();
        if places.len() > EXTENTS_MAX {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("{range} lies in more than {EXTENTS_MAX} runs; ask for less"),
            ));
        }
        Ok(places)
    }
}

/// Children in flight, in the order in which they were started.
struct Window {
    parts: [Option<(Child, u64)>; WINDOW],
    first: usize,
    len: usize,
}

impl Window {
    fn new() -> Self {
        Self { parts: [const { None }; WINDOW], first: 0, len: 0 }
    }

    fn is_full(&self) -> bool {
        self.len == WINDOW
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn push(&mut self, child: Child) {
        self.push_at(child, 0);
    }

    fn push_at(&mut self, child: Child, above: u64) {
        assert!(!self.is_full(), "a window holds {WINDOW}");
        self.parts[(self.first + self.len) % WINDOW] = Some((child, above));
        self.len += 1;
    }

    async fn oldest(&mut self) -> (block::Done, u64) {
        let (child, above) = self.parts[self.first].take().expect("the window is not empty");
        self.first = (self.first + 1) % WINDOW;
        self.len -= 1;
        (child.await, above)
    }

    /// Waits for the oldest part; a read that was answered in another buffer is copied home.
    async fn pop(&mut self, whole: &Op) -> Result<()> {
        let (done, above) = self.oldest().await;
        done.result?;
        if let (Op::Read { range, into, .. }, Op::Read { into: got, .. }) = (whole, &done.op) {
            let from = (above - range.start()) as usize;
            let home = into.slice(from..from + got.len());
            if !home.same(got) {
                home.write().copy_from_slice(&got.read());
            }
        }
        Ok(())
    }

    /// Waits for all; the first error counts.
    async fn drain(mut self) -> Result<()> {
        let mut result = Ok(());
        while !self.is_empty() {
            let (done, _) = self.oldest().await;
            result = result.and(done.result);
        }
        result
    }
}
