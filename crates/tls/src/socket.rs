//! A socket that opens the records that a lower socket receives, and seals the records that the lower socket sends.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use block::env::{Outcome, Socket, Ticket, Tickets};
use block::{Buf, Env, Error, Memory, Result, bail, error};

use crate::handshake::Keys;
use crate::record::{
    Broken, CLOSE_NOTIFY, Content, DECODE_ERROR, Half, INTERNAL_ERROR, KEYS_MAX_BYTES,
    NO_RENEGOTIATION, OVERHEAD_MAX_BYTES, PLAIN_MAX_BYTES, UNEXPECTED_MESSAGE, USER_CANCELED,
    Version,
};

/// Length in bytes of one receive or send on the lower socket: fifteen whole records in one system call.
pub const BATCH_BYTES: usize = 256 << 10;

/// Length in bytes of the longest message of the peer after the handshake: a ticket of any server is shorter.
const MESSAGE_MAX_BYTES: usize = 64 << 10;

/// Longest wait until the last alert is sent.
const FAREWELL: Duration = Duration::from_secs(1);

/// Most key updates and warnings of the peer between two records with data: each update costs the derivation of a key,
/// and neither brings data.
const IDLE_MAX: u32 = 32;

/// Level of an alert after which the connection goes on in TLS 1.2. In TLS 1.3 the level has no meaning.
const WARNING: u8 = 1;
const FATAL: u8 = 2;

const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

const RECV: u64 = 0;
const SEND: u64 = 1;

/// The state of a TLS connection at the end of its handshake.
pub struct Begin {
    pub env: Env,
    /// The part of the buffer pool for the connection's second buffer.
    pub memory: Memory,
    pub lower: Rc<dyn Socket>,
    pub keys: Box<dyn Keys>,
    pub opening: Half,
    pub sealing: Half,
    /// A buffer of [`BATCH_BYTES`], and the range in it of the sealed bytes that arrived with the end of the
    /// handshake.
    pub arrived: (Buf, Range<usize>),
    /// Whether this side is the client. Its peer is a server, which may send tickets.
    pub client: bool,
}

/// A socket that sends and receives plaintext. The lower socket sends and receives it in TLS records.
pub struct TlsSocket(Rc<Inner>);

struct Inner {
    env: Env,
    lower: Rc<dyn Socket>,
    client: bool,
    keys: RefCell<Box<dyn Keys>>,
    incoming: RefCell<Incoming>,
    outgoing: RefCell<Outgoing>,
    /// Whether the peer has requested new keys of this side. They must be renewed before the next send.
    owes_update: Cell<bool>,
    /// The alert that is sent to the peer when the connection ends.
    last_word: Cell<u8>,
    closing: Cell<bool>,
    keys_max_bytes: Cell<u64>,
}

struct Incoming {
    half: Half,
    buf: Buf,
    /// Range in the buffer of sealed bytes that have arrived and are not opened.
    sealed: Range<usize>,
    /// Range in the buffer of opened bytes that no receive has taken.
    plain: Range<usize>,
    /// The received beginning of a handshake message that continues in the next record.
    message: Vec<u8>,
    /// Number of the peer's key updates and warnings since the last record with data.
    idle: u32,
    into: Option<Buf>,
    ticket: Option<Ticket>,
    ended: bool,
    /// The first error of the lower socket. It is reported only after one more receive.
    broken: Option<Error>,
    failed: Option<Error>,
}

struct Outgoing {
    half: Half,
    buf: Buf,
    /// Range in the buffer of sealed bytes that the lower socket has not sent.
    sealed: Range<usize>,
    ticket: Option<Ticket>,
    spare: Vec<Buf>,
    parts: Vec<Buf>,
    job: SendProgress,
    failed: Option<Error>,
}

/// The progress of a send on the upper socket.
enum SendProgress {
    None,
    /// The send waits, and none of its bytes is sealed.
    Waits,
    /// This number of the send's bytes is sealed.
    Sealed(usize),
    /// The send failed before its first byte was sealed.
    Refused(Error),
}

impl TlsSocket {
    /// Creates the socket of a connection whose handshake has ended.
    ///
    /// # Errors
    /// `Limit` if the pool can never provide the buffers of the socket.
    pub async fn new(begin: Begin) -> Result<Self> {
        let Begin { env, memory, lower, keys, opening, sealing, arrived: (buf, sealed), client } =
            begin;
        let incoming = Incoming {
            half: opening,
            buf,
            sealed,
            plain: 0..0,
            message: Vec::new(),
            idle: 0,
            into: None,
            ticket: None,
            ended: false,
            broken: None,
            failed: None,
        };
        let outgoing = Outgoing {
            half: sealing,
            buf: memory.buf(env.pool(), BATCH_BYTES).await?,
            sealed: 0..0,
            ticket: None,
            spare: Vec::new(),
            parts: Vec::new(),
            job: SendProgress::None,
            failed: None,
        };
        Ok(Self(Rc::new(Inner {
            env,
            lower,
            client,
            keys: RefCell::new(keys),
            incoming: RefCell::new(incoming),
            outgoing: RefCell::new(outgoing),
            owes_update: Cell::new(false),
            last_word: Cell::new(CLOSE_NOTIFY),
            closing: Cell::new(false),
            keys_max_bytes: Cell::new(KEYS_MAX_BYTES),
        })))
    }

    /// Lowers the limit of the bytes under the same keys, so that a test reaches it.
    #[cfg(test)]
    pub fn renew_after(&self, bytes: u64) {
        self.0.keys_max_bytes.set(bytes);
    }

    /// Returns the version of TLS of the connection.
    #[cfg(test)]
    pub fn version(&self) -> Version {
        self.0.incoming.borrow().half.version()
    }

    /// Returns the alert that is sent to the peer when the connection ends.
    #[cfg(test)]
    pub fn last_word(&self) -> u8 {
        self.0.last_word.get()
    }

    #[cfg(test)]
    pub fn lower(&self) -> Rc<dyn Socket> {
        self.0.lower.clone()
    }

    /// Returns the number of the peer's key updates and warnings since the last record with data.
    #[cfg(test)]
    pub fn idle(&self) -> u32 {
        self.0.incoming.borrow().idle
    }

    /// Returns the next sealed record to the peer, with any content. A test sends it on the lower socket.
    #[cfg(test)]
    pub fn sealed(&self, bytes: &[u8], content: Content) -> Vec<u8> {
        let mut outgoing = self.0.outgoing.borrow_mut();
        let len = outgoing.put(0, bytes, content);
        outgoing.buf.read()[..len].to_vec()
    }

    /// Sends `count` key updates to the peer, in one batch.
    #[cfg(test)]
    pub fn send_updates(&self, count: u32) -> Ticket {
        let mut outgoing = self.0.outgoing.borrow_mut();
        let mut len = 0;
        for _ in 0..count {
            len += outgoing.put(len, &[KEY_UPDATE, 0, 0, 1, 0], Content::Handshake);
            let next = self.0.keys.borrow_mut().next_sealing().unwrap();
            outgoing.half = Half::new(Version::Tls13, next).unwrap();
        }
        self.0.lower.send(vec![outgoing.buf.slice(0..len)])
    }
}

impl Socket for TlsSocket {
    fn recv(&self, into: Buf) -> Ticket {
        self.0.incoming.borrow_mut().into = Some(into);
        Ticket::new(self.0.clone(), RECV)
    }

    fn send(&self, parts: Vec<Buf>) -> Ticket {
        {
            let mut outgoing = self.0.outgoing.borrow_mut();
            (outgoing.parts, outgoing.job) = (parts, SendProgress::Waits);
            self.0.push(&mut outgoing);
        }
        Ticket::new(self.0.clone(), SEND)
    }

    /// Sends a last alert first, if no send is in progress.
    fn shutdown(&self) {
        let inner = self.0.clone();
        if inner.closing.replace(true) {
            return;
        }
        let mut outgoing = inner.outgoing.borrow_mut();
        let busy = outgoing.ticket.is_some() || !outgoing.sealed.is_empty();
        if busy || outgoing.failed.is_some() {
            return inner.lower.shutdown();
        }
        let word = inner.last_word.get();
        let level = if matches!(word, CLOSE_NOTIFY | NO_RENEGOTIATION) { WARNING } else { FATAL };
        let len = outgoing.put(0, &[level, word], Content::Alert);
        let word = inner.lower.send(vec![outgoing.buf.slice(0..len)]);
        outgoing.failed = Some(closed());
        drop(outgoing);
        let env = inner.env.clone();
        env.spawn("the end of a TLS connection", async move {
            let _ = inner.env.within(FAREWELL, word).await;
            inner.lower.shutdown();
        });
    }

    fn peer(&self) -> String {
        self.0.lower.peer()
    }

    /// The bytes received below may be half a record: they are kept for the next receive.
    fn call_off(&self) {
        self.0.lower.call_off();
    }

    fn is_gone(&self) -> bool {
        self.0.lower.is_gone()
    }

    /// Sealed bytes that the socket below has not sent yet count too.
    fn unreceived_bytes(&self) -> u64 {
        let unsent = self.0.outgoing.borrow().sealed.len() as u64;
        unsent + self.0.lower.unreceived_bytes()
    }
}

fn closed() -> Error {
    error!(Io, "the connection is closed")
}

impl Tickets for Inner {
    fn poll(&self, id: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        if id == RECV { self.poll_recv(cx) } else { self.poll_send(cx) }
    }

    /// The operation below goes on, in buffers of our own, and the next call finds its result.
    fn abandon(&self, id: u64) {
        if id == RECV {
            self.incoming.borrow_mut().into = None;
            return;
        }
        let mut outgoing = self.outgoing.borrow_mut();
        outgoing.parts.clear();
        outgoing.job = SendProgress::None;
    }
}

impl Inner {
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut incoming = self.incoming.borrow_mut();
        let incoming = &mut *incoming;
        let result = loop {
            match self.deliver(incoming) {
                Ok(0) if !incoming.ended => {}
                other => break other,
            }
            if self.poll_more(incoming, cx).is_pending() {
                return Poll::Pending;
            }
        };
        Poll::Ready(Outcome { result, buf: incoming.into.take(), parts: Vec::new() })
    }

    /// Receives on the lower socket, until bytes have arrived or the stream has ended.
    fn poll_more(&self, incoming: &mut Incoming, cx: &mut Context<'_>) -> Poll<()> {
        let ticket = match &mut incoming.ticket {
            Some(ticket) => ticket,
            none => {
                let free = make_room(&incoming.buf, &mut incoming.sealed);
                none.insert(self.lower.recv(free))
            }
        };
        let Poll::Ready(outcome) = Pin::new(ticket).poll(cx) else { return Poll::Pending };
        incoming.ticket = None;
        match (outcome.result, incoming.broken.take()) {
            (Ok(0) | Err(_), Some(broken)) => incoming.failed = Some(broken),
            // A stream may be cut between two records. A request carries its length, so its reader notices
            // that it is short. Between requests this is an end like any other.
            (Ok(0), None) if incoming.sealed.is_empty() => incoming.ended = true,
            (Ok(0), None) => incoming.failed = Some(cut()),
            // The receive queue behind the reset of a unix socket may hold the alert with the reason.
            (Err(error), None) => incoming.broken = Some(error),
            (Ok(n), broken) => {
                incoming.sealed.end += n;
                incoming.broken = broken;
            }
        }
        Poll::Ready(())
    }

    /// Returns the error with which the peer has ended the connection; `None` if the peer has sent none. Receives
    /// nothing while a receive of the upper socket is in flight.
    fn poll_reason(&self, cx: &mut Context<'_>) -> Poll<Option<Error>> {
        let mut incoming = self.incoming.borrow_mut();
        let incoming = &mut *incoming;
        while incoming.into.is_none() && incoming.plain.is_empty() && !self.next_record(incoming) {
            if let Some(error) = &incoming.failed {
                return Poll::Ready(Some(error.clone()));
            }
            if incoming.ended {
                break;
            }
            if self.poll_more(incoming, cx).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(None)
    }

    /// Copies opened bytes into the buffer of the receive in flight, as many as there are or as fit.
    fn deliver(&self, incoming: &mut Incoming) -> Result<usize> {
        let Some(into) = incoming.into.clone() else { return Ok(0) };
        let mut have = 0;
        while have < into.len() {
            if incoming.plain.is_empty() && !self.next_record(incoming) {
                break;
            }
            let n = incoming.plain.len().min(into.len() - have);
            let plain = incoming.plain.start..incoming.plain.start + n;
            into.slice(have..have + n).write().copy_from_slice(&incoming.buf.read()[plain]);
            incoming.plain.start += n;
            have += n;
        }
        match &incoming.failed {
            Some(error) if have == 0 => Err(error.clone()),
            _ => Ok(have),
        }
    }

    /// Opens records until one has data. Returns whether one has.
    fn next_record(&self, incoming: &mut Incoming) -> bool {
        while incoming.failed.is_none() && !incoming.ended {
            match self.open(incoming) {
                Ok(true) if incoming.plain.is_empty() => {}
                Ok(found) => return found,
                Err(Broken { alert, words }) => {
                    self.last_word.set(alert);
                    incoming.failed = Some(error!(Io, "TLS: the peer sent {words}"));
                }
            }
        }
        false
    }

    /// Opens the next record. Returns whether the record had arrived completely.
    fn open(&self, incoming: &mut Incoming) -> Result<bool, Broken> {
        let Range { start, end } = incoming.sealed;
        let (content, plain) = {
            let Incoming { half, buf, sealed, .. } = &mut *incoming;
            let mut bytes = buf.write();
            let len = half.record_len(&bytes[start..end])?.filter(|len| *len <= end - start);
            let Some(len) = len else { return Ok(false) };
            sealed.start += len;
            let (content, plain) = half.open(&mut bytes[start..start + len])?;
            (content, start + plain.start..start + plain.end)
        };
        match content {
            Content::Data if !incoming.message.is_empty() => {
                return Err(Broken::new(UNEXPECTED_MESSAGE, "data inside a handshake message"));
            }
            Content::Data => {
                if !plain.is_empty() {
                    incoming.idle = 0;
                }
                incoming.plain = plain;
            }
            Content::Alert => {
                let alert: Option<[u8; 2]> = incoming.buf.read()[plain].try_into().ok();
                let [level, alert] =
                    alert.ok_or(Broken::new(DECODE_ERROR, "an alert of a wrong length"))?;
                match alert {
                    CLOSE_NOTIFY => incoming.ended = true,
                    USER_CANCELED => {}
                    _ if level == WARNING && incoming.half.version() == Version::Tls12 => {
                        incoming.pass_idle()?;
                    }
                    _ => incoming.failed = Some(refusal(alert)),
                }
            }
            Content::Handshake => {
                if plain.is_empty() || incoming.message.len() + plain.len() > MESSAGE_MAX_BYTES {
                    return Err(Broken::new(DECODE_ERROR, "a handshake message of a wrong length"));
                }
                incoming.message.extend_from_slice(&incoming.buf.read()[plain]);
                self.messages(incoming)?;
            }
        }
        Ok(true)
    }

    /// Handles the peer's messages after the handshake: key updates, and tickets, which are ignored. TLS 1.2 has only
    /// messages that begin a renegotiation. They end the connection, and the peer gets the alert for them (RFC 5246,
    /// 7.2.2).
    fn messages(&self, incoming: &mut Incoming) -> Result<(), Broken> {
        if incoming.half.version() == Version::Tls12 {
            let request = if self.client { HELLO_REQUEST } else { CLIENT_HELLO };
            let words = "a request for renegotiation, which is not supported";
            return Err(match incoming.message.first() {
                Some(kind) if *kind == request => Broken::new(NO_RENEGOTIATION, words),
                _ => Broken::new(UNEXPECTED_MESSAGE, "an unexpected handshake message"),
            });
        }
        while let [kind, a, b, c, rest @ ..] = &incoming.message[..] {
            let len = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if len > MESSAGE_MAX_BYTES {
                return Err(Broken::new(DECODE_ERROR, "a handshake message longer than the limit"));
            }
            let Some(body) = rest.get(..len) else { return Ok(()) };
            match (*kind, body) {
                (NEW_SESSION_TICKET, _) if self.client => {}
                // The rest of this record would have been sealed with the old keys.
                (KEY_UPDATE, [asked @ (0 | 1)]) if rest.len() == len => {
                    let asked = *asked;
                    incoming.pass_idle()?;
                    let failed = Broken::new(INTERNAL_ERROR, "a key update that failed");
                    let next = self.keys.borrow_mut().next_opening();
                    let next = next.and_then(|secrets| Half::new(Version::Tls13, secrets));
                    incoming.half = next.map_err(|_| failed)?;
                    self.owes_update.set(self.owes_update.get() || asked == 1);
                }
                _ => {
                    return Err(Broken::new(UNEXPECTED_MESSAGE, "an unexpected handshake message"));
                }
            }
            incoming.message.drain(..4 + len);
        }
        Ok(())
    }

    fn poll_send(&self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut outgoing = self.outgoing.borrow_mut();
        let outgoing = &mut *outgoing;
        let result = loop {
            if let Some(error) = &outgoing.failed {
                let Poll::Ready(reason) = self.poll_reason(cx) else { return Poll::Pending };
                break Err(reason.unwrap_or_else(|| error.clone()));
            }
            if let Some(ticket) = &mut outgoing.ticket {
                let Poll::Ready(outcome) = Pin::new(ticket).poll(cx) else { return Poll::Pending };
                outgoing.ticket = None;
                outgoing.spare = outcome.parts;
                outgoing.spare.clear();
                match outcome.result {
                    Ok(0) => outgoing.failed = Some(closed()),
                    Ok(n) => outgoing.sealed.start += n,
                    Err(error) => outgoing.failed = Some(error),
                }
            } else if let (true, SendProgress::Sealed(bytes)) =
                (outgoing.sealed.is_empty(), &outgoing.job)
            {
                break Ok(*bytes);
            } else if let SendProgress::Refused(error) = &outgoing.job {
                break Err(error.clone());
            } else {
                self.push(outgoing);
            }
        };
        outgoing.job = SendProgress::None;
        Poll::Ready(Outcome { result, buf: None, parts: std::mem::take(&mut outgoing.parts) })
    }

    /// Seals bytes of the waiting send, and starts a send of the sealed bytes on the lower socket, unless one is in
    /// flight.
    fn push(&self, outgoing: &mut Outgoing) {
        if outgoing.ticket.is_some() || outgoing.failed.is_some() {
            return;
        }
        if outgoing.sealed.is_empty() && matches!(outgoing.job, SendProgress::Waits) {
            match self.seal(outgoing) {
                Ok(bytes) => outgoing.job = SendProgress::Sealed(bytes),
                Err(error) => outgoing.job = SendProgress::Refused(error),
            }
        }
        if !outgoing.sealed.is_empty() {
            let mut parts = std::mem::take(&mut outgoing.spare);
            parts.push(outgoing.buf.slice(outgoing.sealed.clone()));
            outgoing.ticket = Some(self.lower.send(parts));
        }
    }

    /// Seals as many bytes of the send's parts as fit into a batch, in as few records as possible. Returns their
    /// number.
    fn seal(&self, outgoing: &mut Outgoing) -> Result<usize> {
        let mut at = self.renew(outgoing)?;
        let Outgoing { half, buf, parts, .. } = &mut *outgoing;
        let mut left = Left { parts, part: 0, from: 0 };
        let mut total = 0;
        let (front, overhead) = (half.front(), half.overhead());
        while !left.is_empty() && at + PLAIN_MAX_BYTES + OVERHEAD_MAX_BYTES <= BATCH_BYTES {
            let mut buf = buf.write();
            let record = &mut buf[at..at + PLAIN_MAX_BYTES + OVERHEAD_MAX_BYTES];
            let len = match left.whole() {
                Some(plain) => half.seal_from(&plain.read(), record, Content::Data),
                None => {
                    let plain = left.gather(&mut record[front..][..PLAIN_MAX_BYTES]);
                    half.seal(record, plain, Content::Data)
                }
            };
            at += len;
            total += len - overhead;
        }
        outgoing.sealed = 0..at;
        Ok(total)
    }

    /// Renews the keys of this side if that is due. Returns the length of the record with the key update.
    ///
    /// # Errors
    /// `Io` if the keys are due and the connection has TLS 1.2, which cannot renew them.
    fn renew(&self, outgoing: &mut Outgoing) -> Result<usize> {
        let limit = self.keys_max_bytes.get();
        let worn = outgoing.half.is_worn(limit);
        if !self.owes_update.replace(false) && !worn {
            return Ok(0);
        }
        if outgoing.half.version() == Version::Tls12 {
            bail!(
                Io,
                "the keys of this connection have protected {limit} bytes, the limit of AES-GCM, and TLS 1.2 \
                 cannot renew them. Next: connect again; TLS 1.3 and ChaCha20-Poly1305 have no such limit"
            );
        }
        let len = outgoing.put(0, &[KEY_UPDATE, 0, 0, 1, 0], Content::Handshake);
        outgoing.half = Half::new(Version::Tls13, self.keys.borrow_mut().next_sealing()?)?;
        Ok(len)
    }
}

impl Incoming {
    /// Counts a message of the peer that brings no data.
    fn pass_idle(&mut self) -> Result<(), Broken> {
        self.idle += 1;
        if self.idle > IDLE_MAX {
            let words = "more than 32 key updates or warnings without data between them";
            return Err(Broken::new(UNEXPECTED_MESSAGE, words));
        }
        Ok(())
    }
}

impl Outgoing {
    /// Writes a record with the content `bytes` at offset `at` of the buffer. Returns the length of the record.
    fn put(&mut self, at: usize, bytes: &[u8], content: Content) -> usize {
        let mut buf = self.buf.write();
        let into = &mut buf[at..];
        into[self.half.front()..][..bytes.len()].copy_from_slice(bytes);
        self.half.seal(into, bytes.len(), content)
    }
}

/// The bytes of a send's parts that are not sealed yet.
struct Left<'a> {
    parts: &'a [Buf],
    part: usize,
    from: usize,
}

impl Left<'_> {
    fn is_empty(&self) -> bool {
        self.part == self.parts.len()
    }

    fn skip(&mut self, n: usize) {
        self.from += n;
        if self.from == self.parts[self.part].len() {
            (self.part, self.from) = (self.part + 1, 0);
        }
    }

    /// Takes the plaintext of a full record without a copy; `None` if it is in several parts.
    fn whole(&mut self) -> Option<Buf> {
        let part = &self.parts[self.part];
        let end = self.from + PLAIN_MAX_BYTES;
        let plain = (end <= part.len()).then(|| part.slice(self.from..end))?;
        self.skip(PLAIN_MAX_BYTES);
        Some(plain)
    }

    /// Copies the next bytes into `into`, as many as there are or as fit, and takes them. Returns their number.
    fn gather(&mut self, into: &mut [u8]) -> usize {
        let mut have = 0;
        while have < into.len() && !self.is_empty() {
            let part = &self.parts[self.part];
            let n = (part.len() - self.from).min(into.len() - have);
            into[have..have + n].copy_from_slice(&part.read()[self.from..self.from + n]);
            have += n;
            self.skip(n);
        }
        have
    }
}

/// Returns the part of the buffer for the next receive. Before that, moves the remaining sealed bytes to the front.
fn make_room(buf: &Buf, sealed: &mut Range<usize>) -> Buf {
    if sealed.start > 0 {
        buf.write().copy_within(sealed.clone(), 0);
        *sealed = 0..sealed.len();
    }
    buf.slice(sealed.end..BATCH_BYTES)
}

fn cut() -> Error {
    error!(Io, "the peer closed the connection inside a TLS record")
}

/// Returns the error for an alert that the peer has sent (RFC 8446, 6.2).
fn refusal(alert: u8) -> Error {
    let why = match alert {
        40 => "the peer supports none of the offered TLS parameters",
        42 | 43 => "the peer cannot use the local certificate",
        44 => "the local certificate is revoked",
        45 => "the local certificate has expired or is not valid yet",
        46 => "the peer does not accept the local certificate",
        48 => "the peer does not trust the authority that signed the local certificate",
        49 => "the peer denied access to the local certificate",
        51 => "the peer found the local signature wrong",
        116 => "the peer requires a client certificate; set cert and key",
        _ => return error!(Io, "the peer ended TLS with alert {alert}"),
    };
    error!(Denied, "the peer ended TLS: {why}")
}
