//! The reader of a connection: begins every request that has arrived.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Error, ErrorKind, Mono, Op, Result};
use wire::nbd::{Command, CommandFlags, Errno, RequestHeader, check};
use wire::stream::Inbox;

use super::command::{PIECE_BYTES, op_of, range_of, zeroing};
use super::connection::{Connection, held_bytes};

/// Payloads longer than this are received straight into their own buffer.
const STRAIGHT_BYTES: usize = 64 << 10;

/// A cached range is read in pieces of this length.
const PREFETCH_BYTES: u64 = 1 << 20;

/// Why the reader stopped.
type Ended = std::result::Result<(), String>;

/// Reads requests until the client leaves; says why, for the log.
pub async fn read(connection: Rc<Connection>, mut inbox: Inbox) -> Ended {
    let ended = Reader { connection: &connection, inbox: &mut inbox, since: None }.run().await;
    match &ended {
        Ok(()) => connection.end_of_requests(),
        Err(_) => connection.close(),
    }
    ended
}

struct Reader<'a> {
    connection: &'a Rc<Connection>,
    inbox: &'a mut Inbox,
    /// When the first byte of an unfinished request was there.
    since: Option<Mono>,
}

impl Reader<'_> {
    async fn run(&mut self) -> Ended {
        let style = self.connection.session.style;
        while !self.connection.is_closed() {
            let parsed = RequestHeader::parse(&self.inbox.bytes(), style);
            match parsed.map_err(|error| error.to_string())? {
                Some((header, _)) if header.command == Command::Disconnect => return Ok(()),
                Some((header, used)) => {
                    let payload = header.payload_bytes(style) as usize;
                    if payload <= STRAIGHT_BYTES && self.inbox.len() < used + payload {
                        self.receive().await?;
                        continue;
                    }
                    self.inbox.take(used);
                    self.request(header, payload).await?;
                    self.since = None;
                }
                None => {
                    if !self.receive().await? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Receives what there is; `false` at the end of the stream between two requests.
    async fn receive(&mut self) -> std::result::Result<bool, String> {
        let begun = !self.inbox.is_empty();
        let room = self.inbox.room();
        match self.receive_into(room, begun).await? {
            0 if begun => Err("the connection ended inside a request".to_owned()),
            0 => Ok(false),
            n => {
                self.inbox.arrived(n);
                Ok(true)
            }
        }
    }

    /// One receive; inside a request it is over at the request's deadline.
    async fn receive_into(&mut self, room: Buf, begun: bool) -> std::result::Result<usize, String> {
        let env = &self.connection.export.env;
        let ticket = self.connection.socket.recv(room);
        let outcome = if begun {
            let limit = self.connection.limits.request;
            let since = *self.since.get_or_insert(env.now());
            let left = limit.saturating_sub(env.now().since(since));
            match env.within(left, ticket).await {
                Some(outcome) => outcome,
                None => {
                    return Err(format!(
                        "a request was not complete {} s after its first byte",
                        limit.as_secs()
                    ));
                }
            }
        } else {
            ticket.await
        };
        outcome.result.map_err(|error| error.to_string())
    }

    /// Begins one request, whose payload follows in the stream.
    async fn request(&mut self, header: RequestHeader, payload: usize) -> Ended {
        if let Err(refusal) = check(&header, &self.connection.session) {
            self.skip(payload).await?;
            let kind = kind_of(refusal.errno);
            self.connection.refuse(header, Error::new(kind, refusal.reason));
            return Ok(());
        }
        let held = held_bytes(&header, self.connection.session.style);
        if !self.connection.may_begin(held) {
            self.connection.room(held).await;
        }
        let buf = match header.command {
            Command::Read => Some(self.buffer(header.length as usize).await?),
            Command::Write => {
                let buf = self.buffer(payload).await?;
                self.fill(&buf).await?;
                Some(buf)
            }
            _ => None,
        };
        let touched = (header.command != Command::Flush).then(|| range_of(&header));
        while self.connection.export.is_fenced(touched) {
            self.connection.export.engine.answered().await;
        }
        let token = self.connection.begin(header, held);
        self.begin(header, token, buf).await;
        Ok(())
    }

    async fn buffer(&self, len: usize) -> std::result::Result<Buf, String> {
        let pool = self.connection.export.env.pool();
        match pool.take(len) {
            Ok(buf) => Ok(buf),
            Err(_) => pool.wait_for(len).await.map_err(|error| error.to_string()),
        }
    }

    /// The payload: copied from what has arrived, received straight into its place beyond that.
    /// Nothing is begun before all of it is there.
    async fn fill(&mut self, buf: &Buf) -> Ended {
        let mut have = self.inbox.take_into(buf);
        while have < buf.len() {
            match self.receive_into(buf.slice(have..buf.len()), true).await? {
                0 if seeded::on(Bug::PartialPayload) => return Ok(()),
                0 => return Err("the connection ended inside a payload".to_owned()),
                n => have += n,
            }
        }
        Ok(())
    }

    /// Takes the payload of a refused request off the stream.
    async fn skip(&mut self, mut payload: usize) -> Ended {
        loop {
            let have = self.inbox.len().min(payload);
            self.inbox.take(have);
            payload -= have;
            if payload == 0 {
                return Ok(());
            }
            if !self.receive().await? {
                return Err("the connection ended inside a payload".to_owned());
            }
        }
    }

    async fn begin(&self, header: RequestHeader, token: u64, buf: Option<Buf>) {
        let connection = self.connection;
        let slow_zeroes =
            header.flags.has(CommandFlags::FAST_ZERO) && !connection.export.info.native_zeroes;
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
            export.engine.room(export.node).await;
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
