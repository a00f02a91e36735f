//! The simulated process that serves a graph over labelled disks, as `cairn serve` does: its start, its live changes,
//! its stop, and the power cuts.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use block::{Env, Error, ErrorKind, Reason};
use engine::Engine;
use export::nbd::Server;
use graph::labels::{Labels, Opening, Probe};
use graph::live::{RunningGraph, Unchanged};
use graph::spec::{Faults, Planned, Spec};
use meta::Machine;
use sim::draw::Stream;
use sim::{Client, Count, CutPolicy, Door, SimDisk, SimWorld};

use crate::served::serve;
use crate::trial::Failure;

/// Longest virtual time that the simulator waits for any operation of the process. An operation that takes longer fails
/// the trial.
pub const LIMIT: Duration = Duration::from_secs(3600);

/// Longest wait of a live change until the graph has answered and flushed the requests in flight, as in `cairn serve`.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of times that the simulator starts a graph whose disks are still locked by operations of the previous
/// process, and the pause between two starts.
const OPEN_TRIES: u32 = 40;
const OPEN_PAUSE: Duration = Duration::from_millis(250);

/// The simulated server process from one start to its end.
pub struct Running {
    /// The engine that carries out the requests of the process's graph.
    pub engine: Engine,
    /// The graph that the process serves. A live change replaces its content.
    pub live: Rc<RunningGraph>,
    /// A client that sends requests directly to the export `vol`, without an NBD server.
    pub client: Client,
    /// How the clients of the trial send requests to the export `vol`: through the NBD server, or directly.
    pub door: Door,
    /// The NBD server; `None` if clients send requests directly into the engine.
    pub server: Option<Server>,
}

/// The spec, flags and limits that the simulator gives to a start of the process.
pub struct Wanted {
    /// The TOML text of the spec to start.
    pub text: String,
    /// Name of the member that the mirror trusts at this start, as with `--trust`; `None` for no decision.
    pub trust: Option<String>,
    /// Options for opening the labelled disks, as a user gives them to `cairn serve`.
    pub opening: Opening,
    /// Number of the clients' NBD connections; 0 if clients send requests directly into the engine.
    pub connections: usize,
    /// Longest virtual time that the start may take.
    pub limit: Duration,
}

/// The result of a start of the process.
pub enum Started {
    /// The process serves the graph.
    Up(Running),
    /// The process refused to start: the reason of the first error, and all errors.
    Refused(Option<Reason>, Refusal),
    /// The start did not end within the time limit; the process has ended.
    Unfinished,
}

/// Returns options for opening labelled disks as `cairn serve` has without flags, on the machine with this id.
pub fn opening(id: [u8; 16]) -> Opening {
    Opening {
        machine: Machine::new("host", id),
        degraded: false,
        wipe: Vec::new(),
        replaced: Vec::new(),
        grow: BTreeMap::new(),
        take: false,
        accept_loss: false,
        changes: false,
    }
}

/// Starts the process. Starts again after a pause while operations of the previous process keep disks locked. Adds the
/// number of starts to `starts`.
pub fn start(world: &SimWorld, starts: &mut u64, wanted: &Wanted) -> Result<Started, Failure> {
    for _ in 0..OPEN_TRIES {
        *starts += 1;
        let env = world.env();
        let engine = Engine::new(env.pool());
        let order = Stream::new(world.seed(), "order", *starts);
        engine.shuffle(move |ready| order.below(ready as u64) as usize);
        env.spawn("engine", engine.clone().drive());
        let (inside, opened) = (world.env(), engine.clone());
        let opening = async move { open(wanted, &inside, &opened).await };
        let up = world.block_on(async move { env.within(wanted.limit, opening).await })?;
        match up {
            None => {
                engine.abandon();
                return Ok(Started::Unfinished);
            }
            Some(Ok(live)) => {
                world.counters().add(Count::Labelled);
                check_reserves(&live)?;
                let portal = live.portal("vol").expect("the spec has the export vol");
                let client = Client::of(&engine, portal.clone());
                let (door, server) =
                    serve(&world.env(), &engine, portal, wanted.connections, *starts)?;
                let live = Rc::new(live);
                return Ok(Started::Up(Running { engine, live, client, door, server }));
            }
            Some(Err(unchanged)) => {
                let refusal = Refusal::of(&unchanged);
                engine.abandon();
                world.drop_tasks();
                let is_busy =
                    refusal.kind() == Some(ErrorKind::InUse) && refusal.reason().is_none();
                if !is_busy {
                    return Ok(Started::Refused(refusal.reason(), refusal));
                }
                world.run(world.env().now().after(OPEN_PAUSE))?;
            }
        }
    }
    Err(Failure::new("a start was refused: the disks of the ended process stay in use"))
}

/// Checks that the engine sets aside for each device at most the slots and copies that the plan of the spec computed.
/// For a missing disk the engine may set less aside.
fn check_reserves(live: &RunningGraph) -> Result<(), Failure> {
    let now = live.now();
    for (node, member) in now.planned.nodes.iter().zip(now.graph.members()) {
        let (planned, set_aside) = (node.reserve, now.graph.engine().reserve(member.node));
        if set_aside.slots > planned.slots || set_aside.copies > planned.copies {
            let name = &node.name;
            let words = format!("reserve of {name}: planned {planned:?}, set aside {set_aside:?}");
            return Err(Failure::new(words));
        }
    }
    Ok(())
}

/// Opens the graph of the spec `wanted.text`, as the start of the process does.
async fn open(wanted: &Wanted, env: &Env, engine: &Engine) -> Result<RunningGraph, Unchanged> {
    let mut spec = Spec::parse(&wanted.text, "g.toml", &|_| None);
    if let Some(member) = &wanted.trust {
        spec.trust(member, kinds::REGISTRY).expect("the trusted disk is a member of the mirror");
    }
    let (planned, probe) = look(&spec, env, engine, wanted.opening.clone(), None).await?;
    RunningGraph::open(env, engine, planned, Some(probe)).await
}

/// Reads the labels of the spec's disks, and plans the spec over them. `running`: the labels that the process has open
/// at a live change; `None` at a start.
async fn look(
    spec: &Spec,
    env: &Env,
    engine: &Engine,
    opening: Opening,
    running: Option<&Labels>,
) -> Result<(Planned, Probe), Unchanged> {
    let probe = Probe::take(spec, kinds::REGISTRY, env, engine, opening, false, running).await;
    if !probe.refusals().is_empty() {
        return Err(Unchanged::Refused(probe.refusals().to_vec()));
    }
    let planned = spec.plan_over(kinds::REGISTRY, env, &probe.facts()).await;
    let faults = |faults: Faults| Error::new(ErrorKind::Invalid, faults.to_string());
    Ok((planned.map_err(faults).map_err(Unchanged::Failed)?, probe))
}

/// All errors of a refused start or a failed live change.
pub struct Refusal(Vec<Error>);

impl Refusal {
    /// Collects the errors of a failed live change or start.
    pub fn of(unchanged: &Unchanged) -> Self {
        Self(match unchanged {
            Unchanged::Refused(refusals) => refusals.clone(),
            Unchanged::Failed(error) => vec![error.clone()],
            Unchanged::Lost { change, back } => {
                vec![change.clone(), back.clone().message_after("and no way back")]
            }
        })
    }

    /// Returns the reason of the first error.
    pub fn reason(&self) -> Option<Reason> {
        self.0.first().and_then(Error::reason)
    }

    /// Returns the kind of the first error.
    pub fn kind(&self) -> Option<ErrorKind> {
        self.0.first().map(Error::kind)
    }

    /// Returns the disk or device of the first error.
    pub fn place(&self) -> Option<&str> {
        self.0.first().and_then(Error::place)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all: Vec<_> = self.0.iter().map(Error::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

impl Running {
    /// Makes a live change of the served graph to the graph of the spec `text`. Returns `None` if the change does not
    /// end within `limit`.
    pub fn change(
        &self,
        world: &SimWorld,
        text: &str,
        opening: Opening,
        limit: Duration,
    ) -> Result<Option<Result<(), Unchanged>>, Failure> {
        let (live, engine, env) = (&self.live, &self.engine, world.env());
        let opening = Opening { changes: true, ..opening };
        let spec = Spec::parse(text, "g.toml", &|_| None);
        let change = async {
            let turn = live.turn().await;
            let now = live.now();
            let looked = look(&spec, &env, engine, opening, now.labels.as_ref()).await;
            let (planned, probe) = looked?;
            live.change(&turn, planned, Some(probe), PATIENCE).await.map(drop)
        };
        Ok(world.block_on(env.within(limit, change))?)
    }

    /// Stops the NBD server, which first answers the requests in flight, and flushes the graph. The flush must succeed.
    pub fn quiesce(&self, world: &SimWorld) -> Result<(), Failure> {
        if let (Door::Nbd(remote), Some(server)) = (&self.door, &self.server) {
            remote.close();
            world.block_on(server.stop(LIMIT))?;
        }
        match world.block_on(self.live.flush())?.first() {
            None => Ok(()),
            Some((_, error)) => {
                Err(Failure::new(format!("a flush without other requests failed: {error}")))
            }
        }
    }

    /// Closes the devices and then the labels, as `cairn serve` does at its stop. The inner result is an error if the
    /// process could not mark every label as closed.
    pub fn close(&self, world: &SimWorld) -> Result<block::Result<()>, Failure> {
        world.block_on(self.live.close_devices(world.env().now().after(LIMIT)))?;
        let now = self.live.now();
        let labels = now.labels.as_ref().expect("the graph has labelled disks");
        Ok(world.block_on(labels.close())?)
    }
}

/// Cuts the power of `disks` at once. Draws for each disk the policy by which it keeps unflushed writes.
pub fn cut_power<'d>(disks: impl IntoIterator<Item = &'d Rc<SimDisk>>, draw: &Stream) {
    let together = draw.pick(&CutPolicy::ALL);
    for disk in disks {
        let own = draw.pick(&CutPolicy::ALL);
        disk.power_cut(if draw.below(2) == 0 { together } else { own });
    }
}
