//! Tests of `versioned`, a pool of one vdisk: first starts, its state in labels, and growth.

use std::cell::Cell;
use std::rc::Rc;

use block::{ErrorKind, Result};
use kind::Value;
use kind::home::record::Record;
use sim::crash::{Script, Setup, every_crash};
use sim::draw::Stream;
use sim::{Assembly, CutPolicy, DiskConfig, PartId, Profile, Reached, SimDisk, SimWorld};
use testkit::Shelf;

use super::subjects::LOWER_BYTES;

const GROWN_BYTES: u64 = 2 * LOWER_BYTES;

/// The vdisk is there in each state in which the pool is, and has all flushed writes. A start that replays the log crashes again.
#[test]
fn versioned_has_flushed_writes_after_every_crash() {
    let device = "v = { kind = \"versioned\", on = \"d0\", size = \"64KiB\" }";
    let setup = Setup::new(crate::REGISTRY, 1, LOWER_BYTES, device, "v").crashed_again(40);
    let script = async |script: Script| {
        script.write(4096, 4096, 0x11).await;
        script.flush().await;
    };
    let crashes = every_crash(&setup, script, |running, log| {
        let bytes = running.read(4096, 4096).map_err(|error| error.to_string())?;
        let (is_new, is_flushed) = (bytes == [0x11; 4096], log.writes(Reached::Flushed) > 0);
        match is_new || !is_flushed && bytes == [0; 4096] {
            true => Ok(()),
            false => Err(format!("the first byte is {:#x}", bytes[0])),
        }
    });
    let crashes = crashes.unwrap_or_else(|words| panic!("{words}"));
    assert!(crashes.states > 100 && crashes.again > 100, "{crashes:?}");
}

/// A labelled disk, and the states of a versioned device on its first part.
struct Bench {
    world: SimWorld,
    disk: Rc<SimDisk>,
    shelf: Rc<Shelf>,
    starts: Cell<u64>,
}

impl Bench {
    fn new() -> Self {
        let world = SimWorld::new(1);
        let disk = SimDisk::new(&world, 0, DiskConfig::new(GROWN_BYTES, Profile::Native512));
        world.plug("/disk0".to_owned(), &disk);
        let shelf = Shelf::strict(&world.env(), Stream::new(1, "shelf", 0), Vec::new());
        Self { world, disk, shelf, starts: Cell::new(0) }
    }

    /// Starts the device over the first `bytes` bytes of the disk.
    fn try_start(&self, bytes: u64) -> Result<(Assembly, PartId)> {
        self.starts.set(self.starts.get() + 1);
        let order = Stream::new(1, "order", self.starts.get());
        let graph = Assembly::new(&self.world.env(), crate::REGISTRY, false, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        let disk = graph.add("path", &[("path", Value::Text("/disk0".to_owned()))], &[])?;
        let part = graph.add("linear", &[("size", Value::Size(bytes))], &[disk])?;
        let device = graph.add("versioned", &[("size", Value::Size(64 << 10))], &[part])?;
        Ok((graph, device))
    }

    fn start(&self, bytes: u64) -> (Assembly, PartId) {
        self.try_start(bytes).unwrap_or_else(|error| panic!("{error}"))
    }

    fn stop(&self, graph: &Assembly) {
        self.world.block_on(graph.close()).unwrap();
        self.world.drop_tasks();
        self.disk.power_cut(CutPolicy::KeepAll);
    }

    /// Returns the bytes of the pool by the state in labels.
    fn pool_bytes(&self) -> u64 {
        Record::decode(&self.shelf.bytes().unwrap()).unwrap().room_bytes()
    }
}

#[test]
fn labels_have_size_of_grown_pool_and_refuse_image_from_before_growth() {
    for in_change in [false, true] {
        let bench = Bench::new();
        let (graph, device) = bench.start(LOWER_BYTES);
        let before = graph.report(device).room.unwrap().of_bytes;
        bench.stop(&graph);
        assert_eq!(bench.pool_bytes(), LOWER_BYTES);
        let image = bench.disk.image();

        if in_change {
            bench.shelf.hold_back();
        }
        let (graph, device) = bench.start(GROWN_BYTES);
        if in_change {
            bench.shelf.release();
        }
        bench.stop(&graph);
        assert_eq!(bench.pool_bytes(), GROWN_BYTES);
        let after = graph.report(device).room.unwrap().of_bytes;
        assert!(after >= before + (GROWN_BYTES - LOWER_BYTES) / 2, "{before} to {after}");

        let grown = bench.disk.image();
        bench.disk.put_back(&image);
        let error = bench.try_start(GROWN_BYTES).err().expect("an older image");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("the label and the header of the pool differ"), "{error}");
        bench.world.drop_tasks();
        bench.disk.put_back(&grown);
        let error = bench.try_start(LOWER_BYTES).err().expect("a truncated pool");
        assert!(error.message().contains("it is truncated"), "{error}");
    }
}

#[test]
fn pool_refuses_damaged_state_and_state_of_other_version_or_kind() {
    let bench = Bench::new();
    bench.stop(&bench.start(LOWER_BYTES).0);
    let whole = bench.shelf.bytes().unwrap();
    let refused = |bytes: Vec<u8>, kind: ErrorKind, words: &str| {
        bench.shelf.put(Some(bytes));
        let error = bench.try_start(LOWER_BYTES).err().expect("it is the state of no versioned");
        assert!(error.kind() == kind && error.message().contains(words), "{error}");
        bench.world.drop_tasks();
    };
    // Earlier versions had 64 bytes with a version 1 of their own.
    let old = [&1_u32.to_le_bytes()[..], &[0; 60]].concat();
    refused(old, ErrorKind::Corrupt, "damaged: record version 1; 2 is supported");
    // The highest byte of the bytes of an extent.
    let damaged = [&whole[..whole.len() - 1], &[1]].concat();
    refused(damaged, ErrorKind::Corrupt, "the state of the versioned in the label is damaged");
    let pool = Record { kind: "pool".to_owned(), ..Record::decode(&whole).unwrap() };
    refused(pool.encode(), ErrorKind::Invalid, "the disks have a pool of this name");
    bench.shelf.put(Some(whole));
    bench.start(LOWER_BYTES);
}
