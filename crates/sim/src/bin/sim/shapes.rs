//! Random graphs: for each kind, how one of it is drawn. A new kind is a function and a line here.

use block::{Error, Result};
use graph::kind::Value;
use sim::draw::Stream;
use sim::{Assembly, PartId};

/// How a kind is drawn into a graph.
#[derive(Clone, Copy)]
pub struct Shape {
    /// The kind.
    pub kind: &'static str,
    draw: fn(&mut Drawing, u32) -> Result<PartId>,
}

/// All that can be drawn on top of something.
pub const SHAPES: &[Shape] = &[
    Shape { kind: "linear", draw: linear },
    Shape { kind: "partition", draw: partitions },
    Shape { kind: "concat", draw: concat },
    Shape { kind: "stripe", draw: stripe },
    Shape { kind: "mirror", draw: mirror },
    Shape { kind: "pass", draw: pass },
];

/// One device of a graph, so that the same graph can be built again after a restart.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its kind.
    pub kind: &'static str,
    options: Vec<(&'static str, Value)>,
    on: Vec<PartId>,
}

/// A graph that is being drawn.
pub struct Drawing<'a> {
    graph: &'a mut Assembly,
    draw: &'a Stream,
    /// Disks that are not used yet.
    disks: Vec<Step>,
    /// The largest block of any of them: everything is cut at multiples of it.
    block: u64,
    steps: Vec<Step>,
}

/// Draws a graph over `disks` of blocks of at most `block` bytes, and answers its top and how to build it again.
///
/// # Errors
/// If a kind refuses what was drawn, which is a mistake of its shape.
pub fn draw(
    graph: &mut Assembly,
    draw: &Stream,
    disks: Vec<Step>,
    block: u64,
    depth: u32,
) -> Result<(PartId, Vec<Step>)> {
    let mut drawing = Drawing { graph, draw, disks, block, steps: Vec::new() };
    let top = drawing.device(depth)?;
    Ok((top, drawing.steps))
}

/// Builds again what was drawn.
///
/// # Errors
/// If a disk cannot be opened.
pub fn rebuild(graph: &mut Assembly, steps: &[Step]) -> Result<()> {
    steps.iter().try_for_each(|step| graph.add(step.kind, &step.options, &step.on).map(drop))
}

/// A disk at `path`.
pub fn disk(kind: &'static str, path: String, timeout: std::time::Duration) -> Step {
    let options = vec![(kind, Value::Text(path)), ("timeout", Value::Duration(timeout))];
    Step { kind, options, on: Vec::new() }
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
        if depth == 0 || self.draw.below(5) == 0 {
            let n = self.draw.below(self.disks.len() as u64) as usize;
            let disk = self.disks.swap_remove(n);
            return self.add(disk.kind, disk.options, &[]);
        }
        (self.draw.pick(SHAPES).draw)(self, depth - 1)
    }

    /// Some devices, as long as there are disks for them.
    fn devices(&mut self, depth: u32, most: u64) -> Result<Vec<PartId>> {
        let mut devices = vec![self.device(depth)?];
        for _ in 0..self.draw.below(most) {
            if !self.disks.is_empty() {
                devices.push(self.device(depth)?);
            }
        }
        Ok(devices)
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

/// Two parts of one device, the second before the first.
fn partitions(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    // It takes two levels of the four that one request may fan out through.
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
    let lowers = drawing.devices(depth, 3)?;
    if lowers.len() < 2 {
        return Ok(lowers[0]);
    }
    let trust = Value::Text(drawing.graph.name(lowers[0]).to_owned());
    drawing.add("mirror", vec![("trust", trust)], &lowers)
}

fn pass(drawing: &mut Drawing, depth: u32) -> Result<PartId> {
    let lower = drawing.device(depth)?;
    drawing.add("pass", vec![], &[lower])
}
