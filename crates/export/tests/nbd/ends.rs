//! Stops of an NBD server while clients send requests, or read no replies.

use std::io::Read;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use export::nbd::Limits;

use super::client::*;
use super::world::{MEMORY, SHORT, World};

/// A spec whose requests take 20 to 40 ms each, so that some requests are always in flight.
const SLOW: &str = "[disk]\nm = { memory = \"1MiB\" }\n\
                    [device]\nslow = { kind = \"delay\", on = \"m\", time = \"20ms\", jitter = \"20ms\" }\n\
                    [export]\nvol = { on = \"slow\" }\n";

#[test]
fn server_stop_closes_client_that_sends_without_pause() {
    let world = World::new(SLOW, SHORT);
    let mut client = Client::new(&world);
    let (tell, told) = mpsc::channel();
    let busy = std::thread::spawn(move || {
        let mut answered = 0;
        for n in 0..32 {
            client.request(READ, 0, n * 512, 512, &[]);
        }
        // One more request for each reply, until the server hangs up.
        let mut answer = [0; 16 + 512];
        while client.0.read_exact(&mut answer).is_ok() {
            answered += 1;
            if answered == 100 {
                tell.send(()).unwrap();
            }
            use std::io::Write;
            let _ = client.0.write_all(&header(READ, 0, 0, 512));
        }
        answered
    });
    told.recv().unwrap();
    let begun = Instant::now();
    assert_eq!(world.stop(Duration::from_secs(10)), (1, true));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(busy.join().unwrap() >= 100);
}

#[test]
fn server_stop_answers_begun_requests_and_drops_incomplete_requests() {
    let world = World::new(SLOW, Limits { request: Duration::from_secs(20), ..SHORT });
    let mut client = Client::new(&world);
    let mut half = Client::new(&world);
    half.send(&header(WRITE, 0, 0, 256 << 10));
    half.send(&[1; 1000]);
    let shaking = Client::negotiate(&world);
    for n in 0..8 {
        client.request(WRITE, 0, n * 4096, 4096, &[2; 4096]);
    }
    std::thread::sleep(Duration::from_millis(5));
    world.begin_stop(Duration::from_secs(10));
    for _ in 0..8 {
        assert_eq!(client.reply().0, 0);
    }
    assert!(client.is_closed() && half.is_closed());
    assert_eq!(world.end(), (2, true));
    drop(shaking);
}

#[test]
fn long_write_zeroes_fails_when_server_stops() {
    const ESHUTDOWN: u32 = 108;
    let world = World::new(SLOW, SHORT);
    let mut client = Client::new(&world);
    client.request(WRITE_ZEROES, 0, 0, 1 << 20, &[]);
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    world.begin_stop(Duration::from_secs(10));
    assert_eq!(client.reply().0, ESHUTDOWN);
    assert_eq!(world.end(), (1, true));
    assert!(begun.elapsed() < Duration::from_millis(300), "{:?}", begun.elapsed());
}

#[test]
fn server_stop_closes_client_that_reads_no_replies() {
    let world = World::new(MEMORY, SHORT);
    let mut hog = Client::new(&world);
    hog.send(&header(READ, 0, 0, 1 << 20).repeat(8));
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    assert_eq!(world.stop(Duration::from_secs(10)), (1, true));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn server_stop_reports_request_without_reply() {
    let world = World::new(&SLOW.replace("time = \"20ms\"", "time = \"10min\""), SHORT);
    let mut client = Client::new(&world);
    client.request(WRITE, 0, 0, 512, &[1; 512]);
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    assert_eq!(world.stop(Duration::from_millis(200)), (1, false));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(client.is_closed());
}
