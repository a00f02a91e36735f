//! A ring in memory, with a volatile cache: writes reach the image at a flush, or by choice of the test.

use meta::Uuid;
use meta::ring::{
    Full, Head, Item, MustKnow, Owner, Position, RECORD_HEADER_BYTES, Ring, Room, Root,
    SECTOR_BYTES, Survey, Verdict,
};

/// Length of the ring in these tests: 16 sectors, with records of at most 4.
pub const RING_BYTES: u64 = 64 << 10;

pub fn ring(owner: Owner) -> Ring {
    Ring::new(Uuid([7; 16]), RING_BYTES, owner).unwrap()
}

/// One item that makes a record of so many sectors, with `fill` in its last byte.
pub fn item_of(sectors: usize, fill: u8) -> Vec<u8> {
    let mut content = vec![fill; (sectors - 1) * SECTOR_BYTES + 400];
    content.resize(content.len().next_multiple_of(8), fill);
    let mut items = Vec::new();
    Item { kind: 9, must_know: MustKnow::No, content: &content }.encode(&mut items);
    assert_eq!((RECORD_HEADER_BYTES + items.len()).div_ceil(SECTOR_BYTES), sectors);
    items
}

pub struct Log {
    pub ring: Ring,
    pub room: Room,
    pub root: Root,
    pub opening: u64,
    /// The sectors that are flushed.
    pub image: Vec<u8>,
    /// Writes of sectors since the last flush, by place.
    pub unflushed: Vec<(usize, Vec<u8>)>,
    pub heads: Vec<Head>,
    pub flushed: u64,
}

impl Log {
    pub fn new(owner: Owner) -> Self {
        let tail = Position { offset: 0, number: 1, previous: 0, opening: 1 };
        Self {
            ring: ring(owner),
            room: Room::new(ring(owner), 0, tail),
            root: Root { tail, flushed: 0 },
            opening: 1,
            image: vec![0; RING_BYTES as usize],
            unflushed: Vec::new(),
            heads: Vec::new(),
            flushed: 0,
        }
    }

    /// Writes a record of so many sectors, if it fits.
    pub fn append(&mut self, sectors: usize) -> Result<Head, Full> {
        let number = self.room.next().number;
        self.append_with(&item_of(sectors, number as u8), &[], self.root.tail.number)
    }

    pub fn append_with(&mut self, items: &[u8], payload: &[u8], tail: u64) -> Result<Head, Full> {
        let at = Position { opening: self.opening, ..self.room.next() };
        let padded = (RECORD_HEADER_BYTES + items.len()).next_multiple_of(SECTOR_BYTES);
        self.room.fits((padded + payload.len()) as u64)?;
        let mut bytes = Vec::new();
        let payload_bytes = payload.len() as u32;
        let head = Head { payload: payload_bytes, items: 1, ..Head::empty(at, tail, self.flushed) };
        let head = head.encode(&self.ring, items, &mut bytes);
        bytes.extend_from_slice(payload);
        self.put(head.at.offset, &bytes);
        self.room = Room::new(self.ring, self.room.tail(), at);
        self.room.take(&head);
        self.heads.push(head);
        Ok(head)
    }

    /// Puts sectors into the volatile cache.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (n, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            let place = self.ring.place(offset + (n * SECTOR_BYTES) as u64);
            self.unflushed.push((place as usize, sector.to_vec()));
        }
    }

    pub fn flush(&mut self) {
        for (place, sector) in std::mem::take(&mut self.unflushed) {
            self.image[place..place + SECTOR_BYTES].copy_from_slice(&sector);
        }
        self.flushed = self.heads.last().map_or(0, |head| head.at.number).max(self.flushed);
    }

    /// Flushes, and moves the tail to the record with this number by a new root.
    pub fn checkpoint(&mut self, number: u64) {
        self.flush();
        let head = self.heads.iter().find(|head| head.at.number == number);
        let tail = head.map_or(self.room.next(), |head| head.at);
        self.root = Root { tail, flushed: self.flushed };
        self.room.trim(tail.offset);
        self.heads.retain(|head| head.at.number >= number);
    }

    /// Opens the log anew after a crash: a root behind the end, under the next opening.
    pub fn reopen(&mut self, verdict: &Verdict) {
        self.opening += 1;
        let number = verdict.highest + 1;
        let tail = Position { number, opening: self.opening, ..verdict.end };
        self.root = Root { tail, flushed: number - 1 };
        self.room = Room::new(self.ring, tail.offset, tail);
        self.flushed = number - 1;
        self.heads.clear();
        self.unflushed.clear();
    }

    pub fn recover(&self) -> Verdict {
        recover(self.ring, self.root, &self.image)
    }
}

pub fn survey(ring: Ring, root: Root, image: &[u8], portion: usize) -> Survey {
    let mut survey = Survey::new(ring, root);
    while let Some((place, len)) = survey.wanted() {
        let end = place as usize + (len as usize).min(portion);
        survey.feed(&image[place as usize..end], |_, _| {});
    }
    survey
}

pub fn recover(ring: Ring, root: Root, image: &[u8]) -> Verdict {
    survey(ring, root, image, 5 * SECTOR_BYTES).judge()
}

pub fn numbers(heads: &[Head]) -> Vec<u64> {
    heads.iter().map(|head| head.at.number).collect()
}
