//! Random graphs, with a drawing function for each kind. A new kind needs a function and a line in [`SHAPES`].

use std::time::Duration;

use block::{Error, Result};
use kind::Value;
use sim::draw::Stream;
use sim::{AS_DEVICE, Assembly, PartId};

/// A kind and the function that draws it into a graph.
#[derive(Clone, Copy)]
pub struct Shape {
    /// The kind.
    pub kind: &'static str,
    draw: fn(&mut Drawing, u32) -> Result<PartId>,
}

/// All kinds that can be drawn over other devices. Kinds of disks are not among them; disks are drawn
/// separately.
pub const SHAPES: &[Shape] = &[
    Shape { kind: "linear", draw: linear },
    Shape { kind: "partition", draw: partitions },
    Shape { kind: "concat", draw: concat },
    Shape { kind: "stripe", draw: stripe },
    Shape { kind: "mirror", draw: mirror },
    Shape { kind: "pass", draw: pass },
    Shape { kind: "delay", draw: delay },
    Shape { kind: "limit", draw: limit },
    Shape { kind: "trace", draw: trace },
    Shape { kind: "error", draw: error },
    Shape { kind: "crypt", draw: crypt },
];

/// Additional weight of mirrors: they have the most to lose.
const MORE_MIRRORS: u64 = 4;

/// Of two mirrors above each other, the upper one waits so many times longer.
const PATIENCE: u32 = 4;

/// One device of a graph, so that the same graph can be built again after a restart.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its kind.
    pub kind: &'static str,
    options: Vec<(&'static str, Value)>,
    on: Vec<PartId>,
}

/// A graph that was drawn.
pub struct Drawn {
    /// The device to which clients send requests.
    pub top: PartId,
    /// The steps to build it again.
    pub steps: Vec<Step>,
    /// Its mirrors, lower ones first.
    pub mirrors: Vec<Mirror>,
    /// Whether requests may fail on purpose.
    pub may_fail: bool,
}

/// A mirror of a drawn graph.
pub struct Mirror {
    /// Its device number.
    pub part: PartId,
    /// Its members.
    pub members: Vec<Member>,
    /// The member that may fail; no other member may.
    pub victim: Option<usize>,
    /// Whether it is itself part of a member that may fail: then all of its members may fail.
    pub is_spare: bool,
}

/// A member of a drawn mirror.
pub struct Member {
    /// Its device number.
    pub part: PartId,
    /// The disks below.
    pub disks: Vec<usize>,
    /// Whether it is a single disk.
    pub is_disk: bool,
    /// Whether a device in it fails on purpose.
    pub fails: bool,
}

/// The failures that are allowed at a place of the graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// No mirror is above: failures are reported to clients.
    Open,
    /// A mirror above depends on it.
    Needed,
    /// A mirror above must survive its failure.
    Spare,
}

/// A graph that is being drawn.
pub struct Drawing<'a> {
    graph: &'a mut Assembly,
    draw: &'a Stream,
    /// Disks that are not used yet, by number.
    disks: Vec<(usize, Step)>,
    /// The largest block size of the disks: all devices are cut at multiples of it.
    block: u64,
    /// Time that the lowest mirrors wait for a member.
    timeout: Duration,
    place: Place,
    /// Whether the initial content can be read.
    readable: bool,
    steps: Vec<Step>,
    mirrors: Vec<Mirror>,
    may_fail: bool,
    used: Vec<usize>,
}

/// Draws a graph over `disks` with blocks of at most `block` bytes. `timeout`: the time that its lowest mirrors
/// wait for a member. `readable`: whether the whole volume can be read before the first write.
///
/// # Errors
/// If a kind refuses the drawn options, which is a bug of its drawing function.
pub fn draw(
    graph: &mut Assembly,
    draw: &Stream,
    disks: Vec<Step>,
    block: u64,
    depth: u32,
    timeout: Duration,
    readable: bool,
) -> Result<Drawn> {
    let mut drawing = Drawing {
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
        used: Vec::new(),
    };
    let top = drawing.device(depth)?;
    let Drawing { steps, mirrors, may_fail, .. } = drawing;
    Ok(Drawn { top, steps, mirrors, may_fail })
}

/// Builds a drawn graph again.
///
/// # Errors
/// If a disk cannot be opened.
pub fn rebuild(graph: &mut Assembly, steps: &[Step]) -> Result<()> {
    steps.iter().try_for_each(|step| graph.add(step.kind, &step.options, &step.on).map(drop))
}

/// Returns the step for a disk at the export `uri` over so many connections, which keeps `replay` bytes for
/// replay.
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
    /// Sets the member `name` as the trusted one from the next start on. Returns whether another one was
    /// trusted before.
    pub fn trust(&mut self, name: &str) -> bool {
        let trusted = self.options.iter_mut().find(|(option, _)| *option == "trust");
        let (_, value) = trusted.expect("a mirror over disks that were there before");
        let before = std::mem::replace(value, Value::Text(name.to_owned()));
        before != *value
    }
}

impl Drawing<'_> {
    fn add(
        &mut self,
        kind: &'static str,
        options: Vec<(&'static str, Value)>,
        on: &[PartId],
    ) -> Result<PartId> {
        let step = Step { kind, options, on: on.to_vec() };
        let part = self
            .graph
            .add(kind, &step.options, on)
            .map_err(|error| Error::new(error.kind(), format!("{step:?}: {error}")))?;
        self.steps.push(step);
        Ok(part)
    }

    fn device(&mut self, depth: u32) -> Result<PartId> {
        if depth == 0 || self.draw.below(6) == 0 {
            let n = self.draw.below(self.disks.len() as u64) as usize;
            let (number, disk) = self.disks.swap_remove(n);
            self.used.push(number);
            return self.add(disk.kind, disk.options, &[]);
        }
        let n = self.draw.below(SHAPES.len() as u64 + MORE_MIRRORS) as usize;
        let draw = SHAPES.get(n).map_or(mirror as fn(&mut Drawing, u32) -> _, |shape| shape.draw);
        draw(self, depth - 1)
    }

    /// Draws several devices, as long as there are disks for them.
    fn devices(&mut self, depth: u32, most: u64) -> Result<Vec<PartId>> {
        let mut devices = vec![self.device(depth)?];
        for _ in 0..self.draw.below(most) {
            if !self.disks.is_empty() {
                devices.push(self.device(depth)?);
            }
        }
        Ok(devices)
    }

    /// Draws a member of a mirror, and notes the disks that it took.
    fn member(&mut self, depth: u32, place: Place) -> Result<Member> {
        let before = (std::mem::take(&mut self.used), self.place, self.steps.len());
        self.place = place;
        let part = self.device(depth)?;
        let disks = std::mem::replace(&mut self.used, before.0);
        self.used.extend(&disks);
        self.place = before.1;
        let steps = &self.steps[before.2..];
        let fails = steps.iter().any(|step| step.kind == "error");
        Ok(Member { part, disks, is_disk: steps.len() == 1, fails })
    }
}

fn size(key: &'static str, bytes: u64) -> (&'static str, Value) {
    (key, Value::Size(bytes))
}

fn linear(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    let lower = drawing.device(depth)?;
    let block = drawing.block;
    let blocks = drawing.graph.info(lower).size / block;
    let start = drawing.draw.below(blocks.div_ceil(2));
    let len = drawing.draw.within(blocks.div_ceil(4), blocks - start).max(1);
    drawing.add("linear", vec![size("start", start * block), size("size", len * block)], &[lower])
}

/// Draws two partitions of one device, concatenated with the second one first.
fn partitions(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    // It takes two of the four levels through which a request may fan out.
    let lower = drawing.device(depth.saturating_sub(1))?;
    let block = drawing.block;
    let blocks = drawing.graph.info(lower).size / block;
    if blocks < 2 {
        return Ok(lower);
    }
    let first = drawing.draw.within(1, blocks - 1);
    let low = drawing.add("partition", vec![size("size", first * block)], &[lower])?;
    let high = drawing.add("partition", vec![("size", Value::Rest)], &[lower])?;
    drawing.add("concat", vec![], &[high, low])
}

fn concat(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    let lowers = drawing.devices(depth, 4)?;
    drawing.add("concat", vec![], &lowers)
}

fn stripe(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    let lowers = drawing.devices(depth, 4)?;
    let block = drawing.block;
    let smallest = lowers.iter().map(|lower| drawing.graph.info(*lower).size).min();
    let fits = smallest.unwrap_or(0) / block;
    if lowers.len() < 2 || fits == 0 {
        return drawing.add("concat", vec![], &lowers);
    }
    let chunk = block * drawing.draw.within(1, fits.min(16));
    drawing.add("stripe", vec![size("chunk", chunk)], &lowers)
}

fn mirror(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    let count = drawing.draw.within(2, 3) as usize;
    let inside = if drawing.place == Place::Spare { Place::Spare } else { Place::Needed };
    // Never the first, which may take all remaining disks, so that there is no mirror.
    let spare = drawing.draw.within(1, count as u64 - 1) as usize;
    let mut members = Vec::new();
    for n in 0..count {
        if n == 0 || !drawing.disks.is_empty() {
            let place = if n == spare { Place::Spare } else { inside };
            members.push(drawing.member(depth, place)?);
        }
    }
    if members.len() < 2 {
        return Ok(members[0].part);
    }
    let victim = (inside == Place::Needed && spare < members.len()).then_some(spare);
    let trust = Value::Text(drawing.graph.name(members[0].part).to_owned());
    let timeout = Value::Duration(drawing.timeout * PATIENCE.pow(depth));
    let parts: Vec<_> = members.iter().map(|member| member.part).collect();
    let part = drawing.add("mirror", vec![("trust", trust), ("timeout", timeout)], &parts)?;
    drawing.mirrors.push(Mirror { part, members, victim, is_spare: inside == Place::Spare });
    Ok(part)
}

/// Draws a hook, which runs directly in the engine or as a device.
fn hook(
    drawing: &mut Drawing,
    depth: u32,
    kind: &'static str,
    mut options: Vec<(&'static str, Value)>,
) -> Result<PartId> {
    let lower = drawing.device(depth)?;
    if drawing.draw.below(2) == 0 {
        options.push(AS_DEVICE);
    }
    drawing.add(kind, options, &[lower])
}

fn pass(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    hook(drawing, depth, "pass", vec![])
}

fn trace(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    let path = format!("/trace{}", drawing.draw.next());
    // Small enough that it is filled to its end.
    let size = size("size", (64 << 10) * drawing.draw.within(1, 4));
    hook(drawing, depth, "trace", vec![("file", Value::Text(path)), size])
}

/// Draws a device that fails on purpose, in places where failures are reported to clients or masked by a
/// mirror.
fn error(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    if drawing.place == Place::Needed {
        return pass(drawing, depth);
    }
    drawing.may_fail |= drawing.place == Place::Open;
    let draw = drawing.draw;
    let mut options = vec![
        ("after", Value::Integer(draw.below(60))),
        ("rate", Value::Share(0.1)),
        ("count", Value::Integer(draw.within(1, 12))),
        ("when", Value::Text(draw.pick(&["before", "after"]).to_owned())),
    ];
    if draw.below(3) == 0 {
        let op = draw.pick(&["read", "write", "zero", "discard", "flush", "status"]);
        options.push(("op", Value::List(vec![op.to_owned()])));
    }
    hook(drawing, depth, "error", options)
}

/// Draws a delay that is much shorter than all timeouts.
fn delay(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    let lower = drawing.device(depth)?;
    let time = |most: u64| Value::Duration(Duration::from_micros(drawing.draw.below(most)));
    let options = vec![("time", time(2_000)), ("jitter", time(3_000)), ("flush", time(5_000))];
    drawing.add("delay", options, &[lower])
}

/// Draws a limit at which requests wait, but at which all requests of the clients pass within a second.
fn limit(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    let lower = drawing.device(depth)?;
    let draw = drawing.draw;
    let iops = Value::Integer(draw.within(500, 5_000));
    let bytes = Value::Size(draw.within(8 << 20, 64 << 20));
    let burst = ("burst", Value::Duration(Duration::from_micros(draw.within(1, 20_000))));
    let options = match draw.below(2) {
        0 => vec![("iops", iops), ("bytes", bytes), burst],
        _ => vec![("read_bytes", bytes), ("write_iops", iops), burst],
    };
    drawing.add("limit", options, &[lower])
}

/// Draws an encrypted device. Blank bytes below read as junk above, so the content must be read before the
/// first write.
fn crypt(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    if !drawing.readable {
        return pass(drawing, depth);
    }
    let lower = drawing.device(depth)?;
    let discards = drawing.draw.below(2) == 0;
    // Each has its own key. With one key for two devices, the second could get zeros encrypted by the first,
    // and would store zeros on its disk.
    let key = format!("file:/key{}", drawing.steps.len());
    let options = vec![
        ("key", Value::Text(key)),
        ("plain", Value::Switch(true)),
        ("discards", Value::Switch(discards)),
    ];
    drawing.add("crypt", options, &[lower])
}
