//! A machine of the simulated world with one disk: its process is killed, its power is cut.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block::{Env, Lower};
use kind::Value;
use pool::geometry::Geometry;
use pool::live::{Options, Pool};
use sim::draw::Stream;
use sim::{Assembly, CutPolicy, DiskConfig, Profile, SimDisk, SimWorld};

use crate::scene::{POOL, block_on, make_on};

/// A machine with a pool on its disk.
pub struct Machine {
    pub world: SimWorld,
    pub draw: Stream,
    disk: Rc<SimDisk>,
    graph: RefCell<Option<Assembly>>,
}

impl Machine {
    /// Creates a machine, and a pool on its disk.
    pub fn new(seed: u64, disk_bytes: u64) -> Self {
        let world = SimWorld::new(seed);
        let draw = Stream::new(seed, "pool", 0);
        let profiles = [Profile::Native512, Profile::Native4k, Profile::Emulated512];
        let config = DiskConfig::new(disk_bytes, draw.pick(&profiles));
        let disk = SimDisk::new(&world, 0, config);
        world.plug("/disk", &disk);
        let machine = Self { world, draw, disk, graph: RefCell::default() };
        let lower = machine.lower();
        block_on(&machine.world, make_on(&machine.env(), &lower));
        machine
    }

    pub fn env(&self) -> Env {
        self.world.env()
    }

    /// Opens the disk for a process of the simulated world.
    fn lower(&self) -> Lower {
        let order = Stream::new(self.draw.next(), "order", 0);
        let mut graph = Assembly::new(&self.env(), kinds::REGISTRY, false, order);
        let disk = graph.add("path", &[("path", Value::Text("/disk".into()))], &[]).unwrap();
        let lower = graph.engine.lower(graph.node(disk));
        *self.graph.borrow_mut() = Some(graph);
        lower
    }

    pub fn open(&self, options: Options) -> Pool {
        let lower = self.lower();
        let geometry = Geometry::new(lower.info().size).unwrap();
        let (pool, lost) = block_on(&self.world, async {
            Pool::open(&self.env(), &lower, POOL, geometry, options).await.unwrap()
        });
        assert_eq!(lost, None, "a flushed record is missing");
        pool
    }

    /// Runs the world for a time.
    pub fn run(&self, length: Duration) {
        self.world.run(self.env().now().after(length)).unwrap();
    }

    /// Kills the process, and cuts the power in some cases. Returns whether it was cut.
    pub fn crash(&self) -> bool {
        self.world.kill();
        if let Some(graph) = self.graph.take() {
            graph.engine.abandon();
        }
        let is_cut = self.draw.chance(600_000);
        if is_cut {
            self.disk.power_cut(self.draw.pick(&CutPolicy::ALL));
        }
        // Requests that the kernel still works on end before the disk is opened again.
        self.run(Duration::from_secs(20));
        is_cut
    }
}
