//! Where messages arrive: memory that is there and stays there.

use std::cell::RefCell;
use std::rc::Rc;

use block::env::Channel;
use block::{Buf, Env, Result};
use wire::fuse::{HEAD_BYTES, MAX_WRITE_BYTES, Malformed, Request};

use super::HAND_OVER_BYTES;

/// Room for one message.
pub struct Inbox {
    env: Env,
    channel: Rc<dyn Channel>,
    head: Buf,
    payload: RefCell<Buf>,
}

impl Inbox {
    /// Takes the memory.
    ///
    /// # Errors
    /// `Limit` if there is none, or none that may be locked.
    pub fn new(env: &Env, channel: &Rc<dyn Channel>) -> Result<Self> {
        let head = env.buf(HEAD_BYTES)?;
        channel.pin(&head)?;
        let payload = env.buf(MAX_WRITE_BYTES as usize)?;
        channel.pin(&payload)?;
        Ok(Self { env: env.clone(), channel: channel.clone(), head, payload: payload.into() })
    }

    /// The length of the next message, which is here now; `None` if there is none.
    ///
    /// # Errors
    /// As [`Channel::recv`].
    pub fn next(&self) -> Result<Option<usize>> {
        self.channel.recv(&self.head, &self.payload.borrow())
    }

    /// Reads the message of that length that came last.
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

    /// The payload of the write that came last, in a buffer for good: a copy of it, or, if it is long,
    /// the buffer that it came in.
    ///
    /// # Errors
    /// `Limit` if no buffer could ever be had.
    pub async fn payload(&self, len: usize) -> Result<Buf> {
        let pool = self.env.pool();
        if len >= HAND_OVER_BYTES {
            let next = pool.wait_for(MAX_WRITE_BYTES as usize).await?;
            if self.channel.pin(&next).is_ok() {
                return Ok(self.payload.replace(next).slice(0..len));
            }
            // No more memory may be locked: what is locked stays where messages arrive.
        }
        let copy = pool.wait_for(len).await?;
        copy.write().copy_from_slice(&self.payload.borrow().read()[..len]);
        Ok(copy)
    }
}
