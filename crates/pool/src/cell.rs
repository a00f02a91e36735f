//! The state of a pool in the labels beneath it: `docs/formats/pool.md`.

use meta::Uuid;
use meta::ring::MustKnow;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::{
    AREA_BYTES, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, POOL_BYTES_MAX, POOL_BYTES_MIN,
};
use crate::unknown::flags;

/// Version of the state that this code writes, and the only one that it reads.
const VERSION: u32 = 1;

flags! {
    /// Flags of the state of a pool.
    CellFlags {
        /// The pool is being made: nothing was ever stored in it.
        BEING_MADE = 16,
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    version: U32,
    flags: U32,
    pool: [u8; 16],
    bytes: U64,
    far: U64,
    extent_bytes: U64,
    rest: [u8; 16],
}

/// Bytes of the encoded state.
pub const CELL_BYTES: usize = size_of::<Raw>();

const _: () = assert!(CELL_BYTES == 64);

/// The state of a pool in labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolCell {
    /// UUID of the pool; `None` while it is being made.
    pub pool: Option<Uuid>,
    /// Bytes of the pool.
    pub bytes: u64,
    /// First byte of the far area.
    pub far: u64,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Flags but [`CellFlags::BEING_MADE`].
    pub flags: CellFlags,
}

impl PoolCell {
    /// Encodes the state for labels.
    pub fn encode(&self) -> [u8; CELL_BYTES] {
        let being_made = match self.pool {
            None => CellFlags::BEING_MADE,
            Some(_) => CellFlags::default(),
        };
        let raw = Raw {
            version: VERSION.into(),
            flags: (self.flags | being_made).0.into(),
            pool: self.pool.map_or([0; 16], |pool| pool.0),
            bytes: self.bytes.into(),
            far: self.far.into(),
            extent_bytes: self.extent_bytes.into(),
            rest: [0; 16],
        };
        zerocopy::transmute!(raw)
    }

    /// Decodes the state of a pool from a label.
    ///
    /// # Errors
    /// The reason why `bytes` are no valid state of a pool.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let raw = Raw::ref_from_bytes(bytes)
            .map_err(|_| format!("{} bytes are no state of a pool", bytes.len()))?;
        if raw.version.get() != VERSION {
            return Err(format!("state of version {}; {VERSION} is supported", raw.version));
        }
        let flags = CellFlags(raw.flags.get());
        if flags.unknown() == MustKnow::ToOpen {
            return Err(format!("the flags {flags:?} are unknown"));
        }
        let being_made = flags.has(CellFlags::BEING_MADE);
        if being_made != (raw.pool == [0; 16]) {
            return Err(format!("the flags {flags:?} do not fit to the pool {}", Uuid(raw.pool)));
        }
        if raw.rest != [0; 16] {
            return Err("unknown fields are not zero".to_owned());
        }
        let cell = Self {
            pool: (!being_made).then_some(Uuid(raw.pool)),
            bytes: raw.bytes.get(),
            far: raw.far.get(),
            extent_bytes: raw.extent_bytes.get(),
            flags: CellFlags(flags.0 & !CellFlags::BEING_MADE.0),
        };
        cell.check()?;
        Ok(cell)
    }

    fn check(&self) -> Result<(), String> {
        let Self { bytes, far, extent_bytes, .. } = *self;
        let is_length =
            (POOL_BYTES_MIN..=POOL_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(AREA_BYTES);
        let is_far = (2 * AREA_BYTES..=bytes.saturating_sub(AREA_BYTES)).contains(&far)
            && far.is_multiple_of(AREA_BYTES);
        let is_extent = (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes)
            && extent_bytes.is_power_of_two();
        match is_length && is_far && is_extent {
            true => Ok(()),
            false => Err(format!(
                "{bytes} bytes with a far area at {far} and extents of {extent_bytes} are \
                 impossible"
            )),
        }
    }
}
