//! A lower with copies in memory that obeys the contract beneath a verifier: every copy stays readable to reads that avoid
//! others, and only a current copy answers other reads.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use block::control::copies::{Changed, Pending, Ranges, Verified, Wrong};
use block::control::{Command, Nothing, Reply};
use block::env::LocalFuture;
use block::{ByteRange, ChildId, Copies, Done, Env, Info, Lower, Op, Result, Started, State};
use block::{error, push_extent};
use kinds::checksum::{BLOCK_BYTES, Core, Redundancy};
use meta::vault::Vault;
use testkit::recorded::{Disk, Trace};

use crate::scene::{
    Crash, DATA_BYTES, JOURNAL_BYTES, RING_BYTES, VAULT_BYTES, format_vault, open_core, read, run,
    slice,
};

/// The effect of a write that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Nothing is written.
    Before,
    /// Everything is written.
    After,
    /// Half of each block is written.
    Torn,
}

#[derive(Default)]
pub struct Copied {
    pub copies: Vec<RefCell<Vec<u8>>>,
    /// The copy that a read without copies to avoid gets.
    pub current: Cell<usize>,
    /// The copies that are stale, as bits.
    pub stale: Cell<u32>,
    /// The copies, as bits, that fail every read but a last resort.
    pub unverified: Cell<u32>,
    /// Ranges in which copies may differ.
    pub pending: RefCell<Vec<ByteRange>>,
    pub verified: RefCell<Vec<(ByteRange, bool)>>,
    /// A block whose verdict is refused.
    pub refused: Cell<Option<u64>>,
    /// The copies that were reported as wrong, with the number of their block.
    pub wrong: RefCell<Vec<(u64, u32)>>,
    /// The copies that were restored, with the number of their block.
    pub restored: RefCell<Vec<(u64, u32)>>,
    /// The way in which all writes fail.
    pub failure: Cell<Option<Failure>>,
}

impl Copied {
    pub fn new(count: usize) -> Rc<Self> {
        let copies = (0..count).map(|_| RefCell::new(vec![0; DATA_BYTES as usize])).collect();
        Rc::new(Self { copies, ..Self::default() })
    }

    pub fn lower(self: &Rc<Self>) -> Lower {
        let copies = self.copies.len() as u32;
        let info = Info { copies, discard_zeroes: true, ..Info::disk(DATA_BYTES, 4096) };
        Lower::new(self.clone(), 7, info, "copies".into())
    }

    pub fn get(&self, copy: usize, block: u64) -> Vec<u8> {
        let at = (block * BLOCK_BYTES) as usize;
        self.copies[copy].borrow()[at..at + BLOCK_BYTES as usize].to_vec()
    }

    pub fn put(&self, copy: usize, block: u64, bytes: &[u8]) {
        let at = (block * BLOCK_BYTES) as usize;
        self.copies[copy].borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Whether all copies of a block are equal.
    pub fn agree(&self, block: u64) -> bool {
        (1..self.copies.len()).all(|copy| self.get(copy, block) == self.get(0, block))
    }

    fn choose(&self, avoid: Copies) -> usize {
        let stale = Copies(self.stale.get());
        let mut all = (0..self.copies.len()).map(|n| (n + self.current.get()) % self.copies.len());
        all.clone()
            .find(|n| !avoid.has(*n) && !stale.has(*n))
            .or_else(|| all.clone().find(|n| !avoid.has(*n)))
            .or_else(|| all.find(|n| !stale.has(*n)))
            .expect("a copy is current")
    }

    fn fill(&self, range: ByteRange, to: Copies, with: impl Fn(&mut [u8])) {
        for (_, copy) in self.copies.iter().enumerate().filter(|(n, _)| to.has(*n)) {
            with(&mut copy.borrow_mut()[range.start() as usize..range.end() as usize]);
        }
    }

    fn carry_out(&self, op: &mut Op) -> Result<()> {
        let all = Copies::first(self.copies.len() as u32);
        match op {
            Op::Read { range, into, avoid, last_resort } => {
                let copy = self.choose(*avoid);
                if !*last_resort && Copies(self.unverified.get()).has(copy) {
                    return Err(error!(Corrupt, "the copy is unverified"));
                }
                let (from, to) = (range.start() as usize, range.end() as usize);
                into.write().copy_from_slice(&self.copies[copy].borrow()[from..to]);
                *avoid = avoid.with(copy);
            }
            Op::Write { range, data, restores, .. } => {
                let to = if *restores == Copies::NONE { all } else { *restores };
                if *restores != Copies::NONE {
                    let block = range.start() / BLOCK_BYTES;
                    self.restored.borrow_mut().push((block, restores.0));
                }
                let failure = self.failure.get();
                let half = BLOCK_BYTES as usize / 2;
                let new = data.read();
                if failure != Some(Failure::Before) {
                    self.fill(*range, to, |bytes| {
                        let blocks = bytes.chunks_mut(2 * half).zip(new.chunks(2 * half));
                        let count = if failure == Some(Failure::Torn) { half } else { 2 * half };
                        blocks.for_each(|(to, from)| to[..count].copy_from_slice(&from[..count]));
                    });
                }
                if failure.is_some() {
                    return Err(error!(Io, "a write fails"));
                }
            }
            Op::WriteZeroes { range, .. } | Op::Discard { range, .. } => {
                self.fill(*range, all, |bytes| bytes.fill(0));
            }
            Op::Flush => {}
            Op::Status { range, extents } => push_extent(extents, range.len(), State::Data),
        }
        Ok(())
    }
}

impl block::Core for Copied {
    fn start(&self, op: &mut Op) -> Started {
        Started::Done(self.carry_out(op))
    }

    fn poll(&self, _: ChildId, _: &mut Context<'_>) -> Poll<Done> {
        unreachable!("everything is done at once")
    }

    fn abandon(&self, _: ChildId) {}

    fn control(&self, command: Command) -> LocalFuture<Result<Reply>> {
        if command.is::<Changed>() {
            return command.done(Err(command.unknown_to("a lower without news")));
        }
        let range = command.range.expect("the other verbs of copies concern bytes");
        let reply = if command.is::<Pending>() {
            let all = self.pending.borrow().clone();
            let inside = all.into_iter().filter_map(|one| one.intersect(range));
            Ok(Reply::of::<Pending>(Ranges::of(inside.collect(), None)))
        } else if let Some(verdict) = command.args::<Verified>() {
            self.verified.borrow_mut().push((range, verdict.alike));
            match self.refused.get().filter(|block| range.overlaps(run(*block, 1))) {
                Some(block) => Err(error!(Io, "no verdict of block {block}")),
                None => Ok(Reply::of::<Verified>(Nothing {})),
            }
        } else if let Some(numbers) = command.args::<Wrong>() {
            self.wrong.borrow_mut().push((range.start() / BLOCK_BYTES, numbers.copies));
            Ok(Reply::of::<Wrong>(Nothing {}))
        } else {
            Err(error!(Unsupported, "no such command"))
        };
        Box::pin(async move { reply })
    }
}

/// A device over copies, with its vault and its journal on a disk of their own.
pub struct Pair {
    pub env: Env,
    pub copied: Rc<Copied>,
    pub core: Core,
    pub vault: Vault,
    disk: Rc<Disk>,
    crash: Crash,
}

impl Pair {
    pub async fn new(env: &Env, count: usize, crash: Crash) -> Self {
        let copied = Copied::new(count);
        let disk = Disk::new(0, vec![0; (VAULT_BYTES + JOURNAL_BYTES) as usize], &Trace::default());
        let vault = slice(&disk, 0, 0, VAULT_BYTES);
        format_vault(env, &vault, &copied.lower(), true).await;
        let journal = slice(&disk, 1, VAULT_BYTES, JOURNAL_BYTES);
        let uuid = meta::Uuid([9; 16]);
        meta::journal::Journal::format(env, &journal, 0, uuid, RING_BYTES, 1).await.unwrap();
        Self::open(env, disk, copied, crash).await
    }

    async fn open(env: &Env, disk: Rc<Disk>, copied: Rc<Copied>, crash: Crash) -> Self {
        let vault = slice(&disk, 0, 0, VAULT_BYTES);
        let journal = slice(&disk, 1, VAULT_BYTES, JOURNAL_BYTES);
        let lowers = (&vault, &journal, copied.lower());
        let (core, vault) = open_core(env, lowers, crash, Redundancy::Below).await.unwrap();
        Self { env: env.clone(), copied, core, vault, disk, crash }
    }

    /// Opens the device again, as after the death of the process. `change` changes the copies before.
    pub async fn reopen(self, change: impl FnOnce(&Copied)) -> Self {
        let Self { env, copied, core, vault, disk, crash } = self;
        drop((core, vault));
        change(&copied);
        Self::open(&env, disk, copied, crash).await
    }

    /// Stops the device in order, and opens it again.
    pub async fn restart(self, change: impl FnOnce(&Copied)) -> Self {
        self.core.close().await.unwrap();
        self.vault.clone().close().await.unwrap();
        self.reopen(change).await
    }

    pub async fn write(&self, block: u64, bytes: &[u8]) {
        self.try_write(block, bytes).await.unwrap();
    }

    pub async fn try_write(&self, block: u64, bytes: &[u8]) -> Result<()> {
        let data = self.env.buf(bytes.len()).unwrap();
        data.write().copy_from_slice(bytes);
        let range = ByteRange::new(block * BLOCK_BYTES, bytes.len() as u64).unwrap();
        self.core.submit(&mut Op::write(range, data)).await
    }

    pub async fn read(&self, block: u64) -> Result<Vec<u8>> {
        read(&self.env, &self.core, run(block, 1), false).await
    }
}
