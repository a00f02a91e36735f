//! Requests of clients that a device does not accept as they are: they begin or end inside a block, are longer than the
//! device's longest request, or have a buffer at an address that the device does not accept. They are carried out in
//! pieces. A read reads whole blocks. A write reads the blocks at its ends, changes their bytes in memory, and writes
//! whole blocks (read-modify-write).
//!
//! No other change of these blocks may take effect between the read and the write, or the write would undo it. So the
//! write first lists its blocks at the node. Then the engine begins no other change of them until the write has ended,
//! and the write waits for the changes that had begun before. Requests that consist of whole blocks go to the node as
//! ever. The engine looks at its list, which is empty as a rule, before it begins one.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;

use block::{
    BUF_MAX_BYTES, Buf, BufPool, ByteRange, Copies, Device, Info, Lower, Needs, Op, Request,
    Result, clip_extents,
};

use super::node::{Node, Power};
use super::reserve::Reserve;
use super::share::Need;
use super::slot::AnyDevice;
use super::{Engine, Inner, Owner};

/// Length in bytes of the longest piece of a request. So the memory for one request does not grow with its length.
const PIECE_BYTES: u64 = 256 << 10;

/// The blocks of a node that requests in pieces read, change and write back now.
#[derive(Default)]
pub(super) struct Rewrites(RefCell<Vec<ByteRange>>);

impl Rewrites {
    /// Whether a block of `range` is listed. `block` is the block size of the node.
    #[inline]
    pub fn hold(&self, range: ByteRange, block: u32) -> bool {
        let listed = self.0.borrow();
        !listed.is_empty() && {
            let wide = range.widen(block).unwrap_or(range);
            listed.iter().any(|other| other.overlaps(wide))
        }
    }
}

/// The entry of a list of rewrites, which is removed when this value is dropped.
struct Listed<'a> {
    rewrites: &'a Rewrites,
    wide: ByteRange,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut listed = self.rewrites.0.borrow_mut();
        // The engine begins no request that overlaps an entry, so no two entries are equal.
        listed.retain(|other| *other != self.wide);
    }
}

/// A device over one node of an engine that accepts requests of any offset and length, with a buffer at any address.
struct Pieces {
    info: Info,
    lower: Lower,
    node: Rc<Node>,
    /// Not a strong handle: the engine owns the futures of this device.
    engine: Weak<Inner>,
    pool: BufPool,
}

impl Engine {
    /// Returns a node over `node` for requests that `node` does not accept as they are.
    pub(super) fn pieces(&self, node: &Rc<Node>) -> Rc<Node> {
        let needs = Needs { children: 1, scratch_copies: 2, ..Needs::LEAF };
        let reserve = Reserve::of_device(needs, node.info.block_size, &[node.reserve]);
        let info = info(&node.info);
        let device: Rc<dyn AnyDevice> = Rc::new(Pieces {
            info: info.clone(),
            lower: self.lower_of(node),
            node: node.clone(),
            engine: Rc::downgrade(&self.0),
            pool: self.0.pool.clone(),
        });
        let future_bytes = device.future_bytes();
        let power = Power::Device { device, lowers: Box::default(), future_bytes };
        Rc::new(Node::new(&node.name, info, power, reserve))
    }
}

/// Returns the facts about a node for requests in pieces over a node with the facts `below`.
pub(super) fn info(below: &Info) -> Info {
    let size = below.data_bytes();
    let max_transfer = BUF_MAX_BYTES as u32;
    Info { size, block_size: 1, padding: 0, buf_align: 1, max_transfer, ..below.clone() }
}

/// Returns the resources that the request `op` needs in a node for requests in pieces with this reserve.
pub(super) fn need(reserve: Reserve, op: &Op) -> Need {
    match op {
        Op::Read { range, .. } | Op::Write { range, .. } => {
            Need { slots: reserve.slots.into(), bytes: reserve.bytes(range.len().min(PIECE_BYTES)) }
        }
        Op::WriteZeroes { .. } | Op::Discard { .. } | Op::Status { .. } | Op::Flush => {
            reserve.need(op)
        }
    }
}

/// Whether a node with the facts `info` carries out the request `op` as it is.
#[inline]
pub(super) fn takes(info: &Info, op: &Op) -> bool {
    match op {
        Op::Read { range, into: buf, .. } | Op::Write { range, data: buf, .. } => {
            takes_range(info, *range) && takes_payload(info, *range, buf)
        }
        Op::WriteZeroes { range, .. } | Op::Discard { range, .. } | Op::Status { range, .. } => {
            takes_range(info, *range)
        }
        Op::Flush => true,
    }
}

/// Whether the range consists of whole blocks. It may not reach the padding of the last block; the check of a request
/// in pieces refuses a range that does.
#[inline]
fn takes_range(info: &Info, range: ByteRange) -> bool {
    range.is_aligned(info.block_size) && (info.padding == 0 || range.end() < info.size)
}

#[inline]
fn takes_payload(info: &Info, range: ByteRange, buf: &Buf) -> bool {
    range.len() <= u64::from(info.max_transfer)
        && buf.as_ptr().addr() & (info.buf_align as usize - 1) == 0
}

impl Inner {
    /// Whether a client's request is in flight that changes whole blocks of `node` in `wide`.
    fn is_changing(&self, node: &Rc<Node>, wide: ByteRange) -> bool {
        (0..self.slots.made()).map(|index| self.slots.get(index)).any(|entry| {
            if entry.owner.get() != Owner::Client
                || !entry.changes.get().is_some_and(|range| range.overlaps(wide))
            {
                return false;
            }
            let portal = entry.portal.take();
            let is_here = portal.as_ref().is_some_and(|portal| Rc::ptr_eq(&portal.target(), node));
            entry.portal.set(portal);
            is_here
        })
    }
}

impl Pieces {
    fn block(&self) -> u64 {
        self.node.info.block_size.into()
    }

    fn widen(&self, range: ByteRange) -> ByteRange {
        let wide = range.widen(self.node.info.block_size);
        wide.expect("a device ends at a block boundary far below u64::MAX")
    }

    /// Returns the whole blocks inside `range`; `None` if there are none.
    fn whole(&self, range: ByteRange) -> Option<ByteRange> {
        let block = self.block();
        let (start, end) = (range.start().next_multiple_of(block), range.end());
        ByteRange::between(start, end - end % block)
    }

    /// Returns the first piece of `range`: its blocks are at most [`PIECE_BYTES`] together.
    fn piece(&self, range: ByteRange) -> ByteRange {
        let most = PIECE_BYTES.min(self.node.info.max_transfer.into());
        let most = (most - most % self.block()).max(self.block());
        let end = range.start() - range.start() % self.block() + most;
        ByteRange::between(range.start(), range.end().min(end)).expect("a piece has a byte")
    }

    /// Whether the node accepts a read or write of `piece` with the bytes `part` of the client's buffer.
    fn accepts(&self, piece: ByteRange, part: &Buf) -> bool {
        takes_payload(&self.node.info, piece, part) && takes_range(&self.node.info, piece)
    }

    /// Lists the blocks of `range`, and waits until the changes of them that have begun before are done.
    async fn rewrite(&self, range: ByteRange) -> Listed<'_> {
        let wide = self.widen(range);
        let rewrites = &self.node.rewrites;
        rewrites.0.borrow_mut().push(wide);
        let listed = Listed { rewrites, wide };
        poll_fn(|cx| {
            let Some(engine) = self.engine.upgrade() else { return Poll::Ready(()) };
            if !engine.is_changing(&self.node, wide) {
                return Poll::Ready(());
            }
            engine.waiting.wake_later(cx);
            Poll::Pending
        })
        .await;
        listed
    }

    /// Reads whole blocks with a buffer of the request's reserve.
    async fn read_wide(
        &self,
        wide: ByteRange,
        avoid: Copies,
        last_resort: bool,
    ) -> Result<(Buf, Copies)> {
        let into = self.pool.scratch(wide.len() as usize).await?;
        let done = self.lower.call(Op::Read { range: wide, into, avoid, last_resort }).await;
        let copies = done.copies();
        Ok((done.into_buf()?, copies))
    }

    /// Reads `range` piece by piece, and adds the copies that were read to `copies`. Each piece avoids only the copies
    /// that the request avoids.
    async fn read(
        &self,
        range: ByteRange,
        into: &Buf,
        copies: &mut Copies,
        last_resort: bool,
    ) -> Result<()> {
        let (mut rest, avoid) = (Some(range), *copies);
        while let Some(left) = rest {
            let piece = self.piece(left);
            let to = into.slice(within(range, piece));
            let read = if self.accepts(piece, &to) {
                let read = Op::Read { range: piece, into: to, avoid, last_resort };
                let done = self.lower.call(read).await;
                let read = done.copies();
                done.result?;
                read
            } else {
                let wide = self.widen(piece);
                let (got, read) = self.read_wide(wide, avoid, last_resort).await?;
                to.write().copy_from_slice(&got.slice(within(wide, piece)).read());
                read
            };
            *copies = copies.or(read);
            rest = ByteRange::between(piece.end(), range.end());
        }
        Ok(())
    }

    /// Writes `data` to `range`, of which the blocks are listed, piece by piece; `None` stands for zeros.
    async fn write(
        &self,
        range: ByteRange,
        data: Option<&Buf>,
        fua: bool,
        restores: Copies,
    ) -> Result<()> {
        let mut rest = Some(range);
        while let Some(left) = rest {
            let piece = self.piece(left);
            let (wide, new) = match data.map(|data| data.slice(within(range, piece))) {
                Some(part) if self.accepts(piece, &part) => (piece, part),
                part => (self.widen(piece), self.changed(piece, part, restores).await?),
            };
            self.lower.call(Op::Write { range: wide, data: new, fua, restores }).await.result?;
            rest = ByteRange::between(piece.end(), range.end());
        }
        Ok(())
    }

    /// Returns the blocks that `piece` covers, with the bytes `part` in the place of `piece`; `None` stands for zeros. The
    /// other bytes come from copies that are not in `avoid`.
    async fn changed(&self, piece: ByteRange, part: Option<Buf>, avoid: Copies) -> Result<Buf> {
        let wide = self.widen(piece);
        let new = self.pool.scratch(wide.len() as usize).await?;
        self.read_ends(wide, piece, &new, avoid).await?;
        let to = new.slice(within(wide, piece));
        match part {
            None => to.write().fill(0),
            Some(part) => to.write().copy_from_slice(&part.read()),
        }
        Ok(new)
    }

    /// Reads the blocks of `wide` that `piece` covers in part into their places in `new`: the first, the last, or both.
    async fn read_ends(
        &self,
        wide: ByteRange,
        piece: ByteRange,
        new: &Buf,
        avoid: Copies,
    ) -> Result<()> {
        let block = self.block();
        let (has_head, has_tail) = (wide.start() < piece.start(), piece.end() < wide.end());
        let head = ByteRange::between(wide.start(), wide.start() + block).filter(|_| has_head);
        let tail = ByteRange::between(wide.end() - block, wide.end()).filter(|_| has_tail);
        let reads = match (head, tail) {
            // The ends are one block, or two adjacent blocks: one read.
            (Some(_), Some(_)) if wide.len() <= 2 * block => [Some(wide), None],
            ends => ends.into(),
        };
        for range in reads.into_iter().flatten() {
            let (old, _) = self.read_wide(range, avoid, false).await?;
            new.slice(within(wide, range)).write().copy_from_slice(&old.read());
        }
        Ok(())
    }

    /// Zeroes `range`, of which the blocks are listed: the blocks at its ends as a write does, and whole blocks as the
    /// device does.
    async fn zero(&self, range: ByteRange, unmap: bool, fua: bool) -> Result<()> {
        let Some(whole) = self.whole(range) else {
            return self.write(range, None, fua, Copies::NONE).await;
        };
        let head = ByteRange::between(range.start(), whole.start());
        let tail = ByteRange::between(whole.end(), range.end());
        for end in [head, tail].into_iter().flatten() {
            self.write(end, None, fua, Copies::NONE).await?;
        }
        self.lower.call(Op::WriteZeroes { range: whole, unmap, fua }).await.result
    }

    /// Discards the whole blocks in `range`. The bytes at its ends keep their content, which a discard allows.
    async fn discard(&self, range: ByteRange, fua: bool) -> Result<()> {
        match self.whole(range) {
            Some(range) => self.lower.call(Op::Discard { range, fua }).await.result,
            None => Ok(()),
        }
    }
}

/// Returns the offsets of the bytes of `part` in a buffer with the bytes of `whole`.
fn within(whole: ByteRange, part: ByteRange) -> std::ops::Range<usize> {
    let from = (part.start() - whole.start()) as usize;
    from..from + part.len() as usize
}

impl Device for Pieces {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { range, into, avoid, last_resort } => {
                self.read(*range, into, avoid, *last_resort).await
            }
            Op::Write { range, data, fua, restores } => {
                let _listed = self.rewrite(*range).await;
                self.write(*range, Some(data), *fua, *restores).await
            }
            Op::WriteZeroes { range, unmap, fua } => {
                let _listed = self.rewrite(*range).await;
                self.zero(*range, *unmap, *fua).await
            }
            Op::Discard { range, fua } => {
                let _listed = self.rewrite(*range).await;
                self.discard(*range, *fua).await
            }
            Op::Status { range, extents } => {
                let wide = self.widen(*range);
                let done = self.lower.call(Op::Status { range: wide, extents: Vec::new() }).await;
                done.result?;
                let Op::Status { extents: found, .. } = done.op else {
                    unreachable!("a request returns with its own operation")
                };
                *extents = clip_extents(&found, range.start() - wide.start(), range.len());
                Ok(())
            }
            Op::Flush => unreachable!("a flush has no range, so the node accepts it as it is"),
        }
    }
}

#[cfg(test)]
mod tests;
