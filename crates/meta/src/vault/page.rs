//! The encoding of a page of a vault, and of a pointer to a page.

use crc_fast::CrcAlgorithm;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::number::{self, PageNumber};

/// Size of a page in bytes. The size of each part of a vault is a multiple of this.
pub const PAGE_BYTES: usize = 4096;

/// Number of bytes of a page that hold content of its object.
pub const CONTENT_BYTES: usize = PAGE_BYTES - size_of::<Header>();

/// Number of pointers in one page of the vault's map of pages, the tree of pointers to all pages.
pub const POINTERS_PER_PAGE: u64 = (CONTENT_BYTES / size_of::<RawPointer>()) as u64;

/// Object number in the header of each page of the vault's map of pages.
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

/// Returns the checksum of `bytes`: CRC-64/NVME, as all structures of a vault use it.
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// A pointer to one version of a page, stored in the vault's map of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// Number of the checkpoint that wrote this version of the page.
    pub checkpoint: u64,
    /// Index of the home, one of the two places of the page on each copy of the vault, that has this version of the
    /// page.
    pub home: usize,
    /// Checksum of this version of the page.
    pub checksum: u64,
}

impl Pointer {
    /// Length in bytes of an encoded pointer.
    pub const BYTES: usize = size_of::<RawPointer>();

    /// Decodes a pointer to a page; `None` for a page that was never written.
    ///
    /// # Panics
    /// If `bytes` does not have [`Pointer::BYTES`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let raw = RawPointer::ref_from_bytes(bytes).expect("a pointer has its length");
        let version = raw.version.get();
        (version != 0).then(|| Self {
            checkpoint: version >> 1,
            home: (version & 1) as usize,
            checksum: raw.checksum.get(),
        })
    }

    /// Encodes a pointer to a page.
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

/// The bytes of a page in memory. [`Page::seal`] sets the checkpoint and the checksum in its header.
#[derive(Clone, PartialEq, Eq)]
pub struct Page([u8; PAGE_BYTES]);

impl Page {
    /// Returns an empty page with this number, for the object `owner`.
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

    /// Returns the number of the object that owns the page.
    pub fn owner(&self) -> u64 {
        self.header().owner.get()
    }

    /// Returns the number of the checkpoint that wrote the page; 0 if the page was never written.
    pub fn checkpoint(&self) -> u64 {
        self.header().checkpoint.get()
    }

    /// Returns the bytes of the page that hold content of its object.
    pub fn content(&self) -> &[u8] {
        &self.0[size_of::<Header>()..]
    }

    /// Returns the bytes of the page that hold content of its object, for a change.
    pub fn content_mut(&mut self) -> &mut [u8] {
        &mut self.0[size_of::<Header>()..]
    }

    /// Returns the pointer with index `place` in this page, a page of the vault's map of pages.
    pub fn pointer(&self, place: usize) -> Option<Pointer> {
        Pointer::decode(&self.content()[place * Pointer::BYTES..][..Pointer::BYTES])
    }

    /// Sets the pointer with index `place` in this page, a page of the vault's map of pages.
    pub fn set_pointer(&mut self, place: usize, pointer: Pointer) {
        self.content_mut()[place * Pointer::BYTES..][..Pointer::BYTES]
            .copy_from_slice(&Pointer::encode(Some(pointer)));
    }

    /// Prepares the page for a write to home `home`: sets the checkpoint and the checksum. Returns the pointer to this
    /// version.
    pub fn seal(&mut self, checkpoint: u64, home: usize) -> Pointer {
        self.header_mut().checkpoint = checkpoint.into();
        let sum = checksum(&self.0[size_of::<U64>()..]);
        self.header_mut().checksum = sum.into();
        Pointer { checkpoint, home, checksum: sum }
    }

    /// Returns all bytes of the page, with its header.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the page in `bytes`, after checking that it is page `number` in the version that `pointer` names.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn verify(bytes: &[u8], number: PageNumber, pointer: &Pointer) -> Result<Self, String> {
        let bytes = bytes
            .try_into()
            .map_err(|_| format!("a page has {PAGE_BYTES} bytes, not {}", bytes.len()))?;
        let page = Self(bytes);
        let header = page.header();
        if checksum(&page.0[size_of::<U64>()..]) != header.checksum.get() {
            return Err("the checksum of the page is wrong".to_owned());
        }
        if header.number.get() != number {
            let (is, should) = (header.number.get(), number);
            let [is, should] = [is, should].map(number::describe);
            return Err(format!("{is} is at the address of {should}"));
        }
        if header.checkpoint.get() != pointer.checkpoint {
            let (is, should) = (header.checkpoint, pointer.checkpoint);
            return Err(format!("the page has checkpoint {is}, not {should}"));
        }
        if header.checksum.get() != pointer.checksum {
            return Err("the checksum of the page is not that in the map".to_owned());
        }
        Ok(page)
    }
}
