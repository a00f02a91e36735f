//! A simulated server process with a graph over labelled disks, which tests start and change live.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::Op;
use engine::Engine;
use graph::labels::{Labels, Opening, Probe};
use graph::live::{RunningGraph, Unchanged};
use graph::spec::{Planned, Spec};
use kind::Registry;
use meta::Machine;

use crate::{Client, DiskConfig, Image, SimDisk, SimWorld};

/// Bytes of the buffer pool: so many that the number of devices in a graph does not shorten transfers.
const POOL_BYTES: usize = 1 << 30;

/// Simulated time that is longer than any operation of the tests takes.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Returns the options for opening labelled disks. `changes`: whether a live change opens the disks.
pub fn opening(changes: bool) -> Opening {
    Opening {
        machine: Machine::new("host", [1; 16]),
        degraded: changes,
        wipe: Vec::new(),
        replaced: Vec::new(),
        grow: BTreeMap::new(),
        accept_loss: false,
        take: false,
        changes,
    }
}

/// A simulated world with disks, and the engine of one server process. Disk number `n` has the path `/disk{n}`.
pub struct Rig {
    /// The simulated world.
    pub world: SimWorld,
    /// The engine of the server process.
    pub engine: Engine,
    /// The disks, by number.
    pub disks: Vec<Rc<SimDisk>>,
    registry: Registry,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Breaks a reference cycle: tasks hold the world, and the world holds tasks.
        self.engine.abandon();
        self.world.drop_tasks();
    }
}

impl Rig {
    /// Creates a world with one disk for each of `disks`, for graphs of the kinds in `registry`.
    pub fn new(registry: Registry, disks: &[DiskConfig]) -> Self {
        let world = SimWorld::with_pool(1, POOL_BYTES);
        let disk = |(n, config): (usize, &DiskConfig)| {
            let disk = SimDisk::new(&world, n as u64, config.clone());
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks = disks.iter().enumerate().map(disk).collect();
        let engine = Engine::new(world.env().pool());
        world.env().spawn("engine", engine.clone().drive());
        Self { world, engine, disks, registry }
    }

    /// Gives the content of `images` to the disks.
    pub fn put(&self, images: &[Image]) {
        self.disks.iter().zip(images).for_each(|(disk, image)| disk.put_back(image));
    }

    /// Plans the graph of the spec `text`, and reads the labels of its disks. `running` has the labels of the graph that
    /// the new one replaces.
    ///
    /// # Errors
    /// The refusals of the labels.
    ///
    /// # Panics
    /// If the spec has faults.
    pub async fn look(
        &self,
        text: &str,
        opening: Opening,
        running: Option<&Labels>,
    ) -> Result<(Planned, Probe), Unchanged> {
        let (env, spec) = (self.world.env(), Spec::parse(text, "g.toml", &|_| None));
        let (kinds, engine) = (self.registry, &self.engine);
        let probe = Probe::take(&spec, kinds, &env, engine, opening, false, running).await;
        if !probe.refusals().is_empty() {
            return Err(Unchanged::Refused(probe.refusals().to_vec()));
        }
        let planned = spec.plan_over(kinds, &env, &probe.facts()).await;
        Ok((planned.unwrap_or_else(|faults| panic!("{faults}")), probe))
    }

    /// Starts the graph of the spec `text` without options such as `--wipe` or `--degraded`.
    ///
    /// # Errors
    /// The refusal of the start.
    pub async fn start(&self, text: &str) -> Result<RunningGraph, Unchanged> {
        let (planned, probe) = self.look(text, opening(false), None).await?;
        RunningGraph::open(&self.world.env(), &self.engine, planned, Some(probe)).await
    }

    /// Starts the graph of the spec `text`, as [`Rig::start`], and runs the world meanwhile.
    ///
    /// # Errors
    /// The refusal of the start.
    ///
    /// # Panics
    /// If the start does not end.
    pub fn try_open(&self, text: &str) -> Result<RunningGraph, Unchanged> {
        self.world.block_on(self.start(text)).unwrap_or_else(|stuck| panic!("{stuck}"))
    }

    /// Starts the graph of the spec `text`, as [`Rig::try_open`].
    ///
    /// # Panics
    /// If the start is refused.
    pub fn open(&self, text: &str) -> RunningGraph {
        self.try_open(text).unwrap_or_else(|unchanged| panic!("{unchanged:?}"))
    }

    /// Returns a client of the export `vol` of the graph.
    ///
    /// # Panics
    /// If the graph has no such export.
    pub fn client(&self, live: &RunningGraph) -> Client {
        Client::of(&self.engine, live.portal("vol").expect("the spec has the export vol"))
    }

    /// Lets simulated time pass.
    ///
    /// # Panics
    /// If the world makes no progress.
    pub fn pass(&self, time: Duration) {
        self.world
            .run(self.world.env().now().after(time))
            .unwrap_or_else(|stuck| panic!("{stuck}"));
    }

    /// Sends a request, and returns its operation with the buffers.
    ///
    /// # Panics
    /// If the request fails or has no answer.
    pub fn call(&self, client: &Client, op: Op) -> Op {
        let answer = self.world.block_on(client.send(op)).unwrap_or_else(|stuck| panic!("{stuck}"));
        answer.result.unwrap_or_else(|error| panic!("{error}"));
        answer.op
    }
}
