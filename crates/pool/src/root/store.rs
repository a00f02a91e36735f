//! The I/O of a root structure: reads of its four slots, and the order of its writes.

use std::rc::Rc;

use block::{ByteRange, Copies, Env, Lower, Op, Patience, Result};
use meta::Uuid;

use super::areas::{Area, Choice, RootStructure, Slots, Step, Unusable, choose, place, steps};
use super::prelude::{SLOT_BYTES, Wrong};
use crate::geometry::Geometry;

/// The places of a root structure on a device, by the number of its pair.
pub struct RootStore {
    env: Env,
    lower: Lower,
    geometry: Geometry,
    pair: u32,
    patience: Rc<Patience>,
}

/// A root structure with its codec.
pub trait Encoded: RootStructure + Sized {
    /// Encodes the structure as the bytes of its slot.
    fn encode(&self) -> [u8; SLOT_BYTES];

    /// Decodes the structure with number `pair` of the pool.
    ///
    /// # Errors
    /// The reason why the bytes are not this structure.
    fn decode(bytes: &[u8], pool: Uuid, pair: u32) -> Result<Self, Wrong>;
}

impl RootStore {
    /// Creates the access to the structure with number `pair`: 0 for the header, else the number of an allocator.
    pub fn new(env: &Env, lower: &Lower, geometry: Geometry, pair: u32) -> Self {
        let patience = Patience::new(env, lower);
        Self { env: env.clone(), lower: lower.clone(), geometry, pair, patience }
    }

    /// Returns the patience of the writes for space below.
    pub fn patience(&self) -> &Rc<Patience> {
        &self.patience
    }

    fn range(&self, area: Area, slot: usize) -> ByteRange {
        let start = place(&self.geometry, area, self.pair, slot);
        ByteRange::new(start, SLOT_BYTES as u64).expect("a slot has bytes")
    }

    /// Reads the four slots and chooses the structure that counts. A slot that cannot be read is damaged.
    ///
    /// # Errors
    /// The reason why no slot counts.
    pub async fn read<T: Encoded>(&self, pool: Uuid) -> Result<Choice<T>> {
        let mut slots: Slots<T> = Area::ALL.map(|_| [Err(Wrong::NoMagic), Err(Wrong::NoMagic)]);
        for (area, both) in Area::ALL.into_iter().zip(&mut slots) {
            for (slot, found) in both.iter_mut().enumerate() {
                *found = self.read_slot(self.range(area, slot), pool).await?;
            }
        }
        choose(slots).map_err(|unusable: Unusable| unusable.into())
    }

    /// Reads a slot from all copies of a redundant device below, and returns the newest structure.
    async fn read_slot<T: Encoded>(
        &self,
        range: ByteRange,
        pool: Uuid,
    ) -> Result<Result<T, Wrong>> {
        let (mut newest, mut avoid) = (Err::<T, _>(Wrong::NoMagic), Copies::NONE);
        loop {
            let into = self.env.pool().wait_for(SLOT_BYTES).await?;
            let done = self.lower.call(Op::Read { range, into, avoid, last_resort: false }).await;
            let copies = done.copies();
            let found = match done.into_buf() {
                Ok(buf) => T::decode(&buf.read(), pool, self.pair),
                Err(error) => Err(Wrong::Damaged(error.to_string())),
            };
            newest = match (newest, found) {
                (Ok(one), Ok(other)) if other.sequence() > one.sequence() => Ok(other),
                (Ok(one), _) => Ok(one),
                (Err(_), found) => found,
            };
            if copies == avoid || self.lower.info().copies == 1 {
                return Ok(newest);
            }
            avoid = copies;
        }
    }

    /// Writes the chosen structure to the area that lacks it, and flushes.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn repair<T: Encoded>(&self, choice: &Choice<T>) -> Result<()> {
        self.carry_out(&choice.repair(), &choice.root).await
    }

    /// Writes the next structure. It counts when this has succeeded.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn write<T: Encoded>(&self, root: &T) -> Result<()> {
        self.carry_out(&steps(root.sequence()), root).await
    }

    async fn carry_out<T: Encoded>(&self, steps: &[Step], root: &T) -> Result<()> {
        for step in steps {
            match step {
                Step::Flush => self.lower.flush().await?,
                Step::Write(area, slot) => {
                    let buf = self.env.pool().wait_for(SLOT_BYTES).await?;
                    buf.write().copy_from_slice(&root.encode());
                    let done = self.lower.call(Op::write(self.range(*area, *slot), buf)).await;
                    self.patience.settle(done).await.result?;
                }
            }
        }
        Ok(())
    }
}
