//! Tests of an NBD disk whose server is away: the disk holds requests for the configured time and no longer.

use std::time::{Duration, Instant};

use crate::fake::{Act, FLAGS, Fake, READ};
use crate::volume::{Volume, says, time};
use block::{Health, Op};

fn good(_: u32) -> (u64, u16) {
    (1 << 20, FLAGS)
}

/// Returns a server that ends the first connection at its first read, and loses its unflushed writes.
fn loses_one() -> Fake {
    Fake::new(good, |asked| match asked.connection == 1 && asked.command == READ {
        true => Act::Die,
        false => Act::Serve,
    })
}

#[test]
fn disk_holds_requests_until_reconnect() {
    let fake = loses_one();
    let volume = Volume::new(&fake.uri(), &[]);
    volume.write(0, 4096, 5, false).unwrap();
    fake.seen().shut = true;
    let held = volume.client.send(Op::read(crate::volume::range(0, 4096), volume.filled(4096, 0)));
    volume.pass(Duration::from_millis(300));
    let report = volume.report();
    assert_eq!(report.health, Health::Degraded);
    assert!(
        report.summary.starts_with("the server is unreachable for 0 s, requests wait up to 30 s; "),
        "{report:?}"
    );
    fake.seen().shut = false;
    let answer = volume.core.block_on(held);
    answer.result.unwrap();
    let Op::Read { into, .. } = answer.op else { panic!("it was a read") };
    assert!(*into.read() == [5; 4096]);
    assert_eq!((volume.report().health, volume.report().summary), (Health::Ok, String::new()));
}

#[test]
fn idle_disk_reconnects_after_lost_connection() {
    let fake = loses_one();
    let volume = Volume::new(&fake.uri(), &[]);
    drop(volume.client.send(Op::read(crate::volume::range(0, 512), volume.filled(512, 0))));
    volume.pass(Duration::from_millis(300));
    assert_eq!((volume.counter("reconnects"), fake.seen().connections), (1, 2));
}

#[test]
fn disk_fails_requests_when_reconnect_time_is_over() {
    let fake = loses_one();
    let hold = Duration::from_millis(400);
    let volume = Volume::new(&fake.uri(), &[("reconnect", time(hold))]);
    volume.write(0, 512, 5, false).unwrap();
    fake.seen().shut = true;
    let begun = Instant::now();
    says(volume.read(0, 512), "far: out of service: no server for 0.4 s (");
    let took = begun.elapsed();
    assert!(took >= hold && took < hold + Duration::from_secs(5), "{took:?}");
    // The server refuses the last attempt that was already under way, too.
    volume.pass(Duration::from_millis(100));
    fake.seen().shut = false;
    volume.pass(Duration::from_millis(100));
    says(volume.flush(), "Unflushed writes may be lost");
    assert_eq!(fake.seen().connections, 1, "nobody asks it any more");
    assert_eq!(volume.report().health, Health::Failed);
}

#[test]
fn disk_without_reconnect_fails_requests_at_once() {
    let fake = loses_one();
    let volume = Volume::new(&fake.uri(), &[("reconnect", time(Duration::ZERO))]);
    let begun = Instant::now();
    says(volume.read(0, 512), "the connection was lost: the server closed the connection");
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(fake.seen().connections, 1);
}

#[test]
fn disk_reconnects_while_buffer_pool_is_exhausted() {
    let fake = loses_one();
    let volume = Volume::new(&fake.uri(), &[]);
    fake.seen().shut = true;
    let read = || volume.client.send(Op::read(crate::volume::range(0, 512), volume.filled(512, 0)));
    let held = read();
    volume.pass(Duration::from_millis(100));
    let mut all = Vec::new();
    while let Ok(buf) = volume.env().buf(64 << 10) {
        all.push(buf);
    }
    while let Ok(buf) = volume.env().buf(4096) {
        all.push(buf);
    }
    fake.seen().shut = false;
    volume.core.block_on(held).result.unwrap();
    assert_eq!(volume.counter("reconnects"), 1);
}
