//! Messages that wait to be sent. The heads of all messages are in one buffer; each payload is in a buffer of its
//! own.

use block::{Buf, BufPool, Result};

/// Length in bytes of the buffer for the message heads of one send.
pub const HEADS_BYTES: usize = 16 << 10;

/// Most buffers in one send; the kernel accepts 1024.
const PARTS_MAX: usize = 1000;

/// The messages of the next send on a stream.
pub struct Outbox {
    heads: Buf,
    /// Number of bytes in `heads`; and the offset from which on these bytes are not among the parts yet.
    used: usize,
    open: usize,
    parts: Vec<Buf>,
    /// Sum of the bytes of memory that are freed when the batch has been sent ([`Outbox::hold`]).
    held: usize,
    /// Buffer for the heads of the next batch.
    spare: Option<Buf>,
    spare_parts: Vec<Buf>,
}

/// The messages of one send, taken from an outbox. The caller must return the batch with [`Outbox::sent`] after the
/// send.
pub struct Batch {
    /// The buffers to send, in order.
    pub parts: Vec<Buf>,
    /// The sum of [`Outbox::hold`] for the messages of this batch.
    pub held: usize,
    heads: Buf,
}

impl Outbox {
    /// Creates an empty outbox with buffers of `pool`.
    ///
    /// # Errors
    /// `Limit` if the pool is exhausted.
    pub fn new(pool: &BufPool) -> Result<Self> {
        Ok(Self::over(pool.take(HEADS_BYTES)?, pool.take(HEADS_BYTES)?))
    }

    /// Creates an empty outbox that uses these two buffers in turn for the heads of its messages.
    ///
    /// # Panics
    /// If the length of a buffer is not [`HEADS_BYTES`].
    pub fn over(heads: Buf, spare: Buf) -> Self {
        assert_eq!(
            (heads.len(), spare.len()),
            (HEADS_BYTES, HEADS_BYTES),
            "both head buffers of an outbox have HEADS_BYTES bytes"
        );
        Self {
            heads,
            used: 0,
            open: 0,
            parts: Vec::new(),
            held: 0,
            spare: Some(spare),
            spare_parts: Vec::new(),
        }
    }

    /// Whether message heads of `len` bytes and `parts` more payloads fit into the outbox.
    pub fn fits(&self, len: usize, parts: usize) -> bool {
        self.used + len <= HEADS_BYTES && self.parts.len() + parts + 2 <= PARTS_MAX
    }

    /// Adds the head of a message to the outbox, as a copy.
    ///
    /// # Panics
    /// If the head does not fit into the buffer for heads.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        self.heads.slice(self.used..end).write().copy_from_slice(bytes);
        self.used = end;
    }

    /// Adds the payload of a message to the outbox, without a copy.
    pub fn payload(&mut self, payload: Buf) {
        self.close();
        self.parts.push(payload);
    }

    /// Adds `bytes` to the bytes of memory that are freed when the next batch has been sent.
    pub fn hold(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// Returns the sum of [`Outbox::hold`] for the next batch.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether the outbox has nothing to send.
    pub fn is_empty(&self) -> bool {
        self.used == 0 && self.parts.is_empty()
    }

    fn close(&mut self) {
        if self.open < self.used {
            self.parts.push(self.heads.slice(self.open..self.used));
            self.open = self.used;
        }
    }

    /// Takes all messages out of the outbox, as a batch to send.
    ///
    /// # Panics
    /// If the batch before was not returned with [`Outbox::sent`].
    pub fn take(&mut self) -> Batch {
        self.close();
        let next = self.spare.take().expect("an outbox sends one batch at a time");
        let heads = std::mem::replace(&mut self.heads, next);
        let parts = std::mem::replace(&mut self.parts, std::mem::take(&mut self.spare_parts));
        (self.used, self.open) = (0, 0);
        Batch { parts, held: std::mem::take(&mut self.held), heads }
    }

    /// Returns the buffers of a batch to the outbox, after the batch was sent.
    pub fn sent(&mut self, mut batch: Batch) {
        batch.parts.clear();
        self.spare = Some(batch.heads);
        self.spare_parts = batch.parts;
    }
}

/// Removes the first `sent` bytes of `parts`, after a send of only these bytes.
pub fn drop_front(parts: &mut Vec<Buf>, mut sent: usize) {
    let mut whole = 0;
    while let Some(part) = parts.get(whole)
        && part.len() <= sent
    {
        sent -= part.len();
        whole += 1;
    }
    parts.drain(..whole);
    if sent > 0 {
        parts[0] = parts[0].slice(sent..parts[0].len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_sends_headers_and_payloads_in_order() {
        let pool = BufPool::new(1 << 20, 0);
        let payload = pool.take(3).unwrap();
        payload.write().copy_from_slice(b"xyz");
        let mut outbox = Outbox::new(&pool).unwrap();
        outbox.bytes(b"ab");
        outbox.bytes(b"c");
        outbox.payload(payload);
        outbox.bytes(b"d");
        let mut batch = outbox.take();
        let bytes =
            |parts: &[Buf]| parts.iter().flat_map(|p| p.read().to_vec()).collect::<Vec<_>>();
        assert_eq!(bytes(&batch.parts), b"abcxyzd");
        assert_eq!(batch.parts.len(), 3);
        drop_front(&mut batch.parts, 4);
        assert_eq!(bytes(&batch.parts), b"yzd");
        outbox.bytes(b"next");
        outbox.sent(batch);
        assert_eq!(bytes(&outbox.take().parts), b"next");
    }
}
