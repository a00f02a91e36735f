//! Rows of snapshots, of their rare properties, and of their labels.

use meta::Uuid;
use zerocopy::big_endian::U64 as BigU64;
use zerocopy::little_endian::{U32, U64};

use super::stored::{Opaque, StoredUuid, Text, row};
use super::vdisk::HEAD;
use crate::name::Label;
use crate::unknown::flags;
use crate::{BLOCK_BYTES, COUNT_MAX};

flags! {
    /// Flags of a snapshot.
    SnapshotFlags {
        /// It has a row of rare properties.
        DETAILS = 0,
        /// Its name is gone, and it stays for its holds.
        NAMELESS = 8,
        /// The pass that removes it has begun: it no longer counts as kept.
        LEAVING = 16,
    }
}

fn check_identity(vdisk: u64, number: u64) -> Result<(), String> {
    match vdisk != 0 && (1..HEAD).contains(&number) {
        true => Ok(()),
        false => Err(format!("snapshot {number} of vdisk {vdisk} is impossible")),
    }
}

row! {
    /// A snapshot.
    SnapshotRow of Snapshots, zeros 0;
    key {
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
        /// Number of the snapshot.
        number: u64 as BigU64,
    }
    value {
        /// Flags.
        flags: SnapshotFlags as U32,
        /// Number of holds on it.
        holds: u32 as U32,
        /// Size of the vdisk at that time, in bytes.
        size: u64 as U64,
        /// Time when it was taken, in microseconds from 1970.
        taken_unix_us: u64 as U64,
        /// Number of the group that was taken together; 0 for none.
        group: u64 as U64,
        /// Blocks that it alone holds.
        own_blocks: u64 as U64,
        /// Blocks that it shares.
        shared_blocks: u64 as U64,
    }
}

impl SnapshotRow {
    fn check(&self) -> Result<(), String> {
        check_identity(self.vdisk, self.number)?;
        let is_size = self.size.is_multiple_of(BLOCK_BYTES.into());
        let counts = [self.size, self.taken_unix_us, self.own_blocks, self.shared_blocks];
        match is_size && counts.iter().all(|count| *count <= COUNT_MAX) {
            true => Ok(()),
            false => {
                Err(format!("snapshot {} of vdisk {} has {counts:?}", self.number, self.vdisk))
            }
        }
    }
}

row! {
    /// Rare properties of a snapshot.
    DetailRow of Details, zeros 8;
    key {
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
        /// Number of the snapshot.
        number: u64 as BigU64,
    }
    value {
        /// Label; empty for none.
        label: String as Text,
        /// Line of the snapshot at the sender; zeros if it was not received.
        received_line: Uuid as StoredUuid,
        /// Number of the snapshot at the sender.
        received_number: u64 as U64,
        /// Room for the record of a layer.
        layer: [u8; 32] as Opaque<32>,
    }
}

impl DetailRow {
    fn check(&self) -> Result<(), String> {
        check_identity(self.vdisk, self.number)?;
        if !self.label.is_empty() {
            Label::parse(&self.label).map_err(|error| error.message().to_owned())?;
        }
        match self.received_number < HEAD {
            true => Ok(()),
            false => Err(format!("a received number {} is impossible", self.received_number)),
        }
    }
}

row! {
    /// A label of a snapshot. [`Label::key`] makes the short key.
    LabelRow of Labels, zeros 8;
    key {
        /// Number of the vdisk.
        vdisk: u64 as BigU64,
        /// Short key of the label.
        key: [u8; 24] as Opaque<24>,
    }
    value {
        /// The label.
        label: String as Text,
        /// Number of the snapshot.
        number: u64 as U64,
    }
}

impl LabelRow {
    fn check(&self) -> Result<(), String> {
        check_identity(self.vdisk, self.number)?;
        let label = Label::parse(&self.label).map_err(|error| error.message().to_owned())?;
        match label.key() == self.key {
            true => Ok(()),
            false => Err(format!("the label {label} has another key")),
        }
    }
}
