//! Tests of an NBD server with broken connections: it never writes a partial payload, and no late write lands on newer
//! bytes. And a flush covers the writes of all connections.

use std::rc::Rc;
use std::time::Duration;

use block::env::{Address, Ticket};
use block::{ByteRange, Op};
use export::ExportList;
use export::nbd::{Export, Limits, Server};
use kind::Value;
use net::nbd::Client as Connection;
use sim::draw::Stream;
use sim::{Assembly, Client, CutPolicy, DiskConfig, Faults, ProcessId, Profile, SimDisk, SimWorld};
use wire::nbd::{ClientConfig, Command, CommandFlags};

/// A simulated world with an NBD server on one disk, and a client that reads the disk directly.
struct Rig {
    world: SimWorld,
    disk: Rc<SimDisk>,
    graph: Assembly,
    client: Client,
    at: Address,
}

impl Rig {
    fn new(limits: Limits) -> Self {
        let world = SimWorld::new(1);
        let env = world.env();
        let disk = SimDisk::new(&world, 0, DiskConfig::new(1 << 20, Profile::Native512));
        world.plug("/disk", &disk);
        let mut graph = Assembly::new(&env, kinds::REGISTRY, false, Stream::new(1, "order", 0));
        let top = graph.add("path", &[("path", Value::Text("/disk".to_owned()))], &[]).unwrap();
        let portal = graph.engine.portal("volume", graph.node(top));
        let export = Export::new(&env, &graph.engine, &portal, "");
        let server = Server::new(&env, ExportList::new([export]), limits, |_| {});
        let at = Address::Unix("/socket".into());
        server.serve(env.listen(&at).unwrap());
        let client = Client::new(&graph.engine, graph.node(top));
        Self { world, disk, graph, client, at }
    }

    fn connect(&self) -> Connection {
        let env = self.world.env();
        let connecting = Connection::connect(&env, &self.at, ClientConfig::connect("volume"));
        self.world.block_on(connecting).unwrap().unwrap()
    }

    fn flush(&self, connection: &Connection) -> Ticket {
        connection.start(Command::Flush, CommandFlags::NONE, 0, 0, None)
    }

    fn write(&self, connection: &Connection, start: u64, len: usize, byte: u8) -> Ticket {
        let data = self.world.env().buf(len).unwrap();
        data.write().fill(byte);
        connection.start(Command::Write, CommandFlags::NONE, start, len as u64, Some(data))
    }

    /// Sends a write over `connection`, and lets the disk delay it. Returns without waiting for the reply.
    fn slow_write(&self, connection: &Connection, start: u64, len: usize, byte: u8) -> Ticket {
        self.disk.set_faults(Faults { stall: 1_000_000, ..Faults::default() });
        let ticket = self.write(connection, start, len, byte);
        self.pass(Duration::from_millis(10));
        self.disk.set_faults(Faults::default());
        ticket
    }

    fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }

    /// Whether all `len` bytes of the disk at `start` have the value `byte`.
    fn is_filled(&self, start: u64, len: u64, byte: u8) -> bool {
        let range = ByteRange::new(start, len).unwrap();
        let into = self.world.env().buf(len as usize).unwrap();
        let read = self.world.block_on(self.client.send(Op::read(range, into))).unwrap();
        let Op::Read { into, .. } = read.op else { panic!("it was a read") };
        into.read().iter().all(|found| *found == byte)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.graph.engine.abandon();
        self.world.drop_tasks();
    }
}

#[test]
fn server_drops_waiting_write_of_broken_connection() {
    let rig = Rig::new(Limits::default());
    // A slow write, whose client goes away.
    let first = rig.connect();
    let orphan = rig.slow_write(&first, 0, 4096, 1);
    rig.world.reset_connection(0);
    drop(orphan);
    // A write that must wait for it, and whose connection breaks.
    let second = rig.connect();
    let waits = rig.write(&second, 0, 8192, 2);
    rig.pass(Duration::from_millis(10));
    rig.world.reset_connection(0);
    assert!(rig.world.block_on(waits).unwrap().result.is_err());
    // A write that is acknowledged after that must stay.
    let third = rig.connect();
    rig.world.block_on(rig.write(&third, 4096, 4096, 3)).unwrap().result.unwrap();
    rig.pass(Duration::from_secs(20));
    assert!(rig.is_filled(0, 4096, 1), "the orphan has landed");
    assert!(rig.is_filled(4096, 4096, 3), "and nobody after it");
}

#[test]
fn server_drops_unread_writes_of_dead_client_after_next_connection() {
    let rig = Rig::new(Limits { requests: 1, ..Limits::default() });
    // A slow write, and a second one that waits unread because the server takes one request at a time.
    let process = ProcessId(1);
    rig.world.enter(process);
    let first = rig.connect();
    let (slow, waits) = (rig.slow_write(&first, 0, 4096, 1), rig.write(&first, 4096, 4096, 2));
    rig.pass(Duration::from_millis(10));
    drop((slow, waits, first));
    rig.world.kill_process(process);
    rig.world.enter(ProcessId::default());
    // Writes that are acknowledged after that must stay, and take effect after writes that were begun before.
    let second = rig.connect();
    rig.world.block_on(rig.write(&second, 4096, 4096, 3)).unwrap().result.unwrap();
    rig.world.block_on(rig.write(&second, 0, 512, 4)).unwrap().result.unwrap();
    rig.pass(Duration::from_secs(20));
    assert!(rig.is_filled(0, 512, 4) && rig.is_filled(512, 3584, 1), "in the order of their lives");
    assert!(rig.is_filled(4096, 4096, 3), "what was not begun has not landed");
}

#[test]
fn server_flush_covers_writes_of_other_connections() {
    let rig = Rig::new(Limits::default());
    let (one, other) = (rig.connect(), rig.connect());
    let answer = |ticket: Ticket| rig.world.block_on(ticket).unwrap().result.unwrap();
    for round in 0..4 {
        // The connection that flushes has also written before, and flushed that.
        answer(rig.write(&other, 8192, 4096, round));
        answer(rig.flush(&other));
        answer(rig.write(&one, 0, 4096, 16 | round));
        answer(rig.flush(&other));
        rig.disk.power_cut(CutPolicy::DropAll);
        assert!(rig.is_filled(0, 4096, 16 | round), "round {round}");
    }
}

#[test]
fn server_never_writes_partial_payload_of_killed_client() {
    const LEN: u64 = 128 << 10;
    let (mut whole, mut none) = (0, 0);
    for step in 1..30 {
        let rig = Rig::new(Limits::default());
        let process = ProcessId(1);
        rig.world.enter(process);
        let first = rig.connect();
        let write = rig.write(&first, 0, LEN as usize, 7);
        rig.pass(Duration::from_micros(50 * step));
        drop((write, first));
        rig.world.kill_process(process);
        rig.world.enter(ProcessId::default());
        rig.pass(Duration::from_secs(1));
        whole += u32::from(rig.is_filled(0, LEN, 7));
        none += u32::from(rig.is_filled(0, LEN, 0));
    }
    assert_eq!(whole + none, 29, "wholly or not at all");
    assert!(whole > 3 && none > 3, "{whole} and {none}: both are tried");
}
