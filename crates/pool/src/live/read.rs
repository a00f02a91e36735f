//! Reads of a version: the places of its blocks, their bytes, and the check of the checksums.

use std::ops::Range;
use std::rc::Rc;

use block::{
    Buf, ByteRange, Child, Done, EXTENTS_MAX, Error, Extent, Op, Result, State, all, error,
    push_extent,
};
use smallvec::SmallVec;

use super::commit::{SUM_BYTES, checksums};
use super::copies::read_right;
use super::nodes::{Lookups, Passes};
use super::pool::Inner;
use super::version::Version;
use crate::map::{BLOCKS_MAX, Changed, Content, Reader, Reads};
use crate::{Address, BLOCK_BYTES};

/// Most reads of data that one request has in flight. After random writes each block is in another place.
pub const READS_MAX: usize = 32;

/// Most blocks for which one block status request looks up.
const STATUS_BLOCKS_MAX: u64 = 1 << 22;

/// Most pieces of adjacent blocks that one count goes through.
const COUNT_PIECES_MAX: u32 = 1 << 16;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Checksums of adjacent blocks, one behind the other.
type SumBytes = SmallVec<[u8; 16]>;

/// The place of adjacent blocks of a version.
enum Found {
    /// At adjacent physical addresses.
    Data {
        address: Address,
        sums: SumBytes,
        /// Whether the version's own line has written the blocks; otherwise they are inherited from an origin.
        is_own: bool,
    },
    Zeros,
}

/// Blocks with data of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataBlocks {
    /// Blocks that the version's own line has written.
    pub own: u64,
    /// Blocks that are inherited from the snapshot from which the line was cloned.
    pub inherited: u64,
    /// Block at which the count ended; `None` if there are no further blocks.
    pub next: Option<u64>,
}

/// Blocks of a request at adjacent physical addresses.
struct Segment {
    /// First block, counted from that of the request.
    at: usize,
    address: Address,
    sums: SumBytes,
}

impl Segment {
    fn blocks(&self) -> usize {
        self.sums.len() / usize::from(SUM_BYTES)
    }

    /// Returns the range of its bytes in those of the request.
    fn bytes(&self) -> Range<usize> {
        self.at * BLOCK..(self.at + self.blocks()) * BLOCK
    }
}

impl Inner {
    /// Calls `each` with the places of the blocks from `block` to `end`, in order, until it returns false.
    async fn places(
        self: &Rc<Self>,
        store: &impl Reads,
        version: &Version,
        block: u64,
        end: u64,
        mut each: impl FnMut(u64, u64, Found) -> bool,
    ) -> Result<()> {
        let mut block = block;
        while block < end {
            let view = version.view(&self.tables, &self.epoch).await?;
            let epoch = self.epoch.get();
            let mut reader = Reader::new(store, view.layers())?;
            // After a cut or the end of a checkpoint, the changes in memory are elsewhere.
            while block < end && self.epoch.get() == epoch {
                let until = match view.find(block, end) {
                    (Changed::Run(change), is_own) => {
                        let run = change.run;
                        let found = match run.kind.has_blocks() {
                            true => {
                                let bytes = run.blocks as usize * usize::from(SUM_BYTES);
                                let sums = change.sums.bytes(bytes).into();
                                Found::Data { address: run.address, sums, is_own }
                            }
                            false => Found::Zeros,
                        };
                        if !each(block, run.blocks, found) {
                            return Ok(());
                        }
                        block = run.end();
                        continue;
                    }
                    (Changed::Gap(until), _) => until,
                };
                let piece = reader.piece(block, until).await?;
                let found = match piece.content {
                    Content::Data { address, sums, layer, .. } => {
                        let (sums, is_own) = (sums.bytes().into(), view.is_own(layer));
                        Found::Data { address, sums, is_own }
                    }
                    Content::Hole { .. } | Content::Absent => Found::Zeros,
                };
                if !each(block, piece.blocks, found) {
                    return Ok(());
                }
                block += piece.blocks;
                store.rest().await;
            }
        }
        Ok(())
    }

    /// Reads whole blocks of a version from `block` on into a buffer.
    ///
    /// # Errors
    /// Those of the device; `Corrupt` if a block does not have its checksum.
    pub async fn read(self: &Rc<Self>, version: &Version, block: u64, into: &Buf) -> Result<()> {
        // No address is given away until the read has ended.
        let _reading = self.room.reading();
        let end = block + (into.len() / BLOCK) as u64;
        let mut segments: SmallVec<[Segment; 1]> = SmallVec::new();
        let fill = |at: u64, blocks: u64, found: Found| {
            let at = (at - block) as usize;
            match found {
                Found::Zeros => {
                    let part = into.slice(at * BLOCK..(at + blocks as usize) * BLOCK);
                    part.write().fill(0);
                }
                Found::Data { address, sums, .. } => {
                    let last = segments.last_mut().filter(|last| {
                        let behind = last.address.bits() + last.blocks() as u64;
                        behind == address.bits()
                            && last.address.extent() == address.extent()
                            && last.at + last.blocks() == at
                    });
                    match last {
                        Some(last) => last.sums.extend_from_slice(&sums),
                        None => segments.push(Segment { at, address, sums }),
                    }
                }
            }
            true
        };
        self.places(&Lookups(self.nodes.clone()), version, block, end, fill).await?;
        if let [segment] = &segments[..] {
            let done = self.start_read(segment, into)?.await;
            return self.end_read(version, block, segment, done, into).await;
        }
        for batch in segments.chunks(READS_MAX) {
            let start = |segment| self.start_read(segment, into);
            let children = batch.iter().map(start).collect::<Result<Vec<_>>>()?;
            for (segment, done) in batch.iter().zip(all(children).await) {
                self.end_read(version, block, segment, done, into).await?;
            }
        }
        Ok(())
    }

    /// Starts the read of a segment into its part of `into`.
    fn start_read(&self, segment: &Segment, into: &Buf) -> Result<Child> {
        let range = self.room.range(segment.address, segment.blocks() as u64)?;
        Ok(self.lower.start(Op::read(range, into.slice(segment.bytes()))))
    }

    /// Takes and verifies the bytes of a segment that was read.
    async fn end_read(
        &self,
        version: &Version,
        block: u64,
        segment: &Segment,
        done: Done,
        into: &Buf,
    ) -> Result<()> {
        let (read, into) = (done.into_buf()?, into.slice(segment.bytes()));
        // A device may pass another buffer with the bytes.
        if !read.same(&into) {
            into.write().copy_from_slice(&read.read());
        }
        self.verify(version, block, segment, &into).await
    }

    /// Compares the bytes of a segment with their checksums. Wrong blocks are read from other copies.
    async fn verify(
        &self,
        version: &Version,
        block: u64,
        segment: &Segment,
        bytes: &Buf,
    ) -> Result<()> {
        let (should, _) = segment.sums.as_chunks();
        if checksums(&bytes.read()).eq(should.iter().copied()) {
            return Ok(());
        }
        let is: Vec<_> = checksums(&bytes.read()).collect();
        let pairs = is.iter().zip(should).enumerate();
        for (wrong, (_, should)) in pairs.filter(|(_, (is, should))| is != should) {
            let address = Address::from_bits(segment.address.bits() + wrong as u64);
            let into = self.env.pool().wait_for(BLOCK).await?;
            let is_right = |bytes: &[u8]| checksums(bytes).eq([*should]);
            let (range, heals) = (self.room.range(address, 1)?, !self.is_read_only);
            match read_right(&self.lower, range, into, heals, is_right).await? {
                Some(right) => {
                    let place = bytes.slice(wrong * BLOCK..(wrong + 1) * BLOCK);
                    place.write().copy_from_slice(&right.read());
                }
                None => {
                    let block = block + (segment.at + wrong) as u64;
                    return Err(self.damaged(version, block, address));
                }
            }
        }
        Ok(())
    }

    fn damaged(&self, version: &Version, block: u64, address: Address) -> Error {
        let vdisk = version.vdisk.row.borrow().name.clone();
        error!(
            Corrupt,
            "block {block} of vdisk {vdisk:?} at {address:?} does not have its checksum: {} holds other \
             bytes",
            self.lower.name()
        )
        .next("read it from a backup; cairn device scrub finds damage of a mirror below")
    }

    /// Returns up to `most` parts of the blocks from `block` to `end`: first block, physical address of blocks with data,
    /// and number of blocks.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn data_places(
        self: &Rc<Self>,
        version: &Version,
        block: u64,
        end: u64,
        most: usize,
    ) -> Result<Vec<(u64, Option<Address>, u64)>> {
        let _reading = self.room.reading();
        let mut all = Vec::new();
        let add = |at, blocks, found| {
            let address =
                if let Found::Data { address, .. } = found { Some(address) } else { None };
            all.push((at, address, blocks));
            all.len() < most
        };
        self.places(&Lookups(self.nodes.clone()), version, block, end, add).await?;
        Ok(all)
    }

    /// Counts the blocks of a version with data from `block` on, at most [`COUNT_PIECES_MAX`] pieces. Gives way to
    /// requests. The nodes that it reads leave the cache first.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn count_data(self: &Rc<Self>, version: &Version, block: u64) -> Result<DataBlocks> {
        let _reading = self.room.reading();
        let (mut counted, mut pieces) = (DataBlocks::default(), 0);
        let add = |at: u64, blocks: u64, found: Found| {
            match found {
                Found::Data { is_own: true, .. } => counted.own += blocks,
                Found::Data { is_own: false, .. } => counted.inherited += blocks,
                Found::Zeros => {}
            }
            pieces += 1;
            counted.next = Some(at + blocks).filter(|next| *next < BLOCKS_MAX);
            pieces < COUNT_PIECES_MAX
        };
        self.places(&Passes(self.nodes.clone()), version, block, BLOCKS_MAX, add).await?;
        Ok(counted)
    }

    /// Returns which blocks of a version have data, from the start of `range` on.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn status(
        self: &Rc<Self>,
        version: &Version,
        range: ByteRange,
    ) -> Result<Vec<Extent>> {
        let _reading = self.room.reading();
        let (first, last) = (range.start() / BLOCK as u64, range.end().div_ceil(BLOCK as u64));
        let end = last.min(first + STATUS_BLOCKS_MAX);
        let mut extents = Vec::new();
        let add = |_, blocks: u64, found: Found| {
            let state = match found {
                Found::Data { .. } => State::Data,
                Found::Zeros => State::Hole,
            };
            push_extent(&mut extents, blocks * BLOCK as u64, state);
            extents.len() < EXTENTS_MAX
        };
        self.places(&Lookups(self.nodes.clone()), version, first, end, add).await?;
        Ok(extents)
    }
}
