//! Rows of holds, and of removed items that are kept for a time.

use meta::Uuid;
use zerocopy::big_endian::U64 as BigU64;
use zerocopy::little_endian::U64;

use super::stored::{ByteIn8, StoredUuid, TEXT_BYTES, Text, row};
use super::vdisk::HEAD;
use crate::unknown::kinds;
use crate::{COUNT_MAX, NUMBER_MAX};

kinds! {
    /// Kind of the dependant that holds a snapshot.
    HoldKind {
        /// A clone.
        CLONE = 1,
        /// A rollback: a clone that took the name.
        ROLLBACK = 2,
        /// An open export.
        EXPORT = 3,
        /// A transfer.
        TRANSFER = 4,
        /// A vdisk with runs of the snapshot among its own.
        BORROWED = 5,
        /// An order to keep it.
        BY_HAND = 6,
    }
}

row! {
    /// A hold on a snapshot.
    HoldRow of Holds, zeros 0;
    key {
        /// Vdisk of the snapshot.
        vdisk: u64 as BigU64,
        /// Number of the snapshot.
        number: u64 as BigU64,
        /// Number of the hold.
        hold: u64 as BigU64,
    }
    value {
        /// Kind of the dependant.
        kind: HoldKind as ByteIn8,
        /// Vdisk that holds it; 0 for a dependant that is no vdisk.
        holder: u64 as U64,
        /// Line of the holder, or the identity of the export or transfer.
        identity: Uuid as StoredUuid,
        /// Epoch of the holder's owner.
        epoch: u64 as U64,
        /// Time at which it ends, in seconds from 1970; 0 for never.
        expires_unix_s: u64 as U64,
        /// Runs that are still borrowed.
        borrowed: u64 as U64,
        /// Time when it was made, in seconds from 1970.
        made_unix_s: u64 as U64,
    }
}

impl HoldKind {
    /// Returns whether the dependant is a vdisk of the pool.
    pub fn is_of_vdisk(self) -> bool {
        matches!(self, Self::CLONE | Self::ROLLBACK | Self::BORROWED)
    }
}

impl HoldRow {
    fn check(&self) -> Result<(), String> {
        let Self { vdisk, number, hold, kind, holder, epoch, .. } = self;
        if [*vdisk, *hold].contains(&0) || !(1..HEAD).contains(number) || kind.0 == 0 {
            return Err(format!("hold {hold} on snapshot {number} of vdisk {vdisk} is impossible"));
        }
        if kind.is_of_vdisk() == (*holder == 0) && kind.unknown() == meta::ring::MustKnow::No {
            return Err(format!("hold {hold} of kind {} has holder {holder}", kind.0));
        }
        let counts = [self.expires_unix_s, self.borrowed, self.made_unix_s];
        if *epoch > NUMBER_MAX || counts.iter().any(|count| *count > COUNT_MAX) {
            return Err(format!("hold {hold} has epoch {epoch} and counters {counts:?}"));
        }
        Ok(())
    }
}

row! {
    /// A removed vdisk or snapshot that is kept for a time.
    RemovedRow of Removed, zeros 0;
    key {
        /// Time until which it is kept, in seconds from 1970.
        kept_until_unix_s: u64 as BigU64,
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
        /// Number of the snapshot; 0 for the vdisk with all of its snapshots.
        number: u64 as BigU64,
    }
    value {
        /// Name or label that it had; empty for a snapshot without a label.
        name: String as Text,
        /// Time when it was removed, in seconds from 1970.
        removed_unix_s: u64 as U64,
        /// Number of the hold that keeps it; 0 for none.
        hold: u64 as U64,
    }
}

impl RemovedRow {
    fn check(&self) -> Result<(), String> {
        let times = [self.kept_until_unix_s, self.removed_unix_s];
        let is_text = self.name.len() <= TEXT_BYTES && !self.name.contains('\0');
        let is_item = self.vdisk != 0 && self.number < HEAD && is_text;
        match is_item && times.iter().all(|time| *time <= COUNT_MAX) {
            true => Ok(()),
            false => Err(format!("a removed vdisk {} with times {times:?}", self.vdisk)),
        }
    }
}
