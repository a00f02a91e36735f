//! The receive buffer of a stream: received bytes that are not taken yet.

use std::ops::Deref;

use block::{Buf, BufPool, Ref, Result};

/// Length in bytes of the receive buffer of a busy stream: many small messages can arrive in one system call.
pub const INBOX_BYTES: usize = 256 << 10;

/// Length in bytes of the receive buffer of an idle stream: a message with a payload of 4 KiB.
pub const INBOX_IDLE_BYTES: usize = 8 << 10;

/// Receive buffer of a stream. It holds the received bytes that the reader has not taken yet. A small inbox grows when
/// a receive has filled it.
pub struct Inbox {
    buf: Buf,
    start: usize,
    end: usize,
    /// Whether the last receive has filled the buffer, so that more bytes may have arrived.
    was_filled: bool,
}

impl Inbox {
    /// Creates an empty inbox with a buffer of `pool`.
    ///
    /// # Errors
    /// `Limit` if the pool can never provide the buffer.
    pub async fn new(pool: &BufPool) -> Result<Self> {
        Ok(Self::over(pool.wait_for(INBOX_BYTES).await?))
    }

    /// Creates an empty inbox with a small buffer of `pool`. The caller must call [`Inbox::renew`] before each receive.
    ///
    /// # Errors
    /// `Limit` if the pool can never provide the buffer.
    pub async fn small(pool: &BufPool) -> Result<Self> {
        Ok(Self::over(pool.wait_for(INBOX_IDLE_BYTES).await?))
    }

    /// Creates an empty inbox that receives into `buf`.
    ///
    /// # Panics
    /// If the length of `buf` is neither [`INBOX_BYTES`] nor [`INBOX_IDLE_BYTES`].
    pub fn over(buf: Buf) -> Self {
        let is_known = [INBOX_BYTES, INBOX_IDLE_BYTES].contains(&buf.len());
        assert!(is_known, "the buffer of an inbox has {} bytes", buf.len());
        Self { buf, start: 0, end: 0, was_filled: false }
    }

    /// Returns the length in bytes of the longest message that fits into the present buffer.
    pub fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Whether the inbox has a buffer of a busy stream.
    pub fn is_large(&self) -> bool {
        self.capacity() == INBOX_BYTES
    }

    /// Returns the received bytes that are not taken yet.
    pub fn bytes(&self) -> impl Deref<Target = [u8]> + '_ {
        Arrived { all: self.buf.read(), from: self.start, to: self.end }
    }

    /// Takes the first `n` bytes out of the inbox.
    ///
    /// # Panics
    /// If the inbox has fewer bytes.
    pub fn take(&mut self, n: usize) {
        self.start += n;
        assert!(self.start <= self.end, "an inbox removes only bytes that have arrived");
    }

    /// Copies bytes from the inbox into the front of `into`, as many as there are or as fit, and takes them. Returns
    /// their number.
    pub fn take_into(&mut self, into: &Buf) -> usize {
        let n = self.len().min(into.len());
        if n > 0 {
            into.slice(0..n).write().copy_from_slice(&self.buf.read()[self.start..self.start + n]);
            self.take(n);
        }
        n
    }

    /// Takes the first `n` bytes of the inbox without a copy. The inbox cannot receive while the returned buffer
    /// exists: see [`Inbox::renew`].
    ///
    /// # Panics
    /// If `n` is zero, or the inbox has fewer bytes.
    pub fn take_part(&mut self, n: usize) -> Buf {
        let part = self.buf.slice(self.start..self.start + n);
        self.take(n);
        part
    }

    /// Whether buffers that [`Inbox::take_part`] returned still exist.
    pub fn is_held(&self) -> bool {
        self.buf.is_shared()
    }

    /// Prepares the inbox for a receive. Moves its bytes to another buffer of `pool` if buffers that
    /// [`Inbox::take_part`] returned still exist, or if the last receive has filled a small buffer. A small buffer with
    /// free bytes stays if the pool has no larger one now.
    ///
    /// # Errors
    /// `Limit` if the pool can never provide the buffer.
    pub async fn renew(&mut self, pool: &BufPool) -> Result<()> {
        let must_grow = self.was_filled && !self.is_large();
        if !must_grow && !self.is_held() {
            return Ok(());
        }
        let grown = if must_grow { pool.take(INBOX_BYTES).ok() } else { None };
        let buf = match grown {
            Some(buf) => buf,
            None if !self.is_held() && self.len() < self.capacity() => return Ok(()),
            None if self.len() == self.capacity() => pool.wait_for(INBOX_BYTES).await?,
            None => pool.wait_for(self.capacity()).await?,
        };
        self.move_to(buf);
        Ok(())
    }

    /// Gives a large buffer back to `pool` for a small one, if the inbox is empty and the pool has a small one now.
    pub fn shrink(&mut self, pool: &BufPool) {
        if self.is_large()
            && self.is_empty()
            && let Ok(small) = pool.take(INBOX_IDLE_BYTES)
        {
            *self = Self::over(small);
        }
    }

    fn move_to(&mut self, buf: Buf) {
        let mut fresh = Self::over(buf);
        fresh.end = self.take_into(&fresh.buf);
        *self = fresh;
    }

    /// Returns the number of received bytes that are not taken yet.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether all received bytes are taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the free part of the inbox's buffer, to receive into. Before that, moves the bytes that are not taken
    /// to the front. So the free part is not empty as long as no message is longer than [`Inbox::capacity`].
    ///
    /// # Panics
    /// If buffers that [`Inbox::take_part`] returned still exist.
    pub fn room(&mut self) -> Buf {
        assert!(!self.is_held(), "held bytes of an inbox are not overwritten");
        if self.start > 0 {
            self.buf.write().copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        self.buf.slice(self.end..self.capacity())
    }

    /// Records that `n` more bytes were received into the part that [`Inbox::room`] returned.
    pub fn arrived(&mut self, n: usize) {
        self.end += n;
        self.was_filled = self.end == self.capacity();
    }
}

struct Arrived<'a> {
    all: Ref<'a>,
    from: usize,
    to: usize,
}

impl Deref for Arrived<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.all[self.from..self.to]
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("the pool has room"),
        }
    }

    /// Receives `bytes` into the inbox, as many as fit, and returns their number.
    fn receive(inbox: &mut Inbox, pool: &BufPool, bytes: &[u8]) -> usize {
        now(inbox.renew(pool)).unwrap();
        let room = inbox.room();
        let n = room.len().min(bytes.len());
        room.slice(0..n).write().copy_from_slice(&bytes[..n]);
        drop(room);
        inbox.arrived(n);
        n
    }

    #[test]
    fn small_inbox_grows_after_receive_that_fills_it() {
        let pool = BufPool::new(1 << 20, 0);
        let mut inbox = now(Inbox::small(&pool)).unwrap();
        let bytes: Vec<u8> = (0..20_000_u32).map(|n| n as u8).collect();
        assert_eq!(receive(&mut inbox, &pool, &bytes[..100]), 100);
        assert_eq!(pool.used_bytes(), INBOX_IDLE_BYTES);
        let n = receive(&mut inbox, &pool, &bytes[100..]) + 100;
        assert_eq!((n, inbox.is_large()), (INBOX_IDLE_BYTES, false));
        assert_eq!(receive(&mut inbox, &pool, &bytes[n..]), bytes.len() - n);
        assert!(inbox.is_large() && *inbox.bytes() == bytes);
        inbox.shrink(&pool);
        assert!(inbox.is_large(), "it is not empty");
        inbox.take(bytes.len());
        inbox.shrink(&pool);
        assert_eq!(pool.used_bytes(), INBOX_IDLE_BYTES);
    }

    #[test]
    fn small_inbox_keeps_its_buffer_while_pool_has_no_larger_one() {
        let pool = BufPool::new(64 << 10, 0);
        let mut inbox = now(Inbox::small(&pool)).unwrap();
        receive(&mut inbox, &pool, &[7; INBOX_IDLE_BYTES]);
        inbox.take(100);
        assert_eq!(receive(&mut inbox, &pool, &[8; 200]), 100, "in the free part");
        assert_eq!(inbox.bytes()[INBOX_IDLE_BYTES - 101..][..2], [7, 8]);
    }

    #[test]
    fn held_small_inbox_gets_another_small_buffer() {
        let pool = BufPool::new(1 << 20, 0);
        let mut inbox = now(Inbox::small(&pool)).unwrap();
        receive(&mut inbox, &pool, &[7; 300]);
        let part = inbox.take_part(200);
        assert_eq!(receive(&mut inbox, &pool, &[8; 100]), 100);
        assert_eq!((inbox.len(), inbox.capacity()), (200, INBOX_IDLE_BYTES));
        assert_eq!((part.read()[199], inbox.bytes()[0], inbox.bytes()[199]), (7, 7, 8));
    }
}
