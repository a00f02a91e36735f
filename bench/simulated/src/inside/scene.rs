//! A device on a disk in memory, and the requests to it, one after the other.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use block::{Buf, ByteRange, Env, Op, Request, Result};
use engine::{Portal, Sink};
use kind::Value;
use sim::draw::Stream;
use sim::{Assembly, SimWorld};
use testkit::Shelf;

/// Bytes of the disk.
const DISK_BYTES: u64 = 64 << 20;

/// Bytes that the requests visit.
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

/// A graph with a disk in memory, and one device on it or none.
pub struct Scene {
    world: SimWorld,
    graph: Assembly,
    portal: Portal,
    last: Rc<Last>,
}

impl Scene {
    /// Makes the disk, and on it a device of a kind with options if one is named. Fills all blocks with data.
    pub fn new(device: Option<(&str, &[(&'static str, Value)])>) -> Self {
        let world = SimWorld::new(1);
        let env = world.env();
        let shelf = Shelf::strict(&env, Stream::new(1, "shelf", 0), Vec::new());
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&env, kinds::REGISTRY, false, order);
        let mut graph = graph.in_world(&world).on_labels(shelf);
        let size = [("memory", Value::Size(DISK_BYTES))];
        let mut top = graph.add("memory", &size, &[]).expect("a disk in memory opens");
        if let Some((kind, options)) = device {
            top = graph.add(kind, options, &[top]).expect("the device starts");
        }
        let portal = graph.engine.portal("bench", graph.node(top));
        let scene = Self { world, graph, portal, last: Rc::new(Last(Cell::default())) };
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
            let range = ByteRange::new(at, STEP).expect("a step has bytes");
            self.send(Op::write(range, data));
            self.world.run(self.env().now().after(Duration::from_millis(50))).expect("time passes");
            assert!(self.last.0.take().is_some(), "the write at {at} has ended");
        }
        self.world.run(self.env().now().after(AT_REST)).expect("an idle device rests");
    }

    fn send(&self, op: Op) {
        let sent = self.graph.engine.submit(&self.portal, op, self.last.clone(), 0);
        assert!(sent.is_ok(), "one request always finds room");
    }

    /// Sends `count` reads of `bytes` bytes, at scattered addresses. Returns the nanoseconds of each.
    ///
    /// # Panics
    /// If a read waits: its bytes are in memory, and so is everything else that it needs.
    pub fn read_ns(&self, count: u64, bytes: u64) -> f64 {
        self.last.0.set(Some(self.env().buf(bytes as usize).expect("the pool has a buffer")));
        let begun = Instant::now();
        for n in 0..count {
            let at = n.wrapping_mul(0x9e37_79b9) % (AREA_BYTES / bytes) * bytes;
            let range = ByteRange::new(at, bytes).expect("a read has bytes");
            let buf = self.last.0.take().expect("a read of memory does not wait");
            self.send(Op::read(range, buf));
        }
        begun.elapsed().as_nanos() as f64 / count as f64
    }
}
