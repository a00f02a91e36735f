//! Hand-overs of client connections from one NBD server to the next, at any byte of a client's requests.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::client::*;
use super::world::{IDENTITY, MEMORY, SHORT, World, until};

const PATIENT: export::nbd::Limits =
    export::nbd::Limits { request: Duration::from_secs(20), ..SHORT };

const LONG: u32 = 200 << 10;

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

/// Returns the encoded requests of a client: short and long writes, a write beyond the end of the volume, a flush, and
/// reads.
fn stream() -> Vec<u8> {
    [
        header(WRITE, 0, 0, LONG),
        pattern(LONG),
        header(WRITE, 0, 512 << 10, 4096),
        pattern(4096),
        header(WRITE, 0, 1 << 40, LONG),
        vec![9; LONG as usize],
        header(FLUSH, 0, 0, 0),
        header(READ, 0, 0, LONG),
        header(READ, 0, 512 << 10, 4096),
    ]
    .concat()
}

/// Reads and checks all replies to the requests of [`stream`]. The memory disk answers in the order of the requests.
fn hear_all(client: &mut Client) {
    for refused in [false, false, true, false] {
        assert_eq!(client.reply().0 != 0, refused);
    }
    for len in [LONG, 4096] {
        assert_eq!(client.reply().0, 0);
        assert!(client.bytes(len as usize) == pattern(len), "bytes are not where they belong");
    }
}

#[test]
fn handover_resumes_request_stream_at_every_byte() {
    let world = World::new(MEMORY, PATIENT);
    let stream = stream();
    let second = 28 + LONG as usize;
    let third = second + 28 + 4096;
    let fourth = third + 28 + LONG as usize;
    let mut client = Client::new(&world);
    let within = [0, 1, 27, 28, 29, 28 + 70_000, second - 1, second, second + 10, second + 28 + 9];
    let behind = [third, third + 28, third + 5000, fourth - 1, fourth, fourth + 27, fourth + 56];
    for cut in within.into_iter().chain(behind) {
        client.send(&stream[..cut]);
        // So that the reader waits for more.
        std::thread::sleep(Duration::from_millis(4));
        world.next(IDENTITY);
        world.next(IDENTITY);
        client.send(&stream[cut..]);
        hear_all(&mut client);
    }
    assert_eq!(world.log(), [""; 0]);
    assert_eq!(world.stop(Duration::from_secs(10)), (1, true));
}

#[test]
fn handover_under_load_answers_each_request_once() {
    const HANDOVERS: usize = 200;
    let world = World::new(MEMORY, PATIENT);
    let mut client = Client::new(&world);
    let mut writer = client.0.try_clone().unwrap();
    let (sent, rounds) = std::sync::mpsc::sync_channel(4);
    let enough = Arc::new(AtomicBool::new(false));
    let ends = enough.clone();
    let busy = std::thread::spawn(move || {
        let stream = stream();
        while !ends.load(Ordering::Relaxed) {
            sent.send(()).unwrap();
            writer.write_all(&stream).unwrap();
        }
    });
    let reader = std::thread::spawn(move || {
        rounds.iter().for_each(|()| hear_all(&mut client));
        client
    });
    (0..HANDOVERS).for_each(|_| world.next(IDENTITY));
    enough.store(true, Ordering::Relaxed);
    busy.join().unwrap();
    let mut client = reader.join().unwrap();
    assert_eq!(client.read(512 << 10, 4096), pattern(4096));
    assert_eq!(world.log(), [""; 0]);
}

#[test]
fn handover_completes_long_write_zeroes_in_next_server() {
    let spec = "[disk]\nm = { memory = \"1MiB\" }\n\
                [device]\nslow = { kind = \"delay\", on = \"m\", write = \"50ms\" }\n\
                [export]\nvol = { on = \"slow\" }\n";
    let world = World::new(spec, PATIENT);
    let mut client = Client::new(&world);
    assert_eq!(client.ask(WRITE, 0, 0, 1 << 20, &pattern(1 << 20)), 0);
    client.request(WRITE_ZEROES, 0, 0, 1 << 20, &[]);
    client.request(READ, 0, 0, 512, &[]);
    assert_eq!(client.reply(), (0, cookie_of(0, 512)), "the read does not wait for the zeroes");
    client.bytes(512);
    std::thread::sleep(Duration::from_millis(120));
    let begun = Instant::now();
    world.next(IDENTITY);
    assert!(begun.elapsed() < Duration::from_millis(400), "{:?} for one piece", begun.elapsed());
    assert_eq!(client.reply(), (0, cookie_of(0, 1 << 20)));
    assert_eq!(client.read(0, 1 << 20), vec![0; 1 << 20]);
    assert_eq!(world.log(), [""; 0]);
}

#[test]
fn handover_keeps_reply_style_of_client() {
    let world = World::new(MEMORY, PATIENT);
    let mut structured = Client::structured(&world);
    let mut extended_one = Client::negotiate(&world);
    assert_eq!(extended_one.option(OPT_EXTENDED, &[])[0].0, ACK);
    assert_eq!(extended_one.go("vol").last().unwrap().0, ACK);
    world.next(IDENTITY);
    structured.request(BLOCK_STATUS, 0, 0, 4096, &[]);
    let (flags, kind, data) = structured.chunk();
    assert_eq!((flags, kind), (1, 5));
    assert!(data.len() >= 12, "the context is still the one that was agreed on");
    // An extended write that does not announce its payload has none: it is refused alone.
    let mut half = extended(WRITE, 0, 0, 4096);
    let rest = half.split_off(20);
    extended_one.send(&half);
    std::thread::sleep(Duration::from_millis(4));
    world.next(IDENTITY);
    extended_one.send(&rest);
    assert_eq!(extended_one.extended_chunk(0).1 >> 15, 1, "an error");
    extended_one.send(&extended(READ, 0, 0, 4096));
    assert_eq!(extended_one.extended_chunk(0).1 >> 15, 0);
    assert_eq!(world.log(), [""; 0]);
}

#[test]
fn handover_closes_connection_when_device_of_export_changed() {
    let world = World::new(MEMORY, PATIENT);
    let mut client = Client::new(&world);
    assert_eq!(client.ask(WRITE, 0, 0, 512, &[1; 512]), 0);
    world.next(IDENTITY + 1);
    assert!(client.is_closed());
    assert_eq!(world.log(), ["the device, size or flags of the export vol have changed"]);
    assert_eq!(Client::new(&world).read(0, 512), [1; 512]);
}

#[test]
fn handover_closes_only_connection_that_exceeds_state_limit() {
    const WHOLE: usize = 64 << 20;
    let spec = "[disk]\nm = { memory = \"64MiB\" }\n[export]\nvol = { on = \"m\" }\n";
    let world = World::new(spec, PATIENT);
    let (mut first, mut hog, mut last) =
        (Client::new(&world), Client::new(&world), Client::new(&world));
    // Two of these and the facts about each connection are more than a state takes.
    for client in [&mut first, &mut hog] {
        client.send(&header(WRITE, 0, 0, WHOLE as u32));
        client.send(&vec![3; WHOLE - 1]);
    }
    last.send(&header(FLUSH, 0, 0, 0)[..9]);
    let is_open = |client: &Client| {
        client.0.set_nonblocking(true).unwrap();
        let read = (&client.0).read(&mut [0]);
        client.0.set_nonblocking(false).unwrap();
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    until("all has arrived, and one is closed", || {
        world.next(IDENTITY);
        !(is_open(&first) && is_open(&hog))
    });
    last.send(&header(FLUSH, 0, 0, 0)[9..]);
    assert_eq!(last.reply().0, 0);
    let left = [&mut first, &mut hog].into_iter().filter(|client| is_open(client));
    let answers = left.map(|client| {
        client.send(&[3]);
        client.reply().0
    });
    assert_eq!(answers.collect::<Vec<_>>(), [0]);
    assert_eq!(last.read(WHOLE as u64 - 512, 512), [3; 512]);
}

#[test]
fn handover_closes_client_that_reads_no_replies() {
    let world = World::new(MEMORY, PATIENT);
    let mut hog = Client::new(&world);
    let mut client = Client::new(&world);
    hog.send(&header(READ, 0, 0, 1 << 20).repeat(8));
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    world.next(IDENTITY);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(hog.is_closed());
    assert_eq!(client.ask(WRITE, 0, 0, 512, &[1; 512]), 0);
}

#[test]
fn client_is_served_after_failed_or_undone_handover() {
    let slow = "[disk]\nm = { memory = \"1MiB\" }\n\
                [device]\nslow = { kind = \"delay\", on = \"m\", time = \"100ms\" }\n\
                [export]\nvol = { on = \"slow\" }\n";
    let world = World::new(slow, PATIENT);
    let mut client = Client::new(&world);
    let shaking = Client::negotiate(&world);
    let begin = |client: &mut Client| {
        (0..8).for_each(|n| client.request(WRITE, 0, n * 4096, 4096, &[n as u8; 4096]));
        client.send(&header(READ, 0, 0, 4096)[..9]);
    };
    let hear = |client: &mut Client| {
        (0..8).for_each(|_| assert_eq!(client.reply().0, 0));
        client.send(&header(READ, 0, 0, 4096)[9..]);
        assert_eq!(client.reply().0, 0);
        assert_eq!(client.bytes(4096), [0; 4096]);
    };
    begin(&mut client);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!world.pause(Duration::from_millis(10)));
    hear(&mut client);
    begin(&mut client);
    assert!(world.pause(Duration::from_secs(10)));
    hear(&mut client);
    drop(shaking);
    // Clients are accepted as before.
    assert_eq!(Client::new(&world).ask(FLUSH, 0, 0, 0, &[]), 0);
}
