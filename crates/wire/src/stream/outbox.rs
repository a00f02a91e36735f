//! Messages that wait to be sent: heads side by side in one buffer, payloads where they are.

use block::{Buf, BufPool, Result};

/// Room for the heads of one batch.
pub const HEADS_BYTES: usize = 16 << 10;

/// Parts in one send; the kernel takes 1024.
const PARTS_MAX: usize = 1000;

/// A batch of messages under construction.
pub struct Outbox {
    heads: Buf,
    /// How much of `heads` is used, and from where on it is not yet among the parts.
    used: usize,
    open: usize,
    parts: Vec<Buf>,
    /// For whoever builds the batch: bytes to account for when it is sent.
    held: usize,
    /// What the next batch is built in.
    spare: Option<Buf>,
    spare_parts: Vec<Buf>,
}

/// What one send takes. Give it back with [`Outbox::sent`].
pub struct Batch {
    /// The bytes, in order.
    pub parts: Vec<Buf>,
    /// What was put down with [`Outbox::hold`].
    pub held: usize,
    heads: Buf,
}

impl Outbox {
    /// An empty one.
    ///
    /// # Errors
    /// `Limit` if the pool is exhausted.
    pub fn new(pool: &BufPool) -> Result<Self> {
        Ok(Self::over(pool.take(HEADS_BYTES)?, pool.take(HEADS_BYTES)?))
    }

    /// An empty one, its heads in these buffers by turns.
    ///
    /// # Panics
    /// If they have not [`HEADS_BYTES`].
    pub fn over(heads: Buf, spare: Buf) -> Self {
        assert_eq!((heads.len(), spare.len()), (HEADS_BYTES, HEADS_BYTES), "room for a batch");
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

    /// Whether `parts` buffers and heads of `len` bytes still fit.
    pub fn fits(&self, len: usize, parts: usize) -> bool {
        self.used + len <= HEADS_BYTES && self.parts.len() + parts + 2 <= PARTS_MAX
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

    /// Puts down `bytes` for the batch.
    pub fn hold(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// What was put down for the batch so far.
    pub fn held(&self) -> usize {
        self.held
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

    /// Takes the batch.
    ///
    /// # Panics
    /// If the one before has not come back.
    pub fn take(&mut self) -> Batch {
        self.close();
        let next = self.spare.take().expect("one batch is sent at a time");
        let heads = std::mem::replace(&mut self.heads, next);
        let parts = std::mem::replace(&mut self.parts, std::mem::take(&mut self.spare_parts));
        (self.used, self.open) = (0, 0);
        Batch { parts, held: std::mem::take(&mut self.held), heads }
    }

    /// The batch is sent: its buffers are used again.
    pub fn sent(&mut self, mut batch: Batch) {
        batch.parts.clear();
        self.spare = Some(batch.heads);
        self.spare_parts = batch.parts;
    }
}

/// Takes the first `sent` bytes off `parts`: a send may take less than it was given.
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
    fn heads_and_payloads_keep_their_order() {
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
