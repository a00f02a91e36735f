//! The reader of a connection: begins every request that has arrived.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use block::env::Ticket;
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Error, ErrorKind, Mono, Op, Result};
use wire::nbd::{Command, CommandFlags, Errno, RequestHeader, check};
use wire::stream::{INBOX_BYTES, Inbox};

use super::command::{PIECE_BYTES, PREFETCH_BYTES, op_of, range_of, zeroing};
use super::connection::{Connection, held_bytes};

/// Payloads longer than this are received straight into their own buffer.
const STRAIGHT_BYTES: usize = 64 << 10;

/// Why the reader stops.
enum End {
    /// The client has taken its leave, or nobody wants more requests.
    Over,
    /// In words for the log.
    Broken(String),
}

impl From<String> for End {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

type Step<T = ()> = std::result::Result<T, End>;

/// Reads requests until the client leaves, or the gate is shut.
///
/// # Errors
/// Why the connection was closed, for the log.
pub async fn read(
    connection: &Rc<Connection>,
    mut inbox: Inbox,
) -> std::result::Result<(), String> {
    let in_place = connection.export.info().buf_align == 1;
    let mut reader = Reader { connection, inbox: &mut inbox, since: None, hearing: None, in_place };
    let ended = reader.run().await;
    match ended {
        Ok(()) | Err(End::Over) => {
            connection.end_of_requests();
            Ok(())
        }
        Err(End::Broken(why)) => {
            connection.close();
            Err(why)
        }
    }
}

struct Reader<'a> {
    connection: &'a Rc<Connection>,
    inbox: &'a mut Inbox,
    /// When the first byte of an unfinished request was there.
    since: Option<Mono>,
    /// A receive into the inbox that was begun while a request waited at the fence.
    hearing: Option<Ticket>,
    /// Whether payloads are handed on where they arrived: the device below does not care where that
    /// is, and so far has never held one longer than its call.
    in_place: bool,
}

impl Reader<'_> {
    async fn run(&mut self) -> Step {
        let style = self.connection.session.style;
        while !self.connection.gate.is_shut() {
            let parsed = RequestHeader::parse(&self.inbox.bytes(), style);
            match parsed.map_err(|error| error.to_string())? {
                Some((header, _)) if header.command == Command::Disconnect => break,
                Some((header, used)) => {
                    let payload = header.payload_bytes(style) as usize;
                    if payload <= STRAIGHT_BYTES && self.inbox.len() < used + payload {
                        self.receive().await?;
                        continue;
                    }
                    self.inbox.take(used);
                    self.request(header, payload).await?;
                    self.since = None;
                    if self.connection.has_batch() {
                        self.connection.export.env.give_way().await;
                    }
                }
                None => {
                    if !self.receive().await? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Receives what there is; `false` at the end of the stream between two requests.
    async fn receive(&mut self) -> Step<bool> {
        let begun = !self.inbox.is_empty();
        match self.more(begun).await? {
            0 if begun => Err("the connection ended inside a request".to_owned().into()),
            n => Ok(n > 0),
        }
    }

    /// Receives into the inbox; 0 at the end of the stream.
    async fn more(&mut self, begun: bool) -> Step<usize> {
        let ticket = match self.hearing.take() {
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
        Ok(self.connection.socket.recv(self.inbox.room()))
    }

    /// One receive; inside a request it is over at the request's deadline.
    async fn received(&mut self, ticket: Ticket, begun: bool) -> Step<usize> {
        let env = &self.connection.export.env;
        let outcome = if begun {
            let limit = self.connection.limits.request;
            let since = *self.since.get_or_insert(env.now());
            let left = limit.saturating_sub(env.now().since(since));
            let outcome = self.unless_shut(env.within(left, ticket)).await?;
            outcome.ok_or_else(|| {
                format!("a request was not complete {limit:?} after its first byte")
            })?
        } else {
            self.unless_shut(ticket).await?
        };
        Ok(outcome.result.map_err(|error| error.to_string())?)
    }

    /// Waits, unless no more requests are to begin.
    async fn unless_shut<F: Future>(&self, future: F) -> Step<F::Output> {
        self.connection.gate.unless(future).await.ok_or(End::Over)
    }

    /// Begins one request, whose payload follows in the stream.
    async fn request(&mut self, header: RequestHeader, payload: usize) -> Step {
        if let Err(refusal) = check(&header, &self.connection.session) {
            self.room(0).await?;
            self.skip(payload).await?;
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
        if self.connection.export.is_fenced(touched) {
            self.unfenced(touched).await?;
        }
        let token = self.connection.begin(header, held);
        self.begin(header, token, buf).await;
        self.in_place &= !self.inbox.is_held();
        Ok(())
    }

    /// Waits until no orphan is in the way, and hears meanwhile whether the client is still there: once
    /// its connection is gone it counts on nothing landing that had not begun.
    async fn unfenced(&mut self, touched: Option<ByteRange>) -> Step {
        let connection = self.connection.clone();
        let mut clear = pin!(connection.export.unfenced(touched));
        loop {
            if self.hearing.is_none() && self.inbox.len() < INBOX_BYTES {
                self.hearing = Some(self.begin_hearing().await?);
            }
            let heard = poll_fn(|cx| {
                if clear.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                match &mut self.hearing {
                    Some(ticket) => Pin::new(ticket).poll(cx).map(Some),
                    None => Poll::Pending,
                }
            });
            let heard = connection.gate.unless(heard).await.ok_or(End::Over)?;
            let Some(outcome) = heard else { return Ok(()) };
            self.hearing = None;
            match outcome.result.map_err(|error| error.to_string())? {
                0 => return Err("the client left while a request waited".to_owned().into()),
                n => self.inbox.arrived(n),
            }
        }
    }

    /// Waits until a request that holds so many bytes may begin. That is our time, not the client's.
    async fn room(&mut self, bytes: usize) -> Step {
        if !self.connection.may_begin(bytes) {
            self.unless_shut(self.connection.room(bytes)).await?;
            self.since = None;
        }
        Ok(())
    }

    /// A buffer. While there is none, whoever has not read its answers for too long is closed.
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

    /// The payload of a write.
    async fn payload(&mut self, len: usize) -> Step<Buf> {
        if self.in_place && self.inbox.len() >= len {
            return Ok(self.inbox.take_part(len));
        }
        let buf = self.buffer(len).await?;
        self.fill(&buf).await?;
        Ok(buf)
    }

    /// Copied from what has arrived, received straight into its place beyond that. Nothing is begun
    /// before all of it is there.
    async fn fill(&mut self, buf: &Buf) -> Step {
        let mut have = self.inbox.take_into(buf);
        while have < buf.len() {
            let rest = buf.slice(have..buf.len());
            let n = if self.hearing.is_some() {
                self.more(true).await?.min(self.inbox.take_into(&rest))
            } else {
                let ticket = self.connection.socket.recv(rest);
                self.received(ticket, true).await?
            };
            match n {
                0 if seeded::on(Bug::PartialPayload) => return Ok(()),
                0 => return Err("the connection ended inside a payload".to_owned().into()),
                n => have += n,
            }
        }
        Ok(())
    }

    /// Takes the payload of a refused request off the stream.
    async fn skip(&mut self, mut payload: usize) -> Step {
        loop {
            let have = self.inbox.len().min(payload);
            self.inbox.take(have);
            payload -= have;
            if payload == 0 {
                return Ok(());
            }
            if self.more(true).await? == 0 {
                return Err("the connection ended inside a payload".to_owned().into());
            }
        }
    }

    async fn begin(&self, header: RequestHeader, token: u64, buf: Option<Buf>) {
        let connection = self.connection;
        let slow_zeroes =
            header.flags.has(CommandFlags::FAST_ZERO) && !connection.export.info().native_zeroes;
        let writer = Rc::as_ptr(connection).addr();
        if header.command.modifies() {
            seeded::note(writer);
        }
        match header.command {
            Command::Flush if seeded::on(Bug::FlushPerConnection) && !seeded::noted(writer) => {
                connection.end(token, None, Ok(()));
            }
            Command::WriteZeroes if slow_zeroes => {
                let words = "zeroing is no faster than writing here";
                connection.end(token, None, Err(Error::new(ErrorKind::Unsupported, words)));
            }
            Command::Trim | Command::WriteZeroes if header.length > PIECE_BYTES => {
                let task = zero_in_pieces(connection.clone(), header, token);
                connection.export.env.spawn("a long trim", task);
            }
            Command::Cache => {
                let task = prefetch(connection.clone(), header, token);
                connection.export.env.spawn("a prefetch", task);
            }
            _ => self.submit(op_of(&header, buf), token).await,
        }
    }

    async fn submit(&self, mut op: Op, token: u64) {
        let export = &self.connection.export;
        loop {
            match export.engine.submit(export.node, op, self.connection.clone(), token) {
                Ok(()) => return,
                Err(back) => op = back,
            }
            export.engine.room(export.node, &op).await;
        }
    }
}

/// A trim or a write of zeroes, one piece after the other.
async fn zero_in_pieces(connection: Rc<Connection>, header: RequestHeader, token: u64) {
    let whole = range_of(&header);
    let lower = connection.export.engine.lower(connection.export.node);
    let mut at = whole.start();
    let mut result = Ok(());
    while result.is_ok() && at < whole.end() {
        let piece = ByteRange::between(at, whole.end().min(at + PIECE_BYTES)).expect("not empty");
        result = lower.call(zeroing(&header, piece)).await.result;
        at = piece.end();
    }
    connection.end(token, None, result);
}

/// Reads a range once, so that what caches below has it.
async fn prefetch(connection: Rc<Connection>, header: RequestHeader, token: u64) {
    let result = read_through(&connection, range_of(&header)).await;
    connection.end(token, None, result);
}

async fn read_through(connection: &Connection, whole: ByteRange) -> Result<()> {
    let lower = connection.export.engine.lower(connection.export.node);
    let buf = connection.export.env.pool().wait_for(PREFETCH_BYTES as usize).await?;
    let mut at = whole.start();
    while at < whole.end() {
        let piece =
            ByteRange::between(at, whole.end().min(at + PREFETCH_BYTES)).expect("not empty");
        let part = buf.slice(0..piece.len() as usize);
        lower.read(piece, part).await?;
        at = piece.end();
        if connection.is_closed() {
            break;
        }
    }
    Ok(())
}

fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        Errno::EPERM => ErrorKind::ReadOnly,
        Errno::ENOSPC => ErrorKind::NoSpace,
        Errno::ENOTSUP => ErrorKind::Unsupported,
        _ => ErrorKind::Invalid,
    }
}
