//! Tests of `limit`: its rates, the order of requests, and that it sets no timer for a request that need not wait.

mod throttle;

use std::time::Duration;

use block::{Health, Op};

use crate::tests::world::{Running, World, range};

fn graph(world: &World, options: &str) -> Running {
    let devices = format!("[device]\nheld = {{ kind = \"limit\", on = \"d\", {options} }}");
    world.graph(&devices, "held")
}

fn reads(running: &Running, many: u64, len: u64) -> Vec<Op> {
    (0..many).map(|_| running.read(0, len)).collect()
}

/// Sends all requests `ops` at once. Returns the time until each reply, in milliseconds.
fn answered(world: &World, running: &Running, ops: Vec<Op>) -> Vec<u128> {
    let before = world.elapsed();
    let calls: Vec<_> = ops.into_iter().map(|op| running.send(op)).collect();
    world.block_on(async {
        let mut times = Vec::new();
        for call in calls {
            call.await.1.unwrap();
            times.push((world.elapsed() - before).as_millis());
        }
        times
    })
}

#[test]
fn limit_passes_burst_then_delays_requests_in_order() {
    let world = World::new();
    let running = graph(&world, "iops = 100, burst = \"30ms\"");
    assert_eq!(answered(&world, &running, reads(&running, 6, 512)), [0, 0, 0, 10, 20, 30]);
    assert_eq!(running.counter("held", "held"), 3);
    // After a rest the burst is available again, and no more.
    world.sleep(Duration::from_secs(9));
    assert_eq!(answered(&world, &running, reads(&running, 4, 512)), [0, 0, 0, 10]);
    assert_eq!((running.counter("held", "passed"), running.counter("held", "waiting")), (10, 0));
}

#[test]
fn limit_uses_one_timer_for_all_waiting_requests() {
    let world = World::new();
    let running = graph(&world, "iops = 1000, burst = \"0s\"");
    let calls: Vec<_> = reads(&running, 101, 512).into_iter().map(|op| running.send(op)).collect();
    assert_eq!(world.timers_set(), 1);
    let report = running.report("held");
    assert_eq!(report.health, Health::Limited);
    assert_eq!(report.summary, "100 requests wait for the limit");
    world.block_on(async {
        for call in calls {
            call.await.1.unwrap();
        }
    });
    assert_eq!((world.timers_set(), world.elapsed()), (100, Duration::from_millis(100)));
    assert_eq!(running.report("held").health, Health::Ok);
    assert!(world.is_idle());
}

#[test]
fn limit_sets_no_timer_for_requests_below_rate() {
    let world = World::new();
    let running = graph(&world, "iops = 100");
    for _ in 0..100 {
        assert_eq!(answered(&world, &running, reads(&running, 1, 512)), [0]);
        let sleeps = world.timers_set();
        world.sleep(Duration::from_millis(10));
        assert_eq!(world.timers_set(), sleeps + 1, "the test's own");
    }
}

#[test]
fn limit_keeps_byte_rate_and_passes_request_above_burst() {
    let world = World::new();
    let running = graph(&world, "bytes = \"64KiB\", burst = \"0s\"");
    let ops = vec![running.read(0, 512), running.write(0, 128 << 10, 1), running.read(0, 64 << 10)];
    let times = answered(&world, &running, ops);
    assert_eq!(times, [7, 2007, 3007]);
}

#[test]
fn limit_of_one_direction_does_not_delay_other_direction() {
    let world = World::new();
    let running = graph(&world, "write_iops = 10, read_bytes = \"1MiB\", burst = \"0s\"");
    let range = range(0, 512);
    let ops = vec![
        running.write(0, 512, 1),
        Op::WriteZeroes { range, unmap: false, fua: false },
        Op::Discard { range, fua: false },
        running.write(0, 1 << 20, 2),
    ];
    let writes: Vec<_> = ops.into_iter().map(|op| running.send(op)).collect();
    let free = vec![Op::Flush, Op::Status { range, extents: Vec::new() }];
    assert_eq!(answered(&world, &running, free), [0, 0]);
    assert_eq!(answered(&world, &running, reads(&running, 1, 1 << 20)), [999]);
    let before = world.elapsed();
    world.block_on(async {
        for write in writes {
            write.await.1.unwrap();
        }
    });
    assert_eq!(world.elapsed(), before, "the writes were answered while the read waited");
}

#[test]
fn limit_counts_bytes_of_zeroes_that_lower_writes_as_data() {
    let world = World::new();
    let devices = "[device]\nsafe = { kind = \"crypt\", on = \"d\", key = \"file:/key\", plain = true }\n\
                   held = { kind = \"limit\", on = \"safe\", write_bytes = \"64KiB\", burst = \"0s\" }";
    let running = world.graph(devices, "held");
    let zeroes = || Op::WriteZeroes { range: range(0, 64 << 10), unmap: false, fua: false };
    // A discard without the option `discards` does nothing, so it counts no bytes.
    let discard = Op::Discard { range: range(0, 64 << 10), fua: false };
    let times = answered(&world, &running, vec![zeroes(), zeroes(), discard]);
    assert_eq!(times, [999, 1999, 1999]);
    let plain = graph(&world, "write_bytes = \"64KiB\", burst = \"0s\"");
    assert_eq!(answered(&world, &plain, vec![zeroes(), zeroes()]), [0, 0]);
}

#[test]
fn limit_plan_fault_names_option_to_set() {
    let world = World::new();
    let faults = |options| world.faults(&format!("{{ kind = \"limit\", on = \"d\"{options} }}"));
    assert!(faults("")[0].starts_with("no limit is set; add iops"));
    assert!(faults(", burst = \"1s\"")[0].starts_with("no limit is set"));
    assert!(faults(", iops = 5, read_bytes = 9")[0].starts_with("read_bytes limits one direction"));
    assert!(faults(", iops = 5, bytes = 9").is_empty());
}
