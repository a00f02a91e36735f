//! An NBD client in the process of the test, so that the simulator's workload and model can test the real `cairn`.

use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Env, Needs, Op, Result};
use engine::Engine;
use kind::{DeviceConfig, Maker, MakerArgs, Value};
use runtime::Core;
use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Client, Model};

/// A client that is connected to one NBD export: a device of kind `nbd` on an engine of its own.
pub struct Volume {
    env: Env,
    client: Client,
}

/// Returns `len` bytes of content for a write. The content depends on `mark`.
pub fn bytes_of(mark: u8, len: u64) -> Vec<u8> {
    (0..len).map(|n| mark ^ (n / 512) as u8 | 1).collect()
}

impl Volume {
    pub fn connect(core: &Core, uri: &str) -> Self {
        let env = core.env();
        let options = vec![
            ("nbd", Value::Text(uri.to_owned())),
            ("timeout", Value::Duration(Duration::from_secs(60))),
            // The model must see the replies as they are, without requests that are sent again.
            ("reconnect", Value::Duration(Duration::ZERO)),
        ];
        let (graph, name) = ("test".to_owned(), "volume".to_owned());
        let given = DeviceConfig { graph, name, options, lowers: Vec::new(), trusted_now: false };
        let Maker::Disk { make, .. } = net::nbd::KIND.maker else { panic!("nbd is a disk") };
        let disk = core.block_on(make(MakerArgs::new(&given, &env))).unwrap();
        let engine = Engine::new(env.pool());
        env.spawn("a client's engine", engine.clone().drive());
        let node = engine.add_device("volume", disk, Needs::LEAF, &[]).unwrap();
        Self { client: Client::new(&engine, node), env }
    }

    pub fn size(&self) -> u64 {
        self.client.info().size
    }

    fn call(&self, core: &Core, op: Op) -> Result<Op> {
        let answer = core.block_on(self.client.send(op));
        answer.result.map(|()| answer.op)
    }

    pub fn try_write(&self, core: &Core, at: u64, bytes: &[u8], fua: bool) -> Result<()> {
        let data = self.env.buf(bytes.len()).unwrap();
        data.write().copy_from_slice(bytes);
        self.call(
            core,
            Op::Write {
                range: range(at, bytes.len() as u64),
                data,
                fua,
                restores: block::Copies::NONE,
            },
        )
        .map(drop)
    }

    pub fn write(&self, core: &Core, at: u64, bytes: &[u8]) {
        self.try_write(core, at, bytes, false).unwrap();
    }

    pub fn write_fua(&self, core: &Core, at: u64, bytes: &[u8]) {
        self.try_write(core, at, bytes, true).unwrap();
    }

    pub fn zero(&self, core: &Core, at: u64, len: u64, fua: bool) {
        self.call(core, Op::WriteZeroes { range: range(at, len), unmap: true, fua }).unwrap();
    }

    pub fn trim(&self, core: &Core, at: u64, len: u64, fua: bool) {
        self.call(core, Op::Discard { range: range(at, len), fua }).unwrap();
    }

    pub fn try_flush(&self, core: &Core) -> Result<()> {
        self.call(core, Op::Flush).map(drop)
    }

    /// Sends a flush, and waits for its reply. The caller may drop the future to stop waiting.
    pub async fn flush_later(&self) -> Result<()> {
        self.client.send(Op::Flush).await.result
    }

    pub fn flush(&self, core: &Core) {
        self.try_flush(core).unwrap();
    }

    pub fn read(&self, core: &Core, at: u64, len: u64) -> Vec<u8> {
        let into = self.env.buf(len as usize).unwrap();
        match self.call(core, Op::read(range(at, len), into)).unwrap() {
            Op::Read { into, .. } => into.read().to_vec(),
            op => panic!("it comes back as it went: {op:?}"),
        }
    }

    /// Returns a client of the simulator that sends random requests to the export, and checks the replies with `model`.
    pub fn worker(&self, model: &Rc<Model>, tally: &Rc<Tally>, draw: Stream, mix: Mix) -> Worker {
        Worker {
            env: self.env.clone(),
            client: sim::Door::Graph(self.client.clone()),
            model: model.clone(),
            tally: tally.clone(),
            draw,
            mix,
        }
    }
}

fn range(at: u64, len: u64) -> ByteRange {
    ByteRange::new(at, len).unwrap()
}
