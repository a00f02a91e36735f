//! Data blocks of the clients of the random model, on a disk outside of the vault. Their writes go beside the records that
//! map them, or in place, and may fail.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{Buf, ByteRange, Env, Lower, Op, Result};
use meta::vault::page::checksum;
use meta::vault::{Array, Data, ObjectId, Transaction, Vault};
use sim::draw::Stream;
use zerocopy::little_endian::U64;

/// Number of entries of a client's map of blocks.
pub const SLOTS: u64 = 5;

/// Number of places for the blocks of one client.
const PLACES: u64 = 9;

const BLOCK_BYTES: u64 = 4096;

/// Bytes of the disk with the data.
pub const DATA_BYTES: u64 = 1 << 20;

const SECTOR: usize = 512;

/// Mask for a word of a block that was changed in place.
const CHANGED: u64 = 0xffff_0000;

/// Value of each word of a sector that a power cut has interrupted.
const TORN: u64 = 0xdada_dada_dada_dada;

/// An entry of a client's map of blocks: a random number with one more than the place in its last byte, or 0. Each word of
/// the block has this value.
type Record = u64;

fn place_of(record: Record) -> u64 {
    (record & 0xff) - 1
}

/// The blocks of a client of the vault.
pub struct Blocks {
    env: Env,
    data: Lower,
    client: u64,
    free: Rc<RefCell<BTreeSet<u64>>>,
}

/// A place that becomes free once this is dropped.
struct Freed {
    place: u64,
    free: Rc<RefCell<BTreeSet<u64>>>,
}

impl Drop for Freed {
    fn drop(&mut self) {
        self.free.borrow_mut().insert(self.place);
    }
}

/// The places that a transaction exchanges.
pub struct Exchange {
    new: u64,
    old: Option<u64>,
}

impl Blocks {
    /// Returns the blocks of a client with these records in its map.
    pub fn new(env: &Env, data: &Lower, client: u64, map: &[Record]) -> Self {
        let used: Vec<u64> =
            map.iter().filter(|record| **record != 0).map(|it| place_of(*it)).collect();
        let free = (0..PLACES).filter(|place| !used.contains(place)).collect();
        let free = Rc::new(RefCell::new(free));
        Self { env: env.clone(), data: data.clone(), client, free }
    }

    fn range(&self, place: u64) -> ByteRange {
        range(self.client, place)
    }

    fn filled(&self, word: u64) -> Result<Buf> {
        let buf = self.env.buf(BLOCK_BYTES as usize)?;
        buf.write().chunks_mut(8).for_each(|to| to.copy_from_slice(&word.to_le_bytes()));
        Ok(buf)
    }

    /// Adds to the transaction that a random entry of the map gets a new block, and begins to write the block. Returns the
    /// exchanged places; `None` if no place is free.
    pub fn put(
        &self,
        vault: &Vault,
        id: ObjectId,
        transaction: &mut Transaction,
        map: &mut [Record],
        random: &Stream,
    ) -> Result<Option<Exchange>> {
        let slot = random.below(SLOTS);
        let Some(new) = self.free.borrow().first().copied() else { return Ok(None) };
        let record = (random.next() & !0xff) | (new + 1);
        let buf = self.filled(record)?;
        let sum = checksum(&buf.read());
        let data = Data { range: self.range(new), checksum: sum };
        let array = Array::<U64>::new(vault, id);
        array.set_with_data(transaction, slot, &U64::new(record), &data)?;
        self.free.borrow_mut().remove(&new);
        transaction.write_beside([self.data.start(Op::write(data.range, buf))]);
        let before = std::mem::replace(&mut map[slot as usize], record);
        let old = (before != 0).then(|| place_of(before));
        if let Some(place) = old {
            transaction.keep_until_proven(Freed { place, free: self.free.clone() });
        }
        Ok(Some(Exchange { new, old }))
    }

    /// Takes back the exchange of a transaction that has failed.
    pub fn undo(&self, exchange: &Exchange) {
        let mut free = self.free.borrow_mut();
        free.insert(exchange.new);
        if let Some(old) = exchange.old {
            free.remove(&old);
        }
    }

    /// Changes a block in place, if the vault permits that.
    ///
    /// # Errors
    /// Errors of the vault.
    pub async fn change(&self, vault: &Vault, record: Record) -> Result<()> {
        if record == 0 {
            return Ok(());
        }
        let range = self.range(place_of(record));
        vault.wait_until_changeable(range).await?;
        let buf = self.filled(record ^ CHANGED)?;
        // The block has either content after an error.
        let _ = self.data.write(range, buf).await;
        Ok(())
    }
}

fn range(client: u64, place: u64) -> ByteRange {
    ByteRange::new((client * PLACES + place) * BLOCK_BYTES, BLOCK_BYTES).expect("it has bytes")
}

/// Checks that all blocks in a client's map have their content. A block of a record in `changed` may have either content, or
/// sectors of both.
pub async fn check(
    data: &Lower,
    env: &Env,
    client: u64,
    map: &[Record],
    changed: &BTreeSet<Record>,
) {
    for record in map.iter().filter(|record| **record != 0) {
        let into = env.buf(BLOCK_BYTES as usize).unwrap();
        let bytes = data.read(range(client, place_of(*record)), into).await.unwrap();
        for sector in bytes.read().chunks(SECTOR) {
            let word = u64::from_le_bytes(sector[..8].try_into().expect("a word has 8 bytes"));
            let may_be_changed =
                [record ^ CHANGED, TORN].contains(&word) && changed.contains(record);
            let is_right = word == *record || may_be_changed;
            assert!(is_right, "client {client}: {word:x} in the block of record {record:x}");
            assert!(sector.chunks(8).all(|other| other == &sector[..8]), "a torn sector");
        }
    }
}
