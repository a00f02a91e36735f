//! Errors of tables.

use std::error::Error;
use std::fmt;

use super::{Port, Stripe, Table};
use crate::ByteRange;

/// The reason why a table of a device was rejected, with the value and the limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TableError {
    /// A table or a segment with a length of zero.
    Empty,
    /// An address or a length that passes `u64::MAX`.
    TooLarge,
    /// Number of segments of a table, more than [`Table::MAX_SEGMENTS`].
    Segments(usize),
    /// A port of a table with a number of [`Table::MAX_PORTS`] or more.
    Ports(Port),
    /// Number of columns of a stripe: too few, or more than [`Stripe::MAX_COLUMNS`].
    Columns(usize),
    /// Length of a stripe's chunk in bytes: zero, no multiple of 512, or above 1 GiB.
    Chunk(u32),
    /// A lower device that cannot be a column of a stripe, because it is smaller than one chunk.
    SmallerThanChunk {
        /// Port of the lower device in the table.
        port: Port,
        /// Size of the lower device in bytes.
        size: u64,
        /// Size of a chunk in bytes.
        chunk: u32,
    },
    /// A segment with bytes past the end of their lower device.
    BeyondLower {
        /// Port of the lower device in the table.
        port: Port,
        /// End of the segment's bytes in the lower device.
        end: u64,
        /// Size of the lower device in bytes.
        size: u64,
    },
    /// Two segments that share bytes of a lower device.
    Overlap {
        /// Port of the lower device in the table.
        port: Port,
        /// Bytes of one segment in the lower device.
        first: ByteRange,
        /// Bytes of the other segment in the lower device.
        second: ByteRange,
    },
    /// An address in a segment that is not a multiple of the block size.
    Misaligned {
        /// Number of the segment in the table, from 0.
        segment: usize,
        /// The address in bytes, in the table or in a lower device.
        bytes: u64,
        /// Block size of the device that has the table, in bytes.
        block: u32,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the length is 0 bytes; at least 1 byte is needed"),
            Self::TooLarge => write!(f, "an address is larger than {}", u64::MAX),
            Self::Segments(count) => {
                let max = Table::MAX_SEGMENTS;
                write!(f, "the table has {count} segments; at most {max} are allowed")
            }
            Self::Ports(port) => {
                write!(f, "the port number is {port}; the highest is p{}", Table::MAX_PORTS - 1)
            }
            Self::Columns(count) => {
                let (min, max) = (Stripe::MIN_COLUMNS, Stripe::MAX_COLUMNS);
                write!(f, "the stripe has {count} columns; {min} to {max} are allowed")
            }
            Self::Chunk(bytes) => {
                let (unit, max) = (Stripe::CHUNK_UNIT_BYTES, Stripe::MAX_CHUNK_BYTES);
                write!(f, "a chunk of {bytes} bytes; a multiple of {unit} up to {max} is needed")
            }
            Self::SmallerThanChunk { port, size, chunk } => {
                write!(f, "{port} has {size} bytes, less than one chunk of {chunk} bytes")
            }
            Self::BeyondLower { port, end, size } => {
                write!(f, "a segment ends at byte {end}, past the end of {port} at byte {size}")
            }
            Self::Overlap { port, first, second } => {
                write!(f, "bytes {first} and {second} of {port} overlap")
            }
            Self::Misaligned { segment, bytes, block } => {
                write!(f, "segment {segment}: {bytes} is not a multiple of the block size {block}")
            }
        }
    }
}

impl Error for TableError {}

impl From<TableError> for crate::Error {
    fn from(error: TableError) -> Self {
        Self::new(crate::ErrorKind::Invalid, error.to_string())
    }
}
