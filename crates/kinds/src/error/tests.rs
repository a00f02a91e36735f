//! Tests of `error`: which requests the device fails, when, and with which error.

use block::{ErrorKind, Health, Op};

use crate::tests::world::{Running, World, range};

fn over(options: &str) -> String {
    format!("[device]\nbad = {{ kind = \"error\", on = \"d\", {options} }}")
}

fn graph(world: &World, options: &str) -> Running {
    world.graph(&over(options), "bad")
}

/// Sends `many` reads to the `error` device, one after the other. Returns the numbers of the failed reads, from 1.
fn failures(world: &World, running: &Running, many: u64) -> Vec<u64> {
    let failed = |n: &u64| {
        let read = running.read(n * 512, 512);
        world.block_on(running.send(read)).1.is_err()
    };
    (1..=many).filter(failed).collect()
}

#[test]
fn error_device_combines_schedule_range_after_and_count() {
    let world = World::new();
    let cases: [(&str, &[u64]); 5] = [
        ("schedule = \"every 3\"", &[3, 6, 9]),
        ("schedule = \"2,4-6\"", &[2, 4, 5, 6]),
        ("schedule = \"2,4-6\", after = 4", &[5, 6]),
        ("after = 3, count = 2", &[4, 5]),
        ("schedule = \"every 2\", start = \"2KiB\", size = 1024", &[5]),
    ];
    for (options, numbers) in cases {
        let running = graph(&world, options);
        assert_eq!(failures(&world, &running, 9), numbers, "{options}");
        assert_eq!(running.counter("bad", "injected"), numbers.len() as u64);
    }
}

#[test]
fn error_device_rate_fails_random_share_of_requests() {
    let world = World::new();
    let share = |options| failures(&world, &graph(&world, options), 2000).len();
    assert_eq!(share("rate = 0"), 0);
    assert_eq!(share("rate = 1"), 2000);
    // A correct share would miss these limits once in 30 million runs; the random numbers of the world are fixed.
    assert!((130..=270).contains(&share("rate = \"10%\"")));
}

#[test]
fn error_device_fails_write_before_or_after_lower_write() {
    let world = World::new();
    for (when, found) in [("before", 0), ("after", 7)] {
        let options = format!("op = \"write\", with = \"nospace\", when = \"{when}\"");
        let running = graph(&world, &options);
        let failed = world.block_on(running.send(running.write(4096, 512, 7))).1.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::NoSpace);
        assert_eq!(failed.to_string(), "bad: the request failed on purpose, as specified");
        let (op, result) = world.block_on(running.send(running.read(4096, 512)));
        result.unwrap();
        let Op::Read { into, .. } = op else { panic!("it comes back as it went") };
        assert!(into.read().iter().all(|byte| *byte == found), "{when}");
    }
}

#[test]
fn error_device_fails_only_chosen_operations_and_bytes() {
    let world = World::new();
    let running = graph(&world, "start = 4096, size = 4096");
    let ops = |start| {
        let range = range(start, 4096);
        let (unmap, fua) = (true, false);
        let extents = Vec::new();
        [
            running.read(start, 4096),
            running.write(start, 4096, 1),
            Op::WriteZeroes { range, unmap, fua },
            Op::Discard { range, fua },
            Op::Status { range, extents },
            Op::Flush,
        ]
    };
    let outcomes = |start| ops(start).map(|op| world.block_on(running.send(op)).1.is_err());
    assert_eq!(outcomes(0), [false; 6]);
    assert_eq!(outcomes(2048), [true, true, true, true, false, false]);
    assert_eq!(outcomes(8192), [false; 6]);
    assert_eq!(running.counter("bad", "seen"), 4);
}

#[test]
fn error_device_fails_all_flushes_after_failed_flush() {
    let world = World::new();
    for when in ["before", "after"] {
        let options = format!("op = \"flush\", schedule = \"2\", when = \"{when}\"");
        let running = graph(&world, &options);
        let flush = || world.block_on(running.send(Op::Flush)).1.map_err(|error| error.kind());
        assert_eq!(flush(), Ok(()));
        assert_eq!(running.report("bad").health, Health::Ok);
        assert_eq!(flush(), Err(ErrorKind::Io));
        assert_eq!([flush(), flush()], [Err(ErrorKind::Faulted); 2]);
        assert_eq!(running.report("bad").health, Health::Failed);
        assert_eq!(running.counter("bad", "injected"), 1);
    }
}

#[test]
fn error_device_does_not_count_failures_of_lower() {
    let world = World::new();
    let devices = format!(
        "{}\nupper = {{ kind = \"error\", on = \"bad\", when = \"after\", count = 1 }}",
        over("schedule = \"1\", with = \"corrupt\"")
    );
    let running = world.graph(&devices, "upper");
    let read = || world.block_on(running.send(running.read(0, 512))).1.map_err(|e| e.kind());
    assert_eq!(read(), Err(ErrorKind::Corrupt));
    assert_eq!(running.counter("upper", "injected"), 0);
    assert_eq!([read(), read()], [Err(ErrorKind::Io), Ok(())]);
}

#[test]
fn error_device_plan_fault_names_option() {
    let world = World::new();
    let faults =
        |options: &str| world.faults(&format!("{{ kind = \"error\", on = \"d\", {options} }}"));
    let words = "byte 1049088 is past the end of \"d\", which has 1 MiB (1048576 B)";
    assert_eq!(faults("start = \"1MiB\", size = 512"), [words]);
    assert_eq!(faults("schedule = \"5,3\""), ["schedule \"5,3\": \"3\" is not greater than 5"]);
}
