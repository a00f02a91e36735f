//! The disk: requests become commands, and their answers hold, whatever becomes of the connection.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::{
    Buf, ByteRange, Control, Device, EXTENTS_MAX, Env, Extent, Handled, Health, Info, Mode,
    Op, RangeLock, Report, Request, Result, State, push_extent,
};
use wire::nbd::{Command, CommandFlags};

use super::client::Client;
use super::link::{Link, Session};
use super::unflushed::Change;

/// What is not flushed for this long, and at most twice as long, is flushed unasked: buffers are not
/// kept for ever.
const LINGER: Duration = Duration::from_secs(10);

/// The longest range of a command without payload where its length has 32 bits.
const COMPACT_BYTES: u64 = 1 << 30;

/// An export of another server.
pub(super) struct Remote(Rc<Inner>);

struct Inner {
    me: Weak<Self>,
    env: Env,
    info: Info,
    link: Rc<Link>,
    /// Changes that overlap go one after the other while they may have to be sent again: their order
    /// must be known.
    order: RangeLock,
    /// Whether a task looks after the log.
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

/// What became of one try.
enum Tried<T> {
    Answered(T),
    /// The connection was lost before.
    Again,
}

impl Inner {
    /// Sends a command until it is answered; `answered` is called before anything else happens.
    async fn ask<T>(
        &self,
        change: &Change,
        answered: impl FnOnce(Option<Buf>) -> T,
    ) -> Result<T> {
        let changes = matches!(
            change.command,
            Command::Write | Command::WriteZeroes | Command::Trim
        );
        let mut open = None;
        loop {
            let (session, client) = self.link.client(open.is_some()).await?;
            if changes && open.is_none() {
                open = Some(self.link.open_change());
            }
            let Change { command, flags, range, data } = change.clone();
            let (start, len) = match command {
                Command::Flush => (0, 0),
                _ => (range.start(), range.len()),
            };
            let ticket = client.start(command, flags, start, len, data);
            let Some(outcome) = self.link.deadline.guard(ticket).await else {
                return Err(self.link.out(self.link.overdue()));
            };
            match self.judge(session, &client, outcome.result)? {
                Tried::Answered(()) => return Ok(answered(outcome.buf)),
                Tried::Again => {}
            }
        }
    }

    /// Whether an answer counts. One that came just before the connection was lost does not: what
    /// was replayed since then did not hold it.
    fn judge<T>(&self, session: Session, client: &Client, result: Result<T>) -> Result<Tried<()>> {
        if let (Err(_), Some(gone)) = (&result, client.gone()) {
            self.link.lost(session, &gone);
            return Ok(Tried::Again);
        }
        match result {
            _ if !self.link.is_current(session) => Ok(Tried::Again),
            Ok(_) => Ok(Tried::Answered(())),
            Err(error) => {
                self.errors.set(self.errors.get() + 1);
                Err(error.at(self.link.name()))
            }
        }
    }

    async fn read(&self, range: ByteRange, into: &mut Buf) -> Result<()> {
        let data = Some(into.clone());
        let read = Change { command: Command::Read, flags: CommandFlags::NONE, range, data };
        if let Some(buf) = self.ask(&read, |buf| buf).await? {
            *into = buf;
        }
        Ok(())
    }

    /// FUA where the server knows it, a flush after the change where it does not.
    async fn change(&self, mut change: Change, fua: bool) -> Result<()> {
        let native = fua && self.info.native_fua;
        if native {
            change.flags |= CommandFlags::FUA;
        }
        let changed = self.carry_out(change, native || !self.info.volatile_cache).await;
        match changed {
            Ok(()) if fua && !native => self.flush().await,
            Err(error) if fua => {
                // What it was to keep may be lost.
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
            self.ask(&piece, |_| room.answered(piece.clone(), durable)).await?;
            self.look_after_log();
        }
        Ok(())
    }

    /// A change as commands that the server can be told.
    fn pieces(&self, change: &Change) -> impl Iterator<Item = Change> + use<> {
        let whole = change.range;
        let most = if change.data.is_none() { COMPACT_BYTES } else { whole.len() };
        let change = change.clone();
        (0..whole.len().div_ceil(most)).map(move |n| {
            let start = whole.start() + n * most;
            let range = ByteRange::between(start, whole.end().min(start + most));
            Change { range: range.expect("there is something left"), ..change.clone() }
        })
    }

    async fn flush(&self) -> Result<()> {
        if !self.info.volatile_cache {
            return Ok(());
        }
        self.link.flush_fault.check()?;
        let (command, flags) = (Command::Flush, CommandFlags::NONE);
        let range = ByteRange::new(0, 1).expect("a flush is about all; this is not sent");
        let flush = Change { command, flags, range, data: None };
        let flushed = self.flush_from(&flush).await;
        if let Err(error) = &flushed {
            self.link.flush_failed(error);
        }
        // More may have been forgotten meanwhile.
        flushed.and_then(|()| self.link.flush_fault.check())
    }

    /// Covers what is answered when it is sent, or sent again: by then all that was answered before
    /// the connection was lost has been replayed.
    async fn flush_from(&self, flush: &Change) -> Result<()> {
        let stamp = self.link.log.stamp();
        self.ask(flush, |_| self.link.log.flushed(stamp)).await
    }

    /// Sees to it that the log is emptied in time.
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
                    // That it failed is noted; then nothing is kept any more.
                    let _ = inner.flush().await;
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
            let Some(answer) = self.link.deadline.guard(asked).await else {
                return Err(self.link.out(self.link.overdue()));
            };
            if let (Err(_), Some(gone)) = (&answer, client.gone()) {
                self.link.lost(session, &gone);
                continue;
            }
            return Ok(within(range.len(), &answer.unwrap_or_default()));
        }
    }
}

/// The extents that lie inside the first `len` bytes; data where the server says nothing.
fn within(len: u64, told: &[Extent]) -> Vec<Extent> {
    let (mut all, mut left) = (Vec::new(), len);
    for extent in told.iter().take(EXTENTS_MAX).filter(|extent| extent.len > 0) {
        if left == 0 {
            break;
        }
        let here = extent.len.min(left);
        push_extent(&mut all, here, extent.state);
        left -= here;
    }
    if all.is_empty() {
        push_extent(&mut all, len, State::Data);
    }
    all
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
            Op::Write { range, data, fua } => {
                inner.change(change(Command::Write, none, range, Some(data)), *fua).await
            }
            Op::WriteZeroes { range, unmap, fua } => {
                let flags = if *unmap { none } else { CommandFlags::NO_HOLE };
                inner.change(change(Command::WriteZeroes, flags, range, None), *fua).await
            }
            Op::Discard { range, fua } => {
                inner.change(change(Command::Trim, none, range, None), *fua).await
            }
            Op::Flush => inner.flush().await,
            Op::Status { range, extents } => {
                *extents = inner.status(*range).await?;
                Ok(())
            }
        }
    }

    fn control(&self, control: &Control) -> Handled {
        let Control::Report = control else { return Handled::Pass };
        let link = &self.0.link;
        let (health, summary) = match (link.story(), link.flush_fault.error()) {
            (Some((false, words)), _) => (Health::Failed, words),
            (_, Some(error)) => (Health::Failed, error.words().to_owned()),
            (Some((true, words)), None) => (Health::Degraded, words),
            (None, None) => (Health::Ok, String::new()),
        };
        let counters = vec![
            ("errors", self.0.errors.get()),
            ("reconnects", link.reconnects.get()),
            ("replayed", link.replayed.get()),
            ("unflushed_bytes", link.log.kept_bytes()),
        ];
        Handled::Done(Ok(Report { health, summary, counters, ..Report::default() }))
    }
}
