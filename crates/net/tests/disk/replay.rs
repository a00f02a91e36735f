//! Tests that an NBD disk replays acknowledged writes after its server has lost them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::{Health, Op};

use kind::Value;

use crate::fake::{Act, Asked, FLAGS, FLUSH, Fake, MULTI_CONN, READ, TRIM, WRITE, WRITE_ZEROES};
use crate::volume::{Volume, range, says, time};

fn good(_: u32) -> (u64, u16) {
    (1 << 20, FLAGS)
}

/// Returns the behaviour of a server that loses its unflushed writes at the first read after `armed` is set.
fn mortal(armed: &Arc<AtomicBool>) -> impl Fn(&Asked) -> Act + Send + Sync + 'static {
    let armed = armed.clone();
    move |asked| match asked.command == 0 && armed.swap(false, Ordering::Relaxed) {
        true => Act::Die,
        false => Act::Serve,
    }
}

#[test]
fn disk_replays_unflushed_writes_and_zeroes_in_order() {
    let armed = Arc::default();
    let fake = Fake::new(good, mortal(&armed));
    let volume = Volume::new(&fake.uri(), &[]);
    volume.write(0, 64 << 10, 1, false).unwrap();
    volume.flush().unwrap();
    volume.write(4096, 8192, 2, false).unwrap();
    volume.zero(8192, 8192).unwrap();
    volume.write(12288, 512, 3, true).unwrap();
    volume.write(512, 512, 4, true).unwrap();
    let expected = fake.seen().bytes.clone();
    armed.store(true, Ordering::Relaxed);
    assert!(volume.read(0, 64 << 10).unwrap() == expected[..64 << 10], "before anything is read");
    assert!(fake.seen().bytes == expected);
    // Flushed changes are not sent again, nor durable ones without an older overlapping entry.
    assert_eq!((volume.counter("replayed"), volume.counter("reconnects")), (3, 1));
    volume.flush().unwrap();
    assert_eq!(volume.counter("unflushed_bytes"), 0);
    armed.store(true, Ordering::Relaxed);
    assert!(volume.read(0, 64 << 10).unwrap() == expected[..64 << 10]);
    assert_eq!(volume.counter("replayed"), 3, "the flush covered what was replayed");
}

#[test]
fn disk_sends_discard_as_write_zeroes_when_replay_is_on() {
    for (replay, command) in [(64 << 10, WRITE_ZEROES), (0, TRIM)] {
        let fake = Fake::new(good, |_| Act::Serve);
        let volume = Volume::new(&fake.uri(), &[("replay", Value::Size(replay))]);
        volume.discard(4096, 8192).unwrap();
        let seen = fake.seen();
        let asked = seen.asked.last().expect("the discard was sent");
        assert_eq!((asked.command, asked.flags, asked.offset, asked.len), (command, 0, 4096, 8192));
    }
}

#[test]
fn disk_offers_no_discard_when_server_lacks_write_zeroes() {
    const NO_ZEROES: u16 = FLAGS & !(1 << 6);
    for (replay, discards) in [(64 << 10, false), (0, true)] {
        let fake = Fake::new(|_| (1 << 20, NO_ZEROES), |_| Act::Serve);
        let volume = Volume::new(&fake.uri(), &[("replay", Value::Size(replay))]);
        assert_eq!(volume.info().discard, discards, "replay = {replay}");
    }
}

#[test]
fn disk_replays_writes_in_flight_after_lost_connection() {
    for act in [Act::Lose, Act::ServeAndLose, Act::Die, Act::ShutDown] {
        for command in [WRITE, WRITE_ZEROES, FLUSH] {
            let done = AtomicBool::new(false);
            let fake = Fake::new(good, move |asked| {
                let now = asked.command == command
                    && !done.swap(asked.command == command, Ordering::Relaxed);
                if now { act } else { Act::Serve }
            });
            let volume = Volume::new(&fake.uri(), &[]);
            volume.write(0, 8192, 1, false).unwrap();
            volume.zero(4096, 4096).unwrap();
            volume.flush().unwrap();
            assert_eq!(
                volume.read(4095, 1).err().map(|error| error.kind()),
                Some(block::ErrorKind::Invalid)
            );
            let read = volume.read(0, 8192).unwrap();
            assert!(read[..4096] == [1; 4096] && read[4096..] == [0; 4096], "{act:?}, {command}");
            assert_eq!(volume.counter("reconnects"), 1, "{act:?}, {command}");
        }
    }
}

#[test]
fn disk_flushes_to_keep_unflushed_log_below_limit() {
    let fake = Fake::new(good, |_| Act::Serve);
    let volume = Volume::new(&fake.uri(), &[("replay", Value::Size(64 << 10))]);
    for n in 0..256 {
        volume.write(n * 4096, 4096, n as u8, false).unwrap();
        assert!(volume.counter("unflushed_bytes") <= 64 << 10);
    }
    assert!(fake.count(FLUSH) >= 16, "{} flushes", fake.count(FLUSH));
    // Many writes at once wait for room, and get it.
    let calls: Vec<_> = (0..64)
        .map(|n| {
            let data = volume.filled(16 << 10, 7);
            volume.client.send(block::Op::write(crate::volume::range(n << 14, 16 << 10), data))
        })
        .collect();
    for call in calls {
        volume.core.block_on(call).result.unwrap();
    }
}

#[test]
fn disk_flush_fails_after_loss_of_writes_beyond_replay_limit() {
    let armed = Arc::default();
    let fake = Fake::new(good, mortal(&armed));
    let volume = Volume::new(&fake.uri(), &[("replay", Value::Size(8192))]);
    volume.write(0, 64 << 10, 1, false).unwrap();
    armed.store(true, Ordering::Relaxed);
    assert!(volume.read(0, 512).unwrap() == [0; 512], "it was lost");
    says(volume.flush(), "more unflushed bytes than `replay` keeps");
    says(volume.flush(), "an earlier flush failed");
    assert!(volume.report().summary.contains("`replay`"), "{:?}", volume.report());
    volume.write(0, 512, 2, false).unwrap();
}

/// A write hangs on one connection, and the server ends the other connection. The disk then replays the write over new
/// connections, and its timeout on the old connection must not end these.
#[test]
fn disk_replays_hung_write_of_lost_session() {
    const HANGS: u64 = 8192;
    let fake = Fake::new(
        |_| (1 << 20, FLAGS | MULTI_CONN),
        |asked| match (asked.connection, asked.command, asked.offset) {
            (1 | 2, WRITE, HANGS) => Act::Hang,
            (1 | 2, READ, _) => Act::Die,
            _ => Act::Serve,
        },
    );
    let limit = Duration::from_secs(2);
    let options = [("connections", Value::Integer(2)), ("timeout", time(limit))];
    let volume = Volume::new(&fake.uri(), &options);
    volume.write(0, 4096, 1, false).unwrap();
    let data = volume.filled(4096, 2);
    let hung = volume.client.send(Op::write(range(HANGS, 4096), data));
    volume.pass(limit / 20);
    // This read uses the other connection, and the server loses the unflushed changes.
    assert!(volume.read(0, 4096).unwrap() == [1; 4096], "what was answered is sent again");
    volume.core.block_on(hung).result.unwrap();
    assert!(volume.read(HANGS, 4096).unwrap() == [2; 4096]);
    volume.flush().unwrap();
    assert_eq!((volume.report().health, volume.counter("reconnects")), (Health::Ok, 1));
}
