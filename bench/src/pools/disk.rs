//! A disk in memory that counts requests and keeps no data of clients, so that a small machine holds a large pool.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use block::{ChildId, Core, Done, Info, Lower, Op, Started};

/// Length in bytes of a page, the unit in which the disk keeps bytes.
const PAGE: usize = 4096;

/// The data of clients: each page begins and ends with these bytes. The disk keeps one bit for such a page.
const DATA: [u8; 8] = *b"CLIENTS'";

/// Returns a page of client data.
pub fn data_page() -> Vec<u8> {
    DATA.repeat(PAGE / DATA.len())
}

/// The requests and bytes that a disk has carried out.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes of all writes.
    pub written_bytes: u64,
    /// Number of pages with client data in all writes.
    pub data_pages: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of discards.
    pub discards: u64,
}

impl Counts {
    /// Returns the counts since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
            data_pages: self.data_pages - before.data_pages,
            flushes: self.flushes - before.flushes,
            discards: self.discards - before.discards,
        }
    }

    /// Returns the bytes of all writes without the pages of client data.
    pub fn metadata_bytes(self) -> u64 {
        self.written_bytes - self.data_pages * PAGE as u64
    }
}

/// The content of a page.
#[derive(Clone)]
enum Page {
    Zeros,
    Data,
    Bytes(Box<[u8; PAGE]>),
}

/// A disk in memory.
pub struct Disk {
    pages: RefCell<Vec<Page>>,
    counts: Cell<Counts>,
}

impl Disk {
    /// Makes a disk of `size` bytes, a multiple of 4096, all zeros.
    pub fn new(size: u64) -> Rc<Self> {
        let pages = (0..size / PAGE as u64).map(|_| Page::Zeros).collect();
        Rc::new(Self { pages: RefCell::new(pages), counts: Cell::default() })
    }

    /// Returns a handle to the disk, as a device has it.
    pub fn lower(self: &Rc<Self>) -> Lower {
        let size = (self.pages.borrow().len() * PAGE) as u64;
        Lower::new(self.clone(), 0, Info::disk(size, 512), "disk".into())
    }

    /// Returns what the disk has carried out so far.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Returns a disk with the same content, as a power cut that loses nothing would leave it.
    pub fn image(&self) -> Rc<Self> {
        let pages = RefCell::new(self.pages.borrow().clone());
        Rc::new(Self { pages, counts: Cell::default() })
    }

    /// Returns the memory of the pages with bytes of their own, with the 16 bytes that the allocator adds to each.
    pub fn kept_bytes(&self) -> u64 {
        let is_kept = |page: &&Page| matches!(page, Page::Bytes(_));
        (self.pages.borrow().iter().filter(is_kept).count() * (PAGE + 16)) as u64
    }

    fn write(&self, at: u64, data: &[u8]) -> u64 {
        let mut data_pages = 0;
        for (number, from, part) in parts(at, data.len()) {
            let bytes = &data[part];
            let page = &mut self.pages.borrow_mut()[number];
            *page = match page {
                _ if bytes.len() == PAGE && bytes.starts_with(&DATA) && bytes.ends_with(&DATA) => {
                    data_pages += 1;
                    Page::Data
                }
                Page::Bytes(old) => {
                    old[from..from + bytes.len()].copy_from_slice(bytes);
                    continue;
                }
                _ => {
                    let mut new = Box::new([0; PAGE]);
                    new[from..from + bytes.len()].copy_from_slice(bytes);
                    Page::Bytes(new)
                }
            };
        }
        data_pages
    }

    fn zero(&self, at: u64, len: u64) {
        for (number, from, part) in parts(at, len as usize) {
            match &mut self.pages.borrow_mut()[number] {
                Page::Bytes(old) if part.len() < PAGE => old[from..from + part.len()].fill(0),
                page => *page = Page::Zeros,
            }
        }
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        for (number, from, part) in parts(at, into.len()) {
            let into = &mut into[part];
            match &self.pages.borrow()[number] {
                Page::Zeros => into.fill(0),
                Page::Data => into.chunks_mut(DATA.len()).for_each(|c| c.copy_from_slice(&DATA)),
                Page::Bytes(bytes) => into.copy_from_slice(&bytes[from..from + into.len()]),
            }
        }
    }
}

/// Splits `len` bytes from `at` at the borders of pages: number of the page, first byte in it, range of the request.
fn parts(at: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let at = at as usize;
    (at / PAGE..(at + len).div_ceil(PAGE)).map(move |page| {
        let (from, to) = (at.max(page * PAGE), (at + len).min((page + 1) * PAGE));
        (page, from - page * PAGE, from - at..to - at)
    })
}

impl Core for Disk {
    fn start(&self, op: &mut Op) -> Started {
        let mut counts = self.counts.get();
        match op {
            Op::Read { range, into, .. } => {
                counts.reads += 1;
                self.read(range.start(), &mut into.write());
            }
            Op::Write { range, data, .. } => {
                counts.writes += 1;
                counts.written_bytes += range.len();
                counts.data_pages += self.write(range.start(), &data.read());
            }
            Op::WriteZeroes { range, .. } => {
                counts.writes += 1;
                self.zero(range.start(), range.len());
            }
            Op::Discard { range, .. } => {
                counts.discards += 1;
                self.zero(range.start(), range.len());
            }
            Op::Flush => counts.flushes += 1,
            Op::Status { .. } => unreachable!("a pool asks for no block status"),
        }
        self.counts.set(counts);
        Started::Done(Ok(()))
    }

    fn poll(&self, _: ChildId, _: &mut Context<'_>) -> Poll<Done> {
        unreachable!("everything is done at once")
    }

    fn abandon(&self, _: ChildId) {}
}
