//! Draws the random graph of a trial. Each kind adds its devices through its [`kind::testing::Shape`].

use std::time::Duration;

use block::{Error, Result};
use kind::testing::{AddOver, Draw, Drawing, Options};
use kind::{Kind, Value};
use sim::draw::Stream;
use sim::{AS_DEVICE, Assembly, PartId};

/// Factor between the timeouts of two mirrors above each other. The upper mirror has the longer timeout for its
/// members.
const PATIENCE: u32 = 4;

/// A device of a random graph with its options and lowers, to build the device again after a restart.
#[derive(Clone, Debug)]
pub struct Step {
    /// Name of the device's kind.
    pub kind: &'static str,
    options: Options,
    on: Vec<PartId>,
}

/// A random graph that the simulator has built.
pub struct Drawn {
    /// Number of the topmost device, to which clients send requests.
    pub top: PartId,
    /// The devices of the graph, lowers before their uppers; the index is the device's number.
    pub steps: Vec<Step>,
    /// The mirrors of the graph, lower mirrors before upper mirrors.
    pub mirrors: Vec<Mirror>,
    /// Whether clients may get an error from a device that fails requests on purpose (kind `error`).
    pub may_fail: bool,
    /// Whether a device (such as an encryption) changes the zeros of blank disks, so that the volume reads as other
    /// bytes before the first write.
    pub scrambles: bool,
}

/// A mirror in a random graph.
pub struct Mirror {
    /// Number of the mirror among the graph's devices.
    pub part: PartId,
    /// The members of the mirror, by port.
    pub members: Vec<Member>,
    /// Index of the mirror's only member that may have faults; `None` if no member may have faults.
    pub victim: Option<usize>,
    /// Whether the mirror lies below a member of an upper mirror that may have faults. Then all members of this mirror
    /// may have faults.
    pub is_spare: bool,
}

/// A member of a mirror in a random graph: a device with everything below it.
pub struct Member {
    /// Number of the member's topmost device among the graph's devices.
    pub part: PartId,
    /// Numbers of the disks that the member uses.
    pub disks: Vec<usize>,
    /// Whether the member is a disk without devices above it.
    pub is_disk: bool,
    /// Whether the member contains a device that fails requests on purpose (kind `error`).
    pub fails: bool,
}

/// Whether a device that the simulator adds to a graph may fail requests; this depends on the mirrors above the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// No mirror is above the device. The device may fail requests, and clients get the errors.
    Open,
    /// A mirror above relies on the device, so the device must not fail requests.
    Needed,
    /// The device may fail requests, because a mirror above must hide its failures.
    Spare,
}

/// A random graph to which the simulator is adding devices.
struct Growing<'a> {
    graph: &'a mut Assembly,
    draw: &'a Stream,
    /// The disks that the graph does not use yet, each with its disk number.
    disks: Vec<(usize, Step)>,
    /// Largest block size of the disks, in bytes. Devices split and join address ranges only at multiples of it.
    block: u64,
    /// Timeout of the lowest mirrors for their members.
    timeout: Duration,
    place: Place,
    /// Whether the faults of the disks permit the trial to read the whole volume before its first write.
    readable: bool,
    steps: Vec<Step>,
    mirrors: Vec<Mirror>,
    may_fail: bool,
    scrambles: bool,
    /// Number of devices added so far that fail requests on purpose.
    failing: usize,
    used: Vec<usize>,
}

/// Builds a random graph over `disks`, with at most `depth` devices above each disk. `block` is the disks' largest
/// block size in bytes. `timeout` is the timeout of the lowest mirrors for their members. `readable`: the faults of the
/// disks permit the trial to read the whole volume before its first write.
///
/// # Errors
/// A kind refuses the random options of its own shape, which is a bug in the shape.
pub fn draw(
    graph: &mut Assembly,
    draw: &Stream,
    disks: Vec<Step>,
    block: u64,
    depth: u32,
    timeout: Duration,
    readable: bool,
) -> Result<Drawn> {
    let mut drawing = Growing {
        graph,
        draw,
        disks: disks.into_iter().enumerate().collect(),
        block,
        timeout,
        place: Place::Open,
        readable,
        steps: Vec::new(),
        mirrors: Vec::new(),
        may_fail: false,
        scrambles: false,
        failing: 0,
        used: Vec::new(),
    };
    let top = drawing.device(depth)?;
    let Growing { steps, mirrors, may_fail, scrambles, .. } = drawing;
    Ok(Drawn { top, steps, mirrors, may_fail, scrambles })
}

/// Builds a random graph again after a restart, from the devices that [`draw`] has recorded.
///
/// # Errors
/// A device cannot be opened, for example because its disk is in use.
pub fn rebuild(graph: &mut Assembly, steps: &[Step]) -> Result<()> {
    steps.iter().try_for_each(|step| graph.add(step.kind, &step.options, &step.on).map(drop))
}

/// Returns an NBD disk to the export `uri`. `connections` is its number of connections; `replay` is the number of bytes
/// of unflushed writes that it keeps to send them again.
pub fn far_disk(uri: String, connections: u64, replay: u64) -> Step {
    let options = vec![
        ("nbd", Value::Text(uri)),
        ("connections", Value::Integer(connections)),
        ("replay", Value::Size(replay)),
    ];
    Step { kind: "nbd", options, on: Vec::new() }
}

/// Returns a disk of this kind (`path` or `file`) on the simulated file `path`, with this timeout.
pub fn disk(kind: &'static str, path: String, timeout: Duration) -> Step {
    let options = vec![(kind, Value::Text(path)), ("timeout", Value::Duration(timeout))];
    Step { kind, options, on: Vec::new() }
}

impl Step {
    /// Sets the mirror's option `trust`, which names the member that the mirror trusts at the next start. Returns
    /// whether the option had another value before.
    pub fn trust(&mut self, name: &str) -> bool {
        let trusted = self.options.iter_mut().find(|(option, _)| *option == "trust");
        let (_, value) = trusted.expect("a mirror over used disks has the option trust");
        let before = std::mem::replace(value, Value::Text(name.to_owned()));
        before != *value
    }
}

/// Returns for each kind the function that adds a random device of the kind, as often as the kind's weight says.
fn draws() -> impl Iterator<Item = Draw> + Clone {
    let shapes = kinds::TESTING.iter().filter_map(|kind| kind.shape);
    let more = shapes.clone().flat_map(|shape| std::iter::repeat_n(shape.draw, shape.weight - 1));
    shapes.map(|shape| shape.draw).chain(more)
}

impl Growing<'_> {
    fn step(&mut self, step: Step) -> Result<PartId> {
        let part = self
            .graph
            .add(step.kind, &step.options, &step.on)
            .map_err(|error| Error::new(error.kind(), format!("{step:?}: {error}")))?;
        self.steps.push(step);
        Ok(part)
    }

    /// Adds a random member of a mirror to the graph, and records the disks that the member uses.
    fn member(&mut self, depth: u32, place: Place) -> Result<Member> {
        let before = (std::mem::take(&mut self.used), self.place, self.steps.len(), self.failing);
        self.place = place;
        let part = self.device(depth)?;
        let disks = std::mem::replace(&mut self.used, before.0);
        self.used.extend(&disks);
        self.place = before.1;
        let (is_disk, fails) = (self.steps.len() == before.2 + 1, self.failing > before.3);
        Ok(Member { part, disks, is_disk, fails })
    }
}

impl Drawing for Growing<'_> {
    fn next(&mut self) -> u64 {
        self.draw.next()
    }

    fn device(&mut self, depth: u32) -> Result<PartId> {
        if depth == 0 || self.draw.below(6) == 0 {
            let n = self.draw.below(self.disks.len() as u64) as usize;
            let (number, disk) = self.disks.swap_remove(n);
            self.used.push(number);
            return self.step(disk);
        }
        let n = self.draw.below(draws().count() as u64) as usize;
        let draw = draws().nth(n).expect("the number is smaller than the number of shapes");
        draw(self, depth - 1)
    }

    fn devices(&mut self, depth: u32, most: u64) -> Result<Vec<PartId>> {
        let mut devices = vec![self.device(depth)?];
        for _ in 0..self.draw.below(most) {
            if !self.disks.is_empty() {
                devices.push(self.device(depth)?);
            }
        }
        Ok(devices)
    }

    fn redundant(&mut self, depth: u32, count: usize, add: AddOver) -> Result<PartId> {
        let inside = if self.place == Place::Spare { Place::Spare } else { Place::Needed };
        // Never the first, which may take all remaining disks, so that there is no mirror.
        let spare = self.draw.within(1, count as u64 - 1) as usize;
        let mut members = Vec::new();
        for n in 0..count {
            if n == 0 || !self.disks.is_empty() {
                let place = if n == spare { Place::Spare } else { inside };
                members.push(self.member(depth, place)?);
            }
        }
        if members.len() < 2 {
            return Ok(members[0].part);
        }
        let victim = (inside == Place::Needed && spare < members.len()).then_some(spare);
        let parts: Vec<_> = members.iter().map(|member| member.part).collect();
        let patience = self.timeout * PATIENCE.pow(depth);
        let part = add(self, &parts, patience)?;
        self.mirrors.push(Mirror { part, members, victim, is_spare: inside == Place::Spare });
        Ok(part)
    }

    fn hook(&mut self, depth: u32, kind: &Kind, mut options: Options) -> Result<PartId> {
        let lower = self.device(depth)?;
        if self.draw.below(2) == 0 {
            options.push(AS_DEVICE);
        }
        self.add(kind, options, &[lower])
    }

    fn add(&mut self, kind: &Kind, options: Options, on: &[PartId]) -> Result<PartId> {
        self.step(Step { kind: kind.name, options, on: on.to_vec() })
    }

    fn size(&self, part: PartId) -> u64 {
        self.graph.info(part).size
    }

    fn name(&self, part: PartId) -> String {
        self.graph.name(part).to_owned()
    }

    fn count(&self) -> usize {
        self.steps.len()
    }

    fn block(&self) -> u64 {
        self.block
    }

    fn may_fail(&mut self) -> bool {
        let may_fail = self.place != Place::Needed;
        self.may_fail |= self.place == Place::Open;
        self.failing += usize::from(may_fail);
        may_fail
    }

    fn may_scramble(&mut self) -> bool {
        self.scrambles |= self.readable;
        self.readable
    }
}
