//! Blocks that may fit no checksum, because a write to them failed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::ByteRange;
use meta::regions::Writing;

use super::sums::blocks_of;

/// Most blocks behind failed writes that a device works with. Beyond that it refuses requests until it is opened again; its
/// regions are marked then.
pub const DOUBTS_MAX: usize = 1 << 16;

/// Blocks behind failed writes, each with the guard that keeps its region marked.
#[derive(Default)]
pub struct Doubts(RefCell<BTreeMap<u64, Rc<Writing>>>);

impl Doubts {
    /// Adds a block. Returns `false` if there are too many.
    pub fn add(&self, block: u64, writing: &Rc<Writing>) -> bool {
        let mut blocks = self.0.borrow_mut();
        blocks.insert(block, writing.clone());
        blocks.len() <= DOUBTS_MAX
    }

    /// Removes the blocks of a range, which fit their checksums now.
    pub fn remove(&self, range: ByteRange) {
        let mut blocks = self.0.borrow_mut();
        if blocks.is_empty() {
            return;
        }
        let (first, count) = blocks_of(range);
        let gone = first..first + count as u64;
        blocks.retain(|block, _| !gone.contains(block));
    }

    /// Whether a block is behind a failed write.
    pub fn has(&self, block: u64) -> bool {
        self.0.borrow().contains_key(&block)
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }
}
