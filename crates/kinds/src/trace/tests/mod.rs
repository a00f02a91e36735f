//! Tests of `trace`: the content of its file, the time at which it writes the file, and the replay of a file.

mod entry;

use std::time::Duration;

use crate::trace::{Entry, Reader, Record, Replayed, SLOT_BYTES, replay};
use block::{Op, OpKind};

use crate::tests::world::{Running, World, range};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a running `trace` device over a disk that takes 1 ms for a read and 3 ms for every other request.
fn graph(world: &World, options: &str) -> Running {
    let devices = format!(
        "[device]\n\
         slow = {{ kind = \"delay\", on = \"d\", time = \"3ms\", read = \"1ms\" }}\n\
         seen = {{ kind = \"trace\", on = \"slow\", file = \"t.trace\"{options} }}"
    );
    world.graph(&devices, "seen")
}

fn entries(world: &World) -> Vec<Entry> {
    let file = world.file("t.trace", 0);
    let bytes = file.bytes.borrow();
    Reader::new(&bytes[..]).unwrap().map(Result::unwrap).collect()
}

fn records(world: &World) -> Vec<Record> {
    let request = |entry| match entry {
        Entry::Request(record) => Some(record),
        Entry::Start { .. } | Entry::Lost { .. } => None,
    };
    entries(world).into_iter().filter_map(request).collect()
}

/// Sends requests of every operation to the `trace` device. Some overlap in time, and one request fails.
fn work(world: &World, running: &Running) {
    let ranged = range(4096, 8192);
    let first = running.send(running.write(0, 4096, 1));
    let second = running.send(running.read(8192, 512));
    world.sleep(Duration::from_millis(2));
    let third = running.send(Op::WriteZeroes { range: ranged, unmap: true, fua: true });
    world.block_on(first).1.unwrap();
    world.block_on(second).1.unwrap();
    let fourth = running.send(Op::Discard { range: ranged, fua: false });
    world.block_on(third).1.unwrap();
    world.block_on(fourth).1.unwrap();
    let status = Op::Status { range: ranged, extents: Vec::new() };
    world.block_on(running.send(status)).1.unwrap();
    world.block_on(running.send(Op::Flush)).1.unwrap();
}

#[test]
fn trace_records_requests_with_times() {
    let world = World::new();
    let running = graph(&world, "");
    world.sleep(Duration::from_millis(10));
    work(&world, &running);
    world.sleep(SECOND);
    let lines: Vec<_> = entries(&world).iter().map(Entry::to_string).collect();
    let expected = [
        "-- start 1700001000.000000000",
        "0.010000000 +0.001000000 #2 read 8192+512: ok",
        "0.010000000 +0.003000000 #1 write 0+4096: ok",
        "0.012000000 +0.003000000 #3 zero 4096+8192 fua unmap: ok",
        "0.013000000 +0.003000000 #4 discard 4096+8192: ok",
        "0.016000000 +0.001000000 #5 status 4096+8192: ok",
        "0.017000000 +0.003000000 #6 flush: ok",
    ];
    assert_eq!(lines, expected);
    let count = |name| running.counter("seen", name);
    assert_eq!([count("written"), count("queued"), count("lost")], [6, 0, 0]);
}

#[test]
fn trace_records_failed_requests() {
    let world = World::new();
    let devices = "[device]\n\
        bad = { kind = \"error\", on = \"d\", with = \"nospace\" }\n\
        seen = { kind = \"trace\", on = \"bad\", file = \"t.trace\" }";
    let running = world.graph(devices, "seen");
    world.block_on(running.send(running.write(512, 512, 1))).1.unwrap_err();
    world.sleep(SECOND);
    let [record] = records(&world)[..] else { panic!("one request was sent") };
    assert_eq!(
        (record.verb, record.range, record.errno),
        (OpKind::Write, Some(range(512, 512)), 28)
    );
}

#[test]
fn trace_writes_records_within_second_without_idle_wakeups() {
    let world = World::new();
    let running = graph(&world, "");
    let file = world.file("t.trace", 0);
    world.sleep(SECOND);
    assert!(world.is_idle(), "nobody waits for a time while there is nothing to write");
    let before = file.writes.get();
    world.block_on(running.send(running.read(0, 512))).1.unwrap();
    world.sleep(Duration::from_millis(990));
    assert_eq!(file.writes.get(), before);
    world.sleep(Duration::from_millis(20));
    assert_eq!((file.writes.get(), records(&world).len()), (before + 1, 1));
    assert!(world.is_idle());
}

#[test]
fn trace_writes_many_records_in_one_write() {
    let world = World::new();
    let running = graph(&world, "");
    let file = world.file("t.trace", 0);
    world.sleep(SECOND);
    let before = file.writes.get();
    for _ in 0..3 {
        let calls: Vec<_> = (0..1024).map(|_| running.send(running.read(0, 512))).collect();
        world.block_on(async {
            for call in calls {
                call.await.1.unwrap();
            }
        });
    }
    assert_eq!(records(&world).len(), 3072, "a block of them does not wait for the second");
    assert_eq!(file.writes.get() - before, 6, "each time the rest of a block and some of the next");
}

#[test]
fn trace_counts_lost_records_when_queue_is_full() {
    let world = World::new();
    let devices =
        "[device]\nseen = { kind = \"trace\", on = \"d\", file = \"t.trace\", queue = 8 }";
    let running = world.graph(devices, "seen");
    world.sleep(SECOND);
    // The disk answers at once, so the writer has no turn between the requests.
    let calls: Vec<_> = (0..20).map(|_| running.send(running.read(0, 512))).collect();
    world.block_on(async {
        for call in calls {
            call.await.1.unwrap();
        }
    });
    world.sleep(SECOND);
    world.block_on(running.send(running.read(0, 512))).1.unwrap();
    world.sleep(SECOND);
    assert_eq!((running.counter("seen", "written"), running.counter("seen", "lost")), (9, 12));
    let entries = entries(&world);
    assert_eq!(entries[9], Entry::Lost { count: 12 });
    assert_eq!(entries.len(), 1 + 8 + 1 + 1);
}

#[test]
fn trace_continues_existing_trace_file() {
    let world = World::new();
    for (run, many) in [1, 2000, 46, 1022, 1, 3].into_iter().enumerate() {
        let before = if run == 0 { 0 } else { entries(&world).len() };
        let running = graph(&world, ", size = \"1MiB\"");
        for _ in 0..many {
            world.block_on(running.send(running.read(0, 512))).1.unwrap();
        }
        // When the graph is dropped the writer writes the rest.
        drop(running);
        world.sleep(SECOND);
        let entries = entries(&world);
        assert_eq!(entries.len(), before + 1 + many);
        assert!(matches!(entries[before], Entry::Start { .. }));
    }
}

#[test]
fn trace_does_not_overwrite_file_without_trace() {
    let world = World::new();
    let file = world.file("t.trace", 128 << 10);
    file.bytes.borrow_mut()[100_000] = 7;
    let running = graph(&world, "");
    world.block_on(running.send(running.read(0, 512))).1.unwrap();
    world.sleep(2 * SECOND);
    assert_eq!(file.writes.get(), 0);
    let report = running.report("seen");
    assert!(report.summary.contains("t.trace is no trace file"), "{}", report.summary);
    assert_eq!((running.counter("seen", "lost"), running.counter("seen", "queued")), (1, 0));
}

#[test]
fn trace_stops_on_full_disk_without_failing_requests() {
    let world = World::new();
    let running = graph(&world, ", size = \"64KiB\"");
    for _ in 0..1500 {
        world.block_on(running.send(running.read(0, 512))).1.unwrap();
    }
    world.sleep(SECOND);
    assert_eq!(records(&world).len(), 1024 - 2);
    assert!(running.report("seen").summary.contains("trace file t.trace is full"));
    let (written, lost) = (running.counter("seen", "written"), running.counter("seen", "lost"));
    assert_eq!((written, written + lost), (1022, 1500));

    let world = World::new();
    let running = graph(&world, "");
    world.sleep(SECOND);
    world.file("t.trace", 0).broken.set(true);
    world.block_on(running.send(running.read(0, 512))).1.unwrap();
    world.sleep(SECOND);
    assert!(running.report("seen").summary.contains("the disk is full"));
}

/// Returns all fields of a traced request except its number, which differs between runs.
fn shape(record: &Record) -> (u64, u64, OpKind, Option<block::ByteRange>, bool, bool) {
    let Record { begin_ns, end_ns, verb, range, fua, unmap, .. } = *record;
    (begin_ns, end_ns, verb, range, fua, unmap)
}

#[test]
fn replay_sends_same_requests_at_same_times() {
    let world = World::new();
    work(&world, &graph(&world, ""));
    world.sleep(SECOND);
    let first = records(&world);
    let again = World::new();
    let running = graph(&again, "");
    let sent = again.block_on(replay(&first, &running.top(), &again.env())).unwrap();
    assert_eq!(sent, Replayed { requests: first.len() as u64, failed: 0 });
    again.sleep(SECOND);
    let second = records(&again);
    let begun = first.iter().map(|record| record.begin_ns).min().unwrap();
    let moved = |record: &Record| Record {
        begin_ns: record.begin_ns - begun,
        end_ns: record.end_ns - begun,
        ..*record
    };
    assert!(first.iter().map(|r| shape(&moved(r))).eq(second.iter().map(shape)), "{second:?}");
}

#[test]
fn replay_on_slower_disk_keeps_order_and_concurrency() {
    let world = World::new();
    work(&world, &graph(&world, ""));
    world.sleep(SECOND);
    let first = records(&world);
    let again = World::new();
    let devices = "[device]\n\
        slow = { kind = \"delay\", on = \"d\", time = \"50ms\", flush = \"1ms\" }\n\
        seen = { kind = \"trace\", on = \"slow\", file = \"t.trace\" }";
    let running = again.graph(devices, "seen");
    again.block_on(replay(&first, &running.top(), &again.env())).unwrap();
    again.sleep(SECOND);
    let in_order = |mut records: Vec<Record>| {
        records.sort_by_key(|record| record.id);
        records
    };
    let (first, second) = (in_order(first), in_order(records(&again)));
    assert_eq!(first.len(), second.len());
    for (a, once) in first.iter().enumerate() {
        assert_eq!((once.verb, once.range), (second[a].verb, second[a].range));
        for (b, later) in first.iter().enumerate().filter(|(b, _)| *b > a) {
            if once.end_ns <= later.begin_ns {
                assert!(second[a].end_ns <= second[b].begin_ns, "{once} was before {later}");
            }
        }
    }
    let overlap = |records: &[Record]| records[1].begin_ns < records[0].end_ns;
    assert!(overlap(&first) && overlap(&second), "the first two were in flight together");
}

#[test]
fn replayed_write_payload_contains_sector_address() {
    let world = World::new();
    let record = |id: u64, verb, range| Record {
        begin_ns: id,
        end_ns: id + 1,
        id,
        verb,
        range: Some(range),
        fua: false,
        unmap: false,
        errno: 0,
    };
    // The last one is past the end of the disk: it fails, and is counted.
    let records = [
        record(1, OpKind::Write, range(512, 1024)),
        record(2, OpKind::Write, range(1024, 512)),
        record(3, OpKind::Write, range(1 << 20, 512)),
    ];
    let running = world.graph("", "d");
    let sent = world.block_on(replay(&records, &running.top(), &world.env())).unwrap();
    assert_eq!(sent, Replayed { requests: 3, failed: 1 });
    let (op, result) = world.block_on(running.send(running.read(512, 1024)));
    result.unwrap();
    let Op::Read { into, .. } = op else { panic!("it comes back as it went") };
    for (at, words) in (512_u64..).step_by(16).zip(into.read().chunks(16)) {
        let id: u64 = if at < 1024 { 1 } else { 2 };
        assert_eq!(words, [at.to_le_bytes(), id.to_le_bytes()].concat());
    }
}

#[test]
fn replay_limits_concurrent_requests_and_buffers() {
    let world = World::new();
    let record = |id: u64| Record {
        begin_ns: 0,
        end_ns: 1,
        id,
        verb: OpKind::Read,
        range: Some(range(0, 1 << 20)),
        fua: false,
        unmap: false,
        errno: 0,
    };
    // In the trace all were in flight together. The pool has room for 64.
    let records: Vec<_> = (0..200).map(record).collect();
    let devices = "[device]\nslow = { kind = \"delay\", on = \"d\", time = \"1ms\" }";
    let running = world.graph(devices, "slow");
    let sent = world.block_on(replay(&records, &running.top(), &world.env())).unwrap();
    assert_eq!(sent, Replayed { requests: 200, failed: 0 });
    assert!(world.elapsed() >= Duration::from_millis(4));
    assert_eq!(world.env().pool().used_bytes(), 0);
}

#[test]
fn trace_size_option_help_states_bytes_per_request() {
    let size = crate::REGISTRY.find("trace").unwrap().options.iter().find(|o| o.name == "size");
    assert!(size.unwrap().help.contains(&format!("{SLOT_BYTES} bytes for each request")));
}
