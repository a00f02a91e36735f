//! Changes through a journal: data and checksums are one part of a record, and are in place together.

use std::rc::Rc;

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Lower, Op, Result, bail};
use meta::Uuid;
use meta::journal::{InPlace, Journal, NewPart, Part, PartKind};
use meta::vault::Vault;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::device::Inner;
use super::objects::Objects;
use super::sums::{BLOCK_BYTES, PIECE_BLOCKS, PIECE_BYTES, Sum, Sums, ZEROS, blocks_of};
use super::write::ZERO_BYTES;

/// The owner of a device's journal: it writes data and checksums in place.
pub struct Target {
    data: Lower,
    vault: Vault,
    sums: Sums,
}

impl Target {
    /// Returns the owner of the journal of a device with these parts. The vault was opened with `data` as the lower with its
    /// data.
    ///
    /// # Errors
    /// `NotFound` if the vault has no checksums of `owner`.
    pub fn new(data: &Lower, vault: &Vault, owner: &str, device: Uuid) -> Result<Rc<Self>> {
        let sums = Sums::new(device, vault, Objects::open(vault, owner)?.sums);
        Ok(Rc::new(Self { data: data.clone(), vault: vault.clone(), sums }))
    }

    async fn make(&self, part: Part, data: Option<Buf>) -> Result<()> {
        let range = part.range;
        let is_aligned =
            range.start().is_multiple_of(BLOCK_BYTES) && range.len().is_multiple_of(BLOCK_BYTES);
        let most = if part.kind == PartKind::Data { PIECE_BYTES } else { ZERO_BYTES };
        if !is_aligned || range.len() > most || range.end() > self.data.info().size {
            bail!(Corrupt, "the journal has a change of {range}, which no checksum device makes");
        }
        let (first, count) = blocks_of(range);
        let (op, sums) = match (part.kind, data) {
            (PartKind::Data, Some(data)) => {
                let sums = <[Sum]>::ref_from_bytes(&part.inline).unwrap_or_default();
                (Op::write(range, data), sums)
            }
            (PartKind::Discard, _) => (Op::Discard { range, fua: false }, &[][..]),
            (PartKind::Zeroes | PartKind::Data, _) => {
                (Op::WriteZeroes { range, unmap: true, fua: false }, &[][..])
            }
        };
        let is_data = matches!(op, Op::Write { .. });
        if is_data && sums.len() != count {
            bail!(Corrupt, "the journal has {} checksums for {range}", sums.len());
        }
        let child = self.data.start(op);
        let posted = match is_data {
            _ if seeded::on(Bug::PlacedWithoutSum) => Ok(()),
            true => self.sums.post(first, sums).await,
            false => self.sums.clear(first, count as u64).await,
        };
        child.await.result.and(posted)
    }
}

impl InPlace for Target {
    fn place(self: Rc<Self>, part: Part, data: Option<Buf>) -> LocalFuture<Result<()>> {
        Box::pin(async move { self.make(part, data).await })
    }

    fn flush(self: Rc<Self>) -> LocalFuture<Result<()>> {
        Box::pin(async move { self.vault.sync_with_data().await })
    }
}

impl Inner {
    /// Writes `data` to `range` through the journal.
    pub async fn write_ahead(&self, journal: &Journal, range: ByteRange, data: &Buf) -> Result<()> {
        let mut sums = [ZEROS; PIECE_BLOCKS];
        let sums = &mut sums[..blocks_of(range).1];
        self.sums.compute(range, data, sums);
        let most = journal.data_max() / BLOCK_BYTES * BLOCK_BYTES;
        let mut at = 0;
        while at < range.len() {
            // A short ring has short records. A crash between them keeps whole blocks.
            let end = range.len().min(at + most);
            let (bytes, blocks) = (at as usize..end as usize, (at / BLOCK_BYTES) as usize..);
            let sums = &sums[blocks][..bytes.len() / BLOCK_BYTES as usize];
            let data = data.slice(bytes);
            let part = NewPart::data(0, range.start() + at, data, sums.as_bytes());
            journal.append(vec![part]).await?;
            at = end;
        }
        Ok(())
    }

    /// Zeroes or discards a part of the range of `op` through the journal.
    pub async fn zero_ahead(&self, journal: &Journal, op: &Op, range: ByteRange) -> Result<()> {
        let part = match op {
            Op::Discard { .. } => NewPart::discard(0, range, &[]),
            _ => NewPart::zeroes(0, range, &[]),
        };
        journal.append(vec![part]).await.map(drop)
    }
}
