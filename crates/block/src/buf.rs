//! The buffer pool: aligned memory in blocks, handles to the blocks, and a limit on the bytes in use.
//!
//! A [`Buf`] is a handle to a run of bytes in a block of the pool. Handles are cheap to clone and to slice. The block
//! returns to the pool when its last handle is dropped. So the buffer of a request in the kernel stays valid even if
//! the caller of the request has stopped waiting.
//!
//! One of the few modules with unsafe code: it turns the pool's raw memory into slices. The rule that makes this
//! sound is checked at run time: a block has any number of [`Ref`]s, or one [`RefMut`].
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::{Error, ErrorKind, Notify, Result, bail};

/// Alignment in bytes of every block of the buffer pool: enough for O_DIRECT on any disk.
pub const BUF_ALIGN: usize = 4096;

/// Length of the longest buffer, and so of the longest single read or write, in bytes. NBD clients may assume half of
/// this limit, and some send requests of this length unasked.
pub const BUF_MAX_BYTES: usize = 64 << 20;

/// Divisor of a pool's limit: that part of the pool is kept from clients' requests, so that new connections and
/// background work always find buffers.
const WITHHELD_FROM_CLIENTS: usize = 8;

const CLASSES: usize = (BUF_MAX_BYTES / BUF_ALIGN).ilog2() as usize + 1;

/// The buffer pool of one core: a bounded store of aligned blocks, in sizes of powers of two.
#[derive(Clone)]
pub struct BufPool(Rc<Pool>);

struct Pool {
    limit_bytes: usize,
    keep_bytes: usize,
    used_bytes: Cell<usize>,
    reserved_bytes: Cell<usize>,
    kept_bytes: Cell<usize>,
    kept: [RefCell<Vec<Rc<Block>>>; CLASSES],
    waiting: Notify,
}

struct Block {
    memory: NonNull<u8>,
    class: usize,
    // -1: one writer; 0: unused; n: n readers.
    borrows: Cell<isize>,
}

/// A handle to a run of bytes in a block of the buffer pool.
pub struct Buf {
    // `None` only inside `drop`.
    block: Option<Rc<Block>>,
    pool: Rc<Pool>,
    start: u32,
    len: u32,
}

/// A reserve of bytes in the buffer pool that lasts longer than one request. Its owner can take buffers for its
/// writes even while all other buffers belong to requests that wait for the owner.
pub struct Reservation {
    pool: BufPool,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.unreserve(self.bytes);
    }
}

/// The part of the buffer pool from which an object takes its buffers. The object outlives requests, such as a
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// The buffers come from the unreserved part of the pool, and the object waits until that part has room.
    Free,
    /// As [`Memory::Free`], but an eighth of the pool stays free for new connections and for background work. For the
    /// payloads of clients' requests.
    Client,
    /// The buffers come from a reserve in the pool ([`BufPool::reserve`]) that the creator of the object has made.
    Reserved,
}

impl Memory {
    /// Waits until this part of `pool` has room, and returns a buffer of `len` bytes.
    ///
    /// # Errors
    /// As [`BufPool::wait_for`].
    pub async fn buf(self, pool: &BufPool, len: usize) -> Result<Buf> {
        match self {
            Self::Free => pool.wait_for(len).await,
            Self::Client => {
                std::future::poll_fn(|cx| pool.or_wait(pool.take_for_client(len), cx)).await
            }
            Self::Reserved => pool.scratch(len).await,
        }
    }
}

impl BufPool {
    /// Creates a buffer pool with at most `limit_bytes` in use at once. The pool keeps up to `keep_bytes` of returned
    /// blocks for later requests, and returns the other blocks to the system.
    pub fn new(limit_bytes: usize, keep_bytes: usize) -> Self {
        Self(Rc::new(Pool {
            limit_bytes,
            keep_bytes,
            used_bytes: Cell::new(0),
            reserved_bytes: Cell::new(0),
            kept_bytes: Cell::new(0),
            kept: [const { RefCell::new(Vec::new()) }; CLASSES],
            waiting: Notify::default(),
        }))
    }

    /// Returns a buffer of `len` bytes from the unreserved part of the pool. The buffer holds bytes of an earlier
    /// request of this process, or zeros. The caller must fill the buffer before it passes the buffer on.
    ///
    /// # Errors
    /// `Limit` if the pool is exhausted, `Invalid` if `len` is zero or above [`BUF_MAX_BYTES`].
    pub fn take(&self, len: usize) -> Result<Buf> {
        if len == 0 || len > BUF_MAX_BYTES {
            bail!(Invalid, "a buffer of {len} bytes; a buffer has 1 to {BUF_MAX_BYTES} bytes");
        }
        self.give(len, self.0.reserved_bytes.get())
    }

    /// Returns a buffer of `len` bytes for the payload of a client's request ([`Memory::Client`]).
    ///
    /// # Errors
    /// As [`BufPool::take`].
    pub fn take_for_client(&self, len: usize) -> Result<Buf> {
        match len {
            1..=BUF_MAX_BYTES => {
                self.give(len, self.0.reserved_bytes.get() + self.withheld_bytes())
            }
            _ => self.take(len),
        }
    }

    /// Returns a buffer of `len` bytes, if `kept` bytes of the pool remain free besides the buffer.
    fn give(&self, len: usize, kept: usize) -> Result<Buf> {
        let class = class_of(len);
        let bytes = class_bytes(class);
        if self.0.used_bytes.get() + kept + bytes > self.0.limit_bytes {
            bail!(Limit, "buffer pool of {} bytes: no {bytes} bytes are free", self.0.limit_bytes);
        }
        self.0.used_bytes.set(self.0.used_bytes.get() + bytes);
        let kept = self.0.kept[class].borrow_mut().pop();
        let block = match kept {
            Some(block) => {
                self.0.kept_bytes.set(self.0.kept_bytes.get() - bytes);
                block
            }
            None => Rc::new(Block::new(class)),
        };
        Ok(Buf { block: Some(block), pool: self.0.clone(), start: 0, len: len as u32 })
    }

    /// Returns a buffer of `len` bytes from a reserve that the caller has made ([`BufPool::reserve_until_drop`]).
    ///
    /// # Errors
    /// As [`BufPool::take`]; the pool is exhausted only if some owner uses more than its reserve.
    pub fn take_reserved(&self, len: usize) -> Result<Buf> {
        match len {
            1..=BUF_MAX_BYTES => self.give(len, 0),
            _ => self.take(len),
        }
    }

    /// Waits until the unreserved part of the pool has room, and returns a buffer of `len` bytes.
    ///
    /// # Errors
    /// `Invalid` as for [`BufPool::take`]; `Limit` if `len` bytes do not fit into an empty pool.
    pub async fn wait_for(&self, len: usize) -> Result<Buf> {
        std::future::poll_fn(|cx| self.or_wait(self.take(len), cx)).await
    }

    /// Returns a buffer for the work of a device on an admitted request. The buffer comes from the reserve of that
    /// request. So the device does not wait for other requests, which may themselves wait for this request.
    ///
    /// # Errors
    /// As [`BufPool::wait_for`].
    pub async fn scratch(&self, len: usize) -> Result<Buf> {
        std::future::poll_fn(|cx| self.or_wait(self.take_reserved(len), cx)).await
    }

    fn or_wait(&self, taken: Result<Buf>, cx: &mut Context<'_>) -> Poll<Result<Buf>> {
        match taken {
            Err(error) if error.kind() == ErrorKind::Limit && self.0.used_bytes.get() > 0 => {
                self.wake_later(cx);
                Poll::Pending
            }
            taken => Poll::Ready(taken),
        }
    }

    /// Registers the task of `cx`, which is woken when a buffer or a reserve returns to the pool.
    pub fn wake_later(&self, cx: &Context<'_>) {
        self.0.waiting.wake_later(cx);
    }

    /// Reserves `bytes` of the pool for [`BufPool::scratch`]. Returns `false`, and reserves nothing, if they are not
    /// free.
    pub fn reserve(&self, bytes: usize) -> bool {
        let free =
            self.0.used_bytes.get() + self.0.reserved_bytes.get() + bytes <= self.0.limit_bytes;
        if free {
            self.0.reserved_bytes.set(self.0.reserved_bytes.get() + bytes);
        }
        free
    }

    /// Returns `bytes` that [`BufPool::reserve`] reserved to the unreserved part of the pool.
    pub fn unreserve(&self, bytes: usize) {
        self.0.reserved_bytes.set(self.0.reserved_bytes.get() - bytes);
        self.0.waiting.wake();
    }

    /// Reserves `bytes` of the pool for [`BufPool::scratch`] until the returned reservation is dropped.
    ///
    /// # Errors
    /// `Limit` if `bytes` are not free in the pool.
    pub fn reserve_until_drop(&self, bytes: usize) -> Result<Reservation> {
        if self.reserve(bytes) {
            return Ok(Reservation { pool: self.clone(), bytes });
        }
        let free = self.free_bytes();
        let words = format!("the buffer pool cannot reserve {bytes} bytes: {free} bytes are free");
        Err(Error::new(ErrorKind::Limit, words))
    }

    /// Returns the number of bytes in the pool's blocks that are in use now.
    pub fn used_bytes(&self) -> usize {
        self.0.used_bytes.get()
    }

    /// Returns the number of bytes that are neither used nor reserved in the pool now.
    pub fn free_bytes(&self) -> usize {
        let Pool { limit_bytes, used_bytes, reserved_bytes, .. } = &*self.0;
        limit_bytes.saturating_sub(used_bytes.get() + reserved_bytes.get())
    }

    /// Returns the number of bytes that are free for clients' requests now: an eighth of the pool is kept from them.
    pub fn free_for_clients(&self) -> usize {
        self.free_bytes().saturating_sub(self.withheld_bytes())
    }

    fn withheld_bytes(&self) -> usize {
        self.0.limit_bytes / WITHHELD_FROM_CLIENTS
    }

    /// Returns the largest number of bytes that may be in use in the pool at once.
    pub fn limit_bytes(&self) -> usize {
        self.0.limit_bytes
    }
}

fn class_of(len: usize) -> usize {
    len.div_ceil(BUF_ALIGN).next_power_of_two().ilog2() as usize
}

fn class_bytes(class: usize) -> usize {
    BUF_ALIGN << class
}

impl Block {
    fn layout(class: usize) -> Layout {
        Layout::from_size_align(class_bytes(class), BUF_ALIGN).expect("size classes are small")
    }

    fn new(class: usize) -> Self {
        let layout = Self::layout(class);
        // SAFETY: the layout's size is at least BUF_ALIGN, so not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        Self { memory, class, borrows: Cell::new(0) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, and no handle is left.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.class)) };
    }
}

impl Buf {
    fn block(&self) -> &Rc<Block> {
        self.block.as_ref().expect("a live buffer has a memory block")
    }

    /// Returns the length of the buffer in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns a handle to the bytes `part` of this buffer; no byte is copied.
    ///
    /// # Panics
    /// If `part` is empty or not inside the buffer.
    pub fn slice(&self, part: Range<usize>) -> Self {
        assert!(
            part.start < part.end && part.end <= self.len(),
            "bytes {part:?} are outside of a buffer of {} bytes",
            self.len
        );
        Self {
            block: self.block.clone(),
            pool: self.pool.clone(),
            start: self.start + part.start as u32,
            len: (part.end - part.start) as u32,
        }
    }

    /// Returns the bytes of the buffer for reading.
    ///
    /// # Panics
    /// If a [`RefMut`] of the same block of the pool exists.
    pub fn read(&self) -> Ref<'_> {
        let block = self.block();
        let borrows = block.borrows.get();
        assert!(borrows >= 0, "a buffer is read while a write borrow of the buffer exists");
        block.borrows.set(borrows + 1);
        Ref(self)
    }

    /// Returns the bytes of the buffer for writing. Only the creator of the buffer may call this method: a payload is
    /// immutable below the export.
    ///
    /// # Panics
    /// If a [`Ref`] or [`RefMut`] of the same block of the pool exists.
    pub fn write(&self) -> RefMut<'_> {
        let block = self.block();
        assert!(block.borrows.get() == 0, "a buffer is written while another borrow of it exists");
        block.borrows.set(-1);
        RefMut(self)
    }

    /// Whether other handles to this buffer's block of the pool exist.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(self.block()) > 1
    }

    /// Whether this buffer and `other` are handles to the very same bytes of the pool.
    pub fn same(&self, other: &Self) -> bool {
        self.as_ptr() == other.as_ptr() && self.len == other.len
    }

    /// Returns the address of the buffer's first byte, for the kernel. The address stays valid as long as a handle to
    /// the block exists.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start` lies inside the block: `take` and `slice` ensure that.
        unsafe { self.block().memory.as_ptr().add(self.start as usize) }
    }
}

impl Clone for Buf {
    fn clone(&self) -> Self {
        Self {
            block: self.block.clone(),
            pool: self.pool.clone(),
            start: self.start,
            len: self.len,
        }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        if Rc::strong_count(&block) > 1 {
            return;
        }
        let pool = &self.pool;
        let bytes = class_bytes(block.class);
        pool.used_bytes.set(pool.used_bytes.get() - bytes);
        if pool.kept_bytes.get() + bytes <= pool.keep_bytes {
            pool.kept_bytes.set(pool.kept_bytes.get() + bytes);
            pool.kept[block.class].borrow_mut().push(block);
        }
        pool.waiting.wake();
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// Read access to the bytes of a [`Buf`].
pub struct Ref<'a>(&'a Buf);

/// Write access to the bytes of a [`Buf`].
pub struct RefMut<'a>(&'a Buf);

impl Deref for Ref<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the block, initialised by `alloc_zeroed`, and the count forbids a writer.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl Deref for RefMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as for `Ref`; this is the only borrow.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl DerefMut for RefMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only slice made from it.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

impl Drop for Ref<'_> {
    fn drop(&mut self) {
        let borrows = &self.0.block().borrows;
        borrows.set(borrows.get() - 1);
    }
}

impl Drop for RefMut<'_> {
    fn drop(&mut self) {
        self.0.block().borrows.set(0);
    }
}

/// Whether all `bytes` are zero. Checks the first and the last byte before the others, because that is enough for
/// most data.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (first, last) = (bytes.first(), bytes.last());
    first.is_none_or(|b| *b == 0)
        && last.is_none_or(|b| *b == 0)
        && bytes.chunks(64).all(|chunk| chunk.iter().fold(0, |all, b| all | b) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_pool_reuses_freed_blocks_within_limit() {
        let pool = BufPool::new(3 * BUF_ALIGN, BUF_ALIGN);
        let a = pool.take(1).unwrap();
        let part = a.slice(0..1);
        let b = pool.take(BUF_ALIGN + 1).unwrap();
        assert_eq!(pool.take(1).unwrap_err().kind(), ErrorKind::Limit);
        drop(a);
        assert_eq!(pool.used_bytes(), 3 * BUF_ALIGN, "a slice keeps its block");
        drop(part);
        drop(b);
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.take(2 * BUF_ALIGN).is_ok());
    }

    #[test]
    fn buffer_pool_keeps_an_eighth_from_clients() {
        let pool = BufPool::new(16 * BUF_ALIGN, 0);
        let taken: Vec<_> = (0..14).map(|_| pool.take_for_client(1).unwrap()).collect();
        assert_eq!(pool.take_for_client(1).unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!((pool.free_for_clients(), pool.free_bytes()), (0, 2 * BUF_ALIGN));
        assert!(pool.take(2 * BUF_ALIGN).is_ok(), "for new connections and background work");
        drop(taken);
        assert_eq!(pool.free_for_clients(), 14 * BUF_ALIGN);
        assert_eq!(pool.take_for_client(0).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn buffer_slice_shares_bytes_with_whole_buffer() {
        let pool = BufPool::new(1 << 20, 0);
        let whole = pool.take(8192).unwrap();
        whole.slice(4096..8192).write().fill(7);
        assert_eq!(whole.read()[4095..4097], [0, 7]);
        assert_eq!(whole.as_ptr() as usize % BUF_ALIGN, 0);
    }

    #[test]
    #[should_panic(expected = "while a write borrow")]
    fn buffer_read_panics_while_buffer_is_borrowed_for_write() {
        let pool = BufPool::new(1 << 20, 0);
        let buf = pool.take(16).unwrap();
        let _writing = buf.write();
        let _reading = buf.slice(0..8).read().len();
    }

    #[test]
    fn buffer_pool_rejects_zero_and_oversized_buffers() {
        let pool = BufPool::new(usize::MAX, 0);
        assert_eq!(pool.take(0).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(pool.take(BUF_MAX_BYTES + 1).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
