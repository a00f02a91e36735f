//! The part of a kind in the tests: its place in the random graphs of the simulator, and the bytes that a disk may hold
//! for it, which the fuzzer damages.

use std::time::Duration;

use block::Result;

use crate::{Kind, Value};

/// The part of one kind in the tests.
#[derive(Clone, Copy, Debug)]
pub struct Testing {
    /// Its place in random graphs; `None` if it is not drawn.
    pub shape: Option<Shape>,
    /// The records that it reads from disks.
    pub records: &'static [Records],
    /// Whether its devices lose bytes on purpose, so that no promise about bytes holds.
    pub forgets: bool,
}

impl Testing {
    /// A kind that is not drawn, has no records and keeps its bytes.
    pub const NONE: Self = Self { shape: None, records: &[], forgets: false };

    /// Returns the part of a kind without records that `draw` adds to random graphs.
    pub const fn drawn(draw: Draw) -> Self {
        Self { shape: Some(Shape { draw, weight: 1 }), ..Self::NONE }
    }
}

/// Adds a device, with everything below it, to a random graph. There are at most so many levels below the device.
pub type Draw = fn(&mut dyn Drawing, u32) -> Result<PartId>;

/// The place of a kind in random graphs.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Adds a device of the kind.
    pub draw: Draw,
    /// How often it is drawn, compared with other kinds.
    pub weight: usize,
}

/// A device of a random graph, by number.
pub type PartId = usize;

/// The options of a device, by name.
pub type Options = Vec<(&'static str, Value)>;

/// A random graph that is being drawn. Every number comes from the seed.
pub trait Drawing {
    /// Returns the next random number.
    fn next(&mut self) -> u64;

    /// Draws a device with at most `depth` levels below it: a disk, or a device of any kind.
    ///
    /// # Errors
    /// If a kind refuses the drawn options, which is a bug of its `draw`. All methods with a result do the same.
    fn device(&mut self, depth: u32) -> Result<PartId>;

    /// Draws from one to `most` devices, as long as there are disks for them.
    ///
    /// # Errors
    /// As [`Drawing::device`].
    fn devices(&mut self, depth: u32, most: u64) -> Result<Vec<PartId>>;

    /// Draws `count` members of which one may fail, and adds the device over them by `add`. It gets the members and the
    /// time to wait for one of them. If there are disks for one member only, that member is the device.
    ///
    /// # Errors
    /// As [`Drawing::device`].
    fn redundant(&mut self, depth: u32, count: usize, add: AddOver) -> Result<PartId>;

    /// Adds a hook over a drawn device. At times it runs as a device of its own.
    ///
    /// # Errors
    /// As [`Drawing::device`].
    fn hook(&mut self, depth: u32, kind: &Kind, options: Options) -> Result<PartId>;

    /// Adds a device over devices that were drawn before.
    ///
    /// # Errors
    /// As [`Drawing::device`].
    fn add(&mut self, kind: &Kind, options: Options, on: &[PartId]) -> Result<PartId>;

    /// Returns the bytes of a device.
    fn size(&self, part: PartId) -> u64;

    /// Returns the name of a device.
    fn name(&self, part: PartId) -> String;

    /// Returns the number of devices so far, which makes names unique.
    fn count(&self) -> usize;

    /// Returns the size of a block of this graph: all devices are cut at multiples of it.
    fn block(&self) -> u64;

    /// Whether a device that fails on purpose may be added here. If so, the graph expects its failures.
    fn may_fail(&mut self) -> bool;

    /// Whether a device that shows blank bytes as other bytes may be added here. If so, clients read all bytes before
    /// the first write.
    fn may_scramble(&mut self) -> bool;
}

/// Adds a device over members, which wait for each other for so long.
pub type AddOver = fn(&mut dyn Drawing, &[PartId], Duration) -> Result<PartId>;

impl dyn Drawing + '_ {
    /// Returns a random number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a random number from `least` to `most`.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Returns a random element of `from`, which is not empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Records that a kind reads from disks. A disk may hold any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    /// Their name: `mirror`.
    pub name: &'static str,
    /// Returns valid ones, from which damaged ones are made.
    pub valid: fn() -> Vec<Vec<u8>>,
    /// Parses untrusted ones, and checks the promises about those that are accepted. Returns whether they were.
    ///
    /// It panics if a promise is broken.
    pub check: fn(&[u8]) -> bool,
}
