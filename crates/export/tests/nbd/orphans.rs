//! Requests in flight whose NBD client disconnects before the reply.

use std::time::{Duration, Instant};

use export::nbd::Limits;

use super::client::*;
use super::world::{SHORT, World, until};

const WAIT: Duration = Duration::from_millis(600);

/// A spec whose writes take 600 ms each.
const SLOW: &str = "[disk]\nm = { memory = \"1MiB\" }\n\
                    [device]\nslow = { kind = \"delay\", on = \"m\", write = \"600ms\" }\n\
                    [export]\nvol = { on = \"slow\" }\n";

fn slow() -> World {
    World::new(SLOW, SHORT)
}

#[test]
fn read_waits_for_overlapping_write_of_disconnected_client() {
    let world = slow();
    let mut other = Client::new(&world);
    let mut gone = Client::new(&world);
    let begun = Instant::now();
    gone.request(WRITE, 0, 0, 4096, &[7; 4096]);
    std::thread::sleep(Duration::from_millis(100));
    drop(gone);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(other.read(4096, 512), [0; 512]);
    assert!(begun.elapsed() < WAIT, "what does not overlap has waited");
    assert_eq!(other.read(0, 512), [7; 512]);
    assert!(begun.elapsed() >= WAIT, "{:?}", begun.elapsed());
}

#[test]
fn flush_waits_for_write_of_disconnected_client() {
    let world = slow();
    let mut other = Client::new(&world);
    let mut gone = Client::new(&world);
    let begun = Instant::now();
    gone.request(WRITE, 0, 0, 4096, &[7; 4096]);
    std::thread::sleep(Duration::from_millis(100));
    drop(gone);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(other.ask(FLUSH, 0, 0, 0, &[]), 0);
    assert!(begun.elapsed() >= WAIT, "{:?}", begun.elapsed());
}

/// Bytes of a long request, and the offset of the last of the four pieces into which the server cuts such a request.
const LONG_BYTES: u32 = 4 * PIECE;
const LAST: u64 = 3 * PIECE as u64;
const PIECE: u32 = SHORT.piece_bytes as u32;

#[test]
fn write_zeroes_of_disconnected_client_stops_after_current_piece() {
    let world = slow();
    let mut other = Client::new(&world);
    let mut gone = Client::new(&world);
    assert_eq!(other.ask(WRITE, 0, 0, LONG_BYTES, &[7; LONG_BYTES as usize]), 0);
    let begun = Instant::now();
    gone.request(WRITE_ZEROES, 0, 0, LONG_BYTES, &[]);
    std::thread::sleep(Duration::from_millis(100));
    drop(gone);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(other.read(LAST, 512), [7; 512]);
    assert!(begun.elapsed() >= WAIT, "the read has not waited for the piece");
    assert!(begun.elapsed() < 2 * WAIT, "the read has waited for more than one piece");
    assert_eq!(other.read(0, 512), [0; 512]);
}

#[test]
fn long_write_zeroes_completes_after_disconnect_command() {
    let world = slow();
    let mut client = Client::new(&world);
    assert_eq!(client.ask(WRITE, 0, 0, LONG_BYTES, &[7; LONG_BYTES as usize]), 0);
    client.request(WRITE_ZEROES, 0, 0, LONG_BYTES, &[]);
    client.request(DISC, 0, 0, 0, &[]);
    drop(client);
    let mut other = Client::new(&world);
    assert_eq!(other.read(LAST, PIECE), [0; PIECE as usize]);
}

/// Starts a server that begins only one request of a client at a time, and whose writes take 600 ms.
fn one_at_a_time() -> World {
    World::new(SLOW, Limits { requests: 1, request: Duration::from_secs(20), ..SHORT })
}

#[test]
fn server_drops_unbegun_request_of_half_closed_client() {
    for connect in [Client::new, Client::over_tcp] {
        let world = one_at_a_time();
        let mut gone = connect(&world);
        gone.request(WRITE, 0, 0, 4096, &[1; 4096]);
        gone.request(WRITE, 0, 8192, 4096, &[1; 4096]);
        std::thread::sleep(Duration::from_millis(100));
        gone.0.shutdown(std::net::Shutdown::Write).unwrap();
        let mut next = connect(&world);
        assert_eq!(next.ask(WRITE, 0, 8192, 4096, &[2; 4096]), 0);
        std::thread::sleep(3 * WAIT);
        assert_eq!(next.read(8192, 4096), [2; 4096], "an older write has landed");
        assert_eq!(next.read(0, 4096), [1; 4096], "it had begun");
    }
}

#[test]
fn server_begins_requests_before_disconnect_command_before_next_client() {
    for connect in [Client::new, Client::over_tcp] {
        let world = one_at_a_time();
        let mut gone = connect(&world);
        gone.request(WRITE, 0, 0, 4096, &[1; 4096]);
        gone.request(WRITE, 0, 8192, 4096, &[1; 4096]);
        gone.request(DISC, 0, 0, 0, &[]);
        // The connection is not dropped: a reply that is not read would reset it, and its requests would be lost.
        gone.0.shutdown(std::net::Shutdown::Write).unwrap();
        let mut next = connect(&world);
        assert_eq!(next.read(8192, 4096), [1; 4096]);
    }
}

#[test]
fn client_receives_replies_after_disconnect_command() {
    // The disconnect command follows the requests directly, and their replies arrive all the same.
    let world = slow();
    let mut client = Client::new(&world);
    client.request(WRITE, 0, 0, 4096, &[7; 4096]);
    client.request(READ, 0, 65536, 65536, &[]);
    client.request(DISC, 0, 0, 0, &[]);
    assert_eq!(client.reply().0, 0);
    client.bytes(65536);
    assert_eq!(client.reply().0, 0);
    assert!(client.is_closed());
    until("it is gone", || world.connections() == 0);
}
