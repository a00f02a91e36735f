//! A simulated server process with a mirror over labelled disks, which tests open and change live.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Op};
use engine::Engine;
use graph::labels::{Labels, Opening, Probe};
use graph::live::{RunningGraph, Unchanged};
use graph::spec::{Planned, Spec};
use meta::Machine;
use sim::{Client, DiskConfig, Image, Profile, SimDisk, SimWorld};

pub const DATA_BYTES: u64 = 64 << 10;
pub const PIECE: usize = 4096;

/// Bytes of the buffer pool: so many that the number of devices in a graph does not shorten transfers.
const POOL_BYTES: usize = 1 << 30;

/// Longest time that a disk takes for a reply, in nanoseconds, unless a test sets another time.
pub const NS_MAX: u64 = 500_000;

/// Simulated time that is longer than any operation of the tests takes.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Returns the spec of a mirror over the disks with the numbers `on`, with a crypt device above the mirror if `safe`.
pub fn text(on: &[usize], safe: bool) -> String {
    let disk = |n: &usize| format!("d{n} = {{ path = \"/disk{n}\", label = true }}\n");
    let disks: String = on.iter().map(disk).collect();
    let names: Vec<_> = on.iter().map(|n| format!("\"d{n}\"")).collect();
    let names = names.join(", ");
    let (safe, top) = if safe { (SAFE, "safe") } else { ("", "m") };
    format!(
        "name = \"g\"\n[disk]\n{disks}[device]\nm = {{ kind = \"mirror\", on = [{names}] }}\n{safe}\
         [export]\nvol = {{ on = \"{top}\" }}\n"
    )
}

const SAFE: &str = "safe = { kind = \"crypt\", on = \"m\", key = \"credential:safe\", \
                    kdf_memory = \"64KiB\", kdf_passes = 1 }\n";

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

/// A simulated world with disks, and the engine of one server process.
pub struct Rig {
    pub world: SimWorld,
    pub engine: Engine,
    pub disks: Vec<Rc<SimDisk>>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Breaks a reference cycle: tasks hold the world, and the world holds tasks.
        self.engine.abandon();
        self.world.drop_tasks();
    }
}

impl Rig {
    pub fn new(disks: usize) -> Self {
        Self::of_speeds(&vec![NS_MAX; disks])
    }

    /// Makes one disk for each of `most_ns`, the longest time in nanoseconds that the disk takes for a reply.
    pub fn of_speeds(most_ns: &[u64]) -> Self {
        Self::made(most_ns, DATA_BYTES)
    }

    /// Makes disks with the content of `images`, and with `data_bytes` bytes for data beside the labels.
    pub fn of_larger(images: &[Image], data_bytes: u64) -> Self {
        let rig = Self::made(&vec![NS_MAX; images.len()], data_bytes);
        rig.disks.iter().zip(images).for_each(|(disk, image)| disk.put_back(image));
        rig
    }

    fn made(most_ns: &[u64], data_bytes: u64) -> Self {
        let world = SimWorld::with_pool(1, POOL_BYTES);
        let size = data_bytes + 2 * meta::AREA_BYTES;
        let disk = |(n, most_ns): (usize, &u64)| {
            let config = DiskConfig::new(size, Profile::Native512);
            let config = DiskConfig { most_ns: *most_ns, ..config };
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks = most_ns.iter().enumerate().map(disk).collect();
        let engine = Engine::new(world.env().pool());
        world.env().spawn("engine", engine.clone().drive());
        Self { world, engine, disks }
    }

    /// Makes a new process in a new simulated world, with disks that have the content of `images`.
    pub fn of(images: &[Image]) -> Self {
        Self::of_larger(images, DATA_BYTES)
    }

    pub async fn look(
        &self,
        text: &str,
        opening: Opening,
        running: Option<&Labels>,
    ) -> Result<(Planned, Probe), Unchanged> {
        let (env, spec) = (self.world.env(), Spec::parse(text, "g.toml", &|_| None));
        let (kinds, engine) = (kinds::REGISTRY, &self.engine);
        let probe = Probe::take(&spec, kinds, &env, engine, opening, false, running).await;
        if !probe.refusals().is_empty() {
            return Err(Unchanged::Refused(probe.refusals().to_vec()));
        }
        let planned = spec.plan_over(kinds, &env, &probe.facts()).await;
        Ok((planned.unwrap_or_else(|faults| panic!("{faults}")), probe))
    }

    /// Starts the graph of the spec `text` without options such as `--wipe` or `--degraded`.
    pub fn try_open(&self, text: &str) -> Result<RunningGraph, Unchanged> {
        let opening = async {
            let (planned, probe) = self.look(text, opening(false), None).await?;
            RunningGraph::open(&self.world.env(), &self.engine, planned, Some(probe)).await
        };
        self.world.block_on(opening).unwrap_or_else(|stuck| panic!("{stuck}"))
    }

    pub fn open(&self, text: &str) -> RunningGraph {
        self.try_open(text).unwrap_or_else(|unchanged| panic!("{unchanged:?}"))
    }

    pub fn client(&self, live: &RunningGraph) -> Client {
        Client::of(&self.engine, live.portal("vol").unwrap())
    }

    pub fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }

    pub fn call(&self, client: &Client, op: Op) -> Op {
        let answer = self.world.block_on(client.send(op)).unwrap();
        answer.result.unwrap();
        answer.op
    }

    pub fn fill(&self, client: &Client, byte: u8) {
        let data = self.world.env().buf(PIECE).unwrap();
        data.write().fill(byte);
        self.call(
            client,
            Op::Write { range: piece(), data, fua: true, restores: block::Copies::NONE },
        );
    }

    /// Whether all bytes of the volume's test range have this value.
    pub fn holds(&self, client: &Client, byte: u8) -> bool {
        let into = self.world.env().buf(PIECE).unwrap();
        let Op::Read { into, .. } = self.call(client, Op::read(piece(), into)) else {
            panic!("a read is answered as one")
        };
        let bytes = into.read();
        bytes.iter().all(|held| *held == byte)
    }
}

pub fn piece() -> ByteRange {
    ByteRange::new(0, PIECE as u64).unwrap()
}

/// Runs a task to its end. After each simulated event, calls `look` with images of the disks at that moment, in which
/// writes in flight count as unflushed.
pub fn moments<T: 'static>(
    rig: &Rig,
    task: impl Future<Output = T> + 'static,
    mut look: impl FnMut(Vec<Image>),
) -> T {
    let done: Rc<RefCell<Option<T>>> = Rc::default();
    let told = done.clone();
    rig.world.env().spawn("looked at", async move {
        let answer = task.await;
        *told.borrow_mut() = Some(answer);
    });
    loop {
        look(rig.disks.iter().map(|disk| disk.image_in_flight()).collect());
        if let Some(answer) = done.borrow_mut().take() {
            return answer;
        }
        assert!(rig.world.step(), "it comes to an end");
    }
}
