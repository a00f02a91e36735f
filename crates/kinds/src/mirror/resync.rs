//! Copying what a member missed, and rewriting what it could not read.

use std::rc::Rc;

use block::{Buf, ByteRange, Child, Copies, Error, ErrorKind, Info, Mode, Op, Result};

use super::device::Inner;
use super::member::{Member, State};

/// Copied at once at most, under the range lock: long enough to keep a disk busy, short enough that a write
/// there waits for a few milliseconds.
const STEP_BYTES: u64 = 1 << 20;

/// Repairs at once; a read error beyond is answered from another copy all the same.
const REPAIRS_MAX: u32 = 16;

/// Why a range was not copied.
enum Uncopied {
    /// No source could be read.
    Unread(Error),
    /// The member could not be written.
    Unwritten(Error),
}

impl Inner {
    /// Begins to bring members up to date: the named one, or all that miss something.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, `InUse` if it is in sync, being copied, or has requests that
    /// are not back.
    pub fn resync(self: &Rc<Self>, name: Option<&str>) -> Result<()> {
        match name {
            Some(name) => {
                let index = self.find(name)?;
                self.may_resync(index)?;
                self.begin_resync(index);
                self.remember_soon();
            }
            None => {
                for index in 0..self.members.len() {
                    if self.may_resync(index).is_ok() {
                        self.begin_resync(index);
                        self.remember_soon();
                    }
                }
            }
        }
        Ok(())
    }

    fn may_resync(&self, index: usize) -> Result<()> {
        let member = &self.members[index];
        let name = member.lower.name();
        let words = match member.state() {
            State::InSync => format!("{name} is in sync"),
            State::Copying => format!("{name} is being copied already"),
            State::Stale | State::Failed if member.is_absent() => {
                format!("{name} is not there. Next: bring it back, and start again")
            }
            State::Stale | State::Failed if member.late() > 0 => format!(
                "{name} has {} requests that are not back; a late write would undo the copy. Next: \
                 wait for the disk, or restart",
                member.late()
            ),
            State::Stale | State::Failed => return Ok(()),
        };
        Err(Error::new(ErrorKind::InUse, words))
    }

    /// From now on every new write goes to the member too; the old ones are copied.
    pub fn begin_resync(self: &Rc<Self>, index: usize) {
        self.members[index].set(State::Copying, "");
        self.members[index].set_progress(0, self.size);
        // Taken out and brought back meanwhile, it misses what this copy has done already.
        let begun = self.members[index].changes();
        let mirror = Rc::downgrade(self);
        let env = self.env.clone();
        let one = self.underway.begin();
        self.env.spawn("a mirror's resync", async move {
            let _one = one;
            let mut at = 0;
            loop {
                let Some(mirror) = mirror.upgrade() else { return };
                let member = &mirror.members[index];
                if member.changes() != begun || mirror.closing.get() {
                    return;
                }
                if at == mirror.size {
                    return mirror.end_resync(index, begun).await;
                }
                let end = mirror.size.min(at + mirror.step_bytes());
                let step = ByteRange::between(at, end).expect("there is something left");
                let copied = mirror.copy(index, step).await;
                if member.changes() != begun {
                    return;
                }
                if let Err(Uncopied::Unread(error) | Uncopied::Unwritten(error)) = copied {
                    member.set(State::Failed, Member::words_of("the copy", &error));
                    return mirror.remember_soon();
                }
                at = end;
                member.set_progress(at, mirror.size);
                drop(mirror);
                env.give_way().await;
            }
        });
    }

    /// What every member takes in one request.
    fn step_bytes(&self) -> u64 {
        let all = Info::over(self.members.iter().map(|member| member.lower.info()));
        let all = all.expect("a mirror has members");
        let most = STEP_BYTES.min(u64::from(all.max_transfer));
        most - most % u64::from(all.block_size)
    }

    /// What was copied is made durable before anybody reads it there.
    async fn end_resync(&self, index: usize, begun: u64) {
        let member = &self.members[index];
        let flushed = member.lower.flush().await;
        if member.changes() != begun {
            return;
        }
        match flushed {
            Ok(()) => member.set(State::InSync, ""),
            Err(error) => member.set(State::Failed, Member::words_of("flush", &error)),
        }
        self.remember_soon();
    }

    /// Copies one range to a member from one that is in sync.
    async fn copy(&self, to: usize, range: ByteRange) -> Result<(), Uncopied> {
        let _alone = self.lock.lock(range, Mode::Exclusive).await;
        let data = self.read_any(range, Copies::NONE.with(to)).await.map_err(Uncopied::Unread)?;
        let child = self.members[to].lower.start(Op::write(range, data));
        let mut guard = self.deadline.guard(child);
        match (&mut guard).await {
            Some(done) => done.result.map_err(Uncopied::Unwritten),
            None => {
                self.members[to].one_late();
                self.wait_for_late(to, guard.into_inner());
                Err(Uncopied::Unwritten(self.no_answer(to)))
            }
        }
    }

    /// The bytes of a range from any member that is in sync and not `except`ed.
    async fn read_any(&self, range: ByteRange, except: Copies) -> Result<Buf> {
        let mut failed =
            Error::new(ErrorKind::Faulted, "no other member is in sync").at(&self.name);
        for source in self.in_sync().filter(|n| !except.has(*n)) {
            let buf = self.env.pool().wait_for(range.len() as usize).await?;
            let read = self.members[source].lower.start(Op::read(range, buf));
            match self.deadline.guard(read).await.map(block::Done::into_buf) {
                Some(Ok(data)) => return Ok(data),
                Some(Err(error)) => failed = error,
                None => failed = self.no_answer(source),
            }
        }
        Err(failed)
    }

    /// Rewrites a range on members that could not read it, in the background.
    pub fn begin_repair(self: &Rc<Self>, range: ByteRange, members: Copies) {
        if self.repairs.get() >= REPAIRS_MAX || self.closing.get() {
            return;
        }
        self.repairs.set(self.repairs.get() + 1);
        let mirror = self.clone();
        let one = self.underway.begin();
        self.env.spawn("a mirror's repair", async move {
            let _one = one;
            for index in 0..mirror.members.len() {
                if members.has(index) && mirror.members[index].state() == State::InSync {
                    match mirror.copy(index, range).await {
                        Ok(()) => mirror.repaired.set(mirror.repaired.get() + 1),
                        Err(Uncopied::Unwritten(error)) => {
                            mirror.retire(index, Member::words_of("a rewrite", &error));
                        }
                        // That is the source's trouble, and whoever reads there will be told.
                        Err(Uncopied::Unread(_)) => {}
                    }
                }
            }
            mirror.repairs.set(mirror.repairs.get() - 1);
        });
    }

    /// Waits for a request that its caller has given up, only to know when it is back.
    pub fn wait_for_late(&self, index: usize, child: Child) {
        let back = self.members[index].back();
        let one = self.underway.begin();
        self.env.spawn("a mirror's late request", async move {
            let _one = one;
            let _ = child.await;
            back.set(back.get() - 1);
        });
    }
}
