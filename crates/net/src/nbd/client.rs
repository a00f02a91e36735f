//! The NBD client of one connection: any number of requests in flight, and replies in any order.
//!
//! Requests that begin in one turn of the engine are sent with one system call. All replies that have arrived are
//! received with one system call.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use block::env::{Address, Outcome, Socket, Ticket, Tickets};
use block::{Buf, Env, Error, ErrorKind, Extent, Memory, Notify, Result, error};
use wire::nbd::{
    ClientConfig, ClientHandshake, ClientProgress, Command, CommandFlags, EXTENDED_REQUEST_BYTES,
    ReplyMessage, RequestHeader, Session,
};
use wire::stream::{HEADS_BYTES, INBOX_BYTES, Inbox, Outbox, drop_front};

use super::pending::{Follows, Pending, Rest, Slot, nonsense, place_of};
use super::target::secure;

/// Time limit of the whole handshake with an NBD server.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Length in bytes from which the payload of a reply is received directly into the buffer of its read.
const STRAIGHT_BYTES: usize = 64 << 10;

/// A connection to an NBD server on which the handshake is complete.
#[derive(Clone)]
pub struct Client(Rc<Inner>);

struct Inner {
    socket: Rc<dyn Socket>,
    session: Session,
    pending: RefCell<Pending>,
    outbox: RefCell<Outbox>,
    /// Requests that do not fit into the outbox yet, in the order in which they began, with their payloads.
    queued: RefCell<std::collections::VecDeque<(RequestHeader, Option<Buf>)>>,
    writer: Notify,
    /// The reason for the end of the connection; `None` while the connection works.
    gone: RefCell<Option<Error>>,
    /// Number of tasks of this connection (reader and writer) that have not ended.
    tasks: Cell<u8>,
    /// Wakes the tasks that wait for the end of the reader and the writer.
    task_ended: Notify,
}

/// Number of bytes of the buffer pool that a connection to an NBD server uses: for its inbox, for two batches of
/// request headers, and for a message of the handshake. TLS uses [`tls::CONNECTION_BYTES`] more.
pub(super) const CONNECTION_BYTES: usize = INBOX_BYTES + 3 * HEADS_BYTES;

impl Client {
    /// Connects to the NBD server at `to`, and carries out the handshake with the settings `config`.
    ///
    /// # Errors
    /// Errors of the kernel, the handshake or the server, with the address of the server.
    pub async fn connect(env: &Env, to: &Address, config: ClientConfig) -> Result<Self> {
        Self::connect_with(env, to, config, None, Memory::Free).await
    }

    /// Connects to an NBD server as [`Client::connect`] does, with buffers from `memory`. Requires TLS if `tls` is set.
    ///
    /// # Errors
    /// Errors of [`Client::connect`], and an invalid certificate of the server.
    pub(super) async fn connect_with(
        env: &Env,
        to: &Address,
        config: ClientConfig,
        tls: Option<&tls::Client>,
        memory: Memory,
    ) -> Result<Self> {
        let config = ClientConfig { tls: tls.is_some(), ..config };
        let connecting = async {
            // Errors of `env.connect` contain the address already.
            let mut socket = env.connect(to).await?;
            let mut inbox = Inbox::over(memory.buf(env.pool(), INBOX_BYTES).await?);
            let heads = memory.buf(env.pool(), HEADS_BYTES).await?;
            let outbox = Outbox::over(heads, memory.buf(env.pool(), HEADS_BYTES).await?);
            let negotiated = negotiate(env, &mut socket, tls, config, &mut inbox, memory).await;
            let session = negotiated.map_err(|error: Error| error.at(to))?;
            Ok::<_, Error>((socket, session, inbox, outbox))
        };
        let Some(connected) = env.within(HANDSHAKE, connecting).await else {
            return Err(error!(
                TimedOut,
                "the server did not complete the handshake within {} s",
                HANDSHAKE.as_secs()
            )
            .at(to));
        };
        let (socket, session, inbox, outbox) = connected?;
        let client = Self(Rc::new(Inner {
            socket,
            session,
            pending: RefCell::default(),
            outbox: RefCell::new(outbox),
            queued: RefCell::default(),
            writer: Notify::default(),
            gone: RefCell::default(),
            tasks: Cell::new(2),
            task_ended: Notify::default(),
        }));
        env.spawn("an NBD client's writer", write(client.0.clone()));
        env.spawn("an NBD client's reader", read(client.0.clone(), inbox));
        Ok(client)
    }

    /// Returns the facts from the handshake with the server: about the export, and about the agreed protocol.
    pub fn session(&self) -> &Session {
        &self.0.session
    }

    /// Returns the reason for the end of the connection; `None` while the connection works.
    pub fn gone(&self) -> Option<Error> {
        self.0.gone.borrow().clone()
    }

    /// Returns the number of requests in flight on the connection.
    pub(super) fn depth(&self) -> usize {
        let pending = self.0.pending.borrow();
        pending.slots.len() - pending.free.len()
    }

    /// Ends the connection to the server at once, and fails all requests in flight with the error `why`.
    pub(super) fn sever(&self, why: Error) {
        self.0.end(why);
    }

    /// Waits until the connection has ended, and both of its tasks as well: then no task uses a buffer of the
    /// connection any more. Returns the reason for the end.
    pub(super) async fn ended(&self) -> Error {
        self.0.task_ended.until_some(|| self.gone().filter(|_| self.0.tasks.get() == 0)).await
    }

    /// Sends a request to the server. The outcome of a read has `buf` with the bytes that were read.
    pub fn start(
        &self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        length: u64,
        buf: Option<Buf>,
    ) -> Ticket {
        let cookie = self.0.begin(command, offset, buf.clone());
        let payload = buf.filter(|_| command == Command::Write);
        self.0.queue(RequestHeader { command, flags, cookie, offset, length }, payload);
        Ticket::new(self.0.clone(), cookie)
    }

    /// Requests from the server the block status of `length` bytes from `offset` on.
    ///
    /// # Errors
    /// Errors of the server; `Unsupported` if the server has no `base:allocation`.
    pub async fn status(&self, offset: u64, length: u64) -> Result<Vec<Extent>> {
        if self.0.session.contexts.is_empty() {
            let words = "the server does not support block status";
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        let cookie = self.0.begin(Command::BlockStatus, offset, None);
        let (command, flags) = (Command::BlockStatus, CommandFlags::NONE);
        self.0.queue(RequestHeader { command, flags, cookie, offset, length }, None);
        let inner = self.0.clone();
        let slot = poll_fn(move |cx| inner.take(cookie, cx)).await;
        slot.failed.map_or(Ok(slot.extents), Err)
    }

    /// Sends a disconnect to the server, which then closes the connection. Requests that are still in flight at that
    /// time fail.
    pub fn close(&self) {
        let (command, flags) = (Command::Disconnect, CommandFlags::NONE);
        self.0.queue(RequestHeader { command, flags, cookie: 0, offset: 0, length: 0 }, None);
    }
}

impl Inner {
    fn begin(&self, command: Command, offset: u64, buf: Option<Buf>) -> u64 {
        let mut pending = self.pending.borrow_mut();
        let place = pending.free.pop().unwrap_or_else(|| {
            pending.slots.push(Slot::default());
            pending.slots.len() - 1
        });
        let slot = &mut pending.slots[place];
        let cookie = u64::from(slot.turn) << 32 | place as u64;
        (slot.busy, slot.command, slot.offset, slot.buf) = (true, Some(command), offset, buf);
        if let Some(error) = &*self.gone.borrow() {
            (slot.failed, slot.done) = (Some(error.clone()), true);
        }
        cookie
    }

    fn queue(&self, header: RequestHeader, payload: Option<Buf>) {
        if self.gone.borrow().is_some() {
            return;
        }
        let mut outbox = self.outbox.borrow_mut();
        let mut queued = self.queued.borrow_mut();
        if queued.is_empty() && outbox.fits(EXTENDED_REQUEST_BYTES, 1) {
            self.put(&mut outbox, header, payload);
        } else {
            queued.push_back((header, payload));
        }
        self.writer.wake();
    }

    fn put(&self, outbox: &mut Outbox, header: RequestHeader, payload: Option<Buf>) {
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        let encoded = header.encode(self.session.style, &mut bytes);
        let len = encoded.expect("the length of a request was checked against the export's limits");
        outbox.bytes(&bytes[..len]);
        if let Some(payload) = payload {
            outbox.payload(payload);
        }
    }

    /// Ends the connection at once. All requests in flight fail with the error `why`.
    fn end(&self, why: Error) {
        self.gone.borrow_mut().get_or_insert(why.clone());
        self.socket.shutdown();
        self.queued.borrow_mut().clear();
        let mut pending = self.pending.borrow_mut();
        for slot in pending.slots.iter_mut().filter(|slot| slot.busy && !slot.done) {
            (slot.failed, slot.done) = (Some(why.clone()), true);
            slot.waiter.wake();
        }
        self.writer.wake();
    }

    fn task_ended(&self) {
        self.tasks.set(self.tasks.get() - 1);
        self.task_ended.wake();
    }

    /// Removes a completed request from the requests in flight, and returns it; or waits for its reply.
    fn take(&self, cookie: u64, cx: &mut Context<'_>) -> Poll<Slot> {
        let mut pending = self.pending.borrow_mut();
        let slot = &mut pending.slots[place_of(cookie)];
        if !slot.done {
            slot.waiter.wake_later(cx);
            return Poll::Pending;
        }
        Poll::Ready(pending.vacate(cookie))
    }
}

impl Tickets for Inner {
    fn poll(&self, cookie: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.take(cookie, cx).map(|slot| Outcome {
            result: slot.failed.map_or(Ok(slot.covered.len()), Err),
            buf: slot.buf,
            parts: Vec::new(),
        })
    }

    fn abandon(&self, cookie: u64) {
        let mut pending = self.pending.borrow_mut();
        let slot = &mut pending.slots[place_of(cookie)];
        if slot.done {
            pending.vacate(cookie);
        } else {
            slot.abandoned = true;
        }
    }
}

async fn negotiate(
    env: &Env,
    socket: &mut Rc<dyn Socket>,
    tls: Option<&tls::Client>,
    config: ClientConfig,
    inbox: &mut Inbox,
    memory: Memory,
) -> Result<Session> {
    let broken = |error: wire::nbd::ProtocolError| {
        error!(Unsupported, "the handshake with the server failed: {error}")
    };
    let mut handshake = ClientHandshake::new(config).map_err(broken)?;
    let mut out = Vec::new();
    loop {
        let advanced = handshake.advance(&inbox.bytes(), &mut out).map_err(broken);
        let (used, progress) = advanced?;
        inbox.take(used);
        send(env, &**socket, &mut out, memory).await?;
        match progress {
            ClientProgress::StartTls => {
                *socket = secure(env, socket, tls, inbox.len(), memory).await?;
                handshake.secured(&mut out);
                send(env, &**socket, &mut out, memory).await?;
            }
            ClientProgress::Connected(session) => return Ok(*session),
            ClientProgress::NeedMore => receive(&**socket, inbox).await?,
            _ => {}
        }
    }
}

async fn send(env: &Env, socket: &dyn Socket, out: &mut Vec<u8>, memory: Memory) -> Result<()> {
    let mut rest = out.as_slice();
    while !rest.is_empty() {
        let len = rest.len().min(HEADS_BYTES);
        let buf = memory.buf(env.pool(), len).await?;
        buf.write().copy_from_slice(&rest[..len]);
        match socket.send(vec![buf]).await.result? {
            0 => return Err(ended()),
            n => rest = &rest[n..],
        }
    }
    out.clear();
    Ok(())
}

/// Receives bytes of the server into the inbox. Returns an error if the server has closed the connection.
async fn receive(socket: &dyn Socket, inbox: &mut Inbox) -> Result<()> {
    match socket.recv(inbox.room()).await.result? {
        0 => return Err(ended()),
        n => inbox.arrived(n),
    }
    Ok(())
}

fn ended() -> Error {
    error!(Io, "the server closed the connection")
}

async fn write(inner: Rc<Inner>) {
    send_all(&inner).await;
    inner.task_ended();
}

async fn send_all(inner: &Inner) {
    loop {
        let batch = inner.writer.until_some(|| {
            if inner.gone.borrow().is_some() {
                return Some(None);
            }
            let mut outbox = inner.outbox.borrow_mut();
            if outbox.is_empty() {
                return None;
            }
            let batch = outbox.take();
            let mut queued = inner.queued.borrow_mut();
            while outbox.fits(EXTENDED_REQUEST_BYTES, 1)
                && let Some((header, payload)) = queued.pop_front()
            {
                inner.put(&mut outbox, header, payload);
            }
            Some(Some(batch))
        });
        let Some(mut batch) = batch.await else { return };
        loop {
            let total: usize = batch.parts.iter().map(Buf::len).sum();
            let outcome = inner.socket.send(batch.parts).await;
            batch.parts = outcome.parts;
            match outcome.result {
                Ok(sent) if sent == total => break,
                Ok(0) => return inner.end(ended()),
                Ok(sent) => drop_front(&mut batch.parts, sent),
                Err(error) => return inner.end(error),
            }
        }
        inner.outbox.borrow_mut().sent(batch);
    }
}

async fn read(inner: Rc<Inner>, inbox: Inbox) {
    let Err(why) = (Reader { inner: &inner, inbox }).run().await;
    inner.end(why);
    inner.task_ended();
}

struct Reader<'a> {
    inner: &'a Rc<Inner>,
    inbox: Inbox,
}

impl Reader<'_> {
    async fn run(&mut self) -> Result<Infallible> {
        loop {
            let Some(Follows { cookie, what, last }) = self.reply().await? else { continue };
            match what {
                Rest::Data(into) => self.payload(&into).await?,
                Rest::Nothing(len) => self.pass_over(len).await?,
            }
            if last {
                self.inner.pending.borrow_mut().finish(cookie);
            }
        }
    }

    /// Receives the next reply and records it in its request. Returns the payload that follows the reply in the stream,
    /// if there is any.
    async fn reply(&mut self) -> Result<Option<Follows>> {
        let max = self.inner.session.facts.blocks.max_payload();
        let style = self.inner.session.style;
        loop {
            let heard = {
                let bytes = self.inbox.bytes();
                let parsed = ReplyMessage::parse(&bytes, style, max);
                match parsed.map_err(|error| nonsense(error.to_string()))? {
                    Some((message, used)) => {
                        let mut pending = self.inner.pending.borrow_mut();
                        Some((pending.hear(&message, style)?, used))
                    }
                    None => None,
                }
            };
            if let Some((follows, used)) = heard {
                self.inbox.take(used);
                return Ok(follows);
            }
            self.more().await?;
        }
    }

    async fn pass_over(&mut self, mut len: usize) -> Result<()> {
        loop {
            let here = len.min(self.inbox.len());
            self.inbox.take(here);
            len -= here;
            if len == 0 {
                return Ok(());
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<()> {
        receive(&*self.inner.socket, &mut self.inbox).await
    }

    /// Receives the payload of a reply into the buffer `into`. Copies the bytes that are in the inbox already; receives
    /// a long rest directly into the buffer.
    async fn payload(&mut self, into: &Buf) -> Result<()> {
        let mut have = self.inbox.take_into(into);
        while have < into.len() {
            // After `sever`, the request may be sent again on another connection, with the same buffer.
            if let Some(why) = &*self.inner.gone.borrow() {
                return Err(why.clone());
            }
            let rest = into.slice(have..into.len());
            if rest.len() < STRAIGHT_BYTES {
                self.more().await?;
                have += self.inbox.take_into(&rest);
            } else {
                match self.inner.socket.recv(rest).await.result? {
                    0 => return Err(ended()),
                    n => have += n,
                }
            }
        }
        Ok(())
    }
}
