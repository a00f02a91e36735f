//! Facts about an export, and the session that a handshake creates.

use super::constants::{MAX_PAYLOAD_BYTES, TransmissionFlags, UNANNOUNCED_PAYLOAD_BYTES};

/// The block sizes of an NBD export (section "Block size constraints").
///
/// Invariant: the rules listed at [`BlockSizes::new`] hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizes {
    pub(super) min: u32,
    pub(super) preferred: u32,
    pub(super) max: u32,
}

impl BlockSizes {
    /// Returns block sizes that follow the rules, else `None`. The rules: `min` is a power of two up to 64 KiB;
    /// `preferred` is a power of two not below 512 and `min`; `max` is `u32::MAX`, or a multiple of `min` not below
    /// `min`.
    pub const fn new(min: u32, preferred: u32, max: u32) -> Option<Self> {
        let good = min.is_power_of_two()
            && min <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= 512
            && preferred >= min
            && (max == u32::MAX || (max >= min && max.is_multiple_of(min)));
        if good { Some(Self { min, preferred, max }) } else { None }
    }

    /// Returns the minimum block size: every offset and length of a request must be a multiple of it.
    pub const fn min(self) -> u32 {
        self.min
    }

    /// Returns the preferred block size: the server need not read for a write in multiples of it.
    pub const fn preferred(self) -> u32 {
        self.preferred
    }

    /// Returns the largest payload of one request to the export in bytes, as the server has announced it.
    pub const fn max(self) -> u32 {
        self.max
    }

    /// Returns the largest payload of one request that this crate accepts, in bytes: [`BlockSizes::max`], but no more
    /// than [`MAX_PAYLOAD_BYTES`].
    pub fn max_payload(self) -> u32 {
        self.max.min(MAX_PAYLOAD_BYTES)
    }
}

/// The block sizes of a server that announces none: any alignment, 4 KiB preferred, at most
/// [`UNANNOUNCED_PAYLOAD_BYTES`].
impl Default for BlockSizes {
    fn default() -> Self {
        Self { min: 1, preferred: 4096, max: UNANNOUNCED_PAYLOAD_BYTES }
    }
}

/// One export in the list of a server's exports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportEntry {
    /// Name with which a client connects to the export.
    pub name: String,
    /// Description of the export for people; may be empty.
    pub description: String,
}

/// The facts about one export, as an NBD server announces them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExportFacts {
    /// Canonical name of the export, even if the client used another name such as "".
    pub name: String,
    /// Description of the export for people; may be empty.
    pub description: String,
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Features of the export. A flag may be set only if the export supports the feature.
    pub flags: TransmissionFlags,
    /// Block sizes of the export.
    pub blocks: BlockSizes,
    /// Metadata contexts that the export can report, for instance `base:allocation`.
    pub contexts: Vec<String>,
}

impl ExportFacts {
    /// Returns the export's flags as they may be sent: `HAS_FLAGS` always, `DF` only with structured replies,
    /// `FAST_ZERO` only with `WRITE_ZEROES` (section "Transmission flags").
    pub fn wire_flags(&self, structured: bool) -> TransmissionFlags {
        let mut flags = self.flags | TransmissionFlags::HAS_FLAGS;
        if !structured {
            flags = flags.without(TransmissionFlags::DF);
        }
        if !flags.has(TransmissionFlags::WRITE_ZEROES) {
            flags = flags.without(TransmissionFlags::FAST_ZERO);
        }
        flags
    }
}

/// The exports of a server, in which a handshake looks them up. The client may turn out to be not admitted, so a
/// look-up must be cheap.
pub trait Exports {
    /// Lists every export of the server that the client may see. Opens and creates nothing.
    ///
    /// # Errors
    /// The reason, in words for the client, if the exports cannot be listed.
    fn list(&self) -> impl Future<Output = Result<Vec<ExportEntry>, String>>;

    /// Finds the export called `name`, for a client that asks for its properties. Opens and creates nothing. The empty
    /// name means the server's default export.
    ///
    /// # Errors
    /// The reason, in words for the client, if the export cannot be looked up.
    fn look(&self, name: &str) -> impl Future<Output = Result<Option<ExportFacts>, String>>;

    /// Opens the export called `name`, for a client that begins the transmission phase. May create a volume, if the
    /// name asks for that. The empty name means the server's default export.
    ///
    /// # Errors
    /// The reason, in words for the client, if the export cannot be opened.
    fn open(&self, name: &str) -> impl Future<Output = Result<Option<ExportFacts>, String>>;

    /// Returns the reason, in words, if the server gives no export to clients now. The handshake calls this method
    /// before the others.
    fn refusal(&self) -> Option<String> {
        None
    }
}

/// A metadata context that a client has selected for a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Number of the context in replies.
    pub id: u32,
    /// Name of the context.
    pub name: String,
}

/// The form of headers and replies in the transmission phase of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyStyle {
    /// Requests have compact headers, and replies are simple.
    Simple,
    /// Requests have compact headers, and replies are structured. A reply that is not to a read may be simple.
    Structured,
    /// Requests and replies have extended headers.
    Extended,
}

impl ReplyStyle {
    /// Returns the form after an agreement on structured replies and on extended headers.
    pub(super) fn agreed(structured: bool, extended: bool) -> Self {
        match (structured, extended) {
            (_, true) => Self::Extended,
            (true, false) => Self::Structured,
            (false, false) => Self::Simple,
        }
    }
}

/// The result of an NBD handshake. Requests and replies in the transmission phase depend on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// The form of requests and replies in the session.
    pub style: ReplyStyle,
    /// The metadata contexts that the client has selected.
    pub contexts: Vec<Context>,
    /// The facts about the export, with the flags that the server has sent.
    pub facts: ExportFacts,
}
