//! The contract of a device, and the weaker power of hooks.

use std::any::Any;
use std::borrow::Cow;
use std::rc::Rc;

use crate::control::{Command, Reply, Resolved, VerbInfo};
use crate::env::LocalFuture;
use crate::{ByteRange, Info, Report, Request, Result};

/// One address space of bytes that answers requests.
///
/// A device behaves like a disk with a volatile write cache. The cache survives the death of the process and is lost
/// only with power. Requests that are in flight together may be carried out and completed in any order, but on every
/// aligned 512 bytes they take effect as if one after the other, reads included. A write is durable once a flush that
/// was submitted after the write's completion has completed, or at its own completion if FUA was set. A flush may
/// join another one only if that has not been submitted yet. After a failed flush every later flush fails, for every
/// upper, until the device is replaced by name. After a discard has completed, reads are stable: zeros or the old
/// bytes, the same from every copy. A device that cannot guarantee that writes zeroes or refuses. The device receives
/// only requests that are in range, aligned and permitted ([`crate::check()`]). Every request completes exactly once.
///
/// `submit` is the whole of a kind. The code before an await is the way down, the code after it the way up. The
/// future is placed in a slot of the graph's pool and driven to its end, even if its caller stops waiting. It must
/// not hold a borrow of a [`crate::Buf`] or a `RefCell` across an await.
#[allow(async_fn_in_trait, reason = "one core drives each graph; its futures are not Send")]
pub trait Device: 'static {
    /// Returns the facts about the device; fixed while it is part of a graph.
    fn info(&self) -> &Info;

    /// Carries out one request to the device that [`crate::check()`] accepted.
    ///
    /// # Errors
    /// The error of the device or of one below; the request's buffers are returned all the same.
    async fn submit(&self, request: &mut Request) -> Result<()>;

    /// Returns where `range` lies in the lowers of the device: every part of a lower that holds a copy. The call waits
    /// if the device must read the position first.
    ///
    /// # Errors
    /// The error of a read from a lower.
    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        let _ = range;
        Ok(Resolved::Unknown)
    }

    /// Returns the verbs of the commands that the device knows.
    fn verbs(&self) -> &'static [&'static VerbInfo] {
        &[]
    }

    /// Carries out a command whose verb is one of [`Device::verbs`].
    ///
    /// A command takes no slot and is not in flight: a change of the graph does not wait for it. Dropping the future
    /// withdraws the command, carried out or not, unless its verb states otherwise.
    ///
    /// # Errors
    /// `Invalid` for invalid arguments, and the device's own reasons.
    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        Box::pin(std::future::ready(Err(command.unknown_to("the device"))))
    }

    /// Returns the state and the figures of the device, at once and during changes too.
    fn report(&self) -> Report {
        Report::default()
    }

    /// Returns the numbers of the lowers each of which has all bytes of the device now; none if there are no such
    /// lowers.
    fn holders(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Returns the state with which another device on the same disk can be opened while this one goes on; most kinds
    /// return none.
    fn share(&self) -> Handover {
        None
    }

    /// Ends the device's own activity, and waits until no request of the device is in flight below. It is called before
    /// another device replaces this one while clients wait, or before the graph stops. No request comes after it.
    /// Returns the state for a successor of the same name and kind ([`crate::StateStore::handed_over`]).
    fn close(&self) -> LocalFuture<Handover> {
        Box::pin(std::future::ready(None))
    }
}

/// State that a device leaves to its successor in the same process: keys, and other state that is on no disk.
pub type Handover = Option<Rc<dyn Any>>;

/// A part of a lower that holds bytes of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Below {
    /// Number of the lower, in the order of the device's lowers.
    pub lower: usize,
    /// First byte of the part, in the address space of the device above.
    pub above: u64,
    /// Bytes of the part, in the address space of the lower.
    pub range: ByteRange,
    /// Word for the transformation of the bytes between the device and the lower: `mirrored`, `encrypted`.
    pub how: Cow<'static, str>,
}

/// Code that sees a request on its way down and its reply on its way up, and changes no bytes.
///
/// It corresponds to Violin's push and pop (section 2.2), without I/O and without waiting. Code that needs these is a
/// [`Device`].
pub trait Hooks: 'static {
    /// Sees a request on its way down, and decides how it goes on. The hook must not change the request.
    fn push(&self, request: &Request) -> Push;

    /// Sees the reply to a request for which [`Hooks::push`] returned [`Push::Watch`]; `saved` is the word given there.
    /// The hook may turn a success into an error, never an error into a success.
    fn pop(&self, saved: u64, request: &Request, result: &mut Result<()>);

    /// Returns the state and the figures of the hook, as [`Device::report`].
    fn report(&self) -> Report {
        Report::default()
    }
}

/// Decision of a hook about a request on its way down.
#[derive(Debug)]
pub enum Push {
    /// The request continues; the hook does not see the reply.
    Forward,
    /// The request continues; the hook sees the reply, and gets this number together with it.
    Watch(u64),
    /// The request ends at the hook, with this reply.
    Done(Result<()>),
}
