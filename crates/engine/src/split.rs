//! Splits a request that a table maps to several runs, which are contiguous ranges of lowers. The parts are sent to the
//! lowers in windows.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{
    ByteRange, Device, Extent, Info, Lower, Op, Request, Result, StatusMerge, Table, Window,
};

/// Most parts of one split request that are in flight at once. Further parts are sent when earlier parts are done.
pub const WINDOW: usize = 8;

/// The device of a table's node, which splits requests that the table maps to several runs.
pub struct Split {
    pub info: Info,
    pub table: Rc<Table>,
    /// Handles to the lowers of the table, one for each port.
    pub lowers: Box<[Lower]>,
}

impl Split {
    /// Sends a flush to every lower once, because a flush has no byte range.
    async fn flush(&self) -> Result<()> {
        let count = if seeded::on(Bug::FlushFirstChild) { 1 } else { self.lowers.len() };
        let mut window = Window::<WINDOW>::new();
        for lower in &self.lowers[..count] {
            window.room().await;
            window.start(lower, Op::Flush);
        }
        window.drain().await
    }

    /// Sends a child request for each run of a read or write to its lower, in the order of addresses in the table, with
    /// its part of the buffer. A read reports the copies that its parts have read.
    async fn transfer(&self, op: &mut Op, range: ByteRange) -> Result<()> {
        let mut window = Window::<WINDOW>::new();
        for run in self.table.map(range) {
            if !window.room().await {
                break;
            }
            let mut part = op.part(run.range.at(run.start));
            part.set_range(run.range);
            window.start(&self.lowers[usize::from(run.port.0)], part);
        }
        let done = window.drain().await;
        op.add_copies(window.copies());
        done
    }

    /// Sends child requests for the runs of a write zeroes or discard to their lowers. Adjacent runs of one lower
    /// become one child request.
    async fn spread(&self, op: &Op, range: ByteRange) -> Result<()> {
        let mut open: Vec<Option<ByteRange>> = vec![None; self.lowers.len()];
        let mut window = Window::<WINDOW>::new();
        for run in self.table.map(range) {
            let port = usize::from(run.port.0);
            match open[port] {
                Some(before) if before.end() == run.range.start() => {
                    open[port] = ByteRange::between(before.start(), run.range.end());
                }
                before => {
                    if let Some(before) = before {
                        self.send(&mut window, op, port, before).await;
                    }
                    open[port] = Some(run.range);
                }
            }
        }
        for (port, last) in open.into_iter().enumerate() {
            if let Some(last) = last {
                self.send(&mut window, op, port, last).await;
            }
        }
        window.drain().await
    }

    async fn send(&self, window: &mut Window<WINDOW>, op: &Op, port: usize, to: ByteRange) {
        window.room().await;
        let part = match *op {
            Op::WriteZeroes { unmap, fua, .. } => Op::WriteZeroes { range: to, unmap, fua },
            Op::Discard { fua, .. } => Op::Discard { range: to, fua },
            _ => unreachable!("only requests without payload are spread"),
        };
        window.start(&self.lowers[port], part);
    }

    /// Requests the block status of the lowers, until one of them reports fewer bytes than requested.
    async fn status(&self, range: ByteRange) -> Result<Vec<Extent>> {
        let mut merge = StatusMerge::new(&self.table, range);
        while let Some((port, range)) = merge.next() {
            let ask = Op::Status { range, extents: Vec::new() };
            let done = self.lowers[usize::from(port.0)].call(ask).await;
            done.result?;
            let Op::Status { extents, .. } = done.op else {
                unreachable!("a request returns with its own operation")
            };
            merge.add(extents);
        }
        Ok(merge.into_extents())
    }
}

impl Device for Split {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Flush => self.flush().await,
            Op::Read { range, .. } | Op::Write { range, .. } => {
                let range = *range;
                self.transfer(&mut request.op, range).await
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
}
