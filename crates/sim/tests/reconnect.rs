//! An NBD disk over connections that break and a server that loses its power: nobody above sees it.

use std::rc::Rc;
use std::time::Duration;

use block::env::{Address, CacheMode, DiskIo, Open, Storage};
use block::{Device, EXTENTS_MAX, Info, Op, Request, Result};
use export::nbd::{Export, Limits, Server};
use graph::engine::Engine;
use graph::kind::{Given, Maker, Value};
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Client, CutPolicy, DiskConfig, Door, Model, Profile, SimDisk, SimWorld};

const SEEDS: u64 = 60;
const CLIENTS: u64 = 6;
const REQUESTS: u64 = 120;
const BREAKS: u64 = 8;

/// Few enough bytes that the log is full at times.
const REPLAY: u64 = 128 << 10;

/// The disk of the server, which knows nothing of power: a device of kind `path` would remember the
/// flush that failed with it, and a server that is started anew does not.
struct Served {
    info: Info,
    storage: Rc<dyn Storage>,
}

impl Served {
    fn new(world: &SimWorld) -> Self {
        let (path, cache) = ("/disk".into(), CacheMode::Direct);
        let open = Open { path, device: true, read_only: false, create: None, cache };
        let storage = world.env().open(&open).unwrap();
        let facts = storage.facts();
        let info = Info { ..Info::disk(facts.size, facts.block_size) };
        Self { info, storage }
    }

    async fn io(&self, io: DiskIo) -> Result<()> {
        self.storage.start(io).await.result.map(drop)
    }
}

impl Device for Served {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { range, into, .. } => {
                self.io(DiskIo::Read { offset: range.start(), into: into.clone() }).await
            }
            Op::Write { range, data, fua } => {
                let (offset, data) = (range.start(), data.clone());
                self.io(DiskIo::Write { offset, data, fua: *fua }).await
            }
            Op::WriteZeroes { range, unmap, fua } => {
                let (range, fua) = (*range, *fua);
                self.io(DiskIo::Zero { range, unmap: *unmap }).await?;
                if fua { self.io(DiskIo::Flush).await } else { Ok(()) }
            }
            Op::Discard { range, fua } => {
                let (range, fua) = (*range, *fua);
                self.io(DiskIo::Discard { range }).await?;
                if fua { self.io(DiskIo::Flush).await } else { Ok(()) }
            }
            Op::Flush => self.io(DiskIo::Flush).await,
            Op::Status { range, extents } => {
                *extents = self.storage.extents(*range, EXTENTS_MAX)?;
                Ok(())
            }
        }
    }
}

/// Connects a disk in `world` to the export there.
fn disk(world: &SimWorld, connections: u64) -> Client {
    let env = world.env();
    let options = vec![
        ("nbd", Value::Text("nbd+unix:///volume?socket=/socket".to_owned())),
        ("connections", Value::Integer(connections)),
        ("replay", Value::Size(REPLAY)),
    ];
    let given =
        Given { graph: "test".to_owned(), name: "far".to_owned(), options, lowers: Vec::new() };
    let Maker::Disk { make, .. } = net::nbd::KIND.maker else { panic!("nbd is a disk") };
    let disk = world.block_on(make(&given, &env, None)).unwrap().unwrap();
    let engine = Engine::new(env.pool());
    env.spawn("the client's engine", engine.clone().drive());
    let node = engine.add_device("far", disk, &[]).unwrap();
    Client::new(&engine, node)
}

fn trial(seed: u64) -> u64 {
    let world = SimWorld::new(seed);
    let env = world.env();
    let draw = Stream::new(seed, "breaks", 0);
    let medium = SimDisk::new(&world, 0, DiskConfig::new(256 << 10, Profile::Native512));
    world.plug("/disk", &medium);
    let served = Rc::new(Served::new(&world));
    let engine = Engine::new(env.pool());
    env.spawn("the server's engine", engine.clone().drive());
    let node = engine.add_device("disk", served, &[]).unwrap();
    let export = Export::new(&env, &engine, node, "volume", "");
    let server = Server::new(&env, vec![export], Limits::default(), |_| {});
    server.serve(env.listen(&Address::Unix("/socket".into())).unwrap());
    let connections = 1 + draw.below(3);
    let client = disk(&world, connections);
    let model = Rc::new(Model::new(seed, client.info().size));
    let tally = Rc::new(Tally::default());
    let worker = |name, n| Worker {
        env: env.clone(),
        client: Door::Graph(client.clone()),
        model: model.clone(),
        tally: tally.clone(),
        draw: Stream::new(seed, name, n),
        mix: Mix { abandon: 0, ..Mix::ALL },
    };
    (0..CLIENTS).for_each(|n| worker("client", n).start(REQUESTS));
    for n in 0..BREAKS {
        let time = Duration::from_micros(draw.within(10, 30_000));
        world.run(env.now().after(time)).unwrap_or_else(|stuck| panic!("{stuck}. SEED={seed}"));
        if n % 2 == 0 {
            world.reset_connection(draw.below(connections));
        } else {
            // The server dies: of what nobody has flushed nothing is left.
            (0..connections).for_each(|_| world.reset_connection(0));
            medium.power_cut(CutPolicy::DropAll);
        }
    }
    world.block_on(tally.idle()).unwrap_or_else(|stuck| panic!("{stuck}. SEED={seed}"));
    world.block_on(worker("verify", 0).verify()).unwrap();
    assert!(
        tally.wrong.borrow().is_none(),
        "{}. SEED={seed}",
        tally.wrong.borrow().as_ref().unwrap()
    );
    assert!(tally.error.borrow().is_none(), "{:?}. SEED={seed}", tally.error.borrow());
    assert_eq!(tally.failed.get(), 0, "SEED={seed}");
    tally.done.get()
}

#[test]
fn nothing_is_lost_and_nothing_goes_back() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (1..=SEEDS).collect(),
    };
    let done: u64 = seeds.iter().map(|seed| trial(*seed)).sum();
    println!("{done} requests, all answered");
    assert!(done > 100 * seeds.len() as u64);
}
