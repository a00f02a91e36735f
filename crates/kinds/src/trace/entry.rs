//! The codec of traces, as `docs/formats/trace.md` specifies it.

use std::fmt;

use block::{ByteRange, OpKind};

/// Bytes of a slot of a trace file, which holds the header or one entry.
pub const SLOT_BYTES: usize = 64;

/// The bytes of one slot of a trace file.
pub type Slot = [u8; SLOT_BYTES];

const MAGIC: [u8; 8] = *b"CAIRNTRC";
const VERSION: u32 = 1;

const START: u8 = 1;
const REQUEST: u8 = 2;
const LOST: u8 = 3;

const FUA: u8 = 1;
const UNMAP: u8 = 2;

/// The header of a trace file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header;

/// One entry of a trace file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The start of a graph. The entries that follow are of this run.
    Start {
        /// Time of the start by the wall clock, in nanoseconds since 1970.
        wall_ns: u64,
    },
    /// A request, recorded when its reply went up.
    Request(Record),
    /// A gap in the trace: requests that could not be recorded.
    Lost {
        /// Number of the requests that are missing.
        count: u64,
    },
}

/// A request that passed the trace hook, with its times and result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Time when the request went down, in nanoseconds since the start of the graph.
    pub begin_ns: u64,
    /// Time when the reply went up, in nanoseconds since the start of the graph.
    pub end_ns: u64,
    /// Number of the request in the graph. Numbers grow in the order in which requests went down.
    pub id: u64,
    /// Operation of the request.
    pub verb: OpKind,
    /// Bytes that the request covers; `None` for a flush.
    pub range: Option<ByteRange>,
    /// Whether the request had the FUA flag: it had to be durable when it was acknowledged.
    pub fua: bool,
    /// Whether a write-zeroes request permitted the device to free space.
    pub unmap: bool,
    /// The errno of the reply; 0 if the request succeeded.
    pub errno: u32,
}

/// The reason why bytes are no part of a trace file. The text continues "is no trace: " or "slot 5: ".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed(pub String);

impl Header {
    /// Encodes the header of a trace file.
    pub fn encode(self) -> Slot {
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(&MAGIC);
        slot[8..12].copy_from_slice(&VERSION.to_le_bytes());
        slot[12..16].copy_from_slice(&(SLOT_BYTES as u32).to_le_bytes());
        slot
    }

    /// Parses the header of a trace file in `slot`.
    ///
    /// # Errors
    /// If `slot` holds no header, or one of another version.
    pub fn parse(slot: &Slot) -> Result<Self, Malformed> {
        if slot[..8] != MAGIC {
            return Err(Malformed("the header does not begin with CAIRNTRC".to_owned()));
        }
        let version = u32_at(slot, 8);
        if version != VERSION {
            return Err(Malformed(format!(
                "the trace has version {version}; only version {VERSION} is supported"
            )));
        }
        if *slot != Self.encode() {
            return Err(Malformed(
                "the header has bytes that version 1 does not define".to_owned(),
            ));
        }
        Ok(Self)
    }
}

impl Entry {
    /// Encodes the entry as a slot of a trace file.
    pub fn encode(&self) -> Slot {
        let mut slot = [0; SLOT_BYTES];
        let (sort, first) = match self {
            Self::Start { wall_ns } => (START, *wall_ns),
            Self::Lost { count } => (LOST, *count),
            Self::Request(record) => {
                record.encode_into(&mut slot);
                (REQUEST, record.begin_ns)
            }
        };
        slot[0] = sort;
        put_u64(&mut slot, 8, first);
        slot
    }

    /// Parses the entry of a trace file in `slot`. Returns `None` if the trace ends before this slot.
    ///
    /// # Errors
    /// If `slot` holds no entry of this version.
    pub fn parse(slot: &Slot) -> Result<Option<Self>, Malformed> {
        let entry = match slot[0] {
            0 => return if *slot == [0; SLOT_BYTES] { Ok(None) } else { Err(unknown("entry", 0)) },
            START => Self::Start { wall_ns: u64_at(slot, 8) },
            REQUEST => Self::Request(Record::parse(slot)?),
            LOST if u64_at(slot, 8) > 0 => Self::Lost { count: u64_at(slot, 8) },
            LOST => return Err(Malformed("the entry records 0 lost requests".to_owned())),
            sort => return Err(unknown("entry", sort)),
        };
        if entry.encode() != *slot {
            return Err(Malformed("the entry has bytes that version 1 does not define".to_owned()));
        }
        Ok(Some(entry))
    }
}

impl Record {
    fn encode_into(&self, slot: &mut Slot) {
        slot[1] = 1 + self.verb as u8;
        slot[2] = FUA * u8::from(self.fua) + UNMAP * u8::from(self.unmap);
        slot[4..8].copy_from_slice(&self.errno.to_le_bytes());
        put_u64(slot, 16, self.end_ns);
        put_u64(slot, 24, self.id);
        put_u64(slot, 32, self.range.map_or(0, ByteRange::start));
        put_u64(slot, 40, self.range.map_or(0, ByteRange::len));
    }

    fn parse(slot: &Slot) -> Result<Self, Malformed> {
        let number = usize::from(slot[1]).wrapping_sub(1);
        let verb = *OpKind::ALL.get(number).ok_or_else(|| unknown("verb", slot[1]))?;
        let known = match verb {
            OpKind::Write | OpKind::Discard => FUA,
            OpKind::WriteZeroes => FUA | UNMAP,
            OpKind::Read | OpKind::Flush | OpKind::Status => 0,
        };
        if slot[2] & !known != 0 {
            return Err(unknown("flags", slot[2]));
        }
        let (offset, len) = (u64_at(slot, 32), u64_at(slot, 40));
        let range = ByteRange::new(offset, len);
        if range.is_none() && (verb, offset, len) != (OpKind::Flush, 0, 0)
            || range.is_some() && verb == OpKind::Flush
        {
            return Err(Malformed(format!("invalid range of a {verb}: {len} bytes at {offset}")));
        }
        let (begin_ns, end_ns) = (u64_at(slot, 8), u64_at(slot, 16));
        if end_ns < begin_ns {
            return Err(Malformed(format!(
                "the request ends at {end_ns} ns, before its begin at {begin_ns} ns"
            )));
        }
        let (fua, unmap) = (slot[2] & FUA != 0, slot[2] & UNMAP != 0);
        let (id, errno) = (u64_at(slot, 24), u32_at(slot, 4));
        Ok(Self { begin_ns, end_ns, id, verb, range, fua, unmap, errno })
    }
}

fn unknown(what: &str, number: u8) -> Malformed {
    Malformed(format!("{what} {number} is unknown"))
}

fn put_u64(slot: &mut Slot, at: usize, value: u64) {
    slot[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn u64_at(slot: &Slot, at: usize) -> u64 {
    u64::from_le_bytes(slot[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(slot: &Slot, at: usize) -> u32 {
    u32::from_le_bytes(slot[at..at + 4].try_into().expect("4 bytes"))
}

/// A time in nanoseconds, displayed in seconds.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { wall_ns } => write!(f, "-- start {}", Seconds(*wall_ns)),
            Self::Request(record) => record.fmt(f),
            Self::Lost { count } => write!(f, "-- lost {count}"),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (begin, took) = (Seconds(self.begin_ns), Seconds(self.end_ns - self.begin_ns));
        write!(f, "{begin} +{took} #{} {}", self.id, self.verb)?;
        if let Some(range) = self.range {
            write!(f, " {range}")?;
        }
        f.write_str(if self.fua { " fua" } else { "" })?;
        f.write_str(if self.unmap { " unmap" } else { "" })?;
        match self.errno {
            0 => f.write_str(": ok"),
            errno => write!(f, ": errno {errno}"),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}
