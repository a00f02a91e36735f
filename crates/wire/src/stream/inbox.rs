//! The receive buffer of a stream: received bytes that are not taken yet.

use std::ops::Deref;

use block::{Buf, BufPool, Ref, Result};

/// Length in bytes of the receive buffer: many small messages can arrive in one system call.
pub const INBOX_BYTES: usize = 256 << 10;

/// Receive buffer of a stream. It holds the received bytes that the reader has not taken yet.
pub struct Inbox {
    buf: Buf,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Creates an empty inbox with a buffer of `pool`.
    ///
    /// # Errors
    /// `Limit` if the pool can never provide the buffer.
    pub async fn new(pool: &BufPool) -> Result<Self> {
        Ok(Self::over(pool.wait_for(INBOX_BYTES).await?))
    }

    /// Creates an empty inbox that receives into `buf`.
    ///
    /// # Panics
    /// If the length of `buf` is not [`INBOX_BYTES`].
    pub fn over(buf: Buf) -> Self {
        assert_eq!(buf.len(), INBOX_BYTES, "the buffer of an inbox has INBOX_BYTES bytes");
        Self { buf, start: 0, end: 0 }
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

    /// Moves the bytes of the inbox to a new buffer of `pool`, if buffers that [`Inbox::take_part`] returned still
    /// exist.
    ///
    /// # Errors
    /// `Limit` if the pool can never provide the buffer.
    pub async fn renew(&mut self, pool: &BufPool) -> Result<()> {
        if self.is_held() {
            let mut fresh = Self::new(pool).await?;
            fresh.end = self.take_into(&fresh.buf);
            *self = fresh;
        }
        Ok(())
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
    /// to the front. So the free part is not empty as long as no message is longer than [`INBOX_BYTES`].
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
        self.buf.slice(self.end..INBOX_BYTES)
    }

    /// Records that `n` more bytes were received into the part that [`Inbox::room`] returned.
    pub fn arrived(&mut self, n: usize) {
        self.end += n;
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
