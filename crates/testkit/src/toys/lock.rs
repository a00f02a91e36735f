//! A device for tests whose byte ranges clients lock by commands.

use std::cell::RefCell;
use std::rc::Rc;

use block::control::{Command, Nothing, Part, Reach, Reply, Resolved, Verb, VerbInfo};
use block::env::LocalFuture;
use block::{ByteRange, Device, Info, Lower, Notify, Request, Result};

/// The command that locks a byte range for the client (origin) that sent the command. It waits until no other client
/// has a lock on a part of the range.
pub struct Lock;

/// The command that unlocks a byte range for the client (origin) that sent the command.
pub struct Unlock;

impl Verb for Lock {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "toy.lock",
        "lock a range",
        "locks",
        Reach::Bound { undo: Unlock::INFO },
    );
    type Args = Nothing;
    type Answer = Nothing;

    fn merge(_: Vec<Part<Nothing>>) -> Result<Nothing> {
        Ok(Nothing {})
    }
}

impl Verb for Unlock {
    const INFO: &'static VerbInfo =
        &VerbInfo::new::<Self>("toy.unlock", "release a range", "locks", Reach::Range);
    type Args = Nothing;
    type Answer = Nothing;

    fn merge(_: Vec<Part<Nothing>>) -> Result<Nothing> {
        Ok(Nothing {})
    }
}

/// A device that forwards all requests to its lower, and stores the locks on its byte ranges.
pub struct Locker {
    lower: Lower,
    locks: RefCell<Vec<(ByteRange, u32)>>,
    released: Notify,
}

impl Locker {
    /// Creates a device over `lower`, without locks.
    pub fn new(lower: Lower) -> Self {
        Self { lower, locks: RefCell::default(), released: Notify::default() }
    }

    /// Returns the locks of the device: the byte range and the client number (origin) of each lock.
    pub fn locks(&self) -> Vec<(ByteRange, u32)> {
        self.locks.borrow().clone()
    }

    fn is_free(&self, range: ByteRange, origin: u32) -> bool {
        let stands_against =
            |(held, by): &(ByteRange, u32)| *by != origin && held.intersect(range).is_some();
        !self.locks.borrow().iter().any(stands_against)
    }
}

impl Device for Locker {
    fn info(&self) -> &Info {
        self.lower.info()
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.lower.forward(&mut request.op).await
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, ""))
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        &[Lock::INFO, Unlock::INFO]
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        let Some(range) = command.range else {
            return Box::pin(std::future::ready(Err(command.unknown_to("the lock"))));
        };
        if command.is::<Unlock>() {
            self.locks.borrow_mut().retain(|lock| *lock != (range, command.origin));
            self.released.wake();
            return command.done(Ok(()));
        }
        Box::pin(async move {
            self.released.until(|| self.is_free(range, command.origin)).await;
            self.locks.borrow_mut().push((range, command.origin));
            Ok(Reply::of::<Lock>(Nothing {}))
        })
    }
}
