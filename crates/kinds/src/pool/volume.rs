//! An open version of a pool as a device, and the facts about versions.

use std::rc::Rc;

use ::pool::BLOCK_BYTES;
use ::pool::live::{READS_MAX, VersionId};
use block::control::Resolved;
use block::{
    ByteRange, Device, Info, Needs, Op, OpenedVolume, Request, Result, VolumeFacts, VolumeId,
};

use super::home::{Held, PoolHome};

/// Longest request to a volume, in bytes.
pub const TRANSFER_MAX: u32 = 1 << 20;

/// Requests to the device below that one request to a volume has in flight: reads of scattered blocks.
pub const NEEDS: Needs = Needs::parts(READS_MAX as u32);

/// Returns the facts about a volume of `size` bytes in a pool on a device with the facts `below`.
pub fn info(below: &Info, size: u64, read_only: bool) -> Info {
    Info {
        size,
        block_size: BLOCK_BYTES,
        padding: 0,
        preferred_io: below.preferred_io.max(BLOCK_BYTES),
        max_transfer: TRANSFER_MAX.min(below.max_transfer - below.max_transfer % BLOCK_BYTES),
        read_only,
        // A flush makes the log durable, and FUA is a write and a flush.
        volatile_cache: true,
        native_fua: false,
        native_zeroes: true,
        discard: true,
        discard_zeroes: true,
        // The pool verifies the bytes, and reads other copies by itself.
        copies: 1,
        ..below.clone()
    }
}

/// Returns the identity of a version for clients.
pub fn identity(id: VersionId) -> VolumeId {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&id.vdisk.to_le_bytes());
    bytes[8..16].copy_from_slice(&id.snapshot.unwrap_or_default().to_le_bytes());
    VolumeId(bytes)
}

/// Returns the version with an identity that [`identity`] has made.
pub fn version_of(id: VolumeId) -> VersionId {
    let number = |at: usize| u64::from_le_bytes(id.0[at..at + 8].try_into().expect("8 bytes"));
    VersionId { vdisk: number(0), snapshot: Some(number(8)).filter(|number| *number > 0) }
}

/// An open version of a pool.
pub struct Volume {
    home: PoolHome,
    held: Rc<Held>,
    info: Info,
}

impl Volume {
    /// Opens a version.
    ///
    /// # Errors
    /// As [`PoolHome::hold`].
    pub async fn open(home: &PoolHome, id: VersionId) -> Result<OpenedVolume<Self>> {
        let info = home.facts(id).await?;
        let held = home.hold(id).await?;
        let device = Rc::new(Self { home: home.clone(), held, info });
        Ok(OpenedVolume { id: identity(id), device, needs: NEEDS })
    }
}

impl PoolHome {
    /// Returns the facts about a version.
    ///
    /// # Errors
    /// `NotFound` if it was removed; those of the device.
    pub async fn facts(&self, id: VersionId) -> Result<Info> {
        let size = self.for_reading().await?.size(id).await?;
        let read_only = id.snapshot.is_some() || self.is_read_only();
        Ok(info(self.lower().info(), size, read_only))
    }

    /// Returns the facts about a version, with its identity.
    ///
    /// # Errors
    /// As [`PoolHome::facts`].
    pub async fn volume_facts(&self, id: VersionId) -> Result<VolumeFacts> {
        Ok(VolumeFacts { id: Some(identity(id)), info: self.facts(id).await? })
    }
}

impl Device for Volume {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let (pool, version) = self.home.version(&self.held).await?;
        let first = |range: ByteRange| range.start() / u64::from(BLOCK_BYTES);
        let blocks = |range: ByteRange| range.len() / u64::from(BLOCK_BYTES);
        let fua = match &mut request.op {
            Op::Read { range, into, .. } => {
                return pool.read(&version, first(*range), into).await;
            }
            Op::Status { range, extents } => {
                *extents = pool.status(&version, *range).await?;
                return Ok(());
            }
            Op::Flush => return pool.flush().await,
            Op::Write { range, data, fua, .. } => {
                pool.write(&version, first(*range), data.clone()).await?;
                *fua
            }
            Op::WriteZeroes { range, fua, .. } | Op::Discard { range, fua } => {
                pool.zero(&version, first(*range), blocks(*range)).await?;
                *fua
            }
        };
        if fua { pool.flush().await } else { Ok(()) }
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        let (pool, version) = self.home.version(&self.held).await?;
        pool.resolve(&version, range).await
    }
}
