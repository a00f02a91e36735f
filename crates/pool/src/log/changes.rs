//! The encoding of changes of blocks in a record.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::map::RunKind;
use crate::rows::SumKind;
use crate::{Address, NUMBER_MAX};

/// Length in bytes of the header of changes, before their runs.
pub const CHANGES_HEADER_BYTES: usize = size_of::<Raw>();

/// Length in bytes of the header of a run, before its checksums.
pub const RUN_HEADER_BYTES: usize = size_of::<RawRun>();

/// Kind of a run of explicit holes. The kind of a run of data is 0.
pub const HOLE: u8 = RunKind::HOLE.bits();

/// The bit of a kind whose runs have neither addresses nor checksums.
const WITHOUT_ADDRESSES: u8 = 1 << 5;

/// Bits of the kind in the first number of a run.
const KIND_BITS: u32 = 8;

/// Highest number of a block: four times the largest vdisk.
const BLOCK_MAX: u64 = (1 << 38) - 1;

/// Divisor of the length of the checksums of a run, with their padding.
const SUMS_ALIGN: usize = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    vdisk: U64,
    birth: U64,
    sum_kind: u8,
    sum_bytes: u8,
    zero: [u8; 2],
    runs: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRun {
    block_and_kind: U64,
    address: U64,
    blocks: U32,
    origin: U16,
    stored: U16,
}

const _: () = assert!(CHANGES_HEADER_BYTES == 24 && RUN_HEADER_BYTES == 24);

/// Returns whether runs of a kind have addresses and checksums (`docs/formats/pool-map.md`).
pub const fn has_addresses(kind: u8) -> bool {
    kind & WITHOUT_ADDRESSES == 0
}

/// Changed blocks of one vdisk, all with one birth.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changes<'a> {
    /// Number of the vdisk.
    pub vdisk: u64,
    /// Birth of the blocks: the number of the next snapshot.
    pub birth: u64,
    /// Kind of the checksums.
    pub sum_kind: SumKind,
    /// Bytes of a checksum: 4, 8 or 16.
    pub sum_bytes: u8,
    /// The runs, in the order in which they take effect.
    pub runs: Vec<Run<'a>>,
}

/// A run of changed blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run<'a> {
    /// First block in the vdisk.
    pub block: u64,
    /// Kind of the run, as in the leaves of trees: 0 data, [`HOLE`].
    pub kind: u8,
    /// Address of the first block; 0 for a kind without addresses.
    pub address: Address,
    /// Number of blocks.
    pub blocks: u32,
    /// Index of a further origin; 0 for the line's own.
    pub origin: u16,
    /// Length in units of 512 bytes of a compressed run; 0 if it is not compressed.
    pub stored: u16,
    /// Checksums: one for each block, or one for a compressed run. Empty for a kind without addresses.
    pub sums: &'a [u8],
}

impl Run<'_> {
    /// Returns the length in bytes of the checksums.
    fn sums_len(&self, sum_bytes: u8) -> usize {
        let count = match (has_addresses(self.kind), self.stored) {
            (false, _) => 0,
            (true, 0) => self.blocks as usize,
            (true, _) => 1,
        };
        count * usize::from(sum_bytes)
    }

    fn check(&self) -> Result<(), String> {
        let Self { block, kind, address, blocks, origin, stored, .. } = self;
        let wrong = |words: &str| Err(format!("{blocks} blocks from {block} {words}"));
        let last = block.checked_add(u64::from(*blocks)).map(|end| end - 1);
        if *blocks == 0 || last.is_none_or(|last| last > BLOCK_MAX) {
            return wrong("are impossible");
        }
        if !has_addresses(*kind) {
            let is_plain = (address.bits(), *origin, *stored) == (0, 0, 0);
            return if is_plain { Ok(()) } else { wrong("are holes with an address") };
        }
        match crate::rows::is_run(*address, *blocks) {
            true => Ok(()),
            false => wrong("are on a header or across the end of an extent"),
        }
    }
}

impl<'a> Changes<'a> {
    /// Appends the encoded changes to `to`.
    ///
    /// # Panics
    /// If a value exceeds its limit, or the checksums have another length than the runs need.
    pub fn encode(&self, to: &mut Vec<u8>) {
        self.check().unwrap_or_else(|why| panic!("{why}"));
        let raw = Raw {
            vdisk: self.vdisk.into(),
            birth: self.birth.into(),
            sum_kind: self.sum_kind.0,
            sum_bytes: self.sum_bytes,
            zero: [0; 2],
            runs: (self.runs.len() as u32).into(),
        };
        to.extend_from_slice(raw.as_bytes());
        for run in &self.runs {
            run.check().unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(run.sums.len(), run.sums_len(self.sum_bytes), "{run:?}");
            let raw = RawRun {
                block_and_kind: (run.block << KIND_BITS | u64::from(run.kind)).into(),
                address: run.address.bits().into(),
                blocks: run.blocks.into(),
                origin: run.origin.into(),
                stored: run.stored.into(),
            };
            to.extend_from_slice(raw.as_bytes());
            to.extend_from_slice(run.sums);
            let padding = run.sums.len().next_multiple_of(SUMS_ALIGN) - run.sums.len();
            to.resize(to.len() + padding, 0);
        }
    }

    /// Decodes the changes that `bytes` consist of.
    ///
    /// # Errors
    /// A description of the fault.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, String> {
        let (raw, mut rest) = Raw::ref_from_prefix(bytes).map_err(|_| "changes are truncated")?;
        if raw.zero != [0; 2] {
            return Err("unknown fields of changes are not zero".to_owned());
        }
        let mut changes = Self {
            vdisk: raw.vdisk.get(),
            birth: raw.birth.get(),
            sum_kind: SumKind(raw.sum_kind),
            sum_bytes: raw.sum_bytes,
            runs: Vec::new(),
        };
        changes.check()?;
        let runs = raw.runs.get();
        while !rest.is_empty() {
            let run;
            (run, rest) = decode_run(rest, changes.sum_bytes)?;
            changes.runs.push(run);
        }
        match changes.runs.len() == runs as usize && runs > 0 {
            true => Ok(changes),
            false => Err(format!("changes have {} runs, not {runs}", changes.runs.len())),
        }
    }

    fn check(&self) -> Result<(), String> {
        let Self { vdisk, birth, sum_kind, sum_bytes, .. } = self;
        let is_sum = matches!(sum_bytes, 4 | 8 | 16) && sum_kind.0 != 0;
        match *vdisk != 0 && (1..NUMBER_MAX).contains(birth) && is_sum {
            true => Ok(()),
            false => Err(format!(
                "changes of vdisk {vdisk} with birth {birth} and checksums of {sum_bytes} bytes"
            )),
        }
    }
}

fn decode_run(bytes: &[u8], sum_bytes: u8) -> Result<(Run<'_>, &[u8]), String> {
    let (raw, rest) = RawRun::ref_from_prefix(bytes).map_err(|_| "a run is truncated")?;
    let block_and_kind = raw.block_and_kind.get();
    let mut run = Run {
        block: block_and_kind >> KIND_BITS,
        kind: block_and_kind as u8,
        address: Address::from_bits(raw.address.get()),
        blocks: raw.blocks.get(),
        origin: raw.origin.get(),
        stored: raw.stored.get(),
        sums: &[],
    };
    run.check()?;
    let len = run.sums_len(sum_bytes);
    let padded = len.next_multiple_of(SUMS_ALIGN);
    if padded > rest.len() {
        return Err(format!("the checksums of {} blocks are truncated", run.blocks));
    }
    let (sums, rest) = rest.split_at(padded);
    if sums[len..].iter().any(|byte| *byte != 0) {
        return Err("the bytes behind checksums are not zero".to_owned());
    }
    run.sums = &sums[..len];
    Ok((run, rest))
}
