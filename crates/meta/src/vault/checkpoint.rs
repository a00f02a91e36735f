//! Checkpoints of a vault: write changed pages and the map of pages, flush, write a superblock, flush.

use std::collections::VecDeque;
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Child, Result};

use super::Inner;
use super::number::PageNumber;
use super::page::{PAGE_BYTES, Page, Pointer};
use super::replicas::Durable;
use super::superblock::Position;
use super::tree::is_map;

/// Maximum number of page writes that a checkpoint has in flight at one time to each copy of the vault.
pub(super) const WINDOW: usize = 16;

/// The dirty pages of the cache at the start of a checkpoint, and the position of the first record whose changes they do
/// not have.
struct Frozen {
    pages: Vec<(PageNumber, Rc<Page>)>,
    tail: Position,
}

impl Inner {
    /// Spawns a task that makes a checkpoint of the vault, unless such a task runs.
    pub(super) fn checkpoint_soon(&self) {
        if !self.checkpoint_soon.replace(true) {
            let vault = self.me.upgrade().expect("a vault outlives its calls");
            self.env.spawn("a vault's checkpoint", async move {
                // On an error, the vault is marked as failed, and callers that rely on the checkpoint see that.
                let _ = vault.checkpoint(false).await;
                vault.checkpoint_soon.set(false);
                vault.progress.wake();
            });
        }
    }

    /// Spawns a checkpoint if 5/8 of the log are in use, if the cache has almost as many dirty pages as it may, or if a
    /// page needs a repair on a copy of the vault.
    pub(super) fn checkpoint_if_due(&self) {
        let used = self.commits.head.get().offset - self.replicas.durable.get().tail.offset;
        let cache = self.tree.cache.borrow();
        let due = 8 * used > 5 * self.replicas.geometry().log_bytes
            || 16 * cache.dirty() > 15 * cache.dirty_max()
            || self.tree.has_to_mend();
        drop(cache);
        if due && self.failed.borrow().is_none() {
            self.checkpoint_soon();
        }
    }

    /// Makes a checkpoint: writes every dirty page to one of its homes, and advances the tail of the log. Without
    /// `always`, does nothing if the vault has not changed since the last checkpoint.
    ///
    /// # Errors
    /// `Faulted` if every copy has failed, or if the vault had failed before.
    pub(super) async fn checkpoint(&self, always: bool) -> Result<()> {
        self.checkpoint_to(always, None).await
    }

    /// Makes a checkpoint that drops all records before `tail`, also those whose changes the pages do not have.
    pub(super) async fn checkpoint_past(&self, tail: Position) -> Result<()> {
        self.checkpoint_to(true, Some(tail)).await
    }

    async fn checkpoint_to(&self, always: bool, tail: Option<Position>) -> Result<()> {
        let vault = self.me.upgrade().expect("a vault outlives its calls");
        // If the caller drops the future, the checkpoint still runs to its end: the pages that it has taken must reach
        // the disks, because the next checkpoint moves the tail of the log past the records with their changes.
        let alone = async move {
            let _turn = vault.checkpointing.lock().await;
            vault.check_writable()?;
            vault.checkpoint_alone(always, tail).await
        };
        self.env.run_to_end("a vault's checkpoint", alone).await
    }

    /// Makes a checkpoint as [`Self::checkpoint`] does, with this tail if there is one. The caller holds the lock for
    /// checkpoints.
    pub(super) async fn checkpoint_alone(
        &self,
        always: bool,
        tail: Option<Position>,
    ) -> Result<()> {
        let most = self.tree.cache.borrow().dirty_max() / 2;
        // A page that cannot be repaired is lost; reading it returns an error.
        let _ = self.tree.rewrite_damaged(&self.replicas, most).await;
        let pages = self.tree.cache.borrow_mut().freeze();
        let frozen = Frozen { pages, tail: tail.unwrap_or(self.commits.done.get()) };
        let before = self.replicas.durable.get();
        let moved = frozen.tail.offset != before.tail.offset;
        if !always && !moved && frozen.pages.is_empty() {
            return Ok(());
        }
        let written = self.write_checkpoint(&frozen, before).await;
        match &written {
            Ok(()) => {
                let frozen = frozen.pages.iter().map(|(number, _)| *number);
                self.tree.cache.borrow_mut().thaw(frozen);
                if let Some(tail) = tail.filter(|_| !seeded::on(Bug::TailMovedBack)) {
                    // A checkpoint that waits already must not move the tail back to the dropped records.
                    self.commits.continue_at(tail);
                }
            }
            // Pages that could not be written stay frozen in the cache: the disks have older versions of them.
            Err(error) => self.fail(error),
        }
        self.commits.count(|counters| counters.checkpoints += 1);
        self.note_proven();
        self.progress.wake();
        written
    }

    async fn write_checkpoint(&self, frozen: &Frozen, before: Durable) -> Result<()> {
        let next =
            Durable { checkpoint: before.checkpoint + 1, root: before.root, tail: frozen.tail };
        if seeded::on(Bug::LogTailEarly) {
            self.replicas.publish(Durable { tail: frozen.tail, ..before }).await?;
        }
        let (root, map) = Climb::new(self, next.checkpoint).all(&frozen.pages).await?;
        // The superblock drops the records before the tail, so their data must be flushed too.
        self.flush_once().await?;
        if let Some(root) = root {
            self.tree.switch(root, map);
        }
        self.replicas.publish(Durable { root: root.or(before.root), ..next }).await
    }
}

/// The writer of a checkpoint: writes pages in ascending order, and the pages of the map above them. Holds one map page
/// for each level of the map.
struct Climb<'a> {
    vault: &'a Inner,
    checkpoint: u64,
    /// For each level of the map, from the lowest: the map page whose pointers are being updated.
    open: Vec<Option<(PageNumber, Page)>>,
    /// Numbers of the map pages that the checkpoint has written.
    map: Vec<PageNumber>,
    window: VecDeque<Vec<(usize, Vec<Child>)>>,
    root: Option<Pointer>,
}

impl<'a> Climb<'a> {
    fn new(vault: &'a Inner, checkpoint: u64) -> Self {
        let open = vec![None; vault.replicas.geometry().root_level()];
        let (map, window) = (Vec::new(), VecDeque::new());
        Self { vault, checkpoint, open, map, window, root: None }
    }

    /// Writes all `pages` and the map pages above them. Returns the pointer to the new root, and the numbers of the
    /// written map pages. Flushes nothing.
    async fn all(
        mut self,
        pages: &[(PageNumber, Rc<Page>)],
    ) -> Result<(Option<Pointer>, Vec<PageNumber>)> {
        for (number, page) in pages {
            self.put(0, *number, Page::clone(page)).await?;
        }
        for level in 0..self.open.len() {
            self.close(level).await?;
        }
        for begun in std::mem::take(&mut self.window) {
            self.vault.replicas.finish(begun).await;
        }
        Ok((self.root, self.map))
    }

    /// Writes a page to the home that its present pointer does not use, and updates the pointer in its map page.
    async fn put(&mut self, level: usize, number: PageNumber, mut page: Page) -> Result<()> {
        let other = |pointer: Option<Pointer>| pointer.map_or(0, |pointer| 1 - pointer.home);
        let Some((parent, place)) = self.vault.replicas.geometry().parent(number) else {
            let now = self.vault.tree.pointer(&self.vault.replicas, number).await?;
            self.root = Some(page.seal(self.checkpoint, other(now)));
            return self.write(number, &page, other(now)).await;
        };
        self.open(level, parent).await?;
        let (_, node) = self.open[level].as_mut().expect("the parent page was just opened");
        let home = other(node.pointer(place));
        node.set_pointer(place, page.seal(self.checkpoint, home));
        self.write(number, &page, home).await
    }

    async fn open(&mut self, level: usize, number: PageNumber) -> Result<()> {
        if self.open[level].as_ref().is_some_and(|(open, _)| *open == number) {
            return Ok(());
        }
        self.close(level).await?;
        self.vault.tree.ensure(&self.vault.replicas, number).await?;
        let cache = self.vault.tree.cache.borrow();
        let page = cache.peek(number).expect("the page was just loaded");
        self.open[level] = Some((number, Page::clone(page)));
        Ok(())
    }

    async fn close(&mut self, level: usize) -> Result<()> {
        let Some((number, page)) = self.open[level].take() else { return Ok(()) };
        self.map.push(number);
        Box::pin(self.put(level + 1, number, page)).await
    }

    async fn write(&mut self, number: PageNumber, page: &Page, home: usize) -> Result<()> {
        let vault = self.vault;
        if is_map(number) {
            // Lookups use the cached page until the new version is on the disks.
            vault.tree.cache.borrow_mut().renew(number, page);
        }
        let buf = vault.env.pool().scratch(PAGE_BYTES).await?;
        buf.write().copy_from_slice(page.bytes());
        let at = vault.replicas.geometry().home(number, home);
        self.window.push_back(vault.replicas.start_write(at, &buf));
        if self.window.len() > WINDOW {
            let oldest = self.window.pop_front().expect("a full window has an oldest write");
            vault.replicas.finish(oldest).await;
        }
        Ok(())
    }
}
