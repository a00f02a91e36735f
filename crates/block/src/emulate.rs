//! Features that a lower lacks, emulated by a device above: zeros written as data, a discard that does nothing,
//! blocks smaller than those of the lower.

use crate::control::Resolved;
use crate::{
    Buf, ByteRange, Copies, Device, Env, Info, Lower, Mode, Needs, Op, RangeLock, Request, Result,
    bail, clip_extents,
};

/// Length of the emulating device's buffer of zeros, in bytes.
const ZEROS_BYTES: usize = 256 << 10;

/// A device that emulates features which its lower lacks, such as smaller blocks.
pub struct Emulate {
    lower: Lower,
    info: Info,
    env: Env,
    zeros: Buf,
    lock: RangeLock,
}

impl Emulate {
    /// Resources that one request needs in an emulating device.
    pub const NEEDS: Needs =
        Needs { children: 1, scratch_copies: 2, standing_bytes: ZEROS_BYTES as u32, ..Needs::LEAF };

    /// Creates an emulating device over `lower` with blocks of `block_size` bytes: a power of two from 512 up to the
    /// block size of the lower.
    ///
    /// # Errors
    /// `Limit` if the pool has no room for the buffer of zeros, or if the lower takes no request of three of its
    /// blocks.
    pub fn new(env: &Env, lower: Lower, block_size: u32) -> Result<Self> {
        let zeros = env.buf(ZEROS_BYTES)?;
        zeros.write().fill(0);
        let below = lower.info();
        let mut info = Info { block_size: block_size.min(below.block_size), ..below.clone() };
        if info.block_size < below.block_size {
            // A request widened to whole blocks may grow at both ends.
            let most = below.max_transfer.saturating_sub(2 * below.block_size);
            if most < info.block_size {
                bail!(
                    Limit,
                    "the lower's limit of {} bytes per request is too small for blocks of {} bytes \
                     on blocks of {} bytes",
                    below.max_transfer,
                    info.block_size,
                    below.block_size
                );
            }
            info.max_transfer = most;
        }
        Ok(Self { lower, info, env: env.clone(), zeros, lock: RangeLock::new() })
    }

    /// Whether a device with this `info` lacks a feature that [`Emulate`] provides, or has larger blocks than
    /// `block_size`.
    pub fn is_needed(info: &Info, block_size: u32) -> bool {
        !info.read_only && (!info.native_zeroes || !info.discard) || block_size < info.block_size
    }

    /// Returns the smallest range of whole blocks of the lower that holds `range`; `None` if `range` consists of such
    /// blocks.
    fn widened(&self, range: ByteRange) -> Option<ByteRange> {
        let block = self.lower.info().block_size;
        if range.is_aligned(block) {
            return None;
        }
        Some(range.widen(block).expect("a device ends at a block boundary far below u64::MAX"))
    }

    async fn read(&self, request: &mut Op) -> Result<()> {
        let range = request.range().expect("a read has a range");
        let Some(wide) = self.widened(range) else {
            return self.lower.forward(request).await;
        };
        let buf = self.env.pool().scratch(wide.len() as usize).await?;
        let Op::Read { into, avoid, last_resort, .. } = request else {
            unreachable!("only reads are read");
        };
        let (avoided, last_resort) = (*avoid, *last_resort);
        let read = Op::Read { range: wide, into: buf, avoid: avoided, last_resort };
        let done = self.lower.call(read).await;
        *avoid = done.copies();
        *into = done.into_buf()?.slice(within(wide, range));
        Ok(())
    }

    /// Writes `data` to `range`. Writes that share a block of the lower run one after the other, because each writes
    /// the whole block. A write that restores copies takes the rest of the block from another copy.
    async fn write(&self, range: ByteRange, data: Buf, fua: bool, restores: Copies) -> Result<()> {
        let Some(wide) = self.widened(range) else {
            let _shared = self.lock.lock(range, Mode::Shared).await;
            return self.lower.call(Op::Write { range, data, fua, restores }).await.result;
        };
        let _alone = self.lock.lock(wide, Mode::Exclusive).await;
        let scratch = self.env.pool().scratch(wide.len() as usize).await?;
        let read = Op::Read { range: wide, into: scratch, avoid: restores, last_resort: false };
        let old = self.lower.call(read).await.into_buf()?;
        let new = self.env.pool().scratch(wide.len() as usize).await?;
        new.write().copy_from_slice(&old.read());
        new.slice(within(wide, range)).write().copy_from_slice(&data.read());
        self.lower.call(Op::Write { range: wide, data: new, fua, restores }).await.result
    }

    async fn zero(&self, range: ByteRange, unmap: bool, fua: bool) -> Result<()> {
        if self.lower.info().native_zeroes && self.widened(range).is_none() {
            let _shared = self.lock.lock(range, Mode::Shared).await;
            return self.lower.call(Op::WriteZeroes { range, unmap, fua }).await.result;
        }
        let most = (ZEROS_BYTES as u64).min(u64::from(self.info.max_transfer));
        let mut at = range.start();
        while at < range.end() {
            let piece = ByteRange::between(at, range.end().min(at + most))
                .expect("bytes of the range are left to write");
            let zeros = self.zeros.slice(0..piece.len() as usize);
            self.write(piece, zeros, fua, Copies::NONE).await?;
            at = piece.end();
        }
        Ok(())
    }

    /// Discards the whole blocks of the lower in `range`. The bytes at the edges keep their content, which the
    /// contract of a discard allows.
    async fn discard(&self, range: ByteRange, fua: bool) -> Result<()> {
        let block = u64::from(self.lower.info().block_size);
        let whole = ByteRange::between(
            range.start().next_multiple_of(block),
            range.end() - range.end() % block,
        );
        match whole {
            Some(range) if self.lower.info().discard => {
                let _shared = self.lock.lock(range, Mode::Shared).await;
                self.lower.call(Op::Discard { range, fua }).await.result
            }
            _ => Ok(()),
        }
    }

    async fn status(&self, range: ByteRange) -> Result<Vec<crate::Extent>> {
        let wide = self.widened(range).unwrap_or(range);
        let done = self.lower.call(Op::Status { range: wide, extents: Vec::new() }).await;
        done.result?;
        let Op::Status { extents, .. } = done.op else {
            unreachable!("a lower returns the request that it was given")
        };
        Ok(clip_extents(&extents, range.start() - wide.start(), range.len()))
    }
}

fn within(wide: ByteRange, range: ByteRange) -> std::ops::Range<usize> {
    let from = (range.start() - wide.start()) as usize;
    from..from + range.len() as usize
}

impl Device for Emulate {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { .. } => self.read(&mut request.op).await,
            Op::Write { range, data, fua, restores } => {
                self.write(*range, data.clone(), *fua, *restores).await
            }
            Op::WriteZeroes { range, unmap, fua } => self.zero(*range, *unmap, *fua).await,
            Op::Discard { range, fua } => self.discard(*range, *fua).await,
            Op::Flush => self.lower.flush().await,
            Op::Status { range, extents } => {
                *extents = self.status(*range).await?;
                Ok(())
            }
        }
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, ""))
    }
}
