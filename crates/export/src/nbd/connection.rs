//! The state of a connection, which its reader and its writer share. It queues the replies for the writer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use block::env::Socket;
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Env, Error, Mono, Notify, Op, Request, Result, first};
use engine::{Share, Sink};
use wire::nbd::{CommandFlags, Reply, ReplyStyle, RequestHeader, Session};
use wire::stream::{Batch, HEADS_BYTES, Outbox};

use super::cancel::CancelToken;
use super::command::{PREFETCH_BYTES, allocation, errno_of, range_of};
use super::living::Living;
use super::{Export, Limits, Orphan};
use crate::tokens::Tokens;

/// Length in bytes from which on replies are sent at once, while further requests are begun. So client and server
/// work at the same time, with few system calls.
const BATCH_BYTES: usize = 32 << 10;

/// Fewest bytes of waiting replies that a client must read in the time limit for them ([`Limits::slow`]).
pub const READ_MIN_BYTES: u64 = 64 << 10;

/// Number of looks at the progress of clients within the time limit for it.
const LOOKS: u32 = 8;

/// Interval of the looks for idle connections. A connection that was idle at two looks gives its buffers back.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// Most long requests of one connection that are carried out in pieces at the same time.
const LONG_MAX: usize = 4;

/// Length in bytes of the shortest read whose bytes the server checks for zeros, so that it can reply with a hole.
const LOOK_FOR_ZEROS_BYTES: usize = 4096;

/// A client's connection after its handshake. It outlives its socket while it has requests in flight.
pub struct Connection {
    pub export: Rc<Export>,
    pub socket: Rc<dyn Socket>,
    pub session: Session,
    /// Names in the certificate of the connection's client.
    pub names: Vec<String>,
    pub limits: Limits,
    /// Token that is cancelled when the connection may begin no more requests.
    pub cancel: Rc<CancelToken>,
    /// Token that is cancelled when the client has ended the connection and another client waits to be served.
    pub gone: CancelToken,
    peers: Rc<Peers>,
    pending: RefCell<Tokens<RequestHeader>>,
    outbox: RefCell<Outbox>,
    /// Results of requests whose replies did not fit into the outbox, or came while it had no buffers.
    overflow: RefCell<VecDeque<Answer>>,
    held_bytes: Cell<usize>,
    in_flight: Cell<u32>,
    /// The slots and buffers of the connection's requests in the engine.
    pub share: Rc<Share>,
    /// Number of long requests of the connection that are being carried out in pieces.
    long: Cell<usize>,
    is_sending: Cell<bool>,
    /// Number of bytes of replies that the socket has taken.
    sent_bytes: Cell<u64>,
    /// Number of replies of the connection so far, and at the last look for idle connections.
    replies: [Cell<u64>; 2],
    /// Whether the reader has a large receive buffer, and whether it must give that buffer back now.
    has_large_inbox: Cell<bool>,
    must_shrink: Cell<bool>,
    /// Whether every reply has been sent since the last look at the client's progress.
    was_idle: Cell<bool>,
    /// Time since which replies have waited, and number of bytes that the client had received then. They move on
    /// whenever the client has received [`READ_MIN_BYTES`] more.
    waiting_since: Cell<Option<(Mono, u64)>>,
    /// Headers, as they arrived, of begun requests that the next server of the connection must carry out again.
    pub unanswered: RefCell<Vec<u8>>,
    /// Whether the connection sends no more replies.
    closed: Cell<bool>,
    /// Whether another server must take over the connection.
    leaving: Cell<bool>,
    /// Whether the client sends no more requests.
    ended: Cell<bool>,
    /// Whether the writer of the connection has ended.
    written: Cell<bool>,
    /// Whether the server closed the connection because its client read its replies too slowly.
    pub cut: Cell<bool>,
    reader: Notify,
    /// Wakes the reader when it must give its large receive buffer back.
    shrink: Notify,
    writer: Notify,
    /// Wakes the tasks that wait for the end of the reader, of the writer, or of all requests in flight.
    waiting: Notify,
}

/// The open connections of an NBD server.
#[derive(Default)]
pub struct Peers {
    all: Living<Connection>,
    /// Whether a task looks for clients that read their replies too slowly. It runs only while replies are sent.
    is_watched: Cell<bool>,
    /// Whether a task looks for idle connections. It runs only while a connection has buffers to give back.
    is_swept: Cell<bool>,
}

impl Peers {
    pub fn add(&self, connection: &Rc<Connection>) {
        self.all.add(Rc::downgrade(connection));
        connection.export.connections.add(Rc::downgrade(connection));
    }

    pub fn all(&self) -> Vec<Rc<Connection>> {
        self.all.all()
    }

    /// Waits until no client that has ended its connection has an unbegun request for bytes of `export`. Requests before
    /// such a client's `NBD_CMD_DISC` are begun, within `limit`; all others are dropped. So a client that connects after
    /// the end of another client may assume that no unbegun request of the other client will be carried out.
    pub async fn close_gone(&self, env: &Env, export: &Export, limit: Duration) {
        let mut gone = if export.is_alone() { export.connections.all() } else { self.all() };
        let shares_bytes = |peer: &Rc<Connection>| peer.export.is_alone() == export.is_alone();
        gone.retain(|peer| shares_bytes(peer) && peer.socket.is_gone());
        if seeded::on(Bug::GoneNotClosed) {
            gone.clear();
        }
        gone.iter().for_each(|peer| peer.gone.cancel());
        for peer in gone {
            let ended = peer.waiting.until(|| peer.ended.get());
            if env.within(limit, ended).await.is_none() {
                peer.close();
            }
            peer.fence();
        }
    }

    /// Closes the connections of clients whose certificates are not admitted to their exports any more.
    pub fn close_barred(&self) {
        for peer in self.all() {
            let is_barred = !peer.export.is_for(&peer.names) && !seeded::on(Bug::BarredStays);
            if is_barred && !peer.closed.get() {
                peer.close();
                peer.fence();
            }
        }
    }

    /// Closes the connections of clients that read their replies too slowly, to free the memory of the replies. Ends
    /// when no connection sends.
    async fn watch(self: Rc<Self>, env: Env, limit: Duration) {
        let is_sending = |peer: &Rc<Connection>| peer.is_sending.get();
        while self.all().iter().any(is_sending) {
            env.sleep(limit / LOOKS).await;
            for peer in self.all().iter().filter(|peer| peer.is_slow()) {
                peer.cut.set(true);
                peer.close();
            }
        }
        self.is_watched.set(false);
    }

    /// Frees the buffers of idle connections. Ends when no connection has buffers to give back.
    async fn sweep(self: Rc<Self>, env: Env) {
        while self.all().iter().any(|peer| peer.has_spare_buffers()) {
            env.sleep(IDLE_LOOK).await;
            self.all().iter().filter(|peer| peer.was_idle_twice()).for_each(|peer| peer.unequip());
        }
        self.is_swept.set(false);
    }
}

/// A request and its result, for which a reply must be sent.
struct Answer {
    header: RequestHeader,
    /// Bytes of memory that the request holds until its reply is sent; 0 if the request never began.
    held: usize,
    op: Option<Op>,
    result: Result<()>,
}

impl Connection {
    pub fn new(
        export: Rc<Export>,
        socket: Rc<dyn Socket>,
        session: Session,
        names: Vec<String>,
        limits: Limits,
        cancel: Rc<CancelToken>,
        peers: Rc<Peers>,
    ) -> Rc<Self> {
        let outbox = RefCell::new(Outbox::idle());
        Rc::new(Self {
            export,
            socket,
            session,
            names,
            limits,
            cancel,
            gone: CancelToken::default(),
            peers,
            pending: RefCell::default(),
            outbox,
            overflow: RefCell::default(),
            held_bytes: Cell::new(0),
            in_flight: Cell::new(0),
            share: Rc::default(),
            long: Cell::new(0),
            is_sending: Cell::new(false),
            sent_bytes: Cell::new(0),
            replies: Default::default(),
            has_large_inbox: Cell::new(false),
            must_shrink: Cell::new(false),
            was_idle: Cell::new(true),
            waiting_since: Cell::new(None),
            unanswered: RefCell::default(),
            closed: Cell::new(false),
            leaving: Cell::new(false),
            ended: Cell::new(false),
            written: Cell::new(false),
            cut: Cell::new(false),
            reader: Notify::default(),
            shrink: Notify::default(),
            writer: Notify::default(),
            waiting: Notify::default(),
        })
    }

    /// Records whether the reader has a large receive buffer. The buffer is given back when the connection is idle.
    pub fn set_large_inbox(&self, is_large: bool) {
        self.must_shrink.set(false);
        if self.has_large_inbox.replace(is_large) != is_large && is_large {
            self.begin_sweep();
        }
    }

    /// Waits until the reader must give its large receive buffer back.
    pub async fn must_shrink(&self) {
        self.shrink.until(|| self.must_shrink.get()).await;
    }

    fn begin_sweep(&self) {
        if !self.peers.is_swept.replace(true) {
            let env = &self.export.env;
            env.spawn("a sweep of idle connections", self.peers.clone().sweep(env.clone()));
        }
    }

    fn has_spare_buffers(&self) -> bool {
        // The buffers of a socket with state, such as TLS, are not given back: its receive cannot be cancelled.
        let inbox = self.has_large_inbox.get() && self.socket.may_outlive();
        !self.ended.get() && (inbox || self.outbox.borrow().is_equipped())
    }

    /// Looks at the connection. Returns whether no reply was due since the last look, and no request is in flight.
    fn was_idle_twice(&self) -> bool {
        let [now, before] = &self.replies;
        before.replace(now.get()) == now.get() && self.in_flight.get() == 0
    }

    /// Frees the buffers of a connection that is idle.
    fn unequip(&self) {
        self.outbox.borrow_mut().unequip();
        if self.has_large_inbox.get() && self.socket.may_outlive() {
            self.must_shrink.set(true);
            self.shrink.wake();
        }
    }

    /// Gives the outbox its buffers, if it has none and the pool has some now.
    fn equip(&self, outbox: &mut Outbox) {
        let pool = self.export.env.pool();
        if !outbox.is_equipped()
            && let (Ok(heads), Ok(spare)) = (pool.take(HEADS_BYTES), pool.take(HEADS_BYTES))
        {
            outbox.equip(heads, spare);
            self.begin_sweep();
        }
    }

    /// Whether the connection may begin another request of `bytes` bytes now. A connection may not if its client does
    /// not read replies, or if it would have more memory than remains for all others.
    pub fn may_begin(&self, bytes: usize) -> bool {
        let left = self.export.env.pool().free_for_clients();
        let held = self.held_bytes.get();
        self.in_flight.get() < self.limits.requests
            && self.overflow.borrow().len() < self.limits.requests as usize
            && (held == 0 || held + bytes <= self.limits.held_bytes.min(left))
    }

    /// Waits until the connection may begin another request of `bytes` ([`Connection::may_begin`]).
    pub async fn room(&self, bytes: usize) {
        self.reader.until(|| self.may_begin(bytes)).await;
    }

    /// Whether the outbox has enough replies for a system call, and no send is in flight.
    pub fn has_batch(&self) -> bool {
        !self.is_sending.get() && self.outbox.borrow().held() >= BATCH_BYTES
    }

    /// Waits until every begun request of the connection has ended.
    pub async fn quiet(&self) {
        self.waiting.until(|| self.in_flight.get() == 0).await;
    }

    /// Waits until the writer of the connection has ended.
    pub async fn written(&self) {
        self.waiting.until(|| self.written.get()).await;
    }

    /// Records that a request begins, which holds `held` bytes of memory. Returns the token for its result.
    pub fn begin(&self, header: RequestHeader, held: usize) -> u64 {
        self.in_flight.set(self.in_flight.get() + 1);
        self.held_bytes.set(self.held_bytes.get() + held);
        self.pending.borrow_mut().add(header) as u64
    }

    /// Removes the request with this token, which has ended, and queues the reply to it.
    pub fn end(&self, token: u64, op: Option<Op>, result: Result<()>) {
        let header = self.take(token);
        if self.closed.get() {
            return;
        }
        let held = held_bytes(&header, self.session.style);
        self.answer(Answer { header, held, op, result });
    }

    /// Removes the request with this token without a reply, so that the next server of the connection carries it out
    /// again. `bytes` is the request's header as it arrived.
    pub fn leave_unanswered(&self, token: u64, bytes: &[u8]) {
        self.unanswered.borrow_mut().extend_from_slice(bytes);
        self.take(token);
        self.writer.wake();
    }

    /// Removes the request with this token, which has ended, and returns its header.
    fn take(&self, token: u64) -> RequestHeader {
        let header = self.pending.borrow_mut().take(token as usize);
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 {
            self.waiting.wake();
        }
        if self.ended.get() || self.closed.get() {
            self.export.wake_fenced();
        }
        header
    }

    /// Queues an error as the reply to a request that did not begin.
    pub fn refuse(&self, header: RequestHeader, error: Error) {
        self.answer(Answer { header, held: 0, op: None, result: Err(error) });
    }

    fn answer(&self, answer: Answer) {
        let mut outbox = self.outbox.borrow_mut();
        self.replies[0].set(self.replies[0].get() + 1);
        self.equip(&mut outbox);
        if !self.overflow.borrow().is_empty() || !outbox.fits(answer.len(), 1) {
            self.overflow.borrow_mut().push_back(answer);
        } else {
            self.put(&mut outbox, answer);
        }
        drop(outbox);
        self.writer.wake();
    }

    fn put(&self, outbox: &mut Outbox, answer: Answer) {
        let Answer { header, held, op, result } = answer;
        outbox.hold(held);
        let reply = Reply::new(&header, self.session.style);
        if let Err(error) = result {
            let mut bytes = Vec::new();
            reply.error(errno_of(error.kind()), &error.to_string(), &mut bytes);
            outbox.bytes(&bytes);
            return;
        }
        match op {
            Some(Op::Read { into, .. }) => self.put_read(outbox, reply, &header, into),
            Some(Op::Status { extents, .. }) => {
                let only_one = header.flags.has(CommandFlags::REQ_ONE);
                let status = allocation(&extents, range_of(&header), only_one);
                let chunks = reply.chunks().expect("metadata contexts need structured replies");
                let mut bytes = Vec::new();
                let last = self.session.contexts.len() - 1;
                for (n, context) in self.session.contexts.iter().enumerate() {
                    chunks.block_status(context.id, &status, n == last, &mut bytes);
                }
                self.put_long(outbox, &bytes);
            }
            _ => outbox.bytes(&reply.done()),
        }
    }

    fn put_read(&self, outbox: &mut Outbox, reply: Reply, header: &RequestHeader, data: Buf) {
        let len = data.len();
        let may_hole = len >= LOOK_FOR_ZEROS_BYTES && !header.flags.has(CommandFlags::DF);
        if let Some(chunks) = reply.chunks()
            && may_hole
            && block::is_zero(&data.read())
        {
            outbox.bytes(&chunks.hole(header.offset, len as u32, true));
            return;
        }
        outbox.bytes(&reply.whole_read(len as u32));
        outbox.payload(data);
    }

    /// Adds the chunks of a long reply to the outbox. If they do not fit, they get a buffer of their own.
    fn put_long(&self, outbox: &mut Outbox, bytes: &[u8]) {
        if outbox.fits(bytes.len(), 0) {
            outbox.bytes(bytes);
        } else if let Ok(buf) = self.export.env.buf(bytes.len()) {
            buf.write().copy_from_slice(bytes);
            outbox.payload(buf);
        } else {
            self.close();
        }
    }

    /// Records that a send on the connection starts.
    pub fn begin_send(&self) {
        self.is_sending.set(true);
        if !self.peers.is_watched.replace(true) {
            let (env, limit) = (&self.export.env, self.limits.slow);
            env.spawn("a watch over slow clients", self.peers.clone().watch(env.clone(), limit));
        }
    }

    /// Records that a send on the connection has completed, and that the socket has taken `bytes` of it.
    pub fn end_send(&self, bytes: usize) {
        self.is_sending.set(false);
        self.sent_bytes.set(self.sent_bytes.get() + bytes as u64);
    }

    /// Looks at the client's progress. Returns whether the client has received fewer than [`READ_MIN_BYTES`] of its
    /// replies in the time limit for them, although replies were waiting.
    fn is_slow(&self) -> bool {
        if !self.is_sending.get() || self.was_idle.replace(false) {
            self.waiting_since.set(None);
            return false;
        }
        let now = self.export.env.now();
        let received = self.sent_bytes.get().saturating_sub(self.socket.unreceived_bytes());
        match self.waiting_since.get() {
            Some((since, before)) if received < before + READ_MIN_BYTES => {
                now.since(since) >= self.limits.slow
            }
            _ => {
                self.waiting_since.set(Some((now, received)));
                false
            }
        }
    }

    /// Waits until fewer than [`LONG_MAX`] long requests of the connection are being carried out. The caller counts as
    /// one until it calls [`Connection::end_long`].
    pub async fn begin_long(&self) {
        self.waiting.until(|| self.long.get() < LONG_MAX).await;
        self.long.set(self.long.get() + 1);
    }

    /// Records that a long request of the connection has ended.
    pub fn end_long(&self) {
        self.long.set(self.long.get() - 1);
        self.waiting.wake();
    }

    /// Waits for replies, and returns the replies in the outbox, to be sent together. Returns `None` when the
    /// connection sends no more replies.
    pub async fn batch(&self) -> Option<Batch> {
        let is_over = || self.closed.get() || self.ended.get() && self.in_flight.get() == 0;
        let has_replies = || !self.outbox.borrow().is_empty() || !self.overflow.borrow().is_empty();
        self.writer.until(|| is_over() || has_replies()).await;
        if !self.closed.get() && has_replies() && !self.outbox.borrow().is_equipped() {
            self.wait_for_buffers().await?;
            self.put_overflow();
        }
        if self.closed.get() || self.outbox.borrow().is_empty() {
            return None;
        }
        let batch = self.outbox.borrow_mut().take();
        self.put_overflow();
        Some(batch)
    }

    /// Waits for buffers for the outbox. Returns `None` if the connection is closed meanwhile, or there will be none.
    async fn wait_for_buffers(&self) -> Option<()> {
        let pool = self.export.env.pool();
        let waiting = async {
            let heads = pool.wait_for(HEADS_BYTES).await?;
            Ok::<_, Error>((heads, pool.wait_for(HEADS_BYTES).await?))
        };
        match first(waiting, self.writer.until(|| self.closed.get())).await {
            Ok(Ok((heads, spare))) => self.outbox.borrow_mut().equip(heads, spare),
            Ok(Err(_)) | Err(()) => {
                self.close();
                return None;
            }
        }
        self.begin_sweep();
        Some(())
    }

    /// Moves the replies that did not fit into the outbox there, as many as fit now.
    fn put_overflow(&self) {
        let (mut outbox, mut overflow) = (self.outbox.borrow_mut(), self.overflow.borrow_mut());
        while let Some(answer) = overflow.pop_front_if(|answer| outbox.fits(answer.len(), 1)) {
            self.put(&mut outbox, answer);
        }
    }

    /// Frees the memory of the replies in `batch`, which has been sent.
    pub fn sent(&self, batch: Batch) {
        self.held_bytes.set(self.held_bytes.get() - batch.held);
        self.outbox.borrow_mut().sent(batch);
        if self.outbox.borrow().is_empty() {
            self.was_idle.set(true);
        }
        self.reader.wake();
    }

    /// Records that the client sends no more requests. The writer ends when all begun requests have replies.
    pub fn end_of_requests(&self) {
        self.ended.set(true);
        self.waiting.wake();
        self.writer.wake();
    }

    /// Records that the writer of the connection has ended.
    pub fn end_of_answers(&self) {
        self.written.set(true);
        self.waiting.wake();
    }

    /// Closes the connection: it begins no more requests and sends no more replies. Requests in flight run to their
    /// end.
    pub fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        self.cancel.cancel();
        self.socket.shutdown();
        self.writer.wake();
    }

    /// Makes new requests of other connections wait for requests in flight of this connection that they overlap.
    pub fn fence(self: &Rc<Self>) {
        if self.has_requests() {
            let orphan: Rc<dyn Orphan> = self.clone();
            self.export.orphaned(Rc::downgrade(&orphan));
        }
    }

    /// Makes the connection begin no more requests; begun requests get their replies. Afterwards another server can
    /// take over the connection, unless its socket has state in this process (TLS).
    pub fn leave(&self) {
        self.leaving.set(self.socket.may_outlive());
        self.cancel.cancel();
    }

    /// Whether another server must take over the connection.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get() && !self.closed.get()
    }

    /// Ends the use of the socket by this server, because another server takes over the connection.
    pub fn let_go(&self) {
        self.closed.set(true);
    }
}

impl Orphan for Connection {
    fn has_requests(&self) -> bool {
        self.in_flight.get() > 0
    }

    fn is_about(&self, range: Option<ByteRange>) -> bool {
        let changes = |header: &RequestHeader| header.command.modifies().then(|| range_of(header));
        self.pending.borrow().any_change(range, changes)
    }
}

impl Answer {
    /// Returns the greatest length in bytes that the reply may have besides its payload.
    fn len(&self) -> usize {
        match &self.result {
            Err(_) => 8192,
            Ok(()) => 64,
        }
    }
}

/// Returns the number of payload bytes that an NBD request holds in memory until its reply is sent.
pub fn held_bytes(header: &RequestHeader, style: ReplyStyle) -> usize {
    match header.command {
        wire::nbd::Command::Read => header.length as usize,
        wire::nbd::Command::Cache => PREFETCH_BYTES as usize,
        _ => header.payload_bytes(style) as usize,
    }
}

impl Sink for Connection {
    fn done(&self, token: u64, request: Request, result: Result<()>) {
        self.end(token, Some(request.op), result);
    }

    fn share(&self) -> Option<&Share> {
        Some(&self.share)
    }
}
