//! The part of a kind in the tests: how the simulator draws its devices in random graphs, and the records of the kind
//! on disks, which the fuzzer damages.

use std::time::Duration;

use block::Result;

use crate::{Kind, Value};

/// The part of one kind of device in the simulator and the fuzzer.
#[derive(Clone, Copy, Debug)]
pub struct Testing {
    /// How the simulator draws devices of the kind in random graphs; `None` if it draws none.
    pub shape: Option<Shape>,
    /// The types of records that devices of the kind read from disks, which the fuzzer damages.
    pub records: &'static [Records],
    /// Whether devices of the kind lose bytes on purpose, so that clients in the simulator expect no bytes back.
    pub forgets: bool,
}

impl Testing {
    /// The part in the tests of a kind that random graphs do not draw, that has no records and keeps its bytes.
    pub const NONE: Self = Self { shape: None, records: &[], forgets: false };

    /// Returns the part in the tests of a kind without records, whose devices `draw` adds to random graphs.
    pub const fn drawn(draw: Draw) -> Self {
        Self { shape: Some(Shape { draw, weight: 1 }), ..Self::NONE }
    }
}

/// Function that adds a device, with everything below the device, to a random graph. The number is the largest number
/// of levels of devices below the added device.
pub type Draw = fn(&mut dyn Drawing, u32) -> Result<PartId>;

/// How random graphs of the simulator draw devices of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The function that adds a device of the kind to a random graph.
    pub draw: Draw,
    /// Weight of the kind when the simulator draws the kind of a device: a multiple of the usual probability.
    pub weight: usize,
}

/// The number of a device in a random graph.
pub type PartId = usize;

/// The options of a device in a random graph, by name.
pub type Options = Vec<(&'static str, Value)>;

/// A random graph of the simulator that is being drawn. Every random number comes from the seed.
pub trait Drawing {
    /// Returns the next random number of the drawing, which follows from the seed.
    fn next(&mut self) -> u64;

    /// Adds a drawn device with at most `depth` levels below it: a disk, or a device of any kind.
    ///
    /// # Errors
    /// If a kind refuses the drawn options, which is a bug of its `draw`. All methods that return a `Result` fail for
    /// this reason only.
    fn device(&mut self, depth: u32) -> Result<PartId>;

    /// Adds from one to `most` drawn devices, as long as there are disks for them.
    ///
    /// # Errors
    /// As [`Drawing::device`].
    fn devices(&mut self, depth: u32, most: u64) -> Result<Vec<PartId>>;

    /// Adds `count` drawn members of which one may fail, and the device over them with `add`, which gets the members
    /// and the longest time to wait for one member. If there are disks for one member only, that member is the device.
    ///
    /// # Errors
    /// As [`Drawing::device`].
    fn redundant(&mut self, depth: u32, count: usize, add: AddOver) -> Result<PartId>;

    /// Adds a hook of `kind` over a drawn device. In some graphs the hook runs as a device of its own.
    ///
    /// # Errors
    /// As [`Drawing::device`].
    fn hook(&mut self, depth: u32, kind: &Kind, options: Options) -> Result<PartId>;

    /// Adds a device of `kind` over the devices `on`, which were drawn before.
    ///
    /// # Errors
    /// As [`Drawing::device`].
    fn add(&mut self, kind: &Kind, options: Options, on: &[PartId]) -> Result<PartId>;

    /// Returns the size in bytes of the device `part` of the graph.
    fn size(&self, part: PartId) -> u64;

    /// Returns the name of the device `part` of the graph.
    fn name(&self, part: PartId) -> String;

    /// Returns the number of devices in the graph so far, which makes names unique.
    fn count(&self) -> usize;

    /// Returns the block size of the graph in bytes: the sizes of all devices are multiples of it.
    fn block(&self) -> u64;

    /// Whether a device that fails on purpose may be added at this point of the drawing. If the method returns `true`,
    /// the simulator expects failures of the graph.
    fn may_fail(&mut self) -> bool;

    /// Whether a device that shows blank bytes as other bytes may be added at this point of the drawing. If the method
    /// returns `true`, clients read all bytes before the first write.
    fn may_scramble(&mut self) -> bool;
}

/// Function that adds a device over members to a random graph. The duration is the longest time that the device waits
/// for one member.
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

/// A type of record that devices of a kind read from disks. A disk may hold any bytes in place of a record.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    /// The name of the type of record: `mirror`.
    pub name: &'static str,
    /// Returns valid records of this type, from which the fuzzer makes damaged records.
    pub valid: fn() -> Vec<Vec<u8>>,
    /// Parses an untrusted record, and checks the properties that every accepted record must have. Returns whether the
    /// record was accepted.
    ///
    /// Panics if an accepted record lacks such a property.
    pub check: fn(&[u8]) -> bool,
}
