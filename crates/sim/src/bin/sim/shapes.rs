//! Random graphs. Each kind adds its devices with its [`kind::testing::Shape`].

use std::time::Duration;

use block::{Error, Result};
use kind::testing::{AddOver, Draw, Drawing, Options};
use kind::{Kind, Value};
use sim::draw::Stream;
use sim::{AS_DEVICE, Assembly, PartId};

/// Factor between the times that two mirrors above each other wait for a member; the upper one waits longer.
const PATIENCE: u32 = 4;

/// A device of a random graph, from which the graph can be built again after a restart.
#[derive(Clone, Debug)]
pub struct Step {
    /// The kind of the device.
    pub kind: &'static str,
    options: Options,
    on: Vec<PartId>,
}

/// A random graph.
pub struct Drawn {
    /// Number of the device to which clients send requests.
    pub top: PartId,
    /// The devices of the graph, from the bottom up.
    pub steps: Vec<Step>,
    /// The mirrors of the graph, lower ones first.
    pub mirrors: Vec<Mirror>,
    /// Whether a device in the graph may fail requests on purpose.
    pub may_fail: bool,
    /// Whether blank bytes of the disks may read as other bytes at the top of the graph.
    pub scrambles: bool,
}

/// A mirror of a random graph.
pub struct Mirror {
    /// Number of the mirror's device.
    pub part: PartId,
    /// The members of the mirror.
    pub members: Vec<Member>,
    /// Index of the member that may fail; `None` if no member may.
    pub victim: Option<usize>,
    /// Whether the mirror is a part of a member that may fail. Then all of its own members may fail.
    pub is_spare: bool,
}

/// A member of a mirror in a random graph.
pub struct Member {
    /// Number of the member's topmost device.
    pub part: PartId,
    /// Numbers of the disks below the member.
    pub disks: Vec<usize>,
    /// Whether the member is a single disk.
    pub is_disk: bool,
    /// Whether a device in the member fails on purpose.
    pub fails: bool,
}

/// The failures that are permitted at a place of a random graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// No mirror is above the place: clients get the errors of failures.
    Open,
    /// A mirror above the place needs the devices there, so these must not fail.
    Needed,
    /// A mirror above the place must survive failures of the devices there.
    Spare,
}

/// A random graph that is being built.
struct Growing<'a> {
    graph: &'a mut Assembly,
    draw: &'a Stream,
    /// Numbers of the disks that the graph does not use yet.
    disks: Vec<(usize, Step)>,
    /// Largest block size of the disks. All devices are divided at multiples of it.
    block: u64,
    /// Time that the lowest mirrors wait for a member.
    timeout: Duration,
    place: Place,
    /// Whether the whole volume can be read before the first write.
    readable: bool,
    steps: Vec<Step>,
    mirrors: Vec<Mirror>,
    may_fail: bool,
    scrambles: bool,
    /// Number of devices in the graph that fail on purpose.
    failing: usize,
    used: Vec<usize>,
}

/// Builds a random graph over `disks` with blocks of at most `block` bytes. `timeout` is the time that its lowest
/// mirrors wait for a member. `readable` is whether the whole volume must be readable before the first write.
///
/// # Errors
/// An error if a kind refuses random options, which is a bug of the function that has chosen them.
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

/// Builds a graph again, from the steps of its first building.
///
/// # Errors
/// If a disk cannot be opened.
pub fn rebuild(graph: &mut Assembly, steps: &[Step]) -> Result<()> {
    steps.iter().try_for_each(|step| graph.add(step.kind, &step.options, &step.on).map(drop))
}

/// Returns the step for a disk at the export `uri` over several connections, which stores `replay` bytes for replay.
pub fn far_disk(uri: String, connections: u64, replay: u64) -> Step {
    let options = vec![
        ("nbd", Value::Text(uri)),
        ("connections", Value::Integer(connections)),
        ("replay", Value::Size(replay)),
    ];
    Step { kind: "nbd", options, on: Vec::new() }
}

/// Returns the step for a disk at `path`.
pub fn disk(kind: &'static str, path: String, timeout: Duration) -> Step {
    let options = vec![(kind, Value::Text(path)), ("timeout", Value::Duration(timeout))];
    Step { kind, options, on: Vec::new() }
}

impl Step {
    /// Makes the member `name` the trusted member from the next start on. Returns whether another member was trusted
    /// before.
    pub fn trust(&mut self, name: &str) -> bool {
        let trusted = self.options.iter_mut().find(|(option, _)| *option == "trust");
        let (_, value) = trusted.expect("a mirror over used disks has the option trust");
        let before = std::mem::replace(value, Value::Text(name.to_owned()));
        before != *value
    }
}

/// Returns the functions that add devices. A kind with a greater weight is in the list several times.
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

    /// Builds a member of a mirror, and records the disks that the member uses.
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
