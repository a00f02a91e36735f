//! The device of an NBD disk. It sends requests to the server as NBD commands, so that their effects last even if the
//! connection is lost.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::env::{LocalFuture, Outcome, Ticket};
use block::seeded::{self, Bug};
use block::{
    Buf, ByteRange, Device, Env, Extent, Handover, Health, Info, Mode, Op, RangeLock, Report,
    Request, Result, clip_extents,
};
use wire::nbd::{Command, CommandFlags};

use super::client::Client;
use super::link::{Link, Session};
use super::unflushed::Change;

/// Time after which unflushed changes are flushed without a request of a client, so that the log does not hold their
/// buffers for ever. A change may wait for up to twice this time.
const LINGER: Duration = Duration::from_secs(10);

/// Maximum length in bytes of a command without payload, since the length has 32 bits in a compact request header.
const COMPACT_BYTES: u64 = 1 << 30;

/// The device of an NBD disk: an export of another server.
pub(super) struct Remote(Rc<Inner>);

struct Inner {
    me: Weak<Self>,
    env: Env,
    info: Info,
    link: Rc<Link>,
    /// Lock that sends overlapping changes one after the other, if changes may have to be sent again: then their order
    /// must be known.
    order: RangeLock,
    /// Whether the task runs that flushes the log of unflushed changes, at the latest after twice [`LINGER`].
    flusher: Cell<bool>,
    errors: Cell<u64>,
}

impl Remote {
    pub fn new(env: &Env, info: Info, link: Rc<Link>) -> Self {
        Self(Rc::new_cyclic(|me| Inner {
            me: me.clone(),
            env: env.clone(),
            info,
            link,
            order: RangeLock::new(),
            flusher: Cell::new(false),
            errors: Cell::new(0),
        }))
    }
}

impl Inner {
    /// Sends a read or a change to the server, and again in each new session, until the server completes it.
    async fn exchange(&self, change: &Change) -> Result<Outcome> {
        let mut open = None;
        loop {
            let (session, client) = self.link.client(open.is_some()).await?;
            let Change { command, flags, range, data } = change.clone();
            if command.modifies() {
                open.get_or_insert_with(|| self.link.open_change());
            }
            let ticket = client.start(command, flags, range.start(), range.len(), data);
            if let Some(outcome) = self.answer(session, &client, ticket).await? {
                return Ok(outcome);
            }
        }
    }

    /// Waits for the outcome of a command that was sent in `session`. Returns `None` if the session has ended, so that
    /// the command must be sent again. A reply that arrived just before the end does not count, because the replay does
    /// not include the command.
    async fn answer(
        &self,
        session: Session,
        client: &Client,
        ticket: Ticket,
    ) -> Result<Option<Outcome>> {
        let Ok(outcome) = self.link.deadline.guard(ticket).await else {
            return match self.link.is_current(session) {
                true => Err(self.link.out(self.link.overdue())),
                // The next session does not wait for the end of this one either.
                false => Ok(None),
            };
        };
        if let (Err(_), Some(gone)) = (&outcome.result, client.gone()) {
            self.link.lost(session, &gone);
        }
        if !self.link.is_current(session) {
            return Ok(None);
        }
        if let Err(error) = outcome.result {
            self.errors.set(self.errors.get() + 1);
            return Err(error.at(self.link.name()));
        }
        Ok(Some(outcome))
    }

    async fn read(&self, range: ByteRange, into: &mut Buf) -> Result<()> {
        let (command, flags) = (Command::Read, CommandFlags::NONE);
        let outcome =
            self.exchange(&Change { command, flags, range, data: Some(into.clone()) }).await?;
        *into = outcome.buf.expect("a read returns its buffer");
        Ok(())
    }

    /// Carries out a change. With `fua`, the change is durable when it is completed: through FUA if the server supports
    /// it, else through a flush after the change.
    async fn change(&self, mut change: Change, fua: bool) -> Result<()> {
        let native = fua && self.info.native_fua;
        if native {
            change.flags |= CommandFlags::FUA;
        }
        let changed = self.carry_out(change, native || !self.info.volatile_cache).await;
        match changed {
            Ok(()) if fua && !native => self.flush().await,
            Err(error) if fua => {
                // This change should have made earlier changes durable too, and they may be lost.
                self.link.flush_failed(&error);
                Err(error)
            }
            changed => changed,
        }
    }

    async fn carry_out(&self, change: Change, durable: bool) -> Result<()> {
        let _alone = match self.link.log.keeps() {
            true => Some(self.order.lock(change.range, Mode::Exclusive).await),
            false => None,
        };
        for piece in self.pieces(&change) {
            let room = self.link.log.room(&piece).await;
            match self.exchange(&piece).await {
                Ok(_) => room.answered(piece, durable),
                Err(error) => {
                    room.refused(piece.range);
                    return Err(error);
                }
            }
            self.look_after_log();
        }
        Ok(())
    }

    /// Returns the NBD command for a discard. A trim that is sent again may take effect where the first one had none,
    /// after a client has read the old bytes. A write of zeroes has the same effect each time.
    fn discarding(&self) -> Command {
        if self.link.log.keeps() { Command::WriteZeroes } else { Command::Trim }
    }

    /// Splits a change into parts that one NBD command can carry.
    fn pieces(&self, change: &Change) -> impl Iterator<Item = Change> + use<> {
        let whole = change.range;
        let most = if change.data.is_none() { COMPACT_BYTES } else { whole.len() };
        let change = change.clone();
        (0..whole.len().div_ceil(most)).map(move |n| {
            let start = whole.start() + n * most;
            let range = ByteRange::between(start, whole.end().min(start + most));
            Change { range: range.expect("bytes of the change are left"), ..change.clone() }
        })
    }

    async fn flush(&self) -> Result<()> {
        if !self.info.volatile_cache {
            return Ok(());
        }
        let fault = &self.link.flush_fault;
        let flush =
            async { self.flush_server().await.inspect_err(|error| self.link.flush_failed(error)) };
        fault.flush(self.link.name(), flush).await?;
        // The log may have lost a change meanwhile.
        fault.check()
    }

    /// Flushes all changes that the server completed before this call. If the session ends, the flush is sent again in
    /// the next one, after the replay of these changes.
    async fn flush_server(&self) -> Result<()> {
        let stamp = self.link.log.stamp();
        loop {
            let (session, client) = self.link.client(false).await?;
            let ticket = client.start(Command::Flush, CommandFlags::NONE, 0, 0, None);
            if self.answer(session, &client, ticket).await?.is_some() {
                let is_late = seeded::on(Bug::FlushJoinedLate);
                self.link.log.flushed(if is_late { self.link.log.stamp() } else { stamp });
                return Ok(());
            }
        }
    }

    /// Spawns the task that flushes the log of unflushed changes after [`LINGER`] or if its room is short, unless the
    /// task runs or the log is empty.
    fn look_after_log(&self) {
        if self.link.log.oldest().is_none() || self.flusher.replace(true) {
            return;
        }
        let weak = self.me.clone();
        let (env, log) = (self.env.clone(), self.link.log.clone());
        self.env.spawn("an NBD disk's log", async move {
            while let Some(oldest) = log.oldest() {
                let pressed = env.within(LINGER, log.pressed()).await.is_some();
                let Some(inner) = weak.upgrade() else { return };
                if pressed || log.oldest() == Some(oldest) {
                    // A failed flush is recorded in `flush_fault`; after that, the log stays empty.
                    let _ = inner.flush().await;
                    if log.oldest() == Some(oldest) {
                        // Another flush would not shorten the log now. The next change spawns the task again.
                        break;
                    }
                }
            }
            if let Some(inner) = weak.upgrade() {
                inner.flusher.set(false);
            }
        });
    }

    async fn status(&self, range: ByteRange) -> Result<Vec<Extent>> {
        let most = COMPACT_BYTES.min(range.len());
        loop {
            let (session, client) = self.link.client(false).await?;
            let asked = Box::pin(client.status(range.start(), most));
            let Ok(answer) = self.link.deadline.guard(asked).await else {
                if !self.link.is_current(session) {
                    continue;
                }
                return Err(self.link.out(self.link.overdue()));
            };
            if let (Err(_), Some(gone)) = (&answer, client.gone()) {
                self.link.lost(session, &gone);
                continue;
            }
            return Ok(clip_extents(&answer.unwrap_or_default(), 0, range.len()));
        }
    }
}

impl Device for Remote {
    fn info(&self) -> &Info {
        &self.0.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let (inner, none) = (&*self.0, CommandFlags::NONE);
        let change = |command, flags, range: &ByteRange, data: Option<&Buf>| Change {
            command,
            flags,
            range: *range,
            data: data.cloned(),
        };
        match &mut request.op {
            Op::Read { range, into, .. } => inner.read(*range, into).await,
            Op::Write { range, data, fua, .. } => {
                inner.change(change(Command::Write, none, range, Some(data)), *fua).await
            }
            Op::WriteZeroes { range, unmap, fua } => {
                let flags = if *unmap { none } else { CommandFlags::NO_HOLE };
                inner.change(change(Command::WriteZeroes, flags, range, None), *fua).await
            }
            Op::Discard { range, fua } => {
                inner.change(change(inner.discarding(), none, range, None), *fua).await
            }
            Op::Flush => inner.flush().await,
            Op::Status { range, extents } => {
                *extents = inner.status(*range).await?;
                Ok(())
            }
        }
    }

    fn close(&self) -> LocalFuture<Handover> {
        self.0.link.log.leave_ring();
        Box::pin(std::future::ready(None))
    }

    fn report(&self) -> Report {
        let link = &self.0.link;
        let (health, summary) = match (link.state_summary(), link.flush_fault.error()) {
            (Some((false, words)), _) => (Health::Failed, words),
            (_, Some(error)) => (Health::Failed, error.message().to_owned()),
            (Some((true, words)), None) => (Health::Degraded, words),
            (None, None) => (Health::Ok, String::new()),
        };
        let counters = vec![
            ("errors", self.0.errors.get()),
            ("reconnects", link.reconnects.get()),
            ("replayed", link.replayed.get()),
            ("unflushed_bytes", link.log.kept_bytes()),
        ];
        Report { health, summary, counters, ..Report::default() }
    }
}
