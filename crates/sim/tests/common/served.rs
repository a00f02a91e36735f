//! A simulated NBD server with one disk, whose power a test can cut, and the NBD disk that connects to the server.

use std::rc::Rc;

use block::env::{Address, CacheMode, DiskIo, Open, Storage};
use block::{Device, EXTENTS_MAX, Env, Info, Needs, Op, Request, Result};
use engine::{AnyDevice, Engine};
use export::ExportList;
use export::nbd::{Export, Limits, Server};
use kind::{DeviceConfig, Maker, MakerArgs, Value};
use sim::{DiskConfig, Profile, SimDisk, SimWorld};

/// Bytes of the server's disk.
pub const BYTES: u64 = 256 << 10;

/// The server's disk as a device. After a flush that failed in a power cut, later flushes can succeed, as in a server
/// that was restarted.
struct Served {
    info: Info,
    storage: Rc<dyn Storage>,
}

impl Served {
    fn new(world: &SimWorld) -> Self {
        let (path, cache) = ("/disk".into(), CacheMode::Direct);
        let open =
            Open { path, device: true, read_only: false, create: None, odd_size: false, cache };
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
            Op::Write { range, data, fua, .. } => {
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

/// Starts the NBD server in `world`, and returns the server's simulated disk.
pub fn serve(world: &SimWorld) -> Rc<SimDisk> {
    let env = world.env();
    let medium = SimDisk::new(world, 0, DiskConfig::new(BYTES, Profile::Native512));
    world.plug("/disk", &medium);
    let served = Rc::new(Served::new(world));
    let engine = Engine::new(env.pool());
    env.spawn("the server's engine", engine.clone().drive());
    let node = engine.add_device("disk", served, Needs::LEAF, &[]).unwrap();
    let export = Export::new(&env, &engine, &engine.portal("volume", node), "");
    let server = Server::new(&env, ExportList::new([export]), Limits::default(), |_| {});
    server.serve(env.listen(&Address::Unix("/socket".into())).unwrap());
    medium
}

/// Opens the NBD disk on the server's export. `replay`: bytes of writes that the NBD disk keeps for a replay.
pub async fn disk(env: &Env, connections: u64, replay: u64) -> Result<Rc<dyn AnyDevice>> {
    let options = vec![
        ("nbd", Value::Text("nbd+unix:///volume?socket=/socket".to_owned())),
        ("connections", Value::Integer(connections)),
        ("replay", Value::Size(replay)),
    ];
    let given = DeviceConfig {
        graph: "test".to_owned(),
        name: "far".to_owned(),
        options,
        lowers: Vec::new(),
        trusted_now: false,
    };
    let Maker::Disk { make, .. } = net::nbd::KIND.maker else { panic!("nbd is a disk") };
    make(MakerArgs::new(&given, env)).await
}
