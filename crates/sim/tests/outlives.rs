//! Kills of the process with an NBD disk at any moment, even during a write to its persistent replay memory, and power
//! cuts of the NBD server. The next process must have all acknowledged writes, because the memory outlives the process.

#[path = "common/served.rs"]
mod served;
#[path = "common/spoken.rs"]
mod spoken;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Env, ErrorKind, Needs, Op};
use engine::{AnyDevice, Engine};
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Client, Count, CutPolicy, Door, Model, ProcessId, SimDisk, SimWorld};
use wire::nbd::{Command, TransmissionFlags};

const SEEDS: u64 = 100;
const LIVES: u64 = 6;
const CLIENTS: u64 = 6;
const REQUESTS: u64 = 60;

/// Bytes of the replay memory: so few that the ring in the memory wraps around before a kill.
const REPLAY: u64 = 96 << 10;

/// About the longest time that the NBD disk takes to start, in microseconds.
const COMES_UP_US: u64 = 6_000;

const SERVER: ProcessId = ProcessId(1);

/// The client and the NBD disk of the current process; `None` while the process starts and after its kill.
type Up = Rc<RefCell<Option<(Client, Rc<dyn AnyDevice>)>>>;

/// The running process with the NBD disk. Dropped with the tasks of the process at its kill.
struct Life {
    engine: Engine,
    up: Up,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.engine.abandon();
        drop(self.up.take());
    }
}

/// Runs a process: opens the NBD disk, which stays open until the process is killed.
async fn live(env: Env, connections: u64, up: Up) {
    let disk = served::disk(&env, connections, REPLAY).await;
    // Connections may break during the start; the caller starts it again.
    let Ok(disk) = disk else { return };
    let engine = Engine::new(env.pool());
    env.spawn("the client's engine", engine.clone().drive());
    let node = engine.add_device("far", disk.clone(), Needs::LEAF, &[]).unwrap();
    *up.borrow_mut() = Some((Client::new(&engine, node), disk));
    let _life = Life { engine, up };
    std::future::pending::<()>().await;
}

fn counted(disk: &dyn AnyDevice, name: &str) -> u64 {
    disk.report().counters.iter().find(|(known, _)| *known == name).expect("it counts").1
}

#[derive(Default)]
struct Sum {
    done: u64,
    /// Number of writes that processes have replayed from the memory of killed processes.
    inherited: u64,
    died_writing: u64,
    died_coming_up: u64,
}

struct Trial {
    seed: u64,
    world: SimWorld,
    draw: Stream,
    medium: Rc<SimDisk>,
    connections: u64,
    model: Rc<Model>,
    tally: Rc<Tally>,
    up: Up,
    process: ProcessId,
    sum: Sum,
}

impl Trial {
    fn new(seed: u64) -> Self {
        let world = SimWorld::new(seed);
        world.keep_memory();
        world.enter(SERVER);
        let medium = served::serve(&world);
        let draw = Stream::new(seed, "kills", 0);
        let connections = 1 + draw.below(3);
        let model = Rc::new(Model::new(seed, served::BYTES));
        let (tally, up, sum) = Default::default();
        Self { seed, world, draw, medium, connections, model, tally, up, process: SERVER, sum }
    }

    fn pass(&self, most_us: u64) {
        let time = Duration::from_micros(self.draw.within(1, most_us));
        let until = self.world.env().now().after(time);
        self.world.run(until).unwrap_or_else(|stuck| panic!("{stuck}. SEED={}", self.seed));
    }

    /// Starts the next process with the NBD disk.
    fn start(&mut self) {
        self.process = ProcessId(self.process.0 + 1);
        self.world.enter(self.process);
        let env = self.world.env();
        env.spawn("a life", live(env.clone(), self.connections, self.up.clone()));
    }

    fn client(&self) -> Client {
        self.up.borrow().as_ref().expect("it is up").0.clone()
    }

    fn worker(&self, number: u64) -> Worker {
        Worker {
            env: self.world.env(),
            client: Door::Graph(self.client()),
            model: self.model.clone(),
            tally: self.tally.clone(),
            draw: Stream::new(self.seed, "client", self.process.0 << 32 | number),
            mix: Mix { abandon: 0, ..Mix::ALL },
        }
    }

    /// Cuts the power of the NBD server, or breaks a connection, or does neither, at random.
    fn trouble(&self) {
        match self.draw.below(3) {
            0 => self.world.reset_connection(self.draw.next()),
            1 => self.power_cut(),
            _ => {}
        }
    }

    fn power_cut(&self) {
        (0..self.connections).for_each(|_| self.world.reset_connection(0));
        self.medium.power_cut(CutPolicy::DropAll);
    }

    /// Lets simulated time pass until the NBD disk is open or the process is killed.
    fn until_up(&self) {
        while self.up.borrow().is_none() && self.world.is_alive(self.process) {
            self.pass(100);
        }
    }

    /// Runs a process under load until it is killed: at a random time, or during a write to its replay memory.
    fn life(&mut self) {
        let kills = self.world.counters().get(Count::Kill);
        self.start();
        let (dies_writing, writes) = (self.draw.below(3) == 0, self.draw.within(1, 60));
        if dies_writing {
            self.world.kill_at_memory_write(writes, self.draw.below(600) as usize);
        }
        match self.draw.below(4) {
            0 => self.pass(COMES_UP_US),
            _ => self.until_up(),
        }
        if self.up.borrow().is_some() {
            self.count_inherited();
            (0..CLIENTS).for_each(|n| self.worker(n).start(REQUESTS));
            for _ in 0..self.draw.below(3) {
                self.pass(10_000);
                self.trouble();
            }
            self.pass(10_000);
        } else {
            self.sum.died_coming_up += 1;
        }
        self.sum.died_writing += self.world.counters().get(Count::Kill) - kills;
        self.end();
    }

    fn count_inherited(&mut self) {
        let Some((_, disk)) = self.up.borrow().clone() else { return };
        self.sum.inherited += counted(&*disk, "replayed");
    }

    fn end(&mut self) {
        self.world.kill_process(self.process);
        if self.draw.below(2) == 0 {
            self.power_cut();
        }
        self.tally.killed();
        self.model.restarted();
        self.judge();
    }

    fn judge(&self) {
        let seed = self.seed;
        let wrong = self.tally.wrong.borrow();
        assert!(wrong.is_none(), "{}. SEED={seed}", wrong.as_ref().unwrap());
        let error = self.tally.error.borrow();
        assert!(error.is_none(), "{error:?}. SEED={seed}");
    }

    /// Runs and kills processes one after the other. A last process must find all acknowledged writes, and its flush
    /// must bring them to the server's disk.
    fn run(mut self) -> Sum {
        (0..LIVES).for_each(|_| self.life());
        while self.up.borrow().is_none() {
            self.start();
            self.until_up();
        }
        let verify = || {
            self.world.block_on(self.worker(CLIENTS).verify()).unwrap();
            self.judge();
        };
        verify();
        let flush = self.client().send(Op::Flush);
        self.world.block_on(flush).unwrap().result.unwrap();
        self.power_cut();
        verify();
        self.sum.done = self.tally.done.get();
        self.world.kill_process(self.process);
        self.sum
    }
}

#[test]
fn nbd_disk_replays_acknowledged_writes_after_process_kill() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (1..=SEEDS).collect(),
    };
    let mut sum = Sum::default();
    for seed in &seeds {
        let Sum { done, inherited, died_writing, died_coming_up } = Trial::new(*seed).run();
        sum.done += done;
        sum.inherited += inherited;
        sum.died_writing += died_writing;
        sum.died_coming_up += died_coming_up;
    }
    let Sum { done, inherited, died_writing, died_coming_up } = sum;
    println!(
        "{done} requests answered; {inherited} changes sent again; {died_writing} died while they wrote, \
         {died_coming_up} while they came up"
    );
    let enough = seeds.len() as u64;
    assert!(done > 100 * enough);
    assert!(seeds.len() == 1 || inherited > enough && died_writing > enough / 4);
    assert!(seeds.len() == 1 || died_coming_up > enough / 4);
}

#[test]
fn nbd_disk_keeps_write_that_was_read_before_kill() {
    let mut trial = Trial::new(1);
    let world = trial.world.clone();
    trial.start();
    trial.until_up();
    let range = ByteRange::new(0, 4096).unwrap();
    let data = world.env().buf(4096).unwrap();
    data.write().fill(7);
    let client = trial.client();
    let answered = Rc::new(Cell::new(false));
    let told = answered.clone();
    world.env().spawn("a write", async move {
        let _ = client.send(Op::write(range, data)).await;
        told.set(true);
    });
    while trial.medium.peek(range) != [7; 4096] {
        assert!(world.step(), "it reaches the server");
    }
    assert!(!answered.get(), "nobody knows of it yet");
    world.kill_process(trial.process);
    trial.start();
    trial.until_up();
    let is_there = || {
        let into = world.env().buf(4096).unwrap();
        let read = world.block_on(trial.client().send(Op::read(range, into))).unwrap();
        let Op::Read { into, .. } = read.op else { panic!("it was a read") };
        *into.read() == [7; 4096]
    };
    assert!(is_there(), "it was done");
    trial.power_cut();
    assert!(is_there(), "what was seen once does not go");
}

#[test]
fn persistent_memory_refuses_second_owner() {
    let world = SimWorld::new(1);
    world.keep_memory();
    world.enter(SERVER);
    let _medium = served::serve(&world);
    world.enter(ProcessId(2));
    let env = world.env();
    let opened = async {
        let first = served::disk(&env, 1, REPLAY).await.unwrap();
        let refused = served::disk(&env, 1, REPLAY).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
        // A live change closes a device before it makes it anew, and keeps the closed one for an undoing.
        assert!(first.close().await.is_none());
        served::disk(&env, 1, REPLAY).await.unwrap();
    };
    world.block_on(opened).unwrap();
}

#[test]
fn nbd_disk_clears_replay_memory_when_server_has_no_flush() {
    let world = SimWorld::new(1);
    world.keep_memory();
    world.enter(SERVER);
    let server = spoken::serve(&world);
    server.flags.set(TransmissionFlags::FLUSH);
    let up = Up::default();
    let life = |process| {
        world.enter(ProcessId(process));
        let env = world.env();
        env.spawn("a life", live(env.clone(), 1, up.clone()));
        while up.borrow().is_none() {
            assert!(world.step(), "it comes up");
        }
        let (client, disk) = up.borrow().clone().unwrap();
        let counts = ["replayed", "unflushed_bytes"].map(|name| counted(&*disk, name));
        (client, counts)
    };
    let told = || server.told.take();

    let (client, counts) = life(2);
    assert_eq!(counts, [0, 0]);
    let range = ByteRange::new(0, 4096).unwrap();
    let write = client.send(Op::write(range, world.env().buf(4096).unwrap()));
    world.block_on(write).unwrap().result.unwrap();
    world.kill_process(ProcessId(2));
    assert_eq!(told(), [Command::Write]);

    server.flags.set(TransmissionFlags::NONE);
    let (client, counts) = life(3);
    assert_eq!(counts, [1, 0], "what it was told again, it has");
    world.block_on(client.send(Op::Flush)).unwrap().result.unwrap();
    world.kill_process(ProcessId(3));
    assert_eq!(told(), [Command::Write]);

    let (_, counts) = life(4);
    assert_eq!(counts, [0, 0], "nothing is left for the next process");
    assert_eq!(told(), []);
}
