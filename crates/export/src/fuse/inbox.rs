//! The receive buffers of a FUSE mount. Their memory is allocated and locked before the first message is received.

use std::cell::RefCell;
use std::rc::Rc;

use block::env::Channel;
use block::{Buf, Env, Result};
use wire::fuse::{HEAD_BYTES, MAX_WRITE_BYTES, Malformed, Request};

use super::HAND_OVER_BYTES;

/// Locked buffers into which the next message of a FUSE mount is received.
pub struct Inbox {
    env: Env,
    channel: Rc<dyn Channel>,
    head: Buf,
    payload: RefCell<Buf>,
}

impl Inbox {
    /// Allocates and locks the receive buffers for messages of `channel`.
    ///
    /// # Errors
    /// `Limit` if the pool has no memory for the buffers, or if no more memory may be locked.
    pub fn new(env: &Env, channel: &Rc<dyn Channel>) -> Result<Self> {
        let head = env.buf(HEAD_BYTES)?;
        channel.pin(&head)?;
        let payload = env.buf(MAX_WRITE_BYTES as usize)?;
        channel.pin(&payload)?;
        Ok(Self { env: env.clone(), channel: channel.clone(), head, payload: payload.into() })
    }

    /// Receives the next message of the channel, and returns its length in bytes; `None` if there is no message now.
    ///
    /// # Errors
    /// As [`Channel::recv`].
    pub fn next(&self) -> Result<Option<usize>> {
        self.channel.recv(&self.head, &self.payload.borrow())
    }

    /// Parses the last message that was received, which has `came_bytes` bytes, and passes the request to `read`.
    ///
    /// # Errors
    /// As [`Request::parse`].
    pub fn read<R>(
        &self,
        came_bytes: usize,
        read: impl FnOnce(Request<'_>) -> R,
    ) -> Result<R, Malformed> {
        Request::parse(&self.head.read(), came_bytes).map(read)
    }

    /// Returns the payload of the last message, a write of `len` bytes, in a buffer that the next message does not
    /// overwrite: a copy, or, for a long payload, the receive buffer itself.
    ///
    /// # Errors
    /// `Limit` if the pool can never have a buffer of `len` bytes.
    pub async fn payload(&self, len: usize) -> Result<Buf> {
        let pool = self.env.pool();
        if len >= HAND_OVER_BYTES {
            let next = pool.wait_for(MAX_WRITE_BYTES as usize).await?;
            if self.channel.pin(&next).is_ok() {
                return Ok(self.payload.replace(next).slice(0..len));
            }
            // No more memory may be locked, so the locked buffer stays in the inbox.
        }
        let copy = pool.wait_for(len).await?;
        copy.write().copy_from_slice(&self.payload.borrow().read()[..len]);
        Ok(copy)
    }
}
