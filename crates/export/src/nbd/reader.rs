//! The reader of a connection: receives the client's requests, and begins them.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use block::env::{Outcome, Ticket, stopped};
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Error, ErrorKind, Memory, Mono, Op, Result, first};
use engine::Share;
use wire::nbd::{
    Command, CommandFlags, EXTENDED_REQUEST_BYTES, Errno, ReplyStyle, RequestHeader, check,
};
use wire::stream::{INBOX_BYTES, Inbox};

use super::Export;
use super::command::{PREFETCH_BYTES, op_of, range_of, zeroing};
use super::connection::{Connection, held_bytes};
use crate::pieces::in_pieces;

/// Length in bytes above which a payload is received directly into a buffer of its own.
const STRAIGHT_BYTES: usize = 64 << 10;

/// Number of requests after which the reader lets other tasks run. Requests that are carried out at once would hold
/// them up otherwise.
const ROUND: u32 = 64;

/// The reason for which the reader stops before it has reached the client's disconnect command.
enum End {
    /// The connection may begin no more requests.
    Over,
    /// The client has ended the connection, and the next client must not be served before this reader has ended.
    Gone,
    /// The connection is broken, or the client has broken the protocol. The text is for the log.
    Broken(String),
}

impl From<String> for End {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

type Step<T = ()> = std::result::Result<T, End>;

/// Begins the requests of the connection, until the client ends it or the connection may begin no more requests. The
/// bytes `early` come before those of the socket. If another server takes over the connection, returns the bytes that
/// have arrived and belong to no begun request.
///
/// # Errors
/// The reason, for the log, why the server must close the connection.
pub async fn read(
    connection: &Rc<Connection>,
    inbox: Inbox,
    early: Vec<u8>,
) -> std::result::Result<Option<Vec<u8>>, String> {
    let mut reader = Reader::new(connection, inbox, early);
    let mut ended = reader.run().await;
    if matches!(ended, Err(End::Gone)) {
        ended = reader.run_last().await;
    }
    if matches!(ended, Err(End::Over)) && connection.is_leaving() {
        ended = reader.hear_the_last().await;
    }
    let left = match ended {
        Ok(()) => Ok(None),
        Err(End::Over) => Ok(connection.is_leaving().then(|| reader.unread())),
        Err(End::Gone) => unreachable!("reading the last requests is never interrupted"),
        Err(End::Broken(why)) => {
            connection.close();
            Err(why)
        }
    };
    connection.end_of_requests();
    left
}

/// Bytes of the stream that arrived before this reader began, at an earlier server.
struct Early {
    bytes: Vec<u8>,
    taken: usize,
}

impl Early {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Copies the next early bytes into `into`, and returns a receive that has completed with these bytes.
    fn recv(&mut self, into: Buf) -> Ticket {
        let n = self.rest().len().min(into.len());
        into.slice(0..n).write().copy_from_slice(&self.rest()[..n]);
        self.taken += n;
        if self.rest().is_empty() {
            *self = Self { bytes: Vec::new(), taken: 0 };
        }
        Ticket::ready(Outcome { result: Ok(n), buf: Some(into), parts: Vec::new() })
    }
}

/// The header of a request as it arrived, without the payload of the request.
#[derive(Clone, Copy)]
struct Head {
    bytes: [u8; EXTENDED_REQUEST_BYTES],
    len: usize,
}

impl Head {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

struct Reader<'a> {
    connection: &'a Rc<Connection>,
    inbox: Inbox,
    early: Early,
    /// Header of the request that was taken off the stream and has not begun.
    head: Option<Head>,
    /// Bytes that were taken off the stream and belong to the payload of the request in `head`. Another server needs
    /// them if the request does not begin.
    unread: Vec<u8>,
    /// Time at which the first byte of the incomplete request arrived.
    since: Option<Mono>,
    /// A receive into the inbox that was started while a request waited for requests of a closed connection.
    pending_recv: Option<Ticket>,
    /// Whether a payload may stay in the inbox while the device below uses it. The device must accept buffers at any
    /// address, and must not have kept a buffer longer than its call so far.
    in_place: bool,
    /// Whether the client has ended the connection, so that the requests in the stream are its last.
    is_last: bool,
}

impl<'a> Reader<'a> {
    fn new(connection: &'a Rc<Connection>, inbox: Inbox, early: Vec<u8>) -> Self {
        Self {
            connection,
            inbox,
            early: Early { bytes: early, taken: 0 },
            head: None,
            unread: Vec::new(),
            since: None,
            pending_recv: None,
            in_place: connection.export.info().buf_align == 1,
            is_last: false,
        }
    }

    /// Begins the last requests of a client that has ended the connection, if a disconnect command comes after them.
    /// Without the command the client may have been killed. Then the next client may assume that unbegun requests of
    /// the killed client will not be carried out.
    async fn run_last(&mut self) -> Step {
        let stream = self.rest().await?;
        if !ends_in_order(&stream, self.connection.session.style) {
            return Err("the client disconnected before the server had read all of its requests"
                .to_owned()
                .into());
        }
        self.early = Early { bytes: stream, taken: 0 };
        self.is_last = true;
        self.run().await
    }

    /// Returns the bytes of the stream from the first request that has not begun up to the end of the stream.
    async fn rest(&mut self) -> Step<Vec<u8>> {
        let mut rest = self.unread();
        self.early = Early { bytes: Vec::new(), taken: 0 };
        self.inbox.take(self.inbox.len());
        while self.more(true).await? > 0 {
            rest.extend_from_slice(&self.inbox.bytes());
            self.inbox.take(self.inbox.len());
            if rest.len() > self.connection.limits.held_bytes {
                return Err(
                    "the client disconnected with more unread requests than the server holds"
                        .to_owned()
                        .into(),
                );
            }
        }
        Ok(rest)
    }

    /// Begins requests until the client ends the connection.
    async fn run(&mut self) -> Step {
        let style = self.connection.session.style;
        let mut begun = 0;
        while !self.connection.cancel.is_cancelled() {
            if self.connection.gone.is_cancelled() && !self.is_last {
                return Err(End::Gone);
            }
            let parsed = RequestHeader::parse(&self.inbox.bytes(), style);
            match parsed.map_err(|error| error.to_string())? {
                Some((header, _)) if header.command == Command::Disconnect => return Ok(()),
                Some((header, used)) => {
                    let payload = header.payload_bytes(style) as usize;
                    let fits = payload <= STRAIGHT_BYTES && used + payload <= self.inbox.capacity();
                    if fits && self.inbox.len() < used + payload {
                        self.receive().await?;
                        continue;
                    }
                    self.take_head(used);
                    self.request(header, payload).await?;
                    self.since = None;
                    begun += 1;
                    if begun % ROUND == 0 || self.connection.has_batch() {
                        self.connection.export.env.give_way().await;
                    }
                }
                None => {
                    if !self.receive().await? {
                        // It left without a disconnect command, so no further piece of a long request begins.
                        self.connection.cancel.cancel();
                        return Ok(());
                    }
                }
            }
        }
        Err(End::Over)
    }

    fn take_head(&mut self, len: usize) {
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        bytes[..len].copy_from_slice(&self.inbox.bytes()[..len]);
        self.head = Some(Head { bytes, len });
        self.inbox.take(len);
    }

    /// Cancels the receive in flight of a connection that another server takes over, and adds its bytes to the inbox.
    async fn hear_the_last(&mut self) -> Step {
        if let Some(ticket) = self.pending_recv.take() {
            match self.called_off(ticket).await? {
                0 => return Ok(()),
                n => self.inbox.arrived(n),
            }
        }
        Err(End::Over)
    }

    /// Returns the bytes of the stream that have arrived, from the first byte that belongs to no begun request.
    fn unread(&mut self) -> Vec<u8> {
        let mut unread = Vec::new();
        if let Some(head) = self.head.take() {
            unread.extend_from_slice(head.bytes());
        }
        unread.append(&mut self.unread);
        unread.extend_from_slice(&self.inbox.bytes());
        unread.extend_from_slice(self.early.rest());
        unread
    }

    /// Receives more bytes of the stream. Returns `false` if the stream has ended between two requests.
    async fn receive(&mut self) -> Step<bool> {
        let begun = !self.inbox.is_empty();
        match self.more(begun).await? {
            0 if begun => {
                Err("the client closed the connection inside a request".to_owned().into())
            }
            n => Ok(n > 0),
        }
    }

    /// Receives more bytes into the inbox, and returns their number; 0 at the end of the stream. `begun` is whether a
    /// part of a request has arrived.
    async fn more(&mut self, begun: bool) -> Step<usize> {
        loop {
            let ticket = match self.pending_recv.take() {
                Some(ticket) => ticket,
                None => self.begin_hearing().await?,
            };
            let heard = match begun || !self.inbox.is_large() {
                true => Some(self.received(ticket, begun).await?),
                false => self.received_unless_idle(ticket).await?,
            };
            if let Some(n) = heard {
                self.inbox.arrived(n);
                return Ok(n);
            }
            self.inbox.shrink(self.connection.export.env.pool());
            self.connection.set_large_inbox(self.inbox.is_large());
        }
    }

    /// Waits for a receive between two requests, and returns the number of bytes. Returns `None` if the connection must
    /// give its large receive buffer back first. Then the receive is cancelled, and nothing has arrived.
    async fn received_unless_idle(&mut self, mut ticket: Ticket) -> Step<Option<usize>> {
        let connection = self.connection;
        let heard = first(&mut ticket, connection.must_shrink());
        match connection.cancel.unless(heard).await {
            Some(Ok(outcome)) => Ok(Some(outcome.result.map_err(|error| error.to_string())?)),
            Some(Err(())) => {
                connection.socket.call_off();
                // If the socket is broken, the next receive returns the error.
                Ok(ticket.await.result.ok())
            }
            None => self.called_off(ticket).await.map(Some),
        }
    }

    async fn begin_hearing(&mut self) -> Step<Ticket> {
        let pool = self.connection.export.env.pool();
        self.inbox.renew(pool).await.map_err(|error| error.to_string())?;
        self.connection.set_large_inbox(self.inbox.is_large());
        let room = self.inbox.room();
        self.recv(room)
    }

    /// Starts a receive into `into`, unless the connection may begin no more requests.
    fn recv(&mut self, into: Buf) -> Step<Ticket> {
        if self.connection.cancel.is_cancelled() {
            return Err(End::Over);
        }
        if !self.early.rest().is_empty() {
            return Ok(self.early.recv(into));
        }
        Ok(self.connection.socket.recv(into))
    }

    /// Waits for a receive, and returns the number of bytes. If a part of a request has arrived (`begun`), the wait
    /// ends at that request's deadline.
    async fn received(&mut self, mut ticket: Ticket, begun: bool) -> Step<usize> {
        let env = &self.connection.export.env;
        let waited = if begun {
            let limit = self.connection.limits.request;
            let since = *self.since.get_or_insert(env.now());
            let left = limit.saturating_sub(env.now().since(since));
            match self.connection.cancel.unless(env.within(left, &mut ticket)).await {
                Some(None) => {
                    let late = format!(
                        "the client did not complete a request within {limit:?} of its first byte"
                    );
                    return Err(late.into());
                }
                waited => waited.flatten(),
            }
        } else {
            self.connection.cancel.unless(&mut ticket).await
        };
        match waited {
            Some(outcome) => Ok(outcome.result.map_err(|error| error.to_string())?),
            None => self.called_off(ticket).await,
        }
    }

    /// Cancels a receive, after the connection was stopped from beginning requests. If another server takes over the
    /// connection, waits for the bytes that arrived all the same.
    async fn called_off(&self, ticket: Ticket) -> Step<usize> {
        if !self.connection.is_leaving() {
            return Err(End::Over);
        }
        self.connection.socket.call_off();
        ticket.await.result.map_err(|_| End::Over)
    }

    /// Waits for `future`, unless the connection may begin no more requests.
    async fn unless_shut<F: Future>(&self, future: F) -> Step<F::Output> {
        unless_shut(self.connection, self.is_last, future).await
    }

    /// Begins one request of the client. `payload` is the length of its payload, which follows in the stream.
    async fn request(&mut self, header: RequestHeader, payload: usize) -> Step {
        if let Err(refusal) = check(&header, &self.connection.session) {
            self.room(0).await?;
            self.skip(payload).await?;
            self.head = None;
            let kind = kind_of(refusal.errno);
            self.connection.refuse(header, Error::new(kind, refusal.reason));
            return Ok(());
        }
        let held = held_bytes(&header, self.connection.session.style);
        self.room(held).await?;
        let buf = match header.command {
            Command::Read => Some(self.buffer(header.length as usize).await?),
            Command::Write => Some(self.payload(payload).await?),
            _ => None,
        };
        let touched = (header.command != Command::Flush).then(|| range_of(&header));
        if self.connection.export.is_fenced(touched)
            && let Err(end) = self.unfenced(touched).await
        {
            if header.command == Command::Write {
                self.unread = buf.map(|buf| buf.read().to_vec()).unwrap_or_default();
            }
            return Err(end);
        }
        let head = self.head.take().expect("the header of the request was read from the stream");
        let token = self.connection.begin(header, held);
        self.begin(header, head, token, buf).await;
        self.in_place &= !self.inbox.is_held();
        Ok(())
    }

    /// Waits until no request of a closed connection overlaps the bytes `touched` of a new request. If the new
    /// request's client ends the connection during the wait, the new request must not begin.
    async fn unfenced(&mut self, touched: Option<ByteRange>) -> Step {
        let connection = self.connection.clone();
        let mut clear = pin!(connection.export.unfenced(touched));
        loop {
            if self.pending_recv.is_none() && self.inbox.len() < INBOX_BYTES {
                self.pending_recv = Some(self.begin_hearing().await?);
            }
            let heard = poll_fn(|cx| {
                if clear.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                match &mut self.pending_recv {
                    Some(ticket) => Pin::new(ticket).poll(cx).map(Some),
                    None => Poll::Pending,
                }
            });
            let heard = unless_shut(&connection, self.is_last, heard).await?;
            let Some(outcome) = heard else { return Ok(()) };
            self.pending_recv = None;
            match outcome.result.map_err(|error| error.to_string())? {
                0 => {
                    return Err("the client disconnected while a request waited".to_owned().into());
                }
                n => self.inbox.arrived(n),
            }
        }
    }

    /// Waits until a request that needs `bytes` of memory may begin. The wait does not count against the request's
    /// deadline.
    async fn room(&mut self, bytes: usize) -> Step {
        if !self.connection.may_begin(bytes) {
            self.unless_shut(self.connection.room(bytes)).await?;
            self.since = None;
        }
        Ok(())
    }

    /// Waits for a buffer of `len` bytes. The wait does not count against the request's deadline.
    async fn buffer(&mut self, len: usize) -> Step<Buf> {
        let pool = self.connection.export.env.pool();
        if let Ok(buf) = pool.take_for_client(len) {
            return Ok(buf);
        }
        let taken = self.unless_shut(Memory::Client.buf(pool, len)).await?;
        self.since = None;
        Ok(taken.map_err(|error| error.to_string())?)
    }

    /// Receives the payload of a write, and returns the buffer with it.
    async fn payload(&mut self, len: usize) -> Step<Buf> {
        if self.in_place && self.inbox.len() >= len {
            return Ok(self.inbox.take_part(len));
        }
        let buf = self.buffer(len).await?;
        self.fill(&buf).await?;
        Ok(buf)
    }

    /// Fills `buf` with a payload: copies the bytes that have arrived, and receives the others directly into `buf`.
    /// The request begins only when its payload is complete.
    async fn fill(&mut self, buf: &Buf) -> Step {
        let mut have = self.inbox.take_into(buf);
        while have < buf.len() {
            match self.fill_more(buf.slice(have..buf.len())).await {
                Ok(0) if seeded::on(Bug::PartialPayload) => return Ok(()),
                Ok(0) => {
                    return Err("the client closed the connection in a payload".to_owned().into());
                }
                Ok(n) => have += n,
                Err(end) => {
                    self.unread = buf.read()[..have].to_vec();
                    return Err(end);
                }
            }
        }
        Ok(())
    }

    async fn fill_more(&mut self, rest: Buf) -> Step<usize> {
        if self.pending_recv.is_some() {
            return Ok(self.more(true).await?.min(self.inbox.take_into(&rest)));
        }
        let ticket = self.recv(rest)?;
        self.received(ticket, true).await
    }

    /// Removes the payload of a refused request from the stream.
    async fn skip(&mut self, payload: usize) -> Step {
        let mut skipped = 0;
        loop {
            let have = self.inbox.len().min(payload - skipped);
            self.inbox.take(have);
            skipped += have;
            if skipped == payload {
                return Ok(());
            }
            match self.more(true).await {
                Ok(0) => {
                    return Err("the client closed the connection in a payload".to_owned().into());
                }
                Ok(_) => {}
                Err(end) => {
                    // The next server refuses the request too, so these bytes are not used.
                    self.unread = vec![0; skipped];
                    return Err(end);
                }
            }
        }
    }

    async fn begin(&self, header: RequestHeader, head: Head, token: u64, buf: Option<Buf>) {
        let connection = self.connection;
        let slow_zeroes =
            header.flags.has(CommandFlags::FAST_ZERO) && !connection.export.info().native_zeroes;
        let is_long = match header.command {
            Command::Trim | Command::WriteZeroes => header.length > connection.limits.piece_bytes,
            command => command == Command::Cache,
        };
        let writer = Rc::as_ptr(connection).addr();
        if header.command.modifies() {
            seeded::note(writer);
        }
        match header.command {
            Command::Flush if seeded::on(Bug::FlushPerConnection) && !seeded::take_note(writer) => {
                connection.end(token, None, Ok(()));
            }
            Command::WriteZeroes if slow_zeroes => {
                let words = "the export zeroes no faster than it writes";
                connection.end(token, None, Err(Error::new(ErrorKind::Unsupported, words)));
            }
            _ if is_long => {
                let task = carry_out(connection.clone(), header, head, token);
                connection.export.env.spawn("a long request", task);
            }
            _ => {
                let export = &connection.export;
                export.engine.admit(&export.portal, op_of(&header, buf), connection, token).await;
            }
        }
    }
}

/// Waits for `future`, unless the connection may begin no more requests. If the client has ended the connection, only
/// its last requests (`is_last`) may begin.
async fn unless_shut<F: Future>(
    connection: &Connection,
    is_last: bool,
    future: F,
) -> Step<F::Output> {
    let done = connection.cancel.unless(future);
    let done = match is_last {
        true => done.await,
        false => connection.gone.unless(done).await.ok_or(End::Gone)?,
    };
    done.ok_or(End::Over)
}

/// Carries out a trim, a write of zeroes or a cache command in pieces, while the connection is open. If another
/// server takes over the connection, that server carries out the whole request again.
async fn carry_out(connection: Rc<Connection>, header: RequestHeader, head: Head, token: u64) {
    connection.begin_long().await;
    let goes_on = || !connection.cancel.is_cancelled();
    let (export, share, whole) = (&*connection.export, &connection.share, range_of(&header));
    let result = match header.command {
        Command::Cache => prefetch(export, share, whole, goes_on).await,
        _ => {
            let op_of = |piece| zeroing(&header, piece);
            let piece_bytes = connection.limits.piece_bytes;
            in_pieces(export, share, whole, piece_bytes, goes_on, op_of).await
        }
    };
    connection.end_long();
    match result {
        Some(result) => connection.end(token, None, result),
        None if connection.is_leaving() => connection.leave_unanswered(token, head.bytes()),
        None => connection.end(token, None, Err(stopped())),
    }
}

/// Reads a range once, so that a cache in a device below has its bytes.
async fn prefetch(
    export: &Export,
    share: &Rc<Share>,
    whole: ByteRange,
    goes_on: impl Fn() -> bool,
) -> Option<Result<()>> {
    let piece_bytes = PREFETCH_BYTES.min(u64::from(export.info().max_transfer));
    let buf = match Memory::Client.buf(export.env.pool(), piece_bytes as usize).await {
        Ok(buf) => buf,
        Err(error) => return Some(Err(error)),
    };
    let read = |range: ByteRange| Op::read(range, buf.slice(0..range.len() as usize));
    in_pieces(export, share, whole, piece_bytes, goes_on, read).await
}

/// Whether the requests in `stream` include a disconnect command.
fn ends_in_order(stream: &[u8], style: ReplyStyle) -> bool {
    let mut at = 0;
    while let Some(Ok(Some((header, used)))) =
        stream.get(at..).map(|rest| RequestHeader::parse(rest, style))
    {
        if header.command == Command::Disconnect {
            return true;
        }
        at += used + header.payload_bytes(style) as usize;
    }
    false
}

fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        Errno::EPERM => ErrorKind::ReadOnly,
        Errno::ENOSPC => ErrorKind::NoSpace,
        Errno::ENOTSUP => ErrorKind::Unsupported,
        _ => ErrorKind::Invalid,
    }
}
