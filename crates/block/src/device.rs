//! The contract of a device, and that of a hook, which may do less.

use std::any::Any;
use std::borrow::Cow;
use std::rc::Rc;

use crate::control::{Command, Reply, Resolved, VerbInfo};
use crate::env::LocalFuture;
use crate::{ByteRange, Info, Report, Request, Result, VolumesVisitor};

/// One address space of bytes that answers requests.
///
/// A device behaves like a disk with a volatile write cache. The cache survives the end of the process and is lost
/// only at a power cut. Requests that are in flight together may be carried out and completed in any order, but on
/// every aligned 512 bytes they take effect as if one after the other, reads included. A write is durable once a
/// flush that was submitted after the write's completion has completed, or at its own completion if FUA was set. A
/// flush may be completed together with an earlier flush only if the earlier one has not been submitted yet. After a
/// failed flush every later flush fails, for every upper, until the device is replaced by name. After a discard has
/// completed, reads are stable: zeros or the old bytes, the same from every copy. A device that cannot guarantee this
/// writes zeros, or refuses the discard. A read may avoid copies, and a write may restore some; their numbers are those
/// of [`crate::Copies`]. The device receives only requests that are in range, aligned and permitted
/// ([`crate::check()`]). Every request completes exactly once.
///
/// A kind consists of its `submit`: the code before an await runs before the requests to lowers, and the code after
/// it when they have completed. The engine puts the future into a slot and polls it until it ends, even if the caller
/// stops waiting. The future must not hold a borrow of a [`crate::Buf`] or a `RefCell` across an await.
#[allow(async_fn_in_trait, reason = "one core drives each graph; its futures are not Send")]
pub trait Device: 'static {
    /// Returns the facts about the device. They do not change while the device is part of a graph.
    fn info(&self) -> &Info;

    /// Carries out one request that [`crate::check()`] has accepted.
    ///
    /// # Errors
    /// The error of the device or of a lower. The request returns its buffers even after an error.
    async fn submit(&self, request: &mut Request) -> Result<()>;

    /// Returns the parts of the lowers in which `range` lies, for every copy. The call waits if the device must first
    /// read the position from a lower.
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

    /// Carries out a command with one of [`Device::verbs`].
    ///
    /// A command takes no slot and is not in flight: a live change of the graph does not wait for it. Dropping the
    /// future ends the command, even if it is partly carried out, unless its verb states otherwise.
    ///
    /// # Errors
    /// `Invalid` for invalid arguments, and other errors of the device.
    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        Box::pin(std::future::ready(Err(command.unknown_to("the device"))))
    }

    /// Passes the volumes that the device holds to `visitor`, and returns its result; `None` if the device holds no
    /// volumes. A device that implements [`crate::Volumes`] itself returns `Some(visitor.visit(self))`.
    fn volumes<V: VolumesVisitor>(self: Rc<Self>, visitor: V) -> Option<V::Output> {
        let _ = visitor;
        None
    }

    /// Returns the state and the counters of the device, without waiting; also during a live change.
    fn report(&self) -> Report {
        Report::default()
    }

    /// Returns the number of each lower that alone has all bytes of the device now; empty if no lower has.
    fn holders(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Returns the state from which a second device on the same disks can be opened while this device serves
    /// requests. Most kinds return none.
    fn share(&self) -> Handover {
        None
    }

    /// Ends the background work of the device, and waits until the device has no request to a lower in flight. The
    /// graph calls it before another device replaces this one while clients wait, or before the graph stops. No
    /// request is submitted after it. Returns the state for the next device of the same name and kind
    /// ([`crate::StateStore::handed_over`]).
    fn close(&self) -> LocalFuture<Handover> {
        Box::pin(std::future::ready(None))
    }
}

/// State that a closed device hands over to the next device of the same name in the same process: keys, and other
/// state that is on no disk.
pub type Handover = Option<Rc<dyn Any>>;

/// A part of a lower that holds bytes of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Below {
    /// Number of the lower among the lowers of the device.
    pub lower: usize,
    /// First byte of the part, in the address space of the device.
    pub above: u64,
    /// Bytes of the part, in the address space of the lower.
    pub range: ByteRange,
    /// Word for the transformation of the bytes between the device and the lower: `mirrored`, `encrypted`.
    pub how: Cow<'static, str>,
}

/// Code that sees a request on its way down and its reply on its way up, and changes no bytes.
///
/// Violin calls the two steps push and pop (section 2.2). A hook performs no I/O and does not wait. Code that must do
/// so is a [`Device`].
pub trait Hooks: 'static {
    /// Inspects a request on its way down, and decides how the request continues. The hook must not change the
    /// request.
    fn push(&self, request: &Request) -> Push;

    /// Inspects the reply to a request for which [`Hooks::push`] returned [`Push::Watch`]; `saved` is the number in
    /// that [`Push::Watch`]. The hook may turn a success into an error, never an error into a success.
    fn pop(&self, saved: u64, request: &Request, result: &mut Result<()>);

    /// Returns the state and the counters of the hook, as [`Device::report`] does for a device.
    fn report(&self) -> Report {
        Report::default()
    }
}

/// Decision of a hook about a request on its way down.
#[derive(Debug)]
pub enum Push {
    /// The request continues to the device below; the hook does not inspect the reply.
    Forward,
    /// The request continues to the device below; the hook inspects the reply, and gets this number with it.
    Watch(u64),
    /// The request ends at the hook, with this result as its reply.
    Done(Result<()>),
}
