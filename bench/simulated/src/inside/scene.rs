//! A device on a disk in memory, and the requests to it, one after the other.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block::{Buf, ByteRange, Device, Env, Lower, Needs, Op, Request, Result};
use engine::{Portal, Sink};
use kind::Value;
use rustix::time::{ClockId, clock_gettime};
use sim::draw::Stream;
use sim::{Assembly, SimWorld};
use testkit::Shelf;

/// Bytes of the disk.
const DISK_BYTES: u64 = 64 << 20;

/// Bytes that the requests visit, at the end of the disk and of the device.
const AREA_BYTES: u64 = 16 << 20;

/// Virtual time after which an idle device has no work.
const AT_REST: Duration = Duration::from_secs(12);

/// Receives the reply to a request, and keeps the buffer for the next one.
struct Last(Cell<Option<Buf>>);

impl Sink for Last {
    fn done(&self, _: u64, request: Request, result: Result<()>) {
        assert!(result.is_ok(), "a disk in memory does not fail");
        if let Op::Read { into: buf, .. } | Op::Write { data: buf, .. } = request.op {
            self.0.set(Some(buf));
        }
    }
}

/// The device that gets a request.
#[derive(Clone, Copy)]
pub enum Target {
    /// The disk, without the device on it. Both read the same memory, because its place has much effect on the time.
    Disk,
    Device,
    /// A device to compare with, on the same disk.
    Rival,
}

/// A graph with a disk in memory, and two devices on it.
pub struct Scene {
    world: SimWorld,
    graph: Assembly,
    /// The portal of each target, and the first byte that requests to it visit.
    targets: [(Portal, u64); 3],
    last: Rc<Last>,
}

impl Scene {
    /// Makes the disk, and on it a device of the kind `kind` with options. Fills all blocks with data. `rival` makes the
    /// device to compare with.
    pub fn new<D: Device>(
        kind: &str,
        options: &[(&'static str, Value)],
        rival: impl Fn(Lower) -> (Rc<D>, Needs),
    ) -> Self {
        let world = SimWorld::new(1);
        let env = world.env();
        let shelf = Shelf::strict(&env, Stream::new(1, "shelf", 0), Vec::new());
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&env, kinds::REGISTRY, false, order);
        let mut graph = graph.in_world(&world).on_labels(shelf);
        let size = [("memory", Value::Size(DISK_BYTES))];
        let disk = graph.add("memory", &size, &[]).expect("a disk in memory opens");
        let device = graph.add(kind, options, &[disk]).expect("the device starts");
        let (rival, needs) = rival(graph.lower(disk));
        let [disk, device] = [disk, device].map(|part| graph.node(part));
        let rival = graph.engine.add_device("rival", rival, needs, &[disk]);
        let targets = [disk, device, rival.expect("a device on a disk has room")].map(|node| {
            let start = graph.engine.info(node).size - AREA_BYTES;
            (graph.engine.portal("bench", node), start)
        });
        let scene = Self { world, graph, targets, last: Rc::new(Last(Cell::default())) };
        scene.fill();
        scene
    }

    fn env(&self) -> Env {
        self.world.env()
    }

    /// Writes all blocks that the requests visit, and waits until the device has no work.
    fn fill(&self) {
        const STEP: u64 = 64 << 10;
        for at in (0..AREA_BYTES).step_by(STEP as usize) {
            let data = self.env().buf(STEP as usize).expect("the pool has a buffer");
            for (n, byte) in data.write().iter_mut().enumerate() {
                *byte = (n as u64 + at / STEP * 7) as u8 | 1;
            }
            let at = self.targets[Target::Device as usize].1 + at;
            let range = ByteRange::new(at, STEP).expect("a step has bytes");
            self.send(Target::Device, Op::write(range, data));
            self.world.run(self.env().now().after(Duration::from_millis(50))).expect("time passes");
            assert!(self.last.0.take().is_some(), "the write at {at} has ended");
        }
        self.world.run(self.env().now().after(AT_REST)).expect("an idle device rests");
    }

    fn send(&self, to: Target, op: Op) {
        let portal = &self.targets[to as usize].0;
        let sent = self.graph.engine.submit(portal, op, self.last.clone(), 0);
        assert!(sent.is_ok(), "one request always finds room");
    }

    /// Sends `count` reads of `bytes` bytes to a device, at scattered addresses, and calls `visit` with the address and the
    /// bytes of each. Returns the nanoseconds of the processor for a read.
    ///
    /// # Panics
    /// If a read waits: its bytes are in memory, and so is everything else that it needs.
    pub fn read_ns(
        &self,
        from: Target,
        count: u64,
        bytes: u64,
        mut visit: impl FnMut(u64, &Buf),
    ) -> f64 {
        self.last.0.set(Some(self.env().buf(bytes as usize).expect("the pool has a buffer")));
        let (start, begun) = (self.targets[from as usize].1, cpu_ns());
        for n in 0..count {
            let at = start + n.wrapping_mul(0x9e37_79b9) % (AREA_BYTES / bytes) * bytes;
            let range = ByteRange::new(at, bytes).expect("a read has bytes");
            let buf = self.last.0.take().expect("the last read has returned its buffer");
            self.send(from, Op::read(range, buf));
            let buf = self.last.0.take().expect("a read of memory does not wait");
            visit(at, &buf);
            self.last.0.set(Some(buf));
        }
        (cpu_ns() - begun) as f64 / count as f64
    }
}

/// Returns the time of the processor that this thread has had. Other programs take no part in it.
fn cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
