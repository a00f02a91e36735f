//! What a mirror keeps in the labels beneath it: `docs/formats/mirror.md`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::MEMBERS_MAX;

/// The version that this code writes, and the only one that it reads.
const VERSION: u32 = 1;

const ACTIVE: u16 = 1;
const FLUSH_FAILED: u16 = 2;

/// The highest change: counted one by one, nobody gets there. Who writes a higher one on a disk wants the next
/// to have no number.
pub const CHANGE_MAX: u64 = 1 << 62;

/// Bytes in the name of a member.
const NAME_BYTES: usize = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    version: U32,
    members: U16,
    flags: U16,
    opening: U64,
    change: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    name: [u8; NAME_BYTES],
    standing: u8,
    zero: [u8; 7],
    known: RawPoint,
    sent: RawPoint,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPoint {
    opening: U64,
    change: U64,
}

const _: () = assert!(size_of::<Header>() == 24 && size_of::<Entry>() == 104);

/// Which members have every write, as of one change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Which state it is.
    pub point: Point,
    /// Whether writes may have been on their way.
    pub active: bool,
    /// Whether what was answered may be lost.
    pub flush_failed: bool,
    /// The members.
    pub members: Vec<Known>,
}

/// Names one state: who wrote it, and how many came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Point {
    /// The opening that wrote it.
    pub opening: u64,
    /// Its number.
    pub change: u64,
}

/// What a record says of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Whether it has every write.
    pub standing: Standing,
    /// The last state that is known to be on it.
    pub known: Point,
    /// The last state that was sent to it.
    pub sent: Point,
}

/// Whether a member has every write that was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has.
    InSync,
    /// It misses some.
    Stale,
    /// It misses some, and was taken out.
    Failed,
}

impl Record {
    /// What it says of the member called `name`.
    pub fn member(&self, name: &str) -> Option<&Known> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Bytes of a record of so many members.
    pub const fn bytes_of(members: usize) -> usize {
        size_of::<Header>() + members * size_of::<Entry>()
    }

    /// The bytes.
    ///
    /// # Panics
    /// If a name is longer than names of devices are.
    pub fn encode(&self) -> Vec<u8> {
        let active = if self.active { ACTIVE } else { 0 };
        let flush_failed = if self.flush_failed { FLUSH_FAILED } else { 0 };
        let header = Header {
            version: VERSION.into(),
            members: (self.members.len() as u16).into(),
            flags: (active | flush_failed).into(),
            opening: self.point.opening.into(),
            change: self.point.change.into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        for member in &self.members {
            let mut name = [0; NAME_BYTES];
            name[..member.name.len()].copy_from_slice(member.name.as_bytes());
            let entry = Entry {
                name,
                standing: match member.standing {
                    Standing::InSync => 1,
                    Standing::Stale => 2,
                    Standing::Failed => 3,
                },
                zero: [0; 7],
                known: member.known.into(),
                sent: member.sent.into(),
            };
            bytes.extend_from_slice(entry.as_bytes());
        }
        bytes
    }

    /// What `bytes` say.
    ///
    /// # Errors
    /// Why they are no record that can be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (header, rest) =
            Header::ref_from_prefix(bytes).map_err(|_| format!("{} bytes", bytes.len()))?;
        if header.version.get() != VERSION {
            return Err(format!("version {}; {VERSION} is known", header.version));
        }
        let (count, flags) = (usize::from(header.members.get()), header.flags.get());
        if !(1..=MEMBERS_MAX).contains(&count) || flags & !(ACTIVE | FLUSH_FAILED) != 0 {
            return Err(format!("{count} members, flags {flags:#x}"));
        }
        let entries = <[Entry]>::ref_from_bytes_with_elems(rest, count)
            .map_err(|_| format!("{} bytes for {count} members", rest.len()))?;
        let mut members: Vec<Known> = Vec::new();
        for entry in entries {
            let member = entry.decode()?;
            if members.iter().any(|other| other.name == member.name) {
                return Err(format!("{:?} twice", member.name));
            }
            members.push(member);
        }
        Ok(Self {
            point: Point::new(header.opening.get(), header.change.get())?,
            active: flags & ACTIVE != 0,
            flush_failed: flags & FLUSH_FAILED != 0,
            members,
        })
    }
}

impl Entry {
    fn decode(&self) -> Result<Known, String> {
        let end = self.name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let name = std::str::from_utf8(&self.name[..end]).ok().filter(|name| !name.is_empty());
        let name = name.ok_or("a member without a name")?.to_owned();
        let standing = match self.standing {
            1 => Standing::InSync,
            2 => Standing::Stale,
            3 => Standing::Failed,
            other => return Err(format!("standing {other} of {name:?}")),
        };
        if self.zero != [0; 7] {
            return Err(format!("bytes of no meaning at {name:?}"));
        }
        let (known, sent) = (self.known.decode()?, self.sent.decode()?);
        Ok(Known { name, standing, known, sent })
    }
}

impl From<Point> for RawPoint {
    fn from(point: Point) -> Self {
        Self { opening: point.opening.into(), change: point.change.into() }
    }
}

impl RawPoint {
    fn decode(&self) -> Result<Point, String> {
        Point::new(self.opening.get(), self.change.get())
    }
}

impl Point {
    fn new(opening: u64, change: u64) -> Result<Self, String> {
        if change > CHANGE_MAX {
            return Err(format!("change {change}; {CHANGE_MAX} is the highest"));
        }
        Ok(Self { opening, change })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let point = |opening, change| Point { opening, change };
        let member = |name: &str, standing| Known {
            name: name.to_owned(),
            standing,
            known: point(3, 4),
            sent: point(5, 6),
        };
        Record {
            point: point(0x0102, 7),
            active: true,
            flush_failed: false,
            members: vec![member("a", Standing::InSync), member("b", Standing::Failed)],
        }
    }

    #[test]
    fn golden_bytes() {
        let mut golden = vec![0; 24 + 2 * 104];
        golden[..17].copy_from_slice(&[1, 0, 0, 0, 2, 0, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 7]);
        for (at, name, standing) in [(24, b'a', 1), (128, b'b', 3)] {
            (golden[at], golden[at + 64]) = (name, standing);
            for (n, byte) in [3, 4, 5, 6].into_iter().enumerate() {
                golden[at + 72 + 8 * n] = byte;
            }
        }
        assert_eq!(sample().encode(), golden);
        assert_eq!(Record::decode(&golden), Ok(sample()));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let good = sample().encode();
        let wrong: &[(usize, u8)] = &[
            (0, 2),
            (4, 0),
            (4, 9),
            (4, 1),
            (6, 4),
            (24, 0),
            (88, 0),
            (88, 4),
            (90, 1),
            (128, b'a'),
            // Changes beyond any count.
            (23, 0x40),
            (24 + 87, 0x40),
            (24 + 103, 0xff),
        ];
        for (at, value) in wrong {
            let mut bytes = good.clone();
            bytes[*at] = *value;
            assert!(Record::decode(&bytes).is_err(), "{value} at {at}");
        }
        for len in 0..good.len() {
            assert!(Record::decode(&good[..len]).is_err(), "{len} bytes");
        }
    }
}
