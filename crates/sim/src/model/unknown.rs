//! Sectors that may hold any bytes: behind an accepted block of a checksum device, or on the new part of a grown volume.

use std::collections::BTreeMap;

use block::ByteRange;

use super::register::Register;
use super::{Model, sectors};
use crate::disk::SECTOR;

/// The moment of an end that has not come.
const NEVER: u64 = u64::MAX;

/// The blocks whose bytes are unknown after the end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsure {
    /// Those with a write that was not flushed.
    Unflushed,
    /// Those with a write in flight.
    InFlight,
    /// Those that the model has learned and that no write has changed since.
    Learned,
    /// All of them from this byte on.
    From(u64),
}

/// The sectors of a volume that may hold any bytes.
#[derive(Default)]
pub(super) struct Unknown {
    /// For each such sector, the moment at which a write to it ended. Only reads that began earlier may return any bytes.
    any: BTreeMap<u64, u64>,
    /// Sectors that the model has learned since, with the moment. Until a later flush, a power cut makes them unknown again.
    learned: BTreeMap<u64, u64>,
    /// The first sector of those that are not judged, whatever is written to them.
    unjudged: Option<u64>,
}

impl Unknown {
    /// Whether a read of the sector that began at the moment `start` may return any bytes.
    pub fn may_be_any(&self, sector: u64, start: u64) -> bool {
        self.unjudged.is_some_and(|first| sector >= first)
            || self.any.get(&sector).is_some_and(|until| start < *until)
    }

    /// Records that a write has certainly changed the sector by the moment `at`.
    pub fn write_ended(&mut self, sector: u64, at: u64) {
        if let Some(until) = self.any.get_mut(&sector) {
            *until = at.min(*until);
        }
    }

    /// Records a power cut. A sector is unknown again, unless `is_durable` returns that a write since is durable, or the model
    /// has learned its bytes before the moment `flushed`.
    pub fn power_cut(&mut self, is_durable: impl Fn(u64) -> bool, flushed: u64) {
        self.any.retain(|sector, until| {
            let is_known = *until != NEVER && is_durable(*sector);
            *until = NEVER;
            !is_known
        });
        for (sector, at) in std::mem::take(&mut self.learned) {
            if at >= flushed && !is_durable(sector) {
                self.any.insert(sector, NEVER);
            }
        }
    }
}

impl Model {
    /// Records that blocks of `block_bytes` bytes may hold any bytes from now on. Called before [`Model::power_cut`] or
    /// [`Model::restarted`].
    pub fn doubt(&self, unsure: Unsure, block_bytes: u64) {
        let registers = self.registers.borrow();
        let flushed = self.flushed.get();
        let mut unknown = self.unknown.borrow_mut();
        let Unknown { any, learned, .. } = &mut *unknown;
        let is_unsure = |sector: u64, register: &Register| match unsure {
            Unsure::Unflushed => register.has_unflushed(flushed),
            Unsure::InFlight => register.has_in_flight(),
            Unsure::Learned => learned.contains_key(&sector) && !register.is_rewritten(),
            Unsure::From(byte) => sector * SECTOR >= byte,
        };
        let per_block = (block_bytes / SECTOR) as usize;
        for (n, block) in registers.chunks(per_block).enumerate() {
            let first = (n * per_block) as u64;
            if (first..).zip(block).any(|(sector, register)| is_unsure(sector, register)) {
                let all = first..first + block.len() as u64;
                any.extend(all.map(|sector| (sector, NEVER)));
            }
        }
    }

    /// Makes the volume larger. The new sectors may hold any bytes.
    pub fn grow(&self, size: u64) {
        let mut registers = self.registers.borrow_mut();
        let (old, new) = (registers.len() as u64, size / SECTOR);
        registers.resize(new.max(old) as usize, Register::new(true));
        self.unknown.borrow_mut().any.extend((old..new).map(|sector| (sector, NEVER)));
    }

    /// Sets the byte from which on no sector is judged, also after a write: the volume has no checksums there yet. `None`: all
    /// sectors are judged from now on. Those that were not may hold any bytes until they are written.
    pub fn judge_upto(&self, byte: Option<u64>) {
        let before = self.unknown.borrow_mut().unjudged.take();
        if let Some(first) = before.filter(|_| byte.is_none()) {
            self.doubt(Unsure::From(first * SECTOR), SECTOR);
        }
        self.unknown.borrow_mut().unjudged = byte.map(|byte| byte / SECTOR);
    }

    /// Returns the size of the volume in bytes.
    pub fn size(&self) -> u64 {
        self.registers.borrow().len() as u64 * SECTOR
    }

    /// Records the present bytes of the sectors of `range` that may hold any bytes. No request is in flight.
    pub fn learn_unknown(&self, range: ByteRange, bytes: &[u8]) {
        let at = self.tick();
        let (mut registers, mut unknown) = (self.registers.borrow_mut(), self.unknown.borrow_mut());
        for (sector, bytes) in sectors(range).zip(bytes.chunks_exact(SECTOR as usize)) {
            if unknown.any.get(&sector) != Some(&NEVER) {
                continue;
            }
            unknown.any.remove(&sector);
            unknown.learned.insert(sector, at);
            self.set(&mut registers, sector, bytes);
        }
    }
}
