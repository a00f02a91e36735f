//! An open version of a pool: the device of a vdisk or of a snapshot.

use std::rc::Rc;

use block::control::Resolved;
use block::{ByteRange, Device, Info, Needs, Op, Request, Result};
use pool::BLOCK_BYTES;
use pool::core::{Pool, READS_MAX, Version};

/// Largest request to a volume, in bytes: the data of one record.
const TRANSFER_MAX: u32 = 1 << 20;

/// The resources that a request to a volume may need. Its reads go to many places after random writes.
pub const NEEDS: Needs = Needs::children(READS_MAX as u32);

/// The device of an open version.
pub struct Volume {
    pool: Rc<Pool>,
    version: Rc<Version>,
    info: Info,
}

/// Returns the facts about a volume of `size` bytes over `lower`.
pub fn info(lower: &Info, size: u64, is_read_only: bool) -> Info {
    Info {
        size,
        block_size: BLOCK_BYTES,
        preferred_io: lower.preferred_io.max(BLOCK_BYTES),
        max_transfer: TRANSFER_MAX.min(lower.max_transfer - lower.max_transfer % BLOCK_BYTES),
        read_only: lower.read_only || is_read_only,
        volatile_cache: true,
        native_fua: false,
        native_zeroes: true,
        discard: true,
        discard_zeroes: true,
        ..lower.clone()
    }
}

impl Volume {
    /// Creates the device of `version`.
    pub fn new(pool: Rc<Pool>, version: Rc<Version>, info: Info) -> Self {
        Self { pool, version, info }
    }

    async fn change(&self, op: &Op) -> Result<()> {
        match op {
            Op::Write { range, data, .. } => {
                self.pool.write(&self.version, block_of(range.start()), data.clone()).await
            }
            Op::WriteZeroes { range, .. } | Op::Discard { range, .. } => {
                let blocks = range.len() / u64::from(BLOCK_BYTES);
                self.pool.zero(&self.version, block_of(range.start()), blocks).await
            }
            other => unreachable!("a {} request changes no blocks", other.verb()),
        }
    }
}

fn block_of(byte: u64) -> u64 {
    byte / u64::from(BLOCK_BYTES)
}

impl Device for Volume {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { range, into, .. } => {
                self.pool.read(&self.version, block_of(range.start()), into).await
            }
            Op::Flush => self.pool.flush().await,
            Op::Status { range, extents } => {
                *extents = self.pool.status(&self.version, *range).await?;
                Ok(())
            }
            op => {
                self.change(op).await?;
                if op.fua() { self.pool.flush().await } else { Ok(()) }
            }
        }
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        self.pool.resolve(&self.version, range).await
    }
}
