//! A client for tests: an NBD disk on an engine in the process of the test.

use std::rc::Rc;
use std::time::Duration;

use block::{Buf, ByteRange, Env, Error, Extent, Info, Needs, Op, Report, Result};
use engine::{AnyDevice, Engine};
use kind::{DeviceConfig, Maker, MakerArgs, Value};
use runtime::{Config, Core};
use sim::Client;

/// The options of an NBD disk, by name.
pub type Options<'a> = &'a [(&'static str, Value)];

/// An NBD disk on an engine, and a client of the disk.
pub struct Volume {
    pub core: Core,
    pub client: Client,
    disk: Rc<dyn AnyDevice>,
}

pub fn time(limit: Duration) -> Value {
    Value::Duration(limit)
}

pub fn given(uri: &str, options: Options<'_>) -> DeviceConfig {
    let mut options = options.to_vec();
    options.push(("nbd", Value::Text(uri.to_owned())));
    DeviceConfig {
        graph: "test".to_owned(),
        name: "far".to_owned(),
        options,
        lowers: Vec::new(),
        trusted_now: false,
    }
}

pub fn range(at: u64, len: u64) -> ByteRange {
    ByteRange::new(at, len).unwrap()
}

impl Volume {
    pub fn new(uri: &str, options: Options<'_>) -> Self {
        Self::try_new(uri, options).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_new(uri: &str, options: Options<'_>) -> Result<Self> {
        let core = Core::new(Config::default()).unwrap();
        let env = core.env();
        let Maker::Disk { make, .. } = net::nbd::KIND.maker else { panic!("nbd is a disk") };
        let disk = core.block_on(make(MakerArgs::new(&given(uri, options), &env)))?;
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let node = engine.add_device("far", disk.clone(), Needs::LEAF, &[]).unwrap();
        Ok(Self { client: Client::new(&engine, node), core, disk })
    }

    pub fn env(&self) -> Env {
        self.core.env()
    }

    fn call(&self, op: Op) -> Result<Op> {
        let answer = self.core.block_on(self.client.send(op));
        answer.result.map(|()| answer.op)
    }

    pub fn filled(&self, len: u64, byte: u8) -> Buf {
        let data = self.env().buf(len as usize).unwrap();
        data.write().fill(byte);
        data
    }

    pub fn write(&self, at: u64, len: u64, byte: u8, fua: bool) -> Result<()> {
        let data = self.filled(len, byte);
        self.call(Op::Write { range: range(at, len), data, fua, restores: block::Copies::NONE })
            .map(drop)
    }

    pub fn zero(&self, at: u64, len: u64) -> Result<()> {
        self.call(Op::WriteZeroes { range: range(at, len), unmap: true, fua: false }).map(drop)
    }

    pub fn discard(&self, at: u64, len: u64) -> Result<()> {
        self.call(Op::Discard { range: range(at, len), fua: false }).map(drop)
    }

    pub fn read(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let into = self.env().buf(len as usize)?;
        match self.call(Op::read(range(at, len), into))? {
            Op::Read { into, .. } => Ok(into.read().to_vec()),
            op => panic!("it comes back as it went: {op:?}"),
        }
    }

    pub fn status(&self, at: u64, len: u64) -> Result<Vec<Extent>> {
        match self.call(Op::Status { range: range(at, len), extents: Vec::new() })? {
            Op::Status { extents, .. } => Ok(extents),
            op => panic!("it comes back as it went: {op:?}"),
        }
    }

    pub fn flush(&self) -> Result<()> {
        self.call(Op::Flush).map(drop)
    }

    pub fn info(&self) -> &Info {
        self.client.info()
    }

    pub fn report(&self) -> Report {
        self.disk.report()
    }

    pub fn counter(&self, name: &str) -> u64 {
        let report = self.report();
        report.counters.iter().find(|(known, _)| *known == name).expect("a known counter").1
    }

    /// Lets `time` pass on the real clock while the disk runs.
    pub fn pass(&self, time: Duration) {
        self.core.block_on(self.env().sleep(time));
    }
}

/// Returns the error of a failed operation. Its message must contain `words`.
pub fn says<T>(result: Result<T>, words: &str) -> Error {
    let error = result.err().expect("it fails");
    assert!(error.to_string().contains(words), "{words:?} is not in {error}");
    error
}
