//! Tests of `delay`: the time by which the device delays each request.

use std::time::Duration;

use block::Op;

use crate::tests::world::{Running, World, range};

fn graph(world: &World, options: &str) -> Running {
    let devices = format!("[device]\nslow = {{ kind = \"delay\", on = \"d\", {options} }}");
    world.graph(&devices, "slow")
}

fn took(world: &World, running: &Running, op: Op) -> Duration {
    let before = world.elapsed();
    world.block_on(running.send(op)).1.unwrap();
    world.elapsed() - before
}

#[test]
fn delay_holds_each_operation_for_time_of_own_option() {
    let world = World::new();
    let running = graph(&world, "time = \"7ms\", read = \"1ms\", flush = \"20ms\"");
    let range = range(0, 512);
    let (unmap, fua) = (false, false);
    let cases = [
        (running.read(0, 512), 1),
        (Op::Status { range, extents: Vec::new() }, 1),
        (running.write(0, 512, 1), 7),
        (Op::WriteZeroes { range, unmap, fua }, 7),
        (Op::Discard { range, fua }, 7),
        (Op::Flush, 20),
    ];
    for (op, millis) in cases {
        assert_eq!(took(&world, &running, op), Duration::from_millis(millis));
    }
    assert_eq!(running.counter("slow", "delayed"), 6);
}

#[test]
fn delay_holds_requests_concurrently() {
    let world = World::new();
    let running = graph(&world, "time = \"5ms\"");
    let sent: Vec<_> = (0..64).map(|n| running.send(running.read(n * 512, 512))).collect();
    world.block_on(async {
        for call in sent {
            call.await.1.unwrap();
        }
    });
    assert_eq!(world.elapsed(), Duration::from_millis(5));
}

#[test]
fn delay_draws_jitter_for_each_request() {
    let world = World::new();
    let running = graph(&world, "time = \"2ms\", jitter = \"1ms\"");
    let times: Vec<_> =
        (0..200).map(|_| took(&world, &running, running.read(0, 512)).as_micros()).collect();
    assert!(times.iter().all(|time| (2000..=3000).contains(time)), "{times:?}");
    assert!(times.iter().any(|time| *time < 2100) && times.iter().any(|time| *time > 2900));
}

#[test]
fn request_without_delay_sets_no_timer() {
    let world = World::new();
    let running = graph(&world, "write = \"5ms\"");
    assert_eq!(took(&world, &running, running.read(0, 512)), Duration::ZERO);
    assert_eq!((world.timers_set(), running.counter("slow", "delayed")), (0, 0));
}

#[test]
fn plan_rejects_delay_device_without_time() {
    let faults = World::new().faults("{ kind = \"delay\", on = \"d\" }");
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("time ="), "{faults:?}");
}
