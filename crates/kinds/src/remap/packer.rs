//! Packing: moving blocks to the front, so that the room behind them is in one piece.
//!
//! A block that is behind as many places as are taken goes to the first place that is free. Each move
//! is a transaction: the block is written, its checksum named, the map changed, the old place given back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{
    ByteRange, Error, ErrorKind, Job, JobCommand, JobState, Mode, Progress, Result, first,
};
use meta::alloc::{Places, Spot};
use meta::vault::Data;

use super::blocks::BATCH_BLOCKS;
use super::device::Inner;
use super::opening::Map;
use super::record::Record;

/// What packing is at.
pub struct Packing {
    state: RefCell<At>,
    paused: Cell<bool>,
    cancelled: Cell<bool>,
    /// Whether somebody packs: never two.
    is_packed: Cell<bool>,
    /// The next block that is looked at.
    next: Cell<u64>,
    /// Whether this pass over all blocks has moved one.
    has_moved: Cell<bool>,
    /// How often it has failed.
    pub failed: Cell<u64>,
}

enum At {
    Running,
    Paused,
    Stopped(Error),
    Done,
}

impl Packing {
    /// It begins when the map is there, or rests.
    pub fn new(paused: bool) -> Self {
        let state = if paused { At::Paused } else { At::Running };
        Self {
            state: RefCell::new(state),
            paused: Cell::new(paused),
            cancelled: Cell::new(false),
            is_packed: Cell::new(false),
            next: Cell::new(0),
            has_moved: Cell::new(false),
            failed: Cell::new(0),
        }
    }

    fn is_told_to_rest(&self) -> bool {
        self.paused.get() || self.cancelled.get()
    }
}

impl Inner {
    /// The job, if there is one.
    pub fn job(&self) -> Option<Job> {
        let packing = self.packing.as_ref()?;
        let (state, detail) = match &*packing.state.borrow() {
            At::Running => (JobState::Running, String::new()),
            At::Paused => (JobState::Paused, String::new()),
            At::Stopped(error) => (JobState::Stopped, error.to_string()),
            At::Done if packing.cancelled.get() => {
                (JobState::Done, "it was ended early".to_owned())
            }
            At::Done => (JobState::Done, String::new()),
        };
        let all = self.layout.size();
        let done = match state {
            JobState::Done => all,
            _ => packing.next.get() * self.layout.block_bytes,
        };
        let progress = Progress { done, all, of: all };
        Some(Job { what: "to the front".to_owned(), state, detail, progress })
    }

    /// Begins to pack, if that is wanted and nobody does.
    pub fn begin_packing(self: &Rc<Self>) {
        let Some(packing) = self.packing.as_ref() else { return };
        let goes_on = matches!(*packing.state.borrow(), At::Running);
        if !goes_on || packing.is_packed.replace(true) {
            return;
        }
        let (inner, one) = (self.clone(), self.underway.begin());
        self.env.spawn("packing", async move {
            let _one = one;
            inner.pack().await;
        });
    }

    async fn pack(&self) {
        let packing = self.packing.as_ref().expect("it was looked at before");
        let gone = self.changed.until(|| self.closing.get());
        let sure = first(self.opening.kept.committed(), gone).await.is_some();
        let packed = if sure { self.try_pack(packing).await } else { Ok(()) };
        let state = match packed {
            Err(error) => {
                packing.failed.set(packing.failed.get() + 1);
                At::Stopped(error)
            }
            // It goes on in whoever takes this one's place.
            Ok(()) if self.closing.get() => At::Running,
            Ok(()) if packing.paused.get() => At::Paused,
            Ok(()) => At::Done,
        };
        *packing.state.borrow_mut() = state;
        packing.is_packed.set(false);
        self.changed.wake();
    }

    async fn try_pack(&self, packing: &Packing) -> Result<()> {
        let map = self.map().await?;
        self.keep_paused(map, false).await?;
        loop {
            if self.closing.get() {
                return Ok(());
            }
            if packing.is_told_to_rest() {
                self.keep_paused(map, packing.paused.get()).await?;
                if packing.is_told_to_rest() {
                    return Ok(());
                }
                // It was told to go on meanwhile.
                self.keep_paused(map, false).await?;
            }
            if packing.next.get() >= self.layout.blocks {
                packing.next.set(0);
                if !packing.has_moved.replace(false) {
                    return Ok(());
                }
            }
            let next = packing.next.get();
            let count = BATCH_BLOCKS.min(self.layout.blocks - next);
            let range = self.layout.range(next, count);
            let looked = self.look(map, range).await?;
            let is_behind = |spot| matches!(spot, Spot::At(place) if place >= self.taken.get());
            let behind = looked.blocks(self).find(|(_, spot, _)| is_behind(*spot));
            packing.next.set(behind.map_or(next + count, |(block, ..)| block));
            if let Some((block, ..)) = behind {
                self.step(map, packing, block).await?;
            }
            self.env.give_way().await;
        }
    }

    /// Moves a block and those that follow it, as many as the pace has room for.
    async fn step(&self, map: &Map, packing: &Packing, block: u64) -> Result<()> {
        let most = (BATCH_BLOCKS * self.layout.block_bytes).min(block::STEP_BYTES_MAX);
        let step = self.pace.step_of(most.max(self.layout.block_bytes));
        let disturbed = || self.closing.get() || packing.is_told_to_rest();
        let Some(step) = first(step, self.changed.until(disturbed)).await else { return Ok(()) };
        let count = (step.bytes() / self.layout.block_bytes).max(1);
        let count = count.min(BATCH_BLOCKS).min(self.layout.blocks - block);
        let range = self.layout.range(block, count);
        let moved = self.move_to_front(map, range).await?;
        packing.has_moved.set(packing.has_moved.get() || moved > 0);
        packing.next.set(block + count);
        step.done(moved * self.layout.block_bytes);
        Ok(())
    }

    /// Moves those blocks of `range` that are behind all that could be in front; how many.
    async fn move_to_front(&self, map: &Map, range: ByteRange) -> Result<u64> {
        // Before the lock: who holds buffers may wait for it.
        let room = self.env.pool().wait_for(self.layout.block_bytes as usize).await?;
        let _alone = self.lock.lock(range, Mode::Exclusive).await;
        let looked = self.look(map, range).await?;
        let mut transaction = map.vault.begin();
        let mut moved = 0;
        for (block, spot, _) in looked.blocks(self) {
            let Spot::At(old) = spot else { continue };
            if old < self.taken.get() {
                continue;
            }
            let Some(new) = map.blocks.take_before(&mut transaction, old).await? else { break };
            let (from, to) = (self.layout.places(old, 1), self.layout.places(new, 1));
            let bytes = self.data.read(from, room.clone()).await?;
            let checksum = meta::vault::page::checksum(&bytes.read());
            self.data.write(to, bytes).await?;
            let data = Data { range: to, checksum };
            map.blocks.put_written(&mut transaction, block, new, &data)?;
            map.blocks.free(&mut transaction, Places { first: old, count: 1 })?;
            moved += 1;
        }
        map.vault.commit(transaction).await?;
        Ok(moved)
    }

    /// Keeps over restarts that it rests, or does not.
    async fn keep_paused(&self, map: &Map, paused: bool) -> Result<()> {
        let record = Record { vault: Some(map.vault.uuid()), paused, layout: self.layout };
        if self.opening.kept_paused.get() == paused {
            return Ok(());
        }
        self.opening.keep(&record).await?;
        self.opening.kept_paused.set(paused);
        Ok(())
    }

    /// Until there is nothing to move, or another device is about to take this one's place.
    pub async fn packed(&self) {
        let is_over = || match &self.packing {
            Some(packing) => matches!(*packing.state.borrow(), At::Done) || self.closing.get(),
            None => true,
        };
        self.changed.until(is_over).await;
    }

    /// Carries out what a person says.
    ///
    /// # Errors
    /// `InUse` for what makes no sense now.
    pub fn command(self: &Rc<Self>, command: JobCommand) -> Result<()> {
        let Some(packing) = &self.packing else { return Ok(()) };
        let refuse = |words: &str| Err(Error::new(ErrorKind::InUse, words).at(&self.name));
        let running = matches!(*packing.state.borrow(), At::Running);
        match command {
            JobCommand::Wait => {}
            // It may not have heard yet of what it was told last.
            JobCommand::Resume if running && packing.paused.get() => packing.paused.set(false),
            JobCommand::Resume if running => return refuse("it is not paused"),
            JobCommand::Resume => {
                packing.paused.set(false);
                packing.cancelled.set(false);
                *packing.state.borrow_mut() = At::Running;
                self.begin_packing();
            }
            JobCommand::Pause if !running => return refuse("it does not run"),
            JobCommand::Pause => packing.paused.set(true),
            JobCommand::Cancel if running => packing.cancelled.set(true),
            JobCommand::Cancel => return refuse("it does not run; nothing has to be taken back"),
        }
        self.changed.wake();
        Ok(())
    }
}
