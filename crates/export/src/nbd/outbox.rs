//! Answers that wait to be sent: heads side by side in one buffer, payloads where they are.

use block::{Buf, Env, Result};
use wire::nbd::Head;

/// Room for the heads of one batch.
pub const HEADS_BYTES: usize = 16 << 10;

/// Parts in one send; the kernel takes 1024.
const PARTS_MAX: usize = 1000;

/// A batch of answers under construction.
pub struct Outbox {
    heads: Buf,
    /// How much of `heads` is used, and from where on it is not yet among the parts.
    used: usize,
    open: usize,
    parts: Vec<Buf>,
    /// Bytes that the client may ask for again once this batch is sent.
    held: usize,
}

/// What one send takes.
pub struct Batch {
    /// The bytes, in order.
    pub parts: Vec<Buf>,
    /// Bytes that were held for it.
    pub held: usize,
}

impl Outbox {
    /// An empty one.
    ///
    /// # Errors
    /// `Limit` if the pool is exhausted.
    pub fn new(env: &Env) -> Result<Self> {
        let heads = env.buf(HEADS_BYTES)?;
        Ok(Self { heads, used: 0, open: 0, parts: Vec::new(), held: 0 })
    }

    /// Whether an answer of `parts` buffers and a head of `len` bytes still fits.
    pub fn fits(&self, len: usize, parts: usize) -> bool {
        self.used + len <= HEADS_BYTES && self.parts.len() + parts + 2 <= PARTS_MAX
    }

    /// Adds the head of an answer.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn head(&mut self, head: &Head) {
        self.bytes(head);
    }

    /// Adds bytes that need no buffer of their own.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        self.heads.slice(self.used..end).write().copy_from_slice(bytes);
        self.used = end;
    }

    /// Adds payload.
    pub fn payload(&mut self, payload: Buf) {
        self.close();
        self.parts.push(payload);
    }

    /// Remembers that `bytes` are held until this batch is sent.
    pub fn hold(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.used == 0 && self.parts.is_empty()
    }

    fn close(&mut self) {
        if self.open < self.used {
            self.parts.push(self.heads.slice(self.open..self.used));
            self.open = self.used;
        }
    }

    /// Takes the batch; `next` is the buffer for the heads of the next one, `parts` an empty vector
    /// to use again.
    pub fn take(&mut self, next: Buf, parts: Vec<Buf>) -> (Batch, Buf) {
        self.close();
        self.used = 0;
        self.open = 0;
        let heads = std::mem::replace(&mut self.heads, next);
        let parts = std::mem::replace(&mut self.parts, parts);
        (Batch { parts, held: std::mem::take(&mut self.held) }, heads)
    }
}
