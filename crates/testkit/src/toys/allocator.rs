//! A device for tests that allocates runs of its free space by commands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::control::{Command, Nothing, Part, Reach, Reply, Resolved, Verb, VerbInfo};
use block::env::LocalFuture;
use block::{ByteRange, Device, Error, ErrorKind, Info, Lower, Request, Result};
use serde::{Deserialize, Serialize};

/// Bytes of the unit in which the device allocates space.
pub const UNIT_BYTES: u64 = 4096;

/// The command that allocates one run of free space in the byte range of the command.
pub struct Allocate;

/// The command that frees a run. An earlier command with the same origin, number and byte range allocated this run.
pub struct Release;

/// Arguments of [`Allocate`]: the length of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bytes {
    /// Length of the run in bytes, a multiple of [`UNIT_BYTES`].
    pub bytes: u64,
}

/// Answer to [`Allocate`]: the allocated run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allocated {
    /// Address of the run's first byte.
    pub start: u64,
    /// Length of the run in bytes.
    pub bytes: u64,
}

impl Verb for Allocate {
    const INFO: &'static VerbInfo = &VerbInfo::new::<Self>(
        "toy.allocate",
        "allocate a run of free space",
        "free space",
        Reach::Bound { undo: Release::INFO },
    );
    type Args = Bytes;
    type Answer = Allocated;

    /// Merges the answers of several lowers: returns their run in addresses of the upper device, if it is the same.
    fn merge(parts: Vec<Part<Allocated>>) -> Result<Allocated> {
        let above = |Part { above, below, answer, .. }: Part<Allocated>| Allocated {
            start: above.start() + (answer.start - below.start()),
            ..answer
        };
        let mut runs = parts.into_iter().map(above);
        let first = runs.next().expect("a command reaches at least one device");
        if runs.any(|run| run != first) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the allocated space is not contiguous in the device above",
            ));
        }
        Ok(first)
    }
}

impl Verb for Release {
    const INFO: &'static VerbInfo =
        &VerbInfo::new::<Self>("toy.release", "release a run", "free space", Reach::Range);
    type Args = Bytes;
    type Answer = Nothing;

    fn merge(_: Vec<Part<Nothing>>) -> Result<Nothing> {
        Ok(Nothing {})
    }
}

/// Client number (origin), command number and first byte of the range of the command that allocated a run.
type Key = (u32, u64, u64);

/// A device that forwards requests, and allocates its space by commands.
pub struct Allocator {
    lower: Lower,
    /// The allocated runs, by the command that allocated them.
    runs: RefCell<BTreeMap<Key, Allocated>>,
}

impl Allocator {
    /// Creates a device over `lower`, with all of its space free.
    pub fn new(lower: Lower) -> Self {
        Self { lower, runs: RefCell::default() }
    }

    /// Returns the runs that are allocated now.
    pub fn runs(&self) -> Vec<Allocated> {
        self.runs.borrow().values().copied().collect()
    }

    fn allocate(&self, range: ByteRange, key: Key, bytes: u64) -> Result<Allocated> {
        let mut runs = self.runs.borrow_mut();
        if let Some(known) = runs.get(&key) {
            return Ok(*known);
        }
        let mut taken: Vec<_> = runs.values().collect();
        taken.sort_by_key(|run| run.start);
        let mut start = range.start().next_multiple_of(UNIT_BYTES);
        for run in taken {
            if run.start < start + bytes && start < run.start + run.bytes {
                start = run.start + run.bytes;
            }
        }
        if start + bytes > range.end() {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("the allocator has no {bytes} free bytes in {range}"),
            ));
        }
        let run = Allocated { start, bytes };
        runs.insert(key, run);
        Ok(run)
    }
}

impl Device for Allocator {
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
        &[Allocate::INFO, Release::INFO]
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        let Some(range) = command.range else {
            return Box::pin(std::future::ready(Err(command.unknown_to("the allocator"))));
        };
        let key = (command.origin, command.id, range.start());
        if let Some(asked) = command.args::<Allocate>() {
            let run = self.allocate(range, key, asked.bytes);
            return Box::pin(std::future::ready(run.map(Reply::of::<Allocate>)));
        }
        self.runs.borrow_mut().remove(&key);
        command.done(Ok(()))
    }
}
