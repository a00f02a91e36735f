//! Errors of tables.

use std::error::Error;
use std::fmt;

use super::{Port, Stripe, Table};
use crate::ByteRange;

/// The reason why a table was rejected, with the value and the limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TableError {
    /// A table or a segment without bytes.
    Empty,
    /// An address past the last one of 64 bits.
    TooLarge,
    /// More segments than [`Table::MAX_SEGMENTS`].
    Segments(usize),
    /// A port number of [`Table::MAX_PORTS`] or more.
    Ports(Port),
    /// A stripe of too few or of more than [`Stripe::MAX_COLUMNS`] columns.
    Columns(usize),
    /// A chunk that is no multiple of 512 bytes, or is empty, or above 1 GiB.
    Chunk(u32),
    /// A lower device that is smaller than one chunk cannot be a column.
    SmallerThanChunk {
        /// The lower device.
        port: Port,
        /// Its size.
        size: u64,
        /// The chunk.
        chunk: u32,
    },
    /// A place that ends behind the end of its lower device.
    BeyondLower {
        /// The lower device.
        port: Port,
        /// End of the place.
        end: u64,
        /// Size of the device.
        size: u64,
    },
    /// Two places that share bytes of a lower device.
    Overlap {
        /// The lower device.
        port: Port,
        /// One place in it.
        first: ByteRange,
        /// The other place.
        second: ByteRange,
    },
    /// A boundary or a position that is not a multiple of the block size.
    Misaligned {
        /// Number of the segment, from 0.
        segment: usize,
        /// The address.
        bytes: u64,
        /// The block size.
        block: u32,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a length of 0 bytes; at least 1 is needed"),
            Self::TooLarge => write!(f, "an address passes {}", u64::MAX),
            Self::Segments(count) => {
                let max = Table::MAX_SEGMENTS;
                write!(f, "{count} segments; at most {max} are allowed")
            }
            Self::Ports(port) => {
                write!(f, "port {port}; the highest is p{}", Table::MAX_PORTS - 1)
            }
            Self::Columns(count) => {
                let (min, max) = (Stripe::MIN_COLUMNS, Stripe::MAX_COLUMNS);
                write!(f, "{count} columns; {min} to {max} are allowed")
            }
            Self::Chunk(bytes) => {
                let (unit, max) = (Stripe::CHUNK_UNIT_BYTES, Stripe::MAX_CHUNK_BYTES);
                write!(f, "a chunk of {bytes} bytes; it is a multiple of {unit} up to {max}")
            }
            Self::SmallerThanChunk { port, size, chunk } => {
                write!(f, "{port} has {size} bytes; one chunk is {chunk}")
            }
            Self::BeyondLower { port, end, size } => {
                write!(f, "byte {end} is beyond the end of {port}, which has {size} bytes")
            }
            Self::Overlap { port, first, second } => {
                write!(f, "bytes {first} and {second} of {port} overlap")
            }
            Self::Misaligned { segment, bytes, block } => {
                write!(f, "segment {segment}: {bytes} is not a multiple of {block}")
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
