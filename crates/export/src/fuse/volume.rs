//! An export that is served as a file of a FUSE mount. Requests of the kernel become operations, and results become
//! replies.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::env::{Channel, stopped};
use block::{ByteRange, Error, ErrorKind, Memory, Notify, Op, Request, Result, bail};
use engine::{Share, Sink};
use wire::fuse::{
    Call, Facts, Init, MAX_WRITE_BYTES, MINOR_SPOKEN, Node, PAGE_BYTES, RESENT, Reply, VOLUME_NAME,
    Zeroing,
};

use super::inbox::Inbox;
use super::{GREETING, RESENT_MAX, ROUND};
use crate::nbd::{Export, Orphan};
use crate::pieces::{PIECE_BYTES, in_pieces};
use crate::tokens::Tokens;

/// ENOENT: the mount has no file of this name.
const NO_ENTRY: i32 = 2;
/// ENOTDIR, the reply to a directory operation on the file of the mount.
const NOT_A_DIRECTORY: i32 = 20;
/// EISDIR, the reply to a file operation on the root directory of the mount.
const IS_A_DIRECTORY: i32 = 21;
/// ENOSYS: the kernel does not send such a request again.
const NOT_IMPLEMENTED: i32 = 38;
/// EIO, the reply to a request that was in flight when several server processes ended.
const FAILED: i32 = 5;
/// EPROTO, the reply to a message of the kernel that cannot be parsed or has an unsupported FUSE version.
const NOT_UNDERSTOOD: i32 = 71;
/// EOPNOTSUPP, the reply to a fallocate request with an unsupported mode.
const UNSUPPORTED: i32 = 95;

/// An export that is served as the only file of a FUSE mount.
#[derive(Clone)]
pub struct Volume(Rc<Inner>);

/// The features of a FUSE mount on which the kernel and this server have agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Minor version of FUSE protocol 7 that is used on the mount. For a mount that was taken over, the newest
    /// version that this server can use.
    pub minor: u32,
    /// Whether the kernel can send requests without a reply again, to another process that took over the channel.
    pub has_resend: bool,
}

struct Inner {
    me: Weak<Self>,
    export: Rc<Export>,
    channel: Rc<dyn Channel>,
    facts: Cell<Facts>,
    max_bytes: u32,
    log: Box<dyn Fn(&str)>,
    pending: RefCell<Tokens<Asked>>,
    in_flight: Cell<usize>,
    /// The slots and buffers of the mount's requests in the engine.
    share: Rc<Share>,
    agreed: Cell<Option<Agreed>>,
    /// Whether the mount must end with this process, because a flush has failed.
    mortal: Cell<bool>,
    /// Whether the kernel sends no more requests.
    over: Cell<bool>,
    waiting: Notify,
}

/// The facts about a request in flight that its reply needs.
#[derive(Clone, Copy)]
struct Asked {
    unique: u64,
    /// Bytes of the export that the request changes; `None` if it changes none.
    changes: Option<ByteRange>,
}

impl Volume {
    /// Serves `export` through the channel of a FUSE mount. `log` is called with a line for each unexpected event.
    ///
    /// # Errors
    /// `Limit` if no more memory may be locked; `Unsupported` for a device that cannot be written in pages.
    pub fn serve(
        export: &Rc<Export>,
        channel: Rc<dyn Channel>,
        log: impl Fn(&str) + 'static,
    ) -> Result<Self> {
        let max_bytes = Self::most_bytes(export)?;
        let (volume, inbox) = Self::new(export, channel, max_bytes, None, log)?;
        volume.start(inbox);
        Ok(volume)
    }

    /// Takes over the mount of another process, which has served it until that process ended, and which agreed with
    /// the kernel on messages of at most `max_bytes`. Every disk of the export must be open: then no request of the
    /// other process is in flight any more.
    ///
    /// # Errors
    /// As [`Volume::serve`]; `Unsupported` if the export takes only messages shorter than `max_bytes`; otherwise the
    /// error of the kernel.
    pub fn resume(
        export: &Rc<Export>,
        channel: Rc<dyn Channel>,
        max_bytes: u32,
        log: impl Fn(&str) + 'static,
    ) -> Result<Self> {
        let most = Self::most_bytes(export)?;
        if max_bytes > most || max_bytes == 0 {
            bail!(
                Unsupported,
                "{}: the export takes transfers of up to {most} bytes, but its existing mount \
                 needs {max_bytes} bytes",
                export.name()
            );
        }
        let agreed = Agreed { minor: MINOR_SPOKEN, has_resend: true };
        // The buffers are allocated and locked before this, so that resent requests can be received in any case.
        let (volume, inbox) = Self::new(export, channel, max_bytes, Some(agreed), log)?;
        volume.0.channel.resend()?;
        volume.start(inbox);
        Ok(volume)
    }

    /// Returns the length in bytes of the longest payload of a message for `export`.
    fn most_bytes(export: &Export) -> Result<u32> {
        let info = export.info();
        let page = PAGE_BYTES as u32;
        let max_bytes = info.max_transfer.min(MAX_WRITE_BYTES) / page * page;
        if max_bytes == 0 || info.block_size > page {
            bail!(
                Unsupported,
                "{}: the export has blocks of {} bytes and transfers of up to {} bytes; a mount \
                 needs blocks of at most {page} bytes and transfers of {page} bytes or more",
                export.name(),
                info.block_size,
                info.max_transfer
            );
        }
        Ok(max_bytes)
    }

    fn new(
        export: &Rc<Export>,
        channel: Rc<dyn Channel>,
        max_bytes: u32,
        agreed: Option<Agreed>,
        log: impl Fn(&str) + 'static,
    ) -> Result<(Self, Inbox)> {
        let info = export.info();
        let inbox = Inbox::new(&export.env, &channel)?;
        let facts = Facts {
            size_bytes: info.data_bytes(),
            block_bytes: info.block_size.max(PAGE_BYTES as u32),
            read_only: info.read_only,
        };
        let inner = Rc::new_cyclic(|me| Inner {
            me: me.clone(),
            export: export.clone(),
            channel,
            facts: Cell::new(facts),
            max_bytes,
            log: Box::new(log),
            pending: RefCell::default(),
            in_flight: Cell::new(0),
            share: Rc::default(),
            agreed: Cell::new(agreed),
            mortal: Cell::new(false),
            over: Cell::new(false),
            waiting: Notify::default(),
        });
        Ok((Self(inner), inbox))
    }

    fn start(&self, inbox: Inbox) {
        self.0.export.env.spawn("a mounted volume", self.0.clone().run(inbox));
    }

    /// Reports the present size of the export from now on, when the kernel asks for the attributes of the file. The
    /// kernel asks when a program does.
    pub fn resized(&self) {
        let size_bytes = self.0.export.info().data_bytes();
        self.0.facts.set(Facts { size_bytes, ..self.0.facts.get() });
    }

    /// Waits for the kernel's first message, and returns the features on which the kernel and this server have
    /// agreed.
    ///
    /// # Errors
    /// `TimedOut` if the kernel sends no first message, `Unsupported` if the kernel's protocol is too old.
    pub async fn agreed(&self) -> Result<Agreed> {
        let inner = &self.0;
        let greeted = inner.waiting.until(|| inner.agreed.get().is_some() || inner.over.get());
        let Some(()) = inner.export.env.within(GREETING, greeted).await else {
            bail!(TimedOut, "the kernel did not send FUSE_INIT within {GREETING:?}");
        };
        inner.agreed.get().ok_or_else(|| {
            let why = "the kernel's FUSE is older than version 7.28 (Linux 4.20)";
            Error::new(ErrorKind::Unsupported, why)
        })
    }

    /// Waits until the kernel sends no more requests and every begun request has ended.
    pub async fn ended(&self) {
        let inner = &self.0;
        inner.waiting.until(|| inner.over.get() && inner.in_flight.get() == 0).await;
    }

    /// Returns the export that the mount shows.
    pub fn export(&self) -> &Rc<Export> {
        &self.0.export
    }

    /// Returns the length of the longest read or write that the server has announced to the kernel, in bytes.
    pub fn max_bytes(&self) -> u32 {
        self.0.max_bytes
    }

    /// Whether another process could take over the mount: the kernel can resend requests, the mount has not ended, and
    /// no flush has failed.
    pub fn may_go_on(&self) -> bool {
        let inner = &self.0;
        let has_resend = inner.agreed.get().is_some_and(|agreed| agreed.has_resend);
        has_resend && !inner.over.get() && !inner.mortal.get()
    }

    /// Returns the channel of the mount.
    pub fn channel(&self) -> &dyn Channel {
        &*self.0.channel
    }

    /// Returns a description of the features that the kernel does not support on the channel; `None` if it supports
    /// all.
    pub fn lacks(&self) -> Option<&str> {
        self.0.channel.lacks()
    }
}

impl Inner {
    /// Receives messages of the kernel until the channel ends.
    async fn run(self: Rc<Self>, inbox: Inbox) {
        if let Err(error) = self.take_all(&inbox).await
            && error.kind() != ErrorKind::Stopped
        {
            (self.log)(&format!("{}: {error}", self.export.name()));
            // No messages are taken any more, and no program must wait for a reply.
            self.log_failure(self.channel.close());
        }
        self.over.set(true);
        if self.has_requests() {
            let orphan: Rc<dyn Orphan> = self.clone();
            self.export.orphaned(Rc::downgrade(&orphan));
        }
        self.waiting.wake();
        self.waiting.until(|| self.in_flight.get() == 0).await;
    }

    async fn take_all(&self, inbox: &Inbox) -> Result<()> {
        let mut taken = 0;
        loop {
            match inbox.next()? {
                Some(came) => self.message(inbox, came).await?,
                None => {
                    self.channel.ready().await.result?;
                    taken = 0;
                }
            }
            taken += 1;
            if taken == ROUND {
                self.export.env.give_way().await;
                taken = 0;
            }
        }
    }

    async fn message(&self, inbox: &Inbox, came: usize) -> Result<()> {
        // An immediate reply is sent while the message is still in the inbox.
        let next = inbox.read(came, |request| match request.is_resent() {
            true => self.answer_again(&request),
            false => self.answer(&request),
        });
        match next {
            Ok(Next::Answered) => Ok(()),
            Ok(Next::Begin(unique, op)) => {
                self.begin(unique, op).await;
                Ok(())
            }
            Ok(Next::Read(unique, range)) => {
                let into = Memory::Client.buf(self.export.env.pool(), range.len() as usize).await?;
                self.begin(unique, Op::read(range, into)).await;
                Ok(())
            }
            Ok(Next::Write(unique, range)) => {
                let data = inbox.payload(range.len() as usize).await?;
                self.begin(unique, Op::write(range, data)).await;
                Ok(())
            }
            Err(malformed) => {
                if let Some(unique) = malformed.unique {
                    self.send(&Reply::error(unique, NOT_UNDERSTOOD));
                }
                Err(Error::new(ErrorKind::Invalid, malformed.to_string()))
            }
        }
    }

    /// Carries out a resent request as [`Inner::answer`] does. If several server processes ended while the request
    /// was in flight, the request fails instead.
    fn answer_again(&self, request: &wire::fuse::Request<'_>) -> Next {
        let next = self.answer(request);
        if matches!(next, Next::Answered) {
            return next;
        }
        let number = request.unique & !RESENT;
        let count = self.channel.came_again(number).unwrap_or_else(|error| {
            // It is carried out all the same: most requests do no harm.
            (self.log)(&format!("{}: {error}", self.export.name()));
            1
        });
        if count < RESENT_MAX {
            return next;
        }
        (self.log)(&format!(
            "{}: request {number} ({:?}) was in flight when the server ended, {count} times in a \
             row; the request fails with an I/O error",
            self.export.name(),
            request.call
        ));
        self.refuse(request.unique, FAILED)
    }

    /// Replies to a request that needs no device. For any other request returns the operation to begin.
    fn answer(&self, request: &wire::fuse::Request<'_>) -> Next {
        let unique = request.unique;
        let reply = match (request.call, request.node) {
            (Call::Init(init), _) => self.greet(unique, &init),
            (Call::Unanswered, _) => return Next::Answered,
            (Call::Destroy | Call::Agreed, _) => Reply::done(unique),
            (Call::Statfs, _) => Reply::statfs(unique, &self.facts.get()),
            (_, None) => Reply::error(unique, NO_ENTRY),
            (Call::Lookup(name), Some(Node::Root)) if name == VOLUME_NAME.as_bytes() => {
                Reply::entry(unique, &self.facts.get())
            }
            (Call::Lookup(_), Some(Node::Root)) => Reply::error(unique, NO_ENTRY),
            (Call::Getattr, Some(node)) => Reply::attributes(unique, node, &self.facts.get()),
            (Call::Open { directory: true }, Some(Node::Root)) => Reply::opened(unique, true),
            (Call::Open { directory: false }, Some(Node::Volume)) => Reply::opened(unique, false),
            (Call::Readdir { offset, size }, Some(Node::Root)) => {
                Reply::names(unique, offset, size)
            }
            (Call::Read { offset, size }, Some(Node::Volume)) => {
                return self.read(unique, offset, size);
            }
            (Call::Write { offset, size }, Some(Node::Volume)) => {
                return self.write(unique, offset, size);
            }
            (Call::Fsync, Some(Node::Volume)) => return Next::Begin(unique, Op::Flush),
            (Call::Fallocate { offset, length, mode }, Some(Node::Volume)) => {
                return self.zero(unique, offset, length, mode);
            }
            (Call::Unknown(_), _) => Reply::error(unique, NOT_IMPLEMENTED),
            (_, Some(Node::Root)) => Reply::error(unique, IS_A_DIRECTORY),
            (_, Some(Node::Volume)) => Reply::error(unique, NOT_A_DIRECTORY),
        };
        self.send(&reply);
        Next::Answered
    }

    fn greet(&self, unique: u64, init: &Init) -> Reply {
        let Some(reply) = Reply::init(unique, init, self.max_bytes) else {
            return Reply::error(unique, NOT_UNDERSTOOD);
        };
        self.agreed.set(Some(Agreed { minor: init.minor, has_resend: init.has_resend }));
        self.waiting.wake();
        reply
    }

    /// Returns the operation for a read, shortened to the end of the volume.
    fn read(&self, unique: u64, offset: u64, size: u32) -> Next {
        let end = self.facts.get().size_bytes.min(offset.saturating_add(u64::from(size)));
        match ByteRange::between(offset, end) {
            _ if size > self.max_bytes => self.refuse(unique, ErrorKind::Invalid.errno()),
            Some(range) => Next::Read(unique, range),
            None => {
                self.send(&Reply::read(unique, 0));
                Next::Answered
            }
        }
    }

    fn write(&self, unique: u64, offset: u64, size: u32) -> Next {
        match ByteRange::new(offset, u64::from(size)) {
            Some(range) if size <= self.max_bytes => Next::Write(unique, range),
            _ => self.refuse(unique, ErrorKind::Invalid.errno()),
        }
    }

    /// Returns the operation that zeroes a range. The kernel sends the same request for a discard and for a write of
    /// zeroes, so the bytes must read as zeros afterwards. A device that would write zeros as data does not get the
    /// operation.
    fn zero(&self, unique: u64, offset: u64, length: u64, mode: Option<Zeroing>) -> Next {
        if !self.export.info().native_zeroes {
            return self.refuse(unique, NOT_IMPLEMENTED);
        }
        let Some(mode) = mode else { return self.refuse(unique, UNSUPPORTED) };
        let unmap = mode == Zeroing::Punch;
        match ByteRange::new(offset, length) {
            Some(range) => Next::Begin(unique, Op::WriteZeroes { range, unmap, fua: false }),
            None => self.refuse(unique, ErrorKind::Invalid.errno()),
        }
    }

    fn refuse(&self, unique: u64, errno: i32) -> Next {
        self.send(&Reply::error(unique, errno));
        Next::Answered
    }

    /// Begins an operation of a request of the kernel. If requests of closed connections overlap it, waits until they
    /// have ended.
    async fn begin(&self, unique: u64, op: Op) {
        let export = &self.export;
        if export.is_fenced(op.range()) {
            export.unfenced(op.range()).await;
        }
        let changes = op.range().filter(|_| op.writes());
        let token = self.note(Asked { unique, changes });
        let me = self.me.upgrade().expect("the volume lives while its requests run");
        if let Op::WriteZeroes { range, unmap, .. } = op
            && range.len() > PIECE_BYTES
        {
            return export.env.spawn("a long discard", me.zero_in_pieces(token, range, unmap));
        }
        export.engine.admit(&export.portal, op, &me, token as u64).await;
    }

    /// Zeroes a long range in pieces. No further piece begins once the channel has ended, by an unmount or by a
    /// hand-over: after a hand-over the kernel sends requests without a reply again, to the next server.
    async fn zero_in_pieces(self: Rc<Self>, token: usize, whole: ByteRange, unmap: bool) {
        let zeroes = |range| Op::WriteZeroes { range, unmap, fua: false };
        let goes_on = || !self.over.get();
        let result =
            in_pieces(&self.export, &self.share, whole, PIECE_BYTES, goes_on, zeroes).await;
        self.end(token, &zeroes(whole), result.unwrap_or_else(|| Err(stopped())));
    }

    fn note(&self, asked: Asked) -> usize {
        self.in_flight.set(self.in_flight.get() + 1);
        self.pending.borrow_mut().add(asked)
    }

    /// Sends the reply to the request with this token, and removes the request.
    fn end(&self, token: usize, op: &Op, result: Result<()>) {
        let Asked { unique, .. } = self.pending.borrow_mut().take(token);
        self.in_flight.set(self.in_flight.get() - 1);
        if self.over.get() {
            self.export.wake_fenced();
            if self.in_flight.get() == 0 {
                self.waiting.wake();
            }
            return;
        }
        match (op, result) {
            (_, Err(error)) => {
                if matches!(op, Op::Flush) {
                    self.end_with_process();
                }
                self.send(&Reply::error(unique, error.errno()));
            }
            (Op::Read { into, .. }, Ok(())) => {
                let head = Reply::read(unique, into.len() as u32);
                self.sent(self.channel.send(head.bytes(), Some(into)));
            }
            (Op::Write { data, .. }, Ok(())) => {
                self.send(&Reply::written(unique, data.len() as u32));
            }
            (_, Ok(())) => self.send(&Reply::done(unique)),
        }
    }

    /// Makes the mount end with this process, instead of passing it to the next one. After a failed flush every later
    /// flush must fail, and the next process would not know of the failure.
    fn end_with_process(&self) {
        self.mortal.set(true);
        self.log_failure(self.channel.fdstore_remove());
    }

    fn log_failure(&self, result: Result<()>) {
        if let Err(error) = result {
            (self.log)(&format!("{}: {error}", self.export.name()));
        }
    }

    fn send(&self, reply: &Reply) {
        self.sent(self.channel.send(reply.bytes(), None));
    }

    fn sent(&self, sent: Result<()>) {
        match sent {
            // No program waits for this reply any more, or the mount has ended.
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stopped) => {
                (self.log)(&format!("{}: the kernel refused a reply: {error}", self.export.name()));
            }
            _ => {}
        }
    }
}

/// The next step of the server after a message of the kernel.
enum Next {
    Answered,
    Begin(u64, Op),
    Read(u64, ByteRange),
    Write(u64, ByteRange),
}

impl Sink for Inner {
    fn done(&self, token: u64, request: Request, result: Result<()>) {
        self.end(token as usize, &request.op, result);
    }

    fn share(&self) -> Option<&Share> {
        Some(&self.share)
    }
}

impl Orphan for Inner {
    fn has_requests(&self) -> bool {
        self.in_flight.get() > 0
    }

    fn is_about(&self, range: Option<ByteRange>) -> bool {
        self.pending.borrow().any_change(range, |asked| asked.changes)
    }
}
