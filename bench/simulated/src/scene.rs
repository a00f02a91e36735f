//! A device on simulated disks, and its load.

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

/// Time after which the last records of an idle device are proven, and its regions are cleared.
const AT_REST: Duration = Duration::from_secs(12);

/// Requests and bytes of all disks since their beginning.
#[derive(Clone, Copy)]
pub struct Used {
    pub reads: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub flushes: u64,
}

/// A device on one or more simulated disks.
pub struct Scene {
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    shelf: Rc<Shelf>,
    /// Kind of the device, with its options; `None` if the load uses the first disk itself.
    device: Option<(&'static str, Vec<(&'static str, Value)>)>,
    running: Option<(Assembly, PartId)>,
}

impl Scene {
    /// Makes a device of a kind with `options` on a new disk of `bytes` bytes. Writes of the disk take 0.1 ms, flushes
    /// 2 ms more.
    pub fn new(kind: &'static str, options: Vec<(&'static str, Value)>, bytes: u64) -> Self {
        Self::on(Some((kind, options)), &[bytes])
    }

    /// Makes a disk of `bytes` bytes without a device.
    pub fn plain(bytes: u64) -> Self {
        Self::on(None, &[bytes])
    }

    /// Makes a device on two disks, of which the second has its metadata.
    pub fn apart(
        kind: &'static str,
        mut options: Vec<(&'static str, Value)>,
        bytes: [u64; 2],
    ) -> Self {
        options.push(("meta", Value::Text("path1".to_owned())));
        Self::on(Some((kind, options)), &bytes)
    }

    /// Makes a mirror with `options` on new disks of `bytes` bytes.
    pub fn mirror(options: Vec<(&'static str, Value)>, bytes: &[u64]) -> Self {
        Self::on(Some(("mirror", options)), bytes)
    }

    fn on(device: Option<(&'static str, Vec<(&'static str, Value)>)>, bytes: &[u64]) -> Self {
        let world = SimWorld::new(1);
        let disk = |(n, bytes): (u64, &u64)| {
            let config = DiskConfig {
                destage: 0,
                least_ns: 80_000,
                most_ns: 120_000,
                flush_ns: 2_000_000,
                ..DiskConfig::new(*bytes, Profile::Native512)
            };
            let disk = SimDisk::new(&world, n, config);
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks = (0..).zip(bytes).map(disk).collect();
        let shelf = Shelf::strict(&world.env(), Stream::new(1, "shelf", 0), Vec::new());
        shelf.precede_plans();
        let mut scene = Self { world, disks, shelf, device, running: None };
        scene.start();
        scene
    }

    /// Starts the device.
    pub fn start(&mut self) {
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&self.world.env(), kinds::REGISTRY, false, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        let disk = |n| {
            let path = [("path", Value::Text(format!("/disk{n}")))];
            graph.add("path", &path, &[]).expect("the disk opens")
        };
        let on: Vec<_> = (0..self.disks.len()).map(disk).collect();
        let part = match &self.device {
            Some((kind, options)) => graph.add(kind, options, &on).expect("the device starts"),
            None => on[0],
        };
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

    /// Returns what the disks have done so far.
    pub fn used(&self) -> Used {
        let count = |count| self.world.counters().get(count);
        Used {
            reads: count(Count::DiskRead),
            writes: count(Count::DiskWrite),
            bytes_written: self.disks.iter().map(|disk| disk.bytes_written()).sum(),
            flushes: count(Count::DiskFlush),
        }
    }

    /// Returns the bytes that were written to the disk number `n`.
    pub fn bytes_written_to(&self, n: usize) -> u64 {
        self.disks[n].bytes_written()
    }

    /// Writes `count` requests, `depth` at a time. Request n is at the address `place(n)`. Returns the simulated time.
    pub fn write(&self, depth: u64, count: u64, place: impl Fn(u64) -> u64) -> Duration {
        self.load(depth, count, |number, range| {
            let data = self.world.env().buf(REQUEST as usize).expect("the pool has a buffer");
            data.write().fill(number as u8 | 1);
            Op::write(range(place(number)), data)
        })
    }

    /// Reads `count` requests, as [`Scene::write`] writes them.
    pub fn read(&self, depth: u64, count: u64, place: impl Fn(u64) -> u64) -> Duration {
        self.load(depth, count, |number, range| {
            let into = self.world.env().buf(REQUEST as usize).expect("the pool has a buffer");
            Op::read(range(place(number)), into)
        })
    }

    fn load(
        &self,
        depth: u64,
        count: u64,
        op: impl Fn(u64, fn(u64) -> ByteRange) -> Op,
    ) -> Duration {
        let (graph, part) = self.running.as_ref().expect("the device runs");
        let client = Client::new(&graph.engine, graph.node(*part));
        let (env, next) = (self.world.env(), Cell::new(0));
        let begun = env.now();
        let range = |start| ByteRange::new(start, REQUEST).expect("a request has bytes");
        let worker = async || {
            while next.get() < count {
                let number = next.replace(next.get() + 1);
                client.send(op(number, range)).await.result.expect("the disk has no faults");
            }
        };
        let workers: Vec<Pin<Box<dyn Future<Output = ()>>>> =
            (0..depth).map(|_| Box::pin(worker()) as _).collect();
        self.world.block_on(all(workers)).expect("the load ends");
        env.now().since(begun)
    }
}
