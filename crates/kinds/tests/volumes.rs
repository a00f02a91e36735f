//! Volumes that a catalogue opens when a client connects by name, over tables, hooks and mirrors.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::env::{Address, LocalFuture};
use block::{Env, Error, ErrorKind, Needs, Result};
use engine::{Engine, NodeId};
use export::nbd::{Export, Limits, Server};
use export::{Catalog, Listed};
use kind::Value;
use kinds::REGISTRY;
use net::nbd::Client as Connection;
use sim::draw::Stream;
use sim::{Assembly, DiskConfig, PartId, Profile, SimDisk, SimWorld};
use testkit::toys::Pool;
use wire::nbd::{ClientConfig, Command, CommandFlags};

const DISK_BYTES: u64 = 1 << 20;

const BLOCK: usize = 4096;

/// Time that the catalogue of the test takes to open a volume.
const OPENING: Duration = Duration::from_millis(300);

/// A catalogue that opens the volumes of a pool for clients. A volume is closed when its last client disconnects.
struct Volumes {
    env: Env,
    engine: Engine,
    pool: Rc<Pool>,
    below: NodeId,
    open: RefCell<BTreeMap<String, Weak<Export>>>,
    /// Whether every search of the catalogue for a volume fails.
    is_broken: Cell<bool>,
}

impl Volumes {
    fn known(&self, name: &str) -> Option<Rc<Export>> {
        self.open.borrow().get(name).and_then(Weak::upgrade)
    }

    fn open(&self, name: &str) -> Result<Option<Rc<Export>>> {
        if self.is_broken.get() {
            return Err(Error::new(ErrorKind::Io, "the pool's index cannot be read"));
        }
        // Another client may have opened it meanwhile.
        if let Some(known) = self.known(name) {
            return Ok(Some(known));
        }
        let Some(volume) = self.pool.open(name) else { return Ok(None) };
        let node =
            self.engine.add_device(name, Rc::new(volume), Needs::children(1), &[self.below])?;
        let portal = self.engine.portal(name, node);
        self.engine.forget(node);
        let export = Export::new(&self.env, &self.engine, &portal, "a volume");
        self.open.borrow_mut().insert(name.to_owned(), Rc::downgrade(&export));
        Ok(Some(export))
    }
}

/// The catalogue as the server gets it.
struct Shelf(Rc<Volumes>);

impl Catalog for Shelf {
    fn find(&self, name: &str) -> LocalFuture<Result<Option<Rc<Export>>>> {
        let (volumes, name) = (self.0.clone(), name.to_owned());
        Box::pin(async move {
            if volumes.known(&name).is_none() {
                volumes.env.sleep(OPENING).await;
            }
            volumes.open(&name)
        })
    }

    fn list(&self, after: &str, most: usize) -> LocalFuture<Result<Vec<Listed>>> {
        let listed = |name: &str| Listed {
            name: name.to_owned(),
            description: "a volume".to_owned(),
            clients: None,
        };
        let later = Pool::NAMES.into_iter().filter(|name| *name > after);
        Box::pin(std::future::ready(Ok(later.take(most).map(listed).collect())))
    }
}

struct Rig {
    world: SimWorld,
    graph: Assembly,
    volumes: Rc<Volumes>,
    at: Address,
}

/// A function that adds devices over two disks, and returns the topmost device.
type Build = fn(&mut Assembly, [PartId; 2]) -> PartId;

impl Rig {
    fn new(build: Build) -> Self {
        let world = SimWorld::new(1);
        let env = world.env();
        let order = Stream::new(1, "order", 0);
        let mut graph = Assembly::new(&env, REGISTRY, false, order).in_world(&world);
        let disks = [0, 1].map(|n| {
            let config = DiskConfig::new(DISK_BYTES, Profile::Native512);
            let path = format!("/disk{n}");
            world.plug(&path, &SimDisk::new(&world, n, config));
            graph.add("path", &[("path", Value::Text(path))], &[]).unwrap()
        });
        let top = build(&mut graph, disks);
        let (pool, engine) = (Rc::new(Pool::new(graph.lower(top))), graph.engine.clone());
        let (below, open, is_broken) = (graph.node(top), RefCell::default(), Cell::default());
        let volumes = Rc::new(Volumes { env: env.clone(), engine, pool, below, open, is_broken });
        let catalog = Rc::new(Shelf(volumes.clone()));
        let server = Server::new(&env, catalog, Limits::default(), |_| {});
        let at = Address::Unix("/socket".into());
        server.serve(env.listen(&at).unwrap());
        Self { world, graph, volumes, at }
    }

    fn connect(&self, name: &str) -> Result<Connection> {
        let env = self.world.env();
        let connecting = Connection::connect(&env, &self.at, ClientConfig::connect(name));
        self.world.block_on(connecting).unwrap()
    }

    fn write(&self, connection: &Connection, start: u64, byte: u8) {
        let data = self.world.env().buf(BLOCK).unwrap();
        data.write().fill(byte);
        let len = BLOCK as u64;
        let sent = connection.start(Command::Write, CommandFlags::NONE, start, len, Some(data));
        self.world.block_on(sent).unwrap().result.unwrap();
    }

    /// Reads the block at the byte address `start` over a connection, and returns the value of all its bytes.
    fn read(&self, connection: &Connection, start: u64) -> u8 {
        let buf = self.world.env().buf(BLOCK).unwrap();
        let len = BLOCK as u64;
        let sent = connection.start(Command::Read, CommandFlags::NONE, start, len, Some(buf));
        let outcome = self.world.block_on(sent).unwrap();
        outcome.result.unwrap();
        let bytes = outcome.buf.expect("a read returns its buffer");
        let bytes = bytes.read();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one write filled the block");
        bytes[0]
    }

    fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.graph.engine.abandon();
        self.world.drop_tasks();
    }
}

fn stripe(graph: &mut Assembly, disks: [PartId; 2]) -> PartId {
    graph.add("stripe", &[("chunk", Value::Size(16 << 10))], &disks).unwrap()
}

fn mirror(graph: &mut Assembly, disks: [PartId; 2]) -> PartId {
    let trusted = graph.name(disks[0]).to_owned();
    graph.add("mirror", &[("trust", Value::Text(trusted))], &disks).unwrap()
}

/// The graphs under test below the volumes: a disk, tables, a mirror and hooks.
const BUILDS: [Build; 6] = [
    |_, [disk, _]| disk,
    stripe,
    mirror,
    |graph, disks| graph.add("concat", &[], &disks).unwrap(),
    |graph, disks| {
        let below = stripe(graph, disks);
        graph.add("trace", &[], &[below]).unwrap()
    },
    |graph, disks| {
        let below = mirror(graph, disks);
        let part = [("offset", Value::Size(64 << 10))];
        let below = graph.add("linear", &part, &[below]).unwrap();
        graph.add("pass", &[], &[below]).unwrap()
    },
];

#[test]
fn volumes_on_one_device_keep_separate_bytes() {
    for build in BUILDS {
        let rig = Rig::new(build);
        let (left, right) = (rig.connect("left").unwrap(), rig.connect("right").unwrap());
        let last = left.session().facts.size_bytes - BLOCK as u64;
        for at in [0, last] {
            rig.write(&left, at, 1);
            rig.write(&right, at, 2);
        }
        let other = rig.connect("left").unwrap();
        for at in [0, last] {
            assert_eq!((rig.read(&other, at), rig.read(&right, at)), (1, 2));
        }
    }
}

#[test]
fn volume_stays_open_from_first_client_to_last_client() {
    let rig = Rig::new(stripe);
    let open = || rig.volumes.pool.open_count();
    let begin = rig.world.env().now();
    let first = rig.connect("left").unwrap();
    assert!(rig.world.env().now().since(begin) >= OPENING, "the handshake waits for the opening");
    let second = rig.connect("left").unwrap();
    assert_eq!(open(), 1, "both clients share the volume");
    first.close();
    rig.pass(Duration::from_secs(2));
    rig.write(&second, 0, 7);
    second.close();
    rig.pass(Duration::from_secs(2));
    assert_eq!(open(), 0, "no client has it");
    let third = rig.connect("left").unwrap();
    assert_eq!(rig.read(&third, 0), 7);
}

#[test]
fn server_reports_reason_if_volume_cannot_be_opened() {
    let rig = Rig::new(stripe);
    let unknown = rig.connect("middle").err().expect("the pool has no such volume");
    assert!(unknown.to_string().contains("no export named \"middle\""), "{unknown}");
    rig.volumes.is_broken.set(true);
    let broken = rig.connect("left").err().expect("it cannot be opened");
    assert!(broken.to_string().contains("the pool's index cannot be read"), "{broken}");
    rig.volumes.is_broken.set(false);
    rig.connect("left").unwrap();
}

#[test]
fn server_opens_no_volume_for_empty_export_name() {
    let rig = Rig::new(stripe);
    let unnamed = rig.connect("").err().expect("two volumes, and neither is the default one");
    assert!(unnamed.to_string().contains("no export named"), "{unnamed}");
    assert_eq!(rig.volumes.pool.open_count(), 0);
}
