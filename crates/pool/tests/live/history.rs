//! The changes of a vdisk, and the contents that it may have after a crash.

/// Blocks of a vdisk.
pub const BLOCKS: u64 = 48;

/// The stamp of each block; 0 for zeros.
pub type Content = Vec<u64>;

/// A write of one request.
#[derive(Clone, Debug)]
pub struct Write {
    pub block: u64,
    pub stamps: Vec<u64>,
}

impl Write {
    fn range(&self) -> std::ops::Range<usize> {
        self.block as usize..self.block as usize + self.stamps.len()
    }
}

/// Writes of different blocks that are in flight at the same time. Each of them is in a record as a whole.
#[derive(Clone, Debug)]
pub struct Batch {
    pub writes: Vec<Write>,
    /// The instant at which all of them were acknowledged.
    pub acknowledged: Option<u64>,
}

/// The changes of a vdisk since its content was last known.
#[derive(Clone, Debug)]
pub struct History {
    pub base: Content,
    pub batches: Vec<Batch>,
}

impl History {
    pub fn new(base: Content) -> Self {
        Self { base, batches: Vec::new() }
    }

    /// Returns the content after the first `count` batches.
    pub fn after(&self, count: usize) -> Content {
        let mut content = self.base.clone();
        for write in self.batches[..count].iter().flat_map(|batch| &batch.writes) {
            content[write.range()].copy_from_slice(&write.stamps);
        }
        content
    }

    /// Returns the number of batches that were acknowledged before `instant`.
    pub fn acknowledged_before(&self, instant: u64) -> usize {
        let is = |batch: &Batch| batch.acknowledged.is_some_and(|at| at < instant);
        self.batches.iter().take_while(|batch| is(batch)).count()
    }

    /// Whether `content` is that after `least` batches or more, and some writes of the following batch.
    pub fn fits(&self, content: &Content, least: usize) -> bool {
        (least..=self.batches.len()).any(|count| {
            let mut expected = self.after(count);
            for write in self.batches.get(count).into_iter().flat_map(|batch| &batch.writes) {
                if content[write.range()] == write.stamps {
                    expected[write.range()].copy_from_slice(&write.stamps);
                }
            }
            expected == *content
        })
    }
}

#[test]
fn fits_accepts_prefix_and_parts_of_next_batch() {
    let write = |block, stamp| Write { block, stamps: vec![stamp, stamp + 1] };
    let batch = |writes| Batch { writes, acknowledged: None };
    let mut history = History::new(vec![0; 6]);
    history.batches = vec![batch(vec![write(0, 10)]), batch(vec![write(0, 20), write(4, 30)])];
    for content in [[0, 0, 0, 0, 0, 0], [10, 11, 0, 0, 0, 0], [10, 11, 0, 0, 30, 31]] {
        assert!(history.fits(&content.to_vec(), 0), "{content:?}");
    }
    assert!(!history.fits(&vec![0; 6], 1), "an acknowledged batch is there");
    for content in [[0, 0, 0, 0, 30, 31], [10, 11, 0, 0, 30, 0], [20, 11, 0, 0, 0, 0]] {
        assert!(!history.fits(&content.to_vec(), 0), "{content:?}");
    }
}
