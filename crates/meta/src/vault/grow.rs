//! Growth of a vault at its opening: more pages at the end of each copy.

use block::seeded::{self, Bug};
use block::{Error, ErrorKind, Result};

use super::geometry::Geometry;
use super::number;
use super::open::take_room;
use super::page::{MAP_OWNER, PAGE_BYTES, Page, Pointer};
use super::replicas::{Durable, Replicas};
use super::{Inner, Options};

/// Returns the sizes to which an opening with these options makes the vault grow; `None` if the vault stays as it is.
///
/// # Errors
/// `NoSpace` if a disk is too small.
pub(super) fn growth(replicas: &Replicas, options: &Options) -> Result<Option<Geometry>> {
    let Some(bytes) = options.bytes.filter(|_| !options.read_only) else { return Ok(None) };
    let Some(grown) = replicas.geometry().grown(bytes)? else { return Ok(None) };
    for lower in (0..replicas.count()).filter_map(|copy| replicas.lower(copy)) {
        let (is, should) = (lower.info().size, grown.bytes);
        if is < should {
            let words =
                format!("the disk has {is} bytes; the grown vault needs {should} on each disk");
            return Err(Error::new(ErrorKind::NoSpace, words).at(lower.name()));
        }
    }
    Ok(Some(grown))
}

impl Inner {
    /// Makes the vault grow to the sizes `grown`: writes zeros to the new part of each copy, writes the new levels of the
    /// map of pages, flushes both, and then writes superblocks with the new sizes. The new pages belong to no object.
    ///
    /// # Errors
    /// `NoSpace` if a disk has no space for the new part; `Faulted` if every copy has failed.
    pub(super) async fn grow(&self, grown: Geometry) -> Result<()> {
        let vault = self.me.upgrade().expect("a vault outlives its calls");
        let growing = async move {
            let _alone = vault.checkpointing.lock().await;
            vault.grow_alone(grown).await
        };
        self.env.run_to_end("a vault's growth", growing).await
    }

    async fn grow_alone(&self, grown: Geometry) -> Result<()> {
        let old = self.replicas.geometry();
        let before = self.replicas.durable.get();
        let checkpoint = before.checkpoint + 1;
        if !seeded::on(Bug::GrownBeforeZeroed) {
            self.zero_new_part(&old, &grown).await?;
        }
        let root = self.raise_root(&old, &grown, before.root, checkpoint).await?;
        if !seeded::on(Bug::GrownUnflushed) {
            self.replicas.flush().await;
        }
        self.replicas.set_geometry(grown);
        self.replicas.publish(Durable { checkpoint, root, ..before }).await?;
        if seeded::on(Bug::GrownBeforeZeroed) {
            self.zero_new_part(&old, &grown).await?;
        }
        if let Some(root) = root {
            self.tree.switch(root, Vec::new());
        }
        self.directory.borrow_mut().extend(grown.pages);
        Ok(())
    }

    /// Fills the new part of each copy that gets writes with zeros. Leaves a copy behind if this fails for another reason
    /// than a lack of space.
    async fn zero_new_part(&self, old: &Geometry, grown: &Geometry) -> Result<()> {
        for copy in self.replicas.writing() {
            match take_room(self.replicas.present(copy), old.end(), grown.end()).await {
                Err(error) if error.kind() != ErrorKind::NoSpace => {
                    self.replicas.fail(copy, &error);
                }
                taken => taken?,
            }
        }
        Ok(())
    }

    /// Writes the first page of each level that the map of pages gets, as the checkpoint with this number. Each points to
    /// the first page of the level below, the lowest one to the old root. Returns the pointer to the new root.
    async fn raise_root(
        &self,
        old: &Geometry,
        grown: &Geometry,
        root: Option<Pointer>,
        checkpoint: u64,
    ) -> Result<Option<Pointer>> {
        // Without a root no page was ever written, and the map needs no page either.
        let Some(mut root) = root else { return Ok(None) };
        for level in old.root_level() + 1..=grown.root_level() {
            let number = number::number(level, 0);
            let mut page = Page::blank(MAP_OWNER, number);
            page.set_pointer(0, root);
            // No superblock has named a version of this page, so both homes are free.
            let pointer = page.seal(checkpoint, 0);
            let buf = self.env.pool().scratch(PAGE_BYTES).await?;
            buf.write().copy_from_slice(page.bytes());
            let begun = self.replicas.start_write(grown.home(number, pointer.home), &buf);
            self.replicas.finish(begun).await;
            if !seeded::on(Bug::OldRootKept) {
                root = pointer;
            }
        }
        Ok(Some(root))
    }
}
