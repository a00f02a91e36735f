//! What a broken connection leaves behind must not land on what came later.

use std::time::Duration;

use block::env::Address;
use block::{ByteRange, Op};
use export::nbd::{Export, Limits, Server};
use graph::kind::Value;
use net::nbd::Client as Connection;
use sim::draw::Stream;
use sim::{Assembly, Client, DiskConfig, Faults, Profile, SimDisk, SimWorld};
use wire::nbd::{ClientConfig, Command, CommandFlags};

#[test]
fn a_request_that_waits_for_an_orphan_is_gone_with_its_connection() {
    let world = SimWorld::new(1);
    let env = world.env();
    let disk = SimDisk::new(&world, 0, DiskConfig::new(1 << 20, Profile::Native512));
    world.plug("/disk", &disk);
    let mut graph = Assembly::new(&env, kinds::REGISTRY, false, Stream::new(1, "order", 0));
    let top = graph.add("path", &[("path", Value::Text("/disk".to_owned()))], &[]).unwrap();
    let export = Export::new(&env, &graph.engine, graph.node(top), "volume", "");
    let server = Server::new(&env, vec![export], Limits::default(), |_| {});
    let at = Address::Unix("/socket".into());
    server.serve(env.listen(&at).unwrap());
    let connect = || {
        let connecting = Connection::connect(&env, &at, ClientConfig::connect("volume"));
        world.block_on(connecting).unwrap().unwrap()
    };
    let write = |connection: &Connection, start, len: usize, byte| {
        let data = env.buf(len).unwrap();
        data.write().fill(byte);
        connection.start(Command::Write, CommandFlags::NONE, start, len as u64, Some(data))
    };
    let pass = |time| world.run(env.now().after(time)).unwrap();
    let milliseconds = Duration::from_millis;

    // One that takes long, and whose client goes.
    disk.set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    let first = connect();
    let orphan = write(&first, 0, 4096, 1);
    pass(milliseconds(10));
    disk.set_faults(Faults::default());
    world.reset_connection(0);
    drop(orphan);
    // One that has to wait for it, and whose connection breaks.
    let second = connect();
    let waits = write(&second, 0, 8192, 2);
    pass(milliseconds(10));
    world.reset_connection(0);
    assert!(world.block_on(waits).unwrap().result.is_err());
    // What is answered after that stays.
    let third = connect();
    world.block_on(write(&third, 4096, 4096, 3)).unwrap().result.unwrap();
    pass(Duration::from_secs(20));
    let range = ByteRange::new(0, 8192).unwrap();
    let client = Client::new(&graph.engine, graph.node(top));
    let read = client.send(Op::read(range, env.buf(8192).unwrap()));
    let Op::Read { into, .. } = world.block_on(read).unwrap().op else { panic!("it was a read") };
    assert!(into.read()[..4096].iter().all(|byte| *byte == 1), "the orphan has landed");
    assert!(into.read()[4096..].iter().all(|byte| *byte == 3), "and nobody after it");
}
