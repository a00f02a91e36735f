//! Limits of the NBD server for clients that send without reading replies, or hold many connections.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use export::nbd::Limits;

use super::client::*;
use super::world::{MEMORY, SHORT, World};

/// Sends `bytes` to the server repeatedly. Returns whether the server stops reading before it has taken `most` bytes.
fn is_held_back(client: &mut Client, bytes: &[u8], most: usize) -> bool {
    client.0.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut sent = 0;
    while sent < most {
        match client.0.write(bytes) {
            Ok(n) => sent += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return true;
            }
        }
    }
    false
}

#[test]
fn server_throttles_only_client_that_reads_no_data() {
    const POOL: usize = 32 << 20;
    let limits = Limits { held_bytes: 4 << 20, request: Duration::from_secs(20), ..SHORT };
    let world = World::with_pool(MEMORY, limits, POOL);
    let mut other = Client::new(&world);
    other.ask(WRITE, 0, 0, 65536, &vec![3; 65536]);
    let before = world.most_bytes();
    let mut hog = Client::new(&world);
    let reads = header(READ, 0, 0, 65536).repeat(1000);
    assert!(is_held_back(&mut hog, &reads, 64 << 20));
    let held = world.most_bytes() - before;
    assert!(held <= limits.held_bytes + (1 << 20), "{held} bytes");
    for _ in 0..100 {
        assert_eq!(other.read(0, 512), [3; 512]);
    }
}

#[test]
fn server_throttles_client_that_reads_no_replies() {
    let world = World::new(MEMORY, Limits { request: Duration::from_secs(20), ..SHORT });
    // A flush holds no bytes, and a request that is refused is never begun.
    for command in [FLUSH, 99] {
        let mut hog = Client::new(&world);
        assert!(is_held_back(&mut hog, &header(command, 0, 0, 0).repeat(1000), 64 << 20));
        assert_eq!(Client::new(&world).read(0, 512), [0; 512]);
    }
}

#[test]
fn server_closes_stuck_clients_when_clients_wait_for_memory() {
    let limits = Limits { connections: 20, ..SHORT };
    let world = World::with_pool(&MEMORY.replace("1MiB", "16MiB"), limits, 32 << 20);
    let mut patient = Client::new(&world);
    patient.ask(WRITE, 0, 0, 4 << 20, &vec![4; 4 << 20]);
    let mut hogs: Vec<_> = (0..10).map(|_| Client::new(&world)).collect();
    for hog in &mut hogs {
        hog.send(&header(READ, 0, 0, 4 << 20).repeat(8));
    }
    // There is not enough memory for all clients: the patient one waits until a hog is closed.
    assert_eq!(patient.read(0, 16 << 20).len(), 16 << 20);
    world.logs("the client read no reply for 500ms, and other clients waited for memory");
    assert!(world.most_bytes() <= 32 << 20);
}

#[test]
fn server_limits_number_of_silent_connections() {
    let limits = Limits { connections: 16, ..SHORT };
    let world = World::new(MEMORY, limits);
    for _ in 0..10_000 {
        // The oldest connections are still open when the newest come.
        drop(UnixStream::connect(&world.path).unwrap());
    }
    assert!(world.connections() <= 2 * limits.connections, "{}", world.connections());
    super::world::until("a client is served", || {
        let mut client = Client::negotiate(&world);
        client.go("vol").last().unwrap().0 == ACK && client.read(0, 512) == [0; 512]
    });
    // The log does not have a line for each connection: 20 in 10 s.
    assert!(world.log().len() <= 42, "{} lines", world.log().len());
}
