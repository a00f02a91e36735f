//! Many idle connections of an NBD server: their memory, and their hand-over.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block::env::{Address, Socket};
use block::{Buf, Env};
use export::ExportList;
use export::nbd::{Export, Limits, Server};
use kind::Value;
use kinds::REGISTRY;
use sim::draw::Stream;
use sim::{Assembly, SimWorld};
use wire::nbd::handed::HANDED_MAX;

/// Connections of the test.
const CONNECTIONS: usize = 1000;

/// Most buffer bytes that one idle connection may take.
const IDLE_BYTES_MAX: usize = 16 << 10;

fn filled(env: &Env, bytes: &[u8]) -> Buf {
    let buf = env.buf(bytes.len()).unwrap();
    buf.write().copy_from_slice(bytes);
    buf
}

/// Sends all of `bytes`.
async fn send(env: &Env, socket: &dyn Socket, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let sent = socket.send(vec![filled(env, bytes)]).await.result.unwrap();
        bytes = &bytes[sent..];
    }
}

/// Receives `len` bytes.
async fn receive(env: &Env, socket: &dyn Socket, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let buf = env.buf(len - all.len()).unwrap();
        let n = socket.recv(buf.clone()).await.result.unwrap();
        assert!(n > 0, "the server closed the connection");
        all.extend_from_slice(&buf.read()[..n]);
    }
    all
}

/// Connects a client to the export `vol`. It keeps no buffer.
async fn connect(env: &Env, at: &Address) -> Rc<dyn Socket> {
    let socket = env.connect(at).await.unwrap();
    receive(env, &*socket, 18).await;
    let mut hello = 3_u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend([1_u32, 3].map(u32::to_be_bytes).concat());
    hello.extend(b"vol");
    send(env, &*socket, &hello).await;
    receive(env, &*socket, 10).await;
    socket
}

/// Reads a block of 4 KiB.
async fn read(env: &Env, socket: &dyn Socket) {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0; 4]);
    request.extend(7_u64.to_be_bytes());
    request.extend(0_u64.to_be_bytes());
    request.extend(4096_u32.to_be_bytes());
    send(env, socket, &request).await;
    let reply = receive(env, socket, 16 + 4096).await;
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
}

struct Rig {
    world: SimWorld,
    graph: Assembly,
    server: Server,
    at: Address,
    log: Rc<RefCell<Vec<String>>>,
}

impl Rig {
    /// Starts a server of a memory disk as `vol`, for many connections.
    fn new() -> Self {
        let world = SimWorld::new(1);
        let env = world.env();
        let order = Stream::new(1, "order", 0);
        let mut graph = Assembly::new(&env, REGISTRY, false, order).in_world(&world);
        let disk = graph.add("memory", &[("memory", Value::Size(1 << 20))], &[]).unwrap();
        let portal = graph.engine.portal("vol", graph.node(disk));
        let export = Export::new(&env, &graph.engine, &portal, "");
        let limits = Limits { connections: CONNECTIONS, ..Limits::default() };
        let log = Rc::<RefCell<Vec<String>>>::default();
        let lines = log.clone();
        let server = Server::new(&env, ExportList::new([export]), limits, move |line| {
            lines.borrow_mut().push(line.to_owned());
        });
        let at = Address::Unix("/socket".into());
        server.serve(env.listen(&at).unwrap());
        Self { world, graph, server, at, log }
    }

    fn connect(&self, count: usize) -> Vec<Rc<dyn Socket>> {
        let connect = |_| self.world.block_on(connect(&self.world.env(), &self.at)).unwrap();
        (0..count).map(connect).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Breaks a reference cycle: tasks hold the world, and the world holds tasks.
        self.graph.engine.abandon();
        self.world.drop_tasks();
    }
}

#[test]
fn thousand_idle_connections_take_at_most_16_kib_each() {
    let rig = Rig::new();
    let env = rig.world.env();
    let before = env.pool().used_bytes();
    let sockets = rig.connect(CONNECTIONS);
    let each = || (env.pool().used_bytes() - before) / CONNECTIONS;
    println!("{} bytes for each fresh connection", each());
    assert!(each() <= IDLE_BYTES_MAX);
    for socket in &sockets {
        rig.world.block_on(read(&env, &**socket)).unwrap();
    }
    rig.world.run(env.now().after(Duration::from_secs(5))).unwrap();
    println!("{} bytes for each idle connection", each());
    assert!(each() <= IDLE_BYTES_MAX);
    assert_eq!(rig.server.connections(), CONNECTIONS);
}

#[test]
fn handover_reports_number_of_connections_beyond_limit() {
    let rig = Rig::new();
    let sockets = rig.connect(HANDED_MAX + 7);
    assert!(rig.world.block_on(rig.server.pause(Duration::from_secs(9))).unwrap());
    assert_eq!(rig.server.hand_over(1).len(), HANDED_MAX);
    let log = rig.log.borrow();
    assert!(log.iter().any(|line| line.starts_with("7 connections are closed")), "{log:?}");
    drop(sockets);
}
