//! The bytes of a page, and the pointer that says which of its two homes counts.

use crc_fast::CrcAlgorithm;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::geometry::PageNumber;

/// Bytes of a page, and what everything in a vault is a multiple of.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of a page that are an object's.
pub const CONTENT_BYTES: usize = PAGE_BYTES - size_of::<Header>();

/// Pointers in a page of the map.
pub const POINTERS_PER_PAGE: u64 = (CONTENT_BYTES / size_of::<RawPointer>()) as u64;

/// Who owns the pages of the map.
pub const MAP_OWNER: u64 = u64::MAX;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    checksum: U64,
    checkpoint: U64,
    owner: U64,
    number: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPointer {
    version: U64,
    checksum: U64,
}

const _: () = assert!(size_of::<Header>() == 32 && size_of::<RawPointer>() == 16);
const _: () = assert!(POINTERS_PER_PAGE == 254);

/// The checksum of everything in a vault.
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// What is known of a page from above: which version of it counts, where it is, and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The checkpoint that wrote it.
    pub checkpoint: u64,
    /// In which of its homes it is.
    pub home: usize,
    /// Its checksum.
    pub checksum: u64,
}

impl Pointer {
    /// Bytes of a pointer.
    pub const BYTES: usize = size_of::<RawPointer>();

    /// What the bytes say; `None` for a page that was never written.
    ///
    /// # Panics
    /// If there are not [`Pointer::BYTES`] of them.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let raw = RawPointer::ref_from_bytes(bytes).expect("a pointer has its length");
        let version = raw.version.get();
        (version != 0).then(|| Self {
            checkpoint: version >> 1,
            home: (version & 1) as usize,
            checksum: raw.checksum.get(),
        })
    }

    /// Its bytes.
    pub fn encode(pointer: Option<Self>) -> [u8; Self::BYTES] {
        let raw = match pointer {
            None => RawPointer { version: 0.into(), checksum: 0.into() },
            Some(it) => RawPointer {
                version: (it.checkpoint << 1 | it.home as u64).into(),
                checksum: it.checksum.into(),
            },
        };
        zerocopy::transmute!(raw)
    }
}

/// A page in memory. Its checksum and its checkpoint are made when it is written.
#[derive(Clone, PartialEq, Eq)]
pub struct Page([u8; PAGE_BYTES]);

impl Page {
    /// A page that was never written.
    pub fn blank(owner: u64, number: PageNumber) -> Self {
        let mut page = Self([0; PAGE_BYTES]);
        let header = page.header_mut();
        header.owner = owner.into();
        header.number = number.into();
        page
    }

    fn header(&self) -> &Header {
        Header::ref_from_prefix(&self.0).expect("a page is longer than its header").0
    }

    fn header_mut(&mut self) -> &mut Header {
        Header::mut_from_prefix(&mut self.0).expect("a page is longer than its header").0
    }

    /// The object whose page it is.
    pub fn owner(&self) -> u64 {
        self.header().owner.get()
    }

    /// The checkpoint that wrote it; 0 if none did.
    pub fn checkpoint(&self) -> u64 {
        self.header().checkpoint.get()
    }

    /// The object's bytes.
    pub fn content(&self) -> &[u8] {
        &self.0[size_of::<Header>()..]
    }

    /// The object's bytes, to change.
    pub fn content_mut(&mut self) -> &mut [u8] {
        &mut self.0[size_of::<Header>()..]
    }

    /// The pointer in a place of a page of the map.
    pub fn pointer(&self, place: usize) -> Option<Pointer> {
        Pointer::decode(&self.content()[place * Pointer::BYTES..][..Pointer::BYTES])
    }

    /// Changes a pointer of a page of the map.
    pub fn set_pointer(&mut self, place: usize, pointer: Pointer) {
        self.content_mut()[place * Pointer::BYTES..][..Pointer::BYTES]
            .copy_from_slice(&Pointer::encode(Some(pointer)));
    }

    /// Makes it what `checkpoint` writes to `home`; what points to it says so.
    pub fn seal(&mut self, checkpoint: u64, home: usize) -> Pointer {
        self.header_mut().checkpoint = checkpoint.into();
        let sum = checksum(&self.0[size_of::<U64>()..]);
        self.header_mut().checksum = sum.into();
        Pointer { checkpoint, home, checksum: sum }
    }

    /// All of its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The page that `pointer` means, if these bytes are it.
    ///
    /// # Errors
    /// What they are instead, in words.
    pub fn verify(bytes: &[u8], number: PageNumber, pointer: &Pointer) -> Result<Self, String> {
        let bytes = bytes.try_into().map_err(|_| format!("{} bytes are no page", bytes.len()))?;
        let page = Self(bytes);
        let header = page.header();
        if checksum(&page.0[size_of::<U64>()..]) != header.checksum.get() {
            return Err("its checksum does not fit".to_owned());
        }
        if header.number.get() != number {
            return Err(format!("it is page {}", header.number));
        }
        if header.checkpoint.get() != pointer.checkpoint {
            let (is, should) = (header.checkpoint, pointer.checkpoint);
            return Err(format!("it is of checkpoint {is}, not {should}"));
        }
        if header.checksum.get() != pointer.checksum {
            return Err("it is not the version that the map names".to_owned());
        }
        Ok(page)
    }
}
