//! Limits of the NBD server for clients that send without reading replies, or hold many connections.

use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use export::nbd::Limits;

use super::client::*;
use super::world::{MEMORY, SHORT, World, until};

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

/// Limit for a client's connection and first read beside clients with many requests. It takes under 100 ms in an
/// optimised build on a machine at rest. The tests are not optimised and share the processors with other tests. A client
/// that gets no share waits for seconds.
const ANSWERED: Duration = Duration::from_millis(500);

/// Returns the shortest time of five calls. Other tests that run at the same time delay only some calls.
fn shortest_of_five(mut call: impl FnMut()) -> Duration {
    let mut time = || {
        let begin = Instant::now();
        call();
        begin.elapsed()
    };
    (0..5).map(|_| time()).min().unwrap()
}

/// Buffer bytes of an idle connection. The issue allows 16 KiB.
const IDLE_BYTES: usize = wire::stream::INBOX_IDLE_BYTES;

#[test]
fn idle_connection_gives_its_buffers_back() {
    let world = World::new(MEMORY, Limits { connections: 20, ..SHORT });
    let before = world.bytes();
    let mut clients: Vec<_> = (0..20).map(|_| Client::new(&world)).collect();
    let all = before + clients.len() * IDLE_BYTES;
    until("fresh connections are small", || world.bytes() == all);
    for client in &mut clients {
        // More bytes than a small receive buffer holds, in one go.
        let write = |n: u64| [header(WRITE, 0, n << 12, 4096), vec![7; 4096]].concat();
        client.send(&(0..32).flat_map(write).collect::<Vec<u8>>());
        (0..32).for_each(|_| assert_eq!(client.reply().0, 0));
    }
    assert!(world.most_bytes() > all + wire::stream::INBOX_BYTES, "a busy connection has more");
    until("idle connections are small", || world.bytes() == all);
    for client in &mut clients {
        assert_eq!(client.read(4096, 4096), [7; 4096], "it goes on");
    }
    until("idle connections are small", || world.bytes() == all);
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
fn server_closes_client_that_reads_its_replies_too_slowly() {
    let limits = Limits { slow: Duration::from_secs(1), ..SHORT };
    let world = World::new(MEMORY, limits);
    let (mut slow, mut steady) = (Client::new(&world), Client::new(&world));
    for client in [&mut slow, &mut steady] {
        client.send(&header(READ, 0, 0, 1 << 20).repeat(64));
    }
    // One reads 10 KiB in a second, the other one 640 KiB.
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(50));
        let _ = slow.0.read_exact(&mut [0; 512]);
        steady.0.read_exact(&mut vec![0; 32 << 10]).unwrap();
    }
    world.logs("the client read fewer than 65536 bytes of its replies in 1s");
    let sent = slow.0.read_to_end(&mut Vec::new()).unwrap();
    assert!(sent < 8 << 20, "{sent} bytes were sent");
    steady.0.read_exact(&mut vec![0; 16 << 20]).unwrap();
}

#[test]
fn new_client_is_served_while_twelve_clients_read_slowly() {
    let world = World::new(MEMORY, Limits { connections: 20, ..Limits::default() });
    let mut hogs: Vec<_> = (0..12).map(|_| Client::new(&world)).collect();
    for hog in &mut hogs {
        hog.send(&header(READ, 0, 0, 1 << 20).repeat(128));
    }
    std::thread::sleep(Duration::from_millis(200));
    let wait = shortest_of_five(|| assert_eq!(Client::new(&world).read(0, 4096), [0; 4096]));
    assert!(wait < ANSWERED, "{wait:?}");
}

#[test]
fn other_export_is_served_while_five_clients_zero_encrypted_export() {
    let key = std::env::temp_dir().join(format!("cairn-fair-key-{}", std::process::id()));
    std::fs::write(&key, (0..64).collect::<Vec<u8>>()).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let spec = format!(
        "[disk]\nn = {{ null = \"1TiB\" }}\nm = {{ memory = \"1MiB\" }}\n\
         [device]\ns = {{ kind = \"crypt\", on = \"n\", key = \"file:{}\", plain = true }}\n\
         [export]\nvol = {{ on = \"s\" }}\nother = {{ on = \"m\" }}\n",
        key.display()
    );
    for len in [64 << 10, 16 << 20, (1 << 30) + (64 << 10)] {
        let world = World::new(&spec, Limits { connections: 20, ..Limits::default() });
        let mut hogs: Vec<_> = (0..5).map(|_| Client::new(&world)).collect();
        for hog in &mut hogs {
            hog.send(&header(WRITE_ZEROES, 0, 0, len).repeat(256));
        }
        std::thread::sleep(Duration::from_millis(100));
        for hogs_left in [false, true] {
            let wait = shortest_of_five(|| {
                let mut client = Client::negotiate(&world);
                assert_eq!(client.go("other").last().unwrap().0, ACK);
                assert_eq!(client.read(0, 4096), [0; 4096]);
            });
            assert!(wait < ANSWERED, "{wait:?} beside zeroes of {len}, clients left: {hogs_left}");
            hogs.clear();
        }
    }
    std::fs::remove_file(&key).unwrap();
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
