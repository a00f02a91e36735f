//! Named constants of the protocol. Section "Values" of the specification.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The TCP port registered for NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// First magic of the server's greeting, ASCII `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second magic of the newstyle greeting, and magic of every option, ASCII `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Second magic of the oldstyle greeting, which is not supported. This crate recognizes it only for a precise error
/// message.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Magic of every option reply in the handshake.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a compact NBD request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of an extended NBD request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Magic of a simple NBD reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a chunk of a structured NBD reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Magic of a chunk of an extended NBD reply.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of the header of a compact NBD request.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of the header of an extended NBD request.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of the header of a simple NBD reply.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of the header of a structured NBD reply's chunk.
pub const STRUCTURED_REPLY_BYTES: usize = 20;
/// Bytes of the header of an extended NBD reply's chunk.
pub const EXTENDED_REPLY_BYTES: usize = 32;

/// Bytes of the longest string in the NBD protocol: a name, description or message (section "Conventions").
pub const MAX_STRING_BYTES: usize = 4096;

/// Largest payload of one NBD read or write in bytes. According to the specification, 32 MiB must never count as an
/// attack. Some clients send more, against the announced maximum.
pub const MAX_PAYLOAD_BYTES: u32 = 64 << 20;

/// Largest payload of one NBD read or write in bytes that a client may send to a server without announced block sizes
/// (section "Block size constraints").
pub const UNANNOUNCED_PAYLOAD_BYTES: u32 = 32 << 20;

/// Number of zero bytes at the end of the reply to `NBD_OPT_EXPORT_NAME`, unless client and server agreed to leave
/// them out.
pub(crate) const EXPORT_NAME_ZEROES: usize = 124;

/// Declares a set of bits as a newtype with named members.
macro_rules! bits {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$bit_doc:meta])* $bit:ident = $shift:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name(pub $int);

        impl $name {
            /// The value in which no bit is set.
            pub const NONE: Self = Self(0);
            $($(#[$bit_doc])* pub const $bit: Self = Self(1 << $shift);)*

            /// Whether every bit of `other` is set in this value.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns the bits of this value without those of `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:#x})", stringify!($name), self.0)
            }
        }
    };
}

bits! {
    /// Features of the handshake that the server offers in its greeting ("Handshake flags").
    HandshakeFlags: u16 {
        /// `NBD_FLAG_FIXED_NEWSTYLE`: every option gets a reply.
        FIXED_NEWSTYLE = 0;
        /// `NBD_FLAG_NO_ZEROES`: the padding after `NBD_OPT_EXPORT_NAME` can be omitted.
        NO_ZEROES = 1;
    }
}

bits! {
    /// Features of the handshake that the client accepts in its reply to the greeting ("Client flags").
    ClientFlags: u32 {
        /// `NBD_FLAG_C_FIXED_NEWSTYLE`: the client expects a reply to every option.
        FIXED_NEWSTYLE = 0;
        /// `NBD_FLAG_C_NO_ZEROES`: the client expects no padding after `NBD_OPT_EXPORT_NAME`.
        NO_ZEROES = 1;
    }
}

bits! {
    /// Features of an export in the transmission phase ("Transmission flags").
    TransmissionFlags: u16 {
        /// `NBD_FLAG_HAS_FLAGS`: always set on the wire.
        HAS_FLAGS = 0;
        /// `NBD_FLAG_READ_ONLY`: the export refuses writes.
        READ_ONLY = 1;
        /// `NBD_FLAG_SEND_FLUSH`: flush is supported.
        FLUSH = 2;
        /// `NBD_FLAG_SEND_FUA`: the FUA command flag is supported.
        FUA = 3;
        /// `NBD_FLAG_ROTATIONAL`: the export is on a rotating disk, so seeks are slow.
        ROTATIONAL = 4;
        /// `NBD_FLAG_SEND_TRIM`: trim is supported.
        TRIM = 5;
        /// `NBD_FLAG_SEND_WRITE_ZEROES`: write-zeroes is supported.
        WRITE_ZEROES = 6;
        /// `NBD_FLAG_SEND_DF`: "don't fragment" is supported; needs structured replies.
        DF = 7;
        /// `NBD_FLAG_CAN_MULTI_CONN`: a flush on one connection covers all connections to the export.
        MULTI_CONN = 8;
        /// `NBD_FLAG_SEND_CACHE`: cache is supported.
        CACHE = 10;
        /// `NBD_FLAG_SEND_FAST_ZERO`: a client can ask that write-zeroes fails if it would be slow.
        FAST_ZERO = 11;
    }
}

bits! {
    /// Modifiers of an NBD request ("Command flags").
    CommandFlags: u16 {
        /// `NBD_CMD_FLAG_FUA`: reply only when the effect is on stable storage.
        FUA = 0;
        /// `NBD_CMD_FLAG_NO_HOLE`: the written zeroes must stay allocated.
        NO_HOLE = 1;
        /// `NBD_CMD_FLAG_DF`: the reply to the read must have one content chunk.
        DF = 2;
        /// `NBD_CMD_FLAG_REQ_ONE`: the reply must have one extent for each metadata context.
        REQ_ONE = 3;
        /// `NBD_CMD_FLAG_FAST_ZERO`: fail with `ENOTSUP` if zeroing is no faster than writing.
        FAST_ZERO = 4;
        /// `NBD_CMD_FLAG_PAYLOAD_LEN`: the length is that of a payload; extended headers only.
        PAYLOAD_LEN = 5;
    }
}

bits! {
    /// Flags of a chunk of an NBD reply ("Structured reply flags").
    ReplyFlags: u16 {
        /// `NBD_REPLY_FLAG_DONE`: no further chunk answers this request.
        DONE = 0;
    }
}

bits! {
    /// Flags of an extent in the metadata context `base:allocation`.
    AllocationFlags: u32 {
        /// `NBD_STATE_HOLE`: no storage is allocated for the extent.
        HOLE = 0;
        /// `NBD_STATE_ZERO`: the extent reads as zeroes.
        ZERO = 1;
    }
}

/// The metadata context that every server with block status supports.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Declares a number with named values. Unknown values are kept as they are.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$item_doc:meta])* $item:ident = $value:expr, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$item_doc])* pub const $item: Self = Self($value);)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$item => f.write_str($text),)*
                    Self(other) => write!(f, "number {other}"),
                }
            }
        }
    };
}

numbers! {
    /// An option that a client sends in the handshake ("Option types").
    OptionCode: u32 {
        /// Enter transmission for an export in the old way, without error replies.
        EXPORT_NAME = 1, "NBD_OPT_EXPORT_NAME";
        /// End the handshake and the connection.
        ABORT = 2, "NBD_OPT_ABORT";
        /// List the exports of the server.
        LIST = 3, "NBD_OPT_LIST";
        /// Go on with the handshake under TLS.
        STARTTLS = 5, "NBD_OPT_STARTTLS";
        /// Describe an export of the server.
        INFO = 6, "NBD_OPT_INFO";
        /// Describe an export of the server and enter transmission.
        GO = 7, "NBD_OPT_GO";
        /// Use structured replies in the transmission phase.
        STRUCTURED_REPLY = 8, "NBD_OPT_STRUCTURED_REPLY";
        /// List the metadata contexts of an export.
        LIST_META_CONTEXT = 9, "NBD_OPT_LIST_META_CONTEXT";
        /// Select metadata contexts of an export.
        SET_META_CONTEXT = 10, "NBD_OPT_SET_META_CONTEXT";
        /// Use extended headers in the transmission phase.
        EXTENDED_HEADERS = 11, "NBD_OPT_EXTENDED_HEADERS";
    }
}

/// Bit that marks an option reply as an error.
const REP_ERR: u32 = 1 << 31;

numbers! {
    /// The type of a reply to an option ("Option reply types").
    ReplyCode: u32 {
        /// The option is accepted, or its list has ended.
        ACK = 1, "NBD_REP_ACK";
        /// One export of the list of exports.
        SERVER = 2, "NBD_REP_SERVER";
        /// One fact about the export.
        INFO = 3, "NBD_REP_INFO";
        /// One metadata context of the export.
        META_CONTEXT = 4, "NBD_REP_META_CONTEXT";
        /// The server does not know the option.
        ERR_UNSUP = REP_ERR | 1, "NBD_REP_ERR_UNSUP";
        /// The option is forbidden by the server's policy.
        ERR_POLICY = REP_ERR | 2, "NBD_REP_ERR_POLICY";
        /// The option is malformed, or out of order.
        ERR_INVALID = REP_ERR | 3, "NBD_REP_ERR_INVALID";
        /// The option is not supported on the server's platform.
        ERR_PLATFORM = REP_ERR | 4, "NBD_REP_ERR_PLATFORM";
        /// The option is possible only under TLS.
        ERR_TLS_REQD = REP_ERR | 5, "NBD_REP_ERR_TLS_REQD";
        /// The server has no such export.
        ERR_UNKNOWN = REP_ERR | 6, "NBD_REP_ERR_UNKNOWN";
        /// The server is being shut down.
        ERR_SHUTDOWN = REP_ERR | 7, "NBD_REP_ERR_SHUTDOWN";
        /// The client must ask for the export's block sizes first.
        ERR_BLOCK_SIZE_REQD = REP_ERR | 8, "NBD_REP_ERR_BLOCK_SIZE_REQD";
        /// The option is too large to process.
        ERR_TOO_BIG = REP_ERR | 9, "NBD_REP_ERR_TOO_BIG";
        /// The option needs extended headers, or they are already in use.
        ERR_EXT_HEADER_REQD = REP_ERR | 10, "NBD_REP_ERR_EXT_HEADER_REQD";
    }
}

impl ReplyCode {
    /// Whether a reply of this type ends the option with an error.
    pub const fn is_error(self) -> bool {
        self.0 & REP_ERR != 0
    }
}

numbers! {
    /// A type of fact about an export for which `NBD_OPT_INFO` and `NBD_OPT_GO` can ask.
    InfoCode: u16 {
        /// Size and transmission flags of the export; always sent.
        EXPORT = 0, "NBD_INFO_EXPORT";
        /// Canonical name of the export.
        NAME = 1, "NBD_INFO_NAME";
        /// Description of the export for people.
        DESCRIPTION = 2, "NBD_INFO_DESCRIPTION";
        /// Minimum, preferred and maximum block size of the export.
        BLOCK_SIZE = 3, "NBD_INFO_BLOCK_SIZE";
    }
}

numbers! {
    /// The type of a chunk of an NBD reply ("Structured reply types").
    ChunkKind: u16 {
        /// The chunk ends a reply, and has no payload.
        NONE = 0, "NBD_REPLY_TYPE_NONE";
        /// The chunk has bytes that were read, and their offset.
        OFFSET_DATA = 1, "NBD_REPLY_TYPE_OFFSET_DATA";
        /// The chunk has the range of a hole that reads as zeroes; these are not transferred.
        OFFSET_HOLE = 2, "NBD_REPLY_TYPE_OFFSET_HOLE";
        /// The chunk has extents of a metadata context, with 32-bit lengths.
        BLOCK_STATUS = 5, "NBD_REPLY_TYPE_BLOCK_STATUS";
        /// The chunk has extents of a metadata context, with 64-bit lengths.
        BLOCK_STATUS_EXT = 6, "NBD_REPLY_TYPE_BLOCK_STATUS_EXT";
        /// The chunk reports that the request failed.
        ERROR = (1 << 15) | 1, "NBD_REPLY_TYPE_ERROR";
        /// The chunk reports that the request failed at an offset.
        ERROR_OFFSET = (1 << 15) | 2, "NBD_REPLY_TYPE_ERROR_OFFSET";
    }
}

impl ChunkKind {
    /// Whether a chunk of this type reports an error; also true for unknown types of errors.
    pub const fn is_error(self) -> bool {
        self.0 & (1 << 15) != 0
    }
}

/// The operation of an NBD request ("Request types").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read bytes of the export.
    Read,
    /// Write bytes of the export.
    Write,
    /// Disconnect the client; there is no reply.
    Disconnect,
    /// Make all completed writes durable.
    Flush,
    /// Discard bytes of the export, which are no longer needed.
    Trim,
    /// Read bytes ahead, because the client will read them soon.
    Cache,
    /// Write zeroes without sending them.
    WriteZeroes,
    /// Report the extents of the selected metadata contexts.
    BlockStatus,
    /// A command with this number, which this crate does not know.
    Unknown(u16),
}

impl Command {
    /// Returns the command with that number in a request.
    pub const fn from_wire(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }

    /// Returns the number of the command in a request.
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Unknown(number) => number,
        }
    }

    /// Whether the command changes bytes of the export.
    pub const fn modifies(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

/// An error number in a reply of the transmission phase ("Error values").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Errno {
    /// The operation is not permitted.
    EPERM = 1,
    /// Input or output on the server's storage failed.
    EIO = 5,
    /// The server cannot allocate memory.
    ENOMEM = 12,
    /// An argument of the request is invalid.
    EINVAL = 22,
    /// The export has no space left.
    ENOSPC = 28,
    /// A value in the request is too large.
    EOVERFLOW = 75,
    /// The server does not support the operation.
    ENOTSUP = 95,
    /// The server is being shut down.
    ESHUTDOWN = 108,
}

impl Errno {
    /// Returns the error with that non-zero number in a reply. An unknown number becomes `EINVAL`, as the specification
    /// requires of clients.
    pub const fn from_wire(number: u32) -> Self {
        match number {
            1 => Self::EPERM,
            5 => Self::EIO,
            12 => Self::ENOMEM,
            28 => Self::ENOSPC,
            75 => Self::EOVERFLOW,
            95 => Self::ENOTSUP,
            108 => Self::ESHUTDOWN,
            _ => Self::EINVAL,
        }
    }

    /// Returns the number of the error in a reply.
    pub const fn to_wire(self) -> u32 {
        self as u32
    }
}
