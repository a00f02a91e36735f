//! Messages that wait to be sent. The heads of all messages are in one buffer; each payload is in a buffer of its
//! own.

use block::Buf;

/// Length in bytes of the buffer for the message heads of one send.
pub const HEADS_BYTES: usize = 16 << 10;

/// Most buffers in one send; the kernel accepts 1024.
const PARTS_MAX: usize = 1000;

/// The messages of the next send on a stream.
pub struct Outbox {
    /// Buffer for the heads of the next batch; `None` while the outbox has no buffers.
    heads: Option<Buf>,
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
    /// Creates an empty outbox without buffers. It accepts messages after [`Outbox::equip`].
    pub fn idle() -> Self {
        Self {
            heads: None,
            used: 0,
            open: 0,
            parts: Vec::new(),
            held: 0,
            spare: None,
            spare_parts: Vec::new(),
        }
    }

    /// Creates an empty outbox that uses these two buffers in turn for the heads of its messages.
    ///
    /// # Panics
    /// As [`Outbox::equip`].
    pub fn over(heads: Buf, spare: Buf) -> Self {
        let mut outbox = Self::idle();
        outbox.equip(heads, spare);
        outbox
    }

    /// Gives the outbox two buffers, which it uses in turn for the heads of its messages.
    ///
    /// # Panics
    /// If the length of a buffer is not [`HEADS_BYTES`], or the outbox has buffers.
    pub fn equip(&mut self, heads: Buf, spare: Buf) {
        assert_eq!(
            (heads.len(), spare.len()),
            (HEADS_BYTES, HEADS_BYTES),
            "both head buffers of an outbox have HEADS_BYTES bytes"
        );
        assert!(!self.is_equipped(), "an outbox has two buffers");
        (self.heads, self.spare) = (Some(heads), Some(spare));
    }

    /// Whether the outbox has buffers for message heads.
    pub fn is_equipped(&self) -> bool {
        self.heads.is_some()
    }

    /// Frees the buffers for message heads, if the outbox is empty and no batch is being sent. Returns whether the
    /// outbox has no buffers now.
    pub fn unequip(&mut self) -> bool {
        if self.is_empty() && self.spare.is_some() {
            (self.heads, self.spare) = (None, None);
        }
        !self.is_equipped()
    }

    /// Whether message heads of `len` bytes and `parts` more payloads fit into the outbox.
    pub fn fits(&self, len: usize, parts: usize) -> bool {
        self.is_equipped()
            && self.used + len <= HEADS_BYTES
            && self.parts.len() + parts + 2 <= PARTS_MAX
    }

    /// Adds the head of a message to the outbox, as a copy.
    ///
    /// # Panics
    /// If the head does not fit into the buffer for heads.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        self.heads().slice(self.used..end).write().copy_from_slice(bytes);
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

    fn heads(&self) -> &Buf {
        self.heads.as_ref().expect("an outbox has buffers before its first message")
    }

    fn close(&mut self) {
        if self.open < self.used {
            self.parts.push(self.heads().slice(self.open..self.used));
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
        let heads = self.heads.replace(next).expect("an outbox with messages has buffers");
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
    use block::BufPool;

    use super::*;

    #[test]
    fn outbox_sends_headers_and_payloads_in_order() {
        let pool = BufPool::new(1 << 20, 0);
        let payload = pool.take(3).unwrap();
        payload.write().copy_from_slice(b"xyz");
        let mut outbox = Outbox::idle();
        assert!(!outbox.fits(2, 0), "it has no buffers yet");
        outbox.equip(pool.take(HEADS_BYTES).unwrap(), pool.take(HEADS_BYTES).unwrap());
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
        let batch = outbox.take();
        assert_eq!(bytes(&batch.parts), b"next");
        assert!(!outbox.unequip(), "a batch is being sent");
        outbox.sent(batch);
        assert!(outbox.unequip());
        assert_eq!(pool.used_bytes(), 0);
    }
}
