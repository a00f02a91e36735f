//! A device on one simulated disk, and its load.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Op, all};
use kind::Value;
use sim::draw::Stream;
use sim::{Assembly, Client, Count, DiskConfig, PartId, Profile, SimDisk, SimWorld};
use testkit::Shelf;

/// Bytes of a request of the load.
pub const REQUEST: u64 = 4096;

/// Time after which the last records of an idle device are proven.
const AT_REST: Duration = Duration::from_secs(5);

/// Requests and bytes of the disk since its beginning.
#[derive(Clone, Copy)]
pub struct Used {
    pub reads: u64,
    pub bytes_written: u64,
    pub flushes: u64,
}

/// A device on one simulated disk.
pub struct Scene {
    world: SimWorld,
    disk: Rc<SimDisk>,
    shelf: Rc<Shelf>,
    kind: &'static str,
    options: Vec<(&'static str, Value)>,
    running: Option<(Assembly, PartId)>,
}

impl Scene {
    /// Makes a device of a kind with `options` on a new disk of `bytes` bytes. Writes of the disk take 0.1 ms, flushes
    /// 2 ms more.
    pub fn new(kind: &'static str, options: Vec<(&'static str, Value)>, bytes: u64) -> Self {
        let world = SimWorld::new(1);
        let config = DiskConfig {
            destage: 0,
            least_ns: 80_000,
            most_ns: 120_000,
            flush_ns: 2_000_000,
            ..DiskConfig::new(bytes, Profile::Native512)
        };
        let disk = SimDisk::new(&world, 0, config);
        world.plug("/disk0".to_owned(), &disk);
        let shelf = Shelf::strict(&world.env(), Stream::new(1, "shelf", 0), Vec::new());
        let mut scene = Self { world, disk, shelf, kind, options, running: None };
        scene.start();
        scene
    }

    /// Starts the device.
    pub fn start(&mut self) {
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&self.world.env(), kinds::REGISTRY, false, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        let path = [("path", Value::Text("/disk0".to_owned()))];
        let disk = graph.add("path", &path, &[]).expect("the disk opens");
        let part = graph.add(self.kind, &self.options, &[disk]).expect("the device starts");
        self.running = Some((graph, part));
    }

    /// Kills the process of the device.
    pub fn kill(&mut self) {
        self.running = None;
        self.world.kill();
        self.rest();
    }

    /// Lets time pass until the device has no work.
    pub fn rest(&self) {
        let until = self.world.env().now().after(AT_REST);
        self.world.run(until).expect("an idle device rests");
    }

    /// Returns what the disk has done so far.
    pub fn used(&self) -> Used {
        let count = |count| self.world.counters().get(count);
        Used {
            reads: count(Count::DiskRead),
            bytes_written: self.disk.bytes_written(),
            flushes: count(Count::DiskFlush),
        }
    }

    /// Writes `count` requests, `depth` at a time. Request n is at the address `place(n)`. Returns the simulated time.
    pub fn write(&self, depth: u64, count: u64, place: impl Fn(u64) -> u64) -> Duration {
        let (graph, part) = self.running.as_ref().expect("the device runs");
        let client = Client::new(&graph.engine, graph.node(*part));
        let (env, next) = (self.world.env(), Cell::new(0));
        let begun = env.now();
        let worker = async || {
            while next.get() < count {
                let number = next.replace(next.get() + 1);
                let data = env.buf(REQUEST as usize).expect("the pool has a buffer");
                data.write().fill(number as u8 | 1);
                let range = ByteRange::new(place(number), REQUEST).expect("a request has bytes");
                client.send(Op::write(range, data)).await.result.expect("the disk has no faults");
            }
        };
        let workers: Vec<Pin<Box<dyn Future<Output = ()>>>> =
            (0..depth).map(|_| Box::pin(worker()) as _).collect();
        self.world.block_on(all(workers)).expect("the load ends");
        env.now().since(begun)
    }
}
