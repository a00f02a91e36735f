//! The contract of a device, and the weaker power of hooks.

use std::any::Any;
use std::borrow::Cow;
use std::rc::Rc;

use crate::control::{Command, Reply, Resolved, VerbInfo};
use crate::env::LocalFuture;
use crate::{ByteRange, Info, Needs, Report, Request, Result};

/// One address space of bytes that answers requests.
///
/// A device behaves like a disk with a volatile write cache that survives the death of the process
/// and is lost only with power. Requests in flight together may be carried out and completed in any
/// order, but on every aligned 512 bytes as if one after the other, reads included. A write is
/// durable once a flush that was submitted after its completion has completed, or at its own
/// completion if FUA was set; a flush may join only one that has not been submitted. After a failed
/// flush every later flush fails, for every upper, until the device is replaced by name. After a
/// discard has completed, reads are stable: zeros or the old bytes, the same from every copy; a
/// device that cannot say so writes zeroes or refuses. The seam admits only requests that are in
/// range, aligned and permitted ([`crate::check`]). Every request completes exactly once.
///
/// `submit` is the whole of a kind: what stands before an await is the way down, what stands after
/// it the way up. The future is placed in a slot of the graph's pool and driven to its end; whoever
/// waits for it may give up, the work does not. Nothing that it awaits may hold a borrow of a
/// [`crate::Buf`] or a `RefCell`.
#[allow(async_fn_in_trait, reason = "one core drives each graph; its futures are not Send")]
pub trait Device: 'static {
    /// The facts; fixed while the device is part of a graph.
    fn info(&self) -> &Info;

    /// What one request may need of this device, for admission.
    fn needs(&self) -> Needs {
        Needs::LEAF
    }

    /// Carries out one request that [`crate::check`] accepted.
    ///
    /// # Errors
    /// Whatever the device or one below answers; the request's buffers come back all the same.
    async fn submit(&self, request: &mut Request) -> Result<()>;

    /// Returns where `range` lies in the lower devices: every place that holds a copy of it. It waits where it has to read
    /// that first.
    ///
    /// # Errors
    /// The error of a read below.
    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        let _ = range;
        Ok(Resolved::Unknown)
    }

    /// The verbs that it knows.
    fn verbs(&self) -> &'static [&'static VerbInfo] {
        &[]
    }

    /// Carries out a command of a verb that it lists; no other one is sent to it.
    ///
    /// A command takes no slot and is not in flight: a change of the graph does not wait for it. Dropping the future
    /// withdraws the command, carried out or not, unless its verb states otherwise.
    ///
    /// # Errors
    /// `Invalid` for arguments that it cannot take, and a reason of its own.
    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        Box::pin(std::future::ready(Err(command.unknown_to("the device"))))
    }

    /// Returns its state and its figures, at once and during changes too.
    fn report(&self) -> Report {
        Report::default()
    }

    /// Returns which lowers have all of its bytes now, by number. A device without lowers of this sort returns none.
    fn holders(&self) -> Vec<usize> {
        Vec::new()
    }

    /// What another device on the same disk can be opened with, while this one goes on; of most kinds nothing.
    fn share(&self) -> Handover {
        None
    }

    /// Another device is about to take its place, while clients wait, or the graph stops: ends what it does by
    /// itself, and is done when nothing of it is on its way below. No request comes after this. What it answers
    /// is given to its successor, if there is one that has its name and its kind ([`crate::StateStore::handed_over`]).
    fn close(&self) -> LocalFuture<Handover> {
        Box::pin(std::future::ready(None))
    }
}

/// What a device leaves to its successor in the same process: keys, and what else is on no disk.
pub type Handover = Option<Rc<dyn Any>>;

/// A place below a device that holds part of its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Below {
    /// Which lower, by its number.
    pub lower: usize,
    /// Where the part begins in the asked range's own address space.
    pub above: u64,
    /// Which bytes of the lower.
    pub range: ByteRange,
    /// A word on what happens to the bytes on the way: `mirrored`, `encrypted`.
    pub how: Cow<'static, str>,
}

/// Sees a request on its way down and its reply on its way up, and changes no bytes.
///
/// Violin's push and pop (section 2.2), without the power to issue I/O or to wait: whatever needs
/// these is a [`Device`].
pub trait Hooks: 'static {
    /// The request goes down. May not change what it reads or writes.
    fn push(&self, request: &Request) -> Push;

    /// The reply goes up; called only after [`Push::Watch`], with the word saved then.
    /// The hook may turn a success into an error, never an error into a success.
    fn pop(&self, saved: u64, request: &Request, result: &mut Result<()>);

    /// Returns its state and its figures, as [`Device::report`].
    fn report(&self) -> Report {
        Report::default()
    }
}

/// What a hook decides when a request goes down.
#[derive(Debug)]
pub enum Push {
    /// Goes on; the hook does not want to see the reply.
    Forward,
    /// Goes on; the reply comes by, with this word.
    Watch(u64),
    /// Goes no further: this is the reply.
    Done(Result<()>),
}
