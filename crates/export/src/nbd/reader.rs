//! The reader of a connection: begins every request that has arrived.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use block::env::{Outcome, Ticket, stopped};
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Error, ErrorKind, Mono, Op, Result};
use wire::nbd::{
    Command, CommandFlags, EXTENDED_REQUEST_BYTES, Errno, ReplyStyle, RequestHeader, check,
};
use wire::stream::{INBOX_BYTES, Inbox};

use super::Export;
use super::command::{PREFETCH_BYTES, op_of, range_of, zeroing};
use super::connection::{Connection, held_bytes};
use crate::pieces::in_pieces;

/// Payloads longer than this are received directly into their own buffer.
const STRAIGHT_BYTES: usize = 64 << 10;

/// The reason why the reader stops before the client's disconnect command.
enum End {
    /// The connection takes no more requests.
    Over,
    /// The client is gone, and another one waits to be served.
    Gone,
    /// The connection is broken; with a text for the log.
    Broken(String),
}

impl From<String> for End {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

type Step<T = ()> = std::result::Result<T, End>;

/// Begins the requests of the connection until the client leaves, or no more requests may begin. The bytes of `early`
/// come first. If another server takes over the stream, returns the bytes that have arrived and belong to no begun
/// request.
///
/// # Errors
/// The reason why the connection must be closed, for the log.
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

/// Bytes that arrived before this reader began.
struct Early {
    bytes: Vec<u8>,
    taken: usize,
}

impl Early {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Returns bytes in the same way as a receive.
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

/// The header of a request as it arrived, without the payload.
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
    /// Header of the request that was taken off the stream and is not begun.
    head: Option<Head>,
    /// The part of its payload that was taken off the stream, for the case that it does not begin.
    unread: Vec<u8>,
    /// The time at which the first byte of an incomplete request arrived.
    since: Option<Mono>,
    /// A receive into the inbox that was begun while a request waited for the fence.
    pending_recv: Option<Ticket>,
    /// Whether payloads are passed on in the inbox. The device below accepts buffers at any address, and so far it has
    /// never kept one longer than its call.
    in_place: bool,
    /// Whether the client is gone and these requests are its last.
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

    /// Begins the last requests of a client that is gone, if a disconnect command comes after them. Without that
    /// command the client may have been killed, and another client that waits may assume that its unbegun requests will
    /// not be carried out.
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

    /// Returns the stream from the first request that was not begun to its end.
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

    /// Begins requests until the client leaves.
    async fn run(&mut self) -> Step {
        let style = self.connection.session.style;
        while !self.connection.cancel.is_cancelled() {
            if self.connection.gone.is_cancelled() && !self.is_last {
                return Err(End::Gone);
            }
            let parsed = RequestHeader::parse(&self.inbox.bytes(), style);
            match parsed.map_err(|error| error.to_string())? {
                Some((header, _)) if header.command == Command::Disconnect => return Ok(()),
                Some((header, used)) => {
                    let payload = header.payload_bytes(style) as usize;
                    if payload <= STRAIGHT_BYTES && self.inbox.len() < used + payload {
                        self.receive().await?;
                        continue;
                    }
                    self.take_head(used);
                    self.request(header, payload).await?;
                    self.since = None;
                    if self.connection.has_batch() {
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

    /// Calls off the receive that is under way, and keeps its bytes.
    async fn hear_the_last(&mut self) -> Step {
        if let Some(ticket) = self.pending_recv.take() {
            match self.called_off(ticket).await? {
                0 => return Ok(()),
                n => self.inbox.arrived(n),
            }
        }
        Err(End::Over)
    }

    /// Returns the stream from the first byte that belongs to no begun request.
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

    /// Receives available bytes. Returns `false` at the end of the stream between two requests.
    async fn receive(&mut self) -> Step<bool> {
        let begun = !self.inbox.is_empty();
        match self.more(begun).await? {
            0 if begun => {
                Err("the client closed the connection inside a request".to_owned().into())
            }
            n => Ok(n > 0),
        }
    }

    /// Receives into the inbox. Returns 0 at the end of the stream.
    async fn more(&mut self, begun: bool) -> Step<usize> {
        let ticket = match self.pending_recv.take() {
            Some(ticket) => ticket,
            None => self.begin_hearing().await?,
        };
        let n = self.received(ticket, begun).await?;
        self.inbox.arrived(n);
        Ok(n)
    }

    async fn begin_hearing(&mut self) -> Step<Ticket> {
        let pool = self.connection.export.env.pool();
        self.inbox.renew(pool).await.map_err(|error| error.to_string())?;
        let room = self.inbox.room();
        self.recv(room)
    }

    /// Begins to receive, unless the cancel token is cancelled.
    fn recv(&mut self, into: Buf) -> Step<Ticket> {
        if self.connection.cancel.is_cancelled() {
            return Err(End::Over);
        }
        if !self.early.rest().is_empty() {
            return Ok(self.early.recv(into));
        }
        Ok(self.connection.socket.recv(into))
    }

    /// Waits for a receive. Inside a request it ends at the request's deadline.
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

    /// Calls off a receive after the cancel token was cancelled. If another server takes over the stream, bytes that arrived all the
    /// same are kept.
    async fn called_off(&self, ticket: Ticket) -> Step<usize> {
        if !self.connection.is_leaving() {
            return Err(End::Over);
        }
        self.connection.socket.call_off();
        ticket.await.result.map_err(|_| End::Over)
    }

    /// Waits for `future`, unless no more requests may begin.
    async fn unless_shut<F: Future>(&self, future: F) -> Step<F::Output> {
        unless_shut(self.connection, self.is_last, future).await
    }

    /// Begins one request. Its payload follows in the stream.
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

    /// Waits until no orphan overlaps the request, and watches meanwhile whether the client is still there. Once its
    /// connection is gone, no request that had not begun may be carried out.
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

    /// Waits until a request that holds so many bytes may begin. This time does not count against the client's
    /// deadline.
    async fn room(&mut self, bytes: usize) -> Step {
        if !self.connection.may_begin(bytes) {
            self.unless_shut(self.connection.room(bytes)).await?;
            self.since = None;
        }
        Ok(())
    }

    /// Returns a buffer. While there is none, closes connections that have not read their replies for too long.
    async fn buffer(&mut self, len: usize) -> Step<Buf> {
        let Connection { export, limits, peers, .. } = &**self.connection;
        let pool = export.env.pool();
        if let Ok(buf) = pool.take(len) {
            return Ok(buf);
        }
        let taken = loop {
            peers.close_stuck();
            let waiting = export.env.within(limits.request / 4, pool.wait_for(len));
            if let Some(taken) = self.unless_shut(waiting).await? {
                break taken;
            }
        };
        self.since = None;
        Ok(taken.map_err(|error| error.to_string())?)
    }

    /// Returns the payload of a write.
    async fn payload(&mut self, len: usize) -> Step<Buf> {
        if self.in_place && self.inbox.len() >= len {
            return Ok(self.inbox.take_part(len));
        }
        let buf = self.buffer(len).await?;
        self.fill(&buf).await?;
        Ok(buf)
    }

    /// Fills a buffer with a payload: copies the part that has arrived, and receives the rest directly into its place.
    /// The request begins only when the payload is complete.
    async fn fill(&mut self, buf: &Buf) -> Step {
        let mut have = self.inbox.take_into(buf);
        while have < buf.len() {
            match self.fill_more(buf.slice(have..buf.len())).await {
                Ok(0) if seeded::on(Bug::PartialPayload) => return Ok(()),
                Ok(0) => {
                    return Err("the client closed the connection inside a payload"
                        .to_owned()
                        .into());
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

    /// Takes the payload of a refused request off the stream.
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
                    return Err("the client closed the connection inside a payload"
                        .to_owned()
                        .into());
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

/// Waits for `future`, unless no more requests may begin: none after the cancel token was cancelled, and only the last ones of a
/// client that is gone.
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

/// Carries out a trim, a write of zeroes or a prefetch piece by piece, for as long as the connection lasts. If another
/// server takes over the connection, the whole request is left to it.
async fn carry_out(connection: Rc<Connection>, header: RequestHeader, head: Head, token: u64) {
    let goes_on = || !connection.cancel.is_cancelled();
    let export = &*connection.export;
    let whole = range_of(&header);
    let result = match header.command {
        Command::Cache => prefetch(export, whole, goes_on).await,
        _ => {
            let piece_bytes = connection.limits.piece_bytes;
            in_pieces(export, whole, piece_bytes, goes_on, |piece| zeroing(&header, piece)).await
        }
    };
    match result {
        Some(result) => connection.end(token, None, result),
        None if connection.is_leaving() => connection.leave_unanswered(token, head.bytes()),
        None => connection.end(token, None, Err(stopped())),
    }
}

/// Reads a range once, so that caches below have it.
async fn prefetch(
    export: &Export,
    whole: ByteRange,
    goes_on: impl Fn() -> bool,
) -> Option<Result<()>> {
    let piece_bytes = PREFETCH_BYTES.min(u64::from(export.info().max_transfer));
    let buf = match export.env.pool().wait_for(piece_bytes as usize).await {
        Ok(buf) => buf,
        Err(error) => return Some(Err(error)),
    };
    let read = |range: ByteRange| Op::read(range, buf.slice(0..range.len() as usize));
    in_pieces(export, whole, piece_bytes, goes_on, read).await
}

/// Whether these requests contain a disconnect command.
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
