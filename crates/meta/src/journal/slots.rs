//! The two slots with the root, in front of the ring.

use block::{ByteRange, Copies, Env, Error, ErrorKind, Lower, Op, Result, error};

use super::root::{ROOT_BYTES, Root, Wrong};
use crate::copies::Source;
use crate::io::{all_of, write_all};
use crate::ring::SECTOR_BYTES;

/// Offset of the ring behind the two slots, in bytes.
pub const RING_START: u64 = 2 * ROOT_BYTES as u64;

/// Number of bytes that one request zeros when a journal is made.
const ZERO_STEP: u64 = 64 << 20;

/// The slots of a journal that begins at a byte of a device.
pub struct Slots<'s> {
    env: &'s Env,
    lower: &'s Lower,
    base: u64,
}

/// The content of both slots.
pub struct Found {
    pub slots: [Result<Root, Wrong>; 2],
    /// The copies of each slot that do not have its content.
    wrong: [Copies; 2],
}

impl Found {
    /// Returns the newest valid root, and the number of its slot.
    ///
    /// # Errors
    /// `Unsupported` if a newer version of Cairn wrote a slot; `NotFound` if both are zeros; `Corrupt` if no slot has a
    /// root.
    pub fn newest(&self, name: &str) -> Result<(Root, usize)> {
        let fault = |kind, wrong: &Wrong| Error::new(kind, wrong.to_string()).at(name);
        for slot in &self.slots {
            if let Err(wrong @ (Wrong::Version(_) | Wrong::Features(_))) = slot {
                let error = fault(ErrorKind::Unsupported, wrong);
                return Err(error.next("open the device with the Cairn that wrote it last"));
            }
        }
        match &self.slots {
            [Ok(one), Ok(two)] if two.sequence > one.sequence => Ok((*two, 1)),
            [Ok(one), _] => Ok((*one, 0)),
            [_, Ok(two)] => Ok((*two, 1)),
            [Err(Wrong::Zeros), Err(Wrong::Zeros)] => {
                let error = fault(ErrorKind::NotFound, &Wrong::Zeros);
                Err(error.next("check that this is the disk with the journal"))
            }
            [Err(Wrong::Zeros), Err(wrong)] | [Err(wrong), _] => {
                let error = fault(ErrorKind::Corrupt, wrong);
                Err(error.next("check that this is the disk with the journal, or restore it"))
            }
        }
    }
}

impl<'s> Slots<'s> {
    pub fn new(env: &'s Env, lower: &'s Lower, base: u64) -> Self {
        Self { env, lower, base }
    }

    /// Reads both slots, each from all copies of the device. A slot that cannot be read is damaged.
    ///
    /// # Errors
    /// `Limit` if the pool has no buffer.
    pub async fn read(&self) -> Result<Found> {
        let ((one, wrong_one), (two, wrong_two)) =
            (self.read_slot(0).await?, self.read_slot(1).await?);
        Ok(Found { slots: [one, two], wrong: [wrong_one, wrong_two] })
    }

    /// Reads a slot from all copies of the device. Returns its newest root, and the copies that do not have it.
    async fn read_slot(&self, slot: usize) -> Result<(Result<Root, Wrong>, Copies)> {
        let into = self.env.pool().wait_for(ROOT_BYTES).await?;
        let read = self.source(slot).newest(&into, Root::decode, |root| root.sequence).await;
        Ok(read.unwrap_or_else(|error| (Err(Wrong::Damaged(error.to_string())), Copies::NONE)))
    }

    fn source(&self, slot: usize) -> Source<'_> {
        Source::new(self.lower, self.base + (slot * ROOT_BYTES) as u64, ROOT_BYTES)
    }

    /// Writes the root of slot `slot` over the copies that do not have it.
    ///
    /// # Errors
    /// `Limit` if the pool has no buffer.
    pub async fn restore(&self, found: &Found, slot: usize) -> Result<()> {
        if let Ok(root) = &found.slots[slot] {
            let buf = self.env.pool().wait_for(ROOT_BYTES).await?;
            buf.write().copy_from_slice(&root.encode());
            // Both slots are written again at the end of the opening.
            let _ = self.source(slot).restore(&buf, found.wrong[slot]).await;
        }
        Ok(())
    }

    /// Writes a root to both slots, first to slot `first`, with a flush after each.
    ///
    /// # Errors
    /// The error of a write or flush.
    pub async fn write(&self, root: &Root, first: usize) -> Result<()> {
        for slot in [first, 1 - first] {
            let buf = self.env.pool().wait_for(ROOT_BYTES).await?;
            buf.write().copy_from_slice(&root.encode());
            let at = self.base + (slot * ROOT_BYTES) as u64;
            all_of(write_all(self.lower, at, &buf)).await?;
            self.lower.flush().await?;
        }
        Ok(())
    }

    /// Fills the slots and a ring of so many bytes with zeros, and flushes them.
    ///
    /// # Errors
    /// Errors of the device, such as `NoSpace`.
    pub async fn zero(&self, ring_bytes: u64) -> Result<()> {
        let end = self.base + RING_START + ring_bytes;
        let mut at = self.base;
        while let Some(range) = ByteRange::between(at, end.min(at + ZERO_STEP)) {
            let zeroes = Op::WriteZeroes { range, unmap: false, fua: false };
            self.lower.call(zeroes).await.result?;
            at = range.end();
        }
        self.lower.flush().await
    }
}

/// Checks that a journal with a ring of so many bytes fits at byte `base` of a device.
///
/// # Errors
/// `Unsupported` for blocks of the device that are too long; `NoSpace` if the device ends before the journal.
pub fn check_device(lower: &Lower, base: u64, ring_bytes: u64) -> Result<()> {
    let info = lower.info();
    if info.block_size as usize > SECTOR_BYTES {
        let size = info.block_size;
        let error = error!(Unsupported, "a journal on blocks of {size} bytes; at most 4096");
        return Err(error.at(lower.name()).next("put the journal on another disk"));
    }
    let end = base.saturating_add(RING_START + ring_bytes);
    if info.size < end {
        let size = info.size;
        let error = error!(NoSpace, "the device has {size} bytes, and the journal ends at {end}");
        return Err(error.at(lower.name()));
    }
    Ok(())
}
