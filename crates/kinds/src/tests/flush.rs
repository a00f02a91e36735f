//! Tests of disks whose flushes sometimes fail: a successful flush has made all earlier writes durable. And the block
//! status of a disk with late writes.

use crate::REGISTRY;
use block::{ByteRange, Op};
use kind::Value;
use sim::draw::Stream;
use sim::{Assembly, Client, CutPolicy, DiskConfig, Faults, Profile, SimDisk, SimWorld, Stamp};

const LEN: u64 = 4096;

/// Writes and flushes in turn on a disk of `kind` whose flushes sometimes fail. Checks the bytes after a power cut.
/// Returns the number of successful flushes before the first failed flush.
fn rounds(seed: u64, kind: &'static str) -> usize {
    let world = SimWorld::new(seed);
    let env = world.env();
    let faults = Faults { flush_error: 400_000, ..Faults::default() };
    let config = DiskConfig { faults, destage: 0, ..DiskConfig::new(64 << 10, Profile::Native512) };
    let disk = SimDisk::new(&world, 0, config);
    world.plug("/a", &disk);
    let mut graph = Assembly::new(&env, REGISTRY, true, Stream::new(seed, "order", 0));
    let part = graph.add(kind, &[(kind, Value::Text("/a".to_owned()))], &[]).unwrap();
    let client = Client::new(&graph.engine, graph.node(part));
    let range = ByteRange::new(0, LEN).unwrap();
    let mut failed = None;
    for round in 0..8 {
        let data = env.buf(LEN as usize).unwrap();
        Stamp { volume: seed, sector: 0, write: round as u64 }.put(&mut data.write());
        let bytes = data.read().to_vec();
        world.block_on(client.send(Op::write(range, data))).unwrap().result.unwrap();
        let flushed = world.block_on(client.send(Op::Flush)).unwrap().result;
        if flushed.is_err() {
            failed = failed.or(Some(round));
            continue;
        }
        assert_eq!(failed, None, "seed {seed}: a yes in round {round} after a no");
        disk.power_cut(CutPolicy::DropAll);
        assert!(disk.peek(range) == bytes, "seed {seed}: round {round} was flushed, and is lost");
    }
    failed.unwrap_or(8)
}

#[test]
fn disk_reports_failed_flush_and_fails_later_flushes() {
    for kind in ["file", "path"] {
        let yes: usize = (0..64).map(|seed| rounds(seed, kind)).sum();
        assert!((64..448).contains(&yes), "{yes} of 512: both answers are to be seen");
    }
}

#[test]
fn block_status_reports_no_zeros_while_write_is_late() {
    let world = SimWorld::new(1);
    let env = world.env();
    let disk = SimDisk::new(&world, 0, DiskConfig::new(64 << 10, Profile::Native512));
    world.plug("/a", &disk);
    let mut graph = Assembly::new(&env, REGISTRY, true, Stream::new(1, "order", 0));
    let part = graph.add("path", &[("path", Value::Text("/a".to_owned()))], &[]).unwrap();
    let client = Client::new(&graph.engine, graph.node(part));
    let range = ByteRange::new(0, LEN).unwrap();
    let is_zero = || {
        let status = client.send(Op::Status { range, extents: Vec::new() });
        let Op::Status { extents, .. } = world.block_on(status).unwrap().op else { panic!() };
        extents.iter().any(|extent| extent.state.is_zero())
    };
    assert!(is_zero(), "nobody has written");
    disk.set_faults(Faults { hang: 1_000_000, ..Faults::default() });
    let write = client.send(Op::write(range, env.buf(LEN as usize).unwrap()));
    world.block_on(write).unwrap().result.unwrap_err();
    assert!(!is_zero(), "the write is late, and not gone");
    disk.set_faults(Faults::default());
    disk.release();
    world.run(env.now().after(std::time::Duration::from_secs(1))).unwrap();
    assert!(is_zero(), "it is known what has become of it");
}

/// Several flushes are in flight together, and the disk fails some of them. A flush that overlaps the failed flush must
/// not succeed if its writes are lost.
#[test]
fn concurrent_flush_fails_if_failed_flush_lost_data() {
    let (mut yes, mut no) = (0, 0);
    for seed in 0..64 {
        let world = SimWorld::new(seed);
        let env = world.env();
        let faults = Faults { flush_error: 400_000, ..Faults::default() };
        let config =
            DiskConfig { faults, destage: 0, ..DiskConfig::new(64 << 10, Profile::Native512) };
        let disk = SimDisk::new(&world, 0, config);
        world.plug("/a", &disk);
        let mut graph = Assembly::new(&env, REGISTRY, true, Stream::new(seed, "order", 0));
        let path = [("path", Value::Text("/a".to_owned()))];
        let part = graph.add("path", &path, &[]).unwrap();
        let client = Client::new(&graph.engine, graph.node(part));
        let range = ByteRange::new(0, LEN).unwrap();
        let data = env.buf(LEN as usize).unwrap();
        data.write().fill(0x5a);
        world.block_on(client.send(Op::write(range, data))).unwrap().result.unwrap();
        let flushes: Vec<_> = (0..4).map(|_| client.send(Op::Flush)).collect();
        for flush in flushes {
            let flushed = world.block_on(flush).unwrap().result.is_ok();
            *(if flushed { &mut yes } else { &mut no }) += 1;
            if flushed {
                let image = disk.image_in_flight().cut(|_, _| false);
                disk.put_back(&image);
                let is_there = disk.peek(range).iter().all(|byte| *byte == 0x5a);
                assert!(is_there, "seed {seed}: what was flushed is lost");
            }
        }
    }
    assert!(yes > 20 && no > 20, "{yes} flushes succeed and {no} fail: both are to be seen");
}
