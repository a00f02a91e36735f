//! Features that a device lacks, emulated above it: zeros written as data, a discard that does nothing, smaller blocks.

use crate::control::Resolved;
use crate::{
    Buf, ByteRange, Copies, Device, Env, Info, Lower, Mode, Needs, Op, RangeLock, Request, Result,
    bail, clip_extents,
};

/// Length of the emulating device's buffer of zeros, in bytes.
const ZEROS_BYTES: usize = 256 << 10;

/// A device that emulates features which the blocks below lack, such as a smaller size. They are those of a lower, or of the
/// device itself.
pub struct Emulate<B = Lower> {
    below: B,
    info: Info,
    env: Env,
    /// A buffer of zeros; `None` if the blocks below zero natively.
    zeros: Option<Buf>,
    lock: RangeLock,
}

/// Blocks below an emulating device.
#[allow(async_fn_in_trait, reason = "one core drives each graph; its futures are not Send")]
pub trait Blocks: 'static {
    /// Returns the facts about the blocks.
    fn info(&self) -> &Info;

    /// Carries out a request of whole blocks.
    ///
    /// # Errors
    /// Errors of the device with the blocks.
    async fn carry_out(&self, op: &mut Op) -> Result<()>;
}

impl Blocks for Lower {
    fn info(&self) -> &Info {
        self.info()
    }

    async fn carry_out(&self, op: &mut Op) -> Result<()> {
        self.forward(op).await
    }
}

impl Emulate {
    /// Resources that one request needs in an emulating device over a lower.
    pub const NEEDS: Needs =
        Needs { children: 1, scratch_copies: 2, standing_bytes: ZEROS_BYTES as u32, ..Needs::LEAF };

    /// Whether a device with this `info` lacks a feature that [`Emulate`] provides, or has larger blocks than
    /// `block_size`.
    pub fn is_needed(info: &Info, block_size: u32) -> bool {
        !info.read_only && (!info.native_zeroes || !info.discard) || block_size < info.block_size
    }

    /// Returns the needs of one request in a device that has blocks of its own, of `block_size` bytes, and zeroes them
    /// natively, beside those of the device. Zeros at an edge reach into two blocks.
    pub fn needs_over(block_size: u32) -> Needs {
        Needs { scratch_copies: 2, scratch_bytes: 2 * block_size, ..Needs::LEAF }
    }

    /// Returns the facts about a device with blocks of `block_size` bytes over blocks with the facts `below`.
    ///
    /// # Errors
    /// `Limit` as [`Emulate::new`].
    pub fn facts(below: &Info, block_size: u32) -> Result<Info> {
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
        Ok(info)
    }
}

impl<B: Blocks> Emulate<B> {
    /// Creates an emulating device over `below` with blocks of `block_size` bytes: a power of two from 512 up to the
    /// block size of the lower.
    ///
    /// # Errors
    /// `Limit` if the pool has no room for the buffer of zeros, or if the lower takes no request of three of its
    /// blocks.
    pub fn new(env: &Env, below: B, block_size: u32) -> Result<Self> {
        let zeros = match below.info().native_zeroes {
            true => None,
            false => Some(zeroed(env.buf(ZEROS_BYTES)?)),
        };
        let info = Emulate::facts(below.info(), block_size)?;
        Ok(Self { below, info, env: env.clone(), zeros, lock: RangeLock::new() })
    }

    /// Returns the blocks below.
    pub fn below(&self) -> &B {
        &self.below
    }

    async fn call(&self, mut op: Op) -> Result<()> {
        self.below.carry_out(&mut op).await
    }

    /// Returns the smallest range of whole blocks of the lower that holds `range`; `None` if `range` consists of such
    /// blocks.
    fn widened(&self, range: ByteRange) -> Option<ByteRange> {
        let block = self.below.info().block_size;
        if range.is_aligned(block) {
            return None;
        }
        Some(range.widen(block).expect("a device ends at a block boundary far below u64::MAX"))
    }

    async fn read(&self, request: &mut Op) -> Result<()> {
        let range = request.range().expect("a read has a range");
        let Some(wide) = self.widened(range) else {
            return self.below.carry_out(request).await;
        };
        let buf = self.env.pool().scratch(wide.len() as usize).await?;
        let Op::Read { into, avoid, last_resort, .. } = request else {
            unreachable!("only reads are read");
        };
        let (avoided, last_resort) = (*avoid, *last_resort);
        let mut read = Op::Read { range: wide, into: buf, avoid: avoided, last_resort };
        let done = self.below.carry_out(&mut read).await;
        let Op::Read { into: found, avoid: copies, .. } = read else {
            unreachable!("a request returns with its own operation")
        };
        *avoid = copies;
        done?;
        *into = found.slice(within(wide, range));
        Ok(())
    }

    /// Writes `data` to `range`. Writes that share a block of the lower run one after the other, because each writes
    /// the whole block. A write that restores copies takes the rest of the block from another copy.
    async fn write(&self, range: ByteRange, data: Buf, fua: bool, restores: Copies) -> Result<()> {
        let Some(wide) = self.widened(range) else {
            let _shared = self.lock.lock(range, Mode::Shared).await;
            return self.call(Op::Write { range, data, fua, restores }).await;
        };
        let _alone = self.lock.lock(wide, Mode::Exclusive).await;
        let scratch = self.env.pool().scratch(wide.len() as usize).await?;
        let mut read = Op::Read { range: wide, into: scratch, avoid: restores, last_resort: false };
        self.below.carry_out(&mut read).await?;
        let Op::Read { into: old, .. } = read else {
            unreachable!("a request returns with its own operation")
        };
        let new = self.env.pool().scratch(wide.len() as usize).await?;
        new.write().copy_from_slice(&old.read());
        new.slice(within(wide, range)).write().copy_from_slice(&data.read());
        self.call(Op::Write { range: wide, data: new, fua, restores }).await
    }

    async fn zero(&self, range: ByteRange, unmap: bool, fua: bool) -> Result<()> {
        let whole = self.whole(range).filter(|_| self.below.info().native_zeroes);
        let Some(whole) = whole else { return self.write_zeros(range, fua).await };
        for edge in [(range.start(), whole.start()), (whole.end(), range.end())] {
            if let Some(edge) = ByteRange::between(edge.0, edge.1) {
                self.write_zeros(edge, fua).await?;
            }
        }
        let _shared = self.lock.lock(whole, Mode::Shared).await;
        self.call(Op::WriteZeroes { range: whole, unmap, fua }).await
    }

    async fn write_zeros(&self, range: ByteRange, fua: bool) -> Result<()> {
        let most = (ZEROS_BYTES as u64).min(u64::from(self.info.max_transfer));
        let mut at = range.start();
        while at < range.end() {
            let piece = ByteRange::between(at, range.end().min(at + most))
                .expect("bytes of the range are left to write");
            let zeros = match &self.zeros {
                Some(zeros) => zeros.slice(0..piece.len() as usize),
                None => zeroed(self.env.pool().scratch(piece.len() as usize).await?),
            };
            self.write(piece, zeros, fua, Copies::NONE).await?;
            at = piece.end();
        }
        Ok(())
    }

    /// Returns the whole blocks below in `range`.
    fn whole(&self, range: ByteRange) -> Option<ByteRange> {
        let block = u64::from(self.below.info().block_size);
        let end = range.end() - range.end() % block;
        ByteRange::between(range.start().next_multiple_of(block), end)
    }

    /// Discards the whole blocks below in `range`. The bytes at the edges keep their content, which the contract of a
    /// discard allows.
    async fn discard(&self, range: ByteRange, fua: bool) -> Result<()> {
        match self.whole(range) {
            Some(range) if self.below.info().discard => {
                let _shared = self.lock.lock(range, Mode::Shared).await;
                self.call(Op::Discard { range, fua }).await
            }
            _ => Ok(()),
        }
    }

    async fn status(&self, range: ByteRange) -> Result<Vec<crate::Extent>> {
        let wide = self.widened(range).unwrap_or(range);
        let mut status = Op::Status { range: wide, extents: Vec::new() };
        self.below.carry_out(&mut status).await?;
        let Op::Status { extents, .. } = status else {
            unreachable!("a request returns with its own operation")
        };
        Ok(clip_extents(&extents, range.start() - wide.start(), range.len()))
    }
}

fn zeroed(buf: Buf) -> Buf {
    buf.write().fill(0);
    buf
}

fn within(wide: ByteRange, range: ByteRange) -> std::ops::Range<usize> {
    let from = (range.start() - wide.start()) as usize;
    from..from + range.len() as usize
}

impl<B: Blocks> Device for Emulate<B> {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        Blocks::carry_out(self, &mut request.op).await
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, ""))
    }
}

impl<B: Blocks> Blocks for Emulate<B> {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn carry_out(&self, op: &mut Op) -> Result<()> {
        match op {
            Op::Read { .. } => self.read(op).await,
            Op::Write { range, data, fua, restores } => {
                self.write(*range, data.clone(), *fua, *restores).await
            }
            Op::WriteZeroes { range, unmap, fua } => self.zero(*range, *unmap, *fua).await,
            Op::Discard { range, fua } => self.discard(*range, *fua).await,
            Op::Flush => self.call(Op::Flush).await,
            Op::Status { range, extents } => {
                *extents = self.status(*range).await?;
                Ok(())
            }
        }
    }
}
