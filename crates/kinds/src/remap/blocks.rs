//! Looks up blocks of a remap device, maps them to data blocks of its lower, and frees data blocks.

use std::rc::Rc;

use block::{Buf, ByteRange, Copies, Error, ErrorKind, Mode, Mono, Op, Result, error};
use meta::alloc::{Freed, Mapping, Places};
use meta::vault::{Data, Transaction};

use super::device::Inner;
use super::device::Map;

/// Most blocks that are looked up at once, and most blocks whose mapping one transaction changes.
pub const BATCH_BLOCKS: u64 = 32;

/// Most blocks that a byte range of the length of [`BATCH_BLOCKS`] blocks touches: one block more if the range begins
/// inside a block.
const TOUCHED_MAX: usize = BATCH_BLOCKS as usize + 1;

/// Most child requests that are in flight at once for one client request.
pub const WINDOW: usize = 8;

/// The mappings of all blocks of a byte range, as looked up in the map.
pub struct Lookup {
    pub range: ByteRange,
    /// Number of the block in which the byte range begins.
    pub first: u64,
    spots: [Mapping; TOUCHED_MAX],
    count: usize,
}

/// A part of a byte range whose blocks have the same kind of mapping; if mapped, to contiguous data blocks of the
/// lower.
pub struct Piece {
    /// The bytes of the part, as addresses that clients see.
    pub range: ByteRange,
    /// Mapping of the first block; [`Mapping::At`] holds the number of the first data block on the lower.
    pub spot: Mapping,
}

/// The child requests in flight for one client request, at most [`WINDOW`].
pub type Window = block::Window<WINDOW>;

impl Lookup {
    /// Returns the blocks of the byte range, each with its mapping and with the part of the byte range that lies in it.
    pub fn blocks(&self, inner: &Inner) -> impl Iterator<Item = (u64, Mapping, ByteRange)> {
        let spots = (self.first..).zip(&self.spots[..self.count]);
        spots.map(|(block, spot)| {
            let whole = inner.layout.range(block, 1);
            let part = whole.intersect(self.range).expect("a looked-up block lies in the range");
            (block, *spot, part)
        })
    }

    /// Splits the byte range into parts that are contiguous on the lower, or unmapped.
    pub fn pieces(&self, inner: &Inner) -> impl Iterator<Item = Piece> {
        let mut blocks = self.blocks(inner).peekable();
        std::iter::from_fn(move || {
            let (_, spot, mut range) = blocks.next()?;
            let mut end = spot;
            while let Some((_, _, more)) = blocks.next_if(|(_, next, _)| next_of(end) == *next) {
                range = ByteRange::between(range.start(), more.end()).expect("the range has bytes");
                end = next_of(end);
            }
            Some(Piece { range, spot })
        })
    }

    /// Whether a write to the byte range must map a block to a data block.
    fn has_unmapped(&self) -> bool {
        self.spots[..self.count].contains(&Mapping::Nowhere)
    }
}

fn next_of(spot: Mapping) -> Mapping {
    match spot {
        Mapping::At(place) => Mapping::At(place + 1),
        Mapping::Nowhere => Mapping::Nowhere,
    }
}

/// Returns the checksum of a block whose content is `part`, with `head` bytes of `zeros` before it and `tail` bytes
/// behind it.
fn checksum(zeros: &Buf, head: usize, part: &Buf, tail: usize) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    let zeros = zeros.read();
    digest.update(&zeros[..head]);
    digest.update(&part.read());
    digest.update(&zeros[..tail]);
    digest.finalize()
}

impl Inner {
    /// Looks up the mappings of all blocks of `range`, which covers at most [`BATCH_BLOCKS`] blocks.
    pub async fn look(&self, map: &Map, range: ByteRange) -> Result<Lookup> {
        let first = self.layout.block_of(range.start());
        let count = (self.layout.block_of(range.end() - 1) - first + 1) as usize;
        let mut looked = Lookup { range, first, spots: [Mapping::Nowhere; TOUCHED_MAX], count };
        map.blocks.spots(first, &mut looked.spots[..count]).await?;
        Ok(looked)
    }

    /// Splits a byte range into parts of at most [`BATCH_BLOCKS`] blocks, each of which one look-up covers.
    pub fn batches(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> + use<> {
        let bytes = BATCH_BLOCKS * self.layout.block_bytes;
        let mut at = range.start();
        std::iter::from_fn(move || {
            let part = ByteRange::between(at, range.end().min(at - at % bytes + bytes))?;
            at = part.end();
            Some(part)
        })
    }

    /// Extends a byte range to complete blocks.
    pub fn widened(&self, range: ByteRange) -> ByteRange {
        range.widen(self.layout.block_bytes as u32).expect("a device ends far below u64::MAX")
    }

    /// Returns the bytes on the lower for `part`, a byte range in a block that is mapped to the data block with number
    /// `place`.
    pub fn below(&self, place: u64, part: ByteRange) -> ByteRange {
        let within = part.start() % self.layout.block_bytes;
        part.at(self.layout.places(place, 1).start() + within)
    }

    /// Carries out a read: reads mapped blocks from the lower, and returns zeros for unmapped blocks.
    pub async fn read(&self, map: &Map, op: &mut Op) -> Result<()> {
        let range = op.range().expect("a read has a range");
        let _here = self.lock.lock(range, Mode::Shared).await;
        let looked = self.look(map, range).await?;
        let mut pieces = looked.pieces(self);
        let first = pieces.next().expect("a range has a piece");
        if let (Mapping::At(place), true) = (first.spot, first.range == range) {
            op.set_range(self.below(place, range));
            let read = self.data.forward(op).await;
            op.set_range(range);
            return read;
        }
        let mut window = Window::default();
        for piece in std::iter::once(first).chain(pieces) {
            let Op::Read { into, avoid, last_resort, .. } = op.part(piece.range) else {
                unreachable!("a part of a read is a read")
            };
            match piece.spot {
                Mapping::Nowhere => into.write().fill(0),
                Mapping::At(place) => {
                    let range = self.below(place, piece.range);
                    window.room().await;
                    window.start(&self.data, Op::Read { range, into, avoid, last_resort });
                }
            }
        }
        let done = window.drain().await;
        op.add_copies(window.copies());
        done
    }

    /// Carries out a write: overwrites mapped blocks in place, and maps unmapped blocks to free data blocks. An unmapped
    /// block has no copy, so a write that restores copies does not map it.
    pub async fn write(&self, map: &Map, op: &mut Op) -> Result<()> {
        let range = op.range().expect("a write has a range");
        let restores = matches!(op, Op::Write { restores, .. } if *restores != Copies::NONE);
        {
            let _here = self.lock.lock(range, Mode::Shared).await;
            let looked = self.look(map, range).await?;
            if restores || !looked.has_unmapped() {
                return self.write_in_place(map, &looked, op).await;
            }
        }
        let _alone = self.lock.lock(self.widened(range), Mode::Exclusive).await;
        let looked = self.look(map, range).await?;
        let (mut transaction, runs) = self.take_places(map, &looked).await?;
        let mut written = self.write_in_place(map, &looked, op).await;
        let mut window = Window::default();
        for (block, places) in &runs {
            if written.is_ok() {
                written =
                    self.write_new(map, &mut window, &mut transaction, *block, *places, op).await;
            }
        }
        match written.and_then(|()| window.take_writes()) {
            Ok(begun) => transaction.write_beside(begun),
            Err(error) => {
                // The transaction reserves the data blocks as long as a write to them is in flight.
                let _ = window.drain().await;
                return Err(error);
            }
        }
        map.vault.post(transaction).await?;
        let new = runs.iter().map(|(_, places)| places.count);
        map.taken.set(map.taken.get() + new.sum::<u64>());
        match op {
            Op::Write { fua: true, .. } => map.vault.sync_with_data().await,
            _ => Ok(()),
        }
    }

    async fn write_in_place(&self, map: &Map, looked: &Lookup, op: &mut Op) -> Result<()> {
        let mut window = Window::default();
        let mut result = Ok(());
        for piece in looked.pieces(self) {
            let Mapping::At(place) = piece.spot else { continue };
            let below = self.below(place, piece.range);
            result = map.vault.wait_until_changeable(below).await;
            if result.is_err() {
                break;
            }
            let mut part = op.part(piece.range);
            part.set_range(below);
            window.room().await;
            window.start(&self.data, part);
        }
        window.drain().await.and(result)
    }

    /// Reserves data blocks for all unmapped blocks of a write. Returns runs of blocks: the first block of a run, and
    /// its contiguous data blocks. If too few data blocks are free, waits for a limited time until others are freed.
    async fn take_places(
        &self,
        map: &Map,
        looked: &Lookup,
    ) -> Result<(Transaction, Vec<(u64, Places)>)> {
        let (begun, mut turn) = (self.env.now(), None);
        loop {
            let (mut frees, mut transaction) = (self.frees.get(), map.vault.begin());
            match self.try_places(map, looked, &mut transaction).await {
                Ok(runs) => return Ok((transaction, runs)),
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    drop(transaction);
                    if self.release_freed(map).await? {
                        continue;
                    }
                    if turn.take().is_none() {
                        // The places that this attempt had taken may be enough for another write.
                        self.report_free_space();
                        frees += 1;
                    }
                    if !self.waits_for_room(begun, frees).await {
                        return Err(self.full(map));
                    }
                    // Only one waiting write tries again at a time: of two writes that each reserve a part of the data
                    // blocks, neither would ever have enough.
                    turn = Some(self.placing.lock().await);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub fn report_free_space(&self) {
        self.frees.set(self.frees.get() + 1);
        self.tasks.changed().wake();
    }

    async fn try_places(
        &self,
        map: &Map,
        looked: &Lookup,
        transaction: &mut Transaction,
    ) -> Result<Vec<(u64, Places)>> {
        let mut runs = Vec::new();
        let (mut block, end) = (looked.first, looked.first + looked.count as u64);
        while block < end {
            let nowhere = |block: &u64| looked.spot(*block) == Mapping::Nowhere;
            let wanted = (block..end).take_while(nowhere).count() as u64;
            if wanted == 0 {
                block += 1;
                continue;
            }
            let places = map.blocks.take(transaction, wanted).await?;
            runs.push((block, places));
            block += places.count;
        }
        Ok(runs)
    }

    /// Waits until [`Inner::frees`] differs from `frees`, because data blocks were freed. Returns whether that
    /// happened: not if the time since `begun` is over, if too many requests wait already, or if the device closes.
    async fn waits_for_room(&self, begun: Mono, frees: u64) -> bool {
        let waited = self.env.now().since(begun);
        let Some(left) = super::ROOM_WITHIN.checked_sub(waited).filter(|left| !left.is_zero())
        else {
            return false;
        };
        if self.held.get() >= super::HELD_MAX {
            return false;
        }
        self.held.set(self.held.get() + 1);
        let held = block::ScopeGuard::new(|| self.held.set(self.held.get() - 1));
        let is_over = || self.frees.get() != frees || self.tasks.is_closing();
        let freed = self.tasks.changed().until(is_over);
        let in_time = self.env.within(left, freed).await.is_some();
        drop(held);
        in_time && !self.tasks.is_closing()
    }

    fn full(&self, map: &Map) -> Error {
        error!(
            NoSpace,
            "all {} physical blocks of {} bytes are in use",
            map.blocks.places(),
            self.layout.block_bytes
        )
        .next("discard unused bytes")
        .at(&self.name)
    }

    /// Writes the payload of `op` for a run of newly mapped blocks to their data blocks, with zeros around the payload.
    /// Adds the mappings of the blocks to the transaction.
    async fn write_new(
        &self,
        map: &Map,
        window: &mut Window,
        transaction: &mut Transaction,
        block: u64,
        places: Places,
        op: &Op,
    ) -> Result<()> {
        let range = op.range().expect("a write has a range");
        let Op::Write { data, .. } = op else { unreachable!("only a write needs physical blocks") };
        let whole = self.layout.range(block, places.count);
        let part = whole.intersect(range).expect("the blocks are those of the write");
        let bytes = |part: ByteRange| {
            let from = (part.start() - range.start()) as usize;
            data.slice(from..from + part.len() as usize)
        };
        let below = self.layout.places(places.first, places.count);
        let zeros = [
            ByteRange::between(whole.start(), part.start()),
            ByteRange::between(part.end(), whole.end()),
        ];
        let place_of = |part: ByteRange| part.at(below.start() + (part.start() - whole.start()));
        for around in zeros.into_iter().flatten() {
            let zeros = self.zeros.slice(0..around.len() as usize);
            window.room().await;
            window.start(&self.data, Op::write(place_of(around), zeros));
        }
        window.room().await;
        window.start(&self.data, Op::write(place_of(part), bytes(part)));
        for n in 0..places.count {
            let one = self.layout.range(block + n, 1);
            let part = one.intersect(range).expect("the block is one of the write");
            let head = (part.start() - one.start()) as usize;
            let tail = (one.end() - part.end()) as usize;
            let data = Data {
                range: self.layout.places(places.first + n, 1),
                checksum: checksum(&self.zeros, head, &bytes(part), tail),
            };
            map.blocks.put_written(transaction, block + n, places.first + n, &data)?;
        }
        Ok(())
    }

    /// Unmaps all whole blocks in `range`, and frees their data blocks. The rest of `range` is zeroed if `zero`, and
    /// otherwise stays as it is.
    pub async fn free_range(
        self: &Rc<Self>,
        map: &Map,
        range: ByteRange,
        zero: bool,
        fua: bool,
    ) -> Result<()> {
        for batch in self.batches(range) {
            let _alone = self.lock.lock(self.widened(batch), Mode::Exclusive).await;
            let looked = self.look(map, batch).await?;
            let mut transaction = map.vault.begin();
            let freed = self.free_blocks(map, &looked, &mut transaction)?;
            let number = map.vault.post(transaction).await?;
            self.release_later(map, number, freed);
            if zero {
                self.zero_parts(map, &looked).await?;
            }
            self.env.give_way().await;
        }
        // Also if nothing was freed: an earlier discard of these blocks may not be durable.
        if fua { map.vault.sync_with_data().await } else { Ok(()) }
    }

    /// Unmaps the whole blocks in a range, and frees their data blocks. Returns the freed data blocks as runs.
    fn free_blocks(
        &self,
        map: &Map,
        looked: &Lookup,
        transaction: &mut Transaction,
    ) -> Result<Vec<(Places, Freed)>> {
        let mut freed: Vec<Places> = Vec::new();
        for (block, spot, part) in looked.blocks(self) {
            let Mapping::At(place) = spot else { continue };
            if part.len() == self.layout.block_bytes {
                map.blocks.put(transaction, block, None)?;
                match freed.last_mut() {
                    Some(last) if last.first + last.count == place => last.count += 1,
                    _ => freed.push(Places { first: place, count: 1 }),
                }
            }
        }
        let free = |places: Places| Ok((places, map.blocks.free(transaction, places)?));
        freed.into_iter().map(free).collect()
    }

    /// Writes zeros to the partly covered blocks: the first and the last one.
    async fn zero_parts(&self, map: &Map, looked: &Lookup) -> Result<()> {
        for (_, spot, part) in looked.blocks(self) {
            match spot {
                _ if part.len() == self.layout.block_bytes => {}
                Mapping::Nowhere => {}
                Mapping::At(place) => {
                    let range = self.below(place, part);
                    map.vault.wait_until_changeable(range).await?;
                    let data = self.zeros.slice(0..part.len() as usize);
                    self.data.write(range, data).await?;
                }
            }
        }
        Ok(())
    }
}

impl Lookup {
    /// Returns the mapping of a block of the byte range.
    pub fn spot(&self, block: u64) -> Mapping {
        self.spots[(block - self.first) as usize]
    }
}
