//! The requests in flight on one connection to an NBD server, and the handling of their replies. This code neither
//! sends nor receives bytes.

use block::{Buf, Error, Extent, Result, State, Waiter, error, push_extent};
use wire::nbd::{AllocationFlags, Body, Command, Errno, Extents, ReplyMessage, ReplyStyle};

use super::covered::Covered;

#[derive(Default)]
pub(super) struct Pending {
    pub slots: Vec<Slot>,
    /// Indices of the unused elements of `slots`.
    pub free: Vec<usize>,
}

/// A place for one request in flight on a connection. The cookie of the request consists of the index of the slot and
/// the number of times that the slot was used before. So a second reply to one request is not taken for the reply to
/// another request.
#[derive(Default)]
pub(super) struct Slot {
    pub turn: u32,
    pub busy: bool,
    pub command: Option<Command>,
    pub offset: u64,
    /// Buffer of a read, into which its payload is received. The outcome of the read returns the buffer.
    pub buf: Option<Buf>,
    /// Parts of the read whose payload has been received or is being received.
    pub covered: Covered,
    pub extents: Vec<Extent>,
    pub failed: Option<Error>,
    pub done: bool,
    pub abandoned: bool,
    pub waiter: Waiter,
}

/// The payload that follows a reply in the stream of the server.
pub(super) struct Follows {
    pub cookie: u64,
    pub what: Rest,
    pub last: bool,
}

/// The use of a reply's payload: `Data` is received into the buffer of a read, and `Nothing` is a number of bytes to
/// skip.
pub(super) enum Rest {
    Data(Buf),
    Nothing(usize),
}

pub(super) fn place_of(cookie: u64) -> usize {
    cookie as u32 as usize
}

fn turn_of(cookie: u64) -> u32 {
    (cookie >> 32) as u32
}

impl Pending {
    /// Frees the slot of a completed request, and returns the former content of the slot.
    pub fn vacate(&mut self, cookie: u64) -> Slot {
        let slot = std::mem::take(&mut self.slots[place_of(cookie)]);
        self.slots[place_of(cookie)].turn = slot.turn.wrapping_add(1);
        self.free.push(place_of(cookie));
        slot
    }

    /// Records the reply `message` of the server in the slot of its request. Returns the payload that follows the reply
    /// in the stream, if there is any.
    ///
    /// # Errors
    /// The defect of a reply that violates the protocol. The connection must not be used any more.
    pub fn hear(
        &mut self,
        message: &ReplyMessage<'_>,
        style: ReplyStyle,
    ) -> Result<Option<Follows>> {
        let cookie = message.cookie;
        let slot = self.slots.get_mut(place_of(cookie));
        let open = |slot: &&mut Slot| slot.busy && !slot.done && slot.turn == turn_of(cookie);
        let Some(slot) = slot.filter(open) else {
            return Err(nonsense(format!("reply to request {cookie:#x}, which is not in flight")));
        };
        if message.offset.is_some_and(|offset| offset != slot.offset) {
            return Err(nonsense(format!("reply to request {cookie:#x} with the wrong offset")));
        }
        match &message.body {
            Body::Simple if slot.command == Some(Command::Read) => {
                if style != ReplyStyle::Simple {
                    return Err(nonsense(
                        "simple reply to a read where structured replies were agreed".to_owned(),
                    ));
                }
                let whole = slot.buf.as_ref().expect("a read in flight has a buffer").len();
                let into = slot.place(slot.offset, whole as u64)?;
                return Ok(Some(Follows { cookie, what: Rest::Data(into), last: true }));
            }
            Body::Simple | Body::None => {}
            Body::Data { offset, len } => {
                let into = slot.place(*offset, u64::from(*len))?;
                return Ok(Some(Follows { cookie, what: Rest::Data(into), last: message.done }));
            }
            Body::Hole { offset, len } => {
                slot.place(*offset, u64::from(*len))?.write().fill(0);
            }
            Body::Status { extents, more, .. } => {
                slot.extents = states(extents);
                if *more > 0 {
                    let what = Rest::Nothing(*more as usize);
                    return Ok(Some(Follows { cookie, what, last: message.done }));
                }
            }
            // The server does not carry out this request and those behind it. They are for the next connection.
            Body::Error { errno: Errno::ESHUTDOWN, .. } => {
                return Err(error!(Io, "the server is shutting down"));
            }
            Body::Error { errno, message, .. } => {
                let words = if message.is_empty() { "the server gave no reason" } else { message };
                slot.failed = Some(Error::os(errno.to_wire() as i32, words));
            }
        }
        if message.done {
            self.finish(cookie);
        }
        Ok(None)
    }

    /// Marks the request with this cookie as completed, and wakes the task that waits for it.
    pub fn finish(&mut self, cookie: u64) {
        let slot = &mut self.slots[place_of(cookie)];
        let missing = slot.buf.as_ref().is_some_and(|buf| slot.covered.len() < buf.len());
        if slot.command == Some(Command::Read) && slot.failed.is_none() && missing {
            slot.failed = Some(nonsense("reply to a read without all of its bytes".to_owned()));
        }
        slot.done = true;
        if slot.abandoned {
            self.vacate(cookie);
        } else {
            slot.waiter.wake();
        }
    }
}

impl Slot {
    /// Returns the part of the read's buffer for `len` bytes from offset `offset` of the export on. Returns an error if
    /// the read did not request one of these bytes, or if the server has sent it before.
    fn place(&mut self, offset: u64, len: u64) -> Result<Buf> {
        let wrong = |why: &str| nonsense(format!("reply with {len} bytes at {offset}: {why}"));
        let asked = || wrong("the read does not have these bytes");
        let buf = self.buf.as_ref().filter(|_| self.command == Some(Command::Read));
        let buf = buf.ok_or_else(asked)?;
        let from = offset.checked_sub(self.offset).ok_or_else(asked)?;
        let end = from.checked_add(len).filter(|end| *end <= buf.len() as u64);
        let place = from as usize..end.ok_or_else(asked)? as usize;
        self.covered.add(place.clone()).map_err(wrong)?;
        Ok(buf.slice(place))
    }
}

fn states(extents: &Extents<'_>) -> Vec<Extent> {
    let mut all = Vec::new();
    for extent in extents.iter() {
        let flags = AllocationFlags(extent.status as u32);
        let state = match (flags.has(AllocationFlags::ZERO), flags.has(AllocationFlags::HOLE)) {
            (true, true) => State::Hole,
            (true, false) => State::Zero,
            // A hole whose bytes are undefined counts as data.
            (false, _) => State::Data,
        };
        push_extent(&mut all, extent.length, state);
    }
    all
}

pub(super) fn nonsense(words: String) -> Error {
    error!(Io, "the server broke the NBD protocol: {words}")
}

#[cfg(test)]
mod tests {
    use super::super::any_bytes_tests::try_any_replies;

    #[test]
    fn nbd_client_never_panics_on_arbitrary_replies() {
        // Arbitrary bytes with valid heads among them: magic, flags, type, cookie, length; an offset before payload.
        let mut draw = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            draw ^= draw << 13;
            draw ^= draw >> 7;
            draw ^= draw << 17;
            draw % below
        };
        let mut well = 0;
        for _ in 0..20_000 {
            let mut bytes = vec![1];
            // Mostly about one request, so that its answers come together, or twice.
            let about = next(6);
            for _ in 0..next(6) {
                let kind = [1_u16, 2, 5, 0x8001][next(4) as usize];
                let content = [64, 32, 256, next(80)][next(4) as usize];
                let len = match (kind, next(8)) {
                    (_, 0) => next(80) as usize,
                    (1, _) => 8 + content as usize,
                    _ => 12,
                };
                let cookie = if next(8) == 0 { next(6) } else { about };
                bytes.extend(0x668e_33ef_u32.to_be_bytes());
                bytes.extend([0, next(2) as u8]);
                bytes.extend(kind.to_be_bytes());
                bytes.extend(cookie.to_be_bytes());
                bytes.extend((len as u32).to_be_bytes());
                let start = [0, 4096, u64::MAX - 255, 8192, 0, 1 << 20][about as usize];
                let offset = start.wrapping_add([0, 0, 32, 256, next(64)][next(5) as usize]);
                let mut rest = offset.to_be_bytes().to_vec();
                rest.extend((content as u32).to_be_bytes());
                rest.extend(std::iter::repeat_with(|| next(64) as u8).take(300));
                rest.truncate(len);
                bytes.extend(rest);
            }
            well += try_any_replies(&bytes);
        }
        assert!(well > 0, "some of them are answers");
    }
}
