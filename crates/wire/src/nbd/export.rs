//! Facts about an export, and the result of a handshake.

use super::constants::{MAX_PAYLOAD_BYTES, TransmissionFlags};

/// The block sizes of an export (section "Block size constraints").
///
/// Invariant: the rules listed at [`BlockSizes::new`] hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizes {
    pub(super) min: u32,
    pub(super) preferred: u32,
    pub(super) max: u32,
}

impl BlockSizes {
    /// Checks the rules: `min` is a power of two up to 64 KiB, `preferred` is a power of two not below 512 and `min`,
    /// `max` is `u32::MAX` or a multiple of `min` not below it. Returns `None` if one is broken.
    pub const fn new(min: u32, preferred: u32, max: u32) -> Option<Self> {
        let good = min.is_power_of_two()
            && min <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= 512
            && preferred >= min
            && (max == u32::MAX || (max >= min && max.is_multiple_of(min)));
        if good { Some(Self { min, preferred, max }) } else { None }
    }

    /// Returns the minimum. Every offset and length must be a multiple of it.
    pub const fn min(self) -> u32 {
        self.min
    }

    /// Returns the preferred size. Requests in multiples of it need no read-modify-write.
    pub const fn preferred(self) -> u32 {
        self.preferred
    }

    /// Returns the largest payload of one request, as announced to the peer.
    pub const fn max(self) -> u32 {
        self.max
    }

    /// Returns the largest payload that is accepted: [`BlockSizes::max`], but no more than [`MAX_PAYLOAD_BYTES`].
    pub fn max_payload(self) -> u32 {
        self.max.min(MAX_PAYLOAD_BYTES)
    }
}

/// The sizes without negotiation: any alignment, 4 KiB preferred, 32 MiB at most.
impl Default for BlockSizes {
    fn default() -> Self {
        Self { min: 1, preferred: 4096, max: MAX_PAYLOAD_BYTES }
    }
}

/// One line of an export list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportEntry {
    /// The name to connect with.
    pub name: String,
    /// A text for people; may be empty.
    pub description: String,
}

/// The facts of one export, as a server announces them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExportFacts {
    /// The canonical name, also of an export that was found under an alias such as "".
    pub name: String,
    /// A text for people; may be empty.
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Its features. Set a flag only if the export supports it.
    pub flags: TransmissionFlags,
    /// Its block sizes.
    pub blocks: BlockSizes,
    /// The metadata contexts it can report, for instance `base:allocation`.
    pub contexts: Vec<String>,
}

impl ExportFacts {
    /// Returns the flags as they may be sent: `HAS_FLAGS` always, `DF` only with structured replies, `FAST_ZERO` only
    /// with `WRITE_ZEROES` (section "Transmission flags").
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

/// The exports of a server, for its handshakes. The peer has proved nothing yet, so a look-up must be cheap.
pub trait Exports {
    /// Lists every export that the client may see.
    ///
    /// # Errors
    /// The reason, in words for the client, if they cannot be listed.
    fn list(&self) -> impl Future<Output = Result<Vec<ExportEntry>, String>>;

    /// Finds the export of a name. The empty name asks for the default one.
    ///
    /// # Errors
    /// The reason, in words for the client, if the export cannot be opened.
    fn find(&self, name: &str) -> impl Future<Output = Result<Option<ExportFacts>, String>>;

    /// Returns the reason, in words, if no client gets an export now. It is asked before the other two.
    fn refusal(&self) -> Option<String> {
        None
    }
}

/// A metadata context that was selected for a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// The number that identifies it in replies.
    pub id: u32,
    /// Its name.
    pub name: String,
}

/// The form of the messages in the transmission phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyStyle {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests, structured replies. Simple replies are possible except to reads.
    Structured,
    /// Extended requests and replies.
    Extended,
}

impl ReplyStyle {
    /// Returns the style after an agreement on structured replies, and on extended headers.
    pub(super) fn agreed(structured: bool, extended: bool) -> Self {
        match (structured, extended) {
            (_, true) => Self::Extended,
            (true, false) => Self::Structured,
            (false, false) => Self::Simple,
        }
    }
}

/// The result of a handshake. It governs the transmission phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// The form of the messages.
    pub style: ReplyStyle,
    /// The selected metadata contexts.
    pub contexts: Vec<Context>,
    /// The facts of the export. The flags are those that were sent.
    pub facts: ExportFacts,
}
