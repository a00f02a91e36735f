//! An NBD disk whose connections break and whose server loses its power. Clients must get no error and lose no write.

#[path = "common/served.rs"]
mod served;

use block::Needs;
use std::rc::Rc;
use std::time::Duration;

use engine::Engine;
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Client, CutPolicy, Door, Model, SimWorld};

const SEEDS: u64 = 60;
const CLIENTS: u64 = 6;
const REQUESTS: u64 = 120;
const BREAKS: u64 = 8;

/// Bytes of the NBD disk's replay log: so few that the log is full at times.
const REPLAY: u64 = 128 << 10;

/// Connects an NBD disk to the server in `world`. Returns a client of the NBD disk.
fn disk(world: &SimWorld, connections: u64) -> Client {
    let env = world.env();
    let disk = world.block_on(served::disk(&env, connections, REPLAY)).unwrap().unwrap();
    let engine = Engine::new(env.pool());
    env.spawn("the client's engine", engine.clone().drive());
    let node = engine.add_device("far", disk, Needs::LEAF, &[]).unwrap();
    Client::new(&engine, node)
}

fn trial(seed: u64) -> u64 {
    let world = SimWorld::new(seed);
    let env = world.env();
    let draw = Stream::new(seed, "breaks", 0);
    let medium = served::serve(&world);
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
            // The power of the server is cut: all unflushed writes are lost.
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
fn nbd_disk_reconnect_loses_and_reverts_no_writes() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (1..=SEEDS).collect(),
    };
    let done: u64 = seeds.iter().map(|seed| trial(*seed)).sum();
    println!("{done} requests, all answered");
    assert!(done > 100 * seeds.len() as u64);
}
