//! The trial of a mirror whose members replace each other while flushes are late. Commands take some members out and
//! resync them while flushes to the other members are in flight. Then commands take the other members out. No flush of
//! a client may fail, and flushed writes must survive a power cut.

use std::rc::Rc;
use std::time::Duration;

use block::control::member::{Fail, Name};
use kind::Value;
use sim::draw::Stream;
use sim::workload::Mix;
use sim::{Assembly, Client, Count, Counters, CutPolicy, Door, Faults, PartId, SimDisk, SimWorld};

use crate::clients::{Clients, May};
use crate::mirrors::Mirrors;
use crate::plan::Plan;
use crate::shapes::{Member, Mirror};
use crate::trial::{Failure, Report};

/// Longest virtual time that the trial waits for resyncs: about as long as the latest flush takes.
const COPY_WITHIN: Duration = Duration::from_secs(3);

/// Request types of a client that sends only flushes.
const FLUSH: Mix = Mix {
    read: 0,
    write: 0,
    zero: 0,
    discard: 0,
    flush: 1,
    status: 0,
    fua: 0,
    abandon: 0,
    pause: 0,
    longest: None,
    hot: None,
};

/// Runs the trial `handover` of a seed.
///
/// # Errors
/// The first rule that the seed broke.
pub fn run(seed: u64) -> Result<Report, Failure> {
    let mut trial = Trial::new(seed)?;
    for round in 0..trial.plan.rounds.len() as u64 {
        trial.round(round)?;
    }
    trial.redundancy()?;
    Ok(trial.report())
}

struct Trial {
    plan: Plan,
    world: SimWorld,
    draw: Stream,
    disks: Vec<Rc<SimDisk>>,
    mirrors: Mirrors,
    graph: Rc<Assembly>,
    clients: Clients,
    starts: u64,
}

impl Drop for Trial {
    fn drop(&mut self) {
        // Breaks a reference cycle: tasks hold the world, and the world holds tasks.
        self.graph.engine.abandon();
        self.world.drop_tasks();
    }
}

impl Trial {
    fn new(seed: u64) -> Result<Self, Failure> {
        let (plan, world) = (Plan::handover(seed), SimWorld::new(seed));
        let disk = |(n, config): (usize, &sim::DiskConfig)| {
            let disk = SimDisk::new(&world, n as u64, config.clone());
            world.plug(path(n), &disk);
            disk
        };
        let disks: Vec<_> = plan.disks.iter().enumerate().map(disk).collect();
        let member = |n| Member { part: n, disks: vec![n], is_disk: true, fails: false };
        let members = (0..disks.len()).map(member).collect();
        let mirror = Mirror { part: disks.len(), members, victim: None, is_spare: false };
        let mirrors = Mirrors::new(&world, &disks, vec![mirror], &plan, |_| None);
        let graph = start(&world, &plan, 0, "path0")?;
        let clients = Clients::new(&world, door(&graph, disks.len()), May::default());
        let draw = Stream::new(seed, "handover", 0);
        Ok(Self { plan, world, draw, disks, mirrors, graph: Rc::new(graph), clients, starts: 0 })
    }

    /// Runs one round: takes some members out of the mirror, resyncs them while flushes to the other members are late,
    /// and then takes those other members out.
    fn round(&mut self, round: u64) -> Result<(), Failure> {
        self.until_in_sync()?;
        for n in 0..self.plan.clients {
            self.clients.worker(round << 32 | n, self.plan.mix).start(self.plan.requests);
        }
        let (first, second) = self.halves();
        self.take_out(&first)?;
        self.pass(1_000, 4_000_000)?;
        let late = self.draw.within(300_000, 1_000_000) as u32;
        self.each(&second, Faults { late_flush: late, ..Faults::default() });
        let begun = self.clients.tally.flushes.get();
        self.clients.worker(round << 32 | self.plan.clients, FLUSH).start(self.draw.within(1, 3));
        self.pass(1_000, 4_000_000)?;
        self.mirrors.resync(&self.graph);
        self.until_copied()?;
        if self.draw.below(2) == 0 {
            self.each(&second, Faults::default());
        }
        let are_out = self.take_out(&second)? == second.len();
        if are_out && self.clients.tally.flushes.get() == begun {
            self.world.counters().add(Count::TakenOver);
        }
        self.end()
    }

    /// Ends the round. Waits until the clients have all replies, or cuts the power, in some cases right after a flush
    /// was acknowledged. Then verifies the volume.
    fn end(&mut self) -> Result<(), Failure> {
        match self.draw.below(4) {
            0 => self.clients.finish()?,
            1 => {
                self.pass(1_000, 3_000_000_000)?;
                self.power_cut()?;
            }
            _ => {
                let flushes = self.clients.tally.flushes.get() + self.draw.within(1, 3);
                self.world.block_on(self.clients.tally.until_flushes(flushes))?;
                self.power_cut()?;
            }
        }
        self.clients.judge()?;
        self.clients.verify(self.starts)
    }

    /// Divides the mirror's members at random into two parts, of which neither is empty. Returns their disk numbers.
    fn halves(&self) -> (Vec<usize>, Vec<usize>) {
        let mut first: Vec<_> = (0..self.disks.len()).collect();
        let keep = self.draw.within(1, first.len() as u64 - 1) as usize;
        let mut second = Vec::new();
        while first.len() > keep {
            second.push(first.swap_remove(self.draw.below(first.len() as u64) as usize));
        }
        (first, second)
    }

    fn each(&self, members: &[usize], faults: Faults) {
        members.iter().for_each(|n| self.disks[*n].set_faults(faults));
    }

    /// Sends the command `member.fail` for each of `members`. Returns the number of commands that the mirror accepted.
    fn take_out(&self, members: &[usize]) -> Result<usize, Failure> {
        let mut out = 0;
        for n in members {
            let member = self.graph.name(*n).to_owned();
            // The mirror refuses it if none of the others is in sync.
            if self.graph.ask::<Fail>(self.disks.len(), Name { member }).is_ok() {
                self.world.counters().add(Count::MemberFailed);
                out += 1;
            }
            self.pass(1, 100_000)?;
        }
        Ok(out)
    }

    /// Waits until the mirror resyncs no member, at most for [`COPY_WITHIN`].
    fn until_copied(&self) -> Result<(), Failure> {
        let begun = self.world.env().now();
        while self.world.env().now().since(begun) < COPY_WITHIN
            && self.mirrors.is_copying(&self.graph).map_err(Failure::new)?
        {
            self.pass(1_000, 4_000_000)?;
        }
        self.clients.judge()
    }

    fn pass(&self, least_ns: u64, most_ns: u64) -> Result<(), Failure> {
        self.clients.pass(Duration::from_nanos(self.draw.within(least_ns, most_ns)))
    }

    fn power_cut(&mut self) -> Result<(), Failure> {
        let trusted = self.mirrors.trusted(&self.graph, &self.draw).map_err(Failure::new)?;
        let trust = trusted.into_iter().next().map(|(_, name)| name).unwrap_or_default();
        self.clients.tally.killed();
        self.clients.door = None;
        self.graph.engine.abandon();
        self.world.drop_tasks();
        for disk in &self.disks {
            disk.power_cut(self.draw.pick(&CutPolicy::ALL));
            disk.set_faults(Faults::default());
        }
        self.clients.model.power_cut();
        self.starts += 1;
        self.graph = Rc::new(start(&self.world, &self.plan, self.starts, &trust)?);
        self.clients.door = Some(door(&self.graph, self.disks.len()));
        Ok(())
    }

    /// Ends all disk faults, resyncs, and checks that all members of the mirror are in sync.
    fn until_in_sync(&self) -> Result<(), Failure> {
        self.each(&(0..self.disks.len()).collect::<Vec<_>>(), Faults::default());
        if !self.mirrors.quiet(&self.graph).map_err(Failure::new)? {
            return Err(Failure::new("the mirrors did not come to rest after the last fault"));
        }
        self.mirrors.resync(&self.graph);
        self.mirrors.quiet(&self.graph).map_err(Failure::new)?;
        self.mirrors.all_in_sync(&self.graph).map_err(Failure::new)
    }

    /// Waits for the clients, then checks that all members of the mirror come in sync and have the same bytes.
    fn redundancy(&self) -> Result<(), Failure> {
        self.clients.finish()?;
        self.until_in_sync()?;
        self.mirrors.check(&self.graph).map_err(Failure::new)?;
        self.clients.verify(u64::from(u16::MAX))
    }

    fn report(&self) -> Report {
        let counters = Counters::default();
        counters.absorb(self.world.counters());
        let tally = &self.clients.tally;
        let kinds = vec!["path", "mirror"];
        let requests = (tally.done.get(), tally.failed.get());
        Report { counters, kinds, requests, trace: self.world.trace() }
    }
}

fn path(n: usize) -> String {
    format!("/disk{n}")
}

fn door(graph: &Assembly, mirror: PartId) -> Door {
    Door::Graph(Client::new(&graph.engine, graph.node(mirror)))
}

/// Opens the graph of the trial: a mirror over all disks. The mirror trusts the member with the name `trust`.
fn start(world: &SimWorld, plan: &Plan, start: u64, trust: &str) -> Result<Assembly, Failure> {
    let order = Stream::new(world.seed(), "order", start);
    let mut graph = Assembly::new(&world.env(), kinds::REGISTRY, plan.fuse, order);
    let failed = |error| Failure::new(format!("the graph did not open after a hand-over: {error}"));
    let mut parts = Vec::new();
    for n in 0..plan.disks.len() {
        parts.push(graph.add("path", &[("path", Value::Text(path(n)))], &[]).map_err(failed)?);
    }
    let (trust, timeout) = (Value::Text(trust.to_owned()), Value::Duration(plan.patience));
    graph.add("mirror", &[("trust", trust), ("timeout", timeout)], &parts).map_err(failed)?;
    Ok(graph)
}
