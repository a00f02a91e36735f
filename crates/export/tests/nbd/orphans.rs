//! Requests that outlive their connection.

use std::time::{Duration, Instant};

use super::client::*;
use super::world::{SHORT, World, until};

const WAIT: Duration = Duration::from_millis(600);

/// Writes take their time.
fn slow(disk: &str) -> World {
    let spec = format!(
        "[disk]\nm = {{ {disk} }}\n\
         [device]\nslow = {{ kind = \"delay\", on = \"m\", write = \"600ms\" }}\n\
         [export]\nvol = {{ on = \"slow\" }}\n"
    );
    World::new(&spec, SHORT)
}

#[test]
fn what_overlaps_waits_for_the_write_of_a_client_that_is_gone() {
    let world = slow("memory = \"1MiB\"");
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
fn a_flush_waits_for_it_too() {
    let world = slow("memory = \"1MiB\"");
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

#[test]
fn a_long_trim_of_a_client_that_is_gone_comes_to_its_end() {
    // It goes down in pieces of 1 GiB, and nobody else asks for anything meanwhile.
    let world = slow("null = \"8GiB\"");
    let mut other = Client::new(&world);
    let mut gone = Client::new(&world);
    let begun = Instant::now();
    gone.request(WRITE_ZEROES, 0, 0, 2 << 30, &[]);
    std::thread::sleep(Duration::from_millis(100));
    drop(gone);
    std::thread::sleep(Duration::from_millis(100));
    other.read((2 << 30) - 4096, 4096);
    assert!(begun.elapsed() >= 2 * WAIT, "{:?}", begun.elapsed());
}

#[test]
fn answers_are_read_after_the_last_request() {
    // The client says good-bye with its requests; its answers come all the same.
    let world = slow("memory = \"1MiB\"");
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
